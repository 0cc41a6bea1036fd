//! I/O commands of the NVM command set and their meaning (NVM command set specification 1.2, section 3.3; NVM Express
//! base specification 2.2, section 7).
use std::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bits::{bit, bits, place};
use super::copy::{SourceRange, SourceRanges};
use super::{Command, IoOpcode, Status, Transfer, reservation};

/// Most bytes of one Copy.
const COPY_MAX: u32 = 128 << 10;

/// What of a namespace a request is checked against.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Binary logarithm of the block size in bytes: 9 or 12.
    pub block_shift: u8,
    /// Size of the namespace.
    pub blocks: u64,
    /// Most bytes one command may move: MDTS in bytes.
    pub transfer_max: u32,
}

impl Geometry {
    /// So many blocks in bytes. Does not overflow for blocks of a request that was parsed against this.
    #[must_use]
    pub const fn bytes(&self, blocks: u64) -> u64 {
        blocks << self.block_shift
    }

    /// In bytes.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        1 << self.block_shift
    }

    /// Most blocks one Copy moves: its data has to fit a buffer that is not scarce.
    #[must_use]
    pub const fn copy_blocks(&self) -> u32 {
        let bytes = if self.transfer_max < COPY_MAX { self.transfer_max } else { COPY_MAX };
        bytes >> self.block_shift
    }

    pub(super) fn check_range(&self, lba: u64, blocks: u64) -> Result<(), Status> {
        match lba.checked_add(blocks) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(Status::LBA_OUT_OF_RANGE),
        }
    }

    fn check_transfer(&self, blocks: u32) -> Result<(), Status> {
        if self.bytes(blocks.into()) > self.transfer_max.into() { Err(Status::INVALID_FIELD) } else { Ok(()) }
    }
}

/// An I/O command that is well-formed and lies within its namespace. `blocks` is a count, at least one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Request {
    Read {
        lba: u64,
        blocks: u32,
        fua: bool,
    },
    Write {
        lba: u64,
        blocks: u32,
        fua: bool,
    },
    Compare {
        lba: u64,
        blocks: u32,
        fua: bool,
    },
    /// A read without a transfer.
    Verify {
        lba: u64,
        blocks: u32,
        fua: bool,
    },
    Flush,
    /// Up to 65536 blocks, whatever the transfer limit.
    WriteZeroes {
        lba: u64,
        blocks: u32,
        /// The blocks may be deallocated if they then read as zeros.
        deallocate: bool,
        fua: bool,
    },
    /// `ranges` of [`Range`] come as data; see [`Ranges::parse`].
    DatasetManagement {
        ranges: u16,
        deallocate: bool,
    },
    Reservation(reservation::Request),
    /// Blocks which the command's data names, to those from `lba` on.
    Copy {
        lba: u64,
        /// Source ranges in the command's data.
        ranges: u16,
        fua: bool,
    },
    /// Well-formed for all we know. To be answered with Invalid Opcode.
    Unknown(IoOpcode),
}

impl Request {
    /// Reads `command`, whose namespace has the given geometry. The NSID and the data pointer are not
    /// looked at; for the latter see [`Request::transfer`].
    ///
    /// # Errors
    /// What to answer: Invalid Field for a fused command or one beyond the transfer limit, LBA Out of Range.
    pub fn parse(command: &Command, geometry: &Geometry) -> Result<Self, Status> {
        if command.fuse() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if let Some(request) = reservation::Request::parse(command, geometry.transfer_max) {
            return request.map(Self::Reservation);
        }
        let opcode = IoOpcode(command.opcode);
        let Extent { lba, blocks, fua, deallocate } = Extent::read(command);
        let request = match opcode {
            IoOpcode::FLUSH => return Ok(Self::Flush),
            IoOpcode::DATASET_MANAGEMENT => return Ok(Self::dataset_management(command)),
            IoOpcode::COPY => return Self::copy(command),
            IoOpcode::READ => Self::Read { lba, blocks, fua },
            IoOpcode::WRITE => Self::Write { lba, blocks, fua },
            IoOpcode::COMPARE => Self::Compare { lba, blocks, fua },
            IoOpcode::VERIFY => Self::Verify { lba, blocks, fua },
            IoOpcode::WRITE_ZEROES => Self::WriteZeroes { lba, blocks, deallocate, fua },
            unknown => return Ok(Self::Unknown(unknown)),
        };
        geometry.check_range(lba, blocks.into())?;
        if !matches!(request, Self::WriteZeroes { .. }) {
            geometry.check_transfer(blocks)?;
        }
        Ok(request)
    }

