//! Bytes from the peer: framing, checks, placement, delivery.
use super::{OutstandingRead, OwedResponse, Stream, StreamEvent, enqueue};
use crate::iwarp::crc::{CRC_LENGTH, crc32c};
use crate::iwarp::ddp::HEADER_MAX;
use crate::iwarp::fpdu::{Fpdu, LENGTH_FIELD, ReadRequest, Segment, SendSegment, fpdu_length};
use crate::iwarp::terminate::{Offending, Reason};
use crate::iwarp::{Fault, LocalMemory, StagError, index};
use crate::verbs::{Access, Remote, Sge};

/// From how many bytes on it pays to receive the rest of a payload straight into its place.
const DIRECT_MIN: u32 = 2048;

#[derive(Debug)]
pub(super) struct Inbound {
    state: State,
    recent_payload: u32,
    /// The one posted last is taken first: little under way touches little memory, and finds it in the cache.
    receives: Vec<(u32, Sge)>,
    message: Option<Message>,
    /// The number of the next message on the Send and on the Read Request queue.
    send_sequence: u32,
    read_sequence: u32,
    /// Whether a zero-length Send may come first which nobody shall see.
    swallows_send: bool,
}

/// Where in an FPDU the stream stands. With CRC it always stands between two of them.
#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    Payload { fpdu: Fpdu, place: Sge },
    Trailer { fpdu: Fpdu, left: usize },
}

/// A fault, and the segment which caused it, where one did.
struct Broken {
    fault: Fault,
    by: Option<Fpdu>,
}

impl Broken {
    fn by(fpdu: &Fpdu) -> impl Fn(Fault) -> Self {
        move |fault| Self { fault, by: Some(*fpdu) }
    }
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self { fault, by: None }
    }
}

/// A Send message of which the last segment has not come yet.
#[derive(Clone, Copy, Debug)]
struct Message {
    buffer: Option<(u32, Sge)>,
    received: u32,
    invalidate: Option<u32>,
    solicited: bool,
}

impl Inbound {
    pub(super) fn new(receives: u16, swallows_send: bool) -> Self {
        Self {
            state: State::Header,
            recent_payload: 0,
            receives: Vec::with_capacity(receives.into()),
            message: None,
            send_sequence: 1,
            read_sequence: 1,
            swallows_send,
        }
    }

    pub(super) fn post_receive(&mut self, id: u32, buffer: Sge, limit: u16) {
        assert!(self.receives.len() < limit.into(), "more receives than the queue has room for");
        self.receives.push((id, buffer));
    }

    /// Whether no message has a receive, nor so much as the beginning of one.
    pub(super) const fn is_at_rest(&self, receives: u16) -> bool {
        self.message.is_none() && self.receives.len() == receives as usize
    }

    pub(super) fn clear(&mut self) {
        self.state = State::Header;
        self.receives.clear();
        self.message = None;
    }
}

impl Stream {
    /// Takes bytes from the peer, and says how many: less than `input` holds if an FPDU is not there in
    /// sufficient part. The rest has to be offered again, with more behind it.
    ///
    /// A broken stream takes everything and looks at nothing.
    ///
    /// # Errors
    /// What broke the stream now. [`Self::transmit`] has a Terminate if the peer has to be told.
    pub fn receive(&mut self, input: &[u8], memory: &impl LocalMemory) -> Result<usize, Fault> {
        if self.fault.is_some() {
            return Ok(input.len());
        }
        let taken = if self.config.terms.crc {
            self.receive_verified(input, memory)
        } else {
            self.receive_plain(input, memory)
        };
        taken.map_err(|Broken { fault, by }| {
            self.fail(fault, by.map(|fpdu| offending(&fpdu)).as_ref(), memory);
            fault
        })
    }

    /// Where the next bytes of the stream belong, if it is worth receiving them there directly.
    #[must_use]
    pub fn direct(&self) -> Option<Sge> {
        match self.inbound.state {
            State::Payload { place, .. } if place.length >= DIRECT_MIN => Some(place),
            _ => None,
        }
    }

    /// How large payloads are of late, in bytes, without CRC: that of the last segment, or half of what it
    /// was before. One small message between two large ones does not change it much.
    #[must_use]
    pub const fn recent_payload(&self) -> u32 {
        self.inbound.recent_payload
    }

    /// So many bytes were received where [`Self::direct`] said.
    ///
    /// # Panics
    /// If that is more than was asked for.
    pub fn received_direct(&mut self, bytes: u32) {
        let State::Payload { fpdu, place } = self.inbound.state else {
            assert_eq!(bytes, 0, "nothing was to be received directly");
            return;
        };
        self.inbound.placed(fpdu, place, bytes);
    }

