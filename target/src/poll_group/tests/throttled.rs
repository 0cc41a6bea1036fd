//! Commands which wait for their turn under a limit are found by all that ends commands, and hold nothing that others need.
use ironside_common::nvme::io;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::nvme::reservation::{
    AcquireAction, Keys, Kind as Type, RegisterAction, Request as Reserve,
};

use super::*;
use crate::catalog::Access as NamespaceAccess;

impl Bench {
    /// A host's controller with an I/O queue.
    fn host(&mut self, id: u128) -> QpHandle {
        self.host_id = Uuid::from_u128(id);
        let (_, cntlid) = self.controller();
        let io = self.queue(1);
        self.connect(io, 3, 1, cntlid);
        self.settle();
        assert_eq!(self.statuses(), [(3, true)]);
        io
    }

    /// From now on namespace 1 takes one command a second, and its group is in this state.
    fn serve(&mut self, state: AnaState) {
        let now = Catalog::clone(&self.group.catalog);
        let medium = now.subsystems()[0].namespaces()[0].medium.clone();
        let namespace = crate::catalog::Namespace::whole(1, Uuid::from_u128(1), medium);
        let subsystem =
            Subsystem::new(nqn("s"), "S", Hosts::Any, vec![self.address], vec![namespace]).unwrap();
        let subsystem = subsystem.with_access(vec![NamespaceAccess { group: 1, listen: None, state }]);
        let next = Catalog::new(now.version() + 1, vec![subsystem]).unwrap();
        self.group.on_message(self.now, Message::Catalog(Arc::new(next.with_limit(NonZeroU64::new(1)))));
        self.settle();
    }

    fn send_data(&mut self, qp: QpHandle, command: Command, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap();
        let sge = self.memory.sge(0, 512 << 10, length);
        self.memory.write(sge, bytes);
        let pointer = DataPointer::InCapsule { offset: 0, length };
        let token = Token { kind: Kind::Command, generation: 0, qpair: 0, slot: 0 };
        self.host.post_command(qp, token, &command.with_data(pointer).to_bytes(), Some(sge), None);
        self.settle();
    }

    fn reserve(&mut self, qp: QpHandle, request: Reserve, keys: (u64, u64)) {
        let keys = Keys::new(keys.0, keys.1);
        let length = request.transfer().length() as usize;
        self.send_data(qp, request.to_command(40, 1), &keys.as_bytes()[..length]);
        assert_eq!(self.statuses(), [(40, true)], "{request}");
    }

    /// A fused Compare and Write as commands 20 and 21, of blocks at which nobody else is.
    fn send_pair(&mut self, qp: QpHandle) {
        let compare = io::Request::Compare { lba: 64, blocks: 1, fua: false };
        let write = io::Request::Write { lba: 64, blocks: 1, fua: false };
        for (request, cid) in [(compare, 20), (write, 21)] {
            let command = request.to_command(cid, 1);
            let command = Command { flags: command.flags | 1 << (cid - 20), ..command };
            self.send_data(qp, command, &[0; 512]);
        }
    }

    /// The answers since the last time, by command.
    fn ended(&mut self) -> Vec<(u16, Status)> {
        let mut ended: Vec<_> =
            std::mem::take(&mut self.answers).iter().map(|one| (one.cid.get(), one.status())).collect();
        ended.sort_by_key(|(cid, _)| *cid);
        ended
    }

    fn asked(&mut self) -> usize {
        self.group.storage().asked.len()
    }
}

/// A Read to memory of the host, which nothing comes to.
fn read(cid: u16) -> Command {
    let remote = Remote { address: 0, rkey: 0xBAD };
    let pointer = DataPointer::Keyed { remote, length: 4096, invalidate: false };
    io::Request::Read { lba: 0, blocks: 8, fua: false }.to_command(cid, 1).with_data(pointer)
}

fn is_all(ended: &[(u16, Status)], cids: std::ops::Range<u16>, status: Status) -> bool {
    ended.len() == cids.len() && ended.iter().zip(cids).all(|(one, cid)| one.0 == cid && one.1.is(status))
}

#[test]
fn a_way_that_ends_ends_what_waits() {
    let mut bench = Bench::new();
    let io = bench.host(7);
    bench.serve(AnaState::OPTIMIZED);
    bench.write_zeroes(io, 10..14);
    bench.send_pair(io);
    assert_eq!((bench.asked(), bench.ended().len()), (1, 0), "one turn is owed, the others wait");
    bench.serve(AnaState::INACCESSIBLE);
    let ended = bench.ended();
    assert!(is_all(&ended[..3], 11..14, Status::ANA_INACCESSIBLE), "{ended:?}");
    let pair = &ended[3..];
    assert!(pair.len() == 2 && pair.iter().all(|(_, status)| !status.is_success()), "{pair:?}");
    assert!(pair.iter().any(|(_, status)| status.is(Status::ANA_INACCESSIBLE)), "{pair:?}");
    assert_eq!((bench.asked(), bench.group.throttle.deadline()), (1, None), "nobody waits");
    bench.group.storage().finish_one();
    bench.settle();
    assert_eq!(bench.statuses(), [(10, true)], "what had begun is finished");
}

