//! Admin commands and their meaning (NVM Express base specification 2.2, section 5), and how much each of them moves.
use std::fmt;

use super::bits::{bit, bits, place};
use super::command::{halves, high_word, low_byte, low_word};
use super::fabrics::{Authentication, ConnectData};
use super::feature::{self, FeatureId, QueueCounts, Select};
use super::log_page::LogPageId;
use super::{AdminOpcode, Command, FabricsType, Status, Transfer, identify};

/// Bytes of the timestamp feature.
const TIMESTAMP_SIZE: u32 = 8;
/// Bytes of the host behavior support feature.
const HOST_BEHAVIOR_SIZE: u32 = 512;

/// How much an admin or Fabrics command moves, and which way.
///
/// # Errors
/// What to answer if nobody can know: Invalid Opcode, or Invalid Field for an unknown feature.
pub fn transfer(command: &Command) -> Result<Transfer, Status> {
    if let Some(fabrics_type) = command.fabrics_type() {
        return fabrics_transfer(fabrics_type, command);
    }
    match AdminOpcode(command.opcode) {
        AdminOpcode::IDENTIFY => Ok(Transfer::ToHost(identify::SIZE)),
        AdminOpcode::GET_LOG_PAGE => {
            // What does not fit into 32 bits does not fit into an SGL either, and is refused there.
            let length = u32::try_from(GetLogPage::parse(command).length).unwrap_or(u32::MAX);
            Ok(Transfer::ToHost(length))
        }
        AdminOpcode::SET_FEATURES => set_features_transfer(SetFeatures::parse(command).feature),
        AdminOpcode::GET_FEATURES => get_features_transfer(&GetFeatures::parse(command)),
        AdminOpcode::ABORT | AdminOpcode::ASYNC_EVENT_REQUEST | AdminOpcode::KEEP_ALIVE => Ok(Transfer::None),
        _ => Err(Status::INVALID_OPCODE),
    }
}

fn fabrics_transfer(fabrics_type: FabricsType, command: &Command) -> Result<Transfer, Status> {
    match fabrics_type {
        FabricsType::CONNECT => Ok(Transfer::FromHost(ConnectData::SIZE)),
        FabricsType::PROPERTY_GET | FabricsType::PROPERTY_SET | FabricsType::DISCONNECT => Ok(Transfer::None),
        FabricsType::AUTHENTICATION_SEND => Ok(Transfer::FromHost(Authentication::parse(command).length)),
        FabricsType::AUTHENTICATION_RECEIVE => Ok(Transfer::ToHost(Authentication::parse(command).length)),
        _ => Err(Status::INVALID_OPCODE),
    }
}

