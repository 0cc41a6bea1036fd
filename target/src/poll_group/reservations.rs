//! Reservations among reactors. The first reactor has the registrar; every reactor has each state, and tells its
//! queues what it forbids them.
//!
//! A state is in force on a reactor once it is installed: from then on no command which it forbids reaches a medium,
//! not even one which has begun and waits for a buffer or for its data. The reactor answers the registrar once what
//! was at the medium before has ended, and only then can the command be answered which asked for the change. So once a
//! preempt is answered, no write of the preempted host comes any more.
use std::collections::BTreeMap;
use std::sync::Arc;

use ironside_common::nvme::reservation::{Keys, Notification, ReportEntry, ReportHeader, Request};
use ironside_common::nvme::{Nqn, Status};
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, QpHandle, Sge, TargetVerbs, Token};
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

use super::message::Asker;
use super::{Message, PollGroup, QueueName, Storage, handle};
use crate::catalog::Catalog;
use crate::qpair::{AdminReply, ReservationJob};
use crate::reservation::{Action, Command, HostId, Install, Keep, Registrant, Registrar, State};

/// The reactor which has the registrar.
const REGISTRAR: usize = 0;
/// CNTLID of a registrant which is not connected: controllers here are dynamic.
const NO_CONTROLLER: u16 = 0xFFFF;

/// A reservation command on its way to the registrar.
#[derive(Clone, Debug)]
pub struct Reserve {
    asker: Asker,
    uuid: Uuid,
    host: HostId,
    command: Command,
}

/// What a reactor knows of reservations.
pub(super) struct Reservations {
    registrar: Option<Registrar<Asker>>,
    states: BTreeMap<Uuid, Arc<State>>,
    installing: Vec<Installing>,
    to_keep: Vec<Keep>,
}

/// A state which is in force here, though something it forbids may still be at a medium.
struct Installing {
    uuid: Uuid,
    number: u64,
    /// Of which namespace, up to which command.
    awaited: Vec<(QueueName, Option<u32>, u64)>,
}

impl Reservations {
    pub(super) fn new(reactor: usize, reactors: usize, catalog: &Catalog) -> Self {
        let registrar = (reactor == REGISTRAR).then(|| Registrar::new(reactors, catalog));
        let mut reservations =
            Self { registrar, states: BTreeMap::new(), installing: Vec::new(), to_keep: Vec::new() };
        reservations.on_catalog(catalog);
        reservations
    }

    pub(super) fn on_catalog(&mut self, catalog: &Catalog) {
        if let Some(registrar) = &mut self.registrar {
            registrar.on_catalog(catalog);
        }
        for namespace in catalog.subsystems().iter().flat_map(crate::catalog::Subsystem::namespaces) {
            let kept = || namespace.kept.clone().unwrap_or_default();
            self.states.entry(namespace.uuid).or_insert_with(kept);
        }
    }

    /// Whether nobody waits for a change.
    pub(super) fn is_idle(&self) -> bool {
        self.registrar.as_ref().is_none_or(Registrar::is_idle)
    }
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// The next state to be made durable; then there has to be a [`Message::Kept`].
    pub fn next_keep(&mut self) -> Option<Keep> {
        let to_keep = &mut self.reservations.to_keep;
        (!to_keep.is_empty()).then(|| to_keep.remove(0))
    }

    /// The host whose commands come on this queue pair, for whoever watches what they do.
    pub fn host_of(&self, qp: QpHandle) -> Option<HostId> {
        let connection = self.connections.get(usize::from(qp.0))?.as_ref()?;
        connection.membership.as_ref().map(|membership| membership.host.host_id)
    }

    /// Queues of a host at any controller.
    pub fn queues_of(&self, host: &HostId) -> usize {
        let memberships = self.connections.iter().flatten().filter_map(|one| one.membership.as_ref());
        memberships.filter(|membership| membership.host.host_id == *host).count()
    }

    /// A queue pair received a reservation command.
    pub(super) fn on_reservation(&mut self, now: Time, job: ReservationJob) {
        let ReservationJob { token, nsid, request, data } = job;
        match self.execute_reservation(token, nsid, request, data) {
            Ok(Some(length)) => {
                self.answer(now, token, AdminReply { status: Status::SUCCESS, result: 0, length });
            }
            Ok(None) => {}
            Err(status) => self.answer(now, token, AdminReply { status, result: 0, length: 0 }),
        }
    }

