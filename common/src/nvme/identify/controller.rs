//! Identify Controller, CNS 01.
use std::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::bits::bit;
use crate::nvme::property::Version;
use crate::nvme::text;

/// CMIC: what there may be beside this controller.
pub struct Cmic;

impl Cmic {
    /// The subsystem may have more than one port.
    pub const MULTI_PORT: u8 = 1 << 0;
    /// The subsystem may have more than one controller.
    pub const MULTI_CONTROLLER: u8 = 1 << 1;
    /// Asymmetric namespace access is reported.
    pub const ANA: u8 = 1 << 3;
}

/// ANACAP: what of asymmetric namespace access is reported.
pub struct Anacap;

impl Anacap {
    /// Each of the five states may be met.
    pub const ALL_STATES: u8 = 0b1_1111;
}

/// LPA: what Get Log Page can do.
pub struct Lpa;

impl Lpa {
    pub const EFFECTS: u8 = 1 << 1;
    /// Lengths beyond 16 bits of double words, and offsets.
    pub const EXTENDED: u8 = 1 << 2;
    pub const SUPPORTED_PAGES: u8 = 1 << 5;
}

/// ONCS: which optional I/O commands there are.
pub struct Oncs;

impl Oncs {
    pub const COMPARE: u16 = 1 << 0;
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    pub const WRITE_ZEROES: u16 = 1 << 3;
    pub const RESERVATIONS: u16 = 1 << 5;
    pub const TIMESTAMP: u16 = 1 << 6;
    pub const VERIFY: u16 = 1 << 7;
    pub const COPY: u16 = 1 << 8;
}

/// SGLS: which SGL descriptors the controller takes.
pub struct Sgls;

impl Sgls {
    /// SGLs are supported, without alignment.
    pub const SUPPORTED: u32 = 1 << 0;
    pub const KEYED: u32 = 1 << 2;
    /// Data blocks with an offset: data in the capsule.
    pub const OFFSET: u32 = 1 << 20;
}

/// CNTRLTYPE: what kind of controller it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ControllerType(pub u8);

impl ControllerType {
    pub const IO: Self = Self(1);
    pub const DISCOVERY: Self = Self(2);
    pub const ADMINISTRATIVE: Self = Self(3);
}

impl fmt::Display for ControllerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::IO => "I/O controller",
            Self::DISCOVERY => "discovery controller",
            Self::ADMINISTRATIVE => "administrative controller",
            Self(other) => return write!(f, "controller of type {other}"),
        })
    }
}

/// Identify Controller as it is on the wire. Counts the specification has 0's based are so here too.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Controller {
    pub vid: U16,
    pub ssvid: U16,
    pub serial: [u8; 20],
    pub model: [u8; 40],
    pub firmware: [u8; 8],
    pub rab: u8,
    pub ieee: [u8; 3],
    pub cmic: u8,
    /// Binary logarithm of the longest transfer in pages; 0 for no limit.
    pub mdts: u8,
    pub cntlid: U16,
    pub version: U32,
    pub rtd3r_us: U32,
    pub rtd3e_us: U32,
    pub oaes: U32,
    pub ctratt: U32,
    pub reserved_100: [u8; 11],
    pub controller_type: u8,
    pub fguid: [u8; 16],
    pub crdt: [U16; 3],
    pub reserved_134: [u8; 122],
    pub oacs: U16,
    /// Abort commands at once, 0's based.
    pub acl: u8,
    /// Asynchronous Event Requests at once, 0's based.
    pub aerl: u8,
    pub frmw: u8,
    pub lpa: u8,
    /// Entries of the error log, 0's based.
    pub elpe: u8,
    pub npss: u8,
    pub avscc: u8,
    pub apsta: u8,
    pub wctemp_k: U16,
    pub cctemp_k: U16,
    pub mtfa: U16,
    pub hmpre: U32,
    pub hmmin: U32,
    pub tnvmcap: [u8; 16],
    pub unvmcap: [u8; 16],
    pub rpmbs: U32,
    pub edstt: U16,
    pub dsto: u8,
    pub fwug: u8,
    /// Granularity of the keep alive timer.
    pub kas_100ms: U16,
    pub reserved_322: [u8; 18],
    pub endgidmax: U16,
    pub anatt_s: u8,
    pub anacap: u8,
    pub anagrpmax: U32,
    pub nanagrpid: U32,
    pub reserved_352: [u8; 160],
    pub sqes: u8,
    pub cqes: u8,
    /// Commands a queue takes at once, a count.
    pub maxcmd: U16,
    /// Largest namespace identifier.
    pub nn: U32,
    pub oncs: U16,
    pub fuses: U16,
    pub fna: u8,
    pub vwc: u8,
    pub awun: U16,
    pub awupf: U16,
    pub icsvscc: u8,
    pub nwpc: u8,
    pub acwu: U16,
    pub ocfs: U16,
    pub sgls: U32,
    pub mnan: U32,
    pub reserved_544: [u8; 224],
    pub subnqn: [u8; 256],
    pub reserved_1024: [u8; 768],
    /// Command capsule in units of 16 bytes: 4 is a command without data.
    pub ioccsz_16b: U32,
    /// Response capsule in units of 16 bytes.
    pub iorcsz_16b: U32,
    /// Where in-capsule data begins behind the command, in units of 16 bytes.
    pub icdoff_16b: U16,
    pub fcatt: u8,
    /// SGL data blocks in a capsule; 0 for no limit.
    pub msdbd: u8,
    pub ofcs: U16,
    pub dctype: u8,
    pub reserved_1807: [u8; 241],
    pub power_states: [[u8; 32]; 32],
    pub vendor: [u8; 1024],
}

