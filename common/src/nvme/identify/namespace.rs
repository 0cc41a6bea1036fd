//! Identify Namespace: CNS 00, its supplements CNS 05 and 08, and the command set's CNS 06.
use std::fmt;

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::bits::{bit, bits};

/// One format a namespace may have, as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata of each block in bytes.
    pub metadata_size: U16,
    /// Binary logarithm of the block size in bytes.
    pub block_shift: u8,
    pub relative_performance: u8,
}

const _: () = assert!(size_of::<LbaFormat>() == 4);

/// Identify Namespace, NVM command set (CNS 00), as it is on the wire.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Namespace {
    /// Size, capacity and use in blocks. No capacity: not an active namespace.
    pub nsze: U64,
    pub ncap: U64,
    pub nuse: U64,
    pub nsfeat: u8,
    /// Number of formats, 0's based.
    pub nlbaf: u8,
    pub flbas: u8,
    pub mc: u8,
    pub dpc: u8,
    pub dps: u8,
    /// Bit 0: may be attached to several controllers.
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub dlfeat: u8,
    pub nawun: U16,
    pub nawupf: U16,
    pub nacwu: U16,
    pub nabsn: U16,
    pub nabo: U16,
    pub nabspf: U16,
    pub noiob: U16,
    pub nvmcap: [u8; 16],
    /// Preferred granularities, all 0's based: write, write alignment, deallocate, deallocate alignment, optimal
    /// write size.
    pub npwg: U16,
    pub npwa: U16,
    pub npdg: U16,
    pub npda: U16,
    pub nows: U16,
    pub mssrl: U16,
    pub mcl: U32,
    pub msrc: u8,
    pub reserved_81: [u8; 11],
    pub anagrpid: U32,
    pub reserved_96: [u8; 3],
    /// Bit 0: write protected.
    pub nsattr: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub formats: [LbaFormat; 64],
    pub vendor: [u8; 3712],
}

const _: () = {
    assert!(size_of::<Namespace>() == super::SIZE as usize);
    assert!(std::mem::offset_of!(Namespace, dlfeat) == 33);
    assert!(std::mem::offset_of!(Namespace, nvmcap) == 48);
    assert!(std::mem::offset_of!(Namespace, anagrpid) == 92);
    assert!(std::mem::offset_of!(Namespace, nsattr) == 99);
    assert!(std::mem::offset_of!(Namespace, nguid) == 104);
    assert!(std::mem::offset_of!(Namespace, formats) == 128);
};

impl Namespace {
    /// NMIC: may be attached to several controllers.
    pub const SHARED: u8 = 1 << 0;
    /// NSFEAT: NPWG to NOWS are valid.
    pub const OPTIMAL_IO: u8 = 1 << 4;
    /// DLFEAT: deallocated blocks read as zeros, and Write Zeroes may deallocate.
    pub const DEALLOCATED_READS_ZERO: u8 = 0b1001;

    /// The format in use; `None` if the index is one the structure has no room for, which no index is.
    #[must_use]
    pub fn format(&self) -> Option<LbaFormat> {
        self.formats.get(self.format_index()).copied()
    }

    /// Which format is in use.
    #[must_use]
    pub const fn format_index(&self) -> usize {
        let flbas = self.flbas as u64;
        let high = if self.nlbaf > 15 { bits(flbas, 6, 5) << 4 } else { 0 };
        // Six bits.
        (bits(flbas, 3, 0) | high) as usize
    }

    /// Whether there is such a namespace at all.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.ncap.get() != 0
    }

    #[must_use]
    pub const fn is_write_protected(&self) -> bool {
        bit(self.nsattr as u64, 0)
    }

    /// Whether deallocated blocks, and those Write Zeroes deallocates, read as zeros.
    #[must_use]
    pub const fn deallocated_reads_zero(&self) -> bool {
        bits(self.dlfeat as u64, 2, 0) == 1 && bit(self.dlfeat as u64, 3)
    }

    #[must_use]
    pub fn nguid(&self) -> Option<Uuid> {
        Some(Uuid::from_bytes(self.nguid)).filter(|nguid| !nguid.is_nil())
    }
}

impl fmt::Display for LbaFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks of 2^{} bytes with {} of metadata", self.block_shift, self.metadata_size)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_active() {
            return f.write_str("inactive namespace");
        }
        write!(f, "namespace of {} blocks", self.nsze)?;
        if let Some(format) = self.format() {
            write!(f, " of 2^{} bytes", format.block_shift)?;
        }
        if let Some(nguid) = self.nguid() {
            write!(f, ", NGUID {}", nguid.simple())?;
        }
        f.write_str(if self.nmic & Self::SHARED != 0 { ", shared" } else { "" })?;
        f.write_str(if self.is_write_protected() { ", write protected" } else { "" })
    }
}

