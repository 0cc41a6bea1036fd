//! A poll group of the target between a fabric and a medium which do nothing but report all as done: what is left is what
//! a command costs the target itself.
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::memory::{Memory, Pool, Region, SizeClass};
use ironside_common::nvme::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, PropertySet};
use ironside_common::nvme::private_data;
use ironside_common::nvme::property::PropertyId;
use ironside_common::nvme::{Command, Completion, DataPointer, Nqn};
use ironside_common::time::Time;
use ironside_common::verbs::{
    Address, CmEvent, CmRequest, ConnectParameters, Connections, Event, Limits, PrivateData, QpHandle,
    Received, Remote, Sge, TargetVerbs, Token, Verbs, Wc, WcStatus,
};
use ironside_target::backend::{Done, Medium, OpenMedium, Operation};
use ironside_target::catalog::{Catalog, Hosts, Namespace, Subsystem};
use ironside_target::limits::Census;
use ironside_target::poll_group::{PollGroup, Settings, Storage};
use uuid::Uuid;
use zerocopy::IntoBytes;

/// Commands which may be under way at once.
pub(crate) const DEPTH: u16 = 32;
const IN_CAPSULE: u32 = 4096;
const ADMIN: QpHandle = QpHandle(0);
const IO: QpHandle = QpHandle(1);

/// Moves nothing, and reports each work request as done. It is the host as well, which has lent one thing: the data of
/// its Connect.
struct Fabric {
    memory: Rc<Memory>,
    receives: Sge,
    capsules: Vec<[u8; Command::SIZE]>,
    free: Vec<u32>,
    events: VecDeque<Event>,
    connect_data: Option<ConnectData>,
    responses: u32,
    last_response: [u8; Completion::SIZE],
}

const RECEIVE_SIZE: u32 = Command::SIZE as u32 + IN_CAPSULE;

impl Fabric {
    fn new(memory: Rc<Memory>) -> Self {
        let length = u32::from(DEPTH) * RECEIVE_SIZE;
        let lkey = memory.register(Region::new(length as usize).expect("there is memory"));
        Self {
            receives: memory.sge(lkey, 0, length),
            memory,
            capsules: vec![[0; Command::SIZE]; DEPTH.into()],
            free: (0..DEPTH.into()).collect(),
            events: VecDeque::with_capacity(4 * usize::from(DEPTH)),
            connect_data: None,
            responses: 0,
            last_response: [0; Completion::SIZE],
        }
    }

    /// A command has come, with so many bytes behind it.
    fn receive(&mut self, qp: QpHandle, command: &Command, in_capsule: u32) {
        let buffer = self.free.pop().expect("the host keeps to its credits");
        self.capsules[buffer as usize] = command.to_bytes();
        let length = Command::SIZE as u32 + in_capsule;
        self.events.push_back(Event::Received(Received { qp, buffer, length, invalidated: None }));
    }

    fn completed(&mut self, qp: QpHandle, token: Token) {
        self.events.push_back(Event::Completed(Wc { qp, token, status: WcStatus::Success }));
    }
}

impl Verbs for Fabric {
    fn limits(&self, _: QpHandle) -> Limits {
        Limits { send_queue: 4 * u32::from(DEPTH), reads: 16 }
    }

    fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn message(&self, received: &Received) -> &[u8] {
        &self.capsules[received.buffer as usize]
    }

    fn message_sge(&self, received: &Received, offset: u32) -> Sge {
        self.receives.slice(received.buffer * RECEIVE_SIZE + offset, received.length - offset)
    }

    fn repost(&mut self, received: Received) {
        self.free.push(received.buffer);
    }
}

impl TargetVerbs for Fabric {
    fn post_fetch(&mut self, qp: QpHandle, token: Token, _: Remote, into: Sge) {
        if let Some(data) = self.connect_data.take() {
            self.memory.write(into, data.as_bytes());
        }
        self.completed(qp, token);
    }

    fn post_respond(
        &mut self,
        qp: QpHandle,
        token: Token,
        _: Option<(Sge, Remote)>,
        response: &[u8; Completion::SIZE],
        _: Option<u32>,
    ) {
        self.responses += 1;
        self.last_response = *response;
        self.completed(qp, token);
    }
}

impl Connections for Fabric {
    fn accept(&mut self, _: CmRequest, _: ConnectParameters, _: &[u8]) {}

    fn reject(&mut self, request: CmRequest, _: &[u8]) {
        panic!("the target rejects {request:?}");
    }

    fn connect(&mut self, _: Address, _: ConnectParameters, _: &[u8]) -> QpHandle {
        unreachable!("a target does not connect")
    }

    fn disconnect(&mut self, _: QpHandle) {
        panic!("the target hangs up");
    }

    fn destroy(&mut self, _: QpHandle) {}
}

/// Moves nothing either.
struct Instant(VecDeque<Done>);

