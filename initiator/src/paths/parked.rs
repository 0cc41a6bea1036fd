//! Writes whose answer never came, and what is done while no path stands: see [`crate::host`]'s fence for why they wait.
use ironside_common::time::Time;

use super::Paths;
use crate::host::HostEvent;
use crate::volume::{IoError, State};

/// A write whose answer never came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    /// Nothing once its request has been failed for want of any path: newer ones wait for it all the same.
    slot: Option<usize>,
    /// It has failed, which whoever asked is told once it cannot happen any more.
    failing: Option<IoError>,
    path: usize,
    /// The association it was lost with.
    epoch: u64,
    /// When the target must have given that up; nothing if it never has to.
    pub(super) until: Option<Time>,
    /// Whether it is safe once the path stands again.
    ends_with_return: bool,
}

impl Parked {
    /// Whether whoever asked for it has been told that it failed.
    pub(super) const fn has_failed(&self) -> bool {
        self.slot.is_none()
    }
}

impl Paths {
    pub(super) fn park(&mut self, path: usize, slot: usize) {
        let super::Path { host, epoch, .. } = &self.paths[path];
        // It was lost no later than now.
        let until = host.options().fence().map(|fence| self.now + fence);
        // Without keep alive there is nothing else to go by.
        let ends_with_return = host.target_ends_writes() || until.is_none();
        self.parked.push(Parked {
            slot: Some(slot),
            failing: None,
            path,
            epoch: *epoch,
            until,
            ends_with_return,
        });
    }

    /// Lets parked requests go on which cannot happen behind our back any more.
    pub(super) fn release(&mut self) -> bool {
        let before = self.parked.len();
        while let Some(index) = self.parked.iter().position(|one| self.is_safe(one)) {
            match self.parked.remove(index) {
                Parked { slot: Some(slot), failing: Some(error), .. } => self.end(slot, Err(error)),
                Parked { slot, .. } => self.waiting.extend(slot),
            }
        }
        // A path that is gone for good never says, and without keep alive nobody knows.
        while let Some(index) = self.parked.iter().position(|one| self.never_ends(one)) {
            if let Some(slot) = self.parked.swap_remove(index).slot {
                self.end(slot, Err(IoError::ConnectionLost));
            }
        }
        self.parked.len() < before
    }

    /// Whether it cannot happen behind our back any more.
    fn is_safe(&self, one: &Parked) -> bool {
        let path = &self.paths[one.path];
        let is_back = path.epoch > one.epoch && path.host.state() == State::Connected;
        is_back && one.ends_with_return || one.until.is_some_and(|until| until <= self.now)
    }

    fn never_ends(&self, parked: &Parked) -> bool {
        parked.until.is_none() && self.paths[parked.path].host.is_over()
    }

    /// Those who wait for them are told; what they may still do is waited for by what follows. Where what follows may go by
    /// another core, they are told later.
    pub(super) fn fail_parked(&mut self, error: IoError) {
        if self.speaker().options().one_of_cores {
            return self.parked.iter_mut().for_each(|one| one.failing = Some(error));
        }
        for index in 0..self.parked.len() {
            if let Some(slot) = self.parked[index].slot.take() {
                self.end(slot, Err(error));
            }
        }
    }

    /// When requests begin to fail for want of any path.
    pub(super) fn fails_fast_at(&self) -> Option<Time> {
        Some(self.lost_at? + self.speaker().options().fast_io_fail_tmo?)
    }

    pub(super) fn check_fast_fail(&mut self) {
        if self.paths.len() == 1 {
            return;
        }
        if self.state() == State::Connected {
            self.lost_at = None;
            if std::mem::take(&mut self.fails_fast) {
                self.refusing = None;
                self.parked.iter_mut().for_each(|one| one.failing = None);
            }
            return;
        }
        self.lost_at.get_or_insert(self.now);
        let is_due = self.fails_fast_at().is_some_and(|at| at <= self.now);
        if is_due && !self.fails_fast && self.refusing.is_none() {
            self.fails_fast = true;
            self.refuse(IoError::ConnectionLost);
            self.events.push_back((0, HostEvent::FailsFast));
        }
    }
}
