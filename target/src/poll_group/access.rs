//! Ways to namespaces which end and come back while hosts use them: asymmetric namespace access on the queues of a reactor.
//!
//! Once a reactor has a catalog by which a group is not accessible at a listener, no command of that group which came by
//! it begins any more. What had begun is finished, and [`PollGroup::is_settled`] says when that is so: from then on
//! nothing that came by this way is at a medium.
use ironside_common::nvme::{Nqn, Status};
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, QpHandle, TargetVerbs};

use super::{Connection, PollGroup, Storage};
use crate::catalog::Namespace;

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// Tells a queue which namespaces it is no way to, whenever it or the catalog is new.
    pub(super) fn set_access(&mut self, now: Time, qp: QpHandle) {
        let Some(connection) = self.connection(qp) else { return };
        let (local, generation) = (connection.local, connection.generation);
        let Some(host) = connection.host() else { return };
        let Some(subnqn) = connection.subnqn.and_then(|field| Nqn::from_field(&field).ok()) else { return };
        let Some(subsystem) = self.catalog.subsystem(&subnqn) else { return };
        // Whoever is not admitted any more is about to be disconnected, and may have another way.
        let is_admitted = subsystem.allows(&host);
        let refusal = |namespace: &Namespace| match subsystem.ana_state(namespace.ana_group, local).refusal()
        {
            None if !is_admitted => Some(Status::INTERNAL_PATH_ERROR),
            refusal => refusal,
        };
        let seen = || subsystem.namespaces_for(&host);
        let refused = seen().filter_map(|namespace| Some((namespace.nsid, refusal(namespace)?)));
        let mut inaccessible: Vec<(u32, Status)> = refused.collect();
        let served: Vec<u32> = seen().map(|namespace| namespace.nsid).collect();
        let queue = self.name(qp, generation);
        let Some(connection) = self.connection(qp) else { return };
        // Where a namespace has gone, be it for this host alone, so has the way to it.
        let named = connection.qpair.named_namespaces().into_iter().filter(|nsid| !served.contains(nsid));
        inaccessible.extend(named.map(|nsid| (nsid, Status::INVALID_NAMESPACE)));
        let received = connection.qpair.received();
        let is_lost = |nsid: &u32| connection.qpair.is_way_to(*nsid);
        let lost: Vec<u32> = inaccessible.iter().map(|(nsid, _)| *nsid).filter(is_lost).collect();
        self.losing.extend(lost.into_iter().map(|nsid| (queue, nsid, received)));
        self.with_qpair(now, qp, |qpair, cx| qpair.set_inaccessible(cx, inaccessible));
    }

    /// Whether every command has ended that had begun when its way to a namespace ended, and nobody is connected any
    /// more who is not admitted.
    pub fn is_settled(&mut self) -> bool {
        if self.connections.iter().flatten().any(|connection| self.is_unwanted(connection)) {
            return false;
        }
        let mut ending = std::mem::take(&mut self.ending);
        ending.retain(|&queue| self.named(queue).is_some());
        self.ending = ending;
        let mut losing = std::mem::take(&mut self.losing);
        losing.retain(|&(queue, nsid, received)| {
            self.named(queue).is_some_and(|connection| connection.qpair.is_at_medium(Some(nsid), received))
        });
        self.losing = losing;
        self.losing.is_empty() && self.ending.is_empty()
    }

    /// Whether it is an I/O queue, or about to be one, of a host which the catalog does not admit where it came.
    fn is_unwanted(&self, connection: &Connection) -> bool {
        let joining = || connection.joining.as_ref().map(|joining| joining.subnqn);
        let subnqn = connection.subnqn.or_else(joining).and_then(|field| Nqn::from_field(&field).ok());
        let (Some(subnqn), Some(host)) = (subnqn, connection.host()) else { return false };
        let subsystem = self.catalog.subsystem(&subnqn);
        !subsystem.is_some_and(|one| one.allows(&host) && one.is_reached_at(connection.local))
    }
}
