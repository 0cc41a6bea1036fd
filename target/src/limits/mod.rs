//! What the target takes on at most: an operator's limits of resources, so that whoever is one too many is refused
//! before those who are there suffer. How fast commands may come is another matter ([`crate::throttle`]).
mod census;

use std::fmt;
use std::ops::RangeInclusive;

use ironside_common::memory::SizeClass;
use ironside_common::size::Size;

pub use self::census::{Census, Full, Place, Register, network};

/// One thing there is only so much of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Resource {
    /// Bytes of the buffers of each reactor.
    Buffers,
    /// Connections, which are queues of hosts.
    Connections,
    /// Those of one address; of IPv6, of all that share its first half.
    ConnectionsPerAddress,
    Controllers,
    /// Those of one host at one subsystem.
    ControllersPerHost,
    /// Those of one controller, whatever the number of reactors: they take turns, and a queue more costs a host's core
    /// nothing but its receives here.
    IoQueues,
    /// Bytes one command moves (MDTS).
    TransferSize,
    /// Bytes of data within a command capsule. More than 4 KiB corrupts writes of Linux 5.4 to 5.12 hosts.
    InCapsule,
    /// RDMA Reads outstanding on one connection.
    RdmaReads,
}

impl Resource {
    pub const ALL: [Self; 9] = [
        Self::Buffers,
        Self::Connections,
        Self::ConnectionsPerAddress,
        Self::Controllers,
        Self::ControllersPerHost,
        Self::IoQueues,
        Self::TransferSize,
        Self::InCapsule,
        Self::RdmaReads,
    ];

    /// What an operator calls it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Buffers => "buffers",
            Self::Connections => "connections",
            Self::ConnectionsPerAddress => "connections-per-address",
            Self::Controllers => "controllers",
            Self::ControllersPerHost => "controllers-per-host",
            Self::IoQueues => "io-queues",
            Self::TransferSize => "transfer-size",
            Self::InCapsule => "in-capsule",
            Self::RdmaReads => "rdma-reads",
        }
    }

    /// Of what it is a limit, in words.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Buffers => "for data, of each reactor",
            Self::Connections => "of all hosts: one for each queue",
            Self::ConnectionsPerAddress => "of one address (IPv6: /64)",
            Self::Controllers => "of all hosts, those of discovery included",
            Self::ControllersPerHost => "of one host at one subsystem",
            Self::IoQueues => "of one controller",
            Self::TransferSize => "of one command (MDTS)",
            Self::InCapsule => "of data within a command capsule",
            Self::RdmaReads => "outstanding on one connection",
        }
    }

    /// The least and the most there may be.
    #[must_use]
    pub const fn range(self) -> RangeInclusive<u64> {
        match self {
            Self::Buffers => 16 << 20..=16 << 30,
            Self::Connections | Self::ConnectionsPerAddress => 1..=Census::CONNECTIONS as u64,
            Self::Controllers | Self::ControllersPerHost => 1..=Census::CONTROLLERS as u64,
            Self::IoQueues => 1..=256,
            // Less would not be what a Copy moves.
            Self::TransferSize => 128 << 10..=1 << 20,
            Self::InCapsule => 0..=16 << 10,
            Self::RdmaReads => 1..=128,
        }
    }

    const fn initial(self) -> u64 {
        match self {
            Self::Buffers => 112 << 20,
            Self::Connections => 8192,
            Self::ConnectionsPerAddress | Self::Controllers => 2048,
            Self::ControllersPerHost => 128,
            Self::IoQueues => 64,
            Self::TransferSize => 1 << 20,
            Self::InCapsule => 4096,
            Self::RdmaReads => 128,
        }
    }

    /// Whether it is a number of bytes.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        matches!(self, Self::Buffers | Self::TransferSize | Self::InCapsule)
    }

    /// Whether it is decided when the target starts: memory is cut by it, and connections stand on it.
    #[must_use]
    pub const fn is_fixed(self) -> bool {
        self.is_bytes() || matches!(self, Self::RdmaReads)
    }

    /// Whether it may be so many.
    #[must_use]
    pub fn admits(self, value: u64) -> bool {
        let is_whole = match self {
            Self::TransferSize => value.is_power_of_two(),
            _ => !self.is_bytes() || value.is_multiple_of(4096),
        };
        is_whole && self.range().contains(&value)
    }

    /// What it may be, in words.
    #[must_use]
    pub fn expected(self) -> String {
        let (min, max) = self.range().into_inner();
        match self {
            Self::TransferSize => format!("a power of two from {} to {}", Size(min), Size(max)),
            _ if self.is_bytes() => format!("whole blocks of 4096 bytes from {} to {}", Size(min), Size(max)),
            _ => format!("between {min} and {max}"),
        }
    }

    /// So many of it, in words.
    #[must_use]
    pub fn written(self, value: u64) -> String {
        if self.is_bytes() { Size(value).to_string() } else { value.to_string() }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.key())
    }
}

