//! The properties of a controller: registers, had it any (NVM Express base specification 2.2, section 3.1.4).
use std::fmt;

use super::bits::{bit, bits, place};

/// Which property, by its offset.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PropertyId(pub u32);

impl PropertyId {
    pub const CAP: Self = Self(0x00);
    pub const VS: Self = Self(0x08);
    pub const CC: Self = Self(0x14);
    pub const CSTS: Self = Self(0x1C);
    pub const NSSR: Self = Self(0x20);
    pub const CRTO: Self = Self(0x68);

    /// Whether it has 8 bytes rather than 4.
    #[must_use]
    pub fn is_wide(self) -> bool {
        self == Self::CAP
    }
}

impl fmt::Display for PropertyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::CAP => "CAP",
            Self::VS => "VS",
            Self::CC => "CC",
            Self::CSTS => "CSTS",
            Self::NSSR => "NSSR",
            Self::CRTO => "CRTO",
            Self(other) => return write!(f, "property {other:#x}"),
        })
    }
}

/// CAP: what the controller can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Queues of at most `queue_depth` entries, ready within `timeout_500ms` half seconds, media and all (CRWMS,
    /// which revision 2.0 asks for); contiguous queues, the NVM command set alone and pages of 4 KiB.
    ///
    /// # Panics
    /// If `queue_depth` is zero or above 65536.
    #[must_use]
    pub const fn new(queue_depth: u32, timeout_500ms: u8) -> Self {
        assert!(queue_depth > 0, "MQES is 0's based");
        Self(
            place(queue_depth as u64 - 1, 15, 0)
                | place(1, 16, 16)
                | place(timeout_500ms as u64, 31, 24)
                | place(1, 37, 37)
                | place(1, 59, 59),
        )
    }

    /// MQES as a count: most entries of a queue.
    #[must_use]
    pub const fn queue_depth(self) -> u32 {
        bits(self.0, 15, 0) as u32 + 1
    }

    /// TO: how long until ready, or not ready, at most.
    #[must_use]
    pub const fn timeout_500ms(self) -> u8 {
        bits(self.0, 31, 24) as u8
    }

    /// The NVM command set by itself is supported.
    #[must_use]
    pub const fn nvm_command_set(self) -> bool {
        bit(self.0, 37)
    }

    /// Several I/O command sets are supported, to be chosen by CC.CSS 110b.
    #[must_use]
    pub const fn all_command_sets(self) -> bool {
        bit(self.0, 43)
    }

    /// MPSMIN: binary logarithm of the smallest page in bytes.
    #[must_use]
    pub const fn page_shift_min(self) -> u8 {
        bits(self.0, 51, 48) as u8 + 12
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queues of {} entries, ", self.queue_depth())?;
        write!(f, "ready within {} ms", u32::from(self.timeout_500ms()) * 500)?;
        f.write_str(if self.nvm_command_set() { ", NVM" } else { "" })?;
        f.write_str(if self.all_command_sets() { ", several command sets" } else { "" })
    }
}

/// VS: the version of the specification.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Version(pub u32);

impl Version {
    pub const V1_4: Self = Self::new(1, 4, 0);

    #[must_use]
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        Self((place(major as u64, 31, 16) | place(minor as u64, 15, 8) | place(tertiary as u64, 7, 0)) as u32)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = u64::from(self.0);
        write!(f, "{}.{}.{}", bits(word, 31, 16), bits(word, 15, 8), bits(word, 7, 0))
    }
}

/// What CC.SHN asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shutdown {
    None,
    Normal,
    Abrupt,
    Reserved,
}

/// CC: what the host wants of the controller.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Configuration(pub u32);

impl Configuration {
    /// What a host writes: entries of 64 and 16 bytes, pages of 4 KiB, the NVM command set.
    #[must_use]
    pub const fn new(enable: bool) -> Self {
        Self((place(enable as u64, 0, 0) | place(6, 19, 16) | place(4, 23, 20)) as u32)
    }

    /// The same, asking for a normal shutdown.
    #[must_use]
    pub const fn with_shutdown(self) -> Self {
        Self(self.0 & !(place(0b11, 15, 14) as u32) | place(0b01, 15, 14) as u32)
    }

    #[must_use]
    pub const fn enabled(self) -> bool {
        bit(self.0 as u64, 0)
    }

    /// CSS: 000b the NVM command set, 110b all there are.
    #[must_use]
    pub const fn command_set(self) -> u8 {
        bits(self.0 as u64, 6, 4) as u8
    }

    /// MPS: 0 for pages of 4 KiB.
    #[must_use]
    pub const fn page_size(self) -> u8 {
        bits(self.0 as u64, 10, 7) as u8
    }