#[test]
fn a_preempt_and_abort_ends_what_waits_of_whom_it_preempts() {
    let mut bench = Bench::new();
    let (loser, winner) = (bench.host(7), bench.host(8));
    let register = Reserve::Register { action: RegisterAction::Register, ignore_key: false, persist: None };
    bench.reserve(loser, register, (0, 70));
    bench.reserve(winner, register, (0, 80));
    let acquire = |action| Reserve::Acquire { action, kind: Type::WriteExclusive };
    bench.reserve(loser, acquire(AcquireAction::Acquire), (70, 0));
    bench.serve(AnaState::OPTIMIZED);
    bench.write_zeroes(loser, 10..14);
    bench.send(loser, &read(14));
    bench.send_pair(loser);
    bench.group.storage().finish_one();
    bench.settle();
    assert_eq!(bench.statuses(), [(10, true)]);
    // Reservations are never limited themselves.
    let keys = Keys::new(80, 70);
    let preempt = acquire(AcquireAction::PreemptAndAbort).to_command(40, 1);
    bench.send_data(winner, preempt, keys.as_bytes());
    let ended = bench.ended();
    // What it must not do any more, and what it may.
    assert!(is_all(&ended[..3], 11..14, Status::RESERVATION_CONFLICT), "{ended:?}");
    assert!(is_all(&ended[3..4], 14..15, Status::ABORTED_PREEMPT), "{ended:?}");
    assert!(ended[4..6].iter().all(|(_, status)| !status.is_success()), "{ended:?}");
    assert_eq!(ended[6..], [(40, Status::SUCCESS)]);
    assert_eq!((bench.asked(), bench.group.throttle.deadline()), (0, None), "nobody waits");
}

#[test]
fn a_pair_waits_as_one_and_an_abort_of_either_ends_both() {
    for cid in [20_u16, 21] {
        let mut bench = Bench::new();
        let (admin, cntlid) = bench.controller();
        let io = bench.queue(1);
        bench.connect(io, 3, 1, cntlid);
        bench.settle();
        bench.serve(AnaState::OPTIMIZED);
        bench.write_zeroes(io, 10..11);
        bench.send_pair(io);
        bench.answers.clear();
        let cdw10 = u32::from(cid) << 16 | 1;
        bench.send(admin, &Command { cdw10: cdw10.into(), ..Command::new(AdminOpcode::ABORT.0, 4, 0) });
        bench.settle();
        let ended = bench.ended();
        let [abort, first, second] = ended.as_slice() else { panic!("{ended:?}") };
        assert_eq!(*abort, (4, Status::SUCCESS));
        let (named, other) = if cid == 20 { (first, second) } else { (second, first) };
        assert!(named.1.is(Status::ABORT_REQUESTED) && other.1.is(Status::ABORTED_FAILED_FUSED), "{ended:?}");
        assert_eq!((bench.asked(), bench.group.throttle.deadline()), (1, None), "nobody waits");
    }
}

#[test]
fn a_pair_whose_turn_comes_compares_and_writes() {
    let mut bench = Bench::new();
    let io = bench.host(7);
    bench.serve(AnaState::OPTIMIZED);
    bench.write_zeroes(io, 10..11);
    bench.send_pair(io);
    bench.group.storage().finish_one();
    bench.settle();
    assert_eq!((bench.statuses(), bench.asked()), (vec![(10, true)], 0), "its turn has not come");
    bench.wait(2);
    for _ in 0..2 {
        assert_eq!(bench.asked(), 1, "it reads, and then it writes");
        bench.group.storage().finish_one();
        bench.settle();
    }
    assert_eq!(bench.statuses(), [(20, true), (21, true)]);
}

#[test]
fn waiting_holds_no_buffer_and_a_namespace_that_goes_ends_it() {
    let mut bench = Bench::new();
    let io = bench.host(7);
    bench.serve(AnaState::OPTIMIZED);
    bench.write_zeroes(io, 10..11);
    (11..16).for_each(|cid| bench.send(io, &read(cid)));
    bench.send_pair(io);
    assert_eq!(bench.group.pool.available(), bench.group.pool.total());
    bench.limit(None);
    let ended = bench.ended();
    assert!(is_all(&ended[..5], 11..16, Status::INVALID_NAMESPACE), "{ended:?}");
    assert!(ended[5..].len() == 2 && ended[5..].iter().all(|(_, status)| !status.is_success()), "{ended:?}");
    assert_eq!((bench.asked(), bench.group.throttle.deadline()), (1, None), "nobody waits");
}
