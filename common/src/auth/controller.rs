//! The controller's side: a machine for one queue, which asks the host to prove that it knows its secret, and proves
//! itself if asked. A message which is wrong, early, late or repeated ends it for good.
use std::fmt;
use std::sync::Arc;

use super::hash::Hidden;
use super::job::{Fresh, Names, Result as JobResult, Verification, Work};
use super::message::{Challenge, ControllerMessage, Explanation, HostMessage, Negotiate, Reply};
use super::{Group, Hash, Job, Outcome, Secret};
use crate::nvme::Nqn;

/// What a subsystem asks of one host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Policy {
    pub host: Secret,
    /// By which the subsystem proves itself to a host that asks for it.
    pub controller: Option<Secret>,
    /// The first which the host knows too is taken.
    pub hashes: Vec<Hash>,
    pub groups: Vec<Group>,
}

/// Where an authentication is after a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Progress {
    Continues,
    /// The host is who it says, and content with us.
    Authenticated(Hash, Group),
    /// The connection has to end, once what was said about it has left.
    Failed(Failure),
}

/// Why it failed, for people on this side.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Refused(Explanation),
    #[error("the host wants this subsystem to authenticate too, and there is no controller key for it")]
    NoControllerKey,
    #[error("the host gave up: {0}")]
    ByHost(Explanation),
}

/// What a message of the host asks for before it is answered.
#[derive(Debug)]
pub enum Received {
    Answer(Progress),
    /// To be run, and its outcome to be handed to [`Controller::computed`]; then the message is answered.
    Compute(Job),
}

/// See the module's description.
pub struct Controller {
    names: Names,
    policy: Arc<Policy>,
    agreed: (Hash, Group),
    t_id: u16,
    state: State,
}

enum State {
    Idle,
    Preparing,
    Challenge(Fresh),
    AwaitReply(Fresh),
    Verifying,
    Verdict(Option<Hidden>),
    AwaitSuccess2,
    Failing(Failure),
    Over,
}

/// What a host asked for does not fit into the room it gave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoRoom;

impl Controller {
    #[must_use]
    pub fn new(host: Nqn, subsystem: Nqn, policy: Arc<Policy>) -> Self {
        let agreed = (Hash::Sha256, Group::Null);
        Self { names: Names { host, subsystem }, policy, agreed, t_id: 0, state: State::Idle }
    }

    /// The policy for an authentication which has not begun.
    pub fn set_policy(&mut self, policy: Arc<Policy>) {
        if matches!(self.state, State::Idle) {
            self.policy = policy;
        }
    }

