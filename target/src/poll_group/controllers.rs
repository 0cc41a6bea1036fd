//! The controllers of one reactor, and which queues each has, here and elsewhere.
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use ironside_common::nvme::fabrics::CNTLID_MAX;
use ironside_common::verbs::Token;

use super::QueueName;
use crate::controller::Controller;
use crate::limits::Place;
use crate::qpair::{Counts, SharedCounts};

/// One controller and what belongs to it.
pub(super) struct Entry {
    pub(super) machine: Controller,
    pub(super) admin: QueueName,
    pub(super) queues: Vec<IoQueue>,
    /// Asynchronous event requests, oldest first.
    pub(super) events: VecDeque<Token>,
    /// Commands on all queues when they were last counted.
    seen: u64,
    /// Failures of the admin queue which the controller was told of.
    admin_failures: u64,
    /// What queues did which are gone.
    left: Counts,
    _place: Place,
}

pub(super) struct IoQueue {
    pub(super) qid: u16,
    pub(super) name: QueueName,
    counts: Arc<SharedCounts>,
    /// Failures of which the controller was told.
    failures: u64,
}

impl Entry {
    /// Whether any queue has seen a command since this was last asked.
    pub(super) fn was_active(&mut self, admin: u64) -> bool {
        let io: u64 = self.queues.iter().map(|queue| queue.counts.commands()).sum();
        let seen = std::mem::replace(&mut self.seen, admin + io);
        seen != self.seen
    }

    /// Tells the controller what its queues have done, here and on other reactors.
    pub(super) fn note_counts(&mut self, admin: Counts) {
        let mut total = self.left.plus(admin);
        tell_failures(&mut self.machine, 0, &mut self.admin_failures, &admin);
        for queue in &mut self.queues {
            let counts = queue.counts.read();
            tell_failures(&mut self.machine, queue.qid, &mut queue.failures, &counts);
            total = total.plus(counts);
        }
        self.machine.note_counts(total);
    }
}

/// Controllers by identifier. Identifier `n` lives on reactor `(n - 1) % reactors`, and is not given out
/// again soon: a host may still name the controller it had.
pub(super) struct Controllers {
    reactor: usize,
    reactors: usize,
    entries: BTreeMap<u16, Entry>,
    /// The one given out last.
    last: u16,
}

impl Controllers {
    pub(super) fn new(reactor: usize, reactors: usize) -> Self {
        Self { reactor, reactors, entries: BTreeMap::new(), last: 0 }
    }

    /// The reactor on which a controller of this identifier would live.
    pub(super) fn home(&self, cntlid: u16) -> Option<usize> {
        (1..=CNTLID_MAX).contains(&cntlid).then(|| usize::from(cntlid - 1) % self.reactors)
    }

    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// An identifier of this range which nobody has, or nothing if all are taken.
    pub(super) fn vacant(&mut self, range: RangeInclusive<u16>) -> Option<u16> {
        let behind = Some(self.last.saturating_add(1)).filter(|cntlid| range.contains(cntlid));
        let (first, end) = range.into_inner();
        let behind = behind.unwrap_or(first);
        let mut candidates = (behind..=end).chain(first..behind);
        let is_vacant =
            |&cntlid: &u16| self.home(cntlid) == Some(self.reactor) && !self.entries.contains_key(&cntlid);
        let found = candidates.find(is_vacant)?;
        self.last = found;
        Some(found)
    }

    pub(super) fn insert(&mut self, cntlid: u16, machine: Controller, admin: QueueName, place: Place) {
        let entry = Entry {
            machine,
            admin,
            queues: Vec::new(),
            events: VecDeque::new(),
            seen: 0,
            admin_failures: 0,
            left: Counts::default(),
            _place: place,
        };
        let old = self.entries.insert(cntlid, entry);
        assert!(old.is_none(), "controller {cntlid} exists already");
    }

    pub(super) fn remove(&mut self, cntlid: u16) -> Option<Entry> {
        self.entries.remove(&cntlid)
    }

    pub(super) fn get(&mut self, cntlid: u16) -> Option<&mut Entry> {
        self.entries.get_mut(&cntlid)
    }

    /// The next one, in the order of identifiers. A list of them would cost an allocation at each check.
    pub(super) fn after(&self, cntlid: Option<u16>) -> Option<u16> {
        let first = cntlid.map_or(0, |cntlid| cntlid.saturating_add(1));
        self.entries.range(first..).next().map(|(&cntlid, _)| cntlid)
    }

    pub(super) fn joined(&mut self, cntlid: u16, qid: u16, name: QueueName, counts: Arc<SharedCounts>) {
        if let Some(entry) = self.get(cntlid) {
            entry.queues.push(IoQueue { qid, name, counts, failures: 0 });
        }
    }

    /// An I/O queue is gone.
    pub(super) fn left(&mut self, cntlid: u16, name: QueueName) {
        if let Some(entry) = self.get(cntlid)
            && let Some(index) = entry.queues.iter().position(|queue| queue.name == name)
        {
            let mut queue = entry.queues.swap_remove(index);
            let counts = queue.counts.read();
            tell_failures(&mut entry.machine, queue.qid, &mut queue.failures, &counts);
            entry.left = entry.left.plus(counts);
            entry.machine.queue_left(queue.qid);
        }
    }
}

/// The last failure of a queue and how many there were since `told`. One is left for the next time while its status has
/// not arrived from another reactor.
fn tell_failures(machine: &mut Controller, qid: u16, told: &mut u64, counts: &Counts) {
    let news = counts.failures - *told;
    if news > 0 && counts.last_failure.status_field != 0 {
        machine.note_failures(qid, news, counts.last_failure);
        *told = counts.failures;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_of_the_range_and_of_this_reactor_and_rest_before_they_come_again() {
        let mut controllers = Controllers::new(1, 2);
        assert_eq!([(); 3].map(|()| controllers.vacant(101..=104)), [Some(102), Some(104), Some(102)]);
        assert_eq!(controllers.vacant(1..=CNTLID_MAX), Some(104), "behind the last one");
        assert_eq!(controllers.vacant(1..=1), None, "it would live elsewhere");
        assert_eq!(controllers.vacant(CNTLID_MAX - 1..=CNTLID_MAX), Some(CNTLID_MAX - 1));
        assert_eq!([(); 3].map(|()| controllers.vacant(1..=4)), [Some(2), Some(4), Some(2)]);
        assert_eq!((controllers.home(0), controllers.home(CNTLID_MAX)), (None, Some(0)));
    }
}
