//! Fabrics commands: Connect, and properties instead of registers (NVM Express base specification 2.2, section 6).
use std::fmt;

use uuid::Uuid;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bits::{bit, bits, place};
use super::command::{halves, high_word, low_byte, low_word};
use super::property::PropertyId;
use super::{Command, FabricsType, Nqn, text};

/// CNTLID by which a host asks for any controller.
pub const CNTLID_DYNAMIC: u16 = 0xFFFF;

/// Largest controller identifier; those above have meanings of their own.
pub const CNTLID_MAX: u16 = 0xFFEF;

/// SQHD of a Connect response which grants that flow control is off.
pub const SQHD_FLOW_CONTROL_DISABLED: u16 = 0xFFFF;

/// The Connect command: which queue the connection it comes on is to become.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Connect {
    /// Of the data; 0 is the only one there is.
    pub record_format: u16,
    pub qid: u16,
    /// Entries of the submission queue, less one.
    pub sqsize: u16,
    pub priority_class: u8,
    pub disable_sq_flow_control: bool,
    /// Keep alive timeout; zero for none. Of the admin queue only.
    pub kato_ms: u32,
}

impl Connect {
    #[must_use]
    pub fn parse(command: &Command) -> Self {
        let attributes = u64::from(high_word(command.cdw11));
        Self {
            record_format: low_word(command.cdw10),
            qid: high_word(command.cdw10),
            sqsize: low_word(command.cdw11),
            priority_class: bits(attributes, 1, 0) as u8,
            disable_sq_flow_control: bit(attributes, 2),
            kato_ms: command.cdw12.get(),
        }
    }

    /// The command, its data pointer still to be set.
    #[must_use]
    pub fn to_command(&self, cid: u16) -> Command {
        let attributes =
            place(self.priority_class.into(), 1, 0) | place(self.disable_sq_flow_control.into(), 2, 2);
        Command {
            cdw10: halves(self.record_format, self.qid).into(),
            cdw11: halves(self.sqsize, attributes as u16).into(),
            cdw12: self.kato_ms.into(),
            ..Command::fabrics(FabricsType::CONNECT, cid)
        }
    }
}

impl fmt::Display for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {} of {} entries", self.qid, u32::from(self.sqsize) + 1)?;
        if self.record_format != 0 {
            write!(f, ", record format {}", self.record_format)?;
        }
        if self.disable_sq_flow_control {
            f.write_str(", without SQ flow control")?;
        }
        if self.kato_ms != 0 {
            write!(f, ", keep alive {} ms", self.kato_ms)?;
        }
        Ok(())
    }
}

/// The data of a Connect command as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// A UUID in the order it is written.
    pub host_id: [u8; 16],
    pub cntlid: U16,
    pub reserved_18: [u8; 238],
    pub subnqn: [u8; 256],
    pub hostnqn: [u8; 256],
    pub reserved_768: [u8; 256],
}

const _: () = assert!(size_of::<ConnectData>() == ConnectData::SIZE as usize);

impl ConnectData {
    /// In bytes.
    pub const SIZE: u32 = 1024;

    #[must_use]
    pub fn new(host_id: Uuid, cntlid: u16, subnqn: &Nqn, hostnqn: &Nqn) -> Self {
        Self {
            host_id: host_id.into_bytes(),
            cntlid: cntlid.into(),
            subnqn: subnqn.to_field(),
            hostnqn: hostnqn.to_field(),
            ..Self::new_zeroed()
        }
    }

    #[must_use]
    pub const fn host_id(&self) -> Uuid {
        Uuid::from_bytes(self.host_id)
    }
}

impl fmt::Display for ConnectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {} id {}", text::read(&self.hostnqn), self.host_id())?;
        write!(f, " to subsystem {}", text::read(&self.subnqn))?;
        match self.cntlid.get() {
            CNTLID_DYNAMIC => f.write_str(", any controller"),
            cntlid => write!(f, ", controller {cntlid}"),
        }
    }
}

/// The result of a Connect command that succeeded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectResponse {
    pub cntlid: u16,
    /// ATR: authenticate before anything else.
    pub authentication_required: bool,
}

impl ConnectResponse {
    #[must_use]
    pub fn from_result(result: u64) -> Self {
        Self {
            cntlid: bits(result, 15, 0) as u16,
            authentication_required: bit(result, 17) || bit(result, 18),
        }
    }

    #[must_use]
    pub fn to_result(self) -> u64 {
        place(self.cntlid.into(), 15, 0) | place(self.authentication_required.into(), 17, 17)
    }
}

/// Which field was wrong, in the result of a Connect command refused with Connect Invalid Parameters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InvalidParameter {
    /// In the data rather than in the command.
    pub in_data: bool,
    /// In bytes from the start of either.
    pub offset: u16,
}

