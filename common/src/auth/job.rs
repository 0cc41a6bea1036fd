//! What of an authentication takes long or needs chance: new challenges, Diffie-Hellman, responses. A job is moved to
//! wherever it may take its time, and its outcome is moved back.
use std::fmt;
use std::sync::Arc;

use subtle::ConstantTimeEq;

use super::group::KeyPair;
use super::hash::{Hidden, Transcript};
use super::message::Explanation;
use super::{Group, Hash, Keys, Policy, Randomness};
use crate::nvme::Nqn;

/// Something to be computed, by [`Job::run`] on any thread.
pub struct Job(pub(super) Work);

/// What came of a [`Job`], for the machine which gave it.
pub struct Outcome(pub(super) Result);

pub(super) enum Work {
    /// A controller's challenge.
    Challenge { hash: Hash, group: Group },
    /// Whether a host's response is right, and the controller's own.
    Verify(Box<Verification>),
    /// A host's response to a challenge, and the one it expects.
    Respond(Box<Answer>),
}

pub(super) enum Result {
    Challenge(Fresh),
    Verdict(std::result::Result<Option<Hidden>, Explanation>),
    Response(std::result::Result<Response, Explanation>),
}

/// Values of one use.
pub(super) struct Fresh {
    pub sequence: u32,
    pub challenge: Vec<u8>,
    pub pair: Option<KeyPair>,
}

pub(super) struct Verification {
    pub policy: Arc<Policy>,
    pub names: Names,
    pub t_id: u16,
    pub hash: Hash,
    pub fresh: Fresh,
    pub response: Vec<u8>,
    pub public: Vec<u8>,
    /// The host's own challenge with its sequence number.
    pub counter: Option<(Vec<u8>, u32)>,
}

pub(super) struct Answer {
    pub keys: Arc<Keys>,
    pub names: Names,
    pub t_id: u16,
    pub hash: Hash,
    pub group: Group,
    pub challenge: Vec<u8>,
    pub sequence: u32,
    pub public: Vec<u8>,
}

pub(super) struct Response {
    pub response: Hidden,
    /// Our challenge and its sequence number, or zero bytes and zero.
    pub challenge: Option<Vec<u8>>,
    pub sequence: u32,
    pub public: Vec<u8>,
    /// What the controller has to answer our challenge.
    pub expected: Option<Hidden>,
}

/// Between whom it is.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub host: Nqn,
    pub subsystem: Nqn,
}

impl Job {
    #[must_use]
    pub fn run(self, random: &mut dyn Randomness) -> Outcome {
        Outcome(match self.0 {
            Work::Challenge { hash, group } => Result::Challenge(Fresh::new(hash, group, random)),
            Work::Verify(verification) => Result::Verdict(verification.run()),
            Work::Respond(answer) => Result::Response(answer.run(random)),
        })
    }
}

impl Fresh {
    fn new(hash: Hash, group: Group, random: &mut dyn Randomness) -> Self {
        let mut challenge = vec![0; hash.length()];
        random.fill(&mut challenge);
        Self { sequence: sequence(random), challenge, pair: group.key_pair(random) }
    }
}

impl Verification {
    fn run(&self) -> std::result::Result<Option<Hidden>, Explanation> {
        let shared = shared(self.fresh.pair.as_ref(), &self.public)?;
        let transcript = Transcript {
            hash: self.hash,
            challenge: &self.fresh.challenge,
            shared: shared.as_deref().map(Vec::as_slice),
            sequence: self.fresh.sequence,
            t_id: self.t_id,
            host: &self.names.host,
            subsystem: &self.names.subsystem,
        };
        let key = self.policy.host.key_of(&self.names.host);
        if !bool::from(transcript.of_host(&key).ct_eq(&self.response)) {
            return Err(Explanation::FAILED);
        }
        let (Some((challenge, sequence)), Some(secret)) = (&self.counter, &self.policy.controller) else {
            return Ok(None);
        };
        let transcript = Transcript { challenge, sequence: *sequence, ..transcript };
        Ok(Some(transcript.of_controller(&secret.key_of(&self.names.subsystem))))
    }
}

impl Answer {
    fn run(&self, random: &mut dyn Randomness) -> std::result::Result<Response, Explanation> {
        let pair = self.group.key_pair(random);
        let shared = shared(pair.as_ref(), &self.public)?;
        let transcript = Transcript {
            hash: self.hash,
            challenge: &self.challenge,
            shared: shared.as_deref().map(Vec::as_slice),
            sequence: self.sequence,
            t_id: self.t_id,
            host: &self.names.host,
            subsystem: &self.names.subsystem,
        };
        let response = transcript.of_host(&self.keys.host.key_of(&self.names.host));
        let public = pair.map(|pair| pair.public).unwrap_or_default();
        let Some(secret) = &self.keys.controller else {
            return Ok(Response { response, challenge: None, sequence: 0, public, expected: None });
        };
        let mut challenge = vec![0; self.hash.length()];
        random.fill(&mut challenge);
        let sequence = sequence(random);
        let transcript = Transcript { challenge: &challenge, sequence, ..transcript };
        let expected = Some(transcript.of_controller(&secret.key_of(&self.names.subsystem)));
        Ok(Response { response, challenge: Some(challenge), sequence, public, expected })
    }
}

/// What both ends know alone, if they agreed on a group.
fn shared(pair: Option<&KeyPair>, public: &[u8]) -> std::result::Result<Option<Hidden>, Explanation> {
    pair.map(|pair| pair.shared(public)).transpose().map_err(|_| Explanation::INCORRECT_PAYLOAD)
}

/// A sequence number, which is never zero.
fn sequence(random: &mut dyn Randomness) -> u32 {
    let mut bytes = [0; 4];
    random.fill(&mut bytes);
    u32::from_le_bytes(bytes).max(1)
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outcome")
    }
}
