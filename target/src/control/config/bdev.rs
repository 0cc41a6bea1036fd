//! What namespaces may be made of, by name: the block devices of SPDK, which are there before a subsystem shows them and
//! after it does not any more.
use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use super::{Backing, BlockSize, Namespace, ValueError};
use crate::throttle::Limit;

/// The name of a [`Bdev`]: 1 to 256 bytes without spaces and control characters.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct BdevName(String);

impl BdevName {
    const BYTES_MAX: usize = 256;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BdevName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_plain = text.chars().all(|one| !one.is_whitespace() && !one.is_control());
        match is_plain && (1..=Self::BYTES_MAX).contains(&text.len()) {
            true => Ok(Self(text.to_owned())),
            false => Err(ValueError::BdevName),
        }
    }
}

impl fmt::Display for BdevName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Something a namespace can be made of. It is open, and locked, whether or not one is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Bdev {
    pub name: BdevName,
    pub backing: Backing,
    /// As [`Namespace::block_size`].
    pub block_size: Option<BlockSize>,
    pub read_only: bool,
    /// What all hosts together may ask of it.
    pub limit: Limit,
    /// `None`: one made once and kept in the state directory; for memory, one at every start.
    pub uuid: Option<Uuid>,
}

impl Bdev {
    /// The namespace of a number which is this.
    pub fn as_namespace(&self, nsid: u32) -> Namespace {
        Namespace {
            nsid,
            bdev: Some(self.name.clone()),
            backing: self.backing.clone(),
            block_size: self.block_size,
            read_only: self.read_only,
            hosts: None,
            ana_group: 1,
            limit: self.limit,
            uuid: self.uuid,
        }
    }
}
