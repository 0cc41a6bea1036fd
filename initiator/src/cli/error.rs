//! What may go wrong with a command, who can do something about it, and what.
mod device;

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use ironside_common::auth::HostError;
use ironside_common::identity::IdentityError;
use ironside_common::nvme::Status;
use ironside_common::nvme::fabrics::InvalidParameter;
use ironside_common::verbs::{Address, RejectReason};
use serde::{Deserialize, Serialize};

use super::attachment::{DirectoryError, Via};
use super::daemon::Lack;
use super::secrets::SecretsError;
use crate::attach::{AttachError, ExportError, ProviderError};
use crate::export::loop_device::LoopError;
use crate::export::nbd_device::NbdDeviceError;
use crate::export::ublk::UblkError;
use crate::export::usage::Use;
use crate::host::{ConnectError, Doing, HostOptions, NamespaceError, OptionsError};
use crate::paths::PATHS_MAX;

/// Kinds of failure: the exit status.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    Failed = 1,
    Usage = 2,
    Unreachable = 3,
    Refused = 4,
    InUse = 5,
    System = 6,
    Unknown = 7,
}

#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Secret(#[from] SecretsError),
    #[error("cannot find the address {traddr}: {source}")]
    Address { traddr: String, source: io::Error },
    #[error("{cores} cores (--cores) are more than there are here: {there}")]
    TooManyCores { cores: usize, there: usize },
    #[error(
        "{wanted} poll queues (-P) are more than cores: each is a core which never sleeps, and there are {cores} (--cores)"
    )]
    PollQueues { wanted: usize, cores: usize },
    #[error("this takes one address (-a)")]
    OneAddress,
    #[error("a port (-s) is given once for all addresses, or once for each")]
    Ports,
    #[error("{0} is given twice: a path is named once")]
    SameAddress(Address),
    #[error("--traddr: {0}")]
    SocketPath(#[source] ironside_common::verbs::AddressError),
    #[error("an attachment has {PATHS_MAX} paths at most")]
    TooManyAddresses,
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("{}", refused(options, source))]
    Attach { options: Box<HostOptions>, source: AttachError },
    #[error("the subsystem has no namespace that can be used{}", reasons(skipped))]
    NoNamespace { skipped: Vec<(u32, NamespaceError)> },
    #[error("the subsystem has no namespace {nsid}; it has {}", list(found))]
    NoSuchNamespace { nsid: u32, found: Vec<u32> },
    #[error("the subsystem has namespaces {}: say which with --nsid", list(found))]
    WhichNamespace { found: Vec<u32> },
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("it is attached already, as {name}")]
    AttachedAlready { name: String },
    #[error("nothing attached is called {0}")]
    NoSuchAttachment(String),
    #[error("{name} is in use: {}", list(uses))]
    InUse { name: String, uses: Vec<Use> },
    #[error(transparent)]
    Export(#[from] ExportError),
    /// What the attach process reported.
    #[error("{message}")]
    Reported { message: String, remedy: Option<String>, class: Class },
    #[error("the attach process ended without a word: {status}")]
    Silent { status: ExitStatus },
    #[error("{name} did not end within {seconds} s")]
    Stuck { name: String, seconds: u64 },
    #[error("{name} does not answer: {source}")]
    NoAnswer { name: String, source: io::Error },
    #[error("{name} did not authenticate again: {why}")]
    NotRekeyed { name: String, why: String },
    #[error("no address (-a) is given, and no discovery controller over RDMA is in /etc/nvme/discovery.conf")]
    NowhereToDiscover,
    #[error("/etc/nvme/discovery.conf, line {number}: {message}")]
    DiscoveryLine { number: usize, message: String },
    #[error("a log page is read in double words: its length is no multiple of 4, or 0")]
    LogLength,
    #[error(
        "-s (--sel) is 0 for the current value, 1 for the default, 2 for the saved, 3 for what can be done to it; not {0}"
    )]
    Select(u16),
    #[error("-s (--lsp) is at most 127, not {0}")]
    LogSpecific(u16),
    #[error("the log page is longer than is read of it: {0} bytes")]
    LogTooLong(u64),
    #[error("the log page changes faster than it can be read")]
    LogChanges,
    #[error("{name} could not be detached: {message}")]
    NotDetached { name: String, message: String },
    #[error("--via {via} {lack}")]
    Way { via: Via, lack: Lack },
    #[error("{name} cannot be recovered: there is no device of a process that has died")]
    NotRecoverable { name: String },
    #[error("{name} is not recovered: the namespace is another one now, or smaller ({found})")]
    AnotherVolume { name: String, found: String },
    #[error("cannot mount a FUSE file system at {}: {source}", path.display())]
    Mount { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Loop(#[from] LoopError),
    #[error(transparent)]
    Ublk(#[from] UblkError),
    #[error(transparent)]
    NbdDevice(#[from] NbdDeviceError),
    #[error("cannot serve at {}: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("{0} of the checks failed")]
    Unwell(usize),
    #[error("a key of {length} bytes does not go with --hmac {hmac}: 1 takes 32, 2 takes 48, 3 takes 64")]
    KeyLength { length: usize, hmac: u8 },
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl CliError {
    /// What the controller answered instead of success, where that is what went wrong.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Attach {
                source: AttachError::Connect(ConnectError::Answered { doing: Doing::Command, refusal }),
                ..
            } => Some(refusal.status),
            _ => None,
        }
    }

    /// Whose turn it is.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Address { .. } => Class::Unreachable,
            Self::Secret(_)
            | Self::OneAddress
            | Self::TooManyCores { .. }
            | Self::PollQueues { .. }
            | Self::Ports
            | Self::SameAddress(_)
            | Self::SocketPath(_)
            | Self::TooManyAddresses
            | Self::KeyLength { .. }
            | Self::LogLength
            | Self::NowhereToDiscover
            | Self::DiscoveryLine { .. }
            | Self::Select(_)
            | Self::LogSpecific(_)
            | Self::Identity(_)
            | Self::Options(_)
            | Self::WhichNamespace { .. } => Class::Usage,
            Self::Attach { source, .. } => class_of_attach(source),
            Self::NoNamespace { .. }
            | Self::NoSuchNamespace { .. }
            | Self::AnotherVolume { .. }
            | Self::NotRekeyed { .. } => Class::Refused,
            Self::AttachedAlready { .. } | Self::InUse { .. } => Class::InUse,
            Self::NoSuchAttachment(_) | Self::NotRecoverable { .. } => Class::Unknown,
            Self::Reported { class, .. } => *class,
            Self::Silent { .. }
            | Self::Stuck { .. }
            | Self::NoAnswer { .. }
            | Self::NotDetached { .. }
            | Self::Export(_)
            | Self::Unwell(_)
            | Self::LogTooLong(_)
            | Self::LogChanges
            | Self::Write { .. } => Class::Failed,
            Self::Directory(_)
            | Self::Way { .. }
            | Self::Mount { .. }
            | Self::Loop(_)
            | Self::Ublk(_)
            | Self::NbdDevice(_)
            | Self::Socket { .. }
            | Self::System { .. } => Class::System,
        }
    }

    /// What to do about it, where that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::Reported { remedy, .. } => return remedy.clone(),
            Self::Attach { options, source } => return remedy_of_attach(options, source),
            Self::Export(ExportError::NotShared(_)) => "--cores 1",
            Self::AttachedAlready { .. } => "use that, or attach it twice with --duplicate-connect",
            Self::NoSuchAttachment(_) => "ironside list shows what is attached",
            Self::InUse { .. } => {
                "let go of it first (umount, swapoff), or use --force and lose what is unwritten"
            }
            Self::Stuck { .. } | Self::NoAnswer { .. } => "--force ends the attach process whatever it does",
            Self::NotRecoverable { .. } => "ironside list shows what is attached; connect attaches anew",
            Self::NotRekeyed { .. } => {
                "give target and host the same secrets, the target first; if the connection is lost, requests wait"
            }
            Self::AnotherVolume { .. } => {
                "have the target serve what it served, or ironside disconnect it and lose what is unwritten"
            }
            Self::Way { lack, .. } => {
                return Some(format!("{}; or use --via nbd, which any user may", lack.remedy()));
            }
            Self::Ublk(error) => return Some(device::ublk_remedy(error)),
            Self::NbdDevice(error) => return Some(device::nbd_device_remedy(error)),
            Self::Mount { source, .. } => return Some(device::mount_remedy(source)),
            Self::Loop(error) => return Some(device::loop_remedy(error)),
            _ => return None,
        };
        Some(remedy.into())
    }
}

