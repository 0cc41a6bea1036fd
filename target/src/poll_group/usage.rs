//! What a reactor has done for each namespace. It is kept when a namespace goes, so that what comes again by the same number and
//! UUID counts on.
use std::collections::BTreeMap;
use std::rc::Rc;

use ironside_common::nvme::Nqn;
use uuid::Uuid;

use crate::qpair::{CommandKind, Histogram, Latencies, Usage, Used};

/// Namespaces up to which those are remembered which are served no more.
const REMEMBERED_MAX: usize = 1024;

/// What one reactor has done for one namespace.
#[derive(Clone, Debug)]
pub struct NamespaceUse {
    pub subsystem: Nqn,
    pub nsid: u32,
    pub uuid: Uuid,
    /// Of each kind, in the order of [`CommandKind::ALL`].
    pub used: [Used; CommandKind::ALL.len()],
}

#[derive(Debug, Default)]
pub(super) struct Usages {
    known: BTreeMap<(Nqn, u32, Uuid), Rc<Usage>>,
    latencies: Rc<Latencies>,
}

impl Usages {
    /// Where the commands of a namespace are counted.
    pub(super) fn of(&mut self, subsystem: &Nqn, nsid: u32, uuid: Uuid) -> Rc<Usage> {
        let new = || Rc::new(Usage::new(Rc::clone(&self.latencies)));
        Rc::clone(self.known.entry((*subsystem, nsid, uuid)).or_insert_with(new))
    }

    /// Before another version of the configuration: forgets what nobody counts on any more, if there is much.
    pub(super) fn make_room(&mut self) {
        if self.known.len() >= REMEMBERED_MAX {
            self.known.retain(|_, usage| Rc::strong_count(usage) > 1);
        }
    }

    /// How long commands took, whatever their namespace.
    pub(super) fn latencies(&self) -> [Histogram; CommandKind::ALL.len()] {
        self.latencies.read()
    }

    pub(super) fn now(&self) -> Vec<NamespaceUse> {
        let one = |(&(subsystem, nsid, uuid), usage): (&(Nqn, u32, Uuid), &Rc<Usage>)| NamespaceUse {
            subsystem,
            nsid,
            uuid,
            used: usage.read(),
        };
        self.known.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_which_are_gone_are_remembered_until_there_are_many() {
        let (mut usages, nqn): (_, Nqn) = (Usages::default(), "nqn.2014-08.org.example:s".parse().unwrap());
        let served = usages.of(&nqn, 1, Uuid::from_u128(1));
        assert!(Rc::ptr_eq(&served, &usages.of(&nqn, 1, Uuid::from_u128(1))), "it counts on");
        assert!(!Rc::ptr_eq(&served, &usages.of(&nqn, 1, Uuid::from_u128(2))), "that is another");
        usages.make_room();
        assert_eq!(usages.now().len(), 2);
        for number in 0..REMEMBERED_MAX {
            usages.of(&nqn, 2, Uuid::from_u128(number as u128));
        }
        usages.make_room();
        let left: Vec<_> = usages.now().iter().map(|one| (one.nsid, one.uuid)).collect();
        assert_eq!(left, [(1, Uuid::from_u128(1))]);
    }
}
