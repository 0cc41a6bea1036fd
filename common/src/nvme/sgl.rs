//! Where the data of a command is: the one SGL descriptor of a submission queue entry, as NVMe over RDMA
//! uses it (NVM Express base specification 2.2, section 4.3.2; RDMA transport specification 1.0, section 3.3). One data
//! block only; MSDBD says so to hosts.
use std::fmt;

use super::bits::{bits, place};
use super::{Command, Status};
use crate::verbs::Remote;

const DATA_BLOCK_OFFSET: u8 = 0x01;
/// The rest of the list lies in the capsule.
const LAST_SEGMENT_OFFSET: u8 = 0x31;
const KEYED_ADDRESS: u8 = 0x40;
const KEYED_INVALIDATE: u8 = 0x4F;

/// Longest transfer a keyed descriptor can name: its length has 24 bits.
const KEYED_LENGTH_MAX: u32 = 0xFF_FFFF;

/// What SGL1 says, parsed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DataPointer {
    /// No data: a descriptor of length zero.
    None,
    /// In the host's memory, to be reached by RDMA.
    Keyed {
        remote: Remote,
        length: u32,
        /// The host asks for the response as a Send with Invalidate of this key.
        invalidate: bool,
    },
    /// In the capsule, `offset` bytes behind the command.
    InCapsule { offset: u32, length: u32 },
}

impl DataPointer {
    /// Reads SGL1 of `command`, behind which `in_capsule_length` bytes of data did arrive.
    ///
    /// # Errors
    /// What to answer: Invalid Field for PRPs, unknown subtypes and in-capsule data of a command which is
    /// not from the host; SGL Descriptor Type Invalid; SGL Offset Invalid for data beyond the capsule; what is
    /// wrong with a list of descriptors, which is never taken.
    pub fn parse(command: &Command, in_capsule_length: u32) -> Result<Self, Status> {
        match command.psdt() {
            0b01 => {}
            // NVM Express base specification 2.2, figures 94 and 95: a Fabrics command says 00b or 10b, and
            // without data its pointer is reserved. Linux and SPDK say 01b there too.
            0b00 | 0b10 if command.is_fabrics() && command.has_no_data() => return Ok(Self::None),
            0b00 | 0b10 if command.is_fabrics() => {}
            _ => return Err(Status::INVALID_FIELD),
        }
        let descriptor = Descriptor(u128::from_le_bytes(command.sgl));
        match descriptor.identifier() {
            KEYED_ADDRESS | KEYED_INVALIDATE if descriptor.keyed_length() == 0 => Ok(Self::None),
            identifier @ (KEYED_ADDRESS | KEYED_INVALIDATE) => Ok(Self::Keyed {
                remote: Remote { address: descriptor.address(), rkey: descriptor.key() },
                length: descriptor.keyed_length(),
                invalidate: identifier == KEYED_INVALIDATE,
            }),
            DATA_BLOCK_OFFSET if !command.is_from_host() => Err(Status::INVALID_FIELD),
            DATA_BLOCK_OFFSET => {
                Self::in_capsule(descriptor.address(), descriptor.length(), in_capsule_length)
            }
            LAST_SEGMENT_OFFSET => Err(refusal_of_a_list(descriptor.length())),
            // NVM Express base specification 2.2, figure 113: a wrong subtype is a wrong type too.
            _ => Err(Status::SGL_TYPE_INVALID),
        }
    }

    fn in_capsule(offset: u64, length: u32, available: u32) -> Result<Self, Status> {
        match offset.checked_add(length.into()) {
            Some(end) if end <= available.into() => {}
            _ => return Err(Status::SGL_OFFSET_INVALID),
        }
        if length == 0 {
            return Ok(Self::None);
        }
        Ok(Self::InCapsule { offset: u32::try_from(offset).map_err(|_| Status::SGL_OFFSET_INVALID)?, length })
    }

    /// The descriptor which says this.
    ///
    /// # Panics
    /// If a keyed length does not fit into 24 bits: commands are split before that.
    #[must_use]
    pub fn to_sgl(self) -> [u8; 16] {
        match self {
            Self::None => Descriptor::keyed(0, 0, 0, KEYED_ADDRESS),
            Self::Keyed { remote, length, invalidate } => {
                assert!(length <= KEYED_LENGTH_MAX, "a keyed data block has 24 bits of length");
                let identifier = if invalidate { KEYED_INVALIDATE } else { KEYED_ADDRESS };
                Descriptor::keyed(remote.address, length, remote.rkey, identifier)
            }
            Self::InCapsule { offset, length } => Descriptor::unkeyed(offset, length, DATA_BLOCK_OFFSET),
        }
        .0
        .to_le_bytes()
    }

