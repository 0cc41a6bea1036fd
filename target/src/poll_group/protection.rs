//! Write protection of namespaces (NVM Express base specification 2.2, section 8.1.16) among reactors.
//!
//! It changes as reservations do: the registrar has it kept, then installed on every reactor, which waits for writes at
//! the medium. Then the reactor of the host that asked flushes the medium, so that nothing of a protected namespace is
//! in a volatile cache, and answers. If the medium cannot, the host is told; the namespace is protected all the same,
//! since a medium which loses what it was given had better get no more.
use ironside_common::nvme::{Nqn, Status};
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, TargetVerbs, Token};
use uuid::Uuid;

use super::message::Asker;
use super::{Medium, PollGroup, QueueName, Storage};
use crate::backend::{Done, Operation};
use crate::qpair::AdminReply;
use crate::reservation::Command;

/// A command which protects a namespace.
pub(super) struct Protecting {
    queue: QueueName,
    token: Token,
    uuid: Uuid,
    /// The backend which is flushed for it, once protection is in force.
    flushed: Option<usize>,
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// A Set Features of Namespace Write Protection. False if there is no such namespace any more.
    pub(super) fn protect(&mut self, token: Token, subnqn: &Nqn, nsid: u32, protect: bool) -> bool {
        let Some(uuid) = self.uuid_of(&subnqn.to_field(), nsid) else { return false };
        let Some(queue) = self.queue_of(token) else { return false };
        if protect {
            self.protecting.push(Protecting { queue, token, uuid, flushed: None });
        }
        self.ask(Asker { queue, token }, uuid, [0; 16], Command::Protect(protect));
        true
    }

    /// The registrar has answered. True if the host's answer has to wait for the medium.
    pub(super) fn flush_protected(&mut self, asker: &Asker, status: Status) -> bool {
        let is_it = |one: &Protecting| (one.queue, one.token) == (asker.queue, asker.token);
        let Some(index) = self.protecting.iter().position(is_it) else { return false };
        let catalog = std::sync::Arc::clone(&self.catalog);
        let mut namespaces = catalog.subsystems().iter().flat_map(|subsystem| subsystem.namespaces());
        let namespace = namespaces.find(|namespace| namespace.uuid == self.protecting[index].uuid);
        match namespace.filter(|_| status.is_success() && self.named(asker.queue).is_some()) {
            Some(namespace) => {
                let backend = self.desk.storage.backend_of(namespace);
                self.protecting[index].flushed = Some(backend);
                self.desk.submit(asker.token, backend, Operation::Flush);
                true
            }
            // Nothing was protected, or what was is gone.
            None => {
                self.protecting.swap_remove(index);
                false
            }
        }
    }

    /// Whether it was the flush of a namespace which is protected now; then the host is answered.
    pub(super) fn on_flushed(&mut self, now: Time, done: &Done) -> bool {
        let is_it = |one: &Protecting| one.token == done.token && one.flushed.is_some();
        let Some(index) = self.protecting.iter().position(is_it) else { return false };
        self.protecting.swap_remove(index);
        let status = done.result.map_or_else(Status::from, |()| Status::SUCCESS);
        self.answer(now, done.token, AdminReply { status, result: 0, length: 0 });
        true
    }

    /// Whether this backend is being flushed.
    pub(super) fn is_flushing(&self, backend: usize) -> bool {
        self.protecting.iter().any(|one| one.flushed == Some(backend))
    }

    /// A namespace is protected, or not any more, here: what a host reads of it says so from now on.
    pub(super) fn set_protected(&mut self, uuid: Uuid, protected: bool) {
        let mut last = None;
        while let Some(cntlid) = self.controllers.after(last) {
            last = Some(cntlid);
            if let Some(entry) = self.controllers.get(cntlid) {
                entry.machine.set_protected(uuid, protected);
            }
        }
    }

    /// It is so everywhere: hosts are told.
    pub(super) fn on_show(&mut self, now: Time, uuid: Uuid) {
        let mut last = None;
        while let Some(cntlid) = self.controllers.after(last) {
            last = Some(cntlid);
            if let Some(entry) = self.controllers.get(cntlid) {
                entry.machine.note_protection(uuid);
            }
            self.controller_events(now, cntlid);
        }
    }
}
