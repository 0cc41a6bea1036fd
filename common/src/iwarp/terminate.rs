//! The Terminate message: one table from an error to its numbers (RFC 5040, section 4.8).
use std::fmt;

use arrayvec::ArrayVec;

use super::ddp::HEADER_MAX;
use super::fpdu::Segment;

/// Layer, error type and code: why a stream was terminated.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Reason {
    pub layer: u8,
    pub kind: u8,
    pub code: u8,
}

const RDMAP: u8 = 0;
const DDP: u8 = 1;
const MPA: u8 = 2;

const fn reason(layer: u8, kind: u8, code: u8) -> Reason {
    Reason { layer, kind, code }
}

impl Reason {
    pub const LOCAL_CATASTROPHIC: Self = reason(RDMAP, 0, 0);
    pub const SOURCE_INVALID_STAG: Self = reason(RDMAP, 1, 0);
    pub const SOURCE_BOUNDS: Self = reason(RDMAP, 1, 1);
    pub const SOURCE_RIGHTS: Self = reason(RDMAP, 1, 2);
    pub const SOURCE_WRAP: Self = reason(RDMAP, 1, 4);
    pub const RDMAP_VERSION: Self = reason(RDMAP, 2, 5);
    pub const UNEXPECTED_OPCODE: Self = reason(RDMAP, 2, 6);
    pub const CATASTROPHIC: Self = reason(RDMAP, 2, 7);
    pub const CANNOT_INVALIDATE: Self = reason(RDMAP, 2, 9);
    pub const TAGGED_INVALID_STAG: Self = reason(DDP, 1, 0);
    pub const TAGGED_BOUNDS: Self = reason(DDP, 1, 1);
    pub const TAGGED_WRAP: Self = reason(DDP, 1, 3);
    pub const TAGGED_VERSION: Self = reason(DDP, 1, 4);
    pub const INVALID_QUEUE: Self = reason(DDP, 2, 1);
    pub const NO_BUFFER: Self = reason(DDP, 2, 2);
    pub const MESSAGE_SEQUENCE: Self = reason(DDP, 2, 3);
    pub const MESSAGE_OFFSET: Self = reason(DDP, 2, 4);
    pub const MESSAGE_TOO_LONG: Self = reason(DDP, 2, 5);
    pub const UNTAGGED_VERSION: Self = reason(DDP, 2, 6);
    pub const MPA_CRC: Self = reason(MPA, 0, 2);
    pub const MPA_LENGTH: Self = reason(MPA, 0, 3);
    pub const MPA_FRAME: Self = reason(MPA, 0, 4);
    pub const MPA_LOCAL_CATASTROPHIC: Self = reason(MPA, 0, 5);
    pub const MPA_INSUFFICIENT_IRD: Self = reason(MPA, 0, 6);
    pub const MPA_NO_MATCHING_RTR: Self = reason(MPA, 0, 7);

    /// What the numbers mean, if they mean anything.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match (self.layer, self.kind, self.code) {
            (RDMAP | DDP, 0, 0) | (MPA, 0, 5) => "local catastrophic error",
            (RDMAP, 1, 0) | (DDP, 1, 0) => "invalid STag",
            (RDMAP, 1, 1) | (DDP, 1, 1) => "base or bounds violation",
            (RDMAP, 1, 2) => "access rights violation",
            (RDMAP, 1, 3) | (DDP, 1, 2) => "STag not associated with the stream",
            (RDMAP, 1, 4) | (DDP, 1, 3) => "tagged offset wrap",
            (RDMAP, 1 | 2, 9) => "STag cannot be invalidated",
            (RDMAP, 2, 5) => "invalid RDMAP version",
            (RDMAP, 2, 6) => "unexpected opcode",
            (RDMAP, 2, 7) => "catastrophic error, localized to the stream",
            (RDMAP, 2, 8) => "catastrophic error, global",
            (RDMAP, 1 | 2, 0xFF) => "unspecified error",
            (DDP, 1, 4) | (DDP, 2, 6) => "invalid DDP version",
            (DDP, 2, 1) => "invalid queue number",
            (DDP, 2, 2) => "no buffer available",
            (DDP, 2, 3) => "invalid message sequence number",
            (DDP, 2, 4) => "invalid message offset",
            (DDP, 2, 5) => "message too long for its buffer",
            (MPA, 0, 1) => "TCP connection lost",
            (MPA, 0, 2) => "CRC mismatch",
            (MPA, 0, 3) => "marker and length mismatch",
            (MPA, 0, 4) => "invalid MPA request or reply",
            (MPA, 0, 6) => "insufficient IRD resources",
            (MPA, 0, 7) => "no matching RTR option",
            _ => return None,
        })
    }

    /// The FPDU which tells the peer.
    #[must_use]
    pub fn fpdu(self, offending: Option<&Offending>, crc: bool) -> Vec<u8> {
        Segment::Terminate { sequence: 1 }.fpdu(&payload(self, offending), crc)
    }

    /// What a Terminate's payload says, for the log and nothing else. The Linux software provider writes
    /// layer and type in swapped order on little-endian machines; where only that order means something,
    /// that order it is.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let &[types, code, ..] = payload else { return None };
        let plain = reason(types >> 4, types & 0x0F, code);
        let swapped = reason(types & 0x0F, types >> 4, code);
        Some(if plain.name().is_none() && swapped.name().is_some() { swapped } else { plain })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = match self.layer {
            RDMAP => "RDMAP",
            DDP => "DDP",
            MPA => "MPA",
            _ => "unknown layer",
        };
        let name = self.name().unwrap_or("unknown error");
        write!(f, "{layer}: {name} (layer {}, type {}, code {:#04x})", self.layer, self.kind, self.code)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes of the longest Terminate payload: the control word, a length, the offending headers.
