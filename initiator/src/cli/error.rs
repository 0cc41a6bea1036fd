//! What may go wrong with a command, who can do something about it, and what.
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitStatus;

use ironside_common::identity::IdentityError;
use serde::{Deserialize, Serialize};

use super::attachment::DirectoryError;
use crate::attach::{AttachError, ExportError};
use crate::export::loop_device::LoopError;
use crate::export::usage::Use;
use crate::host::{ConnectError, NamespaceError, OptionsError};

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
    #[error("cannot find the address {traddr}: {source}")]
    Address { traddr: String, source: io::Error },
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("cannot connect to {address}: {source}")]
    Attach { address: SocketAddr, source: AttachError },
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
    #[error("{name} could not be detached: {message}")]
    NotDetached { name: String, message: String },
    #[error("cannot mount a FUSE file system at {}: {source}", path.display())]
    Mount { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Loop(#[from] LoopError),
    #[error("cannot serve NBD at {}: {source}", path.display())]
    Nbd { path: PathBuf, source: io::Error },
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl CliError {
    /// Whose turn it is.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Address { .. } => Class::Unreachable,
            Self::Identity(_) | Self::Options(_) | Self::WhichNamespace { .. } => Class::Usage,
            Self::Attach { source, .. } => class_of_attach(source),
            Self::NoNamespace { .. } | Self::NoSuchNamespace { .. } => Class::Refused,
            Self::AttachedAlready { .. } | Self::InUse { .. } => Class::InUse,
            Self::NoSuchAttachment(_) => Class::Unknown,
            Self::Reported { class, .. } => *class,
            Self::Silent { .. }
            | Self::Stuck { .. }
            | Self::NoAnswer { .. }
            | Self::NotDetached { .. }
            | Self::Export(_)
            | Self::Write { .. } => Class::Failed,
            Self::Directory(_)
            | Self::Mount { .. }
            | Self::Loop(_)
            | Self::Nbd { .. }
            | Self::System { .. } => Class::System,
        }
    }

    /// What to do about it, where that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::Reported { remedy, .. } => return remedy.clone(),
            Self::Attach { source: AttachError::Connect(ConnectError::HostNotAllowed { .. }), .. } => {
                "have the target admit the NQN of this host: ironside-target serve --allow-host NQN"
            }
            Self::Attach { source: AttachError::Connect(ConnectError::InvalidParameter { .. }), .. } => {
                "ironside discover shows the subsystems this host may connect to"
            }
            Self::Attach { source, .. } if class_of_attach(source) == Class::Unreachable => {
                "check that the target runs, its address and port, and that no firewall is between"
            }
            Self::AttachedAlready { .. } => "use that, or attach it twice with --duplicate-connect",
            Self::NoSuchAttachment(_) => "ironside list shows what is attached",
            Self::InUse { .. } => {
                "let go of it first (umount, swapoff), or use --force and lose what is unwritten"
            }
            Self::Stuck { .. } | Self::NoAnswer { .. } => "--force ends the attach process whatever it does",
            Self::Mount { .. } => "FUSE takes /dev/fuse, and root or fusermount3; --via nbd does without",
            Self::Loop(_) => "loop devices take root and the loop driver; --via nbd does without",
            _ => return None,
        };
        Some(remedy.into())
    }
}

fn class_of_attach(error: &AttachError) -> Class {
    let error = match error {
        AttachError::Connect(error) => error,
        AttachError::Options(_) => return Class::Usage,
        _ => return Class::System,
    };
    match error {
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
