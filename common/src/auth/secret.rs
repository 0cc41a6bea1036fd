//! Secrets as people keep them: `DHHC-1:01:` and base64, which every NVMe implementation reads, in files which nobody
//! else may.
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::hash::Hidden;
use super::{Hash, Randomness};
use crate::nvme::Nqn;

const PREFIX: &str = "DHHC-1:";
/// Bytes a key may have.
const LENGTHS: [usize; 3] = [32, 48, 64];
/// Bytes of a file that can hold a secret.
const FILE_MAX: u64 = 4096;
/// What a key is transformed with, behind the name of its owner.
const TRANSFORMATION: &[u8] = b"NVMe-over-Fabrics";

/// A secret, known to a host and to the subsystems which it may use. It is shown nowhere.
#[derive(Clone)]
pub struct Secret {
    /// The hash which makes the key of one owner from it.
    transformation: Option<Hash>,
    key: Hidden,
}

/// Why a text is no secret. The text is not told.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SecretError {
    #[error("a secret looks like DHHC-1:01:...: with a colon at its end")]
    Form,
    #[error("the number behind DHHC-1 names the hash which transforms the key: 00 for none, 01, 02 or 03")]
    Transformation,
    #[error("the part behind the second colon of a secret is not base64")]
    Base64,
    #[error("a secret has 32, 48 or 64 bytes and a checksum of 4, this one {0} together")]
    Length(usize),
    #[error("the checksum of the secret is wrong: it was not copied whole, or mistyped")]
    Checksum,
}

/// Why there is no secret in a file.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    #[error("the key file {0} cannot be read: {1}")]
    Read(PathBuf, io::Error),
    #[error("the key file {0} is no regular file")]
    NotAFile(PathBuf),
    #[error("the key file {path} may be used by others than its owner (mode {mode:04o}): chmod 600 {path}")]
    Mode { path: PathBuf, mode: u32 },
    #[error("the key file {0} belongs to somebody else than root and whoever runs this")]
    Owner(PathBuf),
    #[error("in the key file {0}: {1}")]
    Secret(PathBuf, SecretError),
}

impl Secret {
    /// A new one of `length` bytes: as many as the hash has which transforms it, or 32, 48 or 64 if none does.
    ///
    /// # Panics
    /// If it has another length.
    #[must_use]
    pub fn generate(transformation: Option<Hash>, length: usize, random: &mut dyn Randomness) -> Self {
        assert!(LENGTHS.contains(&length) && transformation.is_none_or(|hash| hash.length() == length));
        let mut key = Zeroizing::new(vec![0; length]);
        random.fill(&mut key);
        Self { transformation, key }
    }

    /// The secret in a file which only its owner may touch.
    ///
    /// # Errors
    /// If it cannot be read, or others can, or it holds no secret.
    pub fn read(path: &Path) -> Result<Self, SecretFileError> {
        let failed = |error| SecretFileError::Read(path.into(), error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(SecretFileError::NotAFile(path.into()));
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(SecretFileError::Mode { path: path.into(), mode });
        }
        if ![0, nix::unistd::geteuid().as_raw()].contains(&metadata.uid()) {
            return Err(SecretFileError::Owner(path.into()));
        }
        let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize));
        file.take(FILE_MAX).read_to_string(&mut text).map_err(failed)?;
        text.trim().parse().map_err(|error| SecretFileError::Secret(path.into(), error))
    }

    /// As it is written down. Whoever sees it can be taken for its owner.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let checksum = crc32fast::hash(&self.key).to_le_bytes();
        let bytes = Zeroizing::new([self.key.as_slice(), &checksum].concat());
        let encoded = Zeroizing::new(STANDARD.encode(bytes.as_slice()));
        let number = self.transformation.map_or(0, Hash::id);
        Zeroizing::new(format!("{PREFIX}{number:02}:{}:", encoded.as_str()))
    }

    #[must_use]
    pub const fn transformation(&self) -> Option<Hash> {
        self.transformation
    }

    /// Of the key, in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.key.len()
    }

    /// The key of its owner: of a host, or of a subsystem.
    pub(super) fn key_of(&self, owner: &Nqn) -> Hidden {
        match self.transformation {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[owner.as_str().as_bytes(), TRANSFORMATION]),
        }
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let inside = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(':'));
        let (number, encoded) = inside.and_then(|inside| inside.split_once(':')).ok_or(SecretError::Form)?;
        let transformation = match number {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Transformation),
        };
        let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| SecretError::Base64)?);
        let Some((key, checksum)) =
            bytes.split_last_chunk::<4>().filter(|(key, _)| LENGTHS.contains(&key.len()))
        else {
            return Err(SecretError::Length(bytes.len()));
        };
        if crc32fast::hash(key).to_le_bytes() != *checksum {
            return Err(SecretError::Checksum);
        }
        Ok(Self { transformation, key: key.to_vec().into() })
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.transformation == other.transformation && bool::from(self.key.ct_eq(&other.key))
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}
