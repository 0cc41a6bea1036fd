//! A host's end of one queue, in bytes: it sends capsules, plays the memory which the target reads and writes,
//! and remembers all the target did.
use std::collections::{BTreeMap, VecDeque};

use crate::pipe::Peer;
use crate::target::{OPEN, Target};
use crate::wire::{
    self, At, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE, Segment, Sqe, TAGGED, TAGGED_LAST,
    TERMINATE, WRITE, capsule_sgl, cm_request, connect, connect_data, fpdu, keyed_sgl, le, mpa_request,
    property_set, tagged, take_fpdu,
};

pub(crate) const HOST: &str = "nqn.2014-08.org.example:host";
pub(crate) const HOST_ID: [u8; 16] = *b"a host of a test";

/// The status of a response: type, code, Do Not Retry.
pub(crate) type Status = (u8, u8, bool);
pub(crate) const SUCCESS: Status = (0, 0, false);

/// A response, and what came with it.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) entry: [u8; 16],
    /// The key which its message invalidated.
    pub(crate) invalidated: Option<u32>,
}

impl Response {
    pub(crate) fn result(&self) -> u64 {
        le(&self.entry, 0, 8)
    }

    pub(crate) fn sqhd(&self) -> u16 {
        u16::from_le_bytes([self.entry[8], self.entry[9]])
    }

    pub(crate) fn cid(&self) -> u16 {
        u16::from_le_bytes([self.entry[12], self.entry[13]])
    }

    pub(crate) fn status(&self) -> Status {
        let field = u16::from_le_bytes([self.entry[14], self.entry[15]]);
        ((field >> 9 & 7) as u8, (field >> 1 & 0xFF) as u8, field >> 15 == 1)
    }

    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.status(), SUCCESS, "{:02x?}", self.entry);
        self
    }
}

/// What the target did on a queue, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Did {
    Wrote { stag: u32, bytes: usize },
    Read { stag: u32, offset: u64, length: u32 },
    Responded { cid: u16 },
    Terminated(Vec<u8>),
}

pub(crate) struct Queue {
    pub(crate) target: Target,
    pub(crate) peer: Peer,
    pub(crate) crc: bool,
    stream: Vec<u8>,
    next_sequence: u32,
    next_cid: u16,
    next_stag: u32,
    memory: BTreeMap<u32, (u64, Vec<u8>)>,
    responses: VecDeque<Response>,
    pub(crate) did: Vec<Did>,
    /// Read Requests are left unanswered here.
    pub(crate) holds_reads: bool,
    pub(crate) held_reads: Vec<Segment>,
}

impl Queue {
    /// A connection which the target accepted.
    pub(crate) fn open(target: &Target, private_data: &[u8]) -> Self {
        Self::open_with(target, 0, private_data).0
    }

    /// The same with flags in the MPA Request; also gives the MPA Reply.
    pub(crate) fn open_with(target: &Target, flags: u8, private_data: &[u8]) -> (Self, Vec<u8>) {
        Self::start(target, target.dial(), &mpa_request(flags, private_data))
    }

    /// The same by whatever Request, on a connection which stands.
    pub(crate) fn start(target: &Target, peer: Peer, request: &[u8]) -> (Self, Vec<u8>) {
        peer.send(request);
        target.run();
        let reply = peer.take();
        assert!(reply.len() >= 20, "there is no MPA Reply");
        assert_eq!(reply[16] & wire::REJECT, 0, "rejected: {reply:02x?}");
        let queue = Self {
            target: target.clone(),
            peer,
            crc: reply[16] & wire::CRC != 0,
            stream: Vec::new(),
            next_sequence: 1,
            next_cid: 0x1001,
            next_stag: 0x0BAD_0001,
            memory: BTreeMap::new(),
            responses: VecDeque::new(),
            did: Vec::new(),
            holds_reads: false,
            held_reads: Vec::new(),
        };
        (queue, reply)
    }

    /// A connection for an admin queue of 32 entries.
    pub(crate) fn dial_admin(target: &Target) -> Self {
        Self::open(target, &cm_request(0, 32, 31, 0))
    }