impl InvalidParameter {
    pub const QID: Self = Self { in_data: false, offset: 42 };
    pub const SQSIZE: Self = Self { in_data: false, offset: 44 };
    pub const KATO: Self = Self { in_data: false, offset: 48 };
    pub const HOST_ID: Self = Self { in_data: true, offset: 0 };
    pub const CNTLID: Self = Self { in_data: true, offset: 16 };
    pub const SUBNQN: Self = Self { in_data: true, offset: 256 };
    pub const HOSTNQN: Self = Self { in_data: true, offset: 512 };

    #[must_use]
    pub const fn from_result(result: u64) -> Self {
        Self { in_data: bit(result, 16), offset: bits(result, 15, 0) as u16 }
    }

    #[must_use]
    pub const fn to_result(self) -> u64 {
        place(self.offset as u64, 15, 0) | place(self.in_data as u64, 16, 16)
    }
}

impl fmt::Display for InvalidParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::QID => "the queue identifier",
            Self::SQSIZE => "the submission queue size",
            Self::KATO => "the keep alive timeout",
            Self::HOST_ID => "the host identifier",
            Self::CNTLID => "the controller identifier",
            Self::SUBNQN => "the subsystem NQN",
            Self::HOSTNQN => "the host NQN",
            Self { in_data: true, offset } => return write!(f, "byte {offset} of the data"),
            Self { in_data: false, offset } => return write!(f, "byte {offset} of the command"),
        })
    }
}

/// The Property Get command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PropertyGet {
    pub property: PropertyId,
    /// ATTRIB: 0 for 4 bytes, 1 for 8.
    pub size: u8,
}

impl PropertyGet {
    #[must_use]
    pub fn new(property: PropertyId) -> Self {
        Self { property, size: size_of_property(property) }
    }

    #[must_use]
    pub fn parse(command: &Command) -> Self {
        Self { property: PropertyId(command.cdw11.get()), size: property_size(command) }
    }

    #[must_use]
    pub fn to_command(&self, cid: u16) -> Command {
        Command {
            cdw10: u32::from(self.size).into(),
            cdw11: self.property.0.into(),
            ..Command::fabrics(FabricsType::PROPERTY_GET, cid)
        }
    }

    /// Whether the property is as wide as the command says.
    #[must_use]
    pub fn is_of_right_size(&self) -> bool {
        self.size == size_of_property(self.property)
    }
}

impl fmt::Display for PropertyGet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.property.fmt(f)
    }
}

/// The Property Set command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PropertySet {
    pub property: PropertyId,
    /// ATTRIB: 0 for 4 bytes, 1 for 8.
    pub size: u8,
    pub value: u64,
}

impl PropertySet {
    #[must_use]
    pub fn new(property: PropertyId, value: u64) -> Self {
        Self { property, size: size_of_property(property), value }
    }

    #[must_use]
    pub fn parse(command: &Command) -> Self {
        Self {
            property: PropertyId(command.cdw11.get()),
            size: property_size(command),
            value: command.cdw12_13(),
        }
    }

    #[must_use]
    pub fn to_command(&self, cid: u16) -> Command {
        let mut command = Command {
            cdw10: u32::from(self.size).into(),
            cdw11: self.property.0.into(),
            ..Command::fabrics(FabricsType::PROPERTY_SET, cid)
        };
        command.set_cdw12_13(self.value);
        command
    }
}

impl fmt::Display for PropertySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:#x}", self.property, self.value)?;
        if self.property == PropertyId::CC {
            let configuration = super::property::Configuration(bits(self.value, 31, 0) as u32);
            write!(f, " ({configuration})")?;
        }
        Ok(())
    }
}

/// Authentication Send and Authentication Receive: only how much they move.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Authentication {
    pub security_protocol: u8,
    /// SPSP1 and SPSP0.
    pub specific: u16,
    /// In bytes.
    pub length: u32,
}

impl Authentication {
    #[must_use]
    pub fn parse(command: &Command) -> Self {
        let cdw10 = u64::from(command.cdw10);
        Self {
            security_protocol: bits(cdw10, 31, 24) as u8,
            specific: bits(cdw10, 23, 8) as u16,
            length: command.cdw11.get(),
        }
    }
}

impl Authentication {
    /// The command, its data pointer still to be set.
    #[must_use]
    pub fn to_command(&self, send_or_receive: FabricsType, cid: u16) -> Command {
        let cdw10 = place(self.security_protocol.into(), 31, 24) | place(self.specific.into(), 23, 8);
        Command {
            cdw10: (cdw10 as u32).into(),
            cdw11: self.length.into(),
            ..Command::fabrics(send_or_receive, cid)
        }
    }
}

impl fmt::Display for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protocol {:#04x} specific {:#06x}", self.security_protocol, self.specific)
    }
}

