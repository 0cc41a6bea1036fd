//! What reservations and write protection keep a queue's host from, and to which namespaces the queue is no way. Only namespaces of which
//! there is something to say are listed, so that without either a command costs one look at two empty lists.
//!
//! To lose access is to refuse what has not begun, whole: a command which is at its medium, or between two operations
//! there, is finished and answered as if nothing had happened. So none is executed in part.
use std::collections::BTreeSet;

use ironside_common::nvme::{Status, io};
use ironside_common::verbs::TargetVerbs;

use super::phase::{Active, Execution, Phase, Work};
use super::{Context, Qpair, Services};
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
        if self.rights.protected && request.changes_medium() {
            return Some(Status::NAMESPACE_WRITE_PROTECTED);
        }
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
        let is_protected_now = !before.protected && rights.protected;
        before.read && !rights.read || before.write && !rights.write || is_protected_now
    }

    /// No command which has come so far reaches this namespace's medium any more, those apart which it has already.
    pub fn abort_all(&mut self, nsid: u32) {
        let aborted = self.received();
        match self.restrictions.iter_mut().find(|restriction| restriction.nsid == nsid) {
            Some(restriction) => restriction.aborted = aborted,
            None => self.restrictions.push(Restriction { nsid, rights: Rights::ALL, aborted }),
        }
    }

    /// From now on commands of these namespaces are refused with these statuses, and those of all others are not, those
    /// apart which had not begun before. What waits for a buffer is told at once: none may ever come.
    pub fn set_inaccessible<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        inaccessible: Vec<(u32, Status)>,
    ) {
        self.inaccessible = inaccessible;
        for index in 0..self.slots.len() {
            let slot = u16::try_from(index).expect("slots are counted by a u16");
            if let Some(active) = self.slots[index].phase.waiting() {
                active.no_way =
                    active.no_way.or_else(|| refusal(&self.inaccessible, active.namespace()?.nsid));
            }
            let Phase::AwaitBuffer(active) = &self.slots[index].phase else { continue };
            let Some(status) = active.no_way.filter(|_| active.second.is_none()) else { continue };
            self.await_buffer.retain(|&waiting| waiting != slot);
            self.await_fetch.retain(|&waiting| waiting != slot);
            let Phase::AwaitBuffer(active) = self.leave(slot) else { unreachable!("just seen") };
            self.answer(cx, slot, active, (status, 0), None, None);
        }
        self.end_barred(cx);
    }

    /// Namespaces which commands of this queue name.
    pub fn named_namespaces(&self) -> BTreeSet<u32> {
        let active = self.slots.iter().filter_map(|slot| slot.phase.active());
        active.filter_map(|active| Some(active.namespace()?.nsid)).collect()
    }

    /// Whether this queue is a way to a namespace.
    pub fn is_way_to(&self, nsid: u32) -> bool {
        self.inaccessible.iter().all(|(one, _)| *one != nsid)
    }

    /// Why a command whose medium has not been asked yet must not begin.
    pub(super) fn no_way(&self, active: &Active) -> Option<Status> {
        active.no_way.or_else(|| refusal(&self.inaccessible, active.namespace()?.nsid))
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
        let restriction = || self.restrictions.iter().find(|one| one.nsid == nsid)?.status(request);
        refusal(&self.inaccessible, nsid).or_else(restriction)
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
        restriction.status(request).or(aborted.then_some(Status::ABORTED_PREEMPT))
    }
}

fn refusal(inaccessible: &[(u32, Status)], nsid: u32) -> Option<Status> {
    inaccessible.iter().find(|(one, _)| *one == nsid).map(|(_, status)| *status)
}