    /// What has to move before or after, of blocks as large as `geometry` says.
    #[must_use]
    pub const fn transfer(&self, geometry: &Geometry) -> Transfer {
        match *self {
            Self::Read { blocks, .. } => Transfer::ToHost(blocks << geometry.block_shift),
            Self::Write { blocks, .. } | Self::Compare { blocks, .. } => {
                Transfer::FromHost(blocks << geometry.block_shift)
            }
            Self::DatasetManagement { ranges, .. } => Transfer::FromHostAtLeast(ranges as u32 * Range::SIZE),
            Self::Copy { ranges, .. } => Transfer::FromHostAtLeast(ranges as u32 * SourceRange::SIZE),
            Self::Reservation(request) => request.transfer(),
            Self::Verify { .. } | Self::Flush | Self::WriteZeroes { .. } | Self::Unknown(_) => Transfer::None,
        }
    }

    /// Whether it changes the medium, which a write-protected namespace refuses.
    #[must_use]
    pub const fn changes_medium(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::WriteZeroes { .. }
                | Self::DatasetManagement { deallocate: true, .. }
                | Self::Copy { .. }
        )
    }

    /// Whether a reservation which keeps others from writing keeps them from this (NVM Express base
    /// specification 2.2, figure 647). Flush is one of these.
    #[must_use]
    pub const fn is_in_write_group(&self) -> bool {
        self.changes_medium() || matches!(self, Self::Flush | Self::DatasetManagement { .. })
    }

    /// Whether one which keeps others from reading keeps them from this.
    #[must_use]
    pub const fn is_in_read_group(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Compare { .. } | Self::Verify { .. } | Self::Copy { .. })
    }

    /// The command which asks for this, its data pointer still to be set.
    ///
    /// # Panics
    /// If a count is zero or wider than its field.
    #[must_use]
    pub fn to_command(&self, cid: u16, nsid: u32) -> Command {
        let (opcode, extent) = match *self {
            Self::Read { lba, blocks, fua } => (IoOpcode::READ, Extent::new(lba, blocks, fua)),
            Self::Write { lba, blocks, fua } => (IoOpcode::WRITE, Extent::new(lba, blocks, fua)),
            Self::Compare { lba, blocks, fua } => (IoOpcode::COMPARE, Extent::new(lba, blocks, fua)),
            Self::Verify { lba, blocks, fua } => (IoOpcode::VERIFY, Extent::new(lba, blocks, fua)),
            Self::WriteZeroes { lba, blocks, deallocate, fua } => {
                (IoOpcode::WRITE_ZEROES, Extent { deallocate, ..Extent::new(lba, blocks, fua) })
            }
            Self::Flush => return Command::new(IoOpcode::FLUSH.0, cid, nsid),
            Self::Reservation(request) => return request.to_command(cid, nsid),
            Self::Unknown(opcode) => return Command::new(opcode.0, cid, nsid),
            Self::Copy { lba, ranges, fua } => {
                let cdw12 = place(u64::from(ranges) - 1, 7, 0) | place(fua.into(), 30, 30);
                let cdw12 = (cdw12 as u32).into();
                let mut command = Command { cdw12, ..Command::new(IoOpcode::COPY.0, cid, nsid) };
                command.set_cdw10_11(lba);
                return command;
            }
            Self::DatasetManagement { ranges, deallocate } => {
                return Command {
                    cdw10: (place(u64::from(ranges) - 1, 7, 0) as u32).into(),
                    cdw11: (place(deallocate.into(), 2, 2) as u32).into(),
                    ..Command::new(IoOpcode::DATASET_MANAGEMENT.0, cid, nsid)
                };
            }
        };
        extent.write(Command::new(opcode.0, cid, nsid))
    }

    fn copy(command: &Command) -> Result<Self, Status> {
        let cdw12 = u64::from(command.cdw12);
        let ranges = bits(cdw12, 7, 0) as u16 + 1;
        // Of descriptor formats there is 0h alone (OCFS).
        if bits(cdw12, 11, 8) != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if ranges > SourceRanges::MAX {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        Ok(Self::Copy { lba: command.cdw10_11(), ranges, fua: bit(cdw12, 30) })
    }

    fn dataset_management(command: &Command) -> Self {
        Self::DatasetManagement {
            ranges: bits(command.cdw10.into(), 7, 0) as u16 + 1,
            deallocate: bit(command.cdw11.into(), 2),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, lba, blocks, fua) = match *self {
            Self::Read { lba, blocks, fua } => ("Read", lba, blocks, fua),
            Self::Write { lba, blocks, fua } => ("Write", lba, blocks, fua),
            Self::Compare { lba, blocks, fua } => ("Compare", lba, blocks, fua),
            Self::Verify { lba, blocks, fua } => ("Verify", lba, blocks, fua),
            Self::WriteZeroes { lba, blocks, fua, .. } => ("Write Zeroes", lba, blocks, fua),
            Self::Flush => return f.write_str("Flush"),
            Self::DatasetManagement { ranges, deallocate } => {
                let what = if deallocate { ", deallocate" } else { "" };
                return write!(f, "Dataset Management of {ranges} ranges{what}");
            }
            Self::Copy { lba, ranges, fua } => {
                let forced = if fua { ", FUA" } else { "" };
                return write!(f, "Copy of {ranges} ranges to {lba}{forced}");
            }
            Self::Reservation(request) => return request.fmt(f),
            Self::Unknown(opcode) => return opcode.fmt(f),
        };
        write!(f, "{name} of {blocks} blocks at {lba}")?;
        if matches!(self, Self::WriteZeroes { deallocate: true, .. }) {
            f.write_str(", deallocate")?;
        }
        f.write_str(if fua { ", FUA" } else { "" })
    }
}

