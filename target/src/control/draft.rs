//! A configuration which is being changed: the text an operator wrote, with his comments, and what is to be different.
//! Whoever changes it does not touch the rest; and after each change it is read again, so that it is never wrong.
mod node;

use std::path::{Path, PathBuf};

use ironside_common::nvme::Nqn;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::verbs::Address;
use toml_edit::{DocumentMut, InlineTable, TableLike, Value};

use self::node::{Node, keep_list};
use super::config::{BdevName, Config, ConfigError, Namespace, Problem, Subsystem};
use crate::throttle::Limit;

/// Why a configuration is not changed.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    #[error("there is no subsystem {0}")]
    NoSubsystem(Box<Nqn>),
    #[error("subsystem {0} is there already")]
    SubsystemThere(Box<Nqn>),
    #[error("subsystem {0} has no namespace {1}")]
    NoNamespace(Box<Nqn>, u32),
    #[error("subsystem {0} has a namespace {1} already")]
    NamespaceThere(Box<Nqn>, u32),
    #[error("subsystem {0} has no number left for a namespace")]
    NoNumberLeft(Box<Nqn>),
    #[error("there is no bdev {0}")]
    NoBdev(String),
    #[error("bdev {0} is there already")]
    BdevThere(String),
    /// It would not be right any more.
    #[error("{}", .0.problem)]
    Config(#[from] ConfigError),
}

