//! What the target is to serve. A file and flags alone give the same [`Config`], so whatever comes after
//! knows one form only.
mod bdev;
mod check;
mod document;
mod error;
mod limit;
mod nvmet;
mod resources;
mod value;

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use ironside_common::auth::{Group, Hash};
use ironside_common::memory::HugePages;
use ironside_common::nvme::Nqn;
use ironside_common::reactor::Poll;
use ironside_common::verbs::Address;
use uuid::Uuid;

use crate::catalog::Access;
use crate::limits::Limits;
use crate::throttle::Limit;
pub use bdev::{Bdev, BdevName};
pub use check::{Conflict, Place};
pub use error::{ConfigError, Problem};
pub use limit::HostLimits;
pub use value::metrics_address;
pub use value::{BlockSize, Crc, IoPoll, Listen, Provider, Serial, Size, ValueError};

/// Where NVMe over RDMA is served unless said otherwise (IANA: nvme).
pub const DEFAULT_PORT: u16 = 4420;
/// Where metrics are told unless said otherwise, if they are.
pub const METRICS_PORT: u16 = 9420;
pub const QUEUE_DEPTH_DEFAULT: u16 = 128;
pub const QUEUE_DEPTH_MAX: u16 = 1024;
pub const REACTORS_MAX: u16 = 64;
pub const DRAIN_TIMEOUT_S_DEFAULT: u16 = 30;
pub const DRAIN_TIMEOUT_S_MAX: u16 = 3600;
pub const SUBSYSTEMS_MAX: usize = 256;
pub const BDEVS_MAX: usize = 4096;
/// The fewest controller identifiers a part of a subsystem has: some for each reactor, and to rest before they come again.
pub const CNTLIDS_MIN: u16 = 256;
/// What is larger is not meant to be a configuration.
const BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    /// Where subsystems are reached which do not name listeners of their own. Never empty.
    pub listen: Vec<Listen>,
    /// What carries the connections of listeners which do not say.
    pub provider: Provider,
    /// `None`: one for each core.
    pub reactors: Option<u16>,
    /// Entries of an I/O queue a host may ask for.
    pub queue_depth: u16,
    /// What is taken on at most.
    pub limits: Limits,
    pub crc: Crc,
    pub io_poll: IoPoll,
    /// How reactors wait for work.
    pub poll: Poll,
    /// Where buffers and memory namespaces lie.
    pub huge_pages: HugePages,
    /// Seconds the media have to answer what is under way when the target stops.
    pub drain_timeout_s: u16,
    /// `None`: [`ironside_common::identity::state_directory`].
    pub state_directory: Option<PathBuf>,
    /// Where the target is told what to do meanwhile; nowhere unless this says.
    pub control: Option<PathBuf>,
    /// Where what it counts is told by HTTP; nowhere unless this says.
    pub metrics: Option<SocketAddr>,
    /// What namespaces may be made of, by name.
    pub bdevs: Vec<Bdev>,
    /// Empty only where `control` lets some be made meanwhile.
    pub subsystems: Vec<Subsystem>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Subsystem {
    /// `None`: one made once and kept in the state directory.
    pub nqn: Option<Nqn>,
    /// `None`: one made once and kept in the state directory.
    pub serial: Option<Serial>,
    pub hosts: Hosts,
    /// Hosts which are admitted, and have to authenticate.
    pub keys: Vec<HostKey>,
    pub host_limits: HostLimits,
    /// `None`: wherever the target listens. Nowhere only where `control` lets that change meanwhile.
    pub listen: Option<Vec<Listen>>,
    /// Identifiers of its controllers, if another target serves it too and gives out others.
    pub cntlids: Option<RangeInclusive<u16>>,
    /// The states of its groups of namespaces; optimized where nothing is said.
    pub access: Vec<Access>,
    /// Empty only where `control` lets some be made meanwhile.
    pub namespaces: Vec<Namespace>,
}

/// Who may connect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Hosts {
    /// The host this machine is, and no other: what holds if nothing is said.
    ThisMachine,
    Listed(Vec<Nqn>),
    Any,
}

/// What a host has to prove, by DH-HMAC-CHAP.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostKey {
    /// `None`: the host this machine is.
    pub nqn: Option<Nqn>,
    pub key_file: PathBuf,
    /// By which the subsystem proves itself to a host that asks for it.
    pub controller_key_file: Option<PathBuf>,
    /// In order of preference; never empty.
    pub hashes: Vec<Hash>,
    pub groups: Vec<Group>,
    /// Whether a host is disconnected, to authenticate anew, when its key is another.
    pub disconnect_on_change: bool,
}