    /// Without CRC: bytes are placed as they come.
    fn receive_plain(&mut self, input: &[u8], memory: &impl LocalMemory) -> Result<usize, Broken> {
        let mut rest = input;
        loop {
            match self.inbound.state {
                State::Header => {
                    let Some(fpdu) = self.begin(rest)? else { return Ok(input.len() - rest.len()) };
                    rest = &rest[fpdu.header_length()..];
                }
                State::Payload { fpdu, place } => {
                    let there = u32::try_from(rest.len()).unwrap_or(u32::MAX).min(place.length);
                    let (payload, behind) = rest.split_at(index(there));
                    if there == 0 {
                        return Ok(input.len());
                    }
                    memory.write(place, payload);
                    self.inbound.placed(fpdu, place, there);
                    rest = behind;
                }
                State::Trailer { fpdu, left } => {
                    let skipped = left.min(rest.len());
                    rest = &rest[skipped..];
                    if skipped < left {
                        self.inbound.state = State::Trailer { fpdu, left: left - skipped };
                        return Ok(input.len());
                    }
                    self.inbound.state = State::Header;
                    self.finish(fpdu).map_err(Broken::by(&fpdu))?;
                }
            }
        }
    }

    /// Takes a header, if it is there whole, and finds the place of the payload behind it.
    fn begin(&mut self, bytes: &[u8]) -> Result<Option<Fpdu>, Broken> {
        let Some(fpdu) = Fpdu::parse(bytes)? else { return Ok(None) };
        if let Segment::Terminate { .. } = fpdu.segment {
            // The one segment whose payload is looked at here: all of it has to be there.
            let payload = bytes.get(fpdu.header_length()..usize::from(fpdu.ulpdu_length) + LENGTH_FIELD);
            return payload.map_or(Ok(None), |payload| Err(terminated(payload).into()));
        }
        let length = fpdu.payload_length();
        self.inbound.recent_payload = length.max(self.inbound.recent_payload / 2);
        self.inbound.state = match self.place(&fpdu).map_err(Broken::by(&fpdu))? {
            Some(place) if length > 0 => State::Payload { fpdu, place },
            _ => State::Trailer { fpdu, left: fpdu.trailer_length() },
        };
        Ok(Some(fpdu))
    }

    /// With CRC: an FPDU is there whole and proven before anything of it is believed.
    fn receive_verified(&mut self, input: &[u8], memory: &impl LocalMemory) -> Result<usize, Broken> {
        let mut rest = input;
        while let &[high, low, ..] = rest {
            let length = fpdu_length(u16::from_be_bytes([high, low]));
            let Some((whole, behind)) = rest.split_at_checked(length) else { break };
            let (covered, sum) = whole.split_at(length - CRC_LENGTH);
            if crc32c(covered) != sum {
                return Err(Fault::Crc.into());
            }
            // The CRC was right, so what does not parse was not meant to.
            let fpdu = Fpdu::parse(covered)?.ok_or(Fault::UlpduLength(u16::from_be_bytes([high, low])))?;
            let payload = &covered[fpdu.header_length()..LENGTH_FIELD + usize::from(fpdu.ulpdu_length)];
            if let Segment::Terminate { .. } = fpdu.segment {
                return Err(terminated(payload).into());
            }
            let place = self.place(&fpdu).map_err(Broken::by(&fpdu))?;
            // An answer of no bytes, as to a ready-to-receive indication, names no memory of ours.
            if let Some(place) = place.filter(|_| !payload.is_empty()) {
                memory.write(place, payload);
            }
            self.finish(fpdu).map_err(Broken::by(&fpdu))?;
            rest = behind;
        }
        Ok(input.len() - rest.len())
    }

    /// Checks a segment and finds where its payload goes. `None`: it has none.
    fn place(&mut self, fpdu: &Fpdu) -> Result<Option<Sge>, Fault> {
        let length = fpdu.payload_length();
        match fpdu.segment {
            // RFC 5041, section 5.2: a zero-length Write names no memory.
            Segment::Write { .. } if length == 0 => Ok(None),
            Segment::Write { to, .. } => {
                let checked = self.stags.check(to, length, Access::RemoteWrite);
                checked.map(|(_, place)| Some(place)).map_err(Fault::Tagged)
            }
            Segment::ReadResponse { to, last } => self.place_response(to, last, length).map(Some),
            Segment::Send(segment) => self.place_send(&segment, length),
            Segment::ReadRequest(_) | Segment::Terminate { .. } => Ok(None),
        }
    }

    /// A Read Response is for the oldest Read outstanding, and continues where the last segment ended.
    fn place_response(&mut self, to: Remote, last: bool, length: u32) -> Result<Sge, Fault> {
        let read = self.reads.front().ok_or(Fault::UnexpectedOpcode(2))?;
        if to.rkey != read.sink.rkey {
            return Err(Fault::ReadResponse(StagError::Invalid));
        }
        let left = read.into.length - read.received;
        let next = read.sink.address.wrapping_add(read.received.into());
        if to.address != next || length > left || last != (length == left) {
            return Err(Fault::ReadResponse(StagError::Bounds));
        }
        Ok(read.into.slice(read.received, length))
    }

