//! Our initiator as the table drives it: the host machine over the software provider, and at the other end a
//! target of bytes, which a row may make as wrong as it likes.
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::memory::{Memory, Own, Pages, Region};
use ironside_common::provider::soft::{Settings, Soft};
use ironside_common::time::Time;
use ironside_common::verbs::{Address, Registration, Sge, Verbs};
use ironside_initiator::host::{ConnectError, Fault, Host, HostEvent, HostOptions};
use ironside_initiator::volume::{Completed, Operation, Request};
use uuid::Uuid;

use crate::pipe::{Dialled, Peer, Pipe, ToTest};
use crate::queue::{HOST, HOST_ID};
use crate::target::{Counted, OPEN};
use crate::wire::{
    self, At, CRC, READ_RESPONSE, SEND, Segment, TAGGED_LAST, TERMINATE, WRITE, fpdu, le, mpa_frame,
    read_request, send, send_invalidate, tagged, take_fpdu,
};

/// The controller the scripted target is.
pub(crate) const CNTLID: u16 = 7;
/// CAP: 128 entries, CQR, 7.5 s, the NVM command set.
const CAP: u64 = 0x0000_0020_0F01_007F;

/// A command as it came.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) qid: usize,
    pub(crate) sqe: [u8; 64],
    /// What was behind it in the capsule, or was fetched for it.
    pub(crate) data: Vec<u8>,
}

impl Command {
    pub(crate) fn cid(&self) -> u16 {
        le(&self.sqe, 2, 2) as u16
    }

    /// Its data pointer as a keyed data block: where, and how much.
    pub(crate) fn keyed(&self) -> (At, u32) {
        assert!(matches!(self.sqe[39], 0x40 | 0x4F), "{:02x?}", &self.sqe[24..40]);
        ((le(&self.sqe, 35, 4) as u32, le(&self.sqe, 24, 8)), le(&self.sqe, 32, 3) as u32)
    }
}

/// How the scripted target answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) result: u64,
    /// The status field of the response.
    pub(crate) status: u16,
    pub(crate) sqhd: Option<u16>,
    pub(crate) data: Vec<u8>,
    /// By a Send without invalidation.
    pub(crate) plain: bool,
    /// Not at all.
    pub(crate) never: bool,
}

impl Answer {
    pub(crate) fn result(result: u64) -> Self {
        Self { result, ..Self::default() }
    }

    fn data(data: Vec<u8>) -> Self {
        Self { data, ..Self::default() }
    }
}

/// What the target does differently.
pub(crate) struct Script {
    /// Changes its Identify Controller structure.
    pub(crate) identify: fn(&mut [u8]),
    pub(crate) cap: u64,
    /// What it says, by Authentication Receive, to a host which sent these by Authentication Send on this queue.
    pub(crate) says: fn(&[&Command]) -> Vec<u8>,
    /// Answers in the place of the usual answer, where it gives one.
    pub(crate) answer: fn(&Command) -> Option<Answer>,
    /// Makes the MPA Reply from queue identifier and private data; by default the enhanced one.
    pub(crate) reply: fn(u16) -> Vec<u8>,
    /// How our host lends its memory, and whether that is a program's own.
    pub(crate) registration: Registration,
    pub(crate) in_place: bool,
}

impl Default for Script {
    fn default() -> Self {
        let registration = Registration::Window;
        let (answer, reply) = (|_: &Command| None, usual_reply);
        Self {
            identify: |_| {},
            cap: CAP,
            says: |_| Vec::new(),
            answer,
            reply,
            registration,
            in_place: false,
        }
    }
}

/// Neither CRC nor peer-to-peer; IRD 0, ORD 16; as many receives as were asked for.
pub(crate) fn usual_reply(_: u16) -> Vec<u8> {
    reply(0, 0, 16)
}

pub(crate) fn reply(flags: u8, ird: u16, ord: u16) -> Vec<u8> {
    let mut data = [ird.to_be_bytes(), ord.to_be_bytes(), [0, 0], [32, 0]].concat();
    data.resize(36, 0);
    mpa_frame(b"MPA ID Rep Frame", wire::ENHANCED | flags, 2, &data)
}

