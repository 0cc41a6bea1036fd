//! How the hosts of queues prove who they are before anything else of them is heard (DH-HMAC-CHAP). The messages go to
//! a machine of each queue; what it has to compute is handed out, since other connections must not wait for it.
use std::sync::Arc;
use std::time::Duration;

use ironside_common::auth::{
    Controller, Job, MESSAGE_MAX, Outcome, PROTOCOL_SPECIFIC, Policy, Progress, Received, SECURITY_PROTOCOL,
};
use ironside_common::nvme::fabrics::Authentication as Fields;
use ironside_common::nvme::{FabricsType, Nqn, Status};
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, QpHandle, TargetVerbs, Token};

use super::connect::refused;
use super::connection::Connection;
use super::{PollGroup, QueueName, Storage};
use crate::qpair::{AdminJob, AdminReply, Fault, Role};

/// How long a host may take to authenticate, computing included.
const AUTHENTICATION_DEADLINE: Duration = Duration::from_secs(60);
/// How long a host which could not has to hear why.
const FAREWELL: Duration = Duration::from_secs(1);

/// Who is to be on the other side of one queue, and how far that is proven.
#[derive(Debug)]
pub(super) struct Authentication {
    machine: Controller,
    host: Nqn,
    subsystem: Nqn,
    /// What the queue becomes once its host is known.
    admits: Option<Admits>,
    /// An authentication is under way, or owed.
    since: Option<Time>,
    /// The message which is answered once what it asked for is computed.
    computing: Option<Token>,
    failed: Option<Time>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Admits {
    Admin,
    Io,
}

impl Authentication {
    pub(super) fn new(now: Time, host: Nqn, subsystem: Nqn, policy: &Arc<Policy>, role: &Role) -> Self {
        Self {
            machine: Controller::new(host, subsystem, Arc::clone(policy)),
            host,
            subsystem,
            admits: Some(if matches!(role, Role::Admin) { Admits::Admin } else { Admits::Io }),
            since: Some(now),
            computing: None,
            failed: None,
        }
    }

    /// Whether its host has to do nothing else now.
    pub(super) const fn is_under_way(&self) -> bool {
        self.since.is_some()
    }

    /// Why the connection has to end by now.
    pub(super) fn overdue(&self, now: Time) -> Option<Fault> {
        let past = |since: Option<Time>, patience| since.is_some_and(|since| now.since(since) >= patience);
        if past(self.failed, FAREWELL) {
            return Some(Fault::Ended("its host could not authenticate"));
        }
        past(self.since, AUTHENTICATION_DEADLINE)
            .then_some(Fault::Ended("its host did not authenticate in time"))
    }
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// What a host must prove to use a subsystem, if anything.
    pub(super) fn policy(&self, host: &Nqn, subsystem: &Nqn) -> Option<&Arc<Policy>> {
        Some(&self.catalog.subsystem(subsystem)?.key(host)?.policy)
    }

    /// The next thing to be computed, for [`Self::on_computed`] of this poll group.
    pub fn next_job(&mut self) -> Option<(QueueName, Job)> {
        self.jobs.pop_front()
    }

    /// Authentication Send or Authentication Receive, on a queue whose Connect asked for it.
    pub(super) fn on_authentication(&mut self, now: Time, job: &AdminJob) {
        let fields = Fields::parse(&job.command);
        let proper = fields.security_protocol == SECURITY_PROTOCOL && fields.specific == PROTOCOL_SPECIFIC;
        let Some(sge) = job.data.filter(|_| proper) else {
            return self.answer(now, job.token, refused(Status::INVALID_FIELD));
        };
        let Some(authentication) = self.authentication(job.token) else { return };
        if authentication.computing.is_some() {
            return self.answer(now, job.token, refused(Status::COMMAND_SEQUENCE));
        }
        if job.command.fabrics_type() == Some(FabricsType::AUTHENTICATION_RECEIVE) {
            let Ok((bytes, progress)) = authentication.machine.on_receive(sge.length as usize) else {
                return self.answer(now, job.token, refused(Status::INVALID_FIELD));
            };
            let length = u32::try_from(bytes.len()).expect("no longer than its room");
            self.memory.write(sge.slice(0, length), &bytes);
            // Before its answer, after which the host may send whatever it likes.
            self.authenticated(now, job.token, progress);
            return self.answer(now, job.token, AdminReply { status: Status::SUCCESS, result: 0, length });
        }
        if sge.length as usize > MESSAGE_MAX {
            return self.answer(now, job.token, refused(Status::INVALID_FIELD));
        }
        let mut bytes = vec![0; sge.length as usize];
        self.memory.read(sge, &mut bytes);
        self.on_message_of_host(now, job.token, &bytes);
    }

