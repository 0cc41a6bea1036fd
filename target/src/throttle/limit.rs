//! How much may be asked for, and what a command asks for.
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use ironside_common::nvme::Nqn;
use ironside_common::size::Size;

/// What of a namespace, or by a host, may be asked for in a second. What is not given is not limited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limit {
    /// Commands a second.
    pub iops: Option<NonZeroU64>,
    /// Bytes a second, read and written together.
    pub bandwidth: Option<NonZeroU64>,
    /// Bytes a second which are read.
    pub read_bandwidth: Option<NonZeroU64>,
    /// Bytes a second which are written.
    pub write_bandwidth: Option<NonZeroU64>,
    /// For how long what was not used may be made up for.
    pub burst_ms: u32,
}

impl Limit {
    pub const BURST_MS_DEFAULT: u32 = 100;
    pub const BURST_MS_MAX: u32 = 60_000;
    /// The highest rates there are: beyond, nothing is worth counting.
    pub const IOPS_MAX: u64 = 100_000_000;
    pub const BANDWIDTH_MIN: u64 = 4096;
    pub const BANDWIDTH_MAX: u64 = 1 << 40;

    /// Whether it limits anything.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.iops.is_some()
            || self.bandwidth.is_some()
            || self.read_bandwidth.is_some()
            || self.write_bandwidth.is_some()
    }

    /// Whether something is said of it though it limits nothing.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        !self.is_any() && *self != Self::default()
    }

    /// As [`Self::burst_ms`].
    #[must_use]
    pub const fn burst(&self) -> Duration {
        Duration::from_millis(self.burst_ms as u64)
    }
}

/// No limit at all.
impl Default for Limit {
    fn default() -> Self {
        Self {
            iops: None,
            bandwidth: None,
            read_bandwidth: None,
            write_bandwidth: None,
            burst_ms: Self::BURST_MS_DEFAULT,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_any() {
            return f.write_str("no limit");
        }
        let bandwidths =
            [("", self.bandwidth), (" read", self.read_bandwidth), (" written", self.write_bandwidth)];
        if let Some(iops) = self.iops {
            write!(f, "{iops} commands/s, ")?;
        }
        for (what, bytes) in bandwidths {
            if let Some(bytes) = bytes {
                write!(f, "{}/s{what}, ", Size(bytes.get()))?;
            }
        }
        write!(f, "burst {} ms", self.burst_ms)
    }
}

/// The limits of the hosts of a subsystem, each for all that a host asks of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostLimits {
    /// Of each host which is not named.
    pub each: Limit,
    pub named: Vec<(Nqn, Limit)>,
}

impl HostLimits {
    /// Whether any host may be limited.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.each.is_any() || self.named.iter().any(|(_, limit)| limit.is_any())
    }

    /// The limit of a host.
    #[must_use]
    pub fn of(&self, host: &Nqn) -> Limit {
        self.named.iter().find(|(named, _)| named == host).map_or(self.each, |(_, limit)| *limit)
    }
}

/// What one command, or two that are fused, ask for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cost {
    pub commands: u32,
    /// Bytes read of the medium.
    pub read: u32,
    /// Bytes written to it.
    pub write: u32,
}
