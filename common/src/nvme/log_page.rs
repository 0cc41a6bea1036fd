//! The structures Get Log Page returns (NVM Express base specification 2.2, section 5.1.12), except the discovery
//! log.
use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bits::bits;
use super::feature::FeatureId;
use super::{AdminOpcode, IoOpcode, Status, text};

/// LID: which log page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogPageId(pub u8);

impl LogPageId {
    pub const SUPPORTED_PAGES: Self = Self(0x00);
    pub const ERROR: Self = Self(0x01);
    pub const SMART: Self = Self(0x02);
    pub const FIRMWARE_SLOTS: Self = Self(0x03);
    pub const CHANGED_NAMESPACES: Self = Self(0x04);
    pub const EFFECTS: Self = Self(0x05);
    pub const ANA: Self = Self(0x0C);
    pub const FEATURES: Self = Self(0x12);
    pub const DISCOVERY: Self = Self(0x70);
    pub const RESERVATION_NOTIFICATION: Self = Self(0x80);
}

impl fmt::Display for LogPageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::SUPPORTED_PAGES => "Supported Log Pages",
            Self::ERROR => "Error Information",
            Self::SMART => "SMART / Health Information",
            Self::FIRMWARE_SLOTS => "Firmware Slot Information",
            Self::CHANGED_NAMESPACES => "Changed Namespace List",
            Self::EFFECTS => "Commands Supported and Effects",
            Self::ANA => "Asymmetric Namespace Access",
            Self::FEATURES => "Feature Identifiers Supported and Effects",
            Self::DISCOVERY => "Discovery",
            Self::RESERVATION_NOTIFICATION => "Reservation Notification",
            Self(other) => return write!(f, "log page {other:#04x}"),
        })
    }
}

/// Which log pages there are (page 00h), as it is on the wire.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct SupportedPages {
    /// Bit 0 of the page's double word: supported.
    pub pages: [U32; 256],
}

const _: () = assert!(size_of::<SupportedPages>() == 1024);

impl SupportedPages {
    #[must_use]
    pub fn new(pages: impl IntoIterator<Item = LogPageId>) -> Self {
        let mut supported = Self::new_zeroed();
        for page in pages {
            supported.pages[usize::from(page.0)] = 1.into();
        }
        supported
    }

    #[must_use]
    pub fn contains(&self, page: LogPageId) -> bool {
        self.pages[usize::from(page.0)].get() & 1 == 1
    }
}

impl fmt::Display for SupportedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("log pages:")?;
        let pages = (0..=255).map(LogPageId).filter(|&page| self.contains(page));
        pages
            .enumerate()
            .try_for_each(|(index, page)| write!(f, "{} {page}", if index == 0 { "" } else { "," }))
    }
}

/// Which features there are (page 12h), as it is on the wire.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct SupportedFeatures {
    /// Bit 0 of the feature's double word: supported. Bit 20: it is a namespace's. Bit 21: it is the controller's.
    pub features: [U32; 256],
}

const _: () = assert!(size_of::<SupportedFeatures>() == 1024);

impl SupportedFeatures {
    const OF_A_NAMESPACE: u32 = 1 << 0 | 1 << 20;
    const OF_THE_CONTROLLER: u32 = 1 << 0 | 1 << 21;

    /// Features to set which changes nothing else.
    #[must_use]
    pub fn new(features: impl IntoIterator<Item = FeatureId>) -> Self {
        let mut supported = Self::new_zeroed();
        for feature in features {
            let scope =
                if feature.is_of_a_namespace() { Self::OF_A_NAMESPACE } else { Self::OF_THE_CONTROLLER };
            supported.features[usize::from(feature.0)] = scope.into();
        }
        supported
    }
}