    /// How much of an answer there is at once, or nothing if it comes later.
    fn execute_reservation(
        &mut self,
        token: Token,
        nsid: u32,
        request: Request,
        data: Option<Sge>,
    ) -> Result<Option<u32>, Status> {
        let connection = self.connection(QpHandle(token.qpair)).ok_or(Status::INTERNAL)?;
        let subnqn = connection.subnqn.ok_or(Status::INTERNAL)?;
        let membership = connection.membership.as_ref().ok_or(Status::INTERNAL)?;
        let host = membership.host.host_id;
        let uuid = self.uuid_of(&subnqn, nsid).ok_or(Status::INVALID_NAMESPACE)?;
        let data = data.ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
        // A host that does not say who it is cannot be told from others.
        if host == [0; 16] {
            return Err(Status::HOST_ID_NOT_INITIALIZED);
        }
        if let Request::Report { length, extended } = request {
            return self.report(&subnqn, uuid, data.slice(0, length), extended).map(Some);
        }
        let mut bytes = [0; Keys::SIZE as usize];
        let length = request.transfer().length();
        self.memory.read(data.slice(0, length), &mut bytes[..length as usize]);
        let keys: Keys = zerocopy::transmute!(bytes);
        let asker = Asker { queue: self.queue_of(token).ok_or(Status::INTERNAL)?, token };
        self.ask(asker, uuid, host, with_keys(request, &keys));
        Ok(None)
    }

    pub(super) fn ask(&mut self, asker: Asker, uuid: Uuid, host: HostId, command: Command) {
        self.send(REGISTRAR, Message::Reserve(Box::new(Reserve { asker, uuid, host, command })));
    }

    /// A Set Features of Reservation Persistence.
    pub(super) fn set_persistence(&mut self, token: Token, subnqn: &Nqn, nsid: u32, persist: bool) -> bool {
        let Some(uuid) = self.uuid_of(&subnqn.to_field(), nsid) else { return false };
        let Some(queue) = self.queue_of(token) else { return false };
        self.ask(Asker { queue, token }, uuid, [0; 16], Command::SetPersistence(persist));
        true
    }

    /// Whether reservations of a namespace outlast a loss of power now.
    pub(super) fn persists(&self, subnqn: &Nqn, nsid: u32) -> Option<bool> {
        let uuid = self.uuid_of(&subnqn.to_field(), nsid)?;
        self.reservations.states.get(&uuid).map(|state| state.persist)
    }

    pub(super) fn uuid_of(&self, subnqn: &[u8; 256], nsid: u32) -> Option<Uuid> {
        let subsystem = self.catalog.subsystem(&Nqn::from_field(subnqn).ok()?)?;
        subsystem.namespace(nsid).map(|namespace| namespace.uuid)
    }

