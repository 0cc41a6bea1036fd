//! What the provider says, handed to whom it concerns: the connection being made, a queue, or nobody any more.
use ironside_common::nvme::Status;
use ironside_common::time::Time;
use ironside_common::verbs::{CmEvent, Connections, Event, HostVerbs, QpHandle, Received, RejectReason, Wc};

use super::queue::{Finished, Queue, QueueParameters};
use super::requests::Part;
use super::setup::Ask;
use super::{Fault, Host, HostEvent, Mark, Owner, Phase};
use crate::volume::{IoError, Operation};

impl Host {
    /// Takes one event of the provider.
    pub fn on_event<V: HostVerbs + Connections>(&mut self, verbs: &mut V, event: Event, now: Time) {
        match event {
            Event::Received(received) => self.on_received(verbs, received, now),
            Event::Completed(wc) => self.on_completed(verbs, wc, now),
            Event::Connection(event) => match *event {
                CmEvent::Request(request) => verbs.reject(request, &[]),
                CmEvent::Established { qp, .. } => self.on_established(verbs, qp, now),
                CmEvent::Refused { qp, reason } => self.on_refused(verbs, qp, reason, now),
                CmEvent::Disconnected { qp, reason } => self.on_disconnected(verbs, qp, reason, now),
            },
        }
    }

    fn on_received<V: HostVerbs + Connections>(&mut self, verbs: &mut V, received: Received, now: Time) {
        let Some(index) = self.index_of(received.qp) else { return verbs.repost(received) };
        let result = self.queues[index].on_received(verbs, received);
        self.on_result(verbs, result, now);
    }

    fn on_completed<V: HostVerbs + Connections>(&mut self, verbs: &mut V, wc: Wc, now: Time) {
        let Some(index) = self.index_of(wc.qp) else { return };
        let result = self.queues[index].on_completed(wc);
        self.on_result(verbs, result, now);
        if matches!(self.phase, Phase::Ending(_)) {
            self.settle(verbs, now);
        }
    }

    fn on_result<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        result: Result<Option<Finished<Owner>>, Fault>,
        now: Time,
    ) {
        match result {
            Ok(None) => {}
            Ok(Some(finished)) => self.on_finished(verbs, finished, now),
            Err(fault) => self.lose(verbs, fault, now),
        }
    }

    fn on_finished<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        finished: Finished<Owner>,
        now: Time,
    ) {
        match finished.owner {
            Owner::Part(part, mark) => {
                let result = finished.result.map(drop).map_err(|refusal| refusal.status);
                self.on_part(part, mark, result, now);
            }
            Owner::Step => self.on_step(verbs, finished.result, now),
            Owner::KeepAlive => self.on_keep_alive(verbs, finished.result, now),
            Owner::AsyncEvent => self.on_async_event(verbs, finished.result, now),
            Owner::Authentication => self.on_authentication(verbs, finished.result, now),
        }
    }

    fn on_part(&mut self, part: Part, mark: Mark, result: Result<(), Status>, now: Time) {
        self.counters.commands += 1;
        if let Err(status) = result {
            self.counters.errors += 1;
            if status.is(Status::AUTHENTICATION_REQUIRED) {
                self.on_unauthenticated();
            }
            return self.requests.answered(part, result, now);
        }
        let work = self.requests.work(&part);
        match (work.operation, work.buffer) {
            (Operation::Read, Some(buffer)) if !mark.is_gone(&self.memory, buffer) => {
                self.counters.errors += 1;
                return self.requests.ended(part, Err(IoError::NoData));
            }
            (Operation::Read, _) => self.counters.bytes_read += work.length,
            (Operation::Write { .. }, _) => self.counters.bytes_written += work.length,
            _ => {}
        }
        self.requests.answered(part, result, now);
    }

    fn on_established<V: HostVerbs + Connections>(&mut self, verbs: &mut V, qp: QpHandle, now: Time) {
        let Phase::Setup(setup) = &mut self.phase else { return verbs.disconnect(qp) };
        let Ask::Dial { queue, size, .. } = setup.ask() else { return verbs.disconnect(qp) };
        if self.dialing.take_if(|dialing| *dialing == qp).is_none() {
            return verbs.disconnect(qp);
        }
        // Nothing goes behind commands of the admin queue, nor behind any before the limit is known.
        let in_capsule = if queue == 0 { 0 } else { setup.in_capsule() };
        let disable_flow_control = self.options.disable_sqflow;
        let parameters = QueueParameters { id: queue, size, in_capsule, disable_flow_control };
        self.queues.push(Queue::new(verbs, qp, parameters));
        setup.established(now);
        self.drive_setup(verbs, now);
    }

    fn on_refused<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        qp: QpHandle,
        reason: RejectReason,
        now: Time,
    ) {
        if self.dialing.take_if(|dialing| *dialing == qp).is_none() {
            return;
        }
        if let Phase::Setup(setup) = &self.phase {
            let error = setup.refused(reason);
            self.fail_setup(verbs, error, now);
        }
        self.settle(verbs, now);
    }

    fn on_disconnected<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        qp: QpHandle,
        reason: String,
        now: Time,
    ) {
        if self.dialing.take_if(|dialing| *dialing == qp).is_some() {
            // It had been given up before it was established.
            verbs.destroy(qp);
        } else if let Some(index) = self.index_of(qp) {
            self.queues[index].on_disconnected();
            self.lose(verbs, Fault::Disconnected(reason), now);
        }
        self.settle(verbs, now);
    }

    fn index_of(&self, qp: QpHandle) -> Option<usize> {
        self.queues.iter().position(|queue| queue.qp() == qp)
    }

    /// The association is lost by `fault`, unless it is over already.
    pub(super) fn lose<V: HostVerbs + Connections>(&mut self, verbs: &mut V, fault: Fault, now: Time) {
        match &self.phase {
            Phase::Setup(setup) => {
                let error = setup.broken(fault);
                self.fail_setup(verbs, error, now);
            }
            Phase::Live(_) => {
                self.events.push_back(HostEvent::Lost(fault));
                self.end_association(verbs, now);
            }
            Phase::Shutdown { .. } => self.end_for_close(verbs, now),
            Phase::Idle | Phase::Ending(_) | Phase::Waiting { .. } | Phase::Over => {}
        }
    }
}
