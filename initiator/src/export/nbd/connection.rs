//! One client: its requests cut into pieces of a buffer each, and the replies on their way to it.
//!
//! Bytes are moved by whoever owns the socket; here is said where they go ([`Connection::places`]) and
//! which are next ([`Connection::parts`]). Data comes straight into a leased buffer and leaves from it.
//! Without a free buffer, or with too much output waiting, no further request is read: the client waits.
use std::collections::VecDeque;
use std::sync::Arc;

use ironside_common::memory::Lease;
use ironside_common::verbs::Sge;
use slab::Slab;

use super::negotiation::{self, Agreed, Negotiation, Outcome};
use super::output::{Output, Part};
use super::reply::{self, Head};
use super::staging::Staging;
use super::transmission::{Event, Operation, Request, Transmission};
use super::{ErrorNumber, Fault, Parameters};
use crate::attach::Context;
use crate::volume::{self, IoError};

/// Pieces under way and replies not yet sent, together.
pub(super) const DEPTH: usize = 128;
/// Bytes read ahead of their meaning. Requests of small writes arrive many at a time.
const STAGING: usize = 64 << 10;
/// Answers to options which wait for the client to read them.
const TEXT_LIMIT: usize = 64 << 10;
const _: () = assert!(negotiation::INPUT_LIMIT <= STAGING);

pub(super) struct Connection {
    parameters: Arc<Parameters>,
    /// Bytes of the largest piece.
    piece_size: u32,
    phase: Phase,
    staging: Staging,
    /// What is being cut into pieces: an index into `requests`.
    current: Option<Current>,
    requests: Slab<Active>,
    pieces: Slab<Piece>,
    /// Requests whose effect still has to be made durable.
    unflushed: VecDeque<usize>,
    output: Output,
    /// Whether replies are structured.
    structured: bool,
}

enum Phase {
    Negotiation(Negotiation),
    Transmission(Transmission),
    /// Nothing more is read; what is owed is still sent.
    Ending,
    /// Nothing is sent either.
    Broken,
}

struct Current {
    request: usize,
    /// A buffer for the next piece, and how much of a write's data it holds.
    buffer: Option<(Lease, u32)>,
}

/// A request of the client until its last reply.
#[derive(Clone, Copy)]
struct Active {
    request: Request,
    /// Bytes handed to the volume so far.
    issued: u32,
    in_flight: u32,
    /// Its data has to come in order, so it runs alone and a piece at a time.
    alone: bool,
    error: Option<ErrorNumber>,
}

/// A part of a request, in the volume's hands.
struct Piece {
    request: usize,
    offset: u64,
    length: u32,
    lease: Option<Lease>,
}

/// Where input goes: first the rest of a write's data, then the staging.
pub(super) struct Places<'a> {
    pub(super) data: Option<Sge>,
    pub(super) staging: &'a mut [u8],
}

impl Connection {
    /// `piece_size`: bytes of the buffers requests are cut to.
    pub(super) fn new(parameters: Arc<Parameters>, piece_size: u32) -> Self {
        let mut output = Output::new(DEPTH);
        let phase = Phase::Negotiation(Negotiation::new(output.text()));
        Self {
            parameters,
            piece_size,
            phase,
            staging: Staging::new(STAGING),
            current: None,
            requests: Slab::with_capacity(DEPTH + 1),
            pieces: Slab::with_capacity(DEPTH),
            unflushed: VecDeque::with_capacity(DEPTH),
            output,
            structured: false,
        }
    }

    /// One whose client needs no words before its first request: it knows the export, and takes simple replies.
    pub(super) fn agreed(parameters: Arc<Parameters>, piece_size: u32) -> Self {
        let phase = Phase::Transmission(Transmission::new(Agreed::default()));
        Self { phase, output: Output::new(DEPTH), ..Self::new(parameters, piece_size) }
    }

