//! A host in its barest form: it connects with an admin queue and some I/O queues, on whichever reactors these are, and
//! sends whatever it is told to. For those commands which the initiator's machine does not know, and which checkers of a
//! world are about.
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use ironside_common::memory::{Memory, Region};
use ironside_common::nvme::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, PropertySet};
use ironside_common::nvme::private_data::Request;
use ironside_common::nvme::property::PropertyId;
use ironside_common::nvme::{Command, Completion, DataPointer, Nqn, Status};
use ironside_common::time::Time;
use ironside_common::verbs::{
    Access, Address, CmEvent, ConnectParameters, Connections, Event, HostVerbs, Kind, MrHandle, QpHandle,
    Registration, Sge, Token, Verbs,
};
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::fabric::{Fabric, Pump};

/// Entries of a queue, and bytes each command may move unless there is to be more room.
pub(super) const ENTRIES: u16 = 16;
const ROOM: u32 = 4096;
/// How long it waits before it connects again.
const PAUSE: Duration = Duration::from_secs(1);
/// CC: enabled, with entries of 64 and 16 bytes.
const ENABLE: u64 = 0x0046_0001;

pub(super) struct RawHost<F: Fabric> {
    provider: F::Provider,
    memory: Rc<Memory>,
    lkey: u32,
    /// Bytes each command may move.
    room_size: u32,
    /// How the data of a Connect travels.
    connects: Way,
    target: Address,
    subsystem: Nqn,
    id: Uuid,
    stage: Stage,
    /// By queue identifier: the admin queue first.
    queues: Vec<Option<Queue>>,
    cntlid: u16,
    /// When to connect.
    again: Time,
    closing: bool,
    news: VecDeque<News>,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    qp: QpHandle,
    mr: Option<MrHandle>,
    /// Commands posted of which the fabric has not said what became of them.
    posted: u32,
    /// The connection has ended.
    gone: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Apart,
    Dialling(usize),
    Joining(usize),
    Enabling,
    Ready,
    Ending,
}

/// What its owner has to know.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// Every queue stands.
    Ready,
    /// Nobody answers any more what was sent.
    Lost,
    Answer {
        qid: usize,
        cid: u16,
        status: Status,
        result: u32,
    },
}

/// How the data of a command travels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    InCapsule,
    Fetched,
    ToHost,
}

/// The identifier which the host of this number connects with.
pub(super) fn host_id(number: u8) -> Uuid {
    Uuid::from_u128(0x2000 + u128::from(number))
}

impl<F: Fabric> RawHost<F> {
    pub(super) fn new(fabric: &mut F, number: u8, target: Address, subsystem: Nqn, io_queues: usize) -> Self {
        Self::with_room(fabric, number, target, subsystem, io_queues, ROOM)
    }

    /// One whose commands move more.
    pub(super) fn with_room(
        fabric: &mut F,
        number: u8,
        target: Address,
        subsystem: Nqn,
        io_queues: usize,
        room_size: u32,
    ) -> Self {
        let memory = Memory::new();
        let length = (io_queues + 1) * usize::from(ENTRIES) * room_size as usize;
        let lkey = memory.register(Region::new(length).expect("address space is plenty"));
        let mut provider = fabric.provider(Address::from(([192, 0, 2, number], 1)), &memory, 4);
        provider.set_registration(Registration::Pool);
        Self {
            provider,
            memory,
            lkey,
            room_size,
            connects: Way::InCapsule,
            target,
            subsystem,
            id: host_id(number),
            stage: Stage::Apart,
            queues: vec![None; io_queues + 1],
            cntlid: CNTLID_DYNAMIC,
            again: Time::ZERO,
            closing: false,
            news: VecDeque::new(),
        }
    }

    /// The same, whose Connects have their data fetched.
    pub(super) fn fetched(self) -> Self {
        Self { connects: Way::Fetched, ..self }
    }

    pub(super) fn io_queues(&self) -> usize {
        self.queues.len() - 1
    }

