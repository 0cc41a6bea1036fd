//! Two streams joined by pipes which split and hold back as the bytes say, and work posted on both sides:
//! each piece of work completes once, and every message and every byte arrives where it was sent.
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use ironside_common::iwarp::mpa::{Rtr, Terms};
use ironside_common::iwarp::{Config, Role, Staging, Stream, StreamEvent, Work};
use ironside_common::verbs::{Access, Kind, Remote, Token, WcStatus};

use super::{Choices, Place};

const RECEIVE: u32 = 4096;
const RECEIVES: u16 = 4;
const DEPTH: u16 = 2;
const SEND_QUEUE: u32 = 12;
/// Work of a side which completes, under way at once; beside each there may be a silent Write.
const UNDER_WAY: u32 = 5;
/// Where in each side's memory what lies.
const SOURCE: u32 = 0x1_0000;
const EXPOSED: u32 = 0x2_0000;
const SINK: u32 = 0x4_0000;
const SPAN: u32 = 0x1_0000;

struct Side {
    role: Role,
    stream: Stream,
    place: Place,
    /// Bytes under way to this side.
    arriving: VecDeque<u8>,
    /// What arrived and was not yet taken.
    pending: Vec<u8>,
    /// The key of this side's exposed memory, once a message behind the registration has told the peer.
    told: Option<Remote>,
    exposed: Remote,
    posted: u32,
    completed: u32,
    /// Reads of ours under way.
    reading: u16,
    sent: VecDeque<Vec<u8>>,
    /// Messages the peer may still send before a receive is posted again.
    credits: u16,
}

/// Runs as many steps as there are choices, then lets everything come to rest.
pub fn pair(data: &[u8]) {
    let mut choices = Choices::new(data);
    let crc = choices.coin();
    let rtr = [None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)][usize::from(choices.byte() & 3)];
    let ulpdu_max = 128 + u16::try_from(choices.below(8000)).expect("less than 8000");
    let terms = Terms { crc, ird: DEPTH, ord: DEPTH, rtr };
    let mut sides = [Role::Initiator, Role::Responder].map(|role| Side::new(role, terms, ulpdu_max));
    while !choices.is_empty() {
        let at = usize::from(choices.coin());
        let peer = sides[1 - at].told;
        match choices.byte() % 5 {
            0 => sides[at].send(&mut choices),
            1 => peer.into_iter().for_each(|peer| sides[at].write(peer, &mut choices)),
            2 => peer.into_iter().for_each(|peer| sides[at].read(peer, &mut choices)),
            3 => transmit(&mut sides, at, usize::try_from(choices.below(3000)).expect("a small number")),
            _ => deliver(&mut sides, at, usize::try_from(choices.below(3000)).expect("a small number")),
        }
    }
    // Without a ready-to-receive indication the responder holds its tongue until the initiator has spoken.
    sides[0].send(&mut choices);
    for _ in 0..2 * (SEND_QUEUE + u32::from(DEPTH)) {
        for at in [0, 1] {
            transmit(&mut sides, at, usize::MAX);
            deliver(&mut sides, 1 - at, usize::MAX);
        }
    }
    for (at, side) in sides.iter().enumerate() {
        assert_eq!(side.stream.fault(), None, "nothing was wrong");
        assert_eq!(side.posted, side.completed, "side {at} has work which never completed");
        assert!(sides[1 - at].sent.is_empty(), "a message never arrived");
    }
}

impl Side {
    fn new(role: Role, terms: Terms, ulpdu_max: u16) -> Self {
        let place = Place::new(0x8_0000);
        let config = Config { role, terms, ulpdu_max, receives: RECEIVES, send_queue: SEND_QUEUE, seed: 7 };
        let mut stream = Stream::new(config);
        for id in 0..RECEIVES {
            stream.post_receive(id.into(), place.sge(u32::from(id) * RECEIVE, RECEIVE));
        }
        let pattern: Vec<u8> = (0..SPAN).map(|byte| (byte % 251) as u8).collect();
        place.memory.write(place.sge(SOURCE, SPAN), &pattern);
        let access = if role == Role::Initiator { Access::RemoteRead } else { Access::RemoteWrite };
        place.memory.write(place.sge(EXPOSED, SPAN), &pattern);
        let memory = place.sge(EXPOSED, SPAN);
        let slot = stream.allocate();
        let exposed = stream.prepare(slot, memory);
        stream.post(Work::Register { slot, remote: exposed, memory, access });
        let (arriving, pending, sent) = (VecDeque::new(), Vec::new(), VecDeque::new());
        let (posted, completed, reading, credits) = (0, 0, 0, RECEIVES);
        Self {
            role,
            stream,
            place,
            arriving,
            pending,
            told: None,
            exposed,
            posted,
            completed,
            reading,
            sent,
            credits,
        }
    }

