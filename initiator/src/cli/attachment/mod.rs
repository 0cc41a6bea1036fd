//! What is attached on this machine: a directory for each attachment, held by the process behind it.
mod control;
mod directory;
mod process;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ironside_common::nvme::{self, Nqn, identify};
use ironside_common::reactor::Poll;
use ironside_common::verbs::Address;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::Class;
use super::secrets::{Given, Source};
use crate::attach::{Carried, Core, Cores, Crc, Provider, Registration};
use crate::host::{Controller, HostOptions, Namespace};
use crate::paths::Policy;
use crate::volume::Geometry;

pub(super) use control::{Answer, Condition, PathCondition, Question, Status, answer, ask, listen};
pub use directory::DirectoryError;
pub(super) use directory::{Claim, Directory, Entry, MOUNT};
pub(super) use process::Process;

/// How a volume is to be reached by others.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The best there is on this machine
    #[default]
    Auto,
    /// A block device by the ublk driver, which outlives a crash of ours: needs root and Linux 6.5
    Ublk,
    /// A block device, by FUSE and the loop driver: needs root
    Fuse,
    /// A file, by FUSE: needs nothing but fusermount3
    FuseFile,
    /// A block device by the kernel's NBD client, which outlives a crash of ours for a while: needs root
    NbdDevice,
    /// An NBD server on a Unix socket, for qemu, libnbd, fio: needs nothing
    Nbd,
    /// The disk of a virtual machine, on a Unix socket, which outlives a crash of ours: needs nothing
    VhostUserBlk,
}

impl Via {
    /// What it is by.
    pub(super) const fn in_words(self) -> &'static str {
        match self {
            Self::Auto => "whatever is best",
            Self::Ublk => "the ublk driver",
            Self::Fuse => "FUSE and the loop driver",
            Self::FuseFile => "FUSE",
            Self::NbdDevice => "the kernel's NBD client",
            Self::Nbd => "NBD",
            Self::VhostUserBlk => "vhost-user",
        }
    }

    /// Whether it makes a block device, for which the kernel may hold data back.
    pub(super) const fn makes_a_device(self) -> bool {
        matches!(self, Self::Ublk | Self::Fuse | Self::NbdDevice)
    }

    /// Whether a process may take it over from one that has died.
    pub(super) const fn is_recoverable(self) -> bool {
        matches!(self, Self::Ublk | Self::NbdDevice | Self::VhostUserBlk)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Ublk => "ublk",
            Self::Fuse => "fuse",
            Self::FuseFile => "fuse-file",
            Self::NbdDevice => "nbd-device",
            Self::Nbd => "nbd",
            Self::VhostUserBlk => "vhost-user-blk",
        })
    }
}

/// What the process behind an attachment is told when it starts.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Order {
    pub(super) specification: Specification,
    pub(super) given: Given,
    /// The attachment of a process that has died, to be gone on with.
    pub(super) take_over: Option<String>,
}

/// What is to be attached, and how.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Specification {
    pub(super) address: Address,
    /// Of further paths.
    #[serde(default)]
    pub(super) more_addresses: Vec<Address>,
    #[serde(default)]
    pub(super) iopolicy: Policy,
    #[serde(with = "text")]
    pub(super) nqn: Nqn,
    #[serde(with = "text")]
    pub(super) host_nqn: Nqn,
    #[serde(with = "text")]
    pub(super) host_id: Uuid,
    pub(super) crc: Crc,
    #[serde(with = "text", default)]
    pub(super) poll: Poll,
    #[serde(default)]
    pub(super) provider: Provider,
    #[serde(default)]
    pub(super) registration: Registration,
    pub(super) nsid: Option<u32>,
    pub(super) via: Via,
    pub(super) read_only: bool,
    pub(super) nr_io_queues: u16,
    pub(super) queue_size: u16,
    pub(super) keep_alive_tmo: Duration,
    pub(super) reconnect_delay: Duration,
    pub(super) ctrl_loss_tmo: Option<Duration>,
    #[serde(default)]
    pub(super) fast_io_fail_tmo: Option<Duration>,
    pub(super) disable_sqflow: bool,
    /// As they were written; one, where nothing was.
    #[serde(default)]
    pub(super) cores: Option<String>,
    /// So many of them never sleep.
    #[serde(default)]
    pub(super) nr_poll_queues: usize,
    /// Where the secrets are to be found, which are written down nowhere else.
    #[serde(default)]
    pub(super) secrets: Source,
}

