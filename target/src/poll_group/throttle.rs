//! Turns under limits, among reactors: commands of a limited namespace or host ask the reactor which has the buckets of
//! their subsystem. It answers when their turn has come, which may be at once: then a command costs two messages.
use ironside_common::nvme::Nqn;
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, QpHandle, TargetVerbs};

use super::{CommandName, Message, PollGroup, Storage, handle};
use crate::throttle::{Ask, HostKey};

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// Tells an I/O queue whether its host is limited, whenever it or the catalog is new.
    pub(super) fn set_limited(&mut self, qp: QpHandle) {
        let Some(connection) = self.connection(qp) else { return };
        let (Some(membership), Some(subnqn)) = (&connection.membership, connection.subnqn) else { return };
        let host = membership.host.nqn;
        let key = *connection.asks.get_or_insert_with(|| HostKey::new(&subnqn, &host));
        let (generation, entries) = (connection.generation, connection.entries);
        let subsystem = Nqn::from_field(&subnqn).ok().and_then(|subnqn| self.catalog.subsystem(&subnqn));
        // A host's name was found valid when it connected.
        let host = Nqn::from_field(&host).ok();
        let limited =
            subsystem.zip(host).is_some_and(|(subsystem, host)| subsystem.host_limits().of(&host).is_any());
        let has_limits = subsystem.is_some_and(|subsystem| {
            let mut namespaces = subsystem.namespaces().iter();
            subsystem.host_limits().is_any() || namespaces.any(|namespace| namespace.limit.is_any())
        });
        if has_limits {
            let queue = self.name(qp, generation);
            let home = key.home(self.settings.reactors);
            self.send(home, Message::Enlist { queue, host: key, entries });
        }
        if let Some(connection) = self.connection(qp) {
            connection.qpair.set_limited(limited);
        }
    }

    /// Passes on what a queue pair has asked for while it was called.
    pub(super) fn pass_asks_on(&mut self, qp: QpHandle, generation: u32) {
        while let Some((token, namespace, cost)) = self.desk.turns.pop_front() {
            let queue = self.name(qp, generation);
            let name = CommandName { queue, slot: token.slot, generation: token.generation };
            let Some(host) = self.connection(qp).and_then(|connection| connection.asks) else { continue };
            let message = match cost {
                Some(cost) => Message::Ask(Ask { name, namespace, host, cost }),
                None => Message::Withdraw { namespace, name },
            };
            self.send(host.home(self.settings.reactors), message);
        }
    }

    /// Tells those whose turn has come; says whether there were any.
    pub(super) fn give_turns(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(ask) = self.throttle.poll(now) {
            any = true;
            self.send(ask.name.queue.reactor, Message::Turn(ask));
        }
        any
    }

    pub(super) fn on_turn(&mut self, now: Time, ask: Ask) {
        let CommandName { queue, slot, generation } = ask.name;
        let waits = |connection: &mut super::Connection| connection.qpair.is_throttled(slot, generation);
        if self.named(queue).is_some_and(waits) {
            self.with_qpair(now, queue.qp, |qpair, cx| qpair.on_turn(cx, slot));
        } else {
            self.send(ask.host.home(self.settings.reactors), Message::GiveBack(ask));
        }
    }

    /// A queue has ended: what it waits for, nobody needs.
    pub(super) fn forget_turns(&mut self, qp: QpHandle) {
        let Some(connection) = self.connection(qp) else { return };
        let (generation, asks) = (connection.generation, connection.asks);
        if let Some(host) = asks {
            let queue = self.name(qp, generation);
            self.send(host.home(self.settings.reactors), Message::Forget(queue));
        }
    }

    /// A target that stops does not make anybody wait: there would be no end to it.
    pub(super) fn end_throttling(&mut self, now: Time) {
        for index in 0..self.connections.len() {
            if self.connections[index].is_some() {
                self.forget_turns(handle(index));
                self.with_qpair(now, handle(index), |qpair, cx| qpair.unthrottle(cx));
            }
        }
    }
}
