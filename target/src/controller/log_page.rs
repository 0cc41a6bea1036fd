//! Get Log Page (NVM Express base specification 2.2, section 5.1.12). A host may ask for any part of a page.
use ironside_common::nvme::admin::GetLogPage;
use ironside_common::nvme::discovery::{Entry, Header};
use ironside_common::nvme::log_page::{
    AnaGroup, AnaHeader, ChangedNamespaces, Counter, Effects, ErrorEntry, FirmwareSlots, LogPageId, Smart,
    SupportedFeatures, SupportedPages,
};
use ironside_common::nvme::{ALL_NAMESPACES, AdminOpcode, Command, IoOpcode, Status, text};
use ironside_common::time::Time;
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::async_event::Notice;
use super::{Controller, Reply, discovery, error_log};
use crate::catalog::{ANA_GROUP_MAX, NSID_MAX, ana_groups};

/// The pages of a controller with namespaces.
const PAGES: [LogPageId; 9] = [
    LogPageId::SUPPORTED_PAGES,
    LogPageId::ERROR,
    LogPageId::SMART,
    LogPageId::FIRMWARE_SLOTS,
    LogPageId::CHANGED_NAMESPACES,
    LogPageId::EFFECTS,
    LogPageId::ANA,
    LogPageId::FEATURES,
    LogPageId::RESERVATION_NOTIFICATION,
];

/// Those of a discovery controller. Revision 2.0 asks for each (NVM Express base specification 2.2, figure 31).
const DISCOVERY_PAGES: [LogPageId; 4] =
    [LogPageId::SUPPORTED_PAGES, LogPageId::EFFECTS, LogPageId::FEATURES, LogPageId::DISCOVERY];

const ADMIN_COMMANDS: [AdminOpcode; 7] = [
    AdminOpcode::GET_LOG_PAGE,
    AdminOpcode::IDENTIFY,
    AdminOpcode::ABORT,
    AdminOpcode::SET_FEATURES,
    AdminOpcode::GET_FEATURES,
    AdminOpcode::ASYNC_EVENT_REQUEST,
    AdminOpcode::KEEP_ALIVE,
];

/// Those which change no block.
const READING_COMMANDS: [IoOpcode; 4] =
    [IoOpcode::FLUSH, IoOpcode::READ, IoOpcode::COMPARE, IoOpcode::VERIFY];

/// They change no block either, but have to be known to every target of a subsystem.
const RESERVATION_COMMANDS: [IoOpcode; 4] = [
    IoOpcode::RESERVATION_REGISTER,
    IoOpcode::RESERVATION_REPORT,
    IoOpcode::RESERVATION_ACQUIRE,
    IoOpcode::RESERVATION_RELEASE,
];

const CHANGING_COMMANDS: [IoOpcode; 4] =
    [IoOpcode::WRITE, IoOpcode::WRITE_ZEROES, IoOpcode::DATASET_MANAGEMENT, IoOpcode::COPY];

const SECONDS_AN_HOUR: u64 = 3600;

