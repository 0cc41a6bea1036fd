//! A host of bytes which authenticates: the messages of DH-HMAC-CHAP, and what it computes for them, once more and without
//! our codecs.
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use ironside_common::auth::{Group, Hash, Policy};
use sha2::{Digest, Sha256, Sha384, Sha512};

use crate::queue::{HOST, Queue};
use crate::target::{OPEN, Target};
use crate::wire::{Sqe, le};

/// Secrets of 32 bytes, 00 to 1Fh and FFh down to E0h, which no hash transforms.
pub(crate) const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
pub(crate) const OTHER_SECRET: &str = "DHHC-1:00://79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eAsgEB3:";

pub(crate) fn key() -> Vec<u8> {
    (0..32).collect()
}

pub(crate) fn other_key() -> Vec<u8> {
    (0..32).map(|byte| 255 - byte).collect()
}

pub(crate) const T_ID: u16 = 0xBEEF;
pub(crate) const GROUPS: [(u8, usize); 3] = [(0, 0), (1, 256), (2, 384)];
pub(crate) const LENGTHS: [(u8, usize); 3] = [(1, 32), (2, 48), (3, 64)];

pub(crate) fn policy() -> Policy {
    Policy {
        host: SECRET.parse().expect("a secret"),
        controller: None,
        hashes: Hash::ALL.to_vec(),
        groups: Group::ALL.to_vec(),
    }
}

/// A target which asks for the secret, and for no group, since that takes long.
pub(crate) fn target() -> Target {
    target_with(|policy| policy.groups = vec![Group::Null])
}

pub(crate) fn target_with(change: fn(&mut Policy)) -> Target {
    let target = Target::new();
    let mut policy = policy();
    change(&mut policy);
    target.ask_for_a_key(2, policy, false);
    target
}

pub(crate) fn admin(target: &Target) -> Queue {
    Queue::connect_admin(target, OPEN, 0).0
}

/// Authentication Send and Authentication Receive of so many bytes.
pub(crate) fn command(fctype: u8, length: usize) -> Sqe {
    Sqe::fabrics(fctype).byte(41, 1).byte(42, 1).byte(43, 0xE9).dword(44, length as u32)
}

pub(crate) fn send(queue: &mut Queue, message: &[u8]) {
    queue.write(command(5, message.len()), message).succeeded();
}

pub(crate) fn receive(queue: &mut Queue) -> Vec<u8> {
    queue.fetch(command(6, 2048), 2048)
}

pub(crate) fn negotiate(secure_channel: u8, hashes: &[u8], groups: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 72];
    message[4..6].copy_from_slice(&T_ID.to_le_bytes());
    message[6..8].copy_from_slice(&[secure_channel, 1]);
    message[8..12].copy_from_slice(&[1, 0, hashes.len() as u8, groups.len() as u8]);
    message[12..][..hashes.len()].copy_from_slice(hashes);
    message[42..][..groups.len()].copy_from_slice(groups);
    message
}

/// What the host knows after the Challenge.
pub(crate) struct Challenged {
    pub(crate) hash: u8,
    pub(crate) sequence: [u8; 4],
    pub(crate) challenge: Vec<u8>,
    pub(crate) public: Vec<u8>,
}

pub(crate) fn challenged(queue: &mut Queue, hash: u8, group: u8) -> Challenged {
    send(queue, &negotiate(0, &[hash], &[group]));
    let message = receive(queue);
    assert_eq!(message[..2], [1, 1], "a Challenge");
    let (length, public) = (usize::from(message[6]), le(&message, 10, 2) as usize);
    Challenged {
        hash,
        sequence: message[12..16].try_into().expect("four"),
        challenge: message[16..][..length].to_vec(),
        public: message[16 + length..][..public].to_vec(),
    }
}

fn digest(hash: u8, bytes: &[u8]) -> Vec<u8> {
    match hash {
        1 => Sha256::digest(bytes).to_vec(),
        2 => Sha384::digest(bytes).to_vec(),
        _ => Sha512::digest(bytes).to_vec(),
    }
}

pub(crate) fn hmac(hash: u8, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    fn of<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        let mut mac = <M as KeyInit>::new_from_slice(key).expect("any length will do");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().to_vec()
    }
    match hash {
        1 => of::<Hmac<Sha256>>(key, parts),
        2 => of::<Hmac<Sha384>>(key, parts),
        _ => of::<Hmac<Sha512>>(key, parts),
    }
}

/// R1, or R2 with the other words.
pub(crate) fn response(
    hash: u8,
    key: &[u8],
    augmented: &[u8],
    sequence: [u8; 4],
    words: [&str; 3],
) -> Vec<u8> {
    let [who, first, second] = words.map(str::as_bytes);
    hmac(hash, key, &[augmented, &sequence, &T_ID.to_le_bytes(), &[0], who, first, &[0], second])
}

impl Challenged {
    /// With y 1 the host's value is 2, and what both know is the controller's own value.
    pub(crate) fn augmented(&self) -> Vec<u8> {
        if self.public.is_empty() {
            return self.challenge.clone();
        }
        hmac(self.hash, &digest(self.hash, &self.public), &[&self.challenge])
    }

    pub(crate) fn response(&self, key: &[u8]) -> Vec<u8> {
        response(self.hash, key, &self.augmented(), self.sequence, ["HostHost", HOST, OPEN])
    }

    pub(crate) fn reply(&self, key: &[u8]) -> Vec<u8> {
        self.reply_of(&self.response(key), None, [0; 4])
    }

    pub(crate) fn reply_of(&self, response: &[u8], challenge: Option<&[u8]>, sequence: [u8; 4]) -> Vec<u8> {
        let mut message = vec![0; 16];
        message[..2].copy_from_slice(&[1, 2]);
        message[4..6].copy_from_slice(&T_ID.to_le_bytes());
        message[6] = response.len() as u8;
        message[8] = challenge.is_some().into();
        message[10..12].copy_from_slice(&(self.public.len() as u16).to_le_bytes());
        message[12..16].copy_from_slice(&sequence);
        message.extend(response);
        message.extend(challenge.map_or_else(|| vec![0; response.len()], <[u8]>::to_vec));
        message.resize(message.len() + self.public.len(), 0);
        if let Some(last) = message.last_mut().filter(|_| !self.public.is_empty()) {
            *last = 2;
        }
        message
    }
}

pub(crate) fn success2() -> Vec<u8> {
    let mut message = vec![0; 16];
    message[..2].copy_from_slice(&[1, 4]);
    message[4..6].copy_from_slice(&T_ID.to_le_bytes());
    message
}

pub(crate) fn authenticate(queue: &mut Queue, key: &[u8]) {
    let challenged = challenged(queue, 1, 0);
    send(queue, &challenged.reply(key));
    assert_eq!(receive(queue)[..2], [1, 3], "Success1");
}

/// The host hears Failure1 with this explanation, and is disconnected.
#[track_caller]
pub(crate) fn fails(queue: &mut Queue, explanation: u8) {
    let message = receive(queue);
    assert_eq!(message[..2], [0, 0xF1], "Failure1");
    assert_eq!(message[6..8], [1, explanation]);
    assert!(!queue.peer.is_over(), "it was heard");
    queue.target.wait(Duration::from_secs(2));
    assert!(queue.peer.is_over());
}

/// An admin queue to which these messages were sent.
#[track_caller]
pub(crate) fn fails_after(messages: &[&[u8]], explanation: u8) {
    let mut queue = admin(&target());
    messages.iter().for_each(|message| send(&mut queue, message));
    fails(&mut queue, explanation);
}
