//! What a new Connect of a host waits for: a write which the host may have given up must not land after the
//! one that replaced it.
//!
//! So every reactor first learns what has arrived on that host's connections, of those that stand as of
//! those that are lost, and then waits until none of these commands can change a medium any more. A host
//! may well have a second controller: what its other connections ask for later does not delay it.
use ironside_common::verbs::{Connections, TargetVerbs};

use super::{HostName, Message, PollGroup, QueueName, Storage};

/// One question of a reactor which holds a Connect.
pub(super) struct Quiesce {
    pub(super) asking: QueueName,
    awaited: Vec<Awaited>,
}

struct Awaited {
    queue: QueueName,
    /// Commands that had arrived, once that is known.
    received: Option<u64>,
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    pub(super) fn begin_quiesce(&mut self, host: &HostName, asking: QueueName) {
        let reactor = self.settings.reactor;
        let mut awaited = Vec::new();
        for (qp, connection) in (0..).map(super::QpHandle).zip(&self.connections) {
            let Some(connection) = connection.as_ref().filter(|connection| connection.is_of(host)) else {
                continue;
            };
            self.verbs.catch_up(qp);
            let queue = QueueName { reactor, qp, generation: connection.generation };
            awaited.push(Awaited { queue, received: None });
        }
        self.quiescing.push(Quiesce { asking, awaited });
    }

    /// Answers those for whom nothing is left to wait for; says whether there were any.
    pub(super) fn check_quiescing(&mut self) -> bool {
        let mut quiescing = std::mem::take(&mut self.quiescing);
        let before = quiescing.len();
        quiescing.retain_mut(|quiesce| {
            quiesce.awaited.retain_mut(|awaited| self.is_awaited(awaited));
            if quiesce.awaited.is_empty() {
                let asking = quiesce.asking;
                self.send(asking.reactor, Message::Quiesced { asking });
            }
            !quiesce.awaited.is_empty()
        });
        let answered = quiescing.len() < before;
        self.quiescing = quiescing;
        answered
    }

    fn is_awaited(&mut self, awaited: &mut Awaited) -> bool {
        let qp = awaited.queue.qp;
        let Some(connection) = self.named(awaited.queue) else { return false };
        let now_received = connection.qpair.received();
        let received = match awaited.received {
            Some(received) => received,
            None if self.verbs.has_caught_up(qp) => *awaited.received.insert(now_received),
            None => return true,
        };
        self.named(awaited.queue).is_some_and(|connection| connection.qpair.changes_until(received))
    }
}
