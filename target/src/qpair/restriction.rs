//! What reservations keep a queue's host from. Only namespaces of which there is something to say are listed, so that
//! without reservations a command costs one look at an empty list.
use ironside_common::nvme::{Status, io};

use super::Qpair;
use super::phase::{Active, Execution, Phase, Work};
use crate::reservation::Rights;

/// What of one namespace is kept from this queue's host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restriction {
    nsid: u32,
    rights: Rights,
    /// Commands up to this number end without reaching the medium again.
    aborted: u64,
}

impl Restriction {
    fn status(&self, request: &io::Request) -> Option<Status> {
        let writes = request.is_in_write_group() && !self.rights.write;
        let reads = request.is_in_read_group() && !self.rights.read;
        (writes || reads).then_some(Status::RESERVATION_CONFLICT)
    }
}

impl Qpair {
    /// From now on the host of this queue has these rights. Says whether it may less than before.
    pub fn restrict(&mut self, nsid: u32, rights: Rights) -> bool {
        let known = self.restrictions.iter_mut().find(|restriction| restriction.nsid == nsid);
        let before = match known {
            Some(restriction) => std::mem::replace(&mut restriction.rights, rights),
            None if rights == Rights::ALL => return false,
            None => {
                self.restrictions.push(Restriction { nsid, rights, aborted: 0 });
                Rights::ALL
            }
        };
        self.restrictions.retain(|one| one.rights != Rights::ALL || one.aborted > 0);
        before.read && !rights.read || before.write && !rights.write
    }

    /// No command which has come so far reaches this namespace's medium any more, those apart which it has already.
    pub fn abort_all(&mut self, nsid: u32) {
        let aborted = self.received();
        match self.restrictions.iter_mut().find(|restriction| restriction.nsid == nsid) {
            Some(restriction) => restriction.aborted = aborted,
            None => self.restrictions.push(Restriction { nsid, rights: Rights::ALL, aborted }),
        }
    }

    /// Whether the medium of this namespace, or of any, is at one of the first so many commands.
    pub fn is_at_medium(&self, nsid: Option<u32>, received: u64) -> bool {
        self.slots.iter().filter(|slot| slot.number <= received).any(|slot| match &slot.phase {
            Phase::Executing(Execution {
                active: Active { work: Work::Io(namespace, request), .. }, ..
            }) => {
                let asks_medium = !matches!(request, io::Request::Reservation(_));
                asks_medium && nsid.is_none_or(|nsid| nsid == namespace.nsid)
            }
            _ => false,
        })
    }

    /// Why a request of this namespace must not begin.
    pub(super) fn conflict(&self, nsid: u32, request: &io::Request) -> Option<Status> {
        self.restrictions.iter().find(|one| one.nsid == nsid)?.status(request)
    }

    /// Why a command which has begun must not reach the medium: it may have waited while a reservation changed.
    pub(super) fn barred(&self, slot: u16, active: &Active) -> Option<Status> {
        if self.restrictions.is_empty() {
            return None;
        }
        let Work::Io(namespace, request) = &active.work else { return None };
        let restriction = self.restrictions.iter().find(|one| one.nsid == namespace.nsid)?;
        let aborted = self.slots[usize::from(slot)].number <= restriction.aborted
            && !matches!(request, io::Request::Reservation(_));
        restriction.status(request).or(aborted.then_some(Status::ABORT_REQUESTED))
    }
}