    pub(super) fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// Ends what stands, and connects no more.
    pub(super) fn close(&mut self, now: Time) {
        self.closing = true;
        self.end(now);
    }

    pub(super) fn is_over(&self) -> bool {
        self.closing && self.stage == Stage::Apart
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let again = (self.stage == Stage::Apart && !self.closing).then_some(self.again);
        [again, self.provider.deadline()].into_iter().flatten().min()
    }

    pub(super) fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    pub(super) fn turn(&mut self, now: Time) -> bool {
        let mut busy = self.provider.pump(now);
        while let Some(event) = self.provider.poll() {
            busy = true;
            match event {
                Event::Received(received) => {
                    let answer = Completion::from_capsule(self.provider.message(&received));
                    let qp = received.qp;
                    self.provider.repost(received);
                    self.on_answer(now, qp, &answer.expect("a response has 16 bytes"));
                }
                Event::Completed(wc) => {
                    let queue = self.queue(wc.qp).expect("a queue pair is kept while work of it is posted");
                    queue.posted -= 1;
                    self.reap();
                }
                Event::Connection(event) => self.on_connection(now, &event),
            }
        }
        if self.stage == Stage::Apart && !self.closing && now >= self.again {
            busy = true;
            self.dial(0);
        }
        busy
    }

    /// Where the data of a command is or will be.
    pub(super) fn room(&self, qid: usize, cid: u16, length: u32) -> Sge {
        assert!(cid < ENTRIES && length <= self.room_size, "one queue has room for so much");
        let slot = u64::try_from(qid).expect("queues are few") * u64::from(ENTRIES) + u64::from(cid);
        self.memory.sge(self.lkey, slot * u64::from(self.room_size), length)
    }

    pub(super) fn write(&self, sge: Sge, bytes: &[u8]) {
        self.memory.write(sge, bytes);
    }

    pub(super) fn read(&self, sge: Sge) -> Vec<u8> {
        let mut bytes = vec![0; sge.length as usize];
        self.memory.read(sge, &mut bytes);
        bytes
    }

    /// Sends a command with its data, which is in its room.
    pub(super) fn send(&mut self, qid: usize, command: Command, data: Option<(Way, u32)>) {
        let room = data.map(|(_, length)| self.room(qid, command.cid.get(), length));
        let queue = self.queues[qid].as_mut().expect("it stands");
        queue.posted += 1;
        let Queue { qp, mr, .. } = *queue;
        let mut lend = |access| {
            let sge = room.expect("there is data");
            self.provider.prepare(qp, mr.expect("the connection stands"), sge, access)
        };
        let exposure = data.and_then(|(way, _)| match way {
            Way::InCapsule => None,
            Way::Fetched => Some(lend(Access::RemoteRead)),
            Way::ToHost => Some(lend(Access::RemoteWrite)),
        });
        let in_capsule = room.filter(|_| exposure.is_none());
        let pointer = match (room, exposure) {
            (Some(Sge { length, .. }), Some(exposure)) => {
                DataPointer::Keyed { remote: exposure.remote, length, invalidate: false }
            }
            (Some(Sge { length, .. }), None) => DataPointer::InCapsule { offset: 0, length },
            (None, _) => DataPointer::None,
        };
        let token = Token { kind: Kind::Command, generation: 0, qpair: qp.0, slot: command.cid.get() };
        self.provider.post_command(qp, token, &command.with_data(pointer).to_bytes(), in_capsule, exposure);
    }

    fn queue(&mut self, qp: QpHandle) -> Option<&mut Queue> {
        self.queues.iter_mut().flatten().find(|queue| queue.qp == qp)
    }

    fn dial(&mut self, qid: usize) {
        let parameters = ConnectParameters { receives: ENTRIES, receive_size: 16, send_queue: 64, reads: 0 };
        let cntlid = if qid == 0 { 0 } else { self.cntlid };
        let request = Request::new(u16::try_from(qid).expect("queues are few"), ENTRIES, cntlid);
        let qp = self.provider.connect(self.target, parameters, request.as_bytes());
        self.queues[qid] = Some(Queue { qp, mr: None, posted: 0, gone: false });
        self.stage = Stage::Dialling(qid);
    }

