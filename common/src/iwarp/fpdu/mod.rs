//! FPDUs: one DDP segment each, with its length, padding and CRC (RFC 5044, section 4).
#[cfg(test)]
mod tests;

use zerocopy::{FromBytes, IntoBytes};

use super::Fault;
use super::crc::{CRC_LENGTH, crc32c};
use super::ddp::{Control, HEADER_MAX, TaggedWire, UntaggedWire, queue};
use super::rdmap::{Opcode, ReadRequestWire};
use crate::verbs::Remote;

/// Bytes of the length field before each ULPDU.
pub const LENGTH_FIELD: usize = 2;

/// Bytes of the longest FPDU: length, 65,535 bytes of ULPDU, padding, CRC.
pub const FPDU_MAX: usize = fpdu_length(u16::MAX);

const READ_REQUEST_LENGTH: usize = size_of::<UntaggedWire>() + size_of::<ReadRequestWire>();
const _: () = assert!(READ_REQUEST_LENGTH == HEADER_MAX);

/// Bytes of the longest Terminate we look at; RFC 5040 has none longer.
pub const TERMINATE_MAX: u16 = 96;

/// Zero bytes after an ULPDU, which bring the CRC to a multiple of four.
#[must_use]
pub const fn padding(ulpdu_length: u16) -> usize {
    (LENGTH_FIELD + ulpdu_length as usize).wrapping_neg() % 4
}

/// All bytes of the FPDU around an ULPDU.
#[must_use]
pub const fn fpdu_length(ulpdu_length: u16) -> usize {
    LENGTH_FIELD + ulpdu_length as usize + padding(ulpdu_length) + CRC_LENGTH
}

/// What one DDP segment is about; its payload stands behind it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Segment {
    Write { to: Remote, last: bool },
    ReadResponse { to: Remote, last: bool },
    Send(SendSegment),
    ReadRequest(ReadRequest),
    Terminate { sequence: u32 },
}

/// A piece of a Send message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendSegment {
    pub sequence: u32,
    pub offset: u32,
    pub invalidate: Option<u32>,
    pub solicited: bool,
    pub last: bool,
}

/// A Read Request, whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReadRequest {
    pub sequence: u32,
    pub sink: Remote,
    pub length: u32,
    pub source: Remote,
}

/// The front of an FPDU, parsed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fpdu {
    pub ulpdu_length: u16,
    pub segment: Segment,
}

impl Fpdu {
    /// Reads the front of `bytes`, or says that it takes more of them.
    ///
    /// # Errors
    /// If it is no segment that may stand here.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Fault> {
        let &[high, low, ddp, rdmap, ..] = bytes else { return Ok(None) };
        let ulpdu_length = u16::from_be_bytes([high, low]);
        let control = Control::parse(ddp);
        if !control.version_known {
            return Err(Fault::DdpVersion { tagged: control.tagged });
        }
        let opcode = Opcode::parse(rdmap).ok_or(Fault::RdmapVersion)?;
        if matches!(opcode, Opcode::Other(_)) || opcode.is_tagged() != control.tagged {
            return Err(Fault::UnexpectedOpcode(rdmap & 0x0F));
        }
        let length_fits = match opcode {
            Opcode::ReadRequest => usize::from(ulpdu_length) == READ_REQUEST_LENGTH,
            Opcode::Terminate => ulpdu_length <= TERMINATE_MAX,
            _ => true,
        };
        if !length_fits || usize::from(ulpdu_length) < control.header_length() {
            return Err(Fault::UlpduLength(ulpdu_length));
        }
        let ulpdu = &bytes[LENGTH_FIELD..];
        let segment = if control.tagged {
            let Ok((wire, _)) = TaggedWire::ref_from_prefix(ulpdu) else { return Ok(None) };
            tagged(wire, opcode, control.last)
        } else {
            let Ok((wire, body)) = UntaggedWire::ref_from_prefix(ulpdu) else { return Ok(None) };
            match untagged(wire, body, opcode, control.last)? {
                Some(segment) => segment,
                None => return Ok(None),
            }
        };
        Ok(Some(Self { ulpdu_length, segment }))
    }

    /// Bytes before the payload, the length field among them.
    #[must_use]
    pub const fn header_length(&self) -> usize {
        LENGTH_FIELD + self.segment.header_length()
    }

    /// Bytes of payload; a Read Request has none, its body being part of the header.
    #[must_use]
    pub const fn payload_length(&self) -> u32 {
        self.ulpdu_length as u32 - self.segment.header_length() as u32
    }

    /// Bytes behind the payload: padding and CRC.
    #[must_use]
    pub const fn trailer_length(&self) -> usize {
        padding(self.ulpdu_length) + CRC_LENGTH
    }

    /// All bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        fpdu_length(self.ulpdu_length)
    }
}

fn tagged(wire: &TaggedWire, opcode: Opcode, last: bool) -> Segment {
    let to = Remote { address: wire.offset.get(), rkey: wire.stag.get() };
    match opcode {
        Opcode::Write => Segment::Write { to, last },
        _ => Segment::ReadResponse { to, last },
    }
}

