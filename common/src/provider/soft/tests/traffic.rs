//! Commands and answers under many seeds, until all are answered or the wire breaks under them.
use super::*;
use crate::provider::sim::{Choices, Prng};

const DEPTH: u16 = 7;
const SLOT: u32 = 100_000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Direction {
    ToHost,
    FromHost,
    InCapsule,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    direction: Direction,
    length: u32,
    invalidates: bool,
    /// Whether its key is to be invalid before it is over.
    ends: bool,
    remote: Remote,
    /// The response, and the completion of its Send, are still to come; then the invalidation.
    answered: bool,
    sent: bool,
}

/// The host's half and the target's half of an NVMe-like conversation.
struct Traffic {
    world: World,
    choices: Prng,
    ours: QpHandle,
    theirs: QpHandle,
    regions: Vec<MrHandle>,
    running: BTreeMap<u16, Command>,
    /// What the target has posted and not got back.
    posted: BTreeMap<u64, u32>,
    fetching: u32,
    waiting: VecDeque<(u16, Remote)>,
    finished: u32,
    ended: [bool; 2],
}

impl Traffic {
    fn new(seed: u64) -> Self {
        let mut choices = Prng::new(seed ^ 0xABCD);
        let mut world = World::new(seed, choices.chance(50), choices.chance(50));
        let registration =
            [Registration::Window, Registration::Pool, Registration::Dynamic][seed as usize % 3];
        world.host.soft.set_registration(registration);
        let (ours, theirs) = world.connected();
        let regions = (0..DEPTH).map(|_| world.host.soft.allocate_mr(ours)).collect();
        Self {
            world,
            choices,
            ours,
            theirs,
            regions,
            running: BTreeMap::new(),
            posted: BTreeMap::new(),
            fetching: 0,
            waiting: VecDeque::new(),
            finished: 0,
            ended: [false; 2],
        }
    }

    fn place(side: &Side, slot: u16, length: u32) -> Sge {
        side.data.slice(u32::from(slot) * SLOT, length)
    }

    fn submit(&mut self, slot: u16) {
        let direction = match self.choices.below(3) {
            0 => Direction::ToHost,
            1 => Direction::FromHost,
            _ => Direction::InCapsule,
        };
        let most = if direction == Direction::InCapsule { 4097 } else { SLOT };
        let length = if self.choices.chance(50) { self.choices.below(most) } else { most.min(4096) };
        let host = Self::place(&self.world.host, slot, length);
        let target = Self::place(&self.world.target, slot, length);
        let bytes: Vec<u8> = (0..length).map(|_| self.choices.next() as u8).collect();
        match direction {
            Direction::ToHost => self.world.target.memory.write(target, &bytes),
            _ => self.world.host.memory.write(host, &bytes),
        }
        let access = if direction == Direction::ToHost { Access::RemoteWrite } else { Access::RemoteRead };
        let region = self.regions[usize::from(slot)];
        let soft = &mut self.world.host.soft;
        let exposure =
            (direction != Direction::InCapsule).then(|| soft.prepare(self.ours, region, host, access));
        let remote = exposure.map_or(Remote { address: 0, rkey: 0 }, |exposure| exposure.remote);
        let mut capsule = [0; 64];
        capsule[..2].copy_from_slice(&slot.to_le_bytes());
        let data = (direction == Direction::InCapsule).then_some(host);
        soft.post_command(self.ours, token(Kind::Command, slot), &capsule, data, exposure);
        let wanted = self.choices.chance(50);
        let invalidates = exposure.is_some_and(|one| wanted && one.registration.peer_invalidates());
        let ends = exposure.is_some_and(|one| one.registration.ends_with_command());
        let command = Command { direction, length, invalidates, ends, remote, answered: false, sent: false };
        self.running.insert(slot, command);
    }

    fn on_capsule(&mut self, received: Received) {
        let soft = &mut self.world.target.soft;
        let message = soft.message(&received);
        let slot = u16::from_le_bytes(message[..2].try_into().unwrap());
        let command = self.running[&slot];
        let data = soft.message_sge(&received, 64);
        assert_eq!(data.address % 512, 0);
        let place = Self::place(&self.world.target, slot, command.length);
        if command.direction == Direction::InCapsule {
            self.world.target.memory.copy(data, place);
        }
        self.world.target.soft.repost(received);
        if self.ended[1] {
            return;
        }
        match command.direction {
            Direction::FromHost => self.waiting.push_back((slot, command.remote)),
            Direction::ToHost => self.respond(slot, Some((place, command.remote))),
            Direction::InCapsule => self.respond(slot, None),
        }
    }

    fn fetch(&mut self) {
        while self.fetching < self.world.target.soft.limits(self.theirs).reads
            && let Some((slot, remote)) = self.waiting.pop_front()
        {
            let into = Self::place(&self.world.target, slot, self.running[&slot].length);
            self.fetching += 1;
            let token = token(Kind::Fetch, slot);
            *self.posted.entry(token.to_bits()).or_default() += 1;
            self.world.target.soft.post_fetch(self.theirs, token, remote, into);
        }
    }