/// Who refuses whom, or what else went wrong.
fn refused(options: &HostOptions, error: &AttachError) -> String {
    let HostOptions { address, nqn, host_nqn, .. } = options;
    match error {
        AttachError::Connect(ConnectError::HostNotAllowed { .. }) => {
            format!("{nqn} at {address} does not admit this host, {host_nqn}")
        }
        AttachError::Connect(ConnectError::InvalidParameter { parameter, .. })
            if *parameter == InvalidParameter::SUBNQN =>
        {
            format!("there is no subsystem {nqn} at {address}, or not for this host, {host_nqn}")
        }
        AttachError::Connect(ConnectError::Authentication { error, .. }) => {
            format!("{nqn} at {address} and this host, {host_nqn}, do not trust each other: {error}")
        }
        AttachError::Connect(ConnectError::Answered { doing: Doing::Command, refusal }) => {
            format!("{nqn} at {address} refuses it: {}", refusal.status)
        }
        _ => format!("cannot connect to {address}: {error}"),
    }
}

fn remedy_of_attach(options: &HostOptions, error: &AttachError) -> Option<String> {
    Some(match error {
        AttachError::One { .. } => {
            "each core takes a controller and connections of its own, of which the target may have a limit: fewer --cores"
                .into()
        }
        AttachError::Apart => "name one target by its own address, or --cores 1".into(),
        AttachError::Connect(ConnectError::HostNotAllowed { .. }) => format!(
            "have the target admit it (ironside-target serve --allow-host {}), or come as another host with -q",
            options.host_nqn
        ),
        AttachError::Connect(ConnectError::AuthenticationRequired) => {
            "give the secret which the target has for this host: --dhchap-secret-file FILE".into()
        }
        AttachError::Connect(ConnectError::Answered { doing: Doing::Command, refusal })
            if refusal.status.is(Status::RESERVATION_CONFLICT) =>
        {
            "ironside resv-report shows who is registered, with which key, and who holds the reservation".into()
        }
        AttachError::Connect(ConnectError::NotAuthenticated) => {
            "have the target ask this host for a key, or connect without --dhchap-ctrl-secret-file".into()
        }
        AttachError::Connect(ConnectError::Authentication { error: HostError::WrongController, .. }) => {
            "--dhchap-ctrl-secret-file has to hold what the target has as controller-key-file".into()
        }
        AttachError::Connect(ConnectError::Authentication { error: HostError::Refused(_), .. }) => {
            "--dhchap-secret-file has to hold what the target has as key-file for this host; its log may say more".into()
        }
        // A Linux target may hang up before its answer is out; so may a network break.
        AttachError::Connect(ConnectError::Broken { doing: Doing::AwaitVerdict(_), .. }) => {
            "if it does so again the two do not have the same key: --dhchap-secret-file has to hold what the target has for this host"
                .into()
        }
        AttachError::Connect(ConnectError::InvalidParameter { .. }) => {
            "ironside discover shows the subsystems this host may connect to".into()
        }
        AttachError::Connect(ConnectError::Refused { reason, .. }) if **reason == RejectReason::CrcRequired => {
            "connect with --crc peer or --crc on, or have the target do without (ironside-target serve --crc off)"
                .into()
        }
        _ if class_of_attach(error) == Class::Unreachable => {
            "check that the target runs, its address and port, and that no firewall is between".into()
        }
        _ => return None,
    })
}

