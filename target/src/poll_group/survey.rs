//! What a reactor has, for whoever asks on behalf of an operator.
use std::sync::Arc;

use ironside_common::nvme::Nqn;
use ironside_common::verbs::{Address, Connections, TargetVerbs};

use super::{NamespaceUse, PollGroup, Storage, Tally};
use crate::catalog::Catalog;
use crate::qpair::{CommandKind, Histogram};
use crate::reservation::HostId;

/// One reactor at one moment.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub reactor: usize,
    pub controllers: Vec<ControllerReport>,
    pub queues: Vec<QueueReport>,
    /// Connections which belong to no controller yet.
    pub unassociated: usize,
    /// Queues which wait for a buffer.
    pub waiting: usize,
    pub total: Total,
    /// What queues have done, those which are gone included.
    pub tallies: Vec<Tally>,
    /// What was done for namespaces, those included which are served no more.
    pub namespaces: Vec<NamespaceUse>,
    /// How long I/O commands took which succeeded: of each kind, in the order of [`CommandKind::ALL`].
    pub latencies: [Histogram; CommandKind::ALL.len()],
    /// The version in force.
    pub catalog: Option<Arc<Catalog>>,
}

/// What there has been since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Total {
    pub admin_queues: u64,
    pub io_queues: u64,
    /// Commands received on queues, those which are gone included.
    pub commands: u64,
}

/// A controller which lives on the reactor.
#[derive(Clone, Debug)]
pub struct ControllerReport {
    pub cntlid: u16,
    pub subsystem: Nqn,
    pub host: Nqn,
    pub host_id: HostId,
    pub io_queues: usize,
}

/// A queue of a controller, on whichever reactor that is.
#[derive(Clone, Debug)]
pub struct QueueReport {
    pub cntlid: u16,
    pub qid: u16,
    pub host: String,
    pub local: Address,
    pub peer: Address,
}

impl Total {
    pub(super) fn joined(&mut self, qid: u16) {
        match qid {
            0 => self.admin_queues += 1,
            _ => self.io_queues += 1,
        }
    }
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// All of it, by value.
    pub fn survey(&mut self) -> Survey {
        let mut survey = Survey {
            reactor: self.settings.reactor,
            waiting: self.waiting.len(),
            total: self.total,
            tallies: self.tallies_now(),
            namespaces: self.usages.now(),
            latencies: self.usages.latencies(),
            catalog: Some(Arc::clone(&self.catalog)),
            ..Survey::default()
        };
        for connection in self.connections.iter().flatten() {
            survey.total.commands += connection.counts.commands();
            let Some(membership) = &connection.membership else {
                survey.unassociated += 1;
                continue;
            };
            survey.queues.push(QueueReport {
                cntlid: membership.cntlid,
                qid: membership.qid,
                host: connection.host().map(|host| host.to_string()).unwrap_or_default(),
                local: connection.local,
                peer: connection.peer,
            });
        }
        let mut next = self.controllers.after(None);
        while let Some(cntlid) = next {
            if let Some(entry) = self.controllers.get(cntlid) {
                let machine = &entry.machine;
                survey.controllers.push(ControllerReport {
                    cntlid,
                    subsystem: *machine.subnqn(),
                    host: *machine.host_nqn(),
                    host_id: *machine.host_id(),
                    io_queues: entry.queues.len(),
                });
            }
            next = self.controllers.after(Some(cntlid));
        }
        survey
    }
}
