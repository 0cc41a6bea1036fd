//! What a new configuration changes while the old one is served: what is done, what has to wait for a restart, and
//! how it is told. It reads and opens; whoever serves takes the result over.
use std::fmt;
use std::net::SocketAddr;

use ironside_common::nvme::Nqn;

use super::config::{Config, ConfigError};
use super::prepare::{PrepareError, Served};
use crate::catalog::{Catalog, Namespace, Subsystem};

/// Why the old configuration goes on to be served.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
}

/// One difference between two versions.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    SubsystemAdded(Nqn),
    SubsystemRemoved(Nqn),
    NamespaceAdded(Nqn, u32),
    NamespaceRemoved(Nqn, u32),
    /// Another one stands under its number.
    NamespaceReplaced(Nqn, u32),
    /// Its size in bytes, before and now.
    NamespaceResized(Nqn, u32, u64, u64),
    /// Its medium was opened anew, or takes writes no more, or again.
    NamespaceReopened(Nqn, u32),
    HostsChanged(Nqn),
    ListenerAdded(SocketAddr),
    ListenerRemoved(SocketAddr),
}

/// What is to be served according to `config`, where `served` is served now. Says in the log what stays as it is
/// until a restart.
///
/// # Errors
/// If it cannot be served. Nothing has changed then.
pub fn plan(served: &Served, config: Config) -> Result<Served, PrepareError> {
    let mut config = config;
    for setting in keep_fixed(served, &mut config) {
        tracing::warn!("{setting} cannot be changed while it is served: it stays as it is until a restart");
    }
    served.next(config)
}

/// Sets back what is decided at the start, and names what was set back.
fn keep_fixed(served: &Served, config: &mut Config) -> Vec<String> {
    let now = &served.config;
    let mut kept = Vec::new();
    let mut keep = |is_changed: bool, name: &str| {
        if is_changed {
            kept.push(format!("`{name}`"));
        }
    };
    keep(config.reactors != now.reactors, "reactors");
    keep(config.queue_depth != now.queue_depth, "queue-depth");
    keep(config.crc != now.crc, "crc");
    keep(config.state_directory != now.state_directory, "state-dir");
    config.reactors = now.reactors;
    config.queue_depth = now.queue_depth;
    config.crc = now.crc;
    config.state_directory.clone_from(&now.state_directory);
    for subsystem in &mut config.subsystems {
        let Some(nqn) = subsystem.nqn else { continue };
        let Some(serial) = served.serial(&nqn) else { continue };
        if subsystem.serial.replace(serial).is_some_and(|said| said != serial) {
            kept.push(format!("`serial` of {nqn}"));
        }
    }
    kept
}

/// What differs between two versions, in the order of their names.
#[must_use]
pub fn changes(old: &Catalog, new: &Catalog) -> Vec<Change> {
    let mut changes = Vec::new();
    for subsystem in old.subsystems() {
        match new.subsystem(subsystem.nqn()) {
            Some(next) => between(subsystem, next, &mut changes),
            None => changes.push(Change::SubsystemRemoved(*subsystem.nqn())),
        }
    }
    let added = new.subsystems().iter().map(Subsystem::nqn).filter(|nqn| old.subsystem(nqn).is_none());
    changes.extend(added.map(|nqn| Change::SubsystemAdded(*nqn)));
    let listens = |catalog: &Catalog, at| catalog.listeners().iter().any(|listener| listener.address == at);
    let addresses = |catalog: &Catalog| -> Vec<SocketAddr> {
        catalog.listeners().iter().map(|listener| listener.address).collect()
    };
    let removed = addresses(old).into_iter().filter(|&at| !listens(new, at));
    changes.extend(removed.map(Change::ListenerRemoved));
    let added = addresses(new).into_iter().filter(|&at| !listens(old, at));
    changes.extend(added.map(Change::ListenerAdded));
    changes
}

fn between(old: &Subsystem, new: &Subsystem, changes: &mut Vec<Change>) {
    let nqn = *old.nqn();
    for namespace in old.namespaces() {
        match new.namespace(namespace.nsid) {
            Some(next) => changes.extend(of_namespace(nqn, namespace, next)),
            None => changes.push(Change::NamespaceRemoved(nqn, namespace.nsid)),
        }
    }
    let added = new.namespaces().iter().filter(|namespace| old.namespace(namespace.nsid).is_none());
    changes.extend(added.map(|namespace| Change::NamespaceAdded(nqn, namespace.nsid)));
    if old.hosts() != new.hosts() {
        changes.push(Change::HostsChanged(nqn));
    }
}

fn of_namespace(nqn: Nqn, old: &Namespace, new: &Namespace) -> Option<Change> {
    let bytes = |namespace: &Namespace| namespace.blocks << namespace.block_shift;
    if !old.is_same(new) {
        Some(Change::NamespaceReplaced(nqn, old.nsid))
    } else if old.blocks != new.blocks {
        Some(Change::NamespaceResized(nqn, old.nsid, bytes(old), bytes(new)))
    } else if old.medium.is(&new.medium) {
        None
    } else {
        Some(Change::NamespaceReopened(nqn, old.nsid))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SubsystemAdded(nqn) => write!(f, "+1 subsystem {nqn}"),
            Self::SubsystemRemoved(nqn) => write!(f, "-1 subsystem {nqn}"),
            Self::NamespaceAdded(nqn, nsid) => write!(f, "+1 namespace {nsid} of {nqn}"),
            Self::NamespaceRemoved(nqn, nsid) => write!(f, "-1 namespace {nsid} of {nqn}"),
            Self::NamespaceReplaced(nqn, nsid) => write!(f, "namespace {nsid} of {nqn} replaced by another"),
            Self::NamespaceResized(nqn, nsid, old, new) => {
                let verb = if old < new { "grown" } else { "shrunk" };
                write!(f, "namespace {nsid} of {nqn} {verb} from {old} to {new} bytes")
            }
            Self::NamespaceReopened(nqn, nsid) => write!(f, "namespace {nsid} of {nqn} opened anew"),
            Self::HostsChanged(nqn) => write!(f, "other hosts admitted to {nqn}"),
            Self::ListenerAdded(address) => write!(f, "+1 listener {address}"),
            Self::ListenerRemoved(address) => write!(f, "-1 listener {address}"),
        }
    }
}

/// All of it on one line.
#[must_use]
pub fn summary(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "nothing has changed".into();
    }
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