    /// Where the next bytes go, or nothing if none are wanted for now.
    pub(super) fn places(&mut self) -> Option<Places<'_>> {
        let data = match (&self.phase, &self.current) {
            (Phase::Ending | Phase::Broken, _) => return None,
            (Phase::Transmission(transmission), Some(Current { buffer: Some((lease, filled)), .. })) => {
                let rest = lease.sge().slice(*filled, lease.sge().length - filled);
                (rest.length > 0 && transmission.payload() > 0).then_some(rest)
            }
            _ => None,
        };
        // A request which waits for a buffer or for room holds back everything behind it.
        if self.current.is_some() && data.is_none() || !self.has_room() {
            return None;
        }
        let staging = self.staging.spare();
        (data.is_some() || !staging.is_empty()).then_some(Places { data, staging })
    }

    /// `count` bytes came to the places.
    pub(super) fn received(&mut self, count: usize) {
        let mut staged = count;
        if let (Phase::Transmission(transmission), Some(Current { buffer: Some((lease, filled)), .. })) =
            (&mut self.phase, &mut self.current)
        {
            let wanted = (lease.sge().length - *filled).min(transmission.payload());
            let direct = u32::try_from(count).unwrap_or(u32::MAX).min(wanted);
            *filled += direct;
            transmission.take_payload(direct);
            staged -= direct as usize;
        }
        self.staging.filled(staged);
    }

    /// Acts on what has come. True if anything was done.
    ///
    /// # Errors
    /// When the client broke the protocol; the connection is to be [broken](Self::abandon) then.
    pub(super) fn advance(&mut self, context: &mut Context<'_>, tag: Tag) -> Result<bool, Fault> {
        let mut did = false;
        while self.step(context, tag)? {
            did = true;
        }
        Ok(did)
    }

    /// What is to be sent next, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.output.parts()
    }

    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// `count` bytes of the parts were sent.
    pub(super) fn sent(&mut self, count: usize) {
        self.output.sent(count);
    }

    /// A piece is done.
    ///
    /// # Errors
    /// When the client cannot be told in the protocol what happened.
    ///
    /// # Panics
    /// If `piece` is not in flight.
    pub(super) fn completed(&mut self, piece: u16, result: Result<(), IoError>) -> Result<(), Fault> {
        let piece = self.pieces.remove(usize::from(piece));
        let active = &mut self.requests[piece.request];
        active.in_flight -= 1;
        let error = result.err().map(|error| ErrorNumber::from_errno(error.errno()));
        if matches!(self.phase, Phase::Broken) {
            return Ok(());
        }
        if let Operation::Read { .. } = active.request.operation {
            return self.read_completed(piece, error);
        }
        active.error = active.error.or(error);
        if !active.finished() {
            return Ok(());
        }
        if active.request.operation == (Operation::Trim { fua: true }) && active.error.is_none() {
            active.request.operation = Operation::Flush;
            self.unflushed.push_back(piece.request);
            return Ok(());
        }
        let Active { request, error, .. } = self.requests.remove(piece.request);
        let head = match error {
            None => reply::done(self.structured, request.cookie),
            Some(error) => reply::failed(self.structured, request.cookie, error),
        };
        self.output.push(head, None);
        Ok(())
    }

    /// The client is gone, or has to go: nothing is read or sent any more.
    pub(super) fn abandon(&mut self) {
        self.phase = Phase::Broken;
        self.current = None;
        self.unflushed.clear();
        self.output.clear();
    }

    /// Reads nothing more; what was asked for is still answered.
    pub(super) fn end(&mut self) {
        if matches!(self.phase, Phase::Ending | Phase::Broken) {
            return;
        }
        self.phase = Phase::Ending;
        // The rest of a write's data will not come.
        let is_write = |current: &mut Current| {
            matches!(self.requests[current.request].request.operation, Operation::Write { .. })
        };
        if let Some(Current { request, .. }) = self.current.take_if(is_write) {
            let active = &mut self.requests[request];
            active.request.length = active.issued;
            active.error = Some(ErrorNumber::ShuttingDown);
            if active.in_flight == 0 {
                self.requests.remove(request);
            }
        }
    }

    /// Whether nothing is left to be done: the socket may be closed.
    pub(super) fn is_over(&self) -> bool {
        match self.phase {
            Phase::Broken => self.pieces.is_empty(),
            Phase::Ending => self.requests.is_empty() && self.output.is_empty(),
            Phase::Negotiation(_) | Phase::Transmission(_) => false,
        }
    }
}

