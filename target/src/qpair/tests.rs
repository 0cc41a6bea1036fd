//! One queue pair against a host and a medium which do everything in any order, under one seed.
use std::collections::BTreeMap;

use ironside_common::memory::{Region, SizeClass};
use ironside_common::nvme::io::{self, Geometry};
use ironside_common::nvme::{Completion, DataPointer};
use ironside_common::provider::sim::{Choices, Network, Prng, SimProvider};
use ironside_common::verbs::{
    Access, Address, CmEvent, ConnectParameters, Connections, Event, Exposure, HostVerbs, Verbs,
};

use super::*;
use crate::backend::{BlockError, Done, Operation};

const BLOCKS: u64 = 64;
const SHIFT: u8 = 9;
const COMMANDS: u16 = 40;

/// A medium which holds operations until the world completes one.
struct Disk {
    memory: Rc<Memory>,
    bytes: Vec<u8>,
    busy: Vec<(Token, Operation)>,
    admin: VecDeque<AdminJob>,
    /// What pairs have claimed.
    claims: Vec<Claim>,
    /// A claim was given back: who was held back may go on.
    released: bool,
    /// Commands which wait for their turn.
    turns: Vec<Token>,
    /// What is to end early, and does.
    cancelled: Vec<Token>,
}

/// Blocks a pair has asked for.
struct Claim {
    token: Token,
    extent: Extent,
    held: bool,
    granted: bool,
    /// What the blocks held when the pair read them.
    read: Option<Vec<u8>>,
}

impl Disk {
    fn complete(&mut self, index: usize, fails: bool) -> Done {
        let (token, operation) = self.busy.swap_remove(index);
        if self.cancelled.contains(&token) {
            return Done { token, result: Err(BlockError::Cancelled) };
        }
        if fails {
            return Done { token, result: Err(BlockError::Read(libc::EIO)) };
        }
        self.check_pair(token, &operation);
        let range = |offset: u64, length: u64| offset as usize..(offset + length) as usize;
        match operation {
            Operation::Read { offset, into } => {
                self.memory.write(into, &self.bytes[range(offset, into.length.into())]);
            }
            Operation::Write { offset, from, .. } => {
                self.memory.read(from, &mut self.bytes[range(offset, from.length.into())]);
            }
            Operation::WriteZeroes { offset, length, .. } | Operation::Deallocate { offset, length } => {
                self.bytes[range(offset, length)].fill(0);
            }
            Operation::Copy { source, offset, length } => {
                self.bytes.copy_within(range(source, length.into()), range(offset, length.into()).start);
            }
            Operation::Flush => {}
        }
        Done { token, result: Ok(()) }
    }
}

impl Disk {
    /// Nothing comes upon blocks which are a pair's alone, but the pair.
    fn check_claims(&self, token: Token, operation: &Operation) {
        let Some((start, length)) = operation.range() else { return };
        let extent = Extent { namespace: Uuid::from_u128(1), start, end: start + length };
        let others = self.claims.iter().filter(|claim| claim.granted && claim.token != token);
        for claim in others {
            assert!(!claim.extent.overlaps(&extent), "{operation:?} comes upon claimed blocks");
        }
    }

    /// A pair writes what it has read the moment before.
    fn check_pair(&mut self, token: Token, operation: &Operation) {
        let Some(claim) = self.claims.iter_mut().find(|claim| claim.token == token) else { return };
        let now = self.bytes[claim.extent.start as usize..claim.extent.end as usize].to_vec();
        match operation {
            Operation::Read { .. } => claim.read = Some(now),
            Operation::Write { .. } => assert_eq!(claim.read.as_ref(), Some(&now), "the blocks have changed"),
            other => panic!("a pair does no {other:?}"),
        }
    }

    /// Goes on with a claim; gives the slot of one whose blocks are now its alone.
    fn grant(&mut self, qpair: &Qpair) -> Option<u16> {
        let is_free =
            |extent: &Extent| !self.claims.iter().any(|one| one.held && one.extent.overlaps(extent));
        if let Some(index) = self.claims.iter().position(|claim| !claim.held && is_free(&claim.extent)) {
            self.claims[index].held = true;
            return None;
        }
        let ready = |claim: &&mut Claim| claim.held && !claim.granted && !qpair.is_at(&claim.extent);
        let claim = self.claims.iter_mut().find(ready)?;
        claim.granted = true;
        Some(claim.token.slot)
    }
}

