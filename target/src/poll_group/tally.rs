//! What queues have done, taken together by subsystem, host, listener and kind, those which are gone included: so the sums
//! only ever grow. Each queue counts for itself; here it is added up when somebody asks, and when a queue ends.
use ironside_common::nvme::Nqn;
use ironside_common::verbs::{Address, Connections, QpHandle, TargetVerbs};

use super::connection::Connection;
use super::{PollGroup, Storage};
use crate::qpair::{Counts, Errors};

/// Sums of a reactor. Any host may come where any is admitted, by whatever names: those beyond are one.
const TALLIES_MAX: usize = 1024;
const OTHERS: &str = "others";

/// Whose queues are taken together.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TallyKey {
    pub subsystem: String,
    pub host: String,
    /// The address of ours that the host came to.
    pub listener: Address,
    pub is_admin: bool,
}

/// What they have done.
#[derive(Clone, Debug)]
pub struct Tally {
    pub key: TallyKey,
    pub counts: Counts,
    pub errors: Errors,
}

impl Tally {
    fn add(&mut self, connection: &Connection) {
        self.counts = self.counts.plus(connection.counts.read());
        self.errors.join(connection.qpair.errors());
    }
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// A queue has become one of a controller: which sum it adds to from now on.
    pub(super) fn tally_queue(&mut self, qp: QpHandle, subnqn: &[u8; 256]) {
        let Some(connection) = self.connection(qp) else { return };
        let Some(membership) = &connection.membership else { return };
        let (is_admin, host) = (membership.qid == 0, connection.host());
        let local = connection.local;
        let named = |nqn: Option<Nqn>| nqn.map_or_else(|| OTHERS.to_owned(), |nqn| nqn.to_string());
        let mut key = TallyKey {
            subsystem: named(Nqn::from_field(subnqn).ok()),
            host: named(host),
            listener: local.canonical(),
            is_admin,
        };
        let find = |tallies: &[Tally], key: &TallyKey| tallies.iter().position(|tally| tally.key == *key);
        let mut found = find(&self.tallies, &key);
        if found.is_none() && self.tallies.len() >= TALLIES_MAX {
            key = TallyKey { subsystem: OTHERS.into(), host: OTHERS.into(), is_admin, ..key };
            found = find(&self.tallies, &key);
        }
        let index = found.unwrap_or_else(|| {
            self.tallies.push(Tally { key, counts: Counts::default(), errors: Errors::default() });
            self.tallies.len() - 1
        });
        if let Some(connection) = self.connection(qp) {
            connection.tally = Some(index);
        }
    }

    /// What a queue has done stays when it goes.
    pub(super) fn keep_tally(&mut self, qp: QpHandle) {
        let Self { connections, tallies, .. } = self;
        let connection = connections.get(usize::from(qp.0)).and_then(Option::as_ref);
        if let Some((connection, index)) = connection.and_then(|one| Some((one, one.tally?))) {
            tallies[index].add(connection);
        }
    }

    /// All sums as they are now.
    pub(super) fn tallies_now(&self) -> Vec<Tally> {
        let mut tallies = self.tallies.clone();
        for connection in self.connections.iter().flatten() {
            if let Some(index) = connection.tally {
                tallies[index].add(connection);
            }
        }
        tallies
    }
}
