//! RDMAP operations: what a message means (RFC 5040, section 4).
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const VERSION_MASK: u8 = 0xC0;
const VERSION: u8 = 0x40;
const OPCODE_MASK: u8 = 0x0F;

/// What a message does. A number which RFC 5040 does not name is a value like the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Opcode {
    Write,
    ReadRequest,
    ReadResponse,
    Send {
        invalidate: bool,
        solicited: bool,
    },
    Terminate,
    /// Among them what RFC 7306 adds, which we neither send nor take.
    Other(u8),
}

impl Opcode {
    const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send { invalidate: false, solicited: false },
            4 => Self::Send { invalidate: true, solicited: false },
            5 => Self::Send { invalidate: false, solicited: true },
            6 => Self::Send { invalidate: true, solicited: true },
            7 => Self::Terminate,
            other => Self::Other(other),
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Write => 0,
            Self::ReadRequest => 1,
            Self::ReadResponse => 2,
            Self::Send { invalidate, solicited } => 3 + invalidate as u8 + 2 * solicited as u8,
            Self::Terminate => 7,
            Self::Other(number) => number,
        }
    }

    /// Whether its segments are tagged.
    #[must_use]
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// The operation a control byte names, or nothing if its version is not the one there is.
    #[must_use]
    pub const fn parse(control: u8) -> Option<Self> {
        if control & VERSION_MASK == VERSION { Some(Self::from_number(control & OPCODE_MASK)) } else { None }
    }

    /// The control byte.
    #[must_use]
    pub const fn byte(self) -> u8 {
        VERSION | self.number()
    }
}

/// What follows the header of a Read Request.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadRequestWire {
    pub sink_stag: U32,
    pub sink_offset: U64,
    pub length: U32,
    pub source_stag: U32,
    pub source_offset: U64,
}
const _: () = assert!(size_of::<ReadRequestWire>() == 28);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_survives_its_byte() {
        for number in 0..16 {
            assert_eq!(Opcode::parse(VERSION | number).unwrap().byte(), VERSION | number);
        }
        assert_eq!(Opcode::parse(0x46), Some(Opcode::Send { invalidate: true, solicited: true }));
        assert_eq!(Opcode::parse(0x45), Some(Opcode::Send { invalidate: false, solicited: true }));
        assert_eq!(Opcode::parse(0x44), Some(Opcode::Send { invalidate: true, solicited: false }));
        assert_eq!(Opcode::parse(0x03), None);
        assert_eq!(Opcode::parse(0x83), None);
    }
}
