//! The source of a Copy: ranges of the same namespace, one behind the other, as descriptor format 0h has them (NVM
//! Command Set specification, Copy command).
use std::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Status;
use super::io::Geometry;

/// One source range as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct SourceRange {
    pub reserved_0: [u8; 8],
    pub lba: U64,
    /// 0's based.
    pub blocks: U16,
    /// Of protection information, which no namespace here has.
    pub reserved_18: [u8; 14],
}

const _: () = {
    assert!(size_of::<SourceRange>() == SourceRange::SIZE as usize);
    assert!(std::mem::offset_of!(SourceRange, blocks) == 16);
};

impl SourceRange {
    /// In bytes.
    pub const SIZE: u32 = 32;

    /// # Panics
    /// If the count is zero or above 65536.
    #[must_use]
    pub fn new(lba: u64, blocks: u32) -> Self {
        let blocks = u16::try_from(blocks - 1).expect("a count of 1 to 65536");
        Self { reserved_0: [0; 8], lba: lba.into(), blocks: blocks.into(), reserved_18: [0; 14] }
    }

    fn blocks(&self) -> u32 {
        u32::from(self.blocks.get()) + 1
    }
}

impl fmt::Display for SourceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks at {}", self.blocks(), self.lba)
    }
}

/// The source ranges of a Copy, each of which lies within the namespace, as does what they are copied to.
#[derive(Clone, Copy, Debug)]
pub struct SourceRanges<'a>(&'a [SourceRange]);

impl<'a> SourceRanges<'a> {
    /// Most ranges in one command (MSRC, which is 0's based).
    pub const MAX: u16 = 128;

    /// The first `ranges` ranges of `data`, to be copied to the blocks from `lba` on.
    ///
    /// # Errors
    /// Data SGL Length Invalid if `data` is too short, Command Size Limit Exceeded for more blocks than one Copy moves,
    /// LBA Out of Range.
    pub fn parse(data: &'a [u8], ranges: u16, lba: u64, geometry: &Geometry) -> Result<Self, Status> {
        let (list, _) = <[SourceRange]>::ref_from_prefix_with_elems(data, ranges.into())
            .map_err(|_| Status::DATA_SGL_LENGTH_INVALID)?;
        let blocks: u64 = list.iter().map(|range| u64::from(range.blocks())).sum();
        if blocks > geometry.copy_blocks().into() {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        for range in list {
            geometry.check_range(range.lba.get(), range.blocks().into())?;
        }
        geometry.check_range(lba, blocks)?;
        Ok(Self(list))
    }

    /// Each range as (LBA, blocks, blocks of the ranges before it).
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32, u32)> + use<'a> {
        self.0.iter().scan(0, |before, range| {
            let blocks = range.blocks();
            *before += blocks;
            Some((range.lba.get(), blocks, *before - blocks))
        })
    }

    /// Blocks in all.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.0.iter().map(SourceRange::blocks).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { block_shift: 12, blocks: 100, transfer_max: 1 << 20 };

    fn parse(list: &[SourceRange], lba: u64) -> Result<Vec<(u64, u32, u32)>, Status> {
        let ranges = u16::try_from(list.len()).unwrap();
        SourceRanges::parse(list.as_bytes(), ranges, lba, &GEOMETRY).map(|ranges| ranges.iter().collect())
    }

    #[test]
    fn ranges_follow_each_other() {
        let list = [SourceRange::new(7, 3), SourceRange::new(0, 1), SourceRange::new(98, 2)];
        assert_eq!(parse(&list, 50).unwrap(), [(7, 3, 0), (0, 1, 3), (98, 2, 4)]);
        assert_eq!(SourceRanges::parse(list.as_bytes(), 3, 0, &GEOMETRY).unwrap().blocks(), 6);
        let short = SourceRanges::parse(&list.as_bytes()[..95], 3, 0, &GEOMETRY);
        assert_eq!(short.err(), Some(Status::DATA_SGL_LENGTH_INVALID));
    }

    #[test]
    fn source_and_destination_lie_within_the_namespace_and_the_limit() {
        assert_eq!(parse(&[SourceRange::new(99, 2)], 0), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(parse(&[SourceRange::new(u64::MAX, 1)], 0), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(parse(&[SourceRange::new(0, 2)], 99), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(parse(&[SourceRange::new(0, 2)], u64::MAX), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(GEOMETRY.copy_blocks(), 32);
        assert!(parse(&[SourceRange::new(0, 16); 2], 0).is_ok());
        let long = [SourceRange::new(0, 16), SourceRange::new(0, 17)];
        assert_eq!(parse(&long, 0), Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
        assert_eq!(parse(&[SourceRange::new(0, 65_536)], 0), Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
    }
}