    /// A message came by Authentication Send.
    pub fn on_send(&mut self, bytes: &[u8]) -> Received {
        let message = HostMessage::parse(bytes);
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::Over, _) => Received::Answer(Progress::Failed(incorrect())),
            (_, Err(explanation)) => self.refuse(Failure::Refused(explanation)),
            (_, Ok(HostMessage::Failure2 { explanation, .. })) => {
                Received::Answer(Progress::Failed(Failure::ByHost(explanation)))
            }
            (State::Idle, Ok(HostMessage::Negotiate(negotiate))) => self.negotiate(&negotiate),
            (State::AwaitReply(fresh), Ok(HostMessage::Reply(reply))) => self.verify(fresh, reply),
            (State::AwaitSuccess2, Ok(HostMessage::Success2 { t_id })) if t_id == self.t_id => {
                self.state = State::Idle;
                Received::Answer(self.authenticated())
            }
            _ => self.refuse(incorrect()),
        }
    }

    /// What the job came to which [`Self::on_send`] gave.
    pub fn computed(&mut self, outcome: Outcome) -> Progress {
        self.state = match (std::mem::replace(&mut self.state, State::Over), outcome.0) {
            (State::Preparing, JobResult::Challenge(fresh)) => State::Challenge(fresh),
            (State::Verifying, JobResult::Verdict(Ok(response))) => State::Verdict(response),
            (State::Verifying, JobResult::Verdict(Err(explanation))) => {
                State::Failing(Failure::Refused(explanation))
            }
            // The host did not wait for the answer, which ended it.
            _ => State::Over,
        };
        Progress::Continues
    }

    /// The next message for the host, which asks for it by Authentication Receive and has so much room.
    ///
    /// # Errors
    /// If that is not enough. It may ask again.
    pub fn on_receive(&mut self, room: usize) -> Result<(Vec<u8>, Progress), NoRoom> {
        let failure = match &self.state {
            State::Challenge(fresh) => return self.give_challenge(fresh_message(self, fresh), room),
            State::Verdict(response) => {
                let response = response.as_deref().cloned();
                let waits = response.is_some();
                let message = ControllerMessage::Success1 { t_id: self.t_id, response };
                let bytes = self.fitting(&message, room)?;
                self.state = if waits { State::AwaitSuccess2 } else { State::Idle };
                return Ok((bytes, if waits { Progress::Continues } else { self.authenticated() }));
            }
            State::Failing(failure) => *failure,
            _ => incorrect(),
        };
        let explanation = match failure {
            Failure::Refused(explanation) => explanation,
            Failure::NoControllerKey | Failure::ByHost(_) => Explanation::FAILED,
        };
        let message = ControllerMessage::Failure1 { t_id: self.t_id, explanation };
        let bytes = self.fitting(&message, room)?;
        self.state = State::Over;
        Ok((bytes, Progress::Failed(failure)))
    }

    fn give_challenge(
        &mut self,
        message: ControllerMessage,
        room: usize,
    ) -> Result<(Vec<u8>, Progress), NoRoom> {
        let bytes = self.fitting(&message, room)?;
        if let State::Challenge(fresh) = std::mem::replace(&mut self.state, State::Over) {
            self.state = State::AwaitReply(fresh);
        }
        Ok((bytes, Progress::Continues))
    }

    fn fitting(&self, message: &ControllerMessage, room: usize) -> Result<Vec<u8>, NoRoom> {
        Some(message.to_bytes(self.agreed.0.length())).filter(|bytes| bytes.len() <= room).ok_or(NoRoom)
    }

    fn negotiate(&mut self, negotiate: &Negotiate) -> Received {
        self.t_id = negotiate.t_id;
        let hash = self.policy.hashes.iter().find(|hash| negotiate.hashes.contains(hash));
        let group = self.policy.groups.iter().find(|group| negotiate.groups.contains(group));
        let (hash, group) = match (hash, group) {
            _ if negotiate.secure_channel != 0 => return self.explain(Explanation::CONCATENATION_MISMATCH),
            _ if !negotiate.offers_protocol => return self.explain(Explanation::PROTOCOL_UNUSABLE),
            (None, _) => return self.explain(Explanation::HASH_UNUSABLE),
            (_, None) => return self.explain(Explanation::GROUP_UNUSABLE),
            (Some(&hash), Some(&group)) => (hash, group),
        };
        self.agreed = (hash, group);
        self.state = State::Preparing;
        Received::Compute(Job(Work::Challenge { hash, group }))
    }

    fn verify(&mut self, fresh: Fresh, reply: Reply) -> Received {
        let (hash, group) = self.agreed;
        if reply.t_id != self.t_id
            || reply.response.len() != hash.length()
            || reply.public.len() != group.length()
        {
            return self.explain(Explanation::INCORRECT_PAYLOAD);
        }
        // Our own challenge sent back would have us answer what the host was asked.
        if reply.challenge.as_ref() == Some(&fresh.challenge) {
            return self.explain(Explanation::FAILED);
        }
        // Without a sequence number the challenge is for keys of a secure channel, which there is none of.
        let counter = reply.challenge.map(|challenge| (challenge, reply.sequence));
        let counter = counter.filter(|(_, sequence)| *sequence != 0);
        if counter.is_some() && self.policy.controller.is_none() {
            return self.refuse(Failure::NoControllerKey);
        }
        self.state = State::Verifying;
        Received::Compute(Job(Work::Verify(Box::new(Verification {
            policy: Arc::clone(&self.policy),
            names: self.names,
            t_id: self.t_id,
            hash,
            fresh,
            response: reply.response,
            public: reply.public,
            counter,
        }))))
    }

    const fn authenticated(&self) -> Progress {
        let (hash, group) = self.agreed;
        Progress::Authenticated(hash, group)
    }

    fn explain(&mut self, explanation: Explanation) -> Received {
        self.refuse(Failure::Refused(explanation))
    }

    /// The host hears of it when it asks for the next message.
    fn refuse(&mut self, failure: Failure) -> Received {
        self.state = State::Failing(failure);
        Received::Answer(Progress::Continues)
    }
}

fn fresh_message(controller: &Controller, fresh: &Fresh) -> ControllerMessage {
    let (hash, group) = controller.agreed;
    ControllerMessage::Challenge(Challenge {
        t_id: controller.t_id,
        hash: hash.id(),
        group: group.id(),
        sequence: fresh.sequence,
        challenge: fresh.challenge.clone(),
        public: fresh.pair.as_ref().map(|pair| pair.public.clone()).unwrap_or_default(),
    })
}

const fn incorrect() -> Failure {
    Failure::Refused(Explanation::INCORRECT_MESSAGE)
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("agreed", &self.agreed)
            .field("t_id", &self.t_id)
            .finish_non_exhaustive()
    }
}