    /// Writes as much of the report as the host takes.
    fn report(&self, subnqn: &[u8; 256], uuid: Uuid, into: Sge, extended: bool) -> Result<u32, Status> {
        // Host identifiers have 16 bytes over fabrics, for which the other structure has no room.
        if !extended {
            return Err(Status::HOST_ID_INCONSISTENT);
        }
        let state = self.reservations.states.get(&uuid).ok_or(Status::INVALID_NAMESPACE)?;
        let entries = self.entries(subnqn, state);
        let header = ReportHeader {
            generation: state.generation.into(),
            kind: state.held.map_or(0, |held| held.kind.number()),
            registrants: u16::try_from(entries.len()).unwrap_or(u16::MAX).into(),
            persists: state.persist.into(),
            ..ReportHeader::new_zeroed()
        };
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            let room = into.length - at;
            let length = room.min(u32::try_from(bytes.len()).expect("64 bytes"));
            self.memory.write(into.slice(at, length), &bytes[..length as usize]);
            at += length;
        };
        put(header.as_bytes());
        entries.iter().for_each(|entry| put(entry.as_bytes()));
        while at < into.length {
            let length = (into.length - at).min(ReportEntry::SIZE);
            self.memory.write(into.slice(at, length), &[0; ReportEntry::SIZE as usize][..length as usize]);
            at += length;
        }
        Ok(into.length)
    }

    /// One for each registrant, with the first of its controllers.
    fn entries(&self, subnqn: &[u8; 256], state: &State) -> Vec<ReportEntry> {
        let subsystem = Nqn::from_field(subnqn).ok();
        let controller = |host: &HostId| {
            self.roster.controllers(subsystem.as_ref()?, |member| member.host_id == *host).next()
        };
        let entry = |registrant: &Registrant| ReportEntry {
            cntlid: controller(&registrant.host_id).unwrap_or(NO_CONTROLLER).into(),
            status: state.is_holder(&registrant.host_id).into(),
            key: registrant.key.into(),
            host_id: registrant.host_id,
            ..ReportEntry::new_zeroed()
        };
        state.registrants.iter().map(entry).collect()
    }

    /// The registrar is asked, here.
    pub(super) fn on_reserve(&mut self, reserve: Reserve) {
        let Reserve { asker, uuid, host, command } = reserve;
        match &mut self.reservations.registrar {
            Some(registrar) => registrar.ask(asker, uuid, host, command),
            None => self.send_reserved(asker, Status::INTERNAL),
        }
        self.run_registrar();
    }

    pub(super) fn on_kept(&mut self, uuid: Uuid, number: u64, kept: bool) {
        if let Some(registrar) = &mut self.reservations.registrar {
            registrar.on_kept(uuid, number, kept);
        }
        self.run_registrar();
    }

    pub(super) fn on_installed(&mut self, uuid: Uuid, number: u64) {
        if let Some(registrar) = &mut self.reservations.registrar {
            registrar.on_installed(uuid, number);
        }
        self.run_registrar();
    }

    fn run_registrar(&mut self) {
        while let Some(action) = self.reservations.registrar.as_mut().and_then(Registrar::poll) {
            match action {
                Action::Keep(keep) => self.reservations.to_keep.push(keep),
                Action::Install(install) => self.tell_all(&Message::Install(install)),
                Action::Answer(asker, status) => self.send_reserved(asker, status),
                Action::Notify { uuid, notices } => self.tell_all(&Message::Notify { uuid, notices }),
                Action::Show(uuid) => self.tell_all(&Message::Show { uuid }),
            }
        }
    }

    fn send_reserved(&mut self, asker: Asker, status: Status) {
        self.send(asker.queue.reactor, Message::Reserved { asker, status });
    }

    /// The answer to a command of a queue of ours. The queue pair is there: it waits for this.
    pub(super) fn on_reserved(&mut self, now: Time, asker: Asker, status: Status) {
        if !self.flush_protected(&asker, status) && self.named(asker.queue).is_some() {
            self.answer(now, asker.token, AdminReply { status, result: 0, length: 0 });
        }
    }

    /// A new state is in force from here on; it is in force wholly when what is awaited has ended.
    pub(super) fn on_install(&mut self, now: Time, install: Install) {
        let Install { uuid, number, state, aborted } = install;
        let mut awaited = Vec::new();
        for index in 0..self.connections.len() {
            let reactor = self.settings.reactor;
            let Some(connection) = &self.connections[index] else { continue };
            let (Some(membership), Some(subnqn)) = (&connection.membership, connection.subnqn) else {
                continue;
            };
            let (host, generation) = (membership.host.host_id, connection.generation);
            let nsid = self.nsid_of(&subnqn, uuid);
            let Some(connection) = &mut self.connections[index] else { continue };
            let qpair = &mut connection.qpair;
            let is_less = nsid.is_some_and(|nsid| qpair.restrict(nsid, state.rights(&host)));
            let is_aborted = aborted.contains(&host);
            if let Some(nsid) = nsid.filter(|_| is_aborted) {
                qpair.abort_all(nsid);
            }
            // The namespace may have gone from here, and a command of it still be at the medium.
            if is_less || is_aborted || nsid.is_none() {
                let qp = handle(index);
                awaited.push((QueueName { reactor, qp, generation }, nsid, qpair.received()));
                self.with_qpair(now, qp, |qpair, cx| qpair.end_barred(cx));
            }
        }
        self.set_protected(uuid, state.protected);
        self.reservations.states.insert(uuid, state);
        self.reservations.installing.push(Installing { uuid, number, awaited });
        self.check_installing();
    }

    fn nsid_of(&self, subnqn: &[u8; 256], uuid: Uuid) -> Option<u32> {
        let subsystem = self.catalog.subsystem(&Nqn::from_field(subnqn).ok()?)?;
        subsystem.namespaces().iter().find(|one| one.uuid == uuid).map(|one| one.nsid)
    }

    /// Tells the registrar of states which are now wholly in force; says whether there were any.
    pub(super) fn check_installing(&mut self) -> bool {
        if self.reservations.installing.is_empty() {
            return false;
        }
        let mut installing = std::mem::take(&mut self.reservations.installing);
        let before = installing.len();
        installing.retain_mut(|one| {
            one.awaited.retain(|&(queue, nsid, received)| {
                self.named(queue).is_some_and(|connection| connection.qpair.is_at_medium(nsid, received))
            });
            if one.awaited.is_empty() {
                self.send(REGISTRAR, Message::Installed { uuid: one.uuid, number: one.number });
            }
            !one.awaited.is_empty()
        });
        let any = installing.len() < before;
        self.reservations.installing = installing;
        any
    }

    /// Lets a new controller, or all once namespaces are new, show which of them are protected.
    pub(super) fn show_protections(&mut self) {
        let protected = self.reservations.states.iter().filter(|(_, state)| state.protected);
        let protected: Vec<Uuid> = protected.map(|(uuid, _)| *uuid).collect();
        for uuid in protected {
            self.set_protected(uuid, true);
        }
    }

    /// What reservations keep the host of this queue from, whenever it or the catalog is new.
    pub(super) fn restrict(&mut self, qp: QpHandle) {
        let Some(connection) = self.connection(qp) else { return };
        let (Some(membership), Some(subnqn)) = (&connection.membership, connection.subnqn) else { return };
        let host = membership.host.host_id;
        let catalog = Arc::clone(&self.catalog);
        let nqn = Nqn::from_field(&subnqn);
        let Some(subsystem) = nqn.ok().and_then(|nqn| catalog.subsystem(&nqn)) else { return };
        for namespace in subsystem.namespaces() {
            let Some(state) = self.reservations.states.get(&namespace.uuid).map(Arc::clone) else { continue };
            if let Some(connection) = self.connection(qp) {
                connection.qpair.restrict(namespace.nsid, state.rights(&host));
            }
        }
    }

    /// Hosts hear what happened to their rights, if they have a controller here.
    pub(super) fn on_notify(&mut self, now: Time, uuid: Uuid, notices: &[(HostId, Notification)]) {
        let mut last = None;
        while let Some(cntlid) = self.controllers.after(last) {
            last = Some(cntlid);
            if let Some(entry) = self.controllers.get(cntlid) {
                for (host, notification) in notices {
                    entry.machine.note_reservation(host, uuid, *notification);
                }
            }
            self.controller_events(now, cntlid);
        }
    }

    /// A message for a reactor which has ended. Whoever waits for an answer shall not wait for ever.
    pub fn on_undeliverable(&mut self, now: Time, message: Message) {
        match message {
            // Nobody is connected there, so nothing is at a medium.
            Message::Install(Install { uuid, number, .. }) => self.on_installed(uuid, number),
            Message::Reserve(reserve) => self.on_reserved(now, reserve.asker, Status::INTERNAL),
            Message::Abort { asker, .. } => self.on_aborted(now, asker, false),
            _ => {}
        }
    }
}

fn with_keys(request: Request, keys: &Keys) -> Command {
    let (key, other) = (keys.current.get(), keys.other.get());
    match request {
        Request::Register { action, ignore_key, persist } => {
            Command::Register { action, ignore_key, persist, key, new_key: other }
        }
        Request::Acquire { action, kind } => Command::Acquire { action, kind, key, preempted_key: other },
        Request::Release { kind } => Command::Release { kind, key },
        Request::Clear | Request::Report { .. } => Command::Clear { key },
    }
}