/// One entry of the error log (page 01h) as it is on the wire. All zero if unused.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Which error of this controller it was, from 1.
    pub count: U64,
    pub sqid: U16,
    pub cid: U16,
    /// As in the completion.
    pub status_field: U16,
    /// Byte of the command in error, and the bit of it from bit 8; 0xFFFF for none in particular.
    pub parameter_location: U16,
    pub lba: U64,
    pub nsid: U32,
    pub vendor: u8,
    pub transport_type: u8,
    /// The command set and opcode of the command.
    pub csi: u8,
    pub opcode: u8,
    pub command_specific: U64,
    pub transport_specific: U16,
    pub reserved_42: [u8; 21],
    pub page_version: u8,
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);

impl ErrorEntry {
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.status_field.get())
    }
}

impl fmt::Display for ErrorEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count.get() == 0 {
            return f.write_str("no error");
        }
        write!(f, "error {} of queue {} cid {:#06x}: {}", self.count, self.sqid, self.cid, self.status())?;
        write!(f, ", nsid {} LBA {}", self.nsid, self.lba)
    }
}

/// SMART / health information (page 02h) as it is on the wire. Counters have 16 bytes.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Smart {
    pub critical_warning: u8,
    pub temperature_k: U16,
    pub available_spare_percent: u8,
    pub spare_threshold_percent: u8,
    pub used_percent: u8,
    pub endurance_warning: u8,
    pub reserved_7: [u8; 25],
    /// In thousands of 512 bytes.
    pub units_read: Counter,
    pub units_written: Counter,
    pub host_reads: Counter,
    pub host_writes: Counter,
    pub busy_minutes: Counter,
    pub power_cycles: Counter,
    pub power_on_hours: Counter,
    pub unsafe_shutdowns: Counter,
    pub media_errors: Counter,
    pub error_log_entries: Counter,
    pub warning_temperature_minutes: U32,
    pub critical_temperature_minutes: U32,
    pub sensors_k: [U16; 8],
    /// How often the controller has slowed down to stay below the lower (first) and the upper temperature, and for how
    /// many seconds.
    pub thermal_transitions: [U32; 2],
    pub thermal_seconds: [U32; 2],
    pub reserved_232: [u8; 280],
}

const _: () = {
    assert!(size_of::<Smart>() == 512);
    assert!(std::mem::offset_of!(Smart, error_log_entries) == 176);
    assert!(std::mem::offset_of!(Smart, thermal_transitions) == 216);
};

/// A counter of 16 bytes.
pub type Counter = zerocopy::little_endian::U128;

impl fmt::Display for Smart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "health: warning {:#04x}, {} K, ", self.critical_warning, self.temperature_k)?;
        write!(f, "{} % spare, {} % used, ", self.available_spare_percent, self.used_percent)?;
        write!(f, "{} reads, {} writes, ", self.host_reads, self.host_writes)?;
        write!(f, "{} media errors", self.media_errors)
    }
}

/// Firmware slots (page 03h) as it is on the wire.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct FirmwareSlots {
    /// Bits 2:0: the active slot.
    pub active: u8,
    pub reserved_1: [u8; 7],
    pub revisions: [[u8; 8]; 7],
    pub reserved_64: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareSlots>() == 512);

impl fmt::Display for FirmwareSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "firmware slot {} active:", bits(self.active.into(), 2, 0))?;
        let slots = (1..).zip(&self.revisions).filter(|(_, revision)| **revision != [0; 8]);
        slots.into_iter().try_for_each(|(slot, revision)| write!(f, " {slot} {:?}", text::read(revision)))
    }
}

/// Which namespaces changed (page 04h) as it is on the wire.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct ChangedNamespaces {
    pub nsids: [U32; 1024],
}

const _: () = assert!(size_of::<ChangedNamespaces>() == 4096);

impl ChangedNamespaces {
    /// Most namespaces the page can name.
    pub const MAX: usize = 1024;