/// How much there is of each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits([u64; Resource::ALL.len()]);

/// What holds where nothing is said.
impl Default for Limits {
    fn default() -> Self {
        Self(Resource::ALL.map(Resource::initial))
    }
}

impl Limits {
    /// The same with another one.
    ///
    /// # Panics
    /// If there may not be so many.
    #[must_use]
    pub fn with(mut self, resource: Resource, value: u64) -> Self {
        assert!(resource.admits(value), "{resource} of {value}");
        self.0[resource as usize] = value;
        self
    }

    /// How much there is of it.
    #[must_use]
    pub const fn of(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    /// As [`Self::of`], of what is counted or of a size that is small.
    ///
    /// # Panics
    /// If it is none of these.
    #[must_use]
    pub fn count(&self, resource: Resource) -> u32 {
        u32::try_from(self.of(resource)).expect("buffers are asked for by their bytes")
    }

    /// I/O queues of one controller.
    #[must_use]
    pub fn io_queues(&self) -> u16 {
        u16::try_from(self.of(Resource::IoQueues)).expect("its range is small")
    }

    /// All of them on one line.
    #[must_use]
    pub fn in_line(&self) -> String {
        Resource::ALL.map(|one| format!("{one} {}", one.written(self.of(one)))).join(", ")
    }

    /// Those of which there is another number than before.
    pub fn differing(&self, before: &Self) -> impl Iterator<Item = Resource> {
        let (now, before) = (*self, *before);
        Resource::ALL.into_iter().filter(move |&one| now.of(one) != before.of(one))
    }

    /// How a reactor's buffers are cut: a seventh for pages, two for what is in between, the rest for the largest
    /// transfers.
    #[must_use]
    pub fn size_classes(&self) -> Vec<SizeClass> {
        let (bytes, largest) = (self.of(Resource::Buffers), self.count(Resource::TransferSize));
        let class = |size: u32, sevenths: u64| {
            let count = bytes * sevenths / 7 / u64::from(size);
            SizeClass { size, count: u32::try_from(count).expect("the range of buffers is small") }
        };
        match largest {
            MIDDLE => vec![class(SMALL, 1), class(MIDDLE, 6)],
            _ => vec![class(SMALL, 1), class(MIDDLE, 2), class(largest, 4)],
        }
    }
}

const SMALL: u32 = 8 << 10;
const MIDDLE: u32 = 128 << 10;

/// A table: one line for each.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for resource in Resource::ALL {
            let value = resource.written(self.of(resource));
            writeln!(f, "  {resource:<24}{value:>8}  {}", resource.meaning())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_has_a_place_a_range_and_a_value_in_it() {
        for (index, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(resource as usize, index);
            assert!(resource.admits(Limits::default().of(resource)), "{resource}");
            for end in [*resource.range().start(), *resource.range().end()] {
                assert_eq!(Limits::default().with(resource, end).of(resource), end, "{resource}");
            }
            assert!(!resource.admits(resource.range().end() + 4096));
        }
        assert!(!Resource::TransferSize.admits(384 << 10) && !Resource::InCapsule.admits(512));
    }

    #[test]
    fn buffers_are_cut_so_that_each_size_has_its_part() {
        let counts = |limits: Limits| -> Vec<(u32, u32)> {
            limits.size_classes().iter().map(|class| (class.size, class.count)).collect()
        };
        assert_eq!(counts(Limits::default()), [(8 << 10, 2048), (128 << 10, 256), (1 << 20, 64)]);
        let small = Limits::default().with(Resource::Buffers, 16 << 20);
        assert_eq!(counts(small), [(8 << 10, 292), (128 << 10, 36), (1 << 20, 9)]);
        assert_eq!(counts(small.with(Resource::TransferSize, 128 << 10)), [(8 << 10, 292), (128 << 10, 109)]);
        let largest = Limits::default().with(Resource::Buffers, 16 << 30);
        let bytes =
            counts(largest).iter().map(|&(size, count)| u64::from(size) * u64::from(count)).sum::<u64>();
        assert!(bytes <= 16 << 30 && bytes > (16 << 30) - (3 << 20));
    }

    #[test]
    fn they_are_shown_as_people_read_them() {
        let text = Limits::default().to_string();
        assert!(text.contains("  buffers                  112 MiB  for data, of each reactor\n"), "{text}");
        assert!(text.contains("  connections-per-address     2048  of one address (IPv6: /64)\n"), "{text}");
    }
}