fn set_features_transfer(feature: FeatureId) -> Result<Transfer, Status> {
    match feature {
        FeatureId::TIMESTAMP => Ok(Transfer::FromHost(TIMESTAMP_SIZE)),
        FeatureId::HOST_BEHAVIOR => Ok(Transfer::FromHost(HOST_BEHAVIOR_SIZE)),
        feature if has_no_data(feature) => Ok(Transfer::None),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn get_features_transfer(get: &GetFeatures) -> Result<Transfer, Status> {
    match get.feature {
        _ if get.select == Select::CAPABILITIES => Ok(Transfer::None),
        FeatureId::TIMESTAMP => Ok(Transfer::ToHost(TIMESTAMP_SIZE)),
        FeatureId::HOST_BEHAVIOR => Ok(Transfer::ToHost(HOST_BEHAVIOR_SIZE)),
        FeatureId::HOST_IDENTIFIER if feature::wants_extended_host_identifier(get.value) => {
            Ok(Transfer::ToHost(16))
        }
        FeatureId::HOST_IDENTIFIER => Ok(Transfer::ToHost(8)),
        feature if has_no_data(feature) => Ok(Transfer::None),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// The known features whose value is a double word. Setting the host identifier has data, but over fabrics it
/// is refused whatever it brings.
fn has_no_data(feature: FeatureId) -> bool {
    matches!(feature.0, 0x01 | 0x02 | 0x04..=0x0B | 0x0F | 0x81..=0x84)
}

/// CNS: which structure Identify asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cns(pub u8);

impl Cns {
    pub const NAMESPACE: Self = Self(0x00);
    pub const CONTROLLER: Self = Self(0x01);
    pub const ACTIVE_NAMESPACES: Self = Self(0x02);
    pub const NAMESPACE_DESCRIPTORS: Self = Self(0x03);
    pub const COMMAND_SET_NAMESPACE: Self = Self(0x05);
    pub const COMMAND_SET_CONTROLLER: Self = Self(0x06);
    pub const COMMAND_SET_ACTIVE_NAMESPACES: Self = Self(0x07);
    pub const INDEPENDENT_NAMESPACE: Self = Self(0x08);
    pub const ALLOCATED_NAMESPACES: Self = Self(0x10);
    pub const ALLOCATED_NAMESPACE: Self = Self(0x11);
    pub const CONTROLLERS_OF_NAMESPACE: Self = Self(0x12);
    pub const CONTROLLERS: Self = Self(0x13);
    pub const COMMAND_SET_ALLOCATED_NAMESPACES: Self = Self(0x1A);
    pub const COMMAND_SET_ALLOCATED_NAMESPACE: Self = Self(0x1B);
    pub const COMMAND_SETS: Self = Self(0x1C);
}

impl fmt::Display for Cns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NAMESPACE => "namespace",
            Self::CONTROLLER => "controller",
            Self::ACTIVE_NAMESPACES => "active namespaces",
            Self::NAMESPACE_DESCRIPTORS => "namespace descriptors",
            Self::COMMAND_SET_NAMESPACE => "command set specific namespace",
            Self::COMMAND_SET_CONTROLLER => "command set specific controller",
            Self::COMMAND_SET_ACTIVE_NAMESPACES => "active namespaces of a command set",
            Self::INDEPENDENT_NAMESPACE => "command set independent namespace",
            Self::ALLOCATED_NAMESPACES => "allocated namespaces",
            Self::ALLOCATED_NAMESPACE => "allocated namespace",
            Self::CONTROLLERS_OF_NAMESPACE => "controllers of a namespace",
            Self::CONTROLLERS => "controllers",
            Self::COMMAND_SET_ALLOCATED_NAMESPACES => "allocated namespaces of a command set",
            Self::COMMAND_SET_ALLOCATED_NAMESPACE => "command set specific allocated namespace",
            Self::COMMAND_SETS => "command sets",
            Self(other) => return write!(f, "structure {other:#04x}"),
        })
    }
}

/// The Identify command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Identify {
    pub cns: Cns,
    pub nsid: u32,
    pub cntid: u16,
    /// Command set; 0 is NVM.
    pub csi: u8,
}

impl Identify {
    #[must_use]
    pub const fn new(cns: Cns, nsid: u32) -> Self {
        Self { cns, nsid, cntid: 0, csi: 0 }
    }

    #[must_use]
    pub fn parse(command: &Command) -> Self {
        Self {
            cns: Cns(low_byte(command.cdw10)),
            nsid: command.nsid.get(),
            cntid: high_word(command.cdw10),
            csi: bits(command.cdw11.into(), 31, 24) as u8,
        }
    }

    /// The command, its data pointer still to be set.
    #[must_use]
    pub fn to_command(&self, cid: u16) -> Command {
        Command {
            cdw10: halves(self.cns.0.into(), self.cntid).into(),
            cdw11: (place(self.csi.into(), 31, 24) as u32).into(),
            ..Command::new(AdminOpcode::IDENTIFY.0, cid, self.nsid)
        }
    }
}

impl fmt::Display for Identify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cns.fmt(f)?;
        if self.nsid != 0 {
            write!(f, " nsid {}", self.nsid)?;
        }
        Ok(())
    }
}

/// The Get Log Page command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GetLogPage {
    pub page: LogPageId,
    pub nsid: u32,
    /// LSP: means what the page says.
    pub specific: u8,
    /// RAE: leave the event pending.
    pub retain_event: bool,
    /// In bytes: a multiple of four, at least four.
    pub length: u64,
    /// In bytes, unless `index_offset`.
    pub offset: u64,
    /// OT: the offset is an index into a list.
    pub index_offset: bool,
    pub csi: u8,
}

impl GetLogPage {
    /// The whole of `page`, or its first `length` bytes.
    ///
    /// # Panics
    /// If `length` is no positive multiple of four.
    #[must_use]
    pub const fn new(page: LogPageId, nsid: u32, length: u32) -> Self {
        assert!(length > 0 && length.is_multiple_of(4), "log pages are read in double words");
        Self {
            page,
            nsid,
            specific: 0,
            retain_event: false,
            length: length as u64,
            offset: 0,
            index_offset: false,
            csi: 0,
        }
    }