    /// `changed` ascending; if there are more than fit, the page says just that.
    #[must_use]
    pub fn new(changed: &[u32]) -> Self {
        let mut page = Self::new_zeroed();
        if changed.len() > Self::MAX {
            page.nsids[0] = super::ALL_NAMESPACES.into();
        } else {
            page.nsids.iter_mut().zip(changed).for_each(|(to, &nsid)| *to = nsid.into());
        }
        page
    }

    /// `None` if more changed than the page can name.
    #[must_use]
    pub fn changed(&self) -> Option<impl Iterator<Item = u32> + '_> {
        (self.nsids[0].get() != super::ALL_NAMESPACES)
            .then(|| self.nsids.iter().map(|nsid| nsid.get()).take_while(|&nsid| nsid != 0))
    }
}

impl fmt::Display for ChangedNamespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(mut changed) = self.changed() else {
            return f.write_str("changed namespaces: more than fit");
        };
        f.write_str("changed namespaces:")?;
        changed.try_for_each(|nsid| write!(f, " {nsid}"))
    }
}

/// Which commands there are, and what they touch (page 05h), as it is on the wire.
#[derive(Clone, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Effects {
    pub admin: [U32; 256],
    pub io: [U32; 256],
    pub reserved_2048: [u8; 2048],
}

const _: () = assert!(size_of::<Effects>() == 4096);

impl Effects {
    /// The command is supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// The command may change the content of logical blocks.
    pub const CHANGES_BLOCKS: u32 = 1 << 1;
}

impl fmt::Display for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let supported = |(_, effects): &(u8, &U32)| effects.get() & Self::SUPPORTED != 0;
        f.write_str("commands:")?;
        for (opcode, _) in (0..=255).zip(&self.admin).filter(supported) {
            write!(f, " {},", AdminOpcode(opcode))?;
        }
        f.write_str(" on I/O queues:")?;
        (0..=255).zip(&self.io).filter(supported).try_for_each(|(opcode, effects)| {
            let changes = effects.get() & Self::CHANGES_BLOCKS != 0;
            write!(f, " {}{},", IoOpcode(opcode), if changes { " (changes blocks)" } else { "" })
        })
    }
}

/// Head of the asymmetric namespace access log (page 0Ch) as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct AnaHeader {
    pub change_count: U64,
    pub groups: U16,
    pub reserved_10: [u8; 6],
}

const _: () = assert!(size_of::<AnaHeader>() == 16);

impl fmt::Display for AnaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asymmetric access of {} groups, change {}", self.groups, self.change_count)
    }
}

impl AnaHeader {
    /// LSP: the groups alone, without their NSIDs.
    pub const GROUPS_ONLY: u8 = 1 << 0;
}

/// One group of the asymmetric namespace access log as it is on the wire; its NSIDs follow.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct AnaGroup {
    pub group: U32,
    pub nsids: U32,
    pub change_count: U64,
    pub state: u8,
    pub reserved_17: [u8; 15],
}

const _: () = assert!(size_of::<AnaGroup>() == 32);

impl fmt::Display for AnaGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {} of {} namespaces: {}", self.group, self.nsids, AnaState(self.state))
    }
}

/// The groups of an access log read without their NSIDs ([`AnaHeader::GROUPS_ONLY`]), each with its state, as far as
/// `page` has them. A controller which names NSIDs all the same is understood.
pub fn ana_groups(page: &[u8]) -> impl Iterator<Item = (u32, AnaState)> + '_ {
    let (groups, mut rest) = match AnaHeader::read_from_prefix(page) {
        Ok((header, rest)) => (header.groups.get(), rest),
        Err(_) => (0, &page[..0]),
    };
    let mut left = groups;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let (group, behind) = AnaGroup::read_from_prefix(rest).ok()?;
        let nsids = usize::try_from(group.nsids.get()).ok()?.checked_mul(4)?;
        rest = behind.get(nsids..).unwrap_or_default();
        Some((group.group.get(), AnaState(group.state)))
    })
}

