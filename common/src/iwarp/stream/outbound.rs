//! Bytes to the peer: whose turn it is, segmentation, and what completes when they have been sent.
use std::collections::VecDeque;

use super::{OutstandingRead, OwedResponse, Stream, Work, enqueue};
use crate::iwarp::crc::{CRC_LENGTH, crc32c};
use crate::iwarp::ddp::{HEADER_MAX, TaggedWire, UntaggedWire};
use crate::iwarp::fpdu::{LENGTH_FIELD, ReadRequest, Segment, SendSegment, padding};
use crate::iwarp::mpa::Rtr;
use crate::iwarp::outgoing::STAGED_AT_ONCE;
use crate::iwarp::{LocalMemory, Outgoing, StagSlot, index};
use crate::verbs::{Remote, Sge, Token};

/// Up to so many bytes of payload a copy costs less than a piece of its own.
const COPY_MAX: u32 = 256;
/// Read Responses in a row before our own work gets its turn.
const RESPONSES_IN_A_ROW: u8 = 4;
/// Bytes an FPDU has besides its payload, at most.
const OVERHEAD_MAX: usize = LENGTH_FIELD + HEADER_MAX + 3 + CRC_LENGTH;
/// Segments with room for so much end at a page: on smaller ones it would cost too much of the room.
const PAGES_FROM: u32 = 8 * PAGE;
const PAGE: u32 = 4096;
/// The key of the ready-to-receive indication, which nobody looks up.
const RTR_STAG: u32 = 1;

#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) work: VecDeque<Work>,
    pub(super) unsent: VecDeque<Emitted>,
    /// Whether we may send yet.
    pub(super) open: bool,
    /// The message under way, and how much of it has become segments.
    current: Current,
    progress: u32,
    responses_in_a_row: u8,
    send_sequence: u32,
    read_sequence: u32,
    /// Bytes which have become segments, and bytes which have been sent, since the beginning.
    emitted: u64,
    sent: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Current {
    Nothing,
    /// The front of `work`.
    Work,
    /// The front of the responses owed.
    Response,
}

/// A message whose last byte is number `end` of the stream.
#[derive(Debug)]
pub(super) struct Emitted {
    end: u64,
    pub(super) done: Done,
}

/// What is done once a message has been sent.
#[derive(Debug)]
pub(super) enum Done {
    Send(Token),
    Write,
    Response(Option<StagSlot>),
}

impl Done {
    pub(super) const fn token(&self) -> Option<Token> {
        match self {
            Self::Send(token) => Some(*token),
            Self::Write | Self::Response(_) => None,
        }
    }
}

impl Outbound {
    pub(super) fn new(send_queue: usize, ird: usize, open: bool) -> Self {
        Self {
            work: VecDeque::with_capacity(send_queue),
            unsent: VecDeque::with_capacity(send_queue + ird),
            open,
            current: Current::Nothing,
            progress: 0,
            responses_in_a_row: 0,
            send_sequence: 1,
            read_sequence: 1,
            emitted: 0,
            sent: 0,
        }
    }

    /// A segment with so much payload has been appended; the message ends with it if `done` says so.
    fn advanced(&mut self, bytes: usize, payload: u32, done: Option<Done>) {
        self.emitted += bytes as u64;
        self.progress += payload;
        if let Some(done) = done {
            enqueue(&mut self.unsent, Emitted { end: self.emitted, done });
            self.ended();
        }
    }

    /// Bytes which are no segment have been appended.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.emitted += bytes as u64;
    }

    fn ended(&mut self) {
        self.current = Current::Nothing;
        self.progress = 0;
    }
}

impl Stream {
    /// Makes segments as long as there is work and room, and gives all that waits to be sent.
    pub fn transmit(&mut self, memory: &impl LocalMemory) -> &Outgoing {
        if self.fault.is_none() && self.outbound.open {
            while self.outgoing.staged() < STAGED_AT_ONCE && self.choose() && self.emit(memory) {}
        }
        &self.outgoing
    }