impl Controller {
    pub(super) fn get_log_page(
        &mut self,
        now: Time,
        command: &Command,
        out: &mut [u8],
    ) -> Result<Reply, Status> {
        let get = GetLogPage::parse(command);
        if get.index_offset || !get.offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD);
        }
        let mut window = Window::new(get.offset, out);
        match (self.is_discovery(), get.page) {
            (true, LogPageId::DISCOVERY) => self.discovery_log(&mut window)?,
            (true, LogPageId::SUPPORTED_PAGES) => window.page(&SupportedPages::new(DISCOVERY_PAGES))?,
            (false, LogPageId::SUPPORTED_PAGES) => window.page(&SupportedPages::new(PAGES))?,
            (_, LogPageId::FEATURES) => window.page(&SupportedFeatures::new(self.features()))?,
            (false, LogPageId::ERROR) => self.error_log(&mut window)?,
            (false, LogPageId::SMART) => window.page(&self.smart(now, get.nsid)?)?,
            (false, LogPageId::FIRMWARE_SLOTS) => window.page(&firmware_slots())?,
            (false, LogPageId::CHANGED_NAMESPACES) => {
                let changed: Vec<u32> = self.changed.iter().copied().collect();
                window.page(&ChangedNamespaces::new(&changed))?;
                if !get.retain_event {
                    self.changed.clear();
                }
            }
            (false, LogPageId::ANA) => self.access_log(get.specific, &mut window)?,
            (false, LogPageId::RESERVATION_NOTIFICATION) => {
                window.page(&self.reservations.page())?;
                if !get.retain_event {
                    self.reservations.pop();
                }
            }
            (discovery, LogPageId::EFFECTS) if get.csi == 0 => {
                window.page(&effects(discovery, self.is_shared()))?;
            }
            (_, LogPageId::EFFECTS) => return Err(Status::INVALID_FIELD),
            _ => return Err(Status::INVALID_LOG_PAGE),
        }
        if !get.retain_event {
            match get.page {
                LogPageId::CHANGED_NAMESPACES => self.notices.log_read(Notice::Namespaces),
                LogPageId::ANA => self.notices.log_read(Notice::Access),
                LogPageId::DISCOVERY => self.notices.log_read(Notice::Discovery),
                LogPageId::RESERVATION_NOTIFICATION => {
                    self.notices.log_read(Notice::Reservations);
                    if !self.reservations.is_empty() {
                        self.notices.raise(Notice::Reservations);
                    }
                }
                _ => {}
            }
        }
        Ok(Reply::data(out))
    }

    fn discovery_log(&self, window: &mut Window<'_>) -> Result<(), Status> {
        let entries = || discovery::entries(&self.catalog, &self.host_nqn, self.admission.local);
        let count = entries().count();
        window.check((Header::SIZE + count * Entry::SIZE) as u64)?;
        window.put(0, &Header::new(self.catalog.version(), count as u64));
        for (at, entry) in (Header::SIZE as u64..).step_by(Entry::SIZE).zip(entries()) {
            window.put(at, &entry);
        }
        Ok(())
    }

    /// The state of each group with namespaces for this controller, and its namespaces unless the groups are enough.
    fn access_log(&self, specific: u8, window: &mut Window<'_>) -> Result<(), Status> {
        let subsystem = self.subsystem()?;
        let seen: Vec<_> = subsystem.namespaces_for(&self.host_nqn).collect();
        let groups = ana_groups(seen.iter().copied());
        let mut page = Vec::new();
        let header = AnaHeader {
            change_count: self.access_changes.into(),
            groups: u16::try_from(groups.len()).expect("groups have a limit").into(),
            ..AnaHeader::new_zeroed()
        };
        page.extend_from_slice(header.as_bytes());
        for group in groups {
            let names_all = specific & AnaHeader::GROUPS_ONLY == 0;
            let of_it = seen.iter().filter(|one| names_all && one.ana_group == group);
            let nsids: Vec<u32> = of_it.map(|one| one.nsid).collect();
            let descriptor = AnaGroup {
                group: group.into(),
                nsids: u32::try_from(nsids.len()).expect("namespaces have a limit").into(),
                state: subsystem.ana_state(group, self.admission.local).0,
                ..AnaGroup::new_zeroed()
            };
            page.extend_from_slice(descriptor.as_bytes());
            page.extend(nsids.into_iter().flat_map(u32::to_le_bytes));
        }
        // Hosts ask in parts for as much as all groups and namespaces there may be would take (nvme-cli does).
        let groups = u64::from(ANA_GROUP_MAX) * size_of::<AnaGroup>() as u64;
        let namespaces = u64::from(NSID_MAX) * size_of::<u32>() as u64;
        window.check(size_of::<AnaHeader>() as u64 + groups + namespaces)?;
        window.put(0, page.as_slice());
        Ok(())
    }

    fn error_log(&self, window: &mut Window<'_>) -> Result<(), Status> {
        let size = size_of::<ErrorEntry>();
        window.check((usize::from(error_log::ENTRIES) * size) as u64)?;
        for (at, entry) in (0u64..).step_by(size).zip(self.errors.entries()) {
            window.put(at, entry);
        }
        Ok(())
    }

    fn smart(&self, now: Time, nsid: u32) -> Result<Smart, Status> {
        if nsid != 0 && nsid != ALL_NAMESPACES && self.namespace(nsid)?.is_none() {
            return Err(Status::INVALID_NAMESPACE);
        }
        let hours = now.since(self.created).as_secs() / SECONDS_AN_HOUR;
        Ok(Smart {
            available_spare_percent: 100,
            units_read: in_thousands(self.counts.units_read),
            units_written: in_thousands(self.counts.units_written),
            host_reads: u128::from(self.counts.reads).into(),
            host_writes: u128::from(self.counts.writes).into(),
            media_errors: u128::from(self.counts.media_errors).into(),
            power_on_hours: u128::from(hours).into(),
            error_log_entries: u128::from(self.errors.count()).into(),
            ..Smart::new_zeroed()
        })
    }
}