fn untagged(wire: &UntaggedWire, body: &[u8], opcode: Opcode, last: bool) -> Result<Option<Segment>, Fault> {
    let expected_queue = match opcode {
        Opcode::ReadRequest => queue::READ_REQUEST,
        Opcode::Terminate => queue::TERMINATE,
        _ => queue::SEND,
    };
    if wire.queue.get() != expected_queue {
        return Err(Fault::Queue(wire.queue.get()));
    }
    let sequence = wire.message_sequence.get();
    let offset = wire.message_offset.get();
    if let Opcode::Send { invalidate, solicited } = opcode {
        let invalidate = invalidate.then_some(wire.invalidate.get());
        return Ok(Some(Segment::Send(SendSegment { sequence, offset, invalidate, solicited, last })));
    }
    if offset != 0 || !last {
        return Err(Fault::MessageOffset { expected: 0, got: offset });
    }
    if opcode == Opcode::Terminate {
        return Ok(Some(Segment::Terminate { sequence }));
    }
    let Ok((request, _)) = ReadRequestWire::ref_from_prefix(body) else { return Ok(None) };
    Ok(Some(Segment::ReadRequest(ReadRequest {
        sequence,
        sink: Remote { address: request.sink_offset.get(), rkey: request.sink_stag.get() },
        length: request.length.get(),
        source: Remote { address: request.source_offset.get(), rkey: request.source_stag.get() },
    })))
}

impl Segment {
    /// Bytes of its header; of a Read Request, with its body.
    #[must_use]
    pub const fn header_length(&self) -> usize {
        match self {
            Self::Write { .. } | Self::ReadResponse { .. } => size_of::<TaggedWire>(),
            Self::Send(_) | Self::Terminate { .. } => size_of::<UntaggedWire>(),
            Self::ReadRequest(_) => READ_REQUEST_LENGTH,
        }
    }

    /// Writes the header, which `into` has exactly the room for.
    ///
    /// # Panics
    /// If it has not.
    pub fn write_header(&self, into: &mut [u8]) {
        match *self {
            Self::Write { to, last } => write_tagged(into, Opcode::Write, to, last),
            Self::ReadResponse { to, last } => write_tagged(into, Opcode::ReadResponse, to, last),
            Self::Send(SendSegment { sequence, offset, invalidate, solicited, last }) => {
                let opcode = Opcode::Send { invalidate: invalidate.is_some(), solicited };
                let mut wire = untagged_wire(opcode, queue::SEND, sequence, last);
                wire.message_offset = offset.into();
                wire.invalidate = invalidate.unwrap_or(0).into();
                into.copy_from_slice(wire.as_bytes());
            }
            Self::Terminate { sequence } => {
                let wire = untagged_wire(Opcode::Terminate, queue::TERMINATE, sequence, true);
                into.copy_from_slice(wire.as_bytes());
            }
            Self::ReadRequest(ReadRequest { sequence, sink, length, source }) => {
                let wire = untagged_wire(Opcode::ReadRequest, queue::READ_REQUEST, sequence, true);
                let body = ReadRequestWire {
                    sink_stag: sink.rkey.into(),
                    sink_offset: sink.address.into(),
                    length: length.into(),
                    source_stag: source.rkey.into(),
                    source_offset: source.address.into(),
                };
                let (head, rest) = into.split_at_mut(size_of::<UntaggedWire>());
                head.copy_from_slice(wire.as_bytes());
                rest.copy_from_slice(body.as_bytes());
            }
        }
    }

    /// The whole FPDU with `payload`, for what is built once and not on the data path.
    ///
    /// # Panics
    /// If the payload does not fit into one.
    #[must_use]
    pub fn fpdu(&self, payload: &[u8], crc: bool) -> Vec<u8> {
        let ulpdu_length = u16::try_from(self.header_length() + payload.len()).expect("one FPDU's worth");
        let mut bytes = ulpdu_length.to_be_bytes().to_vec();
        bytes.resize(LENGTH_FIELD + self.header_length(), 0);
        self.write_header(&mut bytes[LENGTH_FIELD..]);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + padding(ulpdu_length), 0);
        let sum = if crc { crc32c(&bytes) } else { [0; CRC_LENGTH] };
        bytes.extend_from_slice(&sum);
        bytes
    }
}

fn write_tagged(into: &mut [u8], opcode: Opcode, to: Remote, last: bool) {
    let wire = TaggedWire {
        ddp_control: Control::byte(true, last),
        rdmap_control: opcode.byte(),
        stag: to.rkey.into(),
        offset: to.address.into(),
    };
    into.copy_from_slice(wire.as_bytes());
}

fn untagged_wire(opcode: Opcode, queue: u32, sequence: u32, last: bool) -> UntaggedWire {
    UntaggedWire {
        ddp_control: Control::byte(false, last),
        rdmap_control: opcode.byte(),
        invalidate: 0.into(),
        queue: queue.into(),
        message_sequence: sequence.into(),
        message_offset: 0.into(),
    }
}
