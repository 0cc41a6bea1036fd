//! How connections and controllers end, what time does to them, and how a new configuration reaches them.
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::nvme::Status;
use ironside_common::nvme::io::Geometry;
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, QpHandle, TargetVerbs, Token};

use super::{CONNECT_DEADLINE, Connection, DRAIN_DEADLINE, Message, PollGroup, Storage, Unanswered, handle};
use crate::catalog::Catalog;
use crate::controller::Event;
use crate::qpair::{AdminReply, Fault, Namespace};

/// How often deadlines are looked at while anybody is connected.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// The provider says that a connection has ended.
    pub(super) fn on_disconnected(&mut self, now: Time, qp: QpHandle, reason: &str) {
        let Some(connection) = self.connection(qp) else { return };
        connection.disconnected = true;
        let orderly = connection.disconnecting;
        tracing::info!(peer = %connection.peer, reason, orderly, "disconnected");
        self.with_qpair(now, qp, |qpair, cx| qpair.fail(cx, Fault::Disconnected));
    }

    /// Ends a connection from our side.
    pub(super) fn end(&mut self, now: Time, qp: QpHandle, fault: Fault) {
        self.with_qpair(now, qp, |qpair, cx| qpair.fail(cx, fault));
    }

    /// What a queue pair's state asks for after something happened to it.
    pub(super) fn settle(&mut self, now: Time, qp: QpHandle) {
        let Some(connection) = self.connection(qp) else { return };
        let Some(fault) = connection.qpair.fault() else { return };
        let (disconnected, drained) = (connection.disconnected, connection.qpair.is_drained());
        let commands = connection.counts.commands();
        if !connection.disconnecting {
            connection.disconnecting = true;
            if !disconnected {
                tracing::info!(peer = %connection.peer, %fault, "ending the connection");
                self.verbs.disconnect(qp);
            }
            self.forget_turns(qp);
            self.leave_controller(now, qp);
            self.give_up_connect(now, qp);
            self.give_up_authentication(now, qp);
        }
        if disconnected && drained {
            self.verbs.destroy(qp);
            self.total.commands += commands;
            self.keep_tally(qp);
            self.connections[usize::from(qp.0)] = None;
        }
    }

    /// A queue is lost: an admin queue takes its controller along, an I/O queue is missed by its own.
    fn leave_controller(&mut self, now: Time, qp: QpHandle) {
        let Some(connection) = self.connection(qp) else { return };
        let generation = connection.generation;
        let joining = connection.joining.as_ref().map(|joining| joining.membership.clone());
        let Some(membership) = connection.membership.clone().or(joining) else { return };
        if membership.qid == 0 {
            self.end_controller(now, membership.cntlid, "its admin queue is gone");
        } else if let Some(home) = self.controllers.home(membership.cntlid) {
            let queue = self.name(qp, generation);
            self.send(home, Message::Left { cntlid: membership.cntlid, queue });
        }
    }

    /// A controller ends, and all its queues with it.
    pub(super) fn end_controller(&mut self, now: Time, cntlid: u16, why: &'static str) {
        let Some(entry) = self.controllers.remove(cntlid) else { return };
        self.vanish(cntlid);
        tracing::info!(cntlid, why, host = %entry.machine.host_nqn(), "controller ends");
        for queue in &entry.queues {
            self.send(queue.name.reactor, Message::End { queue: queue.name, why });
        }
        if self.named(entry.admin).is_some_and(|connection| connection.qpair.fault().is_none()) {
            self.end(now, entry.admin.qp, Fault::Ended(why));
        }
    }

    /// What a controller has to say after it was called.
    pub(super) fn controller_events(&mut self, now: Time, cntlid: u16) {
        while let Some(event) = self.controllers.get(cntlid).and_then(|entry| entry.machine.poll_event()) {
            match event {
                Event::AsyncEvent { result } => {
                    if let Some(token) = self.held_event_request(cntlid) {
                        let reply = AdminReply { status: Status::SUCCESS, result: result.into(), length: 0 };
                        self.answer(now, token, reply);
                    }
                }
                Event::Forget => {
                    if let Some(token) = self.held_event_request(cntlid) {
                        self.with_qpair(now, QpHandle(token.qpair), |qpair, cx| qpair.forget(cx, token));
                    }
                }
                Event::Disabled => self.end_io_queues(cntlid, "the controller was disabled"),
                Event::Fatal { why } => self.end_controller(now, cntlid, why),
            }
        }
    }

    fn held_event_request(&mut self, cntlid: u16) -> Option<Token> {
        self.controllers.get(cntlid)?.events.pop_front()
    }

    fn end_io_queues(&mut self, cntlid: u16, why: &'static str) {
        let Some(entry) = self.controllers.get(cntlid) else { return };
        let queues: Vec<_> = entry.queues.iter().map(|queue| queue.name).collect();
        for queue in queues {
            self.send(queue.reactor, Message::End { queue, why });
        }
    }

    /// Connects that do not come, hosts that fall silent, drains that take too long.
    pub(super) fn check_deadlines(&mut self, now: Time) -> bool {
        self.next_check = now + CHECK_INTERVAL;
        self.peers.retain(|_, account| account.strong_count() > 0);
        let mut last = None;
        while let Some(cntlid) = self.controllers.after(last) {
            self.check_controller(now, cntlid);
            last = Some(cntlid);
        }
        let mut busy = self.check_held(now);
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            let qp = handle(index);
            let late = now.since(connection.accepted) >= CONNECT_DEADLINE && !connection.held;
            if connection.qpair.fault().is_some() {
                continue;
            }
            if connection.membership.is_none() && late {
                busy = true;
                self.end(now, qp, Fault::Ended("no Connect came within 5 seconds"));
            } else if let Some(fault) = connection.authentication.as_ref().and_then(|one| one.overdue(now)) {
                busy = true;
                self.end(now, qp, fault);
            } else if let Some(since) = self.draining {
                let overdue = now.since(since) >= DRAIN_DEADLINE;
                if connection.qpair.is_idle() && !self.has_io_queues(index) || overdue {
                    busy = true;
                    self.end(now, qp, Fault::Ended("the target is stopping"));
                }
            }
        }
        self.check_media(now);
        busy
    }

    /// A drain does not wait for a medium for ever.
    fn check_media(&mut self, now: Time) {
        let patience = self.settings.drain;
        if self.given_up.is_some() || self.draining.is_none_or(|since| now.since(since) < patience) {
            return;
        }
        let mut counts = BTreeMap::new();
        for connection in self.connections.iter().flatten() {
            for nsid in connection.qpair.at_media() {
                *counts.entry((connection.subsystem(), nsid)).or_insert(0) += 1;
            }
        }
        let unanswered =
            counts.into_iter().map(|((subsystem, nsid), commands)| Unanswered { subsystem, nsid, commands });
        self.given_up = Some(unanswered.collect());
    }

    /// Whether this is the admin queue of a controller with I/O queues, which it would take along.
    fn has_io_queues(&mut self, index: usize) -> bool {
        let membership =
            self.connections[index].as_ref().and_then(|connection| connection.membership.as_ref());
        let admin = membership.filter(|membership| membership.qid == 0).map(|membership| membership.cntlid);
        admin.and_then(|cntlid| self.controllers.get(cntlid)).is_some_and(|entry| !entry.queues.is_empty())
    }

    fn check_controller(&mut self, now: Time, cntlid: u16) {
        let Some(admin) = self.controllers.get(cntlid).map(|entry| entry.admin) else { return };
        let connection = self.named(admin);
        let commands = connection.as_ref().map_or(0, |connection| connection.qpair.counts().commands);
        // A slow host computes for longer than its keep alive timeout; authentication has a time of its own.
        let authenticates = connection
            .and_then(|connection| connection.authentication.as_ref())
            .is_some_and(|authentication| authentication.is_under_way());
        let Some(entry) = self.controllers.get(cntlid) else { return };
        if entry.was_active(commands) || authenticates {
            entry.machine.note_activity(now);
        }
        if entry.machine.poll_timeout().is_some_and(|deadline| now >= deadline) {
            entry.machine.handle_timeout(now);
            self.controller_events(now, cntlid);
        }
    }

    /// Nothing new starts; what is under way is finished; then everyone is disconnected.
    pub(super) fn drain(&mut self, now: Time) {
        if self.draining.is_none() {
            self.draining = Some(now);
            self.next_check = now;
            for connection in self.connections.iter_mut().flatten() {
                connection.qpair.stop();
            }
            self.end_throttling(now);
        }
    }

    /// A new version of the configuration, between two turns. Commands under way finish on what they began
    /// with; new ones find a namespace of the new version or none. Hosts hear of it by [`Self::announce`].
    pub(super) fn on_catalog(&mut self, now: Time, catalog: Arc<Catalog>) {
        self.reservations.on_catalog(&catalog);
        self.throttle.on_catalog(now, &catalog);
        self.catalog = catalog;
        self.set_views();
        self.show_protections();
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            if connection.subnqn.is_none() {
                continue;
            }
            // A subsystem that was removed has no namespaces, until its controllers end.
            let view = self.view_of(connection).unwrap_or_default();
            if let Some(connection) = &mut self.connections[index] {
                connection.qpair.set_namespaces(view);
            }
            self.restrict(handle(index));
            self.set_limited(handle(index));
            self.set_access(now, handle(index));
        }
    }

    /// Lets the controllers go over to the version in force, and tell their hosts. A host which hears of a
    /// namespace may use it at once, on any reactor: so this comes after all have the version.
    pub(super) fn announce(&mut self, now: Time) {
        let mut last = None;
        while let Some(cntlid) = self.controllers.after(last) {
            last = Some(cntlid);
            let Some(entry) = self.controllers.get(cntlid) else { continue };
            entry.machine.catalog_changed(&self.catalog);
            self.controller_events(now, cntlid);
        }
        // Of controllers which have ended by this, or had just before.
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            let is_admin = connection.membership.as_ref().is_some_and(|membership| membership.qid == 0);
            if is_admin && connection.qpair.fault().is_some() {
                self.ending.push(self.name(handle(index), connection.generation));
            }
        }
    }

    pub(super) fn set_views(&mut self) {
        let (storage, transfer_max) = (&mut self.desk.storage, self.settings.transfer_max);
        self.usages.make_room();
        let usages = &mut self.usages;
        let view = |subsystem: &crate::catalog::Subsystem| -> Rc<[Rc<Namespace>]> {
            let namespaces = subsystem.namespaces().iter().map(|namespace| {
                Rc::new(Namespace {
                    nsid: namespace.nsid,
                    uuid: namespace.uuid,
                    medium: storage.backend_of(namespace),
                    geometry: Geometry {
                        block_shift: namespace.block_shift,
                        blocks: namespace.blocks,
                        transfer_max,
                    },
                    read_only: namespace.read_only,
                    shared: subsystem.is_shared(),
                    limited: namespace.limit.is_any(),
                    usage: usages.of(subsystem.nqn(), namespace.nsid, namespace.uuid),
                })
            });
            namespaces.collect()
        };
        self.views = self.catalog.subsystems().iter().map(view).collect();
    }

    /// The namespaces which the host of an I/O queue sees in its subsystem.
    pub(super) fn view_of(&self, connection: &Connection) -> Option<Rc<[Rc<Namespace>]>> {
        let (subnqn, host) = (connection.subnqn?, connection.host()?);
        let mut subsystems = self.catalog.subsystems().iter();
        let index = subsystems.position(|subsystem| subsystem.nqn().to_field() == subnqn)?;
        let all = &self.views[index];
        // In the same order: the view was made of these.
        let seen = self.catalog.subsystems()[index].namespaces().iter().map(|one| one.hosts.allow(&host));
        if seen.clone().all(|is_seen| is_seen) {
            return Some(Rc::clone(all));
        }
        Some(all.iter().zip(seen).filter(|(_, is_seen)| *is_seen).map(|(one, _)| Rc::clone(one)).collect())
    }
}
