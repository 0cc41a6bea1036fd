//! From a connection to a queue of a controller: private data, Connect, and the admin commands after it.
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::nvme::fabrics::{Connect, ConnectData, ConnectResponse};
use ironside_common::nvme::identify;
use ironside_common::nvme::private_data::{Reject, RejectStatus, Reply, Request};
use ironside_common::nvme::{AdminOpcode, Command, FabricsType, Nqn, Status};
use ironside_common::time::Time;
use ironside_common::verbs::{CmRequest, ConnectParameters, Connections, QpHandle, TargetVerbs, Token};
use zerocopy::{FromBytes, IntoBytes};

use super::authenticate::Authentication;
use super::connection::{Connection, Joining, Membership};
use super::{HostName, Join, Message, PollGroup, QueueName, Storage};
use crate::catalog::{CNTLIDS, Subsystem};
use crate::controller::{Admission, Controller, Outcome, Refusal};
use crate::qpair::{AdminJob, AdminReply, Qpair, Role};
use crate::reservation::HostId;

/// Entries of an admin queue: what hosts ask for, and what the discovery log offers.
const ADMIN_DEPTH: u16 = 32;

/// An admin queue's Connect whose host may have writes under way on other connections.
#[derive(Debug)]
pub(super) struct HeldConnect {
    pub(super) queue: QueueName,
    token: Token,
    connect: Connect,
    data: Box<ConnectData>,
    /// Reactors which have not answered yet.
    pub(super) waiting: usize,
    since: Time,
}