    fn on_message_of_host(&mut self, now: Time, token: Token, bytes: &[u8]) {
        let Some(authentication) = self.authentication(token) else { return };
        let names = (authentication.host, authentication.subsystem);
        // One that begins goes by what holds now: another key, if there is one.
        let policy = self.policy(&names.0, &names.1).cloned();
        let Some(authentication) = self.authentication(token) else { return };
        if let Some(policy) = policy {
            authentication.machine.set_policy(policy);
        }
        authentication.since.get_or_insert(now);
        match authentication.machine.on_send(bytes) {
            Received::Answer(progress) => {
                self.authenticated(now, token, progress);
                self.answer(now, token, refused(Status::SUCCESS));
            }
            Received::Compute(job) => {
                authentication.computing = Some(token);
                let Some(queue) = self.queue_of(token) else { return };
                self.jobs.push_back((queue, job));
            }
        }
    }

    /// What a job of [`Self::next_job`] came to.
    pub fn on_computed(&mut self, now: Time, queue: QueueName, outcome: Outcome) {
        let Some(authentication) =
            self.named(queue).and_then(|connection| connection.authentication.as_mut())
        else {
            return;
        };
        // Nobody waits for it if the connection has ended meanwhile.
        let Some(token) = authentication.computing.take() else { return };
        let progress = authentication.machine.computed(outcome);
        self.authenticated(now, token, progress);
        self.answer(now, token, refused(Status::SUCCESS));
    }

    /// A connection ends: what it asked to be computed is answered now, since nothing else would free it.
    pub(super) fn give_up_authentication(&mut self, now: Time, qp: QpHandle) {
        let authentication = self.connection(qp).and_then(|connection| connection.authentication.as_mut());
        if let Some(token) = authentication.and_then(|authentication| authentication.computing.take()) {
            self.answer(now, token, refused(Status::INTERNAL));
        }
    }

    fn authenticated(&mut self, now: Time, token: Token, progress: Progress) {
        let qp = QpHandle(token.qpair);
        let Some(Connection { peer, authentication: Some(authentication), .. }) = self.connection(qp) else {
            return;
        };
        let (host, subsystem) = (authentication.host, authentication.subsystem);
        match progress {
            Progress::Continues => {}
            Progress::Failed(failure) => {
                tracing::warn!(%peer, %host, %subsystem, %failure, "authentication failed");
                authentication.failed.get_or_insert(now);
            }
            Progress::Authenticated(hash, group) => {
                authentication.since = None;
                let admits = authentication.admits.take();
                tracing::info!(%peer, %host, %subsystem, %hash, %group, again = admits.is_none(), "host authenticated");
                let connection = self.connections[usize::from(qp.0)].as_ref();
                let role = match admits {
                    None => return,
                    Some(Admits::Admin) => Role::Admin,
                    Some(Admits::Io) => {
                        Role::Io(connection.and_then(|one| self.view_of(one)).unwrap_or_default())
                    }
                };
                if let Some(connection) = self.connection(qp) {
                    connection.qpair.authenticated(role);
                }
                self.restrict(qp);
            }
        }
    }

    fn authentication(&mut self, token: Token) -> Option<&mut Authentication> {
        self.connection(QpHandle(token.qpair))?.authentication.as_deref_mut()
    }
}
