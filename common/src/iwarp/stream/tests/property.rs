//! Random commands of a host and their answers by a target, over pipes which split anywhere, against what
//! memory has to look like.
use proptest::prelude::*;

use super::*;

const DEPTH: u16 = 4;
const SLOT: u32 = 80_000;
const CAPSULE: u32 = 64 + 4096;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    InCapsule,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    kind: Kind,
    length: u32,
    invalidates: bool,
}

fn command() -> impl Strategy<Value = Command> {
    let length = prop_oneof![0..20u32, 100..5000u32, 0..SLOT];
    let kind = prop_oneof![Just(Kind::Read), Just(Kind::Write), Just(Kind::InCapsule)];
    (kind, length, any::<bool>()).prop_map(|(kind, length, invalidates)| {
        let length = if let Kind::InCapsule = kind { length.min(4096) } else { length };
        Command { kind, length, invalidates }
    })
}

/// Bytes in flight one way, and those which the receiver could not use yet.
#[derive(Default)]
struct Pipe {
    flying: VecDeque<u8>,
    pending: Vec<u8>,
}

impl Pipe {
    fn deliver(&mut self, to: &mut Stream, memory: &TestMemory, limit: usize, directly: bool) {
        let count = limit.min(self.flying.len());
        let mut bytes: Vec<u8> = self.flying.drain(..count).collect();
        if let (true, Some(place)) = (directly, to.direct()) {
            assert!(self.pending.is_empty());
            let now = bytes.len().min(place.length as usize);
            memory.write(place, &bytes[..now]);
            to.received_direct(now as u32);
            bytes.drain(..now);
        }
        self.pending.extend(bytes);
        let used = to.receive(&self.pending, memory).unwrap();
        self.pending.drain(..used);
    }
}

struct World {
    host: Stream,
    target: Stream,
    host_memory: TestMemory,
    target_memory: TestMemory,
    to_target: Pipe,
    to_host: Pipe,
    regions: Vec<StagSlot>,
    running: [Option<(Command, u32)>; DEPTH as usize],
    answered: usize,
}

/// Where a slot's data lies, on either side.
fn data(slot: u16, length: u32) -> Sge {
    sge(u64::from(slot) * u64::from(SLOT), length)
}

/// Where a receive buffer lies, on either side, behind the data.
fn buffer(id: u32) -> Sge {
    sge(u64::from(DEPTH) * u64::from(SLOT) + u64::from(id * CAPSULE), CAPSULE)
}

impl World {
    fn new(crc: bool, rtr: Option<Rtr>, ulpdu_max: u16) -> Self {
        let config = |role| {
            let terms = Terms { crc, ird: 2, ord: 2, rtr };
            Config { role, terms, ulpdu_max, receives: DEPTH, send_queue: 3 * u32::from(DEPTH), seed: 1 }
        };
        let (mut host, mut target) =
            (Stream::new(config(Role::Initiator)), Stream::new(config(Role::Responder)));
        for id in 0..DEPTH.into() {
            host.post_receive(id, buffer(id));
            target.post_receive(id, buffer(id));
        }
        let length = usize::from(DEPTH) * (SLOT + CAPSULE) as usize;
        let regions = (0..DEPTH).map(|_| host.allocate()).collect();
        Self {
            host,
            target,
            host_memory: TestMemory::new(length),
            target_memory: TestMemory::new(length),
            to_target: Pipe::default(),
            to_host: Pipe::default(),
            regions,
            running: [None; DEPTH as usize],
            answered: 0,
        }
    }

    fn submit(&mut self, slot: u16, command: Command) {
        let place = data(slot, command.length);
        let seed = (self.answered * 5 + usize::from(slot)) as u8;
        let (filled, other) = match command.kind {
            Kind::Read => (&self.target_memory, &self.host_memory),
            Kind::Write | Kind::InCapsule => (&self.host_memory, &self.target_memory),
        };
        filled.fill(place, seed);
        other.fill(place, !seed);
        let mut head = ArrayVec::new();
        head.extend([slot as u8, command.kind as u8, command.invalidates.into()]);
        head.extend(command.length.to_be_bytes());
        let mut inline = None;
        let mut key = 0;
        if let Kind::InCapsule = command.kind {
            inline = Some(place);
        } else {
            let region = self.regions[usize::from(slot)];
            let remote = self.host.prepare(region, place);
            let access = if let Kind::Read = command.kind { Access::RemoteWrite } else { Access::RemoteRead };
            self.host.post(Work::Register { slot: region, remote, memory: place, access });
            head.extend(remote.address.to_be_bytes());
            head.extend(remote.rkey.to_be_bytes());
            key = remote.rkey;
        }
        head.extend(std::iter::repeat_n(0, HEAD_MAX - head.len()));
        let (invalidate, solicited) = (None, slot.is_multiple_of(2));
        self.host.post(Work::Send { token: token(slot), head, data: inline, invalidate, solicited });
        self.running[usize::from(slot)] = Some((command, key));
    }

