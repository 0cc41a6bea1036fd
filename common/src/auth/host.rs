//! The host's side: a machine for one authentication of one queue. It proves that it knows its secret, and asks the
//! controller for as much if there is a secret for that. Ask it for what is [`Next`], and tell it how that went.
use std::fmt;
use std::sync::Arc;

use super::hash::Hidden;
use super::job::{Answer, Names, Response, Result as JobResult, Work};
use super::message::{Challenge, ControllerMessage, Explanation, HostMessage, MESSAGE_MAX, Negotiate, Reply};
use super::{Group, Hash, Job, Outcome, Secret};
use crate::nvme::Nqn;

/// What a host knows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Keys {
    pub host: Secret,
    /// By which the controller has to prove itself.
    pub controller: Option<Secret>,
}

/// What is to be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Next {
    /// A message, by Authentication Send.
    Send(Vec<u8>),
    /// A message of up to so many bytes, by Authentication Receive.
    Receive(u32),
    /// The job that [`Host::take_job`] gives.
    Compute,
    Authenticated,
    Failed(HostError),
}

/// Why the authentication failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HostError {
    #[error("the controller refused: {0}")]
    Refused(Explanation),
    #[error(
        "the controller does not know the controller secret: it is another one than we were told, or has none"
    )]
    WrongController,
    #[error("the controller asks for a hash function there is not")]
    Hash,
    #[error("the controller asks for a Diffie-Hellman group there is not")]
    Group,
    #[error("a message of the controller is malformed")]
    Malformed,
    #[error("the controller sent a message that was not due")]
    Message,
}

/// See the module's description.
pub struct Host {
    names: Names,
    keys: Arc<Keys>,
    t_id: u16,
    hash: Hash,
    state: State,
}

enum State {
    Negotiate,
    AwaitChallenge,
    Computing(Option<Job>),
    Reply(Box<Response>),
    AwaitSuccess1(Option<Hidden>),
    Success2,
    Failing(HostError),
    Authenticated,
    Failed(HostError),
}

impl Host {
    /// An authentication to be told from others of the same association by `t_id`.
    #[must_use]
    pub fn new(host: Nqn, subsystem: Nqn, keys: Arc<Keys>, t_id: u16) -> Self {
        let (names, hash) = (Names { host, subsystem }, Hash::Sha256);
        Self { names, keys, t_id, hash, state: State::Negotiate }
    }

    /// Asking twice gives the same answer.
    #[must_use]
    pub fn next(&self) -> Next {
        let t_id = self.t_id;
        let message = match &self.state {
            State::Negotiate => HostMessage::Negotiate(Negotiate {
                t_id,
                secure_channel: 0,
                offers_protocol: true,
                hashes: Hash::ALL.to_vec(),
                groups: Group::ALL.to_vec(),
            }),
            State::AwaitChallenge | State::AwaitSuccess1(_) => return Next::Receive(MESSAGE_MAX as u32),
            State::Computing(_) => return Next::Compute,
            State::Reply(response) => HostMessage::Reply(Reply {
                t_id,
                sequence: response.sequence,
                response: response.response.to_vec(),
                challenge: response.challenge.clone(),
                public: response.public.clone(),
            }),
            State::Success2 => HostMessage::Success2 { t_id },
            State::Failing(error) => HostMessage::Failure2 { t_id, explanation: error.explanation() },
            State::Authenticated => return Next::Authenticated,
            State::Failed(error) => return Next::Failed(*error),
        };
        Next::Send(message.to_bytes())
    }

    /// Why what is to be sent is a farewell, if it is.
    #[must_use]
    pub const fn failure(&self) -> Option<HostError> {
        match &self.state {
            State::Failing(error) => Some(*error),
            _ => None,
        }
    }

    /// Whether all that is missing is what the controller makes of our response.
    #[must_use]
    pub const fn awaits_verdict(&self) -> bool {
        matches!(self.state, State::AwaitSuccess1(_))
    }