    /// What waits to be sent, without adding to it.
    #[must_use]
    pub const fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// So many bytes of what [`Self::transmit`] gave have been sent, and their memory may change.
    pub fn sent(&mut self, bytes: usize) {
        self.outgoing.sent(bytes);
        self.outbound.sent += bytes as u64;
        let sent = self.outbound.sent;
        while self.outbound.unsent.front().is_some_and(|emitted| emitted.end <= sent) {
            self.messages += 1;
            match self.outbound.unsent.pop_front().expect("there is a front").done {
                Done::Send(token) => self.complete(token),
                Done::Write => self.in_use -= 1,
                Done::Response(slot) => {
                    self.responding -= 1;
                    if let Some(token) = slot.and_then(|slot| self.stags.release(slot)) {
                        self.complete(token);
                    }
                }
            }
        }
    }

    pub(super) fn outbound_is_ready(&self) -> bool {
        self.outbound.current != Current::Nothing || !self.responses.is_empty() || self.work_is_ready()
    }

    /// Work waits, and is not a Read beyond what the peer takes: that one holds back what is behind it.
    fn work_is_ready(&self) -> bool {
        match self.outbound.work.front() {
            Some(Work::Read { .. }) => {
                !self.free_sinks.is_empty() && self.reads.len() < usize::from(self.config.terms.ord)
            }
            work => work.is_some(),
        }
    }

    /// Whether there is a message to go on with, or to begin.
    fn choose(&mut self) -> bool {
        if self.outbound.current != Current::Nothing {
            return true;
        }
        let work = self.work_is_ready();
        let respond =
            !self.responses.is_empty() && (!work || self.outbound.responses_in_a_row < RESPONSES_IN_A_ROW);
        self.outbound.responses_in_a_row = if respond { self.outbound.responses_in_a_row + 1 } else { 0 };
        self.outbound.current = match (respond, work) {
            (true, _) => Current::Response,
            (false, true) => Current::Work,
            (false, false) => return false,
        };
        true
    }

    /// Appends the next segment of the current message; false if there is no room for it.
    fn emit(&mut self, memory: &impl LocalMemory) -> bool {
        match self.outbound.current {
            Current::Response => self.emit_response(memory),
            Current::Work | Current::Nothing => self.emit_work(memory),
        }
    }

    fn emit_response(&mut self, memory: &impl LocalMemory) -> bool {
        let Some(&OwedResponse { sink, source }) = self.responses.front() else { return false };
        let progress = self.outbound.progress;
        let data = source.map(|(_, source)| source.slice(progress, source.length - progress));
        let (data, last) = cut(data, self.tagged_max());
        let to = Remote { address: sink.address.wrapping_add(progress.into()), ..sink };
        let segment = Segment::ReadResponse { to, last };
        let Some(bytes) = self.append(&segment, &[], data, memory) else { return false };
        let done = last.then_some(Done::Response(source.map(|(slot, _)| slot)));
        self.outbound.advanced(bytes, length(data), done);
        if last {
            self.responses.pop_front();
        }
        true
    }

    fn emit_work(&mut self, memory: &impl LocalMemory) -> bool {
        match self.outbound.work.front() {
            None => false,
            Some(Work::Send { .. }) => self.emit_send(memory),
            Some(&Work::Write { from, to }) => self.emit_write(from, to, memory),
            Some(&Work::Read { token, from, into }) => self.emit_read(token, from, into, memory),
            Some(&Work::Register { slot, remote, memory, access }) => {
                self.stags.register(slot, remote, memory, access);
                self.in_use -= 1;
                self.work_ended()
            }
            Some(&Work::Invalidate { token, key }) => {
                self.invalidate(key, token);
                self.work_ended()
            }
        }
    }

    fn work_ended(&mut self) -> bool {
        self.outbound.work.pop_front();
        self.outbound.ended();
        true
    }