fn class_of_attach(error: &AttachError) -> Class {
    let error = match error {
        AttachError::Connect(error) | AttachError::Neither { software: error, .. } => error,
        AttachError::Options(_) | AttachError::Provider(ProviderError::Mixed { .. }) => return Class::Usage,
        AttachError::Provider(ProviderError::NotOnTheWay { .. }) => return Class::Unreachable,
        AttachError::One { source, .. } => return class_of_attach(source),
        AttachError::Apart => return Class::Refused,
        _ => return Class::System,
    };
    match error {
        ConnectError::Refused { reason, .. } if **reason == RejectReason::CrcRequired => Class::Refused,
        ConnectError::Refused { .. }
        | ConnectError::TimedOut { .. }
        | ConnectError::Broken { .. }
        | ConnectError::GaveUp { .. } => Class::Unreachable,
        _ => Class::Refused,
    }
}

fn list<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

fn reasons(skipped: &[(u32, NamespaceError)]) -> String {
    skipped.iter().map(|(nsid, error)| format!("; {nsid}: {error}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Refusal;

    #[test]
    fn a_host_which_is_not_admitted_is_told_its_name() {
        let nqn = |name: &str| format!("nqn.2014-08.org.example:{name}").parse().unwrap();
        let address: Address = "192.0.2.1:4420".parse().unwrap();
        let options = Box::new(HostOptions::new(address, nqn("disk"), nqn("me"), uuid::Uuid::nil()));
        let refusal = Refusal { status: Status::CONNECT_INVALID_HOST, value: 0 };
        let source = AttachError::Connect(ConnectError::HostNotAllowed { refusal });
        let error = CliError::Attach { options, source };
        assert_eq!(
            error.to_string(),
            "nqn.2014-08.org.example:disk at 192.0.2.1:4420 does not admit this host, nqn.2014-08.org.example:me"
        );
        let remedy = error.remedy().unwrap();
        assert!(
            remedy.contains("--allow-host nqn.2014-08.org.example:me") && remedy.contains("-q"),
            "{remedy}"
        );
        assert_eq!(error.class(), Class::Refused);
    }
}