pub const PAYLOAD_MAX: usize = 6 + HEADER_MAX;

/// The type of RDMAP's errors which are about memory.
const REMOTE_PROTECTION: u8 = 1;
const READ_REQUEST_BODY: usize = 28;

const LENGTH_VALID: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMAP_HEADER: u8 = 0x20;

/// The header of the segment a Terminate complains about, with the length of the segment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Offending {
    pub segment_length: u16,
    /// 14 or 18 bytes of DDP header, or 46 with the body of a Read Request.
    pub header: ArrayVec<u8, HEADER_MAX>,
}

/// The payload of a Terminate message. Which headers it has goes by the layer and type of the error (RFC 5040,
/// figure 10): none for MPA, and that of a Read Request only where its source was the matter.
#[must_use]
pub fn payload(reason: Reason, offending: Option<&Offending>) -> ArrayVec<u8, PAYLOAD_MAX> {
    let mut payload = ArrayVec::new();
    payload.extend([reason.layer << 4 | reason.kind, reason.code]);
    let Some(offending) = offending.filter(|_| reason.layer != MPA) else {
        payload.extend([0, 0]);
        return payload;
    };
    let is_read = offending.header.len() == HEADER_MAX;
    let with_body = is_read && (reason.layer, reason.kind) == (RDMAP, REMOTE_PROTECTION);
    payload.extend([LENGTH_VALID | DDP_HEADER | if with_body { RDMAP_HEADER } else { 0 }, 0]);
    payload.extend(offending.segment_length.to_be_bytes());
    let length = if is_read && !with_body { HEADER_MAX - READ_REQUEST_BODY } else { offending.header.len() };
    payload.extend(offending.header[..length].iter().copied());
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_are_understood() {
        assert_eq!(Reason::decode(&[0x12, 2, 0, 0]), Some(Reason::NO_BUFFER));
        assert_eq!(Reason::decode(&[0x21, 2, 0, 0]), Some(Reason::NO_BUFFER));
        assert_eq!(Reason::decode(&[0x11, 0, 0xC0, 0]), Some(Reason::TAGGED_INVALID_STAG));
        assert_eq!(Reason::decode(&[0x20, 2, 0, 0]), Some(Reason::MPA_CRC));
        assert_eq!(Reason::decode(&[0xFF, 0xEE]).map(Reason::name), Some(None));
        assert_eq!(Reason::decode(&[0x12]), None);
    }

    #[test]
    fn every_reason_we_give_has_a_name() {
        for layer in 0..3 {
            for kind in 0..3 {
                for code in 0..=255 {
                    let reason = Reason { layer, kind, code };
                    if let Some(name) = reason.name() {
                        assert!(reason.to_string().contains(name));
                    }
                }
            }
        }
        assert_eq!(
            Reason::MPA_NO_MATCHING_RTR.to_string(),
            "MPA: no matching RTR option (layer 2, type 0, code 0x07)"
        );
    }
}