impl Specification {
    /// The address of each path.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        std::iter::once(self.address).chain(self.more_addresses.iter().copied())
    }

    /// The cores it is served on: those that never sleep first.
    pub(super) fn cores(&self) -> Vec<Core> {
        let written = self.cores.as_deref().and_then(|text| Cores::from_str(text).ok());
        let mut cores = written.map_or_else(|| vec![Core::default()], |Cores(cores)| cores);
        cores.iter_mut().for_each(|core| core.poll = self.poll);
        cores.iter_mut().take(self.nr_poll_queues).for_each(|core| core.poll = Poll::Always);
        cores
    }

    pub(super) fn options(&self) -> HostOptions {
        HostOptions {
            nr_io_queues: self.nr_io_queues,
            queue_size: self.queue_size,
            keep_alive_tmo: self.keep_alive_tmo,
            reconnect_delay: self.reconnect_delay,
            ctrl_loss_tmo: self.ctrl_loss_tmo,
            fast_io_fail_tmo: self.fast_io_fail_tmo,
            disable_sqflow: self.disable_sqflow,
            one_of_cores: self.cores().len() > 1,
            ..HostOptions::new(self.address, self.nqn, self.host_nqn, self.host_id)
        }
    }
}

/// What that process says once: the volume can be used, or why not.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Report {
    Ready(Box<Attachment>),
    Failed { message: String, remedy: Option<String>, class: Class },
}

/// One attachment, as its process wrote it down.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Attachment {
    pub(super) name: String,
    pub(super) pid: u32,
    /// What was asked for.
    pub(super) specification: Specification,
    /// The namespace there is, or the one that was asked for.
    pub(super) nsid: u32,
    /// What names the namespace for good.
    #[serde(default)]
    pub(super) identity: Option<String>,
    /// The way that was taken.
    pub(super) via: Via,
    /// Why this way and no other.
    pub(super) reason: String,
    /// What carries its connections.
    #[serde(default)]
    pub(super) carried: Carried,
    /// What others open: a block device, a file or a socket.
    pub(super) device: PathBuf,
    /// As asked, or because the namespace is.
    pub(super) read_only: bool,
    pub(super) loop_device: Option<PathBuf>,
    pub(super) volume: VolumeFacts,
}

/// What the controller says of itself and of the namespace, which may change.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct VolumeFacts {
    pub(super) size: u64,
    pub(super) block_size: u32,
    pub(super) used: u64,
    pub(super) serial: String,
    pub(super) model: String,
    pub(super) firmware: String,
}

impl VolumeFacts {
    pub(super) fn new(controller: &Controller, namespace: &Namespace) -> Self {
        let controller: &identify::Controller = zerocopy::transmute_ref!(&*controller.identify);
        let wire: &identify::Namespace = zerocopy::transmute_ref!(&*namespace.identify);
        let Geometry { size, block_size, .. } = namespace.geometry;
        Self {
            size,
            block_size,
            used: wire.nuse.get().saturating_mul(block_size.into()),
            serial: nvme::text::read(&controller.serial),
            model: nvme::text::read(&controller.model),
            firmware: nvme::text::read(&controller.firmware),
        }
    }
}

impl Attachment {
    /// Whether somebody may mean this one by `word`: its name, its device with or without the path, or the
    /// socket.
    pub(super) fn is_called(&self, word: &str) -> bool {
        let path = Path::new(word);
        let is = |device: &Path| device == path || device.file_name() == Some(path.as_os_str());
        self.name == word || is(&self.device) || self.loop_device.as_deref().is_some_and(is)
    }
}

/// NQNs and identifiers are kept as text.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