/// Data units of the health log are counted in thousands, rounded up.
fn in_thousands(units: u64) -> Counter {
    u128::from(units.div_ceil(1000)).into()
}

fn firmware_slots() -> FirmwareSlots {
    let mut slots = FirmwareSlots { active: 1, ..FirmwareSlots::new_zeroed() };
    slots.revisions[0] = text::padded(env!("CARGO_PKG_VERSION"));
    slots
}

fn effects(is_discovery: bool, is_shared: bool) -> Effects {
    let mut effects = Effects::new_zeroed();
    for opcode in ADMIN_COMMANDS {
        effects.admin[usize::from(opcode.0)] = Effects::SUPPORTED.into();
    }
    if is_discovery {
        return effects;
    }
    let offered = |opcode: &IoOpcode| !is_shared || !RESERVATION_COMMANDS.contains(opcode);
    for opcode in READING_COMMANDS.into_iter().chain(RESERVATION_COMMANDS).filter(offered) {
        effects.io[usize::from(opcode.0)] = Effects::SUPPORTED.into();
    }
    for opcode in CHANGING_COMMANDS {
        effects.io[usize::from(opcode.0)] = (Effects::SUPPORTED | Effects::CHANGES_BLOCKS).into();
    }
    effects
}

/// The part of a page the host asked for: from `offset` on, as much as `out` holds, zeros behind the end.
struct Window<'a> {
    offset: u64,
    out: &'a mut [u8],
}

impl<'a> Window<'a> {
    fn new(offset: u64, out: &'a mut [u8]) -> Self {
        out.fill(0);
        Self { offset, out }
    }

    /// Whether a page of `size` bytes reaches as far as the window begins.
    const fn check(&self, size: u64) -> Result<(), Status> {
        if self.offset > size { Err(Status::INVALID_FIELD) } else { Ok(()) }
    }

    fn page(&mut self, page: &(impl IntoBytes + Immutable + ?Sized)) -> Result<(), Status> {
        self.check(page.as_bytes().len() as u64)?;
        self.put(0, page);
        Ok(())
    }

    /// Copies what of `part`, which stands `at` bytes into the page, is in the window.
    fn put(&mut self, at: u64, part: &(impl IntoBytes + Immutable + ?Sized)) {
        let part = part.as_bytes();
        let skipped = usize::try_from(self.offset.saturating_sub(at)).unwrap_or(usize::MAX);
        let place = usize::try_from(at.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        if let (Some(part), Some(out)) = (part.get(skipped..), self.out.get_mut(place..)) {
            out.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_shows_its_part() {
        let page: [u8; 40] = std::array::from_fn(|n| n as u8 + 1);
        for offset in 0..=40usize {
            for length in 0..50 {
                let mut out = vec![0xFF; length];
                let mut window = Window::new(offset as u64, &mut out);
                window.check(40).unwrap();
                window.put(0, &page.first_chunk::<25>().copied().unwrap());
                window.put(25, &page.last_chunk::<15>().copied().unwrap());
                let expected = page[offset..].iter().copied().chain(std::iter::repeat(0));
                assert!(out.iter().copied().eq(expected.take(length)), "{length} bytes from {offset}");
            }
        }
        assert_eq!(Window::new(41, &mut []).page(&page), Err(Status::INVALID_FIELD));
        assert_eq!(Window::new(u64::MAX, &mut [0; 4]).page(&page), Err(Status::INVALID_FIELD));
    }
}