/// Says which connection a piece belongs to: the upper bits of a request's tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Tag(pub(super) u64);

impl Tag {
    fn with(self, piece: usize) -> u64 {
        let piece = u16::try_from(piece).expect("pieces are at most DEPTH");
        self.0 << 16 | u64::from(piece)
    }

    /// The connection's tag and the piece in a request's tag.
    pub(super) const fn split(tag: u64) -> (Self, u16) {
        (Self(tag >> 16), tag as u16)
    }
}

/// How things move inside.
impl Connection {
    fn has_room(&self) -> bool {
        self.output.replies() + self.pieces.len() < DEPTH
    }

    /// One thing, if there is one to do.
    fn step(&mut self, context: &mut Context<'_>, tag: Tag) -> Result<bool, Fault> {
        if !self.has_room() {
            return Ok(false);
        }
        if !self.unflushed.is_empty() {
            return Ok(self.flush(context, tag));
        }
        if self.current.is_some() {
            return Ok(self.feed(context, tag));
        }
        if self.requests.iter().any(|(_, active)| active.alone) {
            return Ok(false);
        }
        match &mut self.phase {
            Phase::Negotiation(_) => self.negotiate(),
            Phase::Transmission(_) => self.next_request(),
            Phase::Ending | Phase::Broken => Ok(false),
        }
    }

    fn negotiate(&mut self) -> Result<bool, Fault> {
        let Phase::Negotiation(negotiation) = &mut self.phase else { return Ok(false) };
        if self.output.text().len() > TEXT_LIMIT {
            return Ok(false);
        }
        let (used, outcome) =
            negotiation.advance(&self.parameters, self.staging.bytes(), self.output.text())?;
        self.staging.used(used);
        match outcome {
            Outcome::More => return Ok(false),
            Outcome::Again => {}
            Outcome::Transmission(agreed) => {
                self.structured = agreed.structured;
                self.phase = Phase::Transmission(Transmission::new(agreed));
            }
            Outcome::Ended => self.phase = Phase::Ending,
        }
        Ok(true)
    }

    fn next_request(&mut self) -> Result<bool, Fault> {
        let Phase::Transmission(transmission) = &mut self.phase else { return Ok(false) };
        let (used, event) = transmission.next(&self.parameters, self.staging.bytes())?;
        self.staging.used(used);
        match event {
            Event::More => return Ok(false),
            Event::Refused { cookie, error } => self.refuse(cookie, error),
            Event::Disconnect => self.phase = Phase::Ending,
            Event::Request(request) => self.begin(request),
        }
        Ok(true)
    }

    fn begin(&mut self, request: Request) {
        let structured = self.structured;
        let alone = match request.operation {
            Operation::BlockStatus => {
                return self.output.push(reply::allocated(request.cookie, request.length), None);
            }
            Operation::Cache => {
                return self.output.push(reply::done(structured, request.cookie), None);
            }
            Operation::Read { whole: true } => request.length > self.piece_size,
            _ => false,
        };
        if alone && structured {
            return self.refuse(request.cookie, ErrorNumber::TooLarge);
        }
        let active = Active { request, issued: 0, in_flight: 0, alone, error: None };
        let request = self.requests.insert(active);
        self.current = Some(Current { request, buffer: None });
    }

    /// Gets the next piece of the current request going.
    fn feed(&mut self, context: &mut Context<'_>, tag: Tag) -> bool {
        let Some(mut current) = self.current.take() else { return false };
        let Active { request, issued, in_flight, alone, .. } = self.requests[current.request];
        let must_wait = alone && (self.requests.len() > 1 || in_flight > 0);
        let remaining = request.length - issued;
        let moves_data = matches!(request.operation, Operation::Read { .. } | Operation::Write { .. });
        let length = if moves_data { remaining.min(self.piece_size) } else { remaining };
        let ready = !must_wait
            && (!moves_data || self.fill(context, &mut current, request.operation, length))
            && context.volume.has_room();
        if !ready {
            self.current = Some(current);
            return false;
        }
        let lease = current.buffer.take().map(|(lease, _)| lease);
        let offset = request.offset + u64::from(issued);
        let piece = Piece { request: current.request, offset, length, lease };
        self.requests[current.request].issued += length;
        if length < remaining {
            self.current = Some(current);
        }
        self.issue(context, tag, volume_operation(request.operation), piece);
        true
    }