/// The target's end of one queue.
pub(crate) struct Served {
    pub(crate) peer: Peer,
    stream: Vec<u8>,
    /// The MPA Request, once it came.
    pub(crate) request: Vec<u8>,
    crc: bool,
    next_send: u32,
    next_read: u32,
    /// Commands whose data is being fetched.
    fetching: VecDeque<Command>,
    /// Segments which were no command.
    pub(crate) others: Vec<Segment>,
    /// Read Responses are a row's, not data of commands.
    pub(crate) collects_responses: bool,
}

impl Served {
    pub(crate) fn send_segment(&self, segment: &[u8]) {
        self.peer.send(&fpdu(segment, self.crc));
    }

    pub(crate) fn write(&self, at: At, bytes: &[u8]) {
        self.send_segment(&tagged(TAGGED_LAST, WRITE, at.0, at.1, bytes));
    }

    pub(crate) fn respond(&mut self, response: &[u8], invalidate: Option<u32>) {
        let segment = match invalidate {
            Some(stag) => send_invalidate(self.next_send, stag, response),
            None => send(self.next_send, response),
        };
        self.next_send += 1;
        self.send_segment(&segment);
    }

    /// The payload of the Terminate it was sent.
    pub(crate) fn terminate(&self) -> Option<&[u8]> {
        self.others.iter().find(|segment| segment.opcode() == TERMINATE).map(Segment::payload)
    }
}

pub(crate) struct Initiator {
    pub(crate) host: Host,
    soft: Soft<Pipe>,
    memory: Rc<Memory>,
    buffer: Sge,
    pub(crate) now: Time,
    dialled: Dialled,
    pub(crate) script: Script,
    /// By queue identifier.
    pub(crate) queues: Vec<Served>,
    /// Every command that came, in order.
    pub(crate) commands: Vec<Command>,
    cc: u64,
    pub(crate) events: Vec<HostEvent>,
    pub(crate) completed: Vec<Completed>,
}

impl Initiator {
    /// One which has done all it could against this target.
    pub(crate) fn start(script: Script, change: fn(&mut HostOptions)) -> Self {
        let address: Address = "192.0.2.1:4420".parse().expect("an address");
        let nqn = |name: &str| name.parse().expect("a name");
        let mut options = HostOptions::new(address, nqn(OPEN), nqn(HOST), Uuid::from_bytes(HOST_ID));
        change(&mut options);
        let memory = Memory::new();
        let own = || Arc::clone(Own::new(Pages::zeroed(1 << 20)).region());
        let region = if script.in_place { own() } else { Region::new(1 << 20).expect("memory") };
        let lkey = memory.register(region);
        let buffer = memory.sge(lkey, 0, 1 << 20);
        let dialled = Dialled::default();
        let dialer = ToTest { dialled: Rc::clone(&dialled) };
        let registration = script.registration;
        let settings = Settings { crc: false, seed: 2, registration, ..Settings::default() };
        let soft = Soft::new(Rc::clone(&memory), Box::new(dialer), settings);
        let host = Host::new(options, Rc::clone(&memory)).expect("memory");
        let now = Time::from_nanos(1 << 50);
        let mut initiator = Self {
            host,
            soft,
            memory,
            buffer,
            now,
            dialled,
            script,
            queues: Vec::new(),
            commands: Vec::new(),
            cc: 0,
            events: Vec::new(),
            completed: Vec::new(),
        };
        initiator.host.start(&mut initiator.soft, now);
        initiator.run();
        initiator
    }

    /// One which is connected, to the usual target.
    pub(crate) fn connected() -> Self {
        let initiator = Self::start(Script::default(), |_| {});
        assert_eq!(initiator.events, [HostEvent::NamespaceAdded(0), HostEvent::Connected]);
        initiator
    }

