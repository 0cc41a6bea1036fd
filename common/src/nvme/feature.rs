//! Features: what Set Features and Get Features name, and the values of those we know.
use std::fmt;

use super::bits::{bit, bits, place};

/// FID: which feature.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FeatureId(pub u8);

impl FeatureId {
    pub const ARBITRATION: Self = Self(0x01);
    pub const POWER_MANAGEMENT: Self = Self(0x02);
    pub const TEMPERATURE_THRESHOLD: Self = Self(0x04);
    pub const ERROR_RECOVERY: Self = Self(0x05);
    pub const VOLATILE_WRITE_CACHE: Self = Self(0x06);
    pub const NUMBER_OF_QUEUES: Self = Self(0x07);
    pub const WRITE_ATOMICITY: Self = Self(0x0A);
    pub const ASYNC_EVENT_CONFIGURATION: Self = Self(0x0B);
    pub const TIMESTAMP: Self = Self(0x0E);
    pub const KEEP_ALIVE_TIMER: Self = Self(0x0F);
    pub const HOST_BEHAVIOR: Self = Self(0x16);
    pub const HOST_IDENTIFIER: Self = Self(0x81);
    pub const RESERVATION_NOTIFICATION_MASK: Self = Self(0x82);
    pub const RESERVATION_PERSISTENCE: Self = Self(0x83);
    pub const NAMESPACE_WRITE_PROTECTION: Self = Self(0x84);

    /// Whether each namespace has a value of its own.
    #[must_use]
    pub const fn is_of_a_namespace(self) -> bool {
        matches!(
            self,
            Self::RESERVATION_NOTIFICATION_MASK
                | Self::RESERVATION_PERSISTENCE
                | Self::NAMESPACE_WRITE_PROTECTION
        )
    }
}

impl fmt::Display for FeatureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::ARBITRATION => "Arbitration",
            Self::POWER_MANAGEMENT => "Power Management",
            Self::TEMPERATURE_THRESHOLD => "Temperature Threshold",
            Self::ERROR_RECOVERY => "Error Recovery",
            Self::VOLATILE_WRITE_CACHE => "Volatile Write Cache",
            Self::NUMBER_OF_QUEUES => "Number of Queues",
            Self::WRITE_ATOMICITY => "Write Atomicity",
            Self::ASYNC_EVENT_CONFIGURATION => "Asynchronous Event Configuration",
            Self::TIMESTAMP => "Timestamp",
            Self::KEEP_ALIVE_TIMER => "Keep Alive Timer",
            Self::HOST_BEHAVIOR => "Host Behavior Support",
            Self::HOST_IDENTIFIER => "Host Identifier",
            Self::RESERVATION_NOTIFICATION_MASK => "Reservation Notification Mask",
            Self::RESERVATION_PERSISTENCE => "Reservation Persistence",
            Self::NAMESPACE_WRITE_PROTECTION => "Namespace Write Protection",
            Self(other) => return write!(f, "feature {other:#04x}"),
        })
    }
}

/// SEL: which value Get Features asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Select(pub u8);

impl Select {
    pub const CURRENT: Self = Self(0);
    pub const DEFAULT: Self = Self(1);
    pub const SAVED: Self = Self(2);
    pub const CAPABILITIES: Self = Self(3);
}

/// Number of Queues: how many I/O submission and completion queues are asked for, or granted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueCounts {
    pub submission: u32,
    pub completion: u32,
}

impl QueueCounts {
    /// From CDW11, or from the DW0 of the answer. `None` for the value which means nothing.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Option<Self> {
        let (submission, completion) = (bits(dword as u64, 15, 0) as u32, bits(dword as u64, 31, 16) as u32);
        if submission == 0xFFFF || completion == 0xFFFF {
            return None;
        }
        Some(Self { submission: submission + 1, completion: completion + 1 })
    }

    /// # Panics
    /// If a count is zero or above 65536.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        assert!(self.submission > 0 && self.completion > 0, "counts are 0's based");
        (place(self.submission as u64 - 1, 15, 0) | place(self.completion as u64 - 1, 31, 16)) as u32
    }
}

/// Asynchronous Event Configuration: of which events the host wants to hear. The same bits as OAES.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EventMask(pub u32);

impl EventMask {
    pub const NAMESPACE_ATTRIBUTES: Self = Self(1 << 8);
    pub const FIRMWARE_ACTIVATION: Self = Self(1 << 9);
    pub const ANA: Self = Self(1 << 11);
    pub const DISCOVERY: Self = Self(1 << 31);

    /// Whether all of `other` is in it.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Namespace Write Protection Config: the states a namespace can be in (NVM Express base specification 2.2, section
/// 5.1.25.1.31).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WriteProtection {
    None,
    /// Until a host says otherwise, whatever happens to the power.
    Protected,
    UntilPowerCycle,
    Permanent,
}

impl WriteProtection {
    /// NWPC: the first two can be set. The others want an RPMB, which says who may set them.
    pub const CAPABILITIES: u8 = 1 << 0;

    const ALL: [Self; 4] = [Self::None, Self::Protected, Self::UntilPowerCycle, Self::Permanent];

    /// From CDW11 of Set Features. `None` for a reserved value.
    #[must_use]
    pub fn from_dword(dword: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| u64::from(state.to_dword()) == bits(dword.into(), 2, 0))
    }

    /// DW0 of the answer to Get Features.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        self as u32
    }
}

/// Host Identifier, Get Features: whether the host takes the extended one of 16 bytes.
#[must_use]
pub const fn wants_extended_host_identifier(cdw11: u32) -> bool {
    bit(cdw11 as u64, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_queues_are_zero_based() {
        let counts = QueueCounts { submission: 4, completion: 8 };
        assert_eq!(counts.to_dword(), 0x0007_0003);
        assert_eq!(QueueCounts::from_dword(0x0007_0003), Some(counts));
        assert_eq!(QueueCounts::from_dword(0xFFFF_0000), None);
        assert_eq!(QueueCounts::from_dword(0x0000_FFFF), None);
    }

    #[test]
    fn states_of_protection_have_three_bits() {
        let states = (0..9).map(WriteProtection::from_dword);
        let known = WriteProtection::ALL.map(Some);
        assert!(states.eq(known.into_iter().chain([None; 4]).chain([Some(WriteProtection::None)])));
        for state in WriteProtection::ALL {
            assert_eq!(WriteProtection::from_dword(state.to_dword()), Some(state));
        }
    }

    #[test]
    fn names_and_masks() {
        assert_eq!(FeatureId(0xC0).to_string(), "feature 0xc0");
        assert!(EventMask(0x8000_0900).contains(EventMask::ANA));
        assert!(!EventMask(0x100).contains(EventMask::DISCOVERY));
        assert!(wants_extended_host_identifier(1));
    }
}