    /// The Connect of a queue.
    fn join(&mut self, qid: usize) {
        let name = super::host_nqn(self.id);
        let cntlid = if qid == 0 { CNTLID_DYNAMIC } else { self.cntlid };
        let data = ConnectData::new(self.id, cntlid, &self.subsystem, &name);
        self.write(self.room(qid, 0, ConnectData::SIZE), data.as_bytes());
        let connect = Connect {
            record_format: 0,
            qid: u16::try_from(qid).expect("queues are few"),
            sqsize: ENTRIES - 1,
            priority_class: 0,
            disable_sq_flow_control: false,
            kato_ms: 0,
        };
        self.stage = Stage::Joining(qid);
        self.send(qid, connect.to_command(0), Some((self.connects, ConnectData::SIZE)));
    }

    fn on_connection(&mut self, now: Time, event: &CmEvent) {
        match *event {
            CmEvent::Established { qp, .. } => {
                let mr = self.provider.allocate_mr(qp);
                self.queue(qp).expect("it was dialled").mr = Some(mr);
                match self.stage {
                    Stage::Dialling(qid) => self.join(qid),
                    _ => self.provider.disconnect(qp),
                }
            }
            CmEvent::Refused { qp, .. } => {
                let place = self.queues.iter_mut().find(|queue| queue.is_some_and(|queue| queue.qp == qp));
                *place.expect("it was dialled") = None;
                self.end(now);
            }
            CmEvent::Disconnected { qp, .. } => {
                self.queue(qp).expect("it ends once").gone = true;
                self.end(now);
            }
            CmEvent::Request(_) => unreachable!("a host does not listen"),
        }
    }

    /// One connection is gone, or is to go: so do the others.
    fn end(&mut self, now: Time) {
        if !matches!(self.stage, Stage::Ending | Stage::Apart) {
            self.news.push_back(News::Lost);
            self.again = now + PAUSE;
            self.stage = Stage::Ending;
            for queue in self.queues.iter().flatten().filter(|queue| queue.mr.is_some() && !queue.gone) {
                self.provider.disconnect(queue.qp);
            }
        }
        self.reap();
    }

    /// A queue pair goes once nothing names it any more.
    fn reap(&mut self) {
        for queue in &mut self.queues {
            if let Some(Queue { qp, posted: 0, gone: true, .. }) = *queue {
                self.provider.destroy(qp);
                *queue = None;
            }
        }
        if self.stage == Stage::Ending && self.queues.iter().all(Option::is_none) {
            self.stage = Stage::Apart;
        }
    }

    fn on_answer(&mut self, now: Time, qp: QpHandle, answer: &Completion) {
        let status = answer.status();
        match self.stage {
            Stage::Joining(_) | Stage::Enabling if !status.is_success() => self.end(now),
            Stage::Joining(0) => {
                self.stage = Stage::Enabling;
                self.cntlid = (answer.dw0() & 0xFFFF) as u16;
                self.send(0, PropertySet::new(PropertyId::CC, ENABLE).to_command(0), None);
            }
            Stage::Enabling => self.dial(1),
            Stage::Joining(qid) if qid < self.io_queues() => self.dial(qid + 1),
            Stage::Joining(_) => {
                self.stage = Stage::Ready;
                self.news.push_back(News::Ready);
            }
            Stage::Ready => {
                let is_from = |queue: &Option<Queue>| queue.is_some_and(|queue| queue.qp == qp);
                let qid = self.queues.iter().position(is_from).expect("it stands");
                self.news.push_back(News::Answer {
                    qid,
                    cid: answer.cid.get(),
                    status,
                    result: answer.dw0(),
                });
            }
            Stage::Apart | Stage::Dialling(_) => unreachable!("an answer to nothing"),
            // What was lost may still be answered.
            Stage::Ending => {}
        }
    }
}