    /// Why it did not connect.
    pub(crate) fn failure(&self) -> &ConnectError {
        match self.events.last() {
            Some(HostEvent::Failed(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Why it lost its connection.
    pub(crate) fn lost(&self) -> &Fault {
        let lost = self.events.iter().find_map(|event| match event {
            HostEvent::Lost(fault) => Some(fault),
            _ => None,
        });
        lost.unwrap_or_else(|| panic!("{:?}", self.events))
    }

    /// The commands of one queue with this opcode.
    pub(crate) fn sent(&self, qid: usize, opcode: u8) -> Vec<&Command> {
        self.commands.iter().filter(|command| command.qid == qid && command.sqe[0] == opcode).collect()
    }

    /// Lets both do all they can without time passing.
    pub(crate) fn run(&mut self) {
        let mut idle = 0;
        while idle < 4 {
            let mut busy = self.soft.pump(self.now);
            while let Some(event) = self.soft.poll() {
                self.host.on_event(&mut self.soft, event, self.now);
                busy = true;
            }
            busy |= self.host.turn(&mut self.soft, self.now);
            while let Some((number, job)) = self.host.next_job() {
                self.host.computed(&mut self.soft, number, job.run(&mut Counted), self.now);
                busy = true;
            }
            busy |= self.soft.flush(self.now);
            while let Some((_, completed)) = self.host.next_completed() {
                self.completed.push(completed);
            }
            while let Some(event) = self.host.next_event() {
                self.events.push(event);
            }
            busy |= self.serve();
            idle = if busy { 0 } else { idle + 1 };
        }
    }

    pub(crate) fn wait(&mut self, duration: Duration) {
        const STEP: Duration = Duration::from_millis(10);
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + STEP;
            self.run();
        }
    }

    pub(crate) fn close(&mut self) {
        self.host.close(&mut self.soft, self.now);
        self.run();
    }

    /// A request for the first namespace, whose data is at the start of the buffer.
    pub(crate) fn submit(&mut self, operation: Operation, offset: u64, length: u64) {
        let has_data = matches!(operation, Operation::Read | Operation::Write { .. });
        let buffer = has_data.then(|| self.buffer.slice(0, length as u32));
        self.host.submit(0, Request { tag: 1, operation, offset, length, buffer }).expect("room");
        self.run();
    }

    pub(crate) fn fill(&self, bytes: &[u8]) {
        self.memory.write(self.buffer, bytes);
    }

    pub(crate) fn bytes(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(self.buffer, &mut bytes);
        bytes
    }

    fn serve(&mut self) -> bool {
        let mut busy = false;
        while let Some(peer) = self.dialled.borrow_mut().pop_front() {
            self.queues.push(Served {
                peer,
                stream: Vec::new(),
                request: Vec::new(),
                crc: false,
                next_send: 1,
                next_read: 1,
                fetching: VecDeque::new(),
                others: Vec::new(),
                collects_responses: false,
            });
        }
        for index in 0..self.queues.len() {
            let bytes = self.queues[index].peer.take();
            busy |= !bytes.is_empty();
            self.queues[index].stream.extend(bytes);
            self.serve_queue(index);
        }
        busy
    }

    fn serve_queue(&mut self, index: usize) {
        let served = &mut self.queues[index];
        if served.request.is_empty() {
            if served.stream.len() < 56 {
                return;
            }
            served.request = served.stream.drain(..56).collect();
            let reply = (self.script.reply)(le(&served.request, 26, 2) as u16);
            served.crc = reply.get(16).is_some_and(|flags| flags & CRC != 0);
            served.peer.send(&reply);
        }
        while let Some(segment) = {
            let served = &mut self.queues[index];
            take_fpdu(&mut served.stream, served.crc)
        } {
            self.take(index, segment);
        }
    }

    fn take(&mut self, index: usize, segment: Segment) {
        let served = &mut self.queues[index];
        match segment.opcode() {
            SEND if segment.payload().len() >= 64 => {
                let (sqe, data) = segment.payload().split_at(64);
                let qid = index;
                let command = Command { qid, sqe: sqe.try_into().expect("64 bytes"), data: data.to_vec() };
                let from_host = (if sqe[0] == 0x7F { sqe[4] } else { sqe[0] }) & 0b11 == 0b01;
                if from_host && sqe[39] >> 4 == 4 && command.keyed().1 > 0 {
                    let (source, length) = command.keyed();
                    let sequence = served.next_read;
                    served.next_read += 1;
                    served.send_segment(&read_request(sequence, (0x55, 0), length, source));
                    served.fetching.push_back(command);
                } else {
                    self.execute(command);
                }
            }
            READ_RESPONSE if !served.collects_responses => {
                let command = served.fetching.front_mut().expect("a Read was asked for");
                command.data.extend_from_slice(segment.payload());
                if segment.is_last() {
                    let command = served.fetching.pop_front().expect("just seen");
                    self.execute(command);
                }
            }
            _ => served.others.push(segment),
        }
    }

    fn execute(&mut self, command: Command) {
        self.commands.push(command.clone());
        let answer = (self.script.answer)(&command).unwrap_or_else(|| self.usual(&command));
        if !answer.never {
            self.answer(&command, &answer);
        }
    }

    pub(crate) fn answer(&mut self, command: &Command, answer: &Answer) {
        let served = &mut self.queues[command.qid];
        if !answer.data.is_empty() {
            let (at, length) = command.keyed();
            served.write(at, &answer.data[..answer.data.len().min(length as usize)]);
        }
        let key =
            (command.sqe[39] == 0x4F && command.keyed().1 > 0 && !answer.plain).then(|| command.keyed().0.0);
        served.respond(&response(command, answer), key);
    }

    fn usual(&mut self, command: &Command) -> Answer {
        let sqe = &command.sqe;
        let (property, cns) = (le(sqe, 44, 4), sqe[40]);
        match (command.qid, sqe[0], sqe[4]) {
            (_, 0x7F, 0x01) => Answer::result(CNTLID.into()),
            (_, 0x7F, 0x00) => {
                self.cc = le(sqe, 48, 8);
                Answer::default()
            }
            (_, 0x7F, 0x06) => {
                let sent = |one: &&Command| one.qid == command.qid && one.sqe[0] == 0x7F && one.sqe[4] == 5;
                let said: Vec<&Command> = self.commands.iter().filter(sent).collect();
                let mut message = (self.script.says)(&said);
                message.resize(command.keyed().1 as usize, 0);
                Answer::data(message)
            }
            (_, 0x7F, 0x04) => Answer::result(match property {
                0x00 => self.script.cap,
                0x08 => 0x0001_0300,
                0x14 => self.cc,
                // Ready as soon as enabled, shut down as soon as asked.
                0x1C => self.cc & 1 | if self.cc >> 14 & 3 == 0 { 0 } else { 0b1000 },
                _ => 0,
            }),
            (0, 0x06, _) => match self.identify(cns) {
                Some(page) => Answer::data(page),
                None => Answer { status: 0x02 << 1 | 0x8000, ..Answer::default() },
            },
            (0, 0x02, _) => Answer::data(vec![0; 4096]),
            (0, 0x09, _) => Answer::result(le(sqe, 44, 4)),
            (0, 0x0C, _) => Answer { never: true, ..Answer::default() },
            (_, 0x02, _) => Answer::data(vec![0x5A; command.keyed().1 as usize]),
            _ => Answer::default(),
        }
    }

    fn identify(&self, cns: u8) -> Option<Vec<u8>> {
        let mut page = vec![0; 4096];
        match cns {
            0 => {
                for at in [0, 8, 16] {
                    page[at..at + 8].copy_from_slice(&4096u64.to_le_bytes());
                }
                (page[30], page[130]) = (1, 9);
            }
            1 => {
                page[4..72].fill(b' ');
                page[77] = 8;
                page[78..80].copy_from_slice(&CNTLID.to_le_bytes());
                (page[93], page[111], page[320]) = (1, 1, 10);
                (page[512], page[513], page[514], page[516]) = (0x66, 0x44, 128, 16);
                (page[520], page[525]) = (0b1100, 1);
                page[536..540].copy_from_slice(&0x0010_0005u32.to_le_bytes());
                page[768..768 + OPEN.len()].copy_from_slice(OPEN.as_bytes());
                page[1792..1794].copy_from_slice(&260u16.to_le_bytes());
                (page[1796], page[1803]) = (1, 1);
                (self.script.identify)(&mut page);
            }
            2 => page[0] = 1,
            3 => {
                page[..4].copy_from_slice(&[3, 16, 0, 0]);
                page[4..20].copy_from_slice(b"one of 16 bytes!");
            }
            _ => return None,
        }
        Some(page)
    }
}

/// A response in bytes.
pub(crate) fn response(command: &Command, answer: &Answer) -> Vec<u8> {
    let mut entry = answer.result.to_le_bytes().to_vec();
    // As far as the host is concerned the queue is always as good as empty.
    let head = answer.sqhd.unwrap_or(0);
    entry.extend(head.to_le_bytes());
    entry.extend((command.qid as u16).to_le_bytes());
    entry.extend(command.cid().to_le_bytes());
    entry.extend(answer.status.to_le_bytes());
    entry
}
