//! Aborts among reactors: the one of the admin queue asks the one of the I/O queue, which answers once the command has
//! ended, aborted or not, or at the end of its patience with a medium.
use std::time::Duration;

use ironside_common::nvme::Status;
use ironside_common::nvme::admin::Abort;
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, TargetVerbs, Token};

use super::message::Asker;
use super::{Message, PollGroup, QueueName, Storage};
use crate::qpair::{self, AdminReply};

/// How long a command which the fabric or a medium has is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// A command of a queue of ours which is to end early, and who wants to know.
pub(super) struct Aborting {
    queue: QueueName,
    number: u64,
    asker: Asker,
    since: Time,
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// A host wants a command of one of its controller's I/O queues to end.
    pub(super) fn abort(&mut self, now: Time, cntlid: u16, token: Token, (sqid, cid): (u16, u16)) {
        let Some(queue) = self.queue_of(token) else { return };
        let asker = Asker { queue, token };
        let queues = self.controllers.get(cntlid).map(|entry| entry.queues.as_slice()).unwrap_or_default();
        match queues.iter().find(|queue| queue.qid == sqid).map(|queue| queue.name) {
            Some(queue) => self.send(queue.reactor, Message::Abort { queue, cid, asker }),
            None => self.on_aborted(now, asker, false),
        }
    }

    /// The queue is ours, unless it has just gone.
    pub(super) fn on_abort(&mut self, now: Time, queue: QueueName, cid: u16, asker: Asker) {
        let mut aborting = qpair::Aborting::Known(false);
        if self.named(queue).is_some() {
            self.with_qpair(now, queue.qp, |qpair, cx| aborting = qpair.abort(cx, cid));
        }
        match aborting {
            qpair::Aborting::Known(aborted) => self.send_aborted(asker, aborted),
            qpair::Aborting::Later(number) => {
                self.aborting.push(Aborting { queue, number, asker, since: now });
            }
        }
    }

    /// Tells those who have waited long enough; says whether there were any.
    pub(super) fn check_aborting(&mut self, now: Time) -> bool {
        if self.aborting.is_empty() {
            return false;
        }
        let mut aborting = std::mem::take(&mut self.aborting);
        let before = aborting.len();
        aborting.retain(|&Aborting { queue, number, asker, since }| {
            let is_late = now.since(since) >= PATIENCE;
            let aborted = match self.named(queue) {
                None => Some(false),
                Some(connection) => connection.qpair.aborted(number).or_else(|| {
                    is_late.then(|| connection.qpair.give_up_abort(number))?;
                    Some(false)
                }),
            };
            if let Some(aborted) = aborted {
                self.send_aborted(asker, aborted);
            }
            aborted.is_none()
        });
        let any = aborting.len() < before;
        self.aborting = aborting;
        any
    }

    fn send_aborted(&mut self, asker: Asker, aborted: bool) {
        self.send(asker.queue.reactor, Message::Aborted { asker, aborted });
    }

    /// The answer for a controller of ours.
    pub(super) fn on_aborted(&mut self, now: Time, asker: Asker, aborted: bool) {
        if self.named(asker.queue).is_some() {
            let result = if aborted { 0 } else { Abort::NOT_ABORTED };
            self.answer(now, asker.token, AdminReply { status: Status::SUCCESS, result, length: 0 });
        }
    }
}