impl Medium for Disk {
    fn submit(&mut self, token: Token, namespace: usize, operation: Operation) {
        assert_eq!(namespace, 3);
        assert!(!self.turns.contains(&token), "its turn has not come");
        self.check_claims(token, &operation);
        self.busy.push((token, operation));
    }

    fn cancel(&mut self, token: Token) {
        // Others are too far on.
        if token.slot.is_multiple_of(2) {
            self.cancelled.push(token);
        }
    }

    fn in_place(&self, _: usize, _: u64, _: u32) -> Option<Sge> {
        None
    }

    fn poll(&mut self) -> Option<Done> {
        None
    }
}

impl Services for Disk {
    fn admin(&mut self, job: AdminJob) {
        self.admin.push_back(job);
    }

    fn claim(&mut self, token: Token, extent: Extent) {
        self.claims.push(Claim { token, extent, held: false, granted: false, read: None });
    }

    fn release(&mut self, token: Token, _: Extent) {
        let index = self.claims.iter().position(|claim| claim.token == token);
        self.claims.swap_remove(index.expect("what is released was claimed"));
        self.released = true;
    }

    fn has_claims(&self) -> bool {
        self.claims.iter().any(|claim| claim.held)
    }

    fn is_claimed(&self, extent: &Extent) -> bool {
        self.claims.iter().any(|claim| claim.held && claim.extent.overlaps(extent))
    }

    fn await_turn(&mut self, token: Token, _: Uuid, cost: Cost) {
        assert!(cost.commands > 0 && self.turns.iter().all(|one| *one != token), "it waits already");
        self.turns.push(token);
    }

    fn give_up_turn(&mut self, token: Token, _: Uuid) {
        let index = self.turns.iter().position(|one| *one == token);
        self.turns.swap_remove(index.expect("it waits for its turn"));
    }

    fn reserve(&mut self, job: ReservationJob) {
        unreachable!("nobody here reserves: {job:?}");
    }
}

/// A command of the host which has no answer yet.
struct Outstanding {
    request: io::Request,
    exposure: Option<Exposure>,
    answered: bool,
}