/// How long such a Connect is held. An RDMA Read which a vanished host leaves unanswered is given up before.
const HELD_DEADLINE: Duration = Duration::from_secs(20);

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// A host asks for a connection: its private data says which queue it is to be.
    pub(super) fn on_request(&mut self, now: Time, request: CmRequest) {
        let asked = self.check_request(&request);
        let asked = asked.and_then(|asked| Ok((asked, self.admit_connection(request.peer)?)));
        let (asked, place) = match asked {
            Ok(admitted) => admitted,
            Err(status) => {
                tracing::info!(peer = %request.peer, %status, "connection rejected");
                return self.verbs.reject(request, Reject::new(status).as_bytes());
            }
        };
        let entries = u16::try_from(asked.commands()).expect("checked against a u16");
        let reads = request.reads.min(self.settings.reads);
        let parameters = ConnectParameters {
            receives: entries,
            receive_size: Command::SIZE as u32 + self.settings.in_capsule,
            // A fetch, then data and response, for every command at once.
            send_queue: 2 * u32::from(entries) + reads,
            reads,
        };
        let (qp, peer, local) = (request.qp, request.peer, request.local);
        // So that to wait allocates nothing.
        self.waiting.reserve(self.connections.len() + 1);
        self.desk.turns.reserve(2 * usize::from(entries));
        self.outbox.reserve(2 * usize::from(entries));
        self.verbs.accept(request, parameters, Reply::new(entries).as_bytes());
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let account = self.peer_account(peer.ip());
        let account = self.pool.account(Some(&account));
        let connection = Connection {
            qpair: Qpair::new(&self.verbs, qp, entries, account),
            generation,
            peer,
            local,
            entries,
            accepted: now,
            membership: None,
            connecting: false,
            held: false,
            subnqn: None,
            joining: None,
            authentication: None,
            disconnecting: false,
            disconnected: false,
            waiting: false,
            asks: None,
            tally: None,
            counts: Arc::default(),
            _place: place,
        };
        let index = usize::from(qp.0);
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        assert!(self.connections[index].is_none(), "a handle was reused before it was free");
        self.connections[index] = Some(connection);
        self.next_check = self.next_check.min(now + super::CONNECT_DEADLINE);
    }

    fn check_request(&self, request: &CmRequest) -> Result<Request, RejectStatus> {
        let asked = Request::parse(&request.private_data)?;
        let most = if asked.qid.get() == 0 {
            self.settings.queue_depth.max(ADMIN_DEPTH)
        } else {
            self.settings.queue_depth
        };
        if asked.commands() > most.into() {
            return Err(RejectStatus::INVALID_HSQSIZE);
        }
        if asked.hrqsize.get() == 0 {
            return Err(RejectStatus::INVALID_HRQSIZE);
        }
        if request.reads == 0 {
            return Err(RejectStatus::INVALID_IRD);
        }
        if self.draining.is_some() {
            return Err(RejectStatus::NO_RESOURCES);
        }
        Ok(asked)
    }

    /// A queue pair received an admin or Fabrics command.
    pub(super) fn on_admin(&mut self, now: Time, job: AdminJob) {
        let qp = QpHandle(job.token.qpair);
        let Some(connection) = self.connection(qp) else { return };
        let connect = job.command.fabrics_type() == Some(FabricsType::CONNECT);
        let authenticates = matches!(
            job.command.fabrics_type(),
            Some(FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE)
        );
        if authenticates && connection.authentication.is_some() {
            return self.on_authentication(now, &job);
        }
        match (&connection.membership, connect) {
            (None, true) if !connection.connecting => self.on_connect(now, qp, &job),
            (Some(membership), false) if membership.qid == 0 => {
                let cntlid = membership.cntlid;
                self.on_controller_command(now, cntlid, &job);
            }
            (Some(_), false) => self.answer(now, job.token, refused(not_of_an_io_queue(&job.command))),
            _ => self.answer(now, job.token, refused(Status::COMMAND_SEQUENCE)),
        }
    }

    fn on_connect(&mut self, now: Time, qp: QpHandle, job: &AdminJob) {
        let connect = Connect::parse(&job.command);
        let mut bytes = [0; ConnectData::SIZE as usize];
        let Some(sge) = job.data.filter(|sge| sge.length == ConnectData::SIZE) else {
            return self.answer(now, job.token, refused(Status::DATA_SGL_LENGTH_INVALID));
        };
        self.memory.read(sge, &mut bytes);
        let data = ConnectData::read_from_bytes(&bytes).expect("as many bytes as it has");
        let Some(connection) = self.connection(qp) else { return };
        let entries = connection.entries;
        if connect.sqsize >= entries {
            return self.answer(now, job.token, Refusal::parameter_in_command(44).into());
        }
        connection.connecting = true;
        if connect.qid == 0 {
            self.hold_connect(now, qp, job.token, connect, data);
        } else {
            self.ask_to_join(now, qp, job.token, connect, data);
        }
    }

    /// A host's new Connect is held until the writes which have come from it have ended, on every reactor.
    fn hold_connect(&mut self, now: Time, qp: QpHandle, token: Token, connect: Connect, data: ConnectData) {
        let Some(connection) = self.connection(qp) else { return };
        connection.held = true;
        let generation = connection.generation;
        let asking = self.name(qp, generation);
        self.tell_all(&Message::Quiesce { host: Box::new(HostName::of(&data)), asking });
        let waiting = self.settings.reactors;
        let data = Box::new(data);
        self.held.push(HeldConnect { queue: asking, token, connect, data, waiting, since: now });
    }

    /// A Connect which was held for too long is answered: its host may try again.
    pub(super) fn check_held(&mut self, now: Time) -> bool {
        let overdue = |held: &HeldConnect| now.since(held.since) >= HELD_DEADLINE;
        let mut any = false;
        while let Some(index) = self.held.iter().position(overdue) {
            any = true;
            let HeldConnect { queue, token, data, .. } = self.held.swap_remove(index);
            self.release_quiesce(queue);
            if let Some(connection) = self.named(queue) {
                connection.held = false;
                // Its time for another Connect begins now, or the answer would not leave.
                connection.accepted = now;
                let busy = Refusal::from(Status::CONNECT_CONTROLLER_BUSY.with_dnr(false));
                self.refuse(now, queue.qp, token, busy, &HostName::of(&data));
            }
        }
        any
    }

    /// The connection of a held Connect has ended: nobody waits for an answer.
    pub(super) fn give_up_connect(&mut self, now: Time, qp: QpHandle) {
        let Some(connection) = self.connection(qp).filter(|connection| connection.held) else { return };
        connection.held = false;
        let generation = connection.generation;
        let queue = self.name(qp, generation);
        if let Some(index) = self.held.iter().position(|held| held.queue == queue) {
            let held = self.held.swap_remove(index);
            self.release_quiesce(queue);
            self.answer(now, held.token, refused(Status::INTERNAL));
        }
    }

    fn release_quiesce(&mut self, asking: QueueName) {
        self.tell_all(&Message::GaveUp { asking });
    }

    pub(super) fn on_quiesced(&mut self, now: Time, asking: QueueName) {
        let Some(index) = self.held.iter().position(|held| held.queue == asking) else { return };
        self.held[index].waiting -= 1;
        if self.held[index].waiting == 0 {
            let held = self.held.swap_remove(index);
            if let Some(connection) = self.named(held.queue) {
                connection.held = false;
                self.connect_admin(now, held);
            }
        }
    }

    fn connect_admin(&mut self, now: Time, held: HeldConnect) {
        let HeldConnect { queue, token, connect, data, .. } = held;
        let Some(connection) = self.connection(queue.qp) else { return };
        if connection.qpair.fault().is_some() {
            return self.answer(now, token, refused(Status::INTERNAL));
        }
        let local = connection.local;
        let Some(cntlid) = self.controllers.vacant(self.cntlids_for(&data)) else {
            let busy = Refusal::from(Status::CONNECT_CONTROLLER_BUSY);
            return self.refuse(now, queue.qp, token, busy, &HostName::of(&data));
        };
        let admission = Admission {
            cntlid,
            local,
            queue_depth: self.settings.queue_depth,
            in_capsule: self.settings.in_capsule,
            transfer_max: self.settings.transfer_max,
            io_queues_max: self.catalog.limits().io_queues(),
        };
        let connected = Controller::connect(now, &self.catalog, &admission, &connect, &data);
        match connected.and_then(|machine| Ok((machine, self.admit_controller(&data)?))) {
            Ok((machine, place)) => {
                let peer = self.connection(queue.qp).map(|connection| connection.peer);
                tracing::info!(peer = peer.map(tracing::field::display), cntlid, host = %machine.host_nqn(), "controller connected");
                self.controllers.insert(cntlid, machine, queue, place);
                self.show_protections();
                self.appear(cntlid);
                self.next_check = now;
                let membership = Membership { cntlid, qid: 0, host: HostName::of(&data) };
                self.become_member(now, queue.qp, token, membership, Role::Admin, &connect, &data.subnqn);
            }
            Err(refusal) => self.refuse(now, queue.qp, token, refusal, &HostName::of(&data)),
        }
    }

    /// Identifiers which a controller of the subsystem named may have: another target may have given out the rest.
    fn cntlids_for(&self, data: &ConnectData) -> RangeInclusive<u16> {
        let subsystem = Nqn::from_field(&data.subnqn).ok().and_then(|nqn| self.catalog.subsystem(&nqn));
        subsystem.map_or(CNTLIDS, Subsystem::cntlids)
    }

    #[expect(clippy::too_many_arguments, reason = "all of one Connect")]
    fn become_member(
        &mut self,
        now: Time,
        qp: QpHandle,
        token: Token,
        membership: Membership,
        role: Role,
        connect: &Connect,
        subnqn: &[u8; 256],
    ) {
        let (cntlid, qid) = (membership.cntlid, membership.qid);
        let authentication = self.owed_authentication(now, &membership, &role, subnqn);
        let authentication_required = authentication.is_some();
        let role = if authentication_required { Role::Unauthenticated } else { role };
        let Some(connection) = self.connection(qp) else { return };
        assert!(connection.membership.is_none(), "a queue belongs to one controller");
        connection.membership = Some(membership);
        self.total.joined(qid);
        self.tally_queue(qp, subnqn);
        let Some(connection) = self.connection(qp) else { return };
        connection.authentication = authentication;
        let flow_control = (!connect.disable_sq_flow_control).then_some(connect.sqsize.saturating_add(1));
        connection.qpair.connected(role, qid, flow_control);
        self.restrict(qp);
        self.set_limited(qp);
        self.set_access(now, qp);
        let result = ConnectResponse { cntlid, authentication_required }.to_result();
        let reply = AdminReply { status: Status::SUCCESS, result, length: 0 };
        self.answer(now, token, reply);
    }

    /// The authentication which the host of a new queue owes, if there is a key for it.
    fn owed_authentication(
        &self,
        now: Time,
        membership: &Membership,
        role: &Role,
        subnqn: &[u8; 256],
    ) -> Option<Box<Authentication>> {
        // Both were found valid by whoever let the queue in.
        let (host, subsystem) = (Nqn::from_field(&membership.host.nqn).ok()?, Nqn::from_field(subnqn).ok()?);
        let policy = self.policy(&host, &subsystem)?;
        Some(Box::new(Authentication::new(now, host, subsystem, policy, role)))
    }

    fn refuse(&mut self, now: Time, qp: QpHandle, token: Token, refusal: Refusal, host: &HostName) {
        let peer = self.connection(qp).map(|connection| connection.peer);
        tracing::info!(peer = peer.map(tracing::field::display), %host, %refusal, "connect refused");
        if let Some(connection) = self.connection(qp) {
            connection.connecting = false;
        }
        self.answer(now, token, refusal.into());
    }

    fn ask_to_join(&mut self, now: Time, qp: QpHandle, token: Token, connect: Connect, data: ConnectData) {
        let cntlid = data.cntlid.get();
        let Some(home) = self.controllers.home(cntlid) else {
            return self.refuse(now, qp, token, Refusal::parameter_in_data(16), &HostName::of(&data));
        };
        let reactor = self.settings.reactor;
        let Some(connection) = self.connection(qp) else { return };
        let queue = QueueName { reactor, qp, generation: connection.generation };
        let counts = Arc::clone(&connection.counts);
        let membership = Membership { cntlid, qid: connect.qid, host: HostName::of(&data) };
        connection.joining = Some(Joining { token, membership, connect, subnqn: data.subnqn });
        self.send(home, Message::Join(Box::new(Join { queue, connect, data, counts })));
    }

    /// A queue of whichever reactor wants to join a controller of ours.
    pub(super) fn on_join(&mut self, now: Time, join: Join) {
        let Join { queue, connect, data, counts } = join;
        let cntlid = data.cntlid.get();
        let result = match self.controllers.get(cntlid) {
            Some(entry) => {
                let host = *entry.machine.host_id();
                entry.machine.join_queue(now, &connect, &data).map(|()| host)
            }
            None => Err(Refusal::parameter_in_data(16)),
        };
        if result.is_ok() {
            self.controllers.joined(cntlid, connect.qid, queue, counts);
        }
        self.send(queue.reactor, Message::Joined { queue, result });
    }

    /// The controller's reactor has decided about a queue of ours.
    pub(super) fn on_joined(&mut self, now: Time, queue: QueueName, result: Result<HostId, Refusal>) {
        let Some(connection) = self.named(queue) else { return };
        let Some(subnqn) = connection.joining.as_ref().map(|joining| joining.subnqn) else { return };
        connection.subnqn = Some(subnqn);
        let view = self.connections[usize::from(queue.qp.0)].as_ref().and_then(|one| self.view_of(one));
        let Some(mut joining) = self.connection(queue.qp).and_then(|one| one.joining.take()) else { return };
        let host = joining.membership.host.clone();
        match result {
            Ok(host_id) => match view {
                Some(view) => {
                    let role = Role::Io(view);
                    // A queue may leave it out of its Connect: its controller knows.
                    joining.membership.host.host_id = host_id;
                    self.become_member(
                        now,
                        queue.qp,
                        joining.token,
                        joining.membership,
                        role,
                        &joining.connect,
                        &joining.subnqn,
                    );
                }
                None => self.refuse(now, queue.qp, joining.token, Refusal::parameter_in_data(256), &host),
            },
            Err(refusal) => self.refuse(now, queue.qp, joining.token, refusal, &host),
        }
    }

    fn on_controller_command(&mut self, now: Time, cntlid: u16, job: &AdminJob) {
        let AdminJob { token, command, data } = job;
        let from_host = command.is_from_host();
        let length = data.map_or(0, |sge| sge.length as usize);
        self.scratch.clear();
        self.scratch.resize(length, 0);
        if let Some(sge) = data.filter(|_| from_host) {
            self.memory.read(sge, &mut self.scratch);
        }
        let of_admin = self.connection(QpHandle(token.qpair)).map(|connection| *connection.qpair.counts());
        let Some(entry) = self.controllers.get(cntlid) else {
            return self.answer(now, *token, refused(Status::INTERNAL));
        };
        if command.opcode == AdminOpcode::GET_LOG_PAGE.0 {
            entry.note_counts(of_admin.unwrap_or_default());
        }
        let (input, output): (&[u8], &mut [u8]) =
            if from_host { (&self.scratch, &mut []) } else { (&[], &mut self.scratch) };
        let subnqn = *entry.machine.subnqn();
        let outcome = entry.machine.handle_command(now, command, input, output);
        self.on_outcome(now, (cntlid, &subnqn), job, outcome);
        self.controller_events(now, cntlid);
    }

    /// What a controller makes of a command: what there is for its host is in the scratch memory.
    fn on_outcome(
        &mut self,
        now: Time,
        (cntlid, subnqn): (u16, &Nqn),
        AdminJob { token, command, data }: &AdminJob,
        outcome: Outcome,
    ) {
        let is_there = match outcome {
            Outcome::Complete { status, result, length } => {
                if let Some(sge) = data.filter(|_| !command.is_from_host() && length > 0) {
                    self.memory.write(sge, &self.scratch[..length as usize]);
                }
                return self.answer(now, *token, AdminReply { status, result, length });
            }
            Outcome::Hold => {
                if let Some(entry) = self.controllers.get(cntlid) {
                    entry.events.push_back(*token);
                }
                if let Some(connection) = self.connection(QpHandle(token.qpair)) {
                    connection.qpair.hold(*token);
                }
                true
            }
            Outcome::SetPersistence { nsid, persist } => self.set_persistence(*token, subnqn, nsid, persist),
            Outcome::GetPersistence { nsid } => {
                let persists = self.persists(subnqn, nsid);
                if let Some(persists) = persists {
                    let reply = AdminReply { result: persists.into(), ..refused(Status::SUCCESS) };
                    self.answer(now, *token, reply);
                }
                persists.is_some()
            }
            Outcome::Protect { nsid, protect } => self.protect(*token, subnqn, nsid, protect),
            Outcome::ListControllers { nsid, first } => {
                let listed = self.list_controllers(subnqn, nsid, first);
                identify::write_controllers(&mut self.scratch, &listed);
                if let Some(sge) = data {
                    self.memory.write(*sge, &self.scratch);
                }
                let reply = AdminReply { length: identify::SIZE, ..refused(Status::SUCCESS) };
                return self.answer(now, *token, reply);
            }
            Outcome::Abort { sqid, cid } => return self.abort(now, cntlid, *token, (sqid, cid)),
        };
        if !is_there {
            self.answer(now, *token, refused(Status::INVALID_NAMESPACE));
        }
    }

    pub(super) fn answer(&mut self, now: Time, token: Token, reply: AdminReply) {
        self.with_qpair(now, QpHandle(token.qpair), |qpair, cx| qpair.on_admin_done(cx, token, reply));
    }
}

pub(super) fn refused(status: Status) -> AdminReply {
    AdminReply { status, result: 0, length: 0 }
}

/// Of the Fabrics commands an I/O queue has Connect and those which authenticate. The ones which only an admin queue has
/// are told apart from such as there are not (NVM Express base specification 2.2, figure 541).
fn not_of_an_io_queue(command: &Command) -> Status {
    match command.fabrics_type() {
        Some(FabricsType::PROPERTY_GET | FabricsType::PROPERTY_SET) => Status::INVALID_FIELD,
        _ => Status::INVALID_OPCODE,
    }
}

impl From<Refusal> for AdminReply {
    fn from(refusal: Refusal) -> Self {
        Self { status: refusal.status, result: refusal.result, length: 0 }
    }
}