    fn place_send(&mut self, segment: &SendSegment, length: u32) -> Result<Option<Sge>, Fault> {
        let &SendSegment { sequence, offset, invalidate, solicited, last } = segment;
        let inbound = &mut self.inbound;
        if sequence != inbound.send_sequence {
            return Err(Fault::MessageSequence { expected: inbound.send_sequence, got: sequence });
        }
        let begins = inbound.message.is_none();
        let expected = inbound.message.map_or(0, |message| message.received);
        if offset != expected {
            return Err(Fault::MessageOffset { expected, got: offset });
        }
        let swallowed = std::mem::take(&mut inbound.swallows_send) && length == 0 && last && begins;
        let message = match &mut inbound.message {
            Some(message) if (message.invalidate, message.solicited) != (invalidate, solicited) => {
                return Err(Fault::UnexpectedOpcode(3));
            }
            Some(message) => message,
            none => {
                let buffer = if swallowed { None } else { inbound.receives.pop() };
                if buffer.is_none() && !swallowed {
                    return Err(Fault::NoBuffer);
                }
                none.insert(Message { buffer, received: 0, invalidate, solicited })
            }
        };
        let Some((_, buffer)) = message.buffer else { return Ok(None) };
        if length > buffer.length - message.received {
            return Err(Fault::MessageTooLong);
        }
        Ok(Some(buffer.slice(message.received, length)))
    }

    /// An FPDU is here to its last byte, and its payload in its place.
    fn finish(&mut self, fpdu: Fpdu) -> Result<(), Fault> {
        let length = fpdu.payload_length();
        match fpdu.segment {
            Segment::Write { .. } | Segment::Terminate { .. } => {}
            Segment::ReadResponse { last, .. } => self.finish_response(length, last),
            Segment::Send(segment) => self.finish_send(length, segment.last)?,
            Segment::ReadRequest(request) => self.owe_response(&request)?,
        }
        self.outbound.open = true;
        Ok(())
    }

    fn finish_response(&mut self, length: u32, last: bool) {
        let Some(read) = self.reads.front_mut() else { return };
        read.received += length;
        if !last {
            return;
        }
        self.answers += 1;
        if let Some(OutstandingRead { work: Some((token, slot)), .. }) = self.reads.pop_front() {
            self.stags.close_sink(slot);
            self.free_sinks.push(slot);
            self.complete(token);
        }
    }

    fn finish_send(&mut self, length: u32, last: bool) -> Result<(), Fault> {
        let inbound = &mut self.inbound;
        let Some(message) = &mut inbound.message else { return Ok(()) };
        message.received += length;
        if !last {
            return Ok(());
        }
        let Message { buffer, received, invalidate, .. } = *message;
        inbound.message = None;
        inbound.send_sequence = inbound.send_sequence.wrapping_add(1);
        if let Some(key) = invalidate {
            self.stags.invalidate_remotely(key).map_err(|_| Fault::CannotInvalidate(key))?;
        }
        if let Some((id, _)) = buffer {
            let event = StreamEvent::Received { id, length: received, invalidated: invalidate };
            enqueue(&mut self.events, event);
        }
        Ok(())
    }

    fn owe_response(&mut self, request: &ReadRequest) -> Result<(), Fault> {
        let expected = self.inbound.read_sequence;
        if request.sequence != expected {
            return Err(Fault::MessageSequence { expected, got: request.sequence });
        }
        self.inbound.read_sequence = expected.wrapping_add(1);
        if self.responding >= u32::from(self.config.terms.ird) {
            return Err(Fault::TooManyReads);
        }
        // RFC 5040, section 5.2.1: a zero-length Read names no memory.
        let source = if request.length == 0 {
            None
        } else {
            let checked = self.stags.check(request.source, request.length, Access::RemoteRead);
            Some(checked.map_err(Fault::ReadSource)?)
        };
        if let Some((slot, _)) = source {
            self.stags.hold(slot);
        }
        self.responding += 1;
        self.responses.push_back(OwedResponse { sink: request.sink, source });
        Ok(())
    }
}

impl Inbound {
    /// So many bytes of a payload have come to their place.
    fn placed(&mut self, fpdu: Fpdu, place: Sge, bytes: u32) {
        let place = place.slice(bytes, place.length - bytes);
        self.state = if place.length > 0 {
            State::Payload { fpdu, place }
        } else {
            State::Trailer { fpdu, left: fpdu.trailer_length() }
        };
    }
}

fn terminated(payload: &[u8]) -> Fault {
    Fault::Terminated(Reason::decode(payload).unwrap_or(Reason::LOCAL_CATASTROPHIC))
}

fn offending(fpdu: &Fpdu) -> Offending {
    let mut header = [0; HEADER_MAX];
    let header = &mut header[..fpdu.segment.header_length()];
    fpdu.segment.write_header(header);
    Offending { segment_length: fpdu.ulpdu_length, header: header.iter().copied().collect() }
}
