//! The hash functions of DH-HMAC-CHAP, and what it computes by them.
use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

use crate::nvme::Nqn;

/// A hash function, by its identifier in messages and in secrets.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// Bytes which stay nowhere in memory after their use.
pub(super) type Hidden = Zeroizing<Vec<u8>>;

impl Hash {
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Its number, 1 to 3.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Of a hash, in bytes.
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    pub(super) fn digest(self, bytes: &[u8]) -> Hidden {
        match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
        .into()
    }

    /// HMAC over the parts one after another.
    pub(super) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Hidden {
        match self {
            Self::Sha256 => authenticate::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => authenticate::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => authenticate::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn authenticate<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Hidden {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec().into()
}

/// What both sides bind a response to: the answer to a challenge is of use nowhere else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transcript<'a> {
    pub hash: Hash,
    pub challenge: &'a [u8],
    /// What Diffie-Hellman gave both, unless it was left out.
    pub shared: Option<&'a [u8]>,
    pub sequence: u32,
    pub t_id: u16,
    pub host: &'a Nqn,
    pub subsystem: &'a Nqn,
}

impl Transcript<'_> {
    /// What a host answers a controller's challenge.
    pub(super) fn of_host(&self, key: &[u8]) -> Hidden {
        self.response(key, b"HostHost", [self.host, self.subsystem])
    }

    /// What a controller answers a host's challenge.
    pub(super) fn of_controller(&self, key: &[u8]) -> Hidden {
        self.response(key, b"Controller", [self.subsystem, self.host])
    }

    fn response(&self, key: &[u8], role: &[u8], names: [&Nqn; 2]) -> Hidden {
        let augmented = self.shared.map(|shared| {
            let session_key = self.hash.digest(shared);
            self.hash.hmac(&session_key, &[self.challenge])
        });
        let challenge = augmented.as_deref().map_or(self.challenge, Vec::as_slice);
        // No secure channel is concatenated, so SC_C is 0.
        let (sequence, t_id, sc_c) = (self.sequence.to_le_bytes(), self.t_id.to_le_bytes(), [0]);
        let [first, second] = names.map(|name| name.as_str().as_bytes());
        self.hash.hmac(key, &[challenge, &sequence, &t_id, &sc_c, role, first, &[0], second])
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        })
    }
}

/// The name is that of no hash function of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a hash is one of sha256, sha384 and sha512")]
pub struct HashError;

impl FromStr for Hash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        Self::ALL.into_iter().find(|hash| hash.to_string() == text).ok_or(HashError)
    }
}
