//! How an association ends, and what comes after: every queue pair is disconnected, its work comes back, it is
//! destroyed; only then are its commands anyone's to send again or to fail.
use std::time::Duration;

use ironside_common::nvme::fabrics::{PropertyGet, PropertySet};
use ironside_common::nvme::property::{Capabilities, ControllerStatus, PropertyId, ShutdownStatus};
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, HostVerbs};

use super::error::ConnectError;
use super::queue::{Data, Refusal};
use super::setup::{Setup, configuration};
use super::{Host, HostEvent, Owner, Phase};
use crate::volume::IoError;

/// How long commands in flight may take to end when the host is asked to close.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the controller may take to shut down.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks whether it has.
const SHUTDOWN_INTERVAL: Duration = Duration::from_millis(2);

/// What follows once every queue pair is gone.
#[derive(Debug)]
pub(super) enum Then {
    /// Wait, and connect again.
    Retry,
    Fail(ConnectError),
    Close,
}

impl Host {
    pub(super) fn begin_setup<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        self.phase = Phase::Setup(Box::new(Setup::new(self.options.clone(), now)));
        self.drive_setup(verbs, now);
    }

    /// An attempt to connect has failed.
    pub(super) fn fail_setup<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        error: ConnectError,
        now: Time,
    ) {
        let is_first = self.association.is_none() && !self.options.one_of_many;
        let then = if is_first || error.is_final() {
            Then::Fail(error)
        } else {
            self.events.push_back(HostEvent::AttemptFailed(error));
            Then::Retry
        };
        self.end(verbs, then, now);
    }

    /// The association was lost.
    pub(super) fn end_association<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        let then = if self.closing { Then::Close } else { Then::Retry };
        self.end(verbs, then, now);
    }

    pub(super) fn end_for_close<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        self.end(verbs, Then::Close, now);
    }

    fn end<V: HostVerbs + Connections>(&mut self, verbs: &mut V, then: Then, now: Time) {
        self.phase = Phase::Ending(then);
        for queue in &mut self.queues {
            queue.set_broken();
            verbs.disconnect(queue.qp());
        }
        if let Some(qp) = self.dialing {
            verbs.disconnect(qp);
        }
        self.settle(verbs, now);
    }

    /// While ending: lets go of the queue pairs whose work has come back, and goes on after the last.
    pub(super) fn settle<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        if !matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        let until = self.options.fence().map(|fence| now + fence);
        let ends_with_return = self.target_ends_writes();
        while let Some(index) = self.queues.iter().position(|queue| queue.is_drained()) {
            let queue = self.queues.swap_remove(index);
            verbs.destroy(queue.qp());
            for owner in queue.into_unfinished() {
                if let Owner::Part(part, _) = owner {
                    self.requests.lost(part, until, ends_with_return);
                }
            }
        }
        if !self.queues.is_empty() || self.dialing.is_some() {
            return;
        }
        let Phase::Ending(then) = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        self.requests.withdraw();
        match then {
            Then::Retry => self.phase = Phase::Waiting { until: self.reconnect.next_attempt(now) },
            Then::Fail(error) => self.fail(error),
            Then::Close => self.events.push_back(HostEvent::Closed),
        }
    }

    /// The last word: no controller any more.
    fn fail(&mut self, error: ConnectError) {
        self.phase = Phase::Over;
        self.refuse(IoError::ConnectionLost);
        self.events.push_back(HostEvent::Failed(error));
    }

    /// The time to reconnect within is over.
    pub(super) fn give_up<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        let error = ConnectError::GaveUp { attempts: self.reconnect.attempts() };
        match self.phase {
            Phase::Waiting { .. } => self.fail(error),
            Phase::Setup(_) => self.end(verbs, Then::Fail(error), now),
            _ => {}
        }
    }

    pub(super) fn begin_close<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        self.closing = true;
        match &mut self.phase {
            Phase::Idle | Phase::Waiting { .. } => {
                self.phase = Phase::Over;
                self.events.push_back(HostEvent::Closed);
            }
            Phase::Setup(_) => self.end(verbs, Then::Close, now),
            Phase::Live(live) => {
                live.close_by.get_or_insert(now + CLOSE_PATIENCE);
            }
            Phase::Ending(then) => *then = Then::Close,
            Phase::Shutdown { .. } | Phase::Over => {}
        }
        self.refuse(IoError::Closing);
    }

    /// Asked to close, with the controller's commands ended or their time over: tells the controller.
    pub(super) fn begin_shutdown<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        if !self.queues.first().is_some_and(|admin| admin.has_room()) {
            return self.end_for_close(verbs, now);
        }
        self.phase = Phase::Shutdown { give_up_at: now + SHUTDOWN_PATIENCE, look_at: None };
        // Nothing else of it may change while the controller is enabled.
        let capabilities = self.association.as_ref().map_or(Capabilities(0), |one| one.capabilities);
        let shutdown = configuration(capabilities, true).with_shutdown();
        let command = PropertySet::new(PropertyId::CC, shutdown.0.into()).to_command(0);
        self.queues[0].submit(verbs, command, Data::None, Owner::Step, now);
    }

    pub(super) fn look_for_shutdown<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        let Phase::Shutdown { give_up_at, look_at } = &mut self.phase else { return };
        if now >= *give_up_at || !self.queues[0].has_room() {
            return self.end_for_close(verbs, now);
        }
        if look_at.take_if(|at| *at <= now).is_some() {
            let command = PropertyGet::new(PropertyId::CSTS).to_command(0);
            self.queues[0].submit(verbs, command, Data::None, Owner::Step, now);
        }
    }

    /// A step of shutting down was answered; that of writing CC with a value which is never complete.
    pub(super) fn on_shutdown_step<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        result: Result<u64, Refusal>,
        now: Time,
    ) {
        let Phase::Shutdown { look_at, .. } = &mut self.phase else { return };
        let status = result.map(|value| ControllerStatus(value as u32).shutdown());
        match status {
            Ok(ShutdownStatus::None | ShutdownStatus::InProgress) => *look_at = Some(now + SHUTDOWN_INTERVAL),
            Ok(ShutdownStatus::Complete | ShutdownStatus::Reserved) | Err(_) => {
                self.end_for_close(verbs, now);
            }
        }
    }
}