    fn emit_write(&mut self, from: Sge, to: Remote, memory: &impl LocalMemory) -> bool {
        let progress = self.outbound.progress;
        let (data, last) = cut(Some(from.slice(progress, from.length - progress)), self.tagged_max());
        let to = Remote { address: to.address.wrapping_add(progress.into()), ..to };
        let Some(bytes) = self.append(&Segment::Write { to, last }, &[], data, memory) else { return false };
        self.outbound.advanced(bytes, length(data), last.then_some(Done::Write));
        if last {
            self.outbound.work.pop_front();
        }
        true
    }

    fn emit_send(&mut self, memory: &impl LocalMemory) -> bool {
        let max = self.untagged_max();
        let Some(Work::Send { token, head, data, invalidate, solicited }) = self.outbound.work.front() else {
            return false;
        };
        let (token, progress) = (*token, self.outbound.progress);
        let head_length = u32::try_from(head.len()).unwrap_or(u32::MAX);
        let head_done = progress.min(head_length);
        // The head is shorter than the smallest segment.
        let head_now = &head[index(head_done)..];
        let data_done = progress - head_done;
        let data = data.map(|data| data.slice(data_done, data.length - data_done));
        let (data, last) = cut(data, max - (head_length - head_done));
        let segment = Segment::Send(SendSegment {
            sequence: self.outbound.send_sequence,
            offset: progress,
            invalidate: *invalidate,
            solicited: *solicited,
            last,
        });
        let crc = self.config.terms.crc;
        let Some(bytes) = append(&mut self.outgoing, crc, &segment, head_now, data, memory) else {
            return false;
        };
        let payload = head_length - head_done + length(data);
        self.outbound.advanced(bytes, payload, last.then_some(Done::Send(token)));
        if last {
            self.outbound.send_sequence = self.outbound.send_sequence.wrapping_add(1);
            self.outbound.work.pop_front();
        }
        true
    }

    fn emit_read(&mut self, token: Token, from: Remote, into: Sge, memory: &impl LocalMemory) -> bool {
        if !self.outgoing.has_room(OVERHEAD_MAX) {
            return false;
        }
        let slot = self.free_sinks.pop().expect("work_is_ready looked");
        let sink = self.stags.prepare(slot, into);
        self.stags.register_sink(slot, sink, into);
        self.request_read(Some((token, slot)), sink, into, from, memory);
        self.work_ended()
    }

    fn request_read(
        &mut self,
        work: Option<(Token, StagSlot)>,
        sink: Remote,
        into: Sge,
        source: Remote,
        memory: &impl LocalMemory,
    ) {
        let sequence = self.outbound.read_sequence;
        let segment = Segment::ReadRequest(ReadRequest { sequence, sink, length: into.length, source });
        let bytes = self.append(&segment, &[], None, memory).expect("the caller looked for room");
        self.outbound.advanced(bytes, 0, None);
        self.outbound.read_sequence = sequence.wrapping_add(1);
        self.reads.push_back(OutstandingRead { work, sink, into, received: 0 });
    }

    /// The first FPDU of the active side, if the passive side wants to see one before it speaks.
    pub(super) fn indicate_ready(&mut self, rtr: Rtr) {
        let nothing = Sge { address: 0, length: 0, lkey: 0 };
        let nowhere = Remote { address: 0, rkey: 0 };
        let rtr_stag = Remote { address: 0, rkey: RTR_STAG };
        let segment = match rtr {
            Rtr::Read => return self.request_read(None, nowhere, nothing, rtr_stag, &NoMemory),
            Rtr::Write => Segment::Write { to: rtr_stag, last: true },
            Rtr::Send => {
                self.outbound.send_sequence = 2;
                let (sequence, offset, last) = (1, 0, true);
                Segment::Send(SendSegment { sequence, offset, invalidate: None, solicited: false, last })
            }
        };
        let bytes = self.append(&segment, &[], None, &NoMemory).expect("nothing was sent before");
        self.outbound.advanced(bytes, 0, None);
    }