    fn has_room(&self) -> bool {
        self.posted - self.completed < UNDER_WAY
    }

    fn token(&mut self) -> Token {
        self.posted += 1;
        Token { kind: Kind::Command, generation: 0, qpair: 0, slot: 0 }
    }

    fn send(&mut self, choices: &mut Choices<'_>) {
        if !self.has_room() || self.credits == 0 {
            return;
        }
        self.credits -= 1;
        let length = choices.below(RECEIVE - 64);
        let offset = choices.below(SPAN - RECEIVE);
        let head: ArrayVec<u8, 64> = (0..choices.byte() % 65).collect();
        let mut message = head.to_vec();
        message.extend((offset..offset + length).map(|byte| (byte % 251) as u8));
        self.sent.push_back(message);
        let data = (length > 0).then(|| self.place.sge(SOURCE + offset, length));
        let (token, solicited) = (self.token(), choices.coin());
        self.stream.post(Work::Send { token, head, data, invalidate: None, solicited });
    }

    /// Only the responder's memory may be written. A message follows, which stands for both.
    fn write(&mut self, peer: Remote, choices: &mut Choices<'_>) {
        if self.role == Role::Responder || !self.has_room() || self.credits == 0 {
            return;
        }
        let (length, offset) = (choices.below(SPAN / 2), choices.below(SPAN / 2));
        let to = Remote { address: peer.address + u64::from(offset), ..peer };
        // The pattern again, at the place where it already is: what lands elsewhere shows.
        self.stream.post(Work::Write { from: self.place.sge(SOURCE + offset, length), to });
        self.send(choices);
    }

    /// Only the initiator's memory may be read.
    fn read(&mut self, peer: Remote, choices: &mut Choices<'_>) {
        if self.role == Role::Initiator || !self.has_room() || self.reading == DEPTH {
            return;
        }
        self.reading += 1;
        let (length, offset) = (choices.below(SPAN / 2), choices.below(SPAN / 2));
        let from = Remote { address: peer.address + u64::from(offset), ..peer };
        let into = self.place.sge(SINK + offset, length);
        let token = Token { kind: Kind::Fetch, ..self.token() };
        self.stream.post(Work::Read { token, from, into });
    }
}

/// Moves bytes from one side's stream onto the way.
fn transmit(sides: &mut [Side; 2], at: usize, most: usize) {
    let [initiator, responder] = sides;
    let (side, peer) = if at == 0 { (initiator, responder) } else { (responder, initiator) };
    if side.stream.wants_room() {
        side.stream.lend(Staging::new());
    }
    let bytes = side.stream.transmit(&side.place).first(most, &side.place);
    side.stream.sent(bytes.len());
    peer.arriving.extend(bytes);
    drain(sides, at);
}

/// Hands bytes which are on the way to a side's stream.
fn deliver(sides: &mut [Side; 2], at: usize, most: usize) {
    let side = &mut sides[at];
    let now = side.arriving.len().min(most);
    side.pending.extend(side.arriving.drain(..now));
    loop {
        let taken = side.stream.receive(&side.pending, &side.place).expect("the peer did nothing wrong");
        side.pending.drain(..taken);
        let direct = side.stream.direct().filter(|_| !side.pending.is_empty());
        let Some(place) = direct else { break };
        let length = side.pending.len().min(usize::try_from(place.length).expect("a payload is small"));
        let piece: Vec<u8> = side.pending.drain(..length).collect();
        let length = u32::try_from(length).expect("a payload is small");
        side.place.memory.write(place.slice(0, length), &piece);
        side.stream.received_direct(length);
    }
    drain(sides, at);
}

fn drain(sides: &mut [Side; 2], at: usize) {
    while let Some(event) = sides[at].stream.poll() {
        match event {
            StreamEvent::Completed { token, status } => {
                assert_eq!(status, WcStatus::Success);
                sides[at].completed += 1;
                sides[at].reading -= u16::from(token.kind == Kind::Fetch);
            }
            StreamEvent::Received { id, length, .. } => {
                let expected = sides[1 - at].sent.pop_front().expect("a message nobody sent");
                let buffer = sides[at].place.sge(id * RECEIVE, RECEIVE);
                let mut found = vec![0; expected.len()];
                assert_eq!(usize::try_from(length), Ok(expected.len()), "a message of another length");
                sides[at].place.memory.read(buffer.slice(0, length), &mut found);
                assert_eq!(found, expected, "a message of other bytes");
                sides[at].stream.post_receive(id, buffer);
                sides[1 - at].credits += 1;
                sides[1 - at].told = Some(sides[1 - at].exposed);
            }
        }
    }
}