struct World {
    prng: Prng,
    network: Network,
    target: SimProvider,
    host: SimProvider,
    host_memory: Rc<Memory>,
    host_qp: QpHandle,
    disk: Disk,
    memory: Rc<Memory>,
    pool: Rc<Pool>,
    qpair: Qpair,
    depth: u16,
    send_queue: u32,
    reads: u32,
    fails: u32,
    outstanding: BTreeMap<u16, Outstanding>,
    sent: u16,
    host_sends: u32,
    /// First commands whose second was sent behind them, or was not.
    firsts: BTreeMap<u16, bool>,
    statuses: BTreeMap<u16, Status>,
    /// Commands which are to be aborted, under which number, and those of which it is said that they were.
    aborting: Vec<(u16, u64)>,
    aborted: Vec<u16>,
    disconnected: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let network = Network::new();
        let (memory, host_memory) = (Memory::new(), Memory::new());
        host_memory.register(Region::new(1 << 20).unwrap());
        let address: Address = "192.0.2.1:4420".parse().unwrap();
        let (depth, reads) = (1 + prng.below(8) as u16, 1 + prng.below(3));
        let mut target = network.endpoint(address, Rc::clone(&memory), 0);
        network.set_listening(address, true);
        let mut host = network.endpoint("192.0.2.2:1".parse().unwrap(), Rc::clone(&host_memory), reads);
        let host_parameters =
            ConnectParameters { receives: depth, receive_size: 16, send_queue: 1000, reads: 0 };
        let host_qp = host.connect(address, host_parameters, &[]);
        let send_queue = 2 + prng.below(8);
        let Some(Event::Connection(event)) = target.poll() else { panic!("no request") };
        let CmEvent::Request(request) = *event else { panic!("no request") };
        let qp = request.qp;
        let parameters = ConnectParameters { receives: depth, receive_size: 4160, send_queue, reads: 16 };
        target.accept(request, parameters, &[]);
        host.poll();
        let classes = [SizeClass { size: 4096, count: 2 + prng.below(6) }];
        let pool = Pool::new(&memory, &classes).unwrap();
        let mut qpair = Qpair::new(&target, qp, depth, pool.account(None));
        let geometry = Geometry { block_shift: SHIFT, blocks: BLOCKS, transfer_max: 4096 };
        let namespace = Namespace {
            nsid: 1,
            uuid: Uuid::from_u128(1),
            medium: 3,
            geometry,
            read_only: false,
            shared: false,
            limited: prng.chance(40),
            usage: Rc::default(),
        };
        qpair.connected(Role::Io(Rc::new([Rc::new(namespace)])), 1, Some(depth + 1));
        let disk = Disk {
            memory: Rc::clone(&memory),
            bytes: vec![0; (BLOCKS << SHIFT) as usize],
            busy: Vec::new(),
            admin: VecDeque::new(),
            claims: Vec::new(),
            released: false,
            turns: Vec::new(),
            cancelled: Vec::new(),
        };
        Self {
            fails: prng.below(30),
            prng,
            network,
            target,
            host,
            host_memory,
            host_qp,
            disk,
            memory,
            pool,
            qpair,
            depth,
            send_queue,
            reads,
            outstanding: BTreeMap::new(),
            sent: 0,
            host_sends: 0,
            firsts: BTreeMap::new(),
            statuses: BTreeMap::new(),
            aborting: Vec::new(),
            aborted: Vec::new(),
            disconnected: false,
        }
    }

    fn with(&mut self, act: impl FnOnce(&mut Qpair, &mut Context<'_, SimProvider, Disk>)) {
        let mut cx = Context {
            verbs: &mut self.target,
            services: &mut self.disk,
            pool: &self.pool,
            memory: &self.memory,
            buffers: u32::MAX,
            offered: None,
            now: Time::ZERO,
        };
        act(&mut self.qpair, &mut cx);
    }

    fn request(&mut self) -> io::Request {
        let blocks = 1 + self.prng.below(8);
        let lba = u64::from(self.prng.below(BLOCKS as u32 + 4));
        match self.prng.below(8) {
            0 | 1 => io::Request::Read { lba, blocks, fua: false },
            2 | 3 => io::Request::Write { lba, blocks, fua: true },
            4 => io::Request::Compare { lba, blocks, fua: false },
            5 => io::Request::Verify { lba, blocks, fua: false },
            6 => io::Request::DatasetManagement { ranges: 1 + self.prng.below(3) as u16, deallocate: true },
            _ => io::Request::WriteZeroes { lba, blocks, deallocate: false, fua: false },
        }
    }

    /// The host sends one more command, in the capsule or with its memory exposed.
    fn host_sends(&mut self) {
        let request = self.request();
        self.host_sends_one(request, 0);
    }

    /// The host sends a Compare and a Write, fused; now and then the second is missing.
    fn host_sends_pair(&mut self) {
        let (lba, blocks) = (u64::from(self.prng.below(BLOCKS as u32 + 1)), 1 + self.prng.below(2));
        // A first command at the very end would wait for ever.
        let is_whole = self.prng.chance(90) || self.sent + 2 >= COMMANDS;
        self.firsts.insert(self.sent, is_whole);
        self.host_sends_one(io::Request::Compare { lba, blocks, fua: false }, 1);
        let (request, fuse) = match is_whole {
            true => (io::Request::Write { lba, blocks, fua: false }, 2),
            false => (self.request(), 0),
        };
        self.host_sends_one(request, fuse);
    }

    fn host_sends_one(&mut self, request: io::Request, fuse: u8) {
        let cid = self.sent;
        let (access, length) = match request {
            io::Request::Read { blocks, .. } => (Access::RemoteWrite, blocks << SHIFT),
            io::Request::Write { blocks, .. } | io::Request::Compare { blocks, .. } => {
                (Access::RemoteRead, blocks << SHIFT)
            }
            io::Request::DatasetManagement { .. } => (Access::RemoteRead, 4096),
            _ => (Access::RemoteRead, 0),
        };
        let sge = self.host_memory.sge(0, u64::from(cid) * 4096, length);
        let mut bytes = vec![0; length as usize];
        match request {
            io::Request::DatasetManagement { .. } => {
                for (chunk, lba) in bytes.chunks_mut(16).zip(0..60) {
                    chunk[4] = 1;
                    chunk[8] = lba;
                }
            }
            // Mostly what the disk holds at this moment.
            io::Request::Compare { lba, .. } if fuse == 1 && lba + 2 <= BLOCKS && self.prng.chance(80) => {
                let at = (lba << SHIFT) as usize;
                bytes.copy_from_slice(&self.disk.bytes[at..at + length as usize]);
            }
            _ => bytes.fill(cid as u8 + 1),
        }
        self.host_memory.write(sge, &bytes);
        let in_capsule = access == Access::RemoteRead && length > 0 && self.prng.chance(30);
        let mut exposure = None;
        let pointer = if in_capsule {
            DataPointer::InCapsule { offset: 0, length }
        } else if length > 0 {
            let mr = self.host.allocate_mr(self.host_qp);
            let exposed = self.host.prepare(self.host_qp, mr, sge, access);
            exposure = Some(exposed);
            DataPointer::Keyed { remote: exposed.remote, length, invalidate: self.prng.chance(70) }
        } else {
            DataPointer::None
        };
        let mut command = request.to_command(cid, 1).with_data(pointer);
        command.flags |= fuse;
        let command = command.to_bytes();
        let token = Token { kind: Kind::Command, generation: 0, qpair: 0, slot: cid };
        self.host.post_command(self.host_qp, token, &command, in_capsule.then_some(sge), exposure);
        self.outstanding.insert(cid, Outstanding { request, exposure, answered: false });
        self.host_sends += 1;
        self.sent += 1;
    }

    /// Some command is to end early.
    fn abort_one(&mut self) {
        let cid = self.prng.below(u32::from(self.sent) + 1) as u16;
        let mut aborting = Aborting::Known(false);
        self.with(|qpair, cx| aborting = qpair.abort(cx, cid));
        match aborting {
            Aborting::Known(true) => self.aborted.push(cid),
            Aborting::Known(false) => {}
            Aborting::Later(number) if self.prng.chance(10) => self.qpair.give_up_abort(number),
            Aborting::Later(number) => self.aborting.push((cid, number)),
        }
    }

    fn look_for_aborted(&mut self) {
        let Self { aborting, aborted, qpair, .. } = self;
        aborting.retain(|&(cid, number)| {
            let known = qpair.aborted(number);
            aborted.extend(known.filter(|&known| known).map(|_| cid));
            known.is_none()
        });
    }

    /// The turn of a command comes which may have ended by now, as that of any does once its queue has.
    fn give_turn(&mut self) {
        let Some(token) = self.disk.turns.pop() else { return };
        let waits = self.qpair.is_throttled(token.slot, token.generation);
        assert!(waits || self.qpair.fault().is_some(), "it waits for nothing");
        if waits {
            self.with(|qpair, cx| qpair.on_turn(cx, token.slot));
        }
    }

    fn host_polls(&mut self) {
        match self.host.poll() {
            Some(Event::Received(received)) => {
                let completion = Completion::from_capsule(self.host.message(&received)).unwrap();
                let outstanding =
                    self.outstanding.get_mut(&completion.cid.get()).expect("a command was sent");
                assert!(!outstanding.answered, "answered twice");
                outstanding.answered = true;
                if let Some(invalidated) = received.invalidated {
                    assert_eq!(Some(invalidated), outstanding.exposure.map(|exposure| exposure.remote.rkey));
                }
                self.check_data(completion.cid.get(), completion.status());
                self.statuses.insert(completion.cid.get(), completion.status());
                self.host.repost(received);
            }
            Some(Event::Completed(wc)) if wc.token.kind == Kind::Command => self.host_sends -= 1,
            _ => {}
        }
    }

    /// What a good Read brought is some block content the disk can have had.
    fn check_data(&self, cid: u16, status: Status) {
        let outstanding = &self.outstanding[&cid];
        let io::Request::Read { lba, blocks, .. } = outstanding.request else { return };
        let mut bytes = vec![0; (blocks << SHIFT) as usize];
        self.host_memory.read(outstanding.exposure.unwrap().sge, &mut bytes);
        if lba + u64::from(blocks) > BLOCKS {
            assert_eq!(status, Status::LBA_OUT_OF_RANGE);
        }
        if status.is_success() {
            for block in bytes.chunks(1 << SHIFT) {
                assert!(block.iter().all(|&byte| byte == block[0]), "a torn block");
            }
        } else {
            assert!(bytes.iter().all(|&byte| byte == cid as u8 + 1), "data came with a failure");
        }
    }

    fn target_polls(&mut self) {
        match self.target.poll() {
            Some(Event::Received(received)) => self.with(|qpair, cx| qpair.on_received(cx, received)),
            Some(Event::Completed(wc)) => self.with(|qpair, cx| qpair.on_wc(cx, wc)),
            Some(Event::Connection(event)) => {
                assert!(matches!(*event, CmEvent::Disconnected { .. }));
                self.disconnected = true;
                self.with(|qpair, cx| qpair.fail(cx, Fault::Disconnected));
            }
            None => {}
        }
    }

    /// Both of a pair succeed, or nothing was written and both say why.
    fn check_pairs(&self) {
        for (&first, &is_whole) in &self.firsts {
            let one = self.statuses[&first];
            if !is_whole {
                let reasons =
                    [Status::ABORTED_MISSING_FUSED, Status::LBA_OUT_OF_RANGE, Status::ABORT_REQUESTED];
                assert!(reasons.into_iter().any(|reason| one.is(reason)), "{one}");
                continue;
            }
            let other = self.statuses[&(first + 1)];
            let explained = match (one.is_success(), other.is_success()) {
                (true, true) => true,
                (true, false) => {
                    let reasons = [Status::WRITE_FAULT, Status::UNRECOVERED_READ, Status::ABORT_REQUESTED];
                    reasons.into_iter().any(|reason| other.is(reason))
                }
                (false, true) => false,
                (false, false) if other.is(Status::ABORT_REQUESTED) => one.is(Status::ABORTED_FAILED_FUSED),
                (false, false) => other.is(Status::ABORTED_FAILED_FUSED) || other.is(one),
            };
            assert!(explained, "{one}, {other}");
        }
    }

    /// Unanswered commands; the host may have so many outstanding as it has receives.
    fn in_flight(&self) -> usize {
        self.outstanding.values().filter(|outstanding| !outstanding.answered).count()
    }

    fn run(mut self, breaks: bool) -> bool {
        for _ in 0..20_000 {
            if mem::take(&mut self.disk.released) {
                self.with(|qpair, cx| qpair.on_released(cx));
            }
            match self.prng.below(8) {
                0 if self.sent < COMMANDS && self.in_flight() < self.depth.into() && !self.disconnected => {
                    self.host_sends();
                }
                6 if self.sent + 1 < COMMANDS
                    && self.in_flight() + 1 < self.depth.into()
                    && !self.disconnected =>
                {
                    self.host_sends_pair();
                }
                7 => {
                    if let Some(slot) = self.disk.grant(&self.qpair) {
                        self.with(|qpair, cx| qpair.on_claimed(cx, slot));
                    }
                }
                1 if self.prng.chance(30) => self.give_turn(),
                1 => drop(self.network.step(&mut self.prng)),
                2 if !self.disk.busy.is_empty() => {
                    let index = self.prng.below(self.disk.busy.len() as u32) as usize;
                    let fails = self.prng.chance(self.fails);
                    let done = self.disk.complete(index, fails);
                    self.with(|qpair, cx| qpair.on_done(cx, done));
                }
                3 => self.target_polls(),
                4 => self.host_polls(),
                5 if self.prng.chance(10) => self.abort_one(),
                5 if breaks && self.prng.below(400) == 0 => self.network.break_one(&mut self.prng),
                _ => {}
            }
            self.look_for_aborted();
            let over = self.sent == COMMANDS && self.in_flight() == 0 && self.qpair.is_idle();
            let full = self.qpair.send_credits() == self.send_queue;
            if over && full || self.disconnected && self.disk.busy.is_empty() && self.qpair.is_drained() {
                break;
            }
        }
        self.check_at_rest()
    }

    fn check_at_rest(mut self) -> bool {
        while self.network.step(&mut self.prng) {
            self.target_polls();
            self.host_polls();
        }
        assert_eq!(self.pool.available(), self.pool.total(), "a buffer leaked");
        if self.disconnected {
            assert!(self.qpair.is_drained(), "a slot leaked: {:?}", self.qpair);
            let handle = self.qpair.handle;
            self.target.destroy(handle);
        } else {
            assert_eq!(self.statuses.len(), usize::from(COMMANDS), "a command was not answered");
            assert!(self.disk.claims.is_empty() && self.disk.turns.is_empty(), "a claim leaked");
            self.check_pairs();
            assert!(self.aborting.is_empty(), "nobody knows what became of an Abort");
            for cid in &self.aborted {
                assert!(self.statuses[cid].is(Status::ABORT_REQUESTED), "{}", self.statuses[cid]);
            }
            assert_eq!(self.qpair.send_credits(), self.send_queue, "a send credit leaked");
            assert_eq!(self.qpair.read_credits(), self.reads, "a read credit leaked");
            assert_eq!(self.qpair.free.len(), usize::from(self.depth), "a slot leaked");
        }
        self.disconnected
    }
}

#[test]
fn any_order_of_events_keeps_the_promises() {
    let mut broken = 0;
    for seed in 0..1500 {
        let result = std::panic::catch_unwind(|| World::new(seed).run(seed % 2 == 0));
        let Ok(disconnected) = result else { panic!("seed {seed}") };
        broken += u32::from(disconnected);
    }
    assert!(broken > 200, "the breaks were exercised: {broken}");
}