/// The fields which all commands on a range of blocks share.
struct Extent {
    lba: u64,
    blocks: u32,
    fua: bool,
    deallocate: bool,
}

impl Extent {
    const fn new(lba: u64, blocks: u32, fua: bool) -> Self {
        Self { lba, blocks, fua, deallocate: false }
    }

    fn read(command: &Command) -> Self {
        let cdw12 = u64::from(command.cdw12);
        Self {
            lba: command.cdw10_11(),
            blocks: bits(cdw12, 15, 0) as u32 + 1,
            fua: bit(cdw12, 30),
            deallocate: bit(cdw12, 25),
        }
    }

    fn write(&self, mut command: Command) -> Command {
        command.set_cdw10_11(self.lba);
        let cdw12 = place(u64::from(self.blocks) - 1, 15, 0)
            | place(self.deallocate.into(), 25, 25)
            | place(self.fua.into(), 30, 30);
        command.cdw12 = (cdw12 as u32).into();
        command
    }
}

/// One range of a Dataset Management command as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Range {
    /// Hints, which may be ignored.
    pub context: U32,
    /// A count: zero is a range of nothing.
    pub blocks: U32,
    pub lba: U64,
}

const _: () = assert!(size_of::<Range>() == Range::SIZE as usize);

impl Range {
    /// In bytes.
    pub const SIZE: u32 = 16;

    #[must_use]
    pub fn new(lba: u64, blocks: u32) -> Self {
        Self { context: 0.into(), blocks: blocks.into(), lba: lba.into() }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks at {}", self.blocks, self.lba)
    }
}

/// The ranges of a Dataset Management command, each of which lies within the namespace.
#[derive(Clone, Copy, Debug)]
pub struct Ranges<'a>(&'a [Range]);

impl<'a> Ranges<'a> {
    /// Most ranges in one command.
    pub const MAX: u16 = 256;

