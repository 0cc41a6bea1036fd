//! The discovery log, page 70h (NVM Express base specification 2.2, section 5.1.12.3.1): where which subsystem can be
//! reached.
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fabrics::CNTLID_DYNAMIC;
use super::{Nqn, text};
use crate::verbs::Address;

/// Head of the log as it is on the wire; entries follow.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Header {
    /// GENCTR: another one says that the log changed meanwhile.
    pub generation: U64,
    pub records: U64,
    pub record_format: U16,
    pub reserved_18: [u8; 1006],
}

const _: () = assert!(size_of::<Header>() == Header::SIZE);

impl Header {
    /// In bytes.
    pub const SIZE: usize = 1024;

    #[must_use]
    pub fn new(generation: u64, records: u64) -> Self {
        Self { generation: generation.into(), records: records.into(), ..Self::new_zeroed() }
    }

    /// From the first bytes of the log: what of the head is in use, at least.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Self> {
        let head = data.get(..18)?;
        let mut header = Self::new_zeroed();
        header.as_mut_bytes()[..18].copy_from_slice(head);
        Some(header)
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "discovery log: generation {}, {} records", self.generation, self.records)
    }
}

/// TRTYPE: the transport.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TransportType(pub u8);

impl TransportType {
    pub const RDMA: Self = Self(1);
    pub const FC: Self = Self(2);
    pub const TCP: Self = Self(3);
    pub const LOOP: Self = Self(254);
}

impl fmt::Display for TransportType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::RDMA => "rdma",
            Self::FC => "fc",
            Self::TCP => "tcp",
            Self::LOOP => "loop",
            Self(other) => return write!(f, "transport {other}"),
        })
    }
}

/// ADRFAM: the family of the address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressFamily(pub u8);

impl AddressFamily {
    pub const IPV4: Self = Self(1);
    pub const IPV6: Self = Self(2);
    pub const INFINIBAND: Self = Self(3);
    pub const FC: Self = Self(4);
    /// Intra-host: the address is the host's own affair, here the path of a Unix socket.
    pub const INTRA_HOST: Self = Self(254);
}

impl fmt::Display for AddressFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::IPV4 => "ipv4",
            Self::IPV6 => "ipv6",
            Self::INFINIBAND => "infiniband",
            Self::FC => "fibre-channel",
            Self::INTRA_HOST => "intra-host",
            Self(other) => return write!(f, "address family {other}"),
        })
    }
}

/// SUBTYPE: what the entry leads to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SubsystemType(pub u8);

impl SubsystemType {
    pub const REFERRAL: Self = Self(1);
    pub const NVM: Self = Self(2);
    pub const CURRENT_DISCOVERY: Self = Self(3);
}

impl fmt::Display for SubsystemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::REFERRAL => "discovery subsystem referral",
            Self::NVM => "nvme subsystem",
            Self::CURRENT_DISCOVERY => "current discovery subsystem",
            Self(other) => return write!(f, "subsystem of type {other}"),
        })
    }
}

/// TREQ: what the transport asks for or offers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TransportRequirements(pub u8);

impl TransportRequirements {
    /// A secure channel is neither required nor refused; SQ flow control may be turned off.
    pub const FLOW_CONTROL_OPTIONAL: Self = Self(1 << 2);
}

/// One entry as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Entry {
    pub transport_type: u8,
    pub address_family: u8,
    pub subsystem_type: u8,
    pub transport_requirements: u8,
    pub port_id: U16,
    pub cntlid: U16,
    /// Entries of the admin queue, a count.
    pub admin_queue_size: U16,
    pub flags: U16,
    pub reserved_12: [u8; 20],
    /// Padded with NULs by some and with spaces by others.
    pub service: [u8; 32],
    pub reserved_64: [u8; 192],
    pub subnqn: [u8; 256],
    pub address: [u8; 256],
    pub tsas: RdmaAttributes,
}

const _: () = assert!(size_of::<Entry>() == Entry::SIZE);

/// TSAS of the RDMA transport as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct RdmaAttributes {
    /// 1 for a reliable connection.
    pub qp_type: u8,
    pub provider: u8,
    /// 1 for RDMA_CM.
    pub cm_service: u8,
    pub reserved_3: [u8; 5],
    pub pkey: U16,
    pub reserved_10: [u8; 246],
}

const _: () = assert!(size_of::<RdmaAttributes>() == 256);

impl RdmaAttributes {
    /// PRTYPE: not specified.
    pub const PROVIDER_UNSPECIFIED: u8 = 1;
    /// PRTYPE: iWARP.
    pub const PROVIDER_IWARP: u8 = 5;
}

impl Entry {
    /// In bytes.
    pub const SIZE: usize = 1024;

    /// Admin queues are at least so large.
    const ADMIN_QUEUE_SIZE: u16 = 32;

