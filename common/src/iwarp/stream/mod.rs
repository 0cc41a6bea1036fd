//! One side of an iWARP stream in full operation: bytes in, placements and completions out; work in,
//! segments out.
//!
//! Everything is sized when it is made, so nothing is allocated for a segment. The stream checks what an
//! adapter would: keys, bounds, rights, order, depths. Whatever breaks it becomes a [`Fault`]: then one
//! Terminate leaves, and everything posted completes as flushed.
mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::mpa::{FRAME_MAX, Rtr, Terms};
use super::stag::Invalidation;
use super::terminate::Offending;
use super::{Fault, LocalMemory, Outgoing, StagSlot, StagTable, Staging};
use crate::verbs::{Access, Remote, Sge, Token, WcStatus};
use inbound::Inbound;
use outbound::{Emitted, Outbound};

/// Which side of the start-up this was. The responder holds its tongue until it has heard the initiator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    Initiator,
    Responder,
}

/// What a stream begins with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub role: Role,
    pub terms: Terms,
    /// The largest ULPDU to send.
    pub ulpdu_max: u16,
    /// Receive buffers that may be posted.
    pub receives: u16,
    /// Work requests that may be posted and not yet completed.
    pub send_queue: u32,
    /// Where the unpredictable part of keys comes from.
    pub seed: u64,
}

/// The smallest ULPDU we agree to send: a Read Request never comes in pieces.
pub const ULPDU_MIN: u16 = 128;

/// Bytes a Send may bring along by itself.
pub const HEAD_MAX: usize = 64;

/// A work request.
#[derive(Clone, Debug)]
pub enum Work {
    /// A message: its own bytes, then those of `data`.
    Send {
        token: Token,
        head: ArrayVec<u8, HEAD_MAX>,
        data: Option<Sge>,
        invalidate: Option<u32>,
        solicited: bool,
    },
    /// RDMA Write. It completes silently; the Send behind it stands for both.
    Write { from: Sge, to: Remote },
    /// RDMA Read.
    Read { token: Token, from: Remote, into: Sge },
    /// Fast registration of an entry, under what [`Stream::prepare`] said. It completes silently.
    Register { slot: StagSlot, remote: Remote, memory: Sge, access: Access },
    /// Takes a key back.
    Invalidate { token: Token, key: u32 },
}

/// What a stream has to say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StreamEvent {
    /// A message fills `length` bytes of receive buffer `id`, which is the caller's again.
    Received { id: u32, length: u32, invalidated: Option<u32> },
    /// Work is done. Reads and invalidations overtake, and are overtaken by, other work.
    Completed { token: Token, status: WcStatus },
}

/// A Read of ours which has not been answered whole.
#[derive(Clone, Copy, Debug)]
struct OutstandingRead {
    /// Nothing, if it is only the ready-to-receive indication.
    work: Option<(Token, StagSlot)>,
    sink: Remote,
    into: Sge,
    received: u32,
}

/// A Read of the peer's which we have not begun or not ended to answer.
#[derive(Clone, Copy, Debug)]
struct OwedResponse {
    sink: Remote,
    /// Nothing, if it asks for nothing.
    source: Option<(StagSlot, Sge)>,
}

/// One side of a connection.
#[derive(Debug)]
pub struct Stream {
    config: Config,
    stags: StagTable,
    /// The entries of our own Reads' sinks, free ones; as many as Reads may be outstanding.
    free_sinks: Vec<StagSlot>,
    reads: VecDeque<OutstandingRead>,
    responses: VecDeque<OwedResponse>,
    /// Responses owed or not yet sent whole.
    responding: u32,
    /// Work posted and not yet completed.
    in_use: u32,
    inbound: Inbound,
    outbound: Outbound,
    outgoing: Outgoing,
    events: VecDeque<StreamEvent>,
    fault: Option<Fault>,
    /// Reads which were answered whole, and messages which were sent whole, since the beginning.
    answers: u64,
    messages: u64,
}

