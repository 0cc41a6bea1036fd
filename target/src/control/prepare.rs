//! From a configuration to a catalog: who everything is, the media opened, whom to admit.
use std::collections::HashSet;
use std::sync::Arc;

use ironside_common::auth::{Policy, Secret, SecretFileError};
use ironside_common::identity::{self, host_identity};
use ironside_common::nvme::Nqn;
use uuid::Uuid;

use super::config::{self, Backing, Config, Serial};
use super::identity::{Identity, IdentityError, Lent, bdev_key, namespace_key, settle};
use super::media::{self, MediaError, Opened};
use super::reservations::{self, ReservationsError};
use super::way::{self, WayError};
use crate::backend::{self, OpenMedium, WeakMedium};
use crate::catalog::{Catalog, CatalogError, Hosts, Key, Namespace, Subsystem};
use crate::throttle::HostLimits;

/// Why a configuration which is right cannot be served here.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Media(#[from] MediaError),
    #[error(transparent)]
    Reservations(#[from] ReservationsError),
    #[error("who this machine's own host is cannot be said; give --allow-host (allow-hosts in a file)")]
    Host(#[from] identity::IdentityError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Way(#[from] WayError),
    #[error(transparent)]
    Key(#[from] SecretFileError),
    #[error("`{0}` is a namespace already, under another name: two would write over each other")]
    SameMedium(String),
}

/// What is served, and what it was made from.
#[derive(Clone, Debug)]
pub struct Served {
    pub config: Config,
    pub catalog: Arc<Catalog>,
    identities: Vec<Identity>,
    /// What the configuration's bdevs are, open.
    bdevs: Vec<OpenBdev>,
    /// Media which are not served any more. Commands may keep them open for a while, and with them the lock.
    retired: Vec<WeakMedium>,
}

/// A bdev at work.
#[derive(Clone, Debug)]
pub struct OpenBdev {
    pub uuid: Uuid,
    pub medium: OpenMedium,
}

/// The first version of what `config` says.
///
/// # Errors
/// If an identity cannot be kept, or a medium not be opened.
pub fn prepare(config: Config) -> Result<Served, PrepareError> {
    assemble(config, None)
}

impl Served {
    /// The version after this one, of what `config` says. What both have keeps its identity and its medium.
    ///
    /// # Errors
    /// As [`prepare`]. Nothing has changed then.
    pub fn next(&self, config: Config) -> Result<Self, PrepareError> {
        assemble(config, Some(self))
    }

    /// The same with other sizes of its media.
    #[must_use]
    pub fn with_catalog(&self, catalog: Arc<Catalog>) -> Self {
        Self { catalog, ..self.clone() }
    }

    /// Each bdev, as it was described and as it is.
    pub fn bdevs(&self) -> impl Iterator<Item = (&config::Bdev, &OpenBdev)> {
        self.config.bdevs.iter().zip(&self.bdevs)
    }

    /// All that is open, served or not, each once.
    pub fn media(&self) -> impl Iterator<Item = &OpenMedium> {
        let served = self.namespaces().filter(|(_, said, _)| said.bdev.is_none());
        self.bdevs.iter().map(|bdev| &bdev.medium).chain(served.map(|(.., namespace)| &namespace.medium))
    }

    /// The name of the one subsystem which the configuration gives none.
    pub fn unnamed(&self) -> Option<Nqn> {
        let index = self.config.subsystems.iter().position(|subsystem| subsystem.nqn.is_none())?;
        Some(self.identities[index].nqn)
    }

    /// The serial number of a subsystem that is served.
    pub(super) fn serial(&self, nqn: &Nqn) -> Option<Serial> {
        self.identities.iter().find(|identity| identity.nqn == *nqn).map(|identity| identity.serial)
    }

    /// What the configuration says of a subsystem that is served.
    pub fn said(&self, nqn: &Nqn) -> Option<&config::Subsystem> {
        let mut subsystems = self.config.subsystems.iter().zip(&self.identities);
        subsystems.find(|(_, identity)| identity.nqn == *nqn).map(|(said, _)| said)
    }

    fn namespace(&self, nqn: &Nqn, nsid: u32) -> Option<&Namespace> {
        self.catalog.subsystem(nqn)?.namespace(nsid)
    }

    /// Each namespace of the configuration and of the catalog.
    pub fn namespaces(&self) -> impl Iterator<Item = (Nqn, &config::Namespace, &Namespace)> {
        self.config.subsystems.iter().zip(&self.identities).flat_map(move |(said, identity)| {
            let found = |one: &config::Namespace| self.namespace(&identity.nqn, one.nsid);
            said.namespaces.iter().filter_map(move |one| Some((identity.nqn, one, found(one)?)))
        })
    }

    fn lent(&self) -> Lent {
        let described = || self.namespaces().filter(|(_, said, _)| said.bdev.is_none());
        let memory = described().filter_map(|(nqn, said, namespace)| match said.backing {
            Backing::Ram { size } => Some(((nqn, said.nsid, size), namespace.uuid)),
            Backing::File { .. } | Backing::Null { .. } => None,
        });
        let kept = described().filter_map(|(nqn, said, namespace)| {
            let is_kept = said.uuid.is_none() && !matches!(said.backing, Backing::Ram { .. });
            is_kept.then(|| (namespace_key(&nqn, said), namespace.uuid))
        });
        let mut lent =
            Lent { nqn: self.unnamed(), memory: memory.collect(), kept: kept.collect(), ..Lent::default() };
        for (said, bdev) in self.bdevs().filter(|(said, _)| said.uuid.is_none()) {
            if let Backing::Ram { size } = said.backing {
                lent.bdevs.insert((said.name.clone(), size), bdev.uuid);
            } else {
                lent.kept.insert(bdev_key(said, &said.backing), bdev.uuid);
            }
        }
        lent
    }

    /// Files and devices that are open, served or not.
    fn opened(&self) -> Vec<Opened> {
        let bdevs = self.bdevs().map(|(said, bdev)| (&said.backing, &bdev.medium));
        let served = self.namespaces().map(|(_, said, namespace)| (&said.backing, &namespace.medium));
        let served = bdevs.chain(served).filter_map(|(backing, medium)| match backing {
            Backing::File { size, .. } => Some(Opened { medium: medium.clone(), wanted: *size }),
            Backing::Ram { .. } | Backing::Null { .. } => None,
        });
        let retired = self.retired.iter().filter_map(WeakMedium::upgrade);
        served.chain(retired.map(|medium| Opened { medium, wanted: None })).collect()
    }
}

fn assemble(config: Config, before: Option<&Served>) -> Result<Served, PrepareError> {
    if let Some(twice) = named_twice(&config) {
        return Err(PrepareError::SameMedium(twice));
    }
    let lent = before.map(Served::lent).unwrap_or_default();
    let identities = settle(&config, &lent)?;
    let opened = before.map(Served::opened).unwrap_or_default();
    let bdevs = open_bdevs(&config, &identities.bdevs, &opened, before)?;
    let identities = identities.subsystems;
    let mut subsystems = Vec::new();
    for (said, identity) in config.subsystems.iter().zip(&identities) {
        let open = |one: &config::Namespace| {
            let mut known = config.bdevs.iter().zip(&bdevs);
            if let Some((_, bdev)) = known.find(|(said, _)| one.bdev.as_ref() == Some(&said.name)) {
                return Ok(bdev.medium.clone());
            }
            let same = |(nqn, was, _): &(Nqn, &config::Namespace, &Namespace)| {
                (*nqn, was.nsid, &was.backing) == (identity.nqn, one.nsid, &one.backing)
            };
            let memory = before.and_then(|before| before.namespaces().find(same));
            let memory = memory.map(|(.., namespace)| &namespace.medium);
            media::open(one, said.cntlids.is_some(), &opened, memory, config.huge_pages)
        };
        let media = said.namespaces.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        subsystems.push(subsystem(&config, said, identity, media)?);
    }
    let catalog = Catalog::new(before.map_or(1, |before| before.catalog.version() + 1), subsystems)?;
    let catalog = catalog.with_adapters(&way::by_adapters(&config)?).with_limits(config.limits);
    let mut served = Served { config, catalog: Arc::new(catalog), identities, bdevs, retired: Vec::new() };
    served.retired = before.map(|before| before.retired_by(&served)).unwrap_or_default();
    Ok(served)
}

/// Opens bdevs, but for those which are open already.
fn open_bdevs(
    config: &Config,
    uuids: &[Uuid],
    opened: &[Opened],
    before: Option<&Served>,
) -> Result<Vec<OpenBdev>, MediaError> {
    let one = |(said, uuid): (&config::Bdev, &Uuid)| {
        let same =
            |(was, _): &(&config::Bdev, &OpenBdev)| (&was.name, &was.backing) == (&said.name, &said.backing);
        let memory = before.and_then(|before| before.bdevs().find(same)).map(|(_, bdev)| &bdev.medium);
        let user = |one: &config::Namespace| one.bdev.as_ref() == Some(&said.name);
        let shared = |one: &config::Subsystem| one.cntlids.is_some() && one.namespaces.iter().any(user);
        let shared = config.subsystems.iter().any(shared);
        let medium = media::open(&said.as_namespace(0), shared, opened, memory, config.huge_pages)?;
        Ok(OpenBdev { uuid: *uuid, medium })
    };
    config.bdevs.iter().zip(uuids).map(one).collect()
}

/// What is one file or device under two names, such as hard links or nodes of one device, which the configuration
/// alone cannot tell.
fn named_twice(config: &Config) -> Option<String> {
    let mut known = HashSet::new();
    let mut is_known = |backing: &&Backing| match backing {
        // One that is missing is told of, or made, where it is opened.
        Backing::File { path, .. } => backend::Identity::of(path).is_ok_and(|file| !known.insert(file)),
        Backing::Ram { .. } | Backing::Null { .. } => false,
    };
    config.backings().filter(|backing| is_known(backing)).map(Backing::name).next()
}

impl Served {
    /// Media which are still open, though this version does not name them.
    fn retired_by(&self, next: &Self) -> Vec<WeakMedium> {
        let open = self.retired.iter().filter_map(WeakMedium::upgrade).chain(self.media().cloned());
        let unserved = open.filter(|medium| next.media().all(|served| !served.is(medium)));
        unserved.map(|medium| medium.downgrade()).collect()
    }
}

fn subsystem(
    config: &Config,
    said: &config::Subsystem,
    identity: &Identity,
    media: Vec<OpenMedium>,
) -> Result<Subsystem, PrepareError> {
    let listen = config.listeners_of(said).into_iter().map(|(address, _)| address).collect();
    let directory = config.state_directory.clone().or_else(identity::state_directory);
    let namespaces = said.namespaces.iter();
    let namespaces = namespaces
        .zip(&identity.uuids)
        .zip(media)
        .map(|((said, uuid), medium)| {
            let directory = directory.as_deref().filter(|_| medium.outlasts_power_loss());
            let kept = directory.map(|directory| reservations::load(directory, *uuid)).transpose()?.flatten();
            let kept = kept.map(Arc::new);
            let seen_by = said.hosts.clone().map_or(Hosts::Any, Hosts::Listed);
            let (ana_group, limit) = (said.ana_group, said.limit);
            let whole = Namespace::whole(said.nsid, *uuid, medium);
            Ok(Namespace { kept, hosts: seen_by, ana_group, limit, ..whole })
        })
        .collect::<Result<_, ReservationsError>>()?;
    let keys = said.keys.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    let limits = host_limits(&said.host_limits)?;
    let named = keys.iter().map(|key| key.host).chain(limits.named.iter().map(|(host, _)| *host));
    let hosts = hosts(&said.hosts, &named.collect::<Vec<_>>(), &identity.nqn)?;
    let subsystem = Subsystem::new(identity.nqn, identity.serial.as_str(), hosts, listen, namespaces)?;
    let subsystem = subsystem.with_keys(keys).with_host_limits(limits).with_access(said.access.clone());
    Ok(match said.cntlids.clone() {
        Some(cntlids) => subsystem.shared(cntlids),
        None => subsystem,
    })
}

/// What a host has to prove, with the secrets read anew.
fn key(said: &config::HostKey) -> Result<Key, PrepareError> {
    let host = match said.nqn {
        Some(nqn) => nqn,
        None => host_identity()?.nqn,
    };
    let controller = said.controller_key_file.as_deref().map(Secret::read).transpose()?;
    let (hashes, groups) = (said.hashes.clone(), said.groups.clone());
    let policy = Policy { host: Secret::read(&said.key_file)?, controller, hashes, groups };
    Ok(Key { host, policy: Arc::new(policy), disconnect_on_change: said.disconnect_on_change })
}

/// Limits of hosts by their names.
fn host_limits(said: &config::HostLimits) -> Result<HostLimits, PrepareError> {
    let named = said.named.iter().map(|&(nqn, limit)| {
        let host = nqn.map_or_else(|| host_identity().map(|host| host.nqn), Ok)?;
        Ok((host, limit))
    });
    Ok(HostLimits { each: said.each, named: named.collect::<Result<_, PrepareError>>()? })
}

/// Whoever is named, with a key or a limit, is admitted.
fn hosts(said: &config::Hosts, named: &[Nqn], subsystem: &Nqn) -> Result<Hosts, PrepareError> {
    let with_named = |hosts: &[Nqn]| {
        let mut all = hosts.to_vec();
        let added = named.iter().filter(|host| !hosts.contains(host));
        all.extend(added);
        all[hosts.len()..].sort_unstable();
        all.dedup();
        Hosts::Listed(all)
    };
    Ok(match said {
        config::Hosts::ThisMachine if named.is_empty() => Hosts::Listed(vec![host_identity()?.nqn]),
        config::Hosts::ThisMachine => with_named(&[]),
        config::Hosts::Listed(hosts) => with_named(hosts),
        config::Hosts::Any => {
            tracing::warn!("{subsystem} admits every host that reaches a listener");
            Hosts::Any
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_catalog_says_what_the_configuration_said() {
        let state = tempfile::tempdir().unwrap();
        let text = format!(
            "state-dir = {:?}\nlisten = [\"127.0.0.1\"]\n\
             [[subsystem]]\nnqn = \"nqn.2014-08.org.example:a\"\nallow-hosts = [\"nqn.2014-08.org.example:h\"]\n\
             namespace = [{{ ram = \"1MiB\" }}, {{ nsid = 7, null = \"1GiB\", lba = 512 }}]\n\
             [[subsystem]]\nnqn = \"nqn.2014-08.org.example:b\"\nallow-any-host = true\nlisten = [\"::1\"]\n\
             serial = \"B\"\nnamespace = [{{ ram = \"1MiB\" }}]\n",
            state.path()
        );
        let catalog = prepare(Config::parse(Path::new("target.toml"), &text).unwrap()).unwrap().catalog;
        let nqn = |name: &str| -> Nqn { format!("nqn.2014-08.org.example:{name}").parse().unwrap() };
        let (a, b) = (catalog.subsystem(&nqn("a")).unwrap(), catalog.subsystem(&nqn("b")).unwrap());
        assert!(a.allows(&nqn("h")) && !a.allows(&nqn("other")) && b.allows(&nqn("other")));
        assert!(a.listens_at("127.0.0.1:4420".parse().unwrap()));
        assert!(b.listens_at("[::1]:4420".parse().unwrap()) && b.serial() == "B");
        let seven = a.namespace(7).unwrap();
        assert_eq!((seven.block_shift, seven.blocks), (9, 1 << 21));
        assert_eq!(a.namespace(1).unwrap().blocks, 256);
    }
}