    fn respond(&mut self, slot: u16, data: Option<(Sge, Remote)>) {
        let command = self.running[&slot];
        let invalidate = command.invalidates.then_some(command.remote.rkey);
        let mut response = [0; 16];
        response[..2].copy_from_slice(&slot.to_le_bytes());
        let token = token(Kind::Respond, slot);
        *self.posted.entry(token.to_bits()).or_default() += 1;
        self.world.target.soft.post_respond(self.theirs, token, data, &response, invalidate);
    }

    fn advance_target(&mut self) {
        while let Some(event) = self.world.target.soft.poll() {
            match event {
                Event::Received(received) => self.on_capsule(received),
                Event::Completed(Wc { token, status, .. }) => {
                    let posted = self.posted.get_mut(&token.to_bits()).expect("it was posted");
                    *posted = posted.checked_sub(1).expect("completed once too often");
                    if token.kind == Kind::Fetch {
                        self.fetching -= 1;
                        if status == WcStatus::Success {
                            self.respond(token.slot, None);
                        }
                    }
                }
                Event::Connection(event) => {
                    assert!(matches!(*event, CmEvent::Disconnected { .. }), "{event:?}");
                    assert!(!std::mem::replace(&mut self.ended[1], true), "told twice");
                }
            }
        }
        if !self.ended[1] {
            self.fetch();
        }
    }

    fn advance_host(&mut self) {
        while let Some(event) = self.world.host.soft.poll() {
            match event {
                Event::Received(received) => {
                    let message = self.world.host.soft.message(&received);
                    assert_eq!(message.len(), 16);
                    let slot = u16::from_le_bytes(message[..2].try_into().unwrap());
                    let invalidated = received.invalidated;
                    self.world.host.soft.repost(received);
                    self.on_response(slot, invalidated);
                }
                Event::Completed(Wc { token, status, .. }) => {
                    let command = self.running.get_mut(&token.slot).expect("it is running");
                    match token.kind {
                        Kind::Command => assert!(!std::mem::replace(&mut command.sent, true)),
                        Kind::Invalidate => command.answered = true,
                        other => panic!("{other:?}"),
                    }
                    if status == WcStatus::Success {
                        self.finish(token.slot);
                    }
                }
                Event::Connection(event) => {
                    assert!(matches!(*event, CmEvent::Disconnected { .. }), "{event:?}");
                    assert!(!std::mem::replace(&mut self.ended[0], true), "told twice");
                }
            }
        }
    }

    fn on_response(&mut self, slot: u16, invalidated: Option<u32>) {
        let command = self.running.get_mut(&slot).expect("it is running");
        assert_eq!(invalidated, command.invalidates.then_some(command.remote.rkey));
        if command.ends && invalidated.is_none() {
            let key = command.remote.rkey;
            return self.world.host.soft.post_invalidate(self.ours, token(Kind::Invalidate, slot), key);
        }
        command.answered = true;
        self.finish(slot);
    }

    fn finish(&mut self, slot: u16) {
        let command = self.running[&slot];
        if !command.answered || !command.sent {
            return;
        }
        let [host, target] = [&self.world.host, &self.world.target]
            .map(|side| side.bytes(Self::place(side, slot, command.length)));
        assert!(host == target, "{command:?}");
        self.running.remove(&slot);
        self.finished += 1;
    }

    fn step(&mut self, commands: bool) {
        for slot in 0..DEPTH {
            let free = !self.running.contains_key(&slot) && !self.ended[0];
            if commands && free && self.choices.chance(70) {
                self.submit(slot);
            }
        }
        self.world.pump();
        self.advance_target();
        self.advance_host();
    }
}

#[test]
fn every_command_is_answered_and_its_bytes_are_right() {
    for seed in 0..40 {
        let mut traffic = Traffic::new(seed);
        let mut turns = 0;
        while traffic.finished < 200 {
            traffic.step(true);
            turns += 1;
            assert!(turns < 100_000, "seed {seed} stands still");
        }
        while !traffic.running.is_empty() {
            traffic.step(false);
        }
        assert!(!traffic.ended[0] && !traffic.ended[1]);
        assert!(traffic.posted.values().all(|&posted| posted == 0) || traffic.fetching == 0);
    }
}

#[test]
fn a_break_anywhere_flushes_everything_and_is_told_once() {
    for seed in 0..200 {
        let mut traffic = Traffic::new(seed);
        for _ in 0..traffic.choices.below(60) {
            traffic.step(true);
        }
        match traffic.choices.below(3) {
            0 => traffic.world.pipes.break_one(&mut traffic.choices),
            1 => traffic.world.host.soft.disconnect(traffic.ours),
            _ => traffic.world.target.soft.disconnect(traffic.theirs),
        }
        for _ in 0..500 {
            traffic.step(true);
        }
        assert_eq!(traffic.ended, [true, true], "seed {seed}");
        assert!(traffic.running.values().all(|command| command.sent), "seed {seed}");
        assert!(traffic.posted.values().all(|&posted| posted == 0), "seed {seed}");
        // What is posted now completes too.
        let late = token(Kind::Respond, 99);
        traffic.world.target.soft.post_respond(traffic.theirs, late, None, &[0; 16], None);
        let flushed = Wc { qp: traffic.theirs, token: late, status: WcStatus::Flushed };
        assert!(matches!(traffic.world.target.soft.poll(), Some(Event::Completed(wc)) if wc == flushed));
        traffic.world.host.soft.destroy(traffic.ours);
        traffic.world.target.soft.destroy(traffic.theirs);
        traffic.world.settle();
    }
}