/// An access log, as far as its page was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AnaLog {
    pub change_count: u64,
    pub groups: Vec<(AnaGroup, Vec<u32>)>,
    /// Whether nothing of it is beyond the page.
    pub is_whole: bool,
}

impl AnaLog {
    #[must_use]
    pub fn read(page: &[u8]) -> Self {
        let Ok((header, mut rest)) = AnaHeader::read_from_prefix(page) else {
            return Self { change_count: 0, groups: Vec::new(), is_whole: false };
        };
        let mut groups = Vec::new();
        for _ in 0..header.groups.get() {
            let Ok((group, behind)) = AnaGroup::read_from_prefix(rest) else { break };
            let count = usize::try_from(group.nsids.get()).unwrap_or(usize::MAX);
            let Ok((nsids, behind)) = <[U32]>::ref_from_prefix_with_elems(behind, count) else { break };
            groups.push((group, nsids.iter().map(|nsid| nsid.get()).collect()));
            rest = behind;
        }
        let is_whole = groups.len() == usize::from(header.groups.get());
        Self { change_count: header.change_count.get(), groups, is_whole }
    }
}

/// State of a group of namespaces on one controller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AnaState(pub u8);

impl AnaState {
    pub const OPTIMIZED: Self = Self(0x1);
    pub const NON_OPTIMIZED: Self = Self(0x2);
    pub const INACCESSIBLE: Self = Self(0x3);
    pub const PERSISTENT_LOSS: Self = Self(0x4);
    pub const CHANGE: Self = Self(0xF);