impl HostKey {
    /// The shortest computation first which keeps keys safe from those who listen; none for hosts that cannot.
    pub const GROUPS: [Group; 6] = [
        Group::Ffdhe2048,
        Group::Ffdhe3072,
        Group::Ffdhe4096,
        Group::Ffdhe6144,
        Group::Ffdhe8192,
        Group::Null,
    ];

    /// With every hash and group there is.
    pub fn new(nqn: Option<Nqn>, key_file: PathBuf, controller_key_file: Option<PathBuf>) -> Self {
        let (hashes, groups) = (Hash::ALL.to_vec(), Self::GROUPS.to_vec());
        Self { nqn, key_file, controller_key_file, hashes, groups, disconnect_on_change: false }
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Namespace {
    pub nsid: u32,
    /// Which of the [`Config::bdevs`] it is, whose is what follows then; `None`: it is described here.
    pub bdev: Option<BdevName>,
    pub backing: Backing,
    /// `None`: what the device or the file system works with; 4096 bytes in memory.
    pub block_size: Option<BlockSize>,
    pub read_only: bool,
    /// Which of the subsystem's hosts see it; `None`: all. Never empty.
    pub hosts: Option<Vec<Nqn>>,
    /// Which group of namespaces it is of (ANAGRPID).
    pub ana_group: u32,
    /// What all hosts together may ask of it.
    pub limit: Limit,
    /// `None`: one made once and kept in the state directory.
    pub uuid: Option<Uuid>,
}

/// Where the bytes are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Backing {
    /// A regular file or a block device. With a size, a missing file is made.
    File { path: PathBuf, size: Option<u64> },
    /// Memory, lost when the target ends.
    Ram { size: u64 },
    /// Nowhere: reads give zeroes.
    Null { size: u64 },
}

impl Config {
    /// Reads a configuration file, be it nvmetcli's.
    ///
    /// # Errors
    /// If it cannot be read, is not TOML, or says what cannot be: with file, line and key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &Self::read(path)?)
    }

    /// The text of a configuration file.
    ///
    /// # Errors
    /// If it cannot be read, or is no text of a reasonable size.
    pub fn read(path: &Path) -> Result<String, ConfigError> {
        let failed = |problem| ConfigError::unreadable(path, problem);
        let mut text = String::new();
        let file = File::open(path).map_err(|error| failed(Problem::Read(error)))?;
        file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| failed(Problem::Read(error)))?;
        match text.len() as u64 {
            ..=BYTES_MAX => Ok(text),
            _ => Err(failed(Problem::TooLarge)),
        }
    }

    /// For a process which must not wait: a pipe is refused, since nobody may ever write to it.
    ///
    /// # Errors
    /// If it is no regular file. One that is missing is missed by whoever reads it.
    pub fn check_regular(path: &Path) -> Result<(), ConfigError> {
        match std::fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() => Err(ConfigError::unreadable(path, Problem::NoFile)),
            _ => Ok(()),
        }
    }

    /// The listeners of a subsystem.
    pub fn listeners_of(&self, subsystem: &Subsystem) -> Vec<(Address, Provider)> {
        let listen = subsystem.listen.as_ref().unwrap_or(&self.listen);
        listen.iter().map(|one| (one.address, one.provider.unwrap_or(self.provider))).collect()
    }

    /// All that is to be opened, each once: what bdevs are made of, and namespaces which are none.
    pub fn backings(&self) -> impl Iterator<Item = &Backing> {
        let namespaces = self.subsystems.iter().flat_map(|one| &one.namespaces);
        let described = namespaces.filter(|one| one.bdev.is_none()).map(|one| &one.backing);
        self.bdevs.iter().map(|bdev| &bdev.backing).chain(described)
    }

    /// As [`Self::load`], from text already read from `path`.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        if nvmet::is_it(text) { nvmet::read(path, text) } else { document::read(path, text) }
    }

    /// Whether a text is not in our own form, but in that of nvmetcli.
    pub fn is_foreign(text: &str) -> bool {
        nvmet::is_it(text)
    }
}

impl Backing {
    /// What to call it in a message, and in the state file.
    pub fn name(&self) -> String {
        match self {
            Self::File { path, .. } => path.display().to_string(),
            Self::Ram { size } => format!("ram:{size}"),
            Self::Null { size } => format!("null:{size}"),
        }
    }
}

#[cfg(test)]
mod tests;