/// Keys and their values, for a new table.
pub type Entries = Vec<(&'static str, Value)>;

/// A configuration file about to be another.
#[derive(Clone, Debug)]
pub struct Draft {
    path: PathBuf,
    document: DocumentMut,
    config: Config,
    /// Who the one subsystem is which the file does not name.
    unnamed: Option<Nqn>,
}

impl Draft {
    /// What `text` of `path` says, where the subsystem it does not name is `unnamed`.
    ///
    /// # Errors
    /// If it is not right.
    pub fn new(path: &Path, text: &str, unnamed: Option<Nqn>) -> Result<Self, ConfigError> {
        let config = Config::parse(path, text)?;
        // Another reader of the same text: should it ever not agree, nothing is changed.
        let document = text.parse().map_err(|error: toml_edit::TomlError| {
            ConfigError::unreadable(path, Problem::Syntax(error.message().to_owned()))
        })?;
        Ok(Self { path: path.to_owned(), document, config, unnamed })
    }

    /// What it says now.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    pub fn into_parts(self) -> (String, Config) {
        (self.document.to_string(), self.config)
    }

    /// The subsystem of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn subsystem(&self, nqn: &Nqn) -> Result<&Subsystem, DraftError> {
        Ok(&self.config.subsystems[self.index_of(nqn)?])
    }

    /// A namespace of a subsystem.
    ///
    /// # Errors
    /// If there is none.
    pub fn namespace(&self, nqn: &Nqn, nsid: u32) -> Result<&Namespace, DraftError> {
        let found = self.subsystem(nqn)?.namespaces.iter().find(|one| one.nsid == nsid);
        found.ok_or_else(|| DraftError::NoNamespace(Box::new(*nqn), nsid))
    }

    /// Adds a bdev.
    ///
    /// # Errors
    /// If there is one of that name, or the configuration would not be right.
    pub fn add_bdev(&mut self, name: &BdevName, entries: Entries) -> Result<(), DraftError> {
        if self.config.bdevs.iter().any(|bdev| bdev.name == *name) {
            return Err(DraftError::BdevThere(name.to_string()));
        }
        let all = [("name", name.as_str().into())].into_iter().chain(entries).collect();
        self.edit(|root| root.push("bdev", all))
    }

    /// Removes a bdev, and the namespace which is made of it.
    ///
    /// # Errors
    /// If there is no such bdev.
    pub fn remove_bdev(&mut self, name: &str) -> Result<(), DraftError> {
        let index = self.bdev_index(name)?;
        let is_of = |one: &&Namespace| one.bdev.as_ref().is_some_and(|bdev| bdev.as_str() == name);
        let mut subsystems = self.config.subsystems.iter();
        let user =
            subsystems.find_map(|one| Some((self.name_of(one)?, one.namespaces.iter().find(is_of)?.nsid)));
        if let Some((nqn, nsid)) = user {
            self.remove_namespace(&nqn, nsid)?;
        }
        self.edit(|root| root.remove("bdev", index))
    }

    /// Limits what all hosts may ask of a bdev.
    ///
    /// # Errors
    /// If there is no such bdev, or no such limit.
    pub fn limit_bdev(&mut self, name: &str, limit: &Limit) -> Result<(), DraftError> {
        let index = self.bdev_index(name)?;
        self.edit(|root| set_limit(root.child("bdev", index).like(), limit))
    }

    /// As [`Self::limit_bdev`], of a namespace which is described where it is.
    ///
    /// # Errors
    /// If there is no such namespace, or no such limit.
    pub fn limit_namespace(&mut self, nqn: &Nqn, nsid: u32, limit: &Limit) -> Result<(), DraftError> {
        self.edit_namespace(nqn, nsid, |table| set_limit(table, limit))
    }

    /// Adds a subsystem.
    ///
    /// # Errors
    /// If there is one of that name, or the configuration would not be right.
    pub fn add_subsystem(&mut self, nqn: &Nqn, entries: Entries) -> Result<(), DraftError> {
        if self.index_of(nqn).is_ok() {
            return Err(DraftError::SubsystemThere(Box::new(*nqn)));
        }
        let all = [("nqn", nqn.as_str().into())].into_iter().chain(entries).collect();
        let unnamed = self.config.subsystems.iter().position(|one| one.nqn.is_none()).zip(self.unnamed);
        self.edit(|root| {
            // With a second one each needs its name.
            if let Some((index, nqn)) = unnamed {
                root.child("subsystem", index).like().insert("nqn", toml_edit::value(nqn.as_str()));
            }
            root.push("subsystem", all);
        })
    }

    /// Removes a subsystem, with its namespaces but not what they are made of.
    ///
    /// # Errors
    /// If there is none.
    pub fn remove_subsystem(&mut self, nqn: &Nqn) -> Result<(), DraftError> {
        let index = self.index_of(nqn)?;
        self.edit(|root| root.remove("subsystem", index))
    }

    /// Adds a namespace, under the lowest number there is unless one is given. Says which.
    ///
    /// # Errors
    /// If the number is taken, or the configuration would not be right.
    pub fn add_namespace(
        &mut self,
        nqn: &Nqn,
        nsid: Option<u32>,
        entries: Entries,
    ) -> Result<u32, DraftError> {
        let index = self.index_of(nqn)?;
        let namespaces = &self.config.subsystems[index].namespaces;
        let is_free = |number: &u32| namespaces.iter().all(|one| one.nsid != *number);
        let nsid = match nsid {
            Some(nsid) if !is_free(&nsid) => return Err(DraftError::NamespaceThere(Box::new(*nqn), nsid)),
            Some(nsid) => nsid,
            None => {
                let mut all = 1..=crate::catalog::NSID_MAX;
                all.find(is_free).ok_or_else(|| DraftError::NoNumberLeft(Box::new(*nqn)))?
            }
        };
        let all = [("nsid", i64::from(nsid).into())].into_iter().chain(entries).collect();
        self.edit(|root| root.child("subsystem", index).push("namespace", all))?;
        Ok(nsid)
    }

    /// Removes a namespace, but not the bdev it is made of.
    ///
    /// # Errors
    /// If there is none.
    pub fn remove_namespace(&mut self, nqn: &Nqn, nsid: u32) -> Result<(), DraftError> {
        let (index, at) = self.place_of(nqn, nsid)?;
        // One which takes the number after its predecessor's is to keep its own.
        let next = self.config.subsystems[index].namespaces.get(at + 1).map(|one| one.nsid);
        self.edit(|root| {
            let mut subsystem = root.child("subsystem", index);
            if let Some(nsid) = next {
                let mut follower = subsystem.child("namespace", at + 1);
                if follower.like().get("nsid").is_none() {
                    follower.like().insert("nsid", toml_edit::value(i64::from(nsid)));
                }
            }
            subsystem.remove("namespace", at);
        })
    }

    /// Has these hosts see a namespace, or all which the subsystem admits.
    ///
    /// # Errors
    /// If there is no such namespace.
    pub fn show_namespace(&mut self, nqn: &Nqn, nsid: u32, hosts: Option<&[Nqn]>) -> Result<(), DraftError> {
        self.edit_namespace(nqn, nsid, |table| match hosts {
            Some(hosts) => keep_list(table, "allow-hosts", hosts),
            None => drop(table.remove("allow-hosts")),
        })
    }

    /// Makes a namespace one of this group.
    ///
    /// # Errors
    /// If there is no such namespace.
    pub fn group_namespace(&mut self, nqn: &Nqn, nsid: u32, group: u32) -> Result<(), DraftError> {
        self.edit_namespace(nqn, nsid, |table| {
            table.insert("ana-group", toml_edit::value(i64::from(group)));
        })
    }

    /// Admits these hosts, beside those which have to authenticate; or any.
    ///
    /// # Errors
    /// If there is no such subsystem, or some host has to authenticate and any would be admitted.
    pub fn admit(&mut self, nqn: &Nqn, hosts: Option<&[Nqn]>) -> Result<(), DraftError> {
        self.edit_subsystem(nqn, |mut subsystem| match hosts {
            Some(hosts) => {
                subsystem.like().remove("allow-any-host");
                keep_list(subsystem.like(), "allow-hosts", hosts);
            }
            None => {
                subsystem.like().remove("allow-hosts");
                subsystem.like().insert("allow-any-host", toml_edit::value(true));
            }
        })
    }

    /// Forgets all that is said of a host: its key, its limit, and which namespaces it sees. Those for it alone are for
    /// nobody then, which is refused.
    ///
    /// # Errors
    /// If there is no such subsystem, or the configuration would not be right.
    pub fn forget_host(&mut self, nqn: &Nqn, host: &Nqn) -> Result<(), DraftError> {
        let namespaces = self.subsystem(nqn)?.namespaces.clone();
        self.edit_subsystem(nqn, |mut subsystem| {
            let is_its = |table: &dyn TableLike| {
                table.get("nqn").and_then(|name| name.as_str()) == Some(host.as_str())
            };
            subsystem.retain("host", |table| !is_its(table));
            for (at, namespace) in namespaces.iter().enumerate() {
                let Some(seen_by) = namespace.hosts.as_ref().filter(|hosts| hosts.contains(host)) else {
                    continue;
                };
                let others: Vec<Nqn> = seen_by.iter().copied().filter(|one| one != host).collect();
                keep_list(subsystem.child("namespace", at).like(), "allow-hosts", &others);
            }
        })
    }

    /// Has a subsystem reached at these listeners, written as in a file.
    ///
    /// # Errors
    /// If there is no such subsystem, or the configuration would not be right.
    pub fn listen(&mut self, nqn: &Nqn, listeners: &[String]) -> Result<(), DraftError> {
        self.edit_subsystem(nqn, |mut subsystem| keep_list(subsystem.like(), "listen", listeners))
    }

    /// Sets the state of a group of namespaces at a listener; `None`: nothing is to be said of it.
    ///
    /// # Errors
    /// If there is no such subsystem or listener.
    pub fn set_access(
        &mut self,
        nqn: &Nqn,
        (listen, group): (Address, u32),
        state: Option<AnaState>,
    ) -> Result<(), DraftError> {
        let said = &self.subsystem(nqn)?.access;
        let at = said.iter().position(|one| (one.listen, one.group) == (Some(listen), group));
        let word = state.map(|state| state.to_string().replace(' ', "-"));
        self.edit_subsystem(nqn, |mut subsystem| match (at, word) {
            (Some(at), Some(word)) => {
                subsystem.child("ana", at).like().insert("state", toml_edit::value(word));
            }
            (Some(at), None) => subsystem.remove("ana", at),
            (None, Some(word)) => {
                let group = ("group", i64::from(group).into());
                let listen = ("listen", listen.to_string().into());
                subsystem.push("ana", vec![listen, group, ("state", word.into())]);
            }
            (None, None) => {}
        })
    }

    fn edit_subsystem(&mut self, nqn: &Nqn, change: impl FnOnce(Node<'_>)) -> Result<(), DraftError> {
        let index = self.index_of(nqn)?;
        self.edit(|root| change(root.child("subsystem", index)))
    }

    fn edit_namespace(
        &mut self,
        nqn: &Nqn,
        nsid: u32,
        change: impl FnOnce(&mut dyn TableLike),
    ) -> Result<(), DraftError> {
        let (index, at) = self.place_of(nqn, nsid)?;
        self.edit(|root| change(root.child("subsystem", index).child("namespace", at).like()))
    }

    /// Changes the text; if it is not right then, it stays as it was.
    fn edit(&mut self, change: impl FnOnce(&mut Node<'_>)) -> Result<(), DraftError> {
        let mut document = self.document.clone();
        change(&mut Node::Table(document.as_table_mut()));
        self.config = Config::parse(&self.path, &document.to_string())?;
        self.document = document;
        Ok(())
    }

    fn name_of(&self, subsystem: &Subsystem) -> Option<Nqn> {
        subsystem.nqn.or(self.unnamed)
    }

    fn index_of(&self, nqn: &Nqn) -> Result<usize, DraftError> {
        let is_it = |one: &Subsystem| self.name_of(one) == Some(*nqn);
        self.config.subsystems.iter().position(is_it).ok_or_else(|| DraftError::NoSubsystem(Box::new(*nqn)))
    }

    fn place_of(&self, nqn: &Nqn, nsid: u32) -> Result<(usize, usize), DraftError> {
        let index = self.index_of(nqn)?;
        let at = self.config.subsystems[index].namespaces.iter().position(|one| one.nsid == nsid);
        Ok((index, at.ok_or_else(|| DraftError::NoNamespace(Box::new(*nqn), nsid))?))
    }

    fn bdev_index(&self, name: &str) -> Result<usize, DraftError> {
        let found = self.config.bdevs.iter().position(|bdev| bdev.name.as_str() == name);
        found.ok_or_else(|| DraftError::NoBdev(name.to_owned()))
    }
}

fn set_limit(table: &mut dyn TableLike, limit: &Limit) {
    match limit.is_any() {
        true => table.insert("limit", toml_edit::value(limit_entries(limit))),
        false => table.remove("limit"),
    };
}

/// A limit as a file has it.
pub(super) fn limit_entries(limit: &Limit) -> InlineTable {
    let mut table = InlineTable::new();
    let number = |value: u64| Value::from(i64::try_from(value).unwrap_or(i64::MAX));
    if let Some(iops) = limit.iops {
        table.insert("iops", number(iops.get()));
    }
    let rates = [
        ("bandwidth", limit.bandwidth),
        ("read-bandwidth", limit.read_bandwidth),
        ("write-bandwidth", limit.write_bandwidth),
    ];
    for (key, rate) in rates {
        if let Some(rate) = rate {
            table.insert(key, size(rate.get()));
        }
    }
    if limit.burst_ms != Limit::BURST_MS_DEFAULT {
        table.insert("burst", format!("{}ms", limit.burst_ms).into());
    }
    table
}

/// Bytes as people write them, where they are whole; else their number.
pub(crate) fn size(bytes: u64) -> Value {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = |(shift, _): &&(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match UNITS.iter().find(whole) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift).into(),
        None => i64::try_from(bytes).unwrap_or(i64::MAX).into(),
    }
}

#[cfg(test)]
mod tests;