    #[must_use]
    pub fn parse(command: &Command) -> Self {
        let (cdw10, cdw14) = (u64::from(command.cdw10), u64::from(command.cdw14));
        let dwords = bits(cdw10, 31, 16) | u64::from(low_word(command.cdw11)) << 16;
        Self {
            page: LogPageId(low_byte(command.cdw10)),
            nsid: command.nsid.get(),
            specific: bits(cdw10, 14, 8) as u8,
            retain_event: bit(cdw10, 15),
            length: (dwords + 1) * 4,
            offset: command.cdw12_13(),
            index_offset: bit(cdw14, 23),
            csi: bits(cdw14, 31, 24) as u8,
        }
    }

    /// The command, its data pointer still to be set.
    ///
    /// # Panics
    /// If the length is no positive multiple of four.
    #[must_use]
    pub fn to_command(&self, cid: u16) -> Command {
        assert!(self.length > 0 && self.length.is_multiple_of(4), "log pages are read in double words");
        let dwords = self.length / 4 - 1;
        let cdw10 = place(self.page.0.into(), 7, 0)
            | place(self.specific.into(), 14, 8)
            | place(self.retain_event.into(), 15, 15)
            | place(bits(dwords, 15, 0), 31, 16);
        let cdw14 = place(self.index_offset.into(), 23, 23) | place(self.csi.into(), 31, 24);
        let mut command = Command {
            cdw10: (cdw10 as u32).into(),
            cdw11: (bits(dwords, 31, 16) as u32).into(),
            cdw14: (cdw14 as u32).into(),
            ..Command::new(AdminOpcode::GET_LOG_PAGE.0, cid, self.nsid)
        };
        command.set_cdw12_13(self.offset);
        command
    }
}

impl fmt::Display for GetLogPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} bytes from {}", self.page, self.length, self.offset)?;
        if self.specific != 0 {
            write!(f, ", specific {:#04x}", self.specific)?;
        }
        f.write_str(if self.retain_event { ", event retained" } else { "" })
    }
}

/// The Set Features command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SetFeatures {
    pub feature: FeatureId,
    pub save: bool,
    pub nsid: u32,
    /// CDW11.
    pub value: u32,
}

impl SetFeatures {
    #[must_use]
    pub const fn new(feature: FeatureId, value: u32) -> Self {
        Self { feature, save: false, nsid: 0, value }
    }

    #[must_use]
    pub fn parse(command: &Command) -> Self {
        Self {
            feature: FeatureId(low_byte(command.cdw10)),
            save: bit(command.cdw10.into(), 31),
            nsid: command.nsid.get(),
            value: command.cdw11.get(),
        }
    }

    #[must_use]
    pub fn to_command(&self, cid: u16) -> Command {
        let cdw10 = place(self.feature.0.into(), 7, 0) | place(self.save.into(), 31, 31);
        Command {
            cdw10: (cdw10 as u32).into(),
            cdw11: self.value.into(),
            ..Command::new(AdminOpcode::SET_FEATURES.0, cid, self.nsid)
        }
    }
}

impl fmt::Display for SetFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.feature.fmt(f)?;
        match (self.feature, QueueCounts::from_dword(self.value)) {
            (FeatureId::NUMBER_OF_QUEUES, Some(counts)) => {
                write!(f, ", {} submission and {} completion queues", counts.submission, counts.completion)
            }
            (FeatureId::KEEP_ALIVE_TIMER, _) => write!(f, ", {} ms", self.value),
            _ => write!(f, ", value {:#x}", self.value),
        }
    }
}

/// The Get Features command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GetFeatures {
    pub feature: FeatureId,
    pub select: Select,
    pub nsid: u32,
    /// CDW11.
    pub value: u32,
}

impl GetFeatures {
    #[must_use]
    pub const fn new(feature: FeatureId) -> Self {
        Self { feature, select: Select::CURRENT, nsid: 0, value: 0 }
    }

    #[must_use]
    pub fn parse(command: &Command) -> Self {
        Self {
            feature: FeatureId(low_byte(command.cdw10)),
            select: Select(bits(command.cdw10.into(), 10, 8) as u8),
            nsid: command.nsid.get(),
            value: command.cdw11.get(),
        }
    }

    #[must_use]
    pub fn to_command(&self, cid: u16) -> Command {
        let cdw10 = place(self.feature.0.into(), 7, 0) | place(self.select.0.into(), 10, 8);
        Command {
            cdw10: (cdw10 as u32).into(),
            cdw11: self.value.into(),
            ..Command::new(AdminOpcode::GET_FEATURES.0, cid, self.nsid)
        }
    }
}

impl fmt::Display for GetFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.feature.fmt(f)
    }
}

/// The Abort command: the one it names, by queue and identifier.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Abort {
    pub sqid: u16,
    pub cid: u16,
}