    /// Sees to it that the next piece has a buffer, and a write its data. True once that is so.
    fn fill(
        &mut self,
        context: &mut Context<'_>,
        current: &mut Current,
        operation: Operation,
        length: u32,
    ) -> bool {
        if current.buffer.is_none() {
            current.buffer = context.pool.lease(length).map(|lease| (lease, 0));
        }
        let Some((lease, filled)) = &mut current.buffer else { return false };
        if let (Operation::Write { .. }, Phase::Transmission(transmission)) = (operation, &mut self.phase) {
            let staged = self.staging.bytes();
            let count = (length - *filled).min(u32::try_from(staged.len()).unwrap_or(u32::MAX));
            context.memory.write(lease.sge().slice(*filled, count), &staged[..count as usize]);
            self.staging.used(count as usize);
            transmission.take_payload(count);
            *filled += count;
            return *filled == length;
        }
        true
    }

    fn flush(&mut self, context: &mut Context<'_>, tag: Tag) -> bool {
        if !context.volume.has_room() {
            return false;
        }
        let Some(request) = self.unflushed.pop_front() else { return false };
        let piece = Piece { request, offset: 0, length: 0, lease: None };
        self.issue(context, tag, volume::Operation::Flush, piece);
        true
    }

    fn issue(&mut self, context: &mut Context<'_>, tag: Tag, operation: volume::Operation, piece: Piece) {
        self.requests[piece.request].in_flight += 1;
        let (offset, length) = (piece.offset, u64::from(piece.length));
        let buffer = piece.lease.as_ref().map(Lease::sge);
        let tag = tag.with(self.pieces.insert(piece));
        let request = volume::Request { tag, operation, offset, length, buffer };
        context.volume.submit(request).expect("the volume said it had room");
    }

    fn read_completed(&mut self, piece: Piece, error: Option<ErrorNumber>) -> Result<(), Fault> {
        let structured = self.structured;
        let active = &mut self.requests[piece.request];
        let cookie = active.request.cookie;
        let first = piece.offset == active.request.offset;
        let last = active.finished();
        let (head, data) = match error {
            None if structured || first => {
                // A simple reply's head stands before all of the data.
                (reply::read(structured, cookie, piece.offset, piece.length, last), piece.lease)
            }
            None => (Head::new(), piece.lease),
            Some(error) if structured => (reply::failed_at(cookie, error, piece.offset, last), None),
            Some(error) if first => (reply::failed(false, cookie, error), None),
            Some(_) => return Err(Fault::ReadBroken),
        };
        if last || (error.is_some() && !structured) {
            self.requests.remove(piece.request);
            self.current.take_if(|current| current.request == piece.request);
        }
        self.output.push(head, data);
        Ok(())
    }

    fn refuse(&mut self, cookie: u64, error: ErrorNumber) {
        self.output.push(reply::failed(self.structured, cookie, error), None);
    }
}

fn volume_operation(operation: Operation) -> volume::Operation {
    match operation {
        Operation::Read { .. } => volume::Operation::Read,
        Operation::Write { fua } => volume::Operation::Write { fua },
        Operation::Flush | Operation::Cache | Operation::BlockStatus => volume::Operation::Flush,
        Operation::Trim { .. } => volume::Operation::Discard,
        Operation::WriteZeroes { fua, hole } => volume::Operation::WriteZeroes { unmap: hole, fua },
    }
}

impl Active {
    /// Whether no piece of it is left.
    fn finished(&self) -> bool {
        self.in_flight == 0 && self.issued == self.request.length
    }
}