const _: () = {
    assert!(size_of::<Controller>() == super::SIZE as usize);
    assert!(std::mem::offset_of!(Controller, controller_type) == 111);
    assert!(std::mem::offset_of!(Controller, oacs) == 256);
    assert!(std::mem::offset_of!(Controller, kas_100ms) == 320);
    assert!(std::mem::offset_of!(Controller, nanagrpid) == 348);
    assert!(std::mem::offset_of!(Controller, sqes) == 512);
    assert!(std::mem::offset_of!(Controller, sgls) == 536);
    assert!(std::mem::offset_of!(Controller, subnqn) == 768);
    assert!(std::mem::offset_of!(Controller, ioccsz_16b) == 1792);
    assert!(std::mem::offset_of!(Controller, dctype) == 1806);
    assert!(std::mem::offset_of!(Controller, power_states) == 2048);
};

impl Controller {
    #[must_use]
    pub const fn controller_type(&self) -> ControllerType {
        ControllerType(self.controller_type)
    }

    /// Bytes of data which fit into a command capsule.
    #[must_use]
    pub fn in_capsule_data(&self) -> u32 {
        self.ioccsz_16b.get().saturating_mul(16).saturating_sub(64)
    }

    /// Longest transfer in bytes, of pages as large as CAP.MPSMIN says; `None` for no limit.
    #[must_use]
    pub fn transfer_max(&self, page_shift_min: u8) -> Option<u64> {
        (self.mdts != 0)
            .then(|| 1u64.checked_shl(u32::from(self.mdts) + u32::from(page_shift_min)).unwrap_or(u64::MAX))
    }

    /// Whether a volatile write cache is present, so that Flush and FUA mean something.
    #[must_use]
    pub const fn has_volatile_write_cache(&self) -> bool {
        bit(self.vwc as u64, 0)
    }

    #[must_use]
    pub fn supports(&self, oncs: u16) -> bool {
        self.oncs.get() & oncs == oncs
    }

    /// Whether the controller takes in-capsule data.
    #[must_use]
    pub fn takes_in_capsule_data(&self) -> bool {
        self.sgls.get() & Sgls::OFFSET != 0
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.controller_type(), self.cntlid, text::read(&self.subnqn))?;
        write!(f, ", NVMe {}", Version(self.version.get()))?;
        write!(f, ", model {:?} serial {:?} ", text::read(&self.model), text::read(&self.serial))?;
        write!(f, "firmware {:?}, namespaces up to {}", text::read(&self.firmware), self.nn)?;
        write!(f, ", {} commands a queue, MDTS {}", self.maxcmd, self.mdts)?;
        write!(f, ", {} bytes in capsule, ONCS {:#06x}", self.in_capsule_data(), self.oncs)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn limits_of_hostile_values_do_not_overflow() {
        let mut controller = Controller::new_zeroed();
        assert_eq!(controller.in_capsule_data(), 0);
        assert_eq!(controller.transfer_max(12), None);
        controller.ioccsz_16b = u32::MAX.into();
        controller.mdts = 255;
        assert_eq!(controller.in_capsule_data(), u32::MAX - 64);
        assert_eq!(controller.transfer_max(12), Some(u64::MAX));
        controller.ioccsz_16b = 260.into();
        controller.mdts = 8;
        assert_eq!(controller.in_capsule_data(), 4096);
        assert_eq!(controller.transfer_max(12), Some(1 << 20));
    }
}