    fn on_command(&mut self, id: u32, length: u32) {
        let capsule = self.target_memory.bytes(buffer(id).slice(0, length));
        self.target.post_receive(id, buffer(id));
        let (slot, kind) = (u16::from(capsule[0]), capsule[1]);
        let length = u32::from_be_bytes(capsule[3..7].try_into().unwrap());
        let remote = Remote {
            address: u64::from_be_bytes(capsule[7..15].try_into().unwrap()),
            rkey: u32::from_be_bytes(capsule[15..19].try_into().unwrap()),
        };
        let invalidate = (capsule[2] != 0 && kind != Kind::InCapsule as u8).then_some(remote.rkey);
        if kind == Kind::Write as u8 {
            // The token remembers what to do next.
            let token = Token { generation: u16::from(invalidate.is_some()), ..token(slot) };
            self.target.post(Work::Read { token, from: remote, into: data(slot, length) });
            return;
        }
        if kind == Kind::Read as u8 {
            self.target.post(Work::Write { from: data(slot, length), to: remote });
        } else {
            self.target_memory.write(data(slot, length), &capsule[64..]);
        }
        self.respond(slot, invalidate);
    }

    fn respond(&mut self, slot: u16, invalidate: Option<u32>) {
        let token = Token { kind: crate::verbs::Kind::Respond, ..token(slot) };
        let head = [slot as u8; 16].into_iter().collect();
        self.target.post(Work::Send { token, head, data: None, invalidate, solicited: false });
    }

    fn advance_target(&mut self) {
        for event in events(&mut self.target) {
            match event {
                StreamEvent::Received { id, length, .. } => self.on_command(id, length),
                StreamEvent::Completed { token, status } => {
                    assert_eq!(status, WcStatus::Success);
                    if token.kind == crate::verbs::Kind::Command {
                        let (_, key) = self.running[usize::from(token.slot)].unwrap();
                        self.respond(token.slot, (token.generation != 0).then_some(key));
                    }
                }
            }
        }
    }

    fn advance_host(&mut self) {
        for event in events(&mut self.host) {
            match event {
                StreamEvent::Received { id, invalidated, .. } => {
                    let slot = u16::from(self.host_memory.bytes(buffer(id))[0]);
                    self.host.post_receive(id, buffer(id));
                    let (command, key) = self.running[usize::from(slot)].unwrap();
                    assert!(invalidated.is_none_or(|invalidated| invalidated == key));
                    if key == 0 || invalidated.is_some() {
                        self.finish(slot, command);
                    } else {
                        let token = Token { kind: crate::verbs::Kind::Invalidate, ..token(slot) };
                        self.host.post(Work::Invalidate { token, key });
                    }
                }
                StreamEvent::Completed { token, status } => {
                    assert_eq!(status, WcStatus::Success);
                    if token.kind == crate::verbs::Kind::Invalidate {
                        let (command, _) = self.running[usize::from(token.slot)].unwrap();
                        self.finish(token.slot, command);
                    }
                }
            }
        }
    }

    fn finish(&mut self, slot: u16, command: Command) {
        let place = data(slot, command.length);
        assert_eq!(self.host_memory.bytes(place), self.target_memory.bytes(place), "{command:?}");
        self.running[usize::from(slot)] = None;
        self.answered += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn memory_looks_as_the_commands_say(
        commands in prop::collection::vec(command(), 1..12),
        splits in prop::collection::vec((1..90_000usize, any::<bool>()), 1..10),
        crc in any::<bool>(),
        rtr in prop_oneof![Just(None), Just(Some(Rtr::Send)), Just(Some(Rtr::Write)), Just(Some(Rtr::Read))],
        ulpdu_max in prop_oneof![128..2000u16, 2000..=u16::MAX],
    ) {
        let mut world = World::new(crc, rtr, ulpdu_max);
        let mut waiting = commands.iter().copied();
        let mut splits = splits.iter().copied().cycle();
        for turn in 0.. {
            assert!(turn < 1_000_000, "it does not end");
            for slot in 0..DEPTH {
                if world.running[usize::from(slot)].is_none() && let Some(command) = waiting.next() {
                    world.submit(slot, command);
                }
            }
            let (limit, directly) = splits.next().unwrap();
            world.to_target.flying.extend(take(&mut world.host, &world.host_memory, limit));
            world.to_target.deliver(&mut world.target, &world.target_memory, limit / 2 + 1, directly);
            world.advance_target();
            let (limit, directly) = splits.next().unwrap();
            world.to_host.flying.extend(take(&mut world.target, &world.target_memory, limit));
            world.to_host.deliver(&mut world.host, &world.host_memory, limit / 2 + 1, directly);
            world.advance_host();
            if world.answered == commands.len() {
                break;
            }
        }
        prop_assert!(!world.target.awaits_response() || rtr == Some(Rtr::Read));
    }
}