/// The fields of a Fabrics command in words, behind its name.
pub(super) fn describe(command: &Command, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match command.fabrics_type() {
        Some(FabricsType::CONNECT) => write!(f, ": {}", Connect::parse(command)),
        Some(FabricsType::PROPERTY_GET) => write!(f, ": {}", PropertyGet::parse(command)),
        Some(FabricsType::PROPERTY_SET) => write!(f, ": {}", PropertySet::parse(command)),
        Some(FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE) => {
            write!(f, ": {}", Authentication::parse(command))
        }
        _ => Ok(()),
    }
}

/// ATTRIB as it should be for this property.
fn size_of_property(property: PropertyId) -> u8 {
    u8::from(property.is_wide())
}

fn property_size(command: &Command) -> u8 {
    bits(low_byte(command.cdw10).into(), 2, 0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::DataPointer;
    use crate::verbs::Remote;

    /// Bytes of the vectors: hex digits, blanks ignored, then zeros up to 64.
    fn command(hex: &str) -> [u8; 64] {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let mut bytes = [0; 64];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
        bytes
    }

    #[test]
    fn connect_of_the_admin_queue() {
        let expected = command(
            "7f400000 01 00000000000000000000000000000000000000 00200000007f0000 000400 02cdab00 4f
             0000 0000 1f00 00 00 983a0000",
        );
        let connect = Connect {
            record_format: 0,
            qid: 0,
            sqsize: 31,
            priority_class: 0,
            disable_sq_flow_control: false,
            kato_ms: 15000,
        };
        let remote = Remote { address: 0x7F00_0000_2000, rkey: 0x00AB_CD02 };
        let pointer = DataPointer::Keyed { remote, length: ConnectData::SIZE, invalidate: true };
        let encoded = connect.to_command(0).with_data(pointer);
        assert_eq!(encoded.to_bytes(), expected);
        assert_eq!(Connect::parse(&encoded), connect);
        assert_eq!(DataPointer::parse(&encoded, 0), Ok(pointer));
        assert_eq!(
            encoded.to_string(),
            "Connect cid 0x0000: queue 0 of 32 entries, keep alive 15000 ms, 1024 bytes at 0x7f0000002000 key \
             0x00abcd02 to be invalidated"
        );
    }

    #[test]
    fn property_get_of_the_capabilities() {
        let expected = command(
            "7f400100 04 00000000000000000000000000000000000000 00000000000000 0000000000000000 40 01000000",
        );
        let get = PropertyGet::new(PropertyId::CAP);
        assert_eq!(get.to_command(1).to_bytes(), expected);
        assert_eq!(PropertyGet::parse(&get.to_command(1)), get);
        assert!(get.is_of_right_size());
        assert!(!PropertyGet { size: 0, ..get }.is_of_right_size());
    }

    #[test]
    fn property_set_of_the_configuration() {
        let expected = command(
            "7f400200 00 00000000000000000000000000000000000000 00000000000000 0000000000000000 40 00000000
             14000000 6100460000000000",
        );
        let set = PropertySet::new(PropertyId::CC, 0x0046_0061);
        assert_eq!(set.to_command(2).to_bytes(), expected);
        assert_eq!(PropertySet::parse(&set.to_command(2)), set);
    }

    #[test]
    fn connect_data_survives_its_bytes() {
        let host_id = Uuid::from_u128(0x1122_3344_5566_7788_99AA_BBCC_DDEE_FF00);
        let sub: Nqn = "nqn.2014-08.org.example:sub1".parse().unwrap();
        let host: Nqn = "nqn.2014-08.org.nvmexpress:uuid:1".parse().unwrap();
        let data = ConnectData::new(host_id, CNTLID_DYNAMIC, &sub, &host);
        let read = ConnectData::read_from_bytes(data.as_bytes()).unwrap();
        assert_eq!(read, data);
        assert_eq!((read.host_id(), read.host_id[0]), (host_id, 0x11));
        assert_eq!(Nqn::from_field(&read.subnqn), Ok(sub));
        assert_eq!(data.as_bytes()[256..260], *b"nqn.");
        assert_eq!(data.as_bytes()[512..516], *b"nqn.");
    }

    #[test]
    fn results_of_connect() {
        let response = ConnectResponse { cntlid: 1, authentication_required: true };
        assert_eq!(response.to_result(), 0x0002_0001);
        assert_eq!(ConnectResponse::from_result(0x0002_0001), response);
        assert_eq!(InvalidParameter::SUBNQN.to_result(), 0x0001_0100);
        assert_eq!(InvalidParameter::SQSIZE.to_result(), 0x2C);
        assert_eq!(InvalidParameter::from_result(0x0001_0010), InvalidParameter::CNTLID);
        assert_eq!(InvalidParameter::from_result(7).to_string(), "byte 7 of the command");
    }
}