    /// An entry of the RDMA transport; `provider` is one of [`RdmaAttributes`]' PRTYPE.
    #[must_use]
    pub fn rdma(subtype: SubsystemType, subnqn: &Nqn, at: Address, port_id: u16, provider: u8) -> Self {
        let (family, address, service) = match at {
            Address::Ip(at) if at.is_ipv4() => {
                (AddressFamily::IPV4, at.ip().to_string(), at.port().to_string())
            }
            Address::Ip(at) => (AddressFamily::IPV6, at.ip().to_string(), at.port().to_string()),
            Address::Path(_) | Address::Process { .. } => {
                (AddressFamily::INTRA_HOST, at.to_string(), String::new())
            }
        };
        Self {
            transport_type: TransportType::RDMA.0,
            address_family: family.0,
            subsystem_type: subtype.0,
            port_id: port_id.into(),
            cntlid: CNTLID_DYNAMIC.into(),
            admin_queue_size: Self::ADMIN_QUEUE_SIZE.into(),
            service: text::terminated(&service),
            subnqn: subnqn.to_field(),
            address: text::terminated(&address),
            tsas: RdmaAttributes { qp_type: 1, provider, cm_service: 1, ..RdmaAttributes::new_zeroed() },
            ..Self::new_zeroed()
        }
    }

    #[must_use]
    pub const fn transport_type(&self) -> TransportType {
        TransportType(self.transport_type)
    }

    #[must_use]
    pub const fn address_family(&self) -> AddressFamily {
        AddressFamily(self.address_family)
    }

    #[must_use]
    pub const fn subsystem_type(&self) -> SubsystemType {
        SubsystemType(self.subsystem_type)
    }

    /// TRADDR without its padding.
    #[must_use]
    pub fn address(&self) -> String {
        text::read(&self.address)
    }

    /// TRSVCID without its padding.
    #[must_use]
    pub fn service(&self) -> String {
        text::read(&self.service)
    }

    /// SUBNQN without its padding.
    #[must_use]
    pub fn subnqn(&self) -> String {
        text::read(&self.subnqn)
    }

    /// Address and port, if they are written in numbers.
    #[must_use]
    pub fn socket_address(&self) -> Option<SocketAddr> {
        let ip: IpAddr = self.address().trim().parse().ok()?;
        Some(SocketAddr::new(ip, self.service().trim().parse().ok()?))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at ", self.subsystem_type(), self.subnqn())?;
        write!(f, "{} {} ", self.transport_type(), self.address_family())?;
        write!(f, "{} service {}, port {}", self.address(), self.service(), self.port_id)
    }
}

/// Reads the entries of a log which `data` holds from its first entry on, without its head.
pub fn entries(data: &[u8]) -> impl Iterator<Item = Entry> + '_ {
    data.chunks_exact(Entry::SIZE).filter_map(|entry| Entry::read_from_bytes(entry).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Entry {
        let nqn = "nqn.2014-08.org.example:sub1".parse().unwrap();
        let at = "192.0.2.10:4420".parse().unwrap();
        Entry::rdma(SubsystemType::NVM, &nqn, at, 1, RdmaAttributes::PROVIDER_IWARP)
    }

    /// CRC-32 as zlib has it, bit by bit: the vector names its bytes by it.
    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
        })
    }

    #[test]
    fn an_entry_is_the_vectors() {
        let entry = example();
        assert_eq!(entry.as_bytes()[..12], [1, 1, 2, 0, 1, 0, 0xFF, 0xFF, 0x20, 0, 0, 0]);
        assert_eq!(entry.as_bytes()[768..772], [1, 5, 1, 0]);
        assert_eq!(crc32(entry.as_bytes()), 0xC641_7BE6);
    }

    #[test]
    fn an_entry_reads_back_whatever_its_padding() {
        let mut entry = example();
        entry.service = text::padded("4420");
        entry.address = text::padded("192.0.2.10");
        assert_eq!(entry.socket_address(), Some("192.0.2.10:4420".parse().unwrap()));
        assert_eq!(entry.subnqn(), "nqn.2014-08.org.example:sub1");
        assert_eq!(
            entry.to_string(),
            "nvme subsystem nqn.2014-08.org.example:sub1 at rdma ipv4 192.0.2.10 service 4420, port 1"
        );
        let six = Entry::rdma(SubsystemType::NVM, &Nqn::discovery(), "[::1]:1".parse().unwrap(), 1, 1);
        assert_eq!(six.address_family(), AddressFamily::IPV6);
        assert_eq!(six.socket_address(), Some("[::1]:1".parse().unwrap()));
        let here = "/run/ironside.sock".parse().unwrap();
        let here = Entry::rdma(SubsystemType::NVM, &Nqn::discovery(), here, 1, 1);
        assert_eq!((here.address_family().0, &*here.address()), (254, "/run/ironside.sock"));
        assert_eq!((here.socket_address(), &*here.service()), (None, ""));
    }

    #[test]
    fn a_log_is_its_head_and_whole_entries() {
        let header = Header::new(7, 2);
        assert_eq!(Header::parse(&header.as_bytes()[..20]), Some(header));
        assert_eq!(Header::parse(&[0; 17]), None);
        let mut log = [example().as_bytes(), example().as_bytes()].concat();
        log.extend([0; 1000]);
        assert!(entries(&log).eq([example(), example()]));
    }
}