impl Abort {
    /// The result if the command was not aborted.
    pub const NOT_ABORTED: u64 = 1;

    #[must_use]
    pub fn parse(command: &Command) -> Self {
        Self { sqid: low_word(command.cdw10), cid: high_word(command.cdw10) }
    }

    #[must_use]
    pub fn to_command(&self, cid: u16) -> Command {
        Command { cdw10: halves(self.sqid, self.cid).into(), ..Command::new(AdminOpcode::ABORT.0, cid, 0) }
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command {:#06x} of queue {}", self.cid, self.sqid)
    }
}

/// The fields of an admin command in words, behind its name.
pub(super) fn describe(command: &Command, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match AdminOpcode(command.opcode) {
        AdminOpcode::IDENTIFY => write!(f, ": {}", Identify::parse(command)),
        AdminOpcode::GET_LOG_PAGE => write!(f, ": {}", GetLogPage::parse(command)),
        AdminOpcode::SET_FEATURES => write!(f, ": {}", SetFeatures::parse(command)),
        AdminOpcode::GET_FEATURES => write!(f, ": {}", GetFeatures::parse(command)),
        AdminOpcode::ABORT => write!(f, ": {}", Abort::parse(command)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::QueueKind;

    #[test]
    fn identify_survives_its_command() {
        let identify = Identify { cns: Cns::COMMAND_SET_NAMESPACE, nsid: 3, cntid: 0x1234, csi: 2 };
        let command = identify.to_command(9);
        assert_eq!(Identify::parse(&command), identify);
        assert_eq!(command.to_bytes()[40..48], [5, 0, 0x34, 0x12, 0, 0, 0, 2]);
        assert_eq!(transfer(&command), Ok(Transfer::ToHost(4096)));
    }

    #[test]
    fn get_log_page_survives_its_command() {
        let get = GetLogPage {
            specific: 0x7F,
            retain_event: true,
            length: 4 * 0x12_3456,
            offset: 0x1_0000_0004,
            index_offset: true,
            csi: 1,
            ..GetLogPage::new(LogPageId::DISCOVERY, 7, 4)
        };
        assert_eq!(GetLogPage::parse(&get.to_command(0)), get);
        let bytes = GetLogPage::new(LogPageId::SMART, 0xFFFF_FFFF, 512).to_command(1).to_bytes();
        assert_eq!(bytes[40..44], [2, 0, 0x7F, 0]);
        let all = GetLogPage { length: 4 << 32, ..get }.to_command(0);
        assert_eq!(transfer(&all), Ok(Transfer::ToHost(u32::MAX)));
    }

    #[test]
    fn features_and_abort_survive_their_commands() {
        let set = SetFeatures { save: true, ..SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, 0x0003_0003) };
        assert_eq!(SetFeatures::parse(&set.to_command(0)), set);
        assert_eq!(
            set.to_command(2).on(QueueKind::Admin).to_string(),
            "Set Features cid 0x0002: Number of Queues, 4 submission and 4 completion queues, no data"
        );
        let get = GetFeatures { select: Select::SAVED, value: 1, ..GetFeatures::new(FeatureId(0x81)) };
        assert_eq!(GetFeatures::parse(&get.to_command(0)), get);
        let abort = Abort { sqid: 2, cid: 0xABCD };
        assert_eq!(Abort::parse(&abort.to_command(0)), abort);
    }

    #[test]
    fn what_moves_is_known_for_every_command() {
        let host_id = GetFeatures { value: 1, ..GetFeatures::new(FeatureId::HOST_IDENTIFIER) };
        assert_eq!(transfer(&host_id.to_command(0)), Ok(Transfer::ToHost(16)));
        let timestamp = SetFeatures::new(FeatureId::TIMESTAMP, 0);
        assert_eq!(transfer(&timestamp.to_command(0)), Ok(Transfer::FromHost(8)));
        let unknown = SetFeatures::new(FeatureId(0xD0), 0);
        assert_eq!(transfer(&unknown.to_command(0)), Err(Status::INVALID_FIELD));
        let connect = Command::fabrics(FabricsType::CONNECT, 0);
        assert_eq!(transfer(&connect), Ok(Transfer::FromHost(1024)));
        for opcode in 0..=255 {
            let known = matches!(opcode, 0x02 | 0x06 | 0x08 | 0x09 | 0x0A | 0x0C | 0x18 | 0x7F);
            let answer = transfer(&Command { cdw10: 7.into(), ..Command::new(opcode, 0, 0) });
            assert_eq!(answer.is_ok(), known, "{opcode:#x}");
        }
    }
}