    /// The first `ranges` ranges of `data`.
    ///
    /// # Errors
    /// Data SGL Length Invalid if `data` is too short, LBA Out of Range.
    pub fn parse(data: &'a [u8], ranges: u16, geometry: &Geometry) -> Result<Self, Status> {
        let (list, _) = <[Range]>::ref_from_prefix_with_elems(data, ranges.into())
            .map_err(|_| Status::DATA_SGL_LENGTH_INVALID)?;
        for range in list {
            geometry.check_range(range.lba.get(), range.blocks.get().into())?;
        }
        Ok(Self(list))
    }

    /// Each range as (LBA, blocks), without those of nothing.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> + use<'a> {
        self.0.iter().map(|range| (range.lba.get(), range.blocks.get())).filter(|&(_, blocks)| blocks > 0)
    }
}

/// The fields of an I/O command in words, behind its name.
pub(super) fn describe(command: &Command, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, " nsid {}", command.nsid)?;
    let unlimited = Geometry { block_shift: 0, blocks: u64::MAX, transfer_max: u32::MAX };
    match Request::parse(&Command { flags: Command::SGL_FLAGS, ..*command }, &unlimited) {
        Ok(Request::Flush | Request::Unknown(_)) => Ok(()),
        Ok(request) => write!(f, ": {request}"),
        Err(status) => write!(f, ": {status}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nvme::{Completion, DataPointer, QueueKind, admin};
    use crate::verbs::Remote;

    const GEOMETRY: Geometry = Geometry { block_shift: 9, blocks: 0x2000, transfer_max: 1 << 20 };

    fn parse(request: Request) -> Result<Request, Status> {
        Request::parse(&request.to_command(7, 1), &GEOMETRY)
    }

    /// `02400510 01000000 …` of the protocol's vectors.
    #[test]
    fn read_is_encoded_as_the_specification_has_it() {
        let pointer = DataPointer::Keyed {
            remote: Remote { address: 0x7F00_0000_1000, rkey: 0x00AB_CD01 },
            length: 4096,
            invalidate: true,
        };
        let request = Request::Read { lba: 0x1234, blocks: 8, fua: false };
        let command = request.to_command(0x1005, 1).with_data(pointer);
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[2, 0x40, 5, 0x10, 1, 0, 0, 0]);
        expected[24..40].copy_from_slice(&[0, 0x10, 0, 0, 0, 0x7F, 0, 0, 0, 0x10, 0, 1, 0xCD, 0xAB, 0, 0x4F]);
        expected[40..50].copy_from_slice(&[0x34, 0x12, 0, 0, 0, 0, 0, 0, 7, 0]);
        assert_eq!(command.to_bytes(), expected);
        assert_eq!(Request::parse(&command, &GEOMETRY), Ok(request));
        assert_eq!(request.transfer(&GEOMETRY), Transfer::ToHost(4096));
        assert_eq!(
            command.on(QueueKind::Io).to_string(),
            "Read cid 0x1005 nsid 1: Read of 8 blocks at 4660, 4096 bytes at 0x7f0000001000 key 0x00abcd01 to \
             be invalidated"
        );
    }

    #[test]
    fn every_request_survives_its_command() {
        let (lba, blocks) = (5, 16);
        for fua in [false, true] {
            for request in [
                Request::Read { lba, blocks, fua },
                Request::Write { lba, blocks, fua },
                Request::Compare { lba, blocks, fua },
                Request::Verify { lba, blocks, fua },
                Request::WriteZeroes { lba, blocks, fua, deallocate: !fua },
                Request::DatasetManagement { ranges: 256, deallocate: fua },
                Request::Flush,
                Request::Copy { lba, ranges: 128, fua },
                Request::Unknown(IoOpcode(0x7F)),
            ] {
                assert_eq!(parse(request), Ok(request));
            }
        }
    }

    #[test]
    fn the_last_block_is_in_and_the_one_behind_is_out() {
        let read = |lba, blocks| parse(Request::Read { lba, blocks, fua: false });
        assert!(read(0x1FFF, 1).is_ok());
        assert_eq!(read(0x1FFF, 2), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(read(u64::MAX, 1), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(read(u64::MAX - 5, 16), Err(Status::LBA_OUT_OF_RANGE));
    }

    #[test]
    fn the_transfer_limit_does_not_bind_write_zeroes() {
        let (lba, fua) = (0, false);
        assert!(parse(Request::Write { lba, blocks: 2048, fua }).is_ok());
        assert_eq!(parse(Request::Write { lba, blocks: 2049, fua }), Err(Status::INVALID_FIELD));
        assert_eq!(parse(Request::Verify { lba, blocks: 2049, fua }), Err(Status::INVALID_FIELD));
        assert!(parse(Request::WriteZeroes { lba, blocks: 0x2000, deallocate: true, fua }).is_ok());
    }

    #[test]
    fn a_copy_has_so_many_ranges_of_one_format() {
        let copy = Request::Copy { lba: 9, ranges: 2, fua: true };
        let command = copy.to_command(0, 1);
        assert_eq!((command.opcode, command.cdw12.get(), command.cdw10_11()), (0x19, 0x4000_0001, 9));
        assert_eq!(copy.transfer(&GEOMETRY), Transfer::FromHostAtLeast(64));
        for (cdw12, status) in [
            (0x080, Status::COMMAND_SIZE_LIMIT_EXCEEDED),
            (0x100, Status::INVALID_FIELD),
            (0x200, Status::INVALID_FIELD),
        ] {
            let command = Command { cdw12: cdw12.into(), ..command };
            assert_eq!(Request::parse(&command, &GEOMETRY), Err(status), "{cdw12:#x}");
        }
    }

    #[test]
    fn fused_commands_are_refused() {
        let command = Command { flags: 0x41, ..Request::Flush.to_command(0, 1) };
        assert_eq!(Request::parse(&command, &GEOMETRY), Err(Status::INVALID_FIELD));
    }

    proptest! {
        /// Any 64 bytes are a command; what parses lies within the namespace, and nothing panics.
        #[test]
        fn any_bytes_are_a_command(bytes: [u8; 64], opcode in 0u8..0x80, received: u32) {
            let command = Command { opcode, ..Command::from_capsule(&bytes).unwrap() };
            let words = [QueueKind::Admin, QueueKind::Io].map(|kind| command.on(kind).to_string());
            prop_assert!(words.iter().all(|words| !words.is_empty()) && !command.to_string().is_empty());
            if let Ok(DataPointer::InCapsule { offset, length }) = DataPointer::parse(&command, received) {
                prop_assert!(u64::from(offset) + u64::from(length) <= u64::from(received));
            }
            if let Ok(Request::Read { lba, blocks, .. }) = Request::parse(&command, &GEOMETRY) {
                prop_assert!(lba + u64::from(blocks) <= GEOMETRY.blocks && blocks > 0);
            }
            match admin::transfer(&command) {
                Ok(Transfer::ToHost(_)) => prop_assert!(!command.is_from_host()),
                Ok(Transfer::FromHost(_)) => prop_assert!(command.is_from_host()),
                _ => {}
            }
            prop_assert!(!Completion::from_capsule(&bytes).unwrap().to_string().is_empty());
        }
    }

    #[test]
    fn dataset_management_ranges() {
        let list = [Range::new(0, 8), Range::new(9, 0), Range::new(0x1FFF, 1)];
        let ranges = Ranges::parse(list.as_bytes(), 3, &GEOMETRY).unwrap();
        assert!(ranges.iter().eq([(0, 8), (0x1FFF, 1)]));
        assert!(Ranges::parse(list.as_bytes(), 1, &GEOMETRY).unwrap().iter().eq([(0, 8)]));
        assert_eq!(Ranges::parse(list.as_bytes(), 4, &GEOMETRY).err(), Some(Status::DATA_SGL_LENGTH_INVALID));
        let beyond = [Range::new(u64::MAX, u32::MAX)];
        assert_eq!(Ranges::parse(beyond.as_bytes(), 1, &GEOMETRY).err(), Some(Status::LBA_OUT_OF_RANGE));
        let request = Request::DatasetManagement { ranges: 3, deallocate: true };
        assert_eq!(request.transfer(&GEOMETRY), Transfer::FromHostAtLeast(48));
    }
}