/// What a stream stages without room being lent: the Reply, an indication that it is ready, a Terminate.
const STAGED_BY_ITSELF: usize = FRAME_MAX + 2 * FPDU_OF_ITSELF;
const FPDU_OF_ITSELF: usize = 128;
const PIECES_BY_ITSELF: usize = 8;

impl Stream {
    /// A stream at the beginning of full operation.
    ///
    /// # Panics
    /// If `ulpdu_max` is below [`ULPDU_MIN`].
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.ulpdu_max >= ULPDU_MIN, "segments too small to carry anything");
        let Terms { ird, ord, rtr, .. } = config.terms;
        let mut stags = StagTable::new(config.seed, usize::from(ord) + usize::from(config.receives));
        let free_sinks = (0..ord).map(|_| stags.allocate()).collect();
        let send_queue = usize::try_from(config.send_queue).expect("a send queue fits into memory");
        let mut stream = Self {
            config,
            stags,
            free_sinks,
            reads: VecDeque::with_capacity(usize::from(ord) + 1),
            responses: VecDeque::with_capacity(ird.into()),
            responding: 0,
            in_use: 0,
            inbound: Inbound::new(config.receives, config.role == Role::Responder && rtr == Some(Rtr::Send)),
            outbound: Outbound::new(send_queue, ird.into(), config.role == Role::Initiator),
            outgoing: Outgoing::new(Staging::of(STAGED_BY_ITSELF, PIECES_BY_ITSELF)),
            events: VecDeque::with_capacity(usize::from(config.receives) + 2 * send_queue),
            fault: None,
            answers: 0,
            messages: 0,
        };
        if let (Role::Initiator, Some(rtr)) = (config.role, rtr) {
            stream.indicate_ready(rtr);
        }
        stream
    }

    /// What was agreed on.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.config.terms
    }

    /// Why the stream has ended, if it has.
    #[must_use]
    pub const fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Gives the stream a buffer for one message. Nothing happens on a broken stream.
    ///
    /// # Panics
    /// If there are more than `Config::receives`.
    pub fn post_receive(&mut self, id: u32, buffer: Sge) {
        if self.fault.is_none() {
            self.inbound.post_receive(id, buffer, self.config.receives);
        }
    }

    /// Makes one more entry for fast registration.
    pub fn allocate(&mut self) -> StagSlot {
        self.stags.allocate()
    }

    /// The key and offset under which `memory` will be known to the peer once registered.
    #[must_use]
    pub fn prepare(&mut self, slot: StagSlot, memory: Sge) -> Remote {
        self.stags.prepare(slot, memory)
    }

    /// Lets the peer use `memory` as `remote` from now on, without work, in both directions if none is named.
    /// Only work of ours ends it: [`Work::Invalidate`].
    ///
    /// # Panics
    /// If the entry is in use, or `remote` is not its own.
    pub fn expose(&mut self, slot: StagSlot, remote: Remote, memory: Sge, access: Option<Access>) {
        self.stags.expose(slot, remote, memory, access);
    }

    /// Posts work, which completes at once and flushed if the stream has broken.
    ///
    /// # Panics
    /// If more is posted than `Config::send_queue`.
    pub fn post(&mut self, work: Work) {
        if self.fault.is_some() {
            return flush(&mut self.events, work.token());
        }
        self.in_use += 1;
        assert!(self.in_use <= self.config.send_queue, "more work than the send queue has room for");
        enqueue(&mut self.outbound.work, work);
    }

    /// The next thing that happened, oldest first.
    pub fn poll(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    /// Whether Reads of ours wait for their answers.
    #[must_use]
    pub fn awaits_response(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Reads of ours which have been answered whole: the answers come in order, so with each of these it is
    /// another Read that waits.
    #[must_use]
    pub const fn answers(&self) -> u64 {
        self.answers
    }

    /// Messages which have been sent whole.
    #[must_use]
    pub const fn messages(&self) -> u64 {
        self.messages
    }

    /// Whether the peer reaches any of a region.
    #[must_use]
    pub fn exposes(&self, lkey: u32) -> bool {
        self.stags.exposes(lkey)
    }

    /// Whether there are bytes which could be sent now.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.outgoing.is_empty() || self.outbound.open && self.outbound_is_ready()
    }

    /// Puts the MPA Reply in front of everything that will be sent.
    ///
    /// # Panics
    /// If something was to be sent before.
    pub fn preface(&mut self, frame: &[u8]) {
        assert!(self.outgoing.is_empty(), "the Reply comes first");
        self.outgoing.preface(frame);
        self.outbound.skip(frame.len());
    }

    /// Whether there is something to send, and no room to prepare it in: see [`Self::lend`].
    #[must_use]
    pub fn wants_room(&self) -> bool {
        self.outgoing.wants_room() && self.has_output()
    }

    /// Lends room in which [`Self::transmit`] can prepare what is to be sent.
    ///
    /// # Panics
    /// If it was not wanted.
    pub fn lend(&mut self, staging: Staging) {
        self.outgoing.lend(staging);
    }

    /// Whether something is lent.
    #[must_use]
    pub const fn is_lent_room(&self) -> bool {
        self.outgoing.is_lent_room()
    }

    /// What was lent, once nothing waits in it any more.
    pub fn give_back(&mut self) -> Option<Staging> {
        self.outgoing.give_back()
    }

    /// What is left to send when the stream has ended.
    pub fn take_outgoing(&mut self) -> Outgoing {
        std::mem::replace(&mut self.outgoing, Outgoing::new(Staging::of(0, 0)))
    }

    /// Whether every receive is posted and untouched: their memory may be taken for something else and come back as zeroes.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.fault.is_none() && self.inbound.is_at_rest(self.config.receives)
    }

    /// Ends the stream on our own wish: an FPDU begun is kept to be sent whole, nothing else.
    pub fn close(&mut self, memory: &impl LocalMemory) {
        self.fail(Fault::Closed, None, memory);
    }

    /// The end: one Terminate, if it is the peer who has to be told, and everything comes back flushed.
    fn fail(&mut self, fault: Fault, offending: Option<&Offending>, memory: &impl LocalMemory) {
        if self.fault.is_some() {
            return;
        }
        self.fault = Some(fault);
        self.outgoing.settle(memory);
        if let Some(reason) = fault.reason() {
            let fpdu = reason.fpdu(offending, self.config.terms.crc);
            if self.outgoing.has_room(fpdu.len()) {
                self.outgoing.stage(fpdu.len()).copy_from_slice(&fpdu);
            }
        }
        self.flush_all();
    }

    fn flush_all(&mut self) {
        let events = &mut self.events;
        for Emitted { done, .. } in self.outbound.unsent.drain(..) {
            flush(events, done.token());
        }
        for work in self.outbound.work.drain(..) {
            flush(events, work.token());
        }
        for read in self.reads.drain(..) {
            flush(events, read.work.map(|(token, _)| token));
        }
        for token in self.stags.clear() {
            flush(events, Some(token));
        }
        self.responses.clear();
        self.inbound.clear();
        (self.responding, self.in_use) = (0, 0);
    }

    fn complete(&mut self, token: Token) {
        self.in_use -= 1;
        enqueue(&mut self.events, StreamEvent::Completed { token, status: WcStatus::Success });
    }

    fn invalidate(&mut self, key: u32, token: Token) {
        if self.stags.invalidate(key, token) == Invalidation::Done {
            self.complete(token);
        }
    }
}

/// At the end of a queue. An empty one begins anew at its first place, so that little under way touches little memory.
fn enqueue<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.is_empty() {
        queue.clear();
    }
    queue.push_back(item);
}

fn flush(events: &mut VecDeque<StreamEvent>, token: Option<Token>) {
    if let Some(token) = token {
        events.push_back(StreamEvent::Completed { token, status: WcStatus::Flushed });
    }
}

impl Work {
    const fn token(&self) -> Option<Token> {
        match self {
            Self::Send { token, .. } | Self::Read { token, .. } | Self::Invalidate { token, .. } => {
                Some(*token)
            }
            Self::Write { .. } | Self::Register { .. } => None,
        }
    }
}
