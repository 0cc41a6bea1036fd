//! Which controllers there are, on whichever reactor: what lists of controllers and reports of reservations name. Each
//! reactor has a copy of its own, which the reactors of controllers keep up to date.
use std::collections::BTreeMap;

use ironside_common::nvme::Nqn;
use ironside_common::verbs::{Connections, TargetVerbs};

use super::{Message, PollGroup, Storage};
use crate::reservation::HostId;

/// Whose controller it is, and of which subsystem.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Member {
    pub subsystem: Nqn,
    pub host: Nqn,
    pub host_id: HostId,
}

/// By the identifier of the controller.
#[derive(Debug, Default)]
pub(super) struct Roster(BTreeMap<u16, Member>);

impl Roster {
    pub(super) fn appeared(&mut self, cntlid: u16, member: Member) {
        self.0.insert(cntlid, member);
    }

    pub(super) fn vanished(&mut self, cntlid: u16) {
        self.0.remove(&cntlid);
    }

    /// The controllers of a subsystem whose hosts are such, ascending.
    pub(super) fn controllers<'a>(
        &'a self,
        subsystem: &'a Nqn,
        is_such: impl Fn(&Member) -> bool + 'a,
    ) -> impl Iterator<Item = u16> + 'a {
        let of_it = self.0.iter().filter(move |(_, one)| one.subsystem == *subsystem && is_such(one));
        of_it.map(|(&cntlid, _)| cntlid)
    }
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// A controller of ours is there: here at once, elsewhere before any of its queues is.
    pub(super) fn appear(&mut self, cntlid: u16) {
        let Some(entry) = self.controllers.get(cntlid) else { return };
        let machine = &entry.machine;
        let member =
            Member { subsystem: *machine.subnqn(), host: *machine.host_nqn(), host_id: *machine.host_id() };
        self.roster.appeared(cntlid, member.clone());
        self.tell_others(&Message::Appeared { cntlid, member: Box::new(member) });
    }

    /// It is gone.
    pub(super) fn vanish(&mut self, cntlid: u16) {
        self.roster.vanished(cntlid);
        self.tell_others(&Message::Vanished { cntlid });
    }

    /// The controllers of a subsystem from an identifier on, be it those alone which see a namespace.
    pub(super) fn list_controllers(&self, subsystem: &Nqn, nsid: Option<u32>, first: u16) -> Vec<u16> {
        let served = self.catalog.subsystem(subsystem);
        let sees = |member: &Member| {
            nsid.is_none_or(|nsid| served.and_then(|one| one.namespace_for(&member.host, nsid)).is_some())
        };
        self.roster.controllers(subsystem, sees).filter(|&cntlid| cntlid >= first).collect()
    }

    fn tell_others(&mut self, message: &Message) {
        let here = self.settings.reactor;
        for reactor in (0..self.settings.reactors).filter(|&reactor| reactor != here) {
            self.send(reactor, message.clone());
        }
    }
}
