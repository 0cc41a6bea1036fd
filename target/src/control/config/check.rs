//! What each value alone cannot know: whether they go together.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use ironside_common::nvme::Nqn;
use ironside_common::verbs::Address;

use super::{BDEVS_MAX, Backing, CNTLIDS_MIN, Config, Hosts, SUBSYSTEMS_MAX};
use crate::catalog::NSID_MAX;

/// Where in a configuration something does not fit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    Whole,
    Bdev(usize),
    Subsystem(usize),
    Namespace { subsystem: usize, namespace: usize },
}

/// Two things said which cannot both be, or one unsaid which must be.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Conflict {
    #[error("nothing to serve: give a subsystem with a namespace, or `control`, to make some meanwhile")]
    NoSubsystem,
    #[error("nothing to serve: the subsystem has no namespace")]
    NoNamespace,
    #[error("the subsystem is reached nowhere: leave `listen` out for where the target listens")]
    Unreachable,
    #[error("there are {0} bdevs, and {BDEVS_MAX} at most can be open")]
    TooManyBdevs(usize),
    #[error("there is a bdev `{0}` already")]
    SameName(String),
    #[error("bdev `{0}` is a namespace already: two would write over each other")]
    SameBdev(String),
    #[error("a bdev needs its `name`")]
    NoName,
    #[error("there is no bdev `{0}`: describe it as [[bdev]]")]
    NoBdev(String),
    #[error("`{0}` is the bdev's: say it there")]
    OfBdev(&'static str),
    #[error("there are {0} subsystems, and {SUBSYSTEMS_MAX} at most can be served")]
    TooMany(usize),
    #[error("a subsystem has {NSID_MAX} namespaces at most")]
    TooManyNamespaces,
    #[error("with more than one subsystem each needs an `nqn`")]
    Unnamed,
    #[error("there is a subsystem `{0}` already")]
    SameNqn(String),
    #[error("`nqn.2014-08.org.nvmexpress.discovery` is the discovery subsystem's own name")]
    DiscoveryNqn,
    #[error("the subsystem has a namespace {0} already")]
    SameNsid(u32),
    #[error("`{0}` is a namespace already: two would write over each other")]
    SameFile(String),
    #[error("{0} is to be served by two providers")]
    TwoProviders(Box<Address>),
    #[error("there is a namespace with UUID {0} already")]
    SameUuid(uuid::Uuid),
    #[error("a host is listed, and any host allowed: say one of them")]
    ListedAndAny,
    #[error("a host has to authenticate, and any host is allowed: it would get in without, by another name")]
    KeyAndAny,
    #[error("{0} has a key here already")]
    SameHost(String),
    #[error("a host that has to authenticate needs a `key-file`: `ironside gen-dhchap-key` makes one")]
    NoKeyFile,
    #[error("the limit limits nothing: say `iops`, `bandwidth`, `read-bandwidth` or `write-bandwidth`")]
    EmptyLimit,
    #[error("{0} has a limit here already")]
    LimitedTwice(String),
    #[error("a group needs its `state`: optimized, non-optimized, inaccessible, persistent-loss or change")]
    NoState,
    #[error("no namespace of the subsystem is of ANA group {0}: give it one by `ana-group`")]
    EmptyGroup(u32),
    #[error("the subsystem has no listener {0}: name it as `listen` of the subsystem does")]
    NoListener(Box<Address>),
    #[error("ANA group {0} has two states{at}", at = .1.as_ref().map(|at| format!(" at {at}")).unwrap_or_default())]
    TwoStates(u32, Option<Box<Address>>),
    #[error("`cntlid-min` to `cntlid-max` are {CNTLIDS_MIN} numbers at least")]
    FewControllers,
    #[error(
        "a subsystem with `cntlid-min` or `cntlid-max` is another target's too, and has to be the same there: give          its `nqn` and `serial`"
    )]
    SharedNames,
    #[error("another target serves the subsystem too: give the `uuid` which the namespace has there")]
    SharedUuid,
    #[error(
        "another target serves the subsystem too, and cannot see this memory: give a `path` both can open"
    )]
    SharedMemory,
}

