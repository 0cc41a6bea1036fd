//! What a host is told of its reservations: notifications of this controller, oldest first, each until it is read; and
//! which of them the host does not want.
use std::collections::{BTreeMap, VecDeque};

use ironside_common::nvme::reservation::{Notification, NotificationLog};
use ironside_common::nvme::{ALL_NAMESPACES, Status};
use uuid::Uuid;
use zerocopy::FromZeros;

use super::Controller;
use super::async_event::Notice;
use crate::reservation::HostId;

/// Notifications kept: the page counts further ones in eight bits. The oldest are forgotten.
const NOTIFICATIONS_MAX: usize = 255;

#[derive(Debug, Default)]
pub(super) struct ReservationLog {
    entries: VecDeque<NotificationLog>,
    count: u64,
    /// Of those namespaces which differ from `mask_of_all`.
    masks: BTreeMap<u32, u32>,
    mask_of_all: u32,
}

impl ReservationLog {
    /// Reservation Notification Mask: what not to tell of a namespace, or of all there are and will be.
    pub(super) fn set_mask(&mut self, nsid: u32, mask: u32) -> Result<(), Status> {
        if mask & !Notification::MASK != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if nsid == ALL_NAMESPACES {
            self.masks.clear();
            self.mask_of_all = mask;
        } else {
            self.masks.insert(nsid, mask);
        }
        Ok(())
    }

    pub(super) fn mask(&self, nsid: u32) -> u32 {
        self.masks.get(&nsid).copied().unwrap_or(self.mask_of_all)
    }

    /// The oldest notification, or an empty page.
    pub(super) fn page(&self) -> NotificationLog {
        let Some(oldest) = self.entries.front() else { return NotificationLog::new_zeroed() };
        let available = u8::try_from(self.entries.len() - 1).unwrap_or(u8::MAX);
        NotificationLog { available, ..*oldest }
    }

    /// The oldest has been read.
    pub(super) fn pop(&mut self) {
        self.entries.pop_front();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn push(&mut self, nsid: u32, notification: Notification) {
        if self.entries.len() == NOTIFICATIONS_MAX {
            self.entries.pop_front();
        }
        self.count += 1;
        self.entries.push_back(NotificationLog {
            count: self.count.into(),
            kind: notification as u8,
            nsid: nsid.into(),
            ..NotificationLog::new_zeroed()
        });
    }
}

impl Controller {
    /// Something happened to the rights of a host at a namespace: if it is this one's, it is told.
    pub fn note_reservation(&mut self, host: &HostId, uuid: Uuid, notification: Notification) {
        if self.host_id != *host {
            return;
        }
        let Ok(subsystem) = self.subsystem() else { return };
        let found = subsystem.namespaces_for(&self.host_nqn).find(|namespace| namespace.uuid == uuid);
        let Some(nsid) = found.map(|namespace| namespace.nsid) else { return };
        if self.reservations.mask(nsid) & notification.mask() == 0 {
            self.reservations.push(nsid, notification);
            self.notices.raise(Notice::Reservations);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_read_one_by_one() {
        let mut log = ReservationLog::default();
        assert_eq!((log.page().kind, log.page().count.get()), (0, 0));
        log.push(3, Notification::RegistrationPreempted);
        log.push(4, Notification::ReservationReleased);
        let page = log.page();
        assert_eq!((page.count.get(), page.kind, page.available, page.nsid.get()), (1, 1, 1, 3));
        log.pop();
        let page = log.page();
        assert_eq!((page.count.get(), page.kind, page.available, page.nsid.get()), (2, 2, 0, 4));
        log.pop();
        assert!(log.is_empty());
        (0..300).for_each(|_| log.push(1, Notification::ReservationPreempted));
        assert_eq!((log.page().count.get(), log.page().available), (48, 254), "the oldest are forgotten");
    }

    #[test]
    fn a_mask_is_of_one_namespace_or_of_all() {
        let mut log = ReservationLog::default();
        log.set_mask(3, 0b0010).unwrap();
        assert_eq!((log.mask(3), log.mask(4)), (0b0010, 0));
        log.set_mask(ALL_NAMESPACES, 0b1110).unwrap();
        assert_eq!((log.mask(3), log.mask(4)), (0b1110, 0b1110));
        assert_eq!(log.set_mask(3, 1), Err(Status::INVALID_FIELD));
    }
}