    /// Says nothing, by an RDMA Write of no bytes, which no peer looks up. Not within a message, and not if
    /// bytes wait already.
    pub fn nudge(&mut self) {
        let may = self.outbound.open && self.outbound.current == Current::Nothing && self.outgoing.is_empty();
        if may && self.fault.is_none() {
            let segment = Segment::Write { to: Remote { address: 0, rkey: RTR_STAG }, last: true };
            let bytes = self.append(&segment, &[], None, &NoMemory).expect("nothing waits");
            self.outbound.advanced(bytes, 0, None);
        }
    }

    fn append(
        &mut self,
        segment: &Segment,
        head: &[u8],
        data: Option<Sge>,
        memory: &impl LocalMemory,
    ) -> Option<usize> {
        append(&mut self.outgoing, self.config.terms.crc, segment, head, data, memory)
    }

    fn tagged_max(&self) -> u32 {
        payload_max(self.config.ulpdu_max, size_of::<TaggedWire>())
    }

    fn untagged_max(&self) -> u32 {
        payload_max(self.config.ulpdu_max, size_of::<UntaggedWire>())
    }
}

/// For segments without payload.
struct NoMemory;

impl LocalMemory for NoMemory {
    fn write(&self, _: Sge, _: &[u8]) {}
    fn read(&self, _: Sge, _: &mut [u8]) {}
}

/// Payload of a segment that is not the last: it needs no padding, and a large one leaves the next to begin
/// at a page, as copies like it best.
fn payload_max(ulpdu_max: u16, header: usize) -> u32 {
    let max = u32::from(ulpdu_max) - u32::try_from(header).expect("a header is small");
    let alignment = if max >= PAGES_FROM { PAGE } else { 8 };
    max & !(alignment - 1)
}

/// The first `max` bytes, and whether that is all.
fn cut(data: Option<Sge>, max: u32) -> (Option<Sge>, bool) {
    match data {
        Some(data) if data.length > max => (Some(data.slice(0, max)), false),
        all => (all, true),
    }
}

fn length(data: Option<Sge>) -> u32 {
    data.map_or(0, |data| data.length)
}

/// Appends one FPDU and says how long it is; nothing, if there is no room for it.
fn append(
    outgoing: &mut Outgoing,
    crc: bool,
    segment: &Segment,
    head: &[u8],
    data: Option<Sge>,
    memory: &impl LocalMemory,
) -> Option<usize> {
    // With CRC everything is copied: the bytes of foreign memory may change under a running sum.
    let data = data.filter(|data| data.length > 0);
    let copied = data.filter(|data| crc || data.length <= COPY_MAX);
    if !outgoing.has_room(OVERHEAD_MAX + head.len() + index(length(copied))) {
        return None;
    }
    let header_length = segment.header_length();
    let ulpdu_length = header_length + head.len() + index(length(data));
    let length_field = u16::try_from(ulpdu_length).expect("segments are cut to size");
    let padding = padding(length_field);

    let front = outgoing.stage(LENGTH_FIELD + header_length + head.len());
    front[..LENGTH_FIELD].copy_from_slice(&length_field.to_be_bytes());
    segment.write_header(&mut front[LENGTH_FIELD..LENGTH_FIELD + header_length]);
    front[LENGTH_FIELD + header_length..].copy_from_slice(head);
    match (copied, data) {
        (Some(data), _) => memory.read(data, outgoing.stage(index(data.length))),
        (None, Some(data)) => outgoing.place(data),
        (None, None) => {}
    }
    outgoing.stage(padding).fill(0);
    let sum = if crc {
        crc32c(outgoing.staged_last(LENGTH_FIELD + ulpdu_length + padding))
    } else {
        [0; CRC_LENGTH]
    };
    outgoing.stage(CRC_LENGTH).copy_from_slice(&sum);
    Some(LENGTH_FIELD + ulpdu_length + padding + CRC_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_need_no_padding_and_large_ones_end_at_a_page() {
        let tagged = size_of::<TaggedWire>();
        assert_eq!(payload_max(1454, tagged), 1440);
        assert_eq!(payload_max(8954, tagged), 8936);
        assert_eq!(payload_max(u16::MAX, tagged), 60 << 10);
        assert_eq!(payload_max(u16::MAX, size_of::<UntaggedWire>()), 60 << 10);
    }
}
