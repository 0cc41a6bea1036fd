//! Hosts which do not keep to the order of things, on the simulated fabric.
mod throttled;

use ironside_common::memory::{Region, SizeClass};
use ironside_common::nvme::admin::Abort;
use ironside_common::nvme::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, PropertySet};
use ironside_common::nvme::private_data::Request;
use ironside_common::nvme::property::PropertyId;
use ironside_common::nvme::{AdminOpcode, Command, Completion, DataPointer, IoOpcode, Nqn, Status};
use ironside_common::provider::sim::{Network, Prng, SimProvider};
use ironside_common::verbs::{Access, Address, ConnectParameters, HostVerbs, Kind, Remote, Verbs};
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::*;
use crate::backend::OpenMedium;
use crate::catalog::{Hosts, Subsystem};
use crate::limits::{Limits, Resource};

/// Takes what it is asked, and ends it when it is told to.
#[derive(Default)]
struct SlowDisk {
    asked: VecDeque<Token>,
    done: VecDeque<Done>,
}

impl SlowDisk {
    fn finish_one(&mut self) {
        let token = self.asked.pop_front().unwrap();
        self.done.push_back(Done { token, result: Ok(()) });
    }
}

impl Medium for SlowDisk {
    fn submit(&mut self, token: Token, _: usize, _: Operation) {
        self.asked.push_back(token);
    }

    fn in_place(&self, _: usize, _: u64, _: u32) -> Option<Sge> {
        None
    }

    fn poll(&mut self) -> Option<Done> {
        self.done.pop_front()
    }
}

impl Storage for SlowDisk {
    fn backend_of(&mut self, _: &crate::catalog::Namespace) -> usize {
        0
    }
}

const DRAIN: Duration = Duration::from_secs(30);

struct Bench {
    network: Network,
    group: PollGroup<SimProvider, SlowDisk>,
    host: SimProvider,
    memory: Rc<Memory>,
    address: Address,
    now: Time,
    answers: Vec<Completion>,
    /// Who connects.
    host_id: Uuid,
}

fn nqn(name: &str) -> Nqn {
    format!("nqn.2014-08.org.example:{name}").parse().unwrap()
}

impl Bench {
    fn new() -> Self {
        let network = Network::new();
        let address: Address = "192.0.2.1:4420".parse().unwrap();
        let memory = Memory::new();
        let classes = [SizeClass { size: 1 << 20, count: 8 }];
        let pool = Pool::new(&memory, &classes).unwrap();
        let verbs = network.endpoint(address, Rc::clone(&memory), 0);
        network.set_listening(address, true);
        let medium = OpenMedium::faulty(1 << 20, 512).unwrap();
        let namespace = crate::catalog::Namespace::whole(1, Uuid::from_u128(1), medium);
        let subsystem = Subsystem::new(nqn("s"), "S", Hosts::Any, vec![address], vec![namespace]).unwrap();
        let limits = Limits::default().with(Resource::IoQueues, 4);
        let catalog = Arc::new(Catalog::new(1, vec![subsystem]).unwrap().with_limits(limits));
        let settings = Settings {
            reactor: 0,
            reactors: 1,
            queue_depth: 32,
            in_capsule: 4096,
            reads: 4,
            transfer_max: 1 << 20,
            census: Census::default(),
            drain: DRAIN,
        };
        let group = PollGroup::new(settings, verbs, SlowDisk::default(), pool, memory, catalog);
        let memory = Memory::new();
        memory.register(Region::new(1 << 20).unwrap());
        let host = network.endpoint("192.0.2.2:1".parse().unwrap(), Rc::clone(&memory), 8);
        Self {
            network,
            group,
            host,
            memory,
            address,
            now: Time::from_nanos(1),
            answers: Vec::new(),
            host_id: Uuid::from_u128(7),
        }
    }