    /// An admin queue whose Connect succeeded; also gives the response to that.
    pub(crate) fn connect_admin(target: &Target, subsystem: &str, kato_ms: u32) -> (Self, Response) {
        let mut queue = Self::dial_admin(target);
        let data = connect_data(HOST_ID, 0xFFFF, subsystem, HOST);
        let response = queue.write(connect(0, 31, kato_ms), &data).succeeded();
        (queue, response)
    }

    /// An enabled controller of the open subsystem, and its identifier.
    pub(crate) fn admin(target: &Target) -> (Self, u16) {
        Self::admin_of(target, OPEN)
    }

    pub(crate) fn admin_of(target: &Target, subsystem: &str) -> (Self, u16) {
        let (mut queue, response) = Self::connect_admin(target, subsystem, 0);
        queue.command(property_set(0x14, 0x0046_0001)).succeeded();
        (queue, response.result() as u16)
    }

    /// I/O queue `qid` of that controller, with 16 entries.
    pub(crate) fn io(target: &Target, cntlid: u16, qid: u16) -> Self {
        let mut queue = Self::dial_io(target, cntlid, qid);
        let data = connect_data(HOST_ID, cntlid, OPEN, HOST);
        queue.write(connect(qid, 15, 0), &data).succeeded();
        queue
    }

    pub(crate) fn dial_io(target: &Target, cntlid: u16, qid: u16) -> Self {
        Self::open(target, &cm_request(qid, 16, 15, cntlid))
    }

    /// A controller with one I/O queue.
    pub(crate) fn both(target: &Target) -> (Self, Self) {
        let (admin, cntlid) = Self::admin(target);
        let io = Self::io(target, cntlid, 1);
        (admin, io)
    }

    /// Memory under a key of its own, which holds these bytes.
    pub(crate) fn expose(&mut self, bytes: Vec<u8>) -> At {
        let at = (self.next_stag, 0x7F00_0000_1234);
        self.next_stag += 0x0100;
        self.memory.insert(at.0, (at.1, bytes));
        at
    }

    pub(crate) fn exposed(&self, stag: u32) -> &[u8] {
        &self.memory[&stag].1
    }

    /// A command without data.
    pub(crate) fn command(&mut self, sqe: Sqe) -> Response {
        let cid = self.submit(sqe, &[]);
        self.response_to(cid)
    }

    /// A command whose data the target fetches.
    pub(crate) fn write(&mut self, sqe: Sqe, data: &[u8]) -> Response {
        let at = self.expose(data.to_vec());
        self.command(sqe.sgl(keyed_sgl(at, data.len() as u32, 0x4F)))
    }

    /// A command whose data lies behind it in the capsule.
    pub(crate) fn write_in_capsule(&mut self, sqe: Sqe, data: &[u8]) -> Response {
        let cid = self.submit(sqe.sgl(capsule_sgl(0, data.len() as u32)), data);
        self.response_to(cid)
    }

    /// A command which reads so many bytes; gives them as they are afterwards.
    pub(crate) fn read(&mut self, sqe: Sqe, length: usize) -> (Response, Vec<u8>) {
        let at = self.expose(vec![0xEE; length]);
        let response = self.command(sqe.sgl(keyed_sgl(at, length as u32, 0x4F)));
        (response, self.exposed(at.0).to_vec())
    }

    /// A command which has to succeed, and reads so many bytes.
    pub(crate) fn fetch(&mut self, sqe: Sqe, length: usize) -> Vec<u8> {
        let (response, data) = self.read(sqe, length);
        response.succeeded();
        data
    }

    /// Sends a capsule under an identifier of its own, which is returned, and lets the target work.
    pub(crate) fn submit(&mut self, sqe: Sqe, data: &[u8]) -> u16 {
        let cid = self.post(sqe, data);
        self.turn();
        cid
    }

    /// The same without letting the target work.
    pub(crate) fn post(&mut self, sqe: Sqe, data: &[u8]) -> u16 {
        let cid = self.next_cid;
        self.next_cid += 1;
        self.post_message(&[&sqe.word(2, cid).0[..], data].concat());
        cid
    }