    /// The message has been taken.
    pub fn sent(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Failed(HostError::Message)) {
            State::Negotiate => State::AwaitChallenge,
            State::Reply(response) => State::AwaitSuccess1(response.expected),
            State::Success2 => State::Authenticated,
            State::Failing(error) => State::Failed(error),
            state => state,
        };
    }

    /// A message came, with whatever lies behind it.
    pub fn received(&mut self, bytes: &[u8]) {
        let message = match ControllerMessage::parse(bytes) {
            Ok(message) => message,
            Err(Explanation::INCORRECT_MESSAGE) => return self.state = State::Failing(HostError::Message),
            Err(_) => return self.state = State::Failing(HostError::Malformed),
        };
        self.state = match (std::mem::replace(&mut self.state, State::Failed(HostError::Message)), message) {
            // A controller which understood nothing does not know the number of the transaction.
            (_, ControllerMessage::Failure1 { explanation, .. }) => {
                State::Failed(HostError::Refused(explanation))
            }
            (State::AwaitChallenge, ControllerMessage::Challenge(challenge))
                if challenge.t_id == self.t_id =>
            {
                match self.answer(challenge) {
                    Ok(job) => State::Computing(Some(job)),
                    Err(error) => State::Failing(error),
                }
            }
            (State::AwaitSuccess1(expected), ControllerMessage::Success1 { t_id, response })
                if t_id == self.t_id =>
            {
                self.judge(expected.as_ref(), response.as_deref())
            }
            _ => State::Failing(HostError::Message),
        };
    }

    /// What [`Next::Compute`] asks for; nothing if it was taken already.
    pub fn take_job(&mut self) -> Option<Job> {
        match &mut self.state {
            State::Computing(job) => job.take(),
            _ => None,
        }
    }

    /// What the job came to.
    pub fn computed(&mut self, outcome: Outcome) {
        // It may come too late, to another authentication.
        if !matches!(self.state, State::Computing(None)) {
            return;
        }
        self.state = match outcome.0 {
            JobResult::Response(Ok(response)) => State::Reply(Box::new(response)),
            _ => State::Failing(HostError::Malformed),
        };
    }

    fn answer(&mut self, challenge: Challenge) -> Result<Job, HostError> {
        self.hash = Hash::from_id(challenge.hash).ok_or(HostError::Hash)?;
        let group = Group::from_id(challenge.group).ok_or(HostError::Group)?;
        if challenge.sequence == 0
            || challenge.challenge.len() != self.hash.length()
            || challenge.public.len() != group.length()
        {
            return Err(HostError::Malformed);
        }
        Ok(Job(Work::Respond(Box::new(Answer {
            keys: Arc::clone(&self.keys),
            names: self.names,
            t_id: self.t_id,
            hash: self.hash,
            group,
            challenge: challenge.challenge,
            sequence: challenge.sequence,
            public: challenge.public,
        }))))
    }

    fn judge(&self, expected: Option<&Hidden>, response: Option<&[u8]>) -> State {
        use subtle::ConstantTimeEq;
        match (expected, response) {
            // An answer nobody asked for is none.
            (None, _) => State::Authenticated,
            (Some(expected), Some(response)) if bool::from(expected.ct_eq(response)) => State::Success2,
            (Some(_), _) => State::Failing(HostError::WrongController),
        }
    }
}

impl HostError {
    /// What the controller is told.
    const fn explanation(self) -> Explanation {
        match self {
            Self::Refused(explanation) => explanation,
            Self::WrongController => Explanation::FAILED,
            Self::Hash => Explanation::HASH_UNUSABLE,
            Self::Group => Explanation::GROUP_UNUSABLE,
            Self::Malformed => Explanation::INCORRECT_PAYLOAD,
            Self::Message => Explanation::INCORRECT_MESSAGE,
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("t_id", &self.t_id).finish_non_exhaustive()
    }
}