    /// AMS: 0 for round robin.
    #[must_use]
    pub const fn arbitration(self) -> u8 {
        bits(self.0 as u64, 13, 11) as u8
    }

    #[must_use]
    pub const fn shutdown(self) -> Shutdown {
        match bits(self.0 as u64, 15, 14) {
            0b00 => Shutdown::None,
            0b01 => Shutdown::Normal,
            0b10 => Shutdown::Abrupt,
            _ => Shutdown::Reserved,
        }
    }

    /// IOSQES: binary logarithm of a submission queue entry; 6.
    #[must_use]
    pub const fn sq_entry_shift(self) -> u8 {
        bits(self.0 as u64, 19, 16) as u8
    }

    /// IOCQES: binary logarithm of a completion queue entry; 4.
    #[must_use]
    pub const fn cq_entry_shift(self) -> u8 {
        bits(self.0 as u64, 23, 20) as u8
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.enabled() { "enabled" } else { "disabled" })?;
        write!(f, ", command set {}, ", self.command_set())?;
        write!(f, "entries of 2^{} and 2^{} bytes", self.sq_entry_shift(), self.cq_entry_shift())?;
        f.write_str(match self.shutdown() {
            Shutdown::None => "",
            Shutdown::Normal => ", shut down",
            Shutdown::Abrupt => ", shut down abruptly",
            Shutdown::Reserved => ", shut down in a reserved way",
        })
    }
}

/// CSTS: how the controller is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ControllerStatus(pub u32);

/// What CSTS.SHST says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShutdownStatus {
    None,
    InProgress,
    Complete,
    Reserved,
}

impl ControllerStatus {
    #[must_use]
    pub const fn new(ready: bool, fatal: bool, shutdown_complete: bool) -> Self {
        let shutdown_status = if shutdown_complete { 0b10 } else { 0b00 };
        Self((place(ready as u64, 0, 0) | place(fatal as u64, 1, 1) | place(shutdown_status, 3, 2)) as u32)
    }

    #[must_use]
    pub const fn ready(self) -> bool {
        bit(self.0 as u64, 0)
    }

    /// CFS: only a reset helps.
    #[must_use]
    pub const fn fatal(self) -> bool {
        bit(self.0 as u64, 1)
    }

    #[must_use]
    pub const fn shutdown(self) -> ShutdownStatus {
        match bits(self.0 as u64, 3, 2) {
            0b00 => ShutdownStatus::None,
            0b01 => ShutdownStatus::InProgress,
            0b10 => ShutdownStatus::Complete,
            _ => ShutdownStatus::Reserved,
        }
    }
}

impl fmt::Display for ControllerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.ready() { "ready" } else { "not ready" })?;
        f.write_str(if self.fatal() { ", fatal" } else { "" })?;
        f.write_str(match self.shutdown() {
            ShutdownStatus::None => "",
            ShutdownStatus::InProgress => ", shutting down",
            ShutdownStatus::Complete => ", shut down",
            ShutdownStatus::Reserved => ", in a reserved shutdown state",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_of_a_linux_target() {
        let linux = Capabilities(0x0000_0820_0F00_007F);
        assert_eq!((linux.queue_depth(), linux.timeout_500ms(), linux.page_shift_min()), (128, 15, 12));
        assert!(linux.nvm_command_set() && linux.all_command_sets());
        assert_eq!(Capabilities::new(128, 15).0, 0x0800_0020_0F01_007F);
    }

    #[test]
    fn configuration_of_a_linux_host() {
        let linux = Configuration(0x0046_0061);
        assert!(linux.enabled());
        assert_eq!((linux.command_set(), linux.sq_entry_shift(), linux.cq_entry_shift()), (6, 6, 4));
        assert_eq!((linux.page_size(), linux.arbitration(), linux.shutdown()), (0, 0, Shutdown::None));
        assert_eq!(Configuration::new(true).0, 0x0046_0001);
        assert_eq!(Configuration::new(true).with_shutdown().0, 0x0046_4001);
        assert_eq!(
            Configuration::new(true).with_shutdown().to_string(),
            "enabled, command set 0, entries of 2^6 and 2^4 bytes, shut down"
        );
    }

    #[test]
    fn status_says_what_it_was_made_of() {
        let status = ControllerStatus::new(true, false, true);
        assert_eq!(status.0, 0b1001);
        assert_eq!((status.ready(), status.fatal()), (true, false));
        assert_eq!(status.shutdown(), ShutdownStatus::Complete);
        assert_eq!(ControllerStatus(2).to_string(), "not ready, fatal");
        assert_eq!(Version(0x0002_0100).to_string(), "2.1.0");
        assert_eq!(Version::V1_4.0, 0x0001_0400);
    }
}