impl Medium for Instant {
    fn submit(&mut self, token: Token, _: usize, _: Operation) {
        self.0.push_back(Done { token, result: Ok(()) });
    }

    fn in_place(&self, _: usize, _: u64, _: u32) -> Option<Sge> {
        None
    }

    fn poll(&mut self) -> Option<Done> {
        self.0.pop_front()
    }
}

impl Storage for Instant {
    fn backend_of(&mut self, _: &Namespace) -> usize {
        0
    }
}

/// A target with one host, whose controller is enabled and has one I/O queue.
pub(crate) struct Target {
    group: PollGroup<Fabric, Instant>,
    now: Time,
}

impl Target {
    pub(crate) fn connected() -> Self {
        let address: Address = "192.0.2.1:4420".parse().expect("an address");
        let medium = OpenMedium::null(1 << 30, 512).expect("a medium");
        let namespace = Namespace::whole(1, Uuid::from_u128(1), medium);
        let subsystem = Subsystem::new(nqn("subsystem"), "S", Hosts::Any, vec![address], vec![namespace]);
        let catalog = Arc::new(Catalog::new(1, vec![subsystem.expect("a subsystem")]).expect("a catalog"));
        let memory = Memory::new();
        let classes = [SizeClass { size: 1 << 16, count: 8 * u32::from(DEPTH) }];
        let pool = Pool::new(&memory, &classes).expect("there is memory");
        let settings = Settings {
            reactor: 0,
            reactors: 1,
            queue_depth: DEPTH,
            in_capsule: IN_CAPSULE,
            reads: 16,
            transfer_max: 1 << 16,
            census: Census::default(),
            drain: Duration::from_secs(30),
        };
        let medium = Instant(VecDeque::with_capacity(DEPTH.into()));
        let fabric = Fabric::new(Rc::clone(&memory));
        let group = PollGroup::new(settings, fabric, medium, pool, memory, catalog);
        let mut target = Self { group, now: Time::from_nanos(1) };
        let cntlid = target.connect(address, ADMIN, 0, CNTLID_DYNAMIC);
        target.ask(ADMIN, &PropertySet::new(PropertyId::CC, 0x0046_0001).to_command(2));
        target.connect(address, IO, 1, cntlid);
        target
    }

    /// Hands in commands at once, each with so many bytes behind it, and has them all answered.
    pub(crate) fn serve(&mut self, commands: &[Command], in_capsule: u32) {
        for command in commands {
            self.group.verbs().receive(IO, command, in_capsule);
        }
        let wanted = self.group.verbs().responses + u32::try_from(commands.len()).expect("a queue's worth");
        while self.group.verbs().responses != wanted || !self.group.verbs().events.is_empty() {
            self.group.turn(self.now);
        }
        assert!(self.answer().status().is_success(), "{}", self.answer());
    }

    fn answer(&mut self) -> Completion {
        Completion::from_capsule(&self.group.verbs().last_response).expect("it is as long as that")
    }

    /// What an admin command, or the Connect of any queue, is answered.
    fn ask(&mut self, qp: QpHandle, command: &Command) -> Completion {
        let wanted = self.group.verbs().responses + 1;
        self.group.verbs().receive(qp, command, 0);
        while self.group.verbs().responses != wanted {
            self.group.turn(self.now);
            while let Some((_, message)) = self.group.next_message() {
                self.group.on_message(self.now, message);
            }
        }
        let answer = self.answer();
        assert!(answer.status().is_success(), "{answer}");
        answer
    }

    /// Makes a queue pair queue `qid` of a controller, and says of which.
    fn connect(&mut self, local: Address, qp: QpHandle, qid: u16, cntlid: u16) -> u16 {
        let private_data = private_data::Request::new(qid, DEPTH, 0);
        let private_data: PrivateData = private_data.as_bytes().iter().copied().collect();
        let peer = "192.0.2.2:1".parse().expect("an address");
        let request = CmRequest { qp, peer, local, private_data, reads: 16 };
        let data = ConnectData::new(Uuid::from_u128(7), cntlid, &nqn("subsystem"), &nqn("host"));
        let fabric = self.group.verbs();
        fabric.connect_data = Some(data);
        fabric.events.push_back(Event::Connection(Box::new(CmEvent::Request(request))));
        let connect = Connect {
            record_format: 0,
            qid,
            sqsize: DEPTH - 1,
            priority_class: 0,
            disable_sq_flow_control: false,
            kato_ms: 0,
        };
        let remote = Remote { address: 0, rkey: 1 };
        let pointer = DataPointer::Keyed { remote, length: ConnectData::SIZE, invalidate: true };
        self.ask(qp, &connect.to_command(1).with_data(pointer)).dw0() as u16
    }
}

fn nqn(name: &str) -> Nqn {
    format!("nqn.2014-08.org.example:{name}").parse().expect("an NQN")
}