    /// Bytes of data.
    #[must_use]
    pub const fn length(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Keyed { length, .. } | Self::InCapsule { length, .. } => length,
        }
    }

    /// The key which the response has to invalidate.
    #[must_use]
    pub const fn key_to_invalidate(self) -> Option<u32> {
        match self {
            Self::Keyed { remote, invalidate: true, .. } => Some(remote.rkey),
            _ => None,
        }
    }

    /// SGL1 of a command in words, whatever it is.
    pub(super) fn describe(command: &Command) -> impl fmt::Display {
        Description { command: *command }
    }
}

/// A list of so many bytes has more data blocks than MSDBD allows, or is none (NVM Express base specification 2.2, section
/// 3.3.2.1.3 and figure 102).
const fn refusal_of_a_list(length: u32) -> Status {
    match length {
        0 => Status::INVALID_SGL_SEGMENT,
        _ if !length.is_multiple_of(16) => Status::INVALID_SGL_SEGMENT,
        16 => Status::SGL_TYPE_INVALID,
        _ => Status::INVALID_SGL_COUNT,
    }
}

impl fmt::Display for DataPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no data"),
            Self::Keyed { remote, length, invalidate } => {
                write!(f, "{length} bytes at {:#x} key {:#010x}", remote.address, remote.rkey)?;
                f.write_str(if *invalidate { " to be invalidated" } else { "" })
            }
            Self::InCapsule { offset, length } => write!(f, "{length} bytes in capsule at {offset}"),
        }
    }
}

/// How many bytes a command moves, and which way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transfer {
    None,
    /// Exactly so many bytes from the host.
    FromHost(u32),
    /// So many bytes from the host; its SGL may describe more.
    FromHostAtLeast(u32),
    /// Exactly so many bytes to the host.
    ToHost(u32),
}

impl Transfer {
    /// In bytes.
    #[must_use]
    pub const fn length(self) -> u32 {
        match self {
            Self::None => 0,
            Self::FromHost(length) | Self::FromHostAtLeast(length) | Self::ToHost(length) => length,
        }
    }

    /// Whether `pointer` describes as much as the command moves.
    ///
    /// # Errors
    /// Data SGL Length Invalid.
    pub const fn check(self, pointer: DataPointer) -> Result<(), Status> {
        let fits = match self {
            Self::FromHostAtLeast(length) => pointer.length() >= length,
            _ => pointer.length() == self.length(),
        };
        if fits { Ok(()) } else { Err(Status::DATA_SGL_LENGTH_INVALID) }
    }
}

/// The 16 bytes as one little-endian number.
#[derive(Clone, Copy)]
struct Descriptor(u128);

impl Descriptor {
    fn keyed(address: u64, length: u32, key: u32, identifier: u8) -> Self {
        let high = place(length.into(), 23, 0) | place(key.into(), 55, 24) | place(identifier.into(), 63, 56);
        Self(u128::from(address) | u128::from(high) << 64)
    }

    fn unkeyed(offset: u32, length: u32, identifier: u8) -> Self {
        let high = place(length.into(), 31, 0) | place(identifier.into(), 63, 56);
        Self(u128::from(offset) | u128::from(high) << 64)
    }

    const fn address(self) -> u64 {
        self.0 as u64
    }