impl Config {
    /// Whether all of it goes together.
    ///
    /// # Errors
    /// The first conflict, and where it lies.
    pub fn check(&self) -> Result<(), (Place, Conflict)> {
        let found = self.subsystems.len();
        if found == 0 && self.control.is_none() {
            return Err((Place::Whole, Conflict::NoSubsystem));
        }
        if found > SUBSYSTEMS_MAX {
            return Err((Place::Whole, Conflict::TooMany(found)));
        }
        self.check_bdevs()?;
        self.check_names()?;
        self.check_listeners()?;
        self.check_keys()?;
        self.check_access()?;
        self.check_shared()?;
        self.check_namespaces()
    }

    fn check_bdevs(&self) -> Result<(), (Place, Conflict)> {
        if self.bdevs.len() > BDEVS_MAX {
            return Err((Place::Whole, Conflict::TooManyBdevs(self.bdevs.len())));
        }
        let (mut names, mut uuids, mut files) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (index, bdev) in self.bdevs.iter().enumerate() {
            let refused = |conflict| Err((Place::Bdev(index), conflict));
            if !names.insert(&bdev.name) {
                return refused(Conflict::SameName(bdev.name.to_string()));
            }
            if let Some(uuid) = bdev.uuid.filter(|uuid| !uuids.insert(*uuid)) {
                return refused(Conflict::SameUuid(uuid));
            }
            if !is_new_file(&bdev.backing, &mut files) {
                return refused(Conflict::SameFile(bdev.backing.name()));
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), (Place, Conflict)> {
        let mut names = BTreeSet::new();
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            let refused = |conflict| Err((Place::Subsystem(index), conflict));
            match subsystem.nqn {
                None if self.subsystems.len() > 1 => return refused(Conflict::Unnamed),
                Some(nqn) if nqn.is_discovery() => return refused(Conflict::DiscoveryNqn),
                Some(nqn) if !names.insert(nqn) => return refused(Conflict::SameNqn(nqn.to_string())),
                _ => {}
            }
        }
        Ok(())
    }

    fn check_listeners(&self) -> Result<(), (Place, Conflict)> {
        let mut providers = BTreeMap::new();
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            let listeners = self.listeners_of(subsystem);
            if listeners.is_empty() && self.control.is_none() {
                return Err((Place::Subsystem(index), Conflict::Unreachable));
            }
            for (address, provider) in listeners {
                if *providers.entry(address).or_insert(provider) != provider {
                    return Err((Place::Subsystem(index), Conflict::TwoProviders(address.into())));
                }
            }
        }
        Ok(())
    }