/// Identify Namespace independent of command sets (CNS 08) as it is on the wire.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct IndependentNamespace {
    pub nsfeat: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub anagrpid: U32,
    pub nsattr: u8,
    pub reserved_9: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    /// Bit 0: ready.
    pub nstat: u8,
    pub reserved_15: [u8; 4081],
}

const _: () = assert!(size_of::<IndependentNamespace>() == super::SIZE as usize);

impl IndependentNamespace {
    /// NSFEAT: this namespace has no volatile write cache.
    pub const NO_VOLATILE_WRITE_CACHE: u8 = 1 << 5;
    /// NSTAT: ready.
    pub const READY: u8 = 1 << 0;
}

impl fmt::Display for IndependentNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = self.nstat & Self::READY != 0;
        f.write_str(if ready { "namespace, ready" } else { "namespace, not ready" })?;
        f.write_str(if self.nmic & Namespace::SHARED != 0 { ", shared" } else { "" })?;
        f.write_str(if bit(self.nsattr.into(), 0) { ", write protected" } else { "" })?;
        let no_cache = self.nsfeat & Self::NO_VOLATILE_WRITE_CACHE != 0;
        f.write_str(if no_cache { ", without a volatile write cache" } else { "" })
    }
}

/// Identify Controller of the NVM command set (CNS 06) as it is on the wire: limits, 0 for none.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct CommandSetController {
    /// Verify, Write Zeroes and Write Uncorrectable size limits: binary logarithm in pages.
    pub vsl: u8,
    pub wzsl: u8,
    pub wusl: u8,
    /// Dataset Management: most ranges, most blocks in a range, most blocks altogether.
    pub dmrl: u8,
    pub dmrsl: U32,
    pub dmsl: U64,
    pub reserved_16: [u8; 4080],
}

const _: () = assert!(size_of::<CommandSetController>() == super::SIZE as usize);

impl fmt::Display for CommandSetController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limits: Verify 2^{}, Write Zeroes 2^{} pages, ", self.vsl, self.wzsl)?;
        write!(f, "{} ranges of {} blocks deallocated at once, 0 for no limit", self.dmrl, self.dmrsl)
    }
}

/// Identify Namespace of the NVM command set (CNS 05) as it is on the wire.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct CommandSetNamespace {
    pub lbstm: U64,
    pub pic: u8,
    pub reserved_9: [u8; 3],
    pub elbaf: [U32; 64],
    pub reserved_268: [u8; 3828],
}

const _: () = assert!(size_of::<CommandSetNamespace>() == super::SIZE as usize);

impl fmt::Display for CommandSetNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protection information capabilities {:#04x}, tag mask {:#x}", self.pic, self.lbstm)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn the_format_is_found_by_both_parts_of_its_index() {
        let mut namespace = Namespace::new_zeroed();
        namespace.formats[3].block_shift = 12;
        namespace.formats[0x13].block_shift = 9;
        namespace.flbas = 0x23;
        assert_eq!(namespace.format().unwrap().block_shift, 12);
        namespace.nlbaf = 20;
        assert_eq!(namespace.format().unwrap().block_shift, 9);
        namespace.flbas = 0xFF;
        assert_eq!(namespace.format(), Some(namespace.formats[63]));
    }

    #[test]
    fn words_of_a_namespace() {
        let mut namespace = Namespace::new_zeroed();
        assert_eq!(namespace.to_string(), "inactive namespace");
        (namespace.nsze, namespace.ncap) = (100.into(), 100.into());
        (namespace.nmic, namespace.nsattr, namespace.dlfeat) = (1, 1, Namespace::DEALLOCATED_READS_ZERO);
        namespace.formats[0].block_shift = 9;
        assert_eq!(namespace.to_string(), "namespace of 100 blocks of 2^9 bytes, shared, write protected");
        assert!(namespace.deallocated_reads_zero());
        let mut independent = IndependentNamespace::new_zeroed();
        assert_eq!(independent.to_string(), "namespace, not ready");
        (independent.nstat, independent.nmic, independent.nsfeat) = (1, 1, 0x20);
        let words = "namespace, ready, shared, without a volatile write cache";
        assert_eq!(independent.to_string(), words);
    }
}
