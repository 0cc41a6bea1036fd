//! DDP segments: where the bytes of one go (RFC 5041, section 4).
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The bits of the first byte.
const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const VERSION: u8 = 1;

/// A segment which names its place itself.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TaggedWire {
    pub ddp_control: u8,
    pub rdmap_control: u8,
    pub stag: U32,
    pub offset: U64,
}
const _: () = assert!(size_of::<TaggedWire>() == 14);

/// A segment for the next buffer of a queue.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UntaggedWire {
    pub ddp_control: u8,
    pub rdmap_control: u8,
    /// The STag to invalidate, or reserved.
    pub invalidate: U32,
    pub queue: U32,
    pub message_sequence: U32,
    pub message_offset: U32,
}
const _: () = assert!(size_of::<UntaggedWire>() == 18);

/// The longest header, with the body of a Read Request behind it, which belongs to it in all but name.
pub const HEADER_MAX: usize = size_of::<UntaggedWire>() + 28;

/// The first byte of a segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Control {
    pub tagged: bool,
    pub last: bool,
    /// Whether the version is the one there is.
    pub version_known: bool,
}

impl Control {
    #[must_use]
    pub const fn parse(byte: u8) -> Self {
        Self {
            tagged: byte & TAGGED != 0,
            last: byte & LAST != 0,
            version_known: byte & VERSION_MASK == VERSION,
        }
    }

    /// The byte of a segment we send.
    #[must_use]
    pub const fn byte(tagged: bool, last: bool) -> u8 {
        VERSION | if tagged { TAGGED } else { 0 } | if last { LAST } else { 0 }
    }

    /// Bytes of the header which begins with this.
    #[must_use]
    pub const fn header_length(self) -> usize {
        if self.tagged { size_of::<TaggedWire>() } else { size_of::<UntaggedWire>() }
    }
}

/// The queue numbers of untagged segments (RFC 5040, section 4.1).
pub mod queue {
    pub const SEND: u32 = 0;
    pub const READ_REQUEST: u32 = 1;
    pub const TERMINATE: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_byte_says_what_it_says() {
        for (byte, tagged, last) in [(0xC1, true, true), (0x81, true, false), (0x41, false, true)] {
            assert_eq!(Control::parse(byte), Control { tagged, last, version_known: true });
            assert_eq!(Control::byte(tagged, last), byte);
        }
        assert!(!Control::parse(0xC0).version_known);
        assert!(!Control::parse(0xC2).version_known);
        // Reserved bits are ignored on receipt.
        assert!(Control::parse(0x41 | 0x3C).version_known);
        assert_eq!(Control::parse(0xC1).header_length(), 14);
        assert_eq!(Control::parse(0x41).header_length(), 18);
    }
}