    /// What I/O commands of the group are refused with; nothing where they are served.
    #[must_use]
    pub const fn refusal(self) -> Option<Status> {
        match self {
            Self::OPTIMIZED | Self::NON_OPTIMIZED => None,
            Self::PERSISTENT_LOSS => Some(Status::ANA_PERSISTENT_LOSS),
            Self::CHANGE => Some(Status::ANA_TRANSITION),
            Self(_) => Some(Status::ANA_INACCESSIBLE),
        }
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::OPTIMIZED => "optimized",
            Self::NON_OPTIMIZED => "non-optimized",
            Self::INACCESSIBLE => "inaccessible",
            Self::PERSISTENT_LOSS => "persistent loss",
            Self::CHANGE => "change",
            Self(other) => return write!(f, "state {other:#x}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_pages_are_by_their_number() {
        let pages = SupportedPages::new([LogPageId::SMART, LogPageId::DISCOVERY]);
        assert!(pages.contains(LogPageId::SMART) && pages.contains(LogPageId::DISCOVERY));
        assert!(!pages.contains(LogPageId::ERROR));
        assert_eq!(pages.as_bytes()[8..12], [1, 0, 0, 0]);
    }

    #[test]
    fn changed_namespaces_say_when_they_are_too_many() {
        let page = ChangedNamespaces::new(&[1, 7]);
        assert!(page.changed().unwrap().eq([1, 7]));
        let all: Vec<u32> = (1..=1025).collect();
        assert!(ChangedNamespaces::new(&all).changed().is_none());
        assert!(ChangedNamespaces::new(&all[..1024]).changed().unwrap().eq(1..=1024));
    }

    #[test]
    fn an_access_log_is_read_as_far_as_it_has_come() {
        let header = AnaHeader { change_count: 7.into(), groups: 2.into(), ..AnaHeader::new_zeroed() };
        let group = |group: u32, nsids: u32| AnaGroup {
            group: group.into(),
            nsids: nsids.into(),
            state: 1,
            ..AnaGroup::new_zeroed()
        };
        let nsids = [3u32, 9].map(u32::to_le_bytes).concat();
        let page = [header.as_bytes(), group(1, 2).as_bytes(), &nsids, group(4, 0).as_bytes()].concat();
        let log = AnaLog::read(&page);
        assert_eq!((log.change_count, log.is_whole), (7, true));
        assert_eq!(log.groups, [(group(1, 2), vec![3, 9]), (group(4, 0), vec![])]);
        for (length, groups) in [(0, 0), (15, 0), (47, 0), (55, 0), (56, 1), (87, 1)] {
            let log = AnaLog::read(&page[..length]);
            assert_eq!((log.groups.len(), log.is_whole), (groups, false), "{length}");
        }
        let endless = [header.as_bytes(), group(1, u32::MAX).as_bytes()].concat();
        assert!(!AnaLog::read(&endless).is_whole);
    }

    #[test]
    fn words_of_an_error() {
        let mut entry = ErrorEntry::new_zeroed();
        assert_eq!(entry.to_string(), "no error");
        (entry.count, entry.sqid, entry.cid) = (3.into(), 1.into(), 9.into());
        entry.status_field = Status::LBA_OUT_OF_RANGE.to_field().into();
        entry.nsid = 1.into();
        assert_eq!(
            entry.to_string(),
            "error 3 of queue 1 cid 0x0009: LBA Out of Range (do not retry), nsid 1 LBA 0"
        );
        assert_eq!(LogPageId(0xC0).to_string(), "log page 0xc0");
    }

    #[test]
    fn what_is_no_way_is_refused_with_its_own_status() {
        assert_eq!([1, 2].map(|state| AnaState(state).refusal()), [None; 2]);
        assert_eq!(AnaState::PERSISTENT_LOSS.refusal(), Some(Status::ANA_PERSISTENT_LOSS));
        assert_eq!(AnaState::CHANGE.refusal(), Some(Status::ANA_TRANSITION));
        assert_eq!([3, 9].map(|state| AnaState(state).refusal()), [Some(Status::ANA_INACCESSIBLE); 2]);
    }

    #[test]
    fn groups_are_read_as_far_as_there_are_any() {
        let mut page = vec![0; 16];
        page[8] = 3;
        let group = |number: u32, nsids: u32, state| {
            let group =
                AnaGroup { group: number.into(), nsids: nsids.into(), state, ..AnaGroup::new_zeroed() };
            [group.as_bytes(), &vec![0xEE; 4 * nsids.min(4) as usize]].concat()
        };
        page.extend(group(1, 2, 1));
        page.extend(group(9, 0, 3));
        let expected = [(1, AnaState::OPTIMIZED), (9, AnaState::INACCESSIBLE)];
        assert!(ana_groups(&page).eq(expected), "the third is not there");
        page.extend(group(7, u32::MAX - 40, 4)[..32].to_vec());
        assert_eq!(ana_groups(&page).last(), Some((7, AnaState::PERSISTENT_LOSS)));
        assert_eq!(ana_groups(&page[..15]).count(), 0);
    }

    #[test]
    fn words_of_the_other_pages() {
        let pages = SupportedPages::new([LogPageId::ERROR, LogPageId(0xC0)]);
        assert_eq!(pages.to_string(), "log pages: Error Information, log page 0xc0");
        let mut slots = FirmwareSlots { active: 0x11, ..FirmwareSlots::new_zeroed() };
        slots.revisions[0] = text::padded("1.0");
        assert_eq!(slots.to_string(), "firmware slot 1 active: 1 \"1.0\"");
        assert_eq!(ChangedNamespaces::new(&[2, 5]).to_string(), "changed namespaces: 2 5");
        let mut effects = Effects::new_zeroed();
        (effects.admin[6], effects.io[1], effects.io[2]) = (1.into(), 3.into(), 1.into());
        assert_eq!(effects.to_string(), "commands: Identify, on I/O queues: Write (changes blocks), Read,");
        let group = AnaGroup { group: 1.into(), nsids: 2.into(), state: 3, ..AnaGroup::new_zeroed() };
        assert_eq!(group.to_string(), "group 1 of 2 namespaces: inaccessible");
    }
}
