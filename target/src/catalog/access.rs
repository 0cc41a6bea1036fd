//! By which way a namespace can be used: asymmetric namespace access, and which part of a subsystem is another
//! target's. The same namespace may be reached at several listeners, and by several targets; for each way its group has a
//! state of its own.
use std::ops::RangeInclusive;

use ironside_common::nvme::fabrics::CNTLID_MAX;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::verbs::Address;

use super::{Namespace, Subsystem, covers};

/// ANAGRPMAX: the largest identifier of a group, and how many there are at most.
pub const ANA_GROUP_MAX: u32 = 128;

/// All identifiers a controller may have.
pub const CNTLIDS: RangeInclusive<u16> = 1..=CNTLID_MAX;

/// The state of a group at a listener.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Access {
    pub group: u32,
    /// `None`: at all listeners of which nothing else is said.
    pub listen: Option<Address>,
    pub state: AnaState,
}

impl Access {
    /// What is said of a listener goes before what is said of all, and of an address before that of a wildcard.
    fn precedence(&self) -> u8 {
        self.listen.map_or(0, |listen| if listen.ip().is_unspecified() { 1 } else { 2 })
    }
}

impl Subsystem {
    /// The same with other states of its groups; those not named are optimized everywhere.
    #[must_use]
    pub fn with_access(self, access: Vec<Access>) -> Self {
        Self { access, ..self }
    }

    /// The same, but served by another target too, whose controllers have other identifiers than these.
    #[must_use]
    pub fn shared(self, cntlids: RangeInclusive<u16>) -> Self {
        Self { cntlids: Some(cntlids), ..self }
    }

    /// Whether another target serves it too. Then nothing is offered that only one of them would keep: reservations,
    /// and what is atomic beyond one command.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.cntlids.is_some()
    }

    /// Identifiers of its controllers here.
    #[must_use]
    pub fn cntlids(&self) -> RangeInclusive<u16> {
        self.cntlids.clone().unwrap_or(CNTLIDS)
    }

    #[must_use]
    pub fn access(&self) -> &[Access] {
        &self.access
    }

    /// The state of a group for controllers whose host came to `local`.
    #[must_use]
    pub fn ana_state(&self, group: u32, local: Address) -> AnaState {
        let is_there = |one: &&Access| one.listen.is_none_or(|listen| covers(listen, local));
        let said = self.access.iter().filter(|one| one.group == group).filter(is_there);
        said.max_by_key(|one| one.precedence()).map_or(AnaState::OPTIMIZED, |one| one.state)
    }

    /// Groups which have a namespace, ascending.
    #[must_use]
    pub fn ana_groups(&self) -> Vec<u32> {
        ana_groups(self.namespaces.iter())
    }
}

/// The groups of some namespaces, ascending.
pub fn ana_groups<'a>(namespaces: impl Iterator<Item = &'a Namespace>) -> Vec<u32> {
    let mut groups: Vec<u32> = namespaces.map(|namespace| namespace.ana_group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Hosts;
    use crate::catalog::tests::{namespace, subsystem};

    #[test]
    fn what_is_said_of_a_listener_goes_before_what_is_said_of_all() {
        let at = |address: &str| -> Address { address.parse().unwrap() };
        let of = |group, listen: Option<&str>, state| Access { group, listen: listen.map(at), state };
        let subsystem =
            subsystem("a", Hosts::Any, &["0.0.0.0:4420", "10.0.0.1:4421"], &[]).with_access(vec![
                of(1, Some("10.0.0.1:4421"), AnaState::CHANGE),
                of(1, Some("0.0.0.0:4421"), AnaState::PERSISTENT_LOSS),
                of(1, None, AnaState::INACCESSIBLE),
                of(2, None, AnaState::NON_OPTIMIZED),
            ]);
        let state = |group, local: &str| subsystem.ana_state(group, at(local));
        assert_eq!(state(1, "10.0.0.1:4420"), AnaState::INACCESSIBLE);
        assert_eq!(state(1, "[::ffff:10.0.0.1]:4421"), AnaState::CHANGE);
        assert_eq!(state(1, "10.0.0.2:4421"), AnaState::PERSISTENT_LOSS);
        assert_eq!(state(2, "10.0.0.1:4421"), AnaState::NON_OPTIMIZED);
        assert_eq!(state(3, "10.0.0.1:4421"), AnaState::OPTIMIZED, "nothing is said of it");
    }

    #[test]
    fn only_groups_with_namespaces_are_groups() {
        let mut subsystem = subsystem("a", Hosts::Any, &["10.0.0.1:4420"], &[]);
        let of = |nsid, ana_group| Namespace { ana_group, ..namespace(nsid, 8) };
        subsystem.namespaces = vec![of(1, 7), of(2, 1), of(3, 7)];
        assert_eq!(subsystem.ana_groups(), [1, 7]);
        assert!(!subsystem.is_shared() && subsystem.cntlids() == CNTLIDS);
        assert_eq!(subsystem.shared(5..=9).cntlids(), 5..=9);
    }
}