    fn check_keys(&self) -> Result<(), (Place, Conflict)> {
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            let refused = |conflict| Err((Place::Subsystem(index), conflict));
            if subsystem.hosts == Hosts::Any && !subsystem.keys.is_empty() {
                return refused(Conflict::KeyAndAny);
            }
            let name =
                |nqn: Option<Nqn>| nqn.map_or_else(|| "this machine's host".into(), |nqn| nqn.to_string());
            let mut hosts = BTreeSet::new();
            if let Some(twice) = subsystem.keys.iter().find(|key| !hosts.insert(key.nqn)) {
                return refused(Conflict::SameHost(name(twice.nqn)));
            }
            hosts.clear();
            if let Some((twice, _)) = subsystem.host_limits.named.iter().find(|(nqn, _)| !hosts.insert(*nqn))
            {
                return refused(Conflict::LimitedTwice(name(*twice)));
            }
        }
        Ok(())
    }

    fn check_access(&self) -> Result<(), (Place, Conflict)> {
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            let refused = |conflict| Err((Place::Subsystem(index), conflict));
            let listeners = self.listeners_of(subsystem);
            let mut said = BTreeSet::new();
            for one in &subsystem.access {
                let is_empty = subsystem.namespaces.iter().all(|namespace| namespace.ana_group != one.group);
                // Namespaces may yet come.
                if is_empty && self.control.is_none() {
                    return refused(Conflict::EmptyGroup(one.group));
                }
                if let Some(listen) =
                    one.listen.filter(|at| listeners.iter().all(|(address, _)| address != at))
                {
                    return refused(Conflict::NoListener(listen.into()));
                }
                if !said.insert((one.group, one.listen)) {
                    return refused(Conflict::TwoStates(one.group, one.listen.map(Box::new)));
                }
            }
        }
        Ok(())
    }

    /// What two targets serve has to be the same to hosts, whichever they ask.
    fn check_shared(&self) -> Result<(), (Place, Conflict)> {
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            let Some(cntlids) = &subsystem.cntlids else { continue };
            if cntlids.clone().count() < CNTLIDS_MIN.into() {
                return Err((Place::Subsystem(index), Conflict::FewControllers));
            }
            if subsystem.nqn.is_none() || subsystem.serial.is_none() {
                return Err((Place::Subsystem(index), Conflict::SharedNames));
            }
            for (namespace, one) in subsystem.namespaces.iter().enumerate() {
                let refused = |conflict| Err((Place::Namespace { subsystem: index, namespace }, conflict));
                if matches!(one.backing, Backing::Ram { .. }) {
                    return refused(Conflict::SharedMemory);
                }
                if one.uuid.is_none() {
                    return refused(Conflict::SharedUuid);
                }
            }
        }
        Ok(())
    }

    fn check_namespaces(&self) -> Result<(), (Place, Conflict)> {
        let mut files = BTreeSet::new();
        for bdev in &self.bdevs {
            is_new_file(&bdev.backing, &mut files);
        }
        let (mut uuids, mut bdevs) = (BTreeSet::new(), BTreeSet::new());
        for (subsystem, of) in self.subsystems.iter().enumerate() {
            if of.namespaces.is_empty() && self.control.is_none() {
                return Err((Place::Subsystem(subsystem), Conflict::NoNamespace));
            }
            let mut numbers = BTreeSet::new();
            for (namespace, one) in of.namespaces.iter().enumerate() {
                let refused = |conflict| Err((Place::Namespace { subsystem, namespace }, conflict));
                if one.nsid > NSID_MAX {
                    return refused(Conflict::TooManyNamespaces);
                }
                if !numbers.insert(one.nsid) {
                    return refused(Conflict::SameNsid(one.nsid));
                }
                if let Some(uuid) = one.uuid.filter(|uuid| !uuids.insert(*uuid)) {
                    return refused(Conflict::SameUuid(uuid));
                }
                match &one.bdev {
                    Some(name) if bdevs.insert(name) => {}
                    Some(name) => return refused(Conflict::SameBdev(name.to_string())),
                    None if is_new_file(&one.backing, &mut files) => {}
                    None => return refused(Conflict::SameFile(one.backing.name())),
                }
            }
        }
        Ok(())
    }
}

/// Whether it is none of these files, of which it is one from now on. Two names of one file are one file, if it exists;
/// else the name itself is all there is.
fn is_new_file(backing: &Backing, files: &mut BTreeSet<PathBuf>) -> bool {
    let Backing::File { path, .. } = backing else { return true };
    files.insert(path.canonicalize().unwrap_or_else(|_| path.clone()))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("configuration"),
            Self::Bdev(bdev) => write!(f, "bdev {}", bdev + 1),
            Self::Subsystem(subsystem) => write!(f, "subsystem {}", subsystem + 1),
            Self::Namespace { subsystem, namespace } => {
                write!(f, "subsystem {}, namespace {}", subsystem + 1, namespace + 1)
            }
        }
    }
}