    const fn high(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// Type in the upper, subtype in the lower four bits.
    const fn identifier(self) -> u8 {
        bits(self.high(), 63, 56) as u8
    }

    const fn length(self) -> u32 {
        bits(self.high(), 31, 0) as u32
    }

    const fn keyed_length(self) -> u32 {
        bits(self.high(), 23, 0) as u32
    }

    const fn key(self) -> u32 {
        bits(self.high(), 55, 24) as u32
    }
}

struct Description {
    command: Command,
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DataPointer::parse(&self.command, u32::MAX) {
            Ok(pointer) => pointer.fmt(f),
            Err(_) if self.command.psdt() != 0b01 => write!(f, "PSDT {:#04b}", self.command.psdt()),
            Err(status) => {
                let identifier = Descriptor(u128::from_le_bytes(self.command.sgl)).identifier();
                write!(f, "SGL descriptor {identifier:#04x}: {status}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::FabricsType;

    fn with(opcode: u8, sgl: [u8; 16]) -> Command {
        Command { sgl, ..Command::new(opcode, 0, 1) }
    }

    const KEYED: DataPointer = DataPointer::Keyed {
        remote: Remote { address: 0x7F00_0000_1000, rkey: 0x00AB_CD01 },
        length: 4096,
        invalidate: true,
    };

    #[test]
    fn keyed_with_invalidate() {
        let sgl = [0, 0x10, 0, 0, 0, 0x7F, 0, 0, 0, 0x10, 0, 0x01, 0xCD, 0xAB, 0, 0x4F];
        assert_eq!(KEYED.to_sgl(), sgl);
        assert_eq!(DataPointer::parse(&with(2, sgl), 0), Ok(KEYED));
        assert_eq!(KEYED.key_to_invalidate(), Some(0x00AB_CD01));
    }

    #[test]
    fn keyed_without_invalidate() {
        let remote = Remote { address: 0xFFFF_8880_1234_5000, rkey: 0xDEAD_BEEF };
        let pointer = DataPointer::Keyed { remote, length: 0x2_0000, invalidate: false };
        let sgl = [0, 0x50, 0x34, 0x12, 0x80, 0x88, 0xFF, 0xFF, 0, 0, 2, 0xEF, 0xBE, 0xAD, 0xDE, 0x40];
        assert_eq!(pointer.to_sgl(), sgl);
        assert_eq!(DataPointer::parse(&with(1, sgl), 0), Ok(pointer));
        assert_eq!(pointer.key_to_invalidate(), None);
    }

    #[test]
    fn null_and_in_capsule() {
        let mut null = [0; 16];
        null[15] = 0x40;
        assert_eq!(DataPointer::None.to_sgl(), null);
        assert_eq!(DataPointer::parse(&with(0, null), 0), Ok(DataPointer::None));

        let pointer = DataPointer::InCapsule { offset: 0, length: 4096 };
        let sgl = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 1];
        assert_eq!(pointer.to_sgl(), sgl);
        assert_eq!(DataPointer::parse(&with(1, sgl), 4096), Ok(pointer));
        assert_eq!(DataPointer::parse(&with(1, sgl), 4095), Err(Status::SGL_OFFSET_INVALID));
        assert_eq!(DataPointer::parse(&with(2, sgl), 4096), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn in_capsule_offsets_do_not_wrap() {
        let mut sgl = [0xFF; 16];
        sgl[8..].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(DataPointer::parse(&with(1, sgl), u32::MAX), Err(Status::SGL_OFFSET_INVALID));
    }

    #[test]
    fn every_identifier_is_answered() {
        for identifier in 0..=255u8 {
            let mut sgl = [0; 16];
            sgl[15] = identifier;
            let expected = match identifier {
                0x01 | 0x40 | 0x4F => Ok(DataPointer::None),
                0x31 => Err(Status::INVALID_SGL_SEGMENT),
                _ => Err(Status::SGL_TYPE_INVALID),
            };
            assert_eq!(DataPointer::parse(&with(1, sgl), 4096), expected, "{identifier:#x}");
        }
    }

    #[test]
    fn prps_are_refused() {
        let command = Command { flags: 0, ..Command::new(2, 0, 1) };
        assert_eq!(DataPointer::parse(&command, 0), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn fabrics_commands_say_it_in_three_ways() {
        let with = |kind, psdt: u8| Command { flags: psdt << 6, ..Command::fabrics(kind, 0) };
        for psdt in [0b00, 0b01, 0b10] {
            let connect = with(FabricsType::CONNECT, psdt).with_data(KEYED);
            assert_eq!(DataPointer::parse(&connect, 0), Ok(KEYED));
            let get = with(FabricsType::PROPERTY_GET, psdt);
            assert_eq!(DataPointer::parse(&get, 0), Ok(DataPointer::None));
        }
        let reserved = Command { sgl: [0; 16], ..with(FabricsType::PROPERTY_GET, 0b00) };
        assert_eq!(DataPointer::parse(&reserved, 0), Ok(DataPointer::None));
        assert_eq!(DataPointer::parse(&with(FabricsType::CONNECT, 0b11), 0), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn lengths_are_checked_as_the_command_asks() {
        assert_eq!(Transfer::ToHost(4096).check(KEYED), Ok(()));
        assert_eq!(Transfer::ToHost(4095).check(KEYED), Err(Status::DATA_SGL_LENGTH_INVALID));
        assert_eq!(Transfer::FromHostAtLeast(16).check(KEYED), Ok(()));
        assert_eq!(Transfer::FromHostAtLeast(4097).check(KEYED), Err(Status::DATA_SGL_LENGTH_INVALID));
        assert_eq!(Transfer::None.check(DataPointer::None), Ok(()));
        assert_eq!(Transfer::None.check(KEYED), Err(Status::DATA_SGL_LENGTH_INVALID));
    }
}