    /// Sends a message, and lets the target work.
    pub(crate) fn send_message(&mut self, message: &[u8]) {
        self.post_message(message);
        self.turn();
    }

    fn post_message(&mut self, message: &[u8]) {
        let segment = wire::send(self.next_sequence, message);
        self.next_sequence += 1;
        self.peer.send(&fpdu(&segment, self.crc));
    }

    pub(crate) fn send_segment(&mut self, segment: &[u8]) {
        self.peer.send(&fpdu(segment, self.crc));
        self.turn();
    }

    pub(crate) fn next_sequence(&self) -> u32 {
        self.next_sequence
    }

    /// The response to a command, which has to have come.
    pub(crate) fn response_to(&mut self, cid: u16) -> Response {
        let response = self.poll(cid);
        response.unwrap_or_else(|| panic!("no response to {cid:#x}: {:02x?}", self.did))
    }

    pub(crate) fn poll(&mut self, cid: u16) -> Option<Response> {
        self.turn();
        let index = self.responses.iter().position(|response| response.cid() == cid)?;
        self.responses.remove(index)
    }

    /// Lets the target work, and answers it, until neither has anything to do.
    pub(crate) fn turn(&mut self) {
        loop {
            self.target.run();
            let bytes = self.peer.take();
            if bytes.is_empty() {
                return;
            }
            self.stream.extend(bytes);
            while let Some(segment) = take_fpdu(&mut self.stream, self.crc) {
                self.take(&segment);
            }
        }
    }

    /// The Terminate by which the connection ended: its payload.
    pub(crate) fn terminated(&mut self) -> Vec<u8> {
        self.turn();
        let Some(Did::Terminated(payload)) = self.did.last() else { panic!("no Terminate: {:?}", self.did) };
        assert!(self.peer.is_over(), "the connection still stands");
        payload.clone()
    }

    fn take(&mut self, segment: &Segment) {
        match segment.opcode() {
            WRITE => self.take_write(segment),
            READ_REQUEST if self.holds_reads => self.held_reads.push(segment.clone()),
            READ_REQUEST => self.answer_read(segment),
            SEND | SEND_INVALIDATE => {
                let entry = segment.payload().try_into().expect("a response capsule has 16 bytes");
                let stag = wire::be32(&segment.0, 2);
                let invalidated = (segment.opcode() == SEND_INVALIDATE).then_some(stag);
                let response = Response { entry, invalidated };
                self.did.push(Did::Responded { cid: response.cid() });
                self.responses.push_back(response);
            }
            TERMINATE => self.did.push(Did::Terminated(segment.payload().to_vec())),
            other => panic!("a target sends no operation {other:#x}"),
        }
    }

    fn take_write(&mut self, segment: &Segment) {
        let (stag, offset) = segment.at();
        let payload = segment.payload();
        let (base, bytes) = self.memory.get_mut(&stag).expect("a Write goes where it was told to");
        let begin = usize::try_from(offset - *base).expect("within what was exposed");
        bytes[begin..begin + payload.len()].copy_from_slice(payload);
        self.did.push(Did::Wrote { stag, bytes: payload.len() });
    }

    /// Answers an RDMA Read, in segments which fit an FPDU.
    pub(crate) fn answer_read(&mut self, segment: &Segment) {
        let (sink, length, (stag, offset)) = segment.read();
        let (base, bytes) = self.memory.get(&stag).expect("a Read goes where it was told to");
        let begin = usize::try_from(offset - base).expect("within what was exposed");
        let payload = &bytes[begin..begin + length as usize];
        let parts = payload.chunks(16 << 10);
        let mut to = sink.1;
        for (part, number) in parts.clone().zip(1..) {
            let control = if number == parts.len() { TAGGED_LAST } else { TAGGED };
            self.peer.send(&fpdu(&tagged(control, READ_RESPONSE, sink.0, to, part), self.crc));
            to += part.len() as u64;
        }
        self.did.push(Did::Read { stag, offset, length });
    }
}