    /// Everything that can happen does.
    fn settle(&mut self) {
        let mut prng = Prng::new(1);
        for _ in 0..10 {
            while self.network.step(&mut prng) {}
            while let Some(event) = self.host.poll() {
                if let Event::Received(received) = event {
                    self.answers.push(Completion::from_capsule(self.host.message(&received)).unwrap());
                    self.host.repost(received);
                }
            }
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.group.turn(self.now);
        while let Some((_, message)) = self.group.next_message() {
            self.group.on_message(self.now, message);
        }
    }

    fn queue(&mut self, qid: u16) -> QpHandle {
        let parameters = ConnectParameters { receives: 32, receive_size: 16, send_queue: 200, reads: 0 };
        let request = Request::new(qid, 32, 0);
        let qp = self.host.connect(self.address, parameters, request.as_bytes());
        self.settle();
        qp
    }

    fn send(&mut self, qp: QpHandle, command: &Command) {
        let token = Token { kind: Kind::Command, generation: 0, qpair: 0, slot: 0 };
        self.host.post_command(qp, token, &command.to_bytes(), None, None);
    }

    fn connect(&mut self, qp: QpHandle, cid: u16, qid: u16, cntlid: u16) {
        let sge = self.memory.sge(0, u64::from(cid) * 1024, ConnectData::SIZE);
        let data = ConnectData::new(self.host_id, cntlid, &nqn("s"), &nqn("h"));
        self.memory.write(sge, data.as_bytes());
        let mr = self.host.allocate_mr(qp);
        let exposure = self.host.prepare(qp, mr, sge, Access::RemoteRead);
        let connect = Connect {
            record_format: 0,
            qid,
            sqsize: 31,
            priority_class: 0,
            disable_sq_flow_control: false,
            kato_ms: 0,
        };
        let pointer =
            DataPointer::Keyed { remote: exposure.remote, length: ConnectData::SIZE, invalidate: true };
        let command = connect.to_command(cid).with_data(pointer);
        let token = Token { kind: Kind::Command, generation: 0, qpair: 0, slot: 0 };
        self.host.post_command(qp, token, &command.to_bytes(), None, Some(exposure));
    }

    fn statuses(&mut self) -> Vec<(u16, bool)> {
        let answers = std::mem::take(&mut self.answers);
        answers.iter().map(|answer| (answer.cid.get(), answer.status().is_success())).collect()
    }

    /// An enabled controller: its admin queue and identifier.
    fn controller(&mut self) -> (QpHandle, u16) {
        let admin = self.queue(0);
        self.connect(admin, 1, 0, CNTLID_DYNAMIC);
        self.settle();
        let cntlid = self.answers.pop().unwrap().dw0() as u16;
        self.answers.clear();
        self.send(admin, &PropertySet::new(PropertyId::CC, 0x0046_0001).to_command(2));
        self.settle();
        assert_eq!(self.statuses(), [(2, true)]);
        (admin, cntlid)
    }
}

#[test]
fn a_queue_becomes_one_controllers_however_many_connects_are_on_their_way() {
    let mut bench = Bench::new();
    let qp = bench.queue(0);
    for cid in 0..8 {
        bench.connect(qp, cid, 0, CNTLID_DYNAMIC);
    }
    bench.settle();
    let statuses = bench.statuses();
    assert_eq!(statuses.len(), 8);
    assert_eq!(statuses.iter().filter(|(_, succeeded)| *succeeded).count(), 1);
    assert_eq!(bench.group.controllers(), 1);
    bench.host.disconnect(qp);
    bench.settle();
    assert_eq!((bench.group.controllers(), bench.group.connections()), (0, 0));
}

#[test]
fn an_abort_which_names_a_queue_that_has_just_gone_finds_nothing() {
    let mut bench = Bench::new();
    let (admin, cntlid) = bench.controller();
    let io = bench.queue(1);
    bench.connect(io, 3, 1, cntlid);
    bench.settle();
    assert_eq!(bench.statuses(), [(3, true)]);
    bench.host.disconnect(io);
    let abort = Abort { sqid: 1, cid: 9 };
    let command = Command {
        cdw10: (u32::from(abort.cid) << 16 | 1).into(),
        ..Command::new(AdminOpcode::ABORT.0, 4, 0)
    };
    bench.send(admin, &command);
    bench.settle();
    let answer = bench.answers.pop().unwrap();
    assert_eq!((answer.status(), answer.dw0() & 1), (Status::SUCCESS, 1));
}

#[test]
fn a_queue_beyond_those_granted_is_refused() {
    let mut bench = Bench::new();
    let (_, cntlid) = bench.controller();
    let io = bench.queue(9);
    bench.connect(io, 3, 9, cntlid);
    bench.settle();
    assert_eq!(bench.statuses(), [(3, false)]);
}

#[test]
fn a_host_which_lets_reads_go_unanswered_does_not_hold_all_buffers() {
    let mut bench = Bench::new();
    let (_, cntlid) = bench.controller();
    let queues = [1, 2].map(|qid| {
        let io = bench.queue(qid);
        bench.connect(io, qid, qid, cntlid);
        bench.settle();
        assert_eq!(bench.statuses(), [(qid, true)]);
        io
    });
    // A megabyte each, of memory which the host never lent.
    let remote = Remote { address: 0, rkey: 0xBAD };
    let pointer = DataPointer::Keyed { remote, length: 1 << 20, invalidate: false };
    for io in queues {
        for cid in 0..8 {
            let command = Command { cdw12: 2047.into(), ..Command::new(IoOpcode::WRITE.0, cid, 1) };
            bench.send(io, &command.with_data(pointer));
        }
    }
    while bench.network.step(&mut Prng::new(1)) {}
    bench.turn();
    assert_eq!(
        bench.group.pool.available(),
        2,
        "of eight buffers one connection gets four, and two of one peer six"
    );
    bench.settle();
    assert_eq!(bench.group.pool.available(), bench.group.pool.total());
    assert_eq!(bench.group.connections(), 1, "both queues are lost, and the admin queue stays");
}

impl Bench {
    /// A controller with an I/O queue, on which `writes` commands have reached the medium.
    fn writing(&mut self, writes: u16) -> QpHandle {
        let (_, cntlid) = self.controller();
        let io = self.queue(1);
        self.connect(io, 3, 1, cntlid);
        self.settle();
        assert_eq!(self.statuses(), [(3, true)]);
        (0..writes).for_each(|cid| self.send(io, &Command::new(IoOpcode::WRITE_ZEROES.0, cid, 1)));
        self.settle();
        assert_eq!(self.group.storage().asked.len(), usize::from(writes));
        io
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        self.settle();
    }
}

#[test]
fn a_new_connect_waits_for_what_came_before_it_on_a_connection_that_still_stands() {
    let mut bench = Bench::new();
    let io = bench.writing(2);
    let again = bench.queue(0);
    bench.connect(again, 9, 0, CNTLID_DYNAMIC);
    bench.settle();
    // What comes later is the business of a host which has both.
    bench.send(io, &Command::new(IoOpcode::WRITE_ZEROES.0, 2, 1));
    bench.settle();
    bench.group.storage().finish_one();
    bench.settle();
    assert_eq!(bench.statuses(), [(0, true)], "one of the writes before it is still under way");
    bench.group.storage().finish_one();
    bench.settle();
    let mut statuses = bench.statuses();
    statuses.sort_unstable();
    assert_eq!(statuses, [(1, true), (9, true)]);
    assert_eq!((bench.group.controllers(), bench.group.storage().asked.len()), (2, 1));
}

#[test]
fn a_connect_is_not_held_for_ever() {
    let mut bench = Bench::new();
    bench.writing(1);
    let again = bench.queue(0);
    bench.connect(again, 9, 0, CNTLID_DYNAMIC);
    bench.settle();
    bench.wait(19);
    assert_eq!(bench.statuses(), []);
    bench.wait(1);
    let answer = bench.answers.pop().unwrap();
    assert_eq!(answer.status(), Status::CONNECT_CONTROLLER_BUSY.with_dnr(false));
    // And who hangs up meanwhile leaves nothing behind.
    let third = bench.queue(0);
    bench.connect(third, 9, 0, CNTLID_DYNAMIC);
    bench.settle();
    assert!(!bench.group.quiescing.is_empty());
    bench.host.disconnect(third);
    bench.settle();
    assert!(bench.group.held.is_empty() && bench.group.quiescing.is_empty());
}

#[test]
fn a_drain_gives_a_medium_that_hangs_up_and_says_which() {
    let mut bench = Bench::new();
    bench.writing(3);
    bench.group.storage().finish_one();
    bench.group.on_message(bench.now, Message::Drain);
    bench.wait(29);
    assert!(!bench.group.is_drained());
    assert_eq!(bench.group.given_up(), None);
    bench.wait(1);
    assert!(bench.group.is_drained());
    let unanswered = Unanswered { subsystem: nqn("s").to_string(), nsid: 1, commands: 2 };
    assert_eq!(bench.group.given_up(), Some(&[unanswered][..]));
}

impl Bench {
    /// From now on namespace 1, or nothing if there is none, takes so many commands a second.
    fn limit(&mut self, iops: Option<u64>) {
        let next = Catalog::clone(&self.group.catalog);
        let (mut next, _) = next.after_pause_of(|_, _| iops.is_none());
        if let Some(iops) = iops {
            next = next.with_limit(NonZeroU64::new(iops));
        }
        self.group.on_message(self.now, Message::Catalog(Arc::new(next)));
        self.settle();
    }

    fn write_zeroes(&mut self, io: QpHandle, cids: std::ops::Range<u16>) {
        cids.for_each(|cid| self.send(io, &Command::new(IoOpcode::WRITE_ZEROES.0, cid, 1)));
        self.settle();
    }
}

#[test]
fn a_command_waits_for_its_turn_and_an_abort_ends_it() {
    let mut bench = Bench::new();
    let (admin, cntlid) = bench.controller();
    let io = bench.queue(1);
    bench.connect(io, 3, 1, cntlid);
    bench.settle();
    bench.limit(Some(1));
    bench.write_zeroes(io, 10..14);
    assert_eq!(bench.group.storage().asked.len(), 1, "the one that is owed");
    bench.answers.clear();
    let abort = Command { cdw10: (12 << 16 | 1).into(), ..Command::new(AdminOpcode::ABORT.0, 4, 0) };
    bench.send(admin, &abort);
    bench.settle();
    let mut answers = std::mem::take(&mut bench.answers);
    answers.sort_by_key(|answer| answer.cid.get());
    let [told, aborted] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!((told.cid.get(), told.dw0() & 1), (4, 0));
    assert!(aborted.cid.get() == 12 && aborted.status().is(Status::ABORT_REQUESTED));
    let deadline = bench.group.throttle.deadline().unwrap();
    assert!(deadline > bench.now && bench.group.deadline() <= Some(deadline));
    bench.now = deadline;
    bench.settle();
    assert_eq!(bench.group.storage().asked.len(), 2, "the next turn is the next one's");
}

#[test]
fn what_waits_for_its_turn_ends_with_its_namespace_its_connection_or_the_limit() {
    let mut bench = Bench::new();
    let (_, cntlid) = bench.controller();
    let io = bench.queue(1);
    bench.connect(io, 3, 1, cntlid);
    bench.settle();
    bench.limit(Some(1));
    bench.write_zeroes(io, 10..20);
    let begun = bench.group.storage().asked.len();
    assert!(begun < 3);
    bench.limit(Some(1_000_000));
    bench.wait(1);
    assert_eq!(bench.group.storage().asked.len(), 10, "it holds for those who wait");
    bench.limit(Some(1));
    bench.answers.clear();
    bench.write_zeroes(io, 20..30);
    bench.limit(None);
    let begun = bench.group.storage().asked.len() - 10;
    assert!(begun < 2);
    assert_eq!(bench.statuses().len() + begun, 10, "all others are refused: there is no namespace");

    let mut bench = Bench::new();
    let io = bench.writing(0);
    bench.limit(Some(1));
    bench.write_zeroes(io, 10..30);
    bench.host.disconnect(io);
    bench.settle();
    (0..bench.group.storage().asked.len()).for_each(|_| bench.group.storage().finish_one());
    bench.settle();
    assert_eq!(bench.group.connections(), 1, "the queue is gone");
    assert_eq!(bench.group.throttle.deadline(), None, "and nobody waits");
}

#[test]
fn a_drain_does_not_wait_for_limits() {
    let mut bench = Bench::new();
    let io = bench.writing(0);
    bench.limit(Some(1));
    bench.write_zeroes(io, 10..20);
    bench.group.on_message(bench.now, Message::Drain);
    bench.settle();
    assert_eq!(bench.group.storage().asked.len(), 10);
    (0..10).for_each(|_| bench.group.storage().finish_one());
    bench.settle();
    bench.wait(6);
    assert!(bench.group.is_drained() && bench.group.given_up().is_none());
    assert_eq!(bench.statuses().iter().filter(|(cid, succeeded)| *succeeded && *cid >= 10).count(), 10);
}
