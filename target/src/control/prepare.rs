//! From a configuration to a catalog: who everything is, the media opened, whom to admit.
use ironside_common::identity::{self, host_identity};
use ironside_common::nvme::Nqn;

use super::config::{self, Config};
use super::identity::{Identity, IdentityError, settle};
use super::media::{self, MediaError};
use crate::backend::OpenMedium;
use crate::catalog::{Catalog, CatalogError, Hosts, Namespace, Subsystem};

/// Why a configuration which is right cannot be served here.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Media(#[from] MediaError),
    #[error("who this machine's own host is cannot be said; give --allow-host (allow-hosts in a file)")]
    Host(#[from] identity::IdentityError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// The first version of the catalog of `config`.
///
/// # Errors
/// If an identity cannot be kept, or a medium not be opened.
pub fn prepare(config: &Config) -> Result<Catalog, PrepareError> {
    let identities = settle(config)?;
    let media = media::open(config)?;
    let parts = config.subsystems.iter().zip(identities).zip(media);
    let subsystems = parts.map(|((said, identity), media)| subsystem(config, said, &identity, media));
    Ok(Catalog::new(1, subsystems.collect::<Result<_, _>>()?)?)
}

fn subsystem(
    config: &Config,
    said: &config::Subsystem,
    identity: &Identity,
    media: Vec<OpenMedium>,
) -> Result<Subsystem, PrepareError> {
    let listen = if said.listen.is_empty() { &config.listen } else { &said.listen };
    let numbers = said.namespaces.iter().map(|namespace| namespace.nsid);
    let namespaces = numbers
        .zip(&identity.uuids)
        .zip(media)
        .map(|((nsid, uuid), medium)| Namespace::whole(nsid, *uuid, medium))
        .collect();
    let hosts = hosts(&said.hosts, &identity.nqn)?;
    Ok(Subsystem::new(identity.nqn, identity.serial.as_str(), hosts, listen.clone(), namespaces)?)
}

fn hosts(said: &config::Hosts, subsystem: &Nqn) -> Result<Hosts, PrepareError> {
    Ok(match said {
        config::Hosts::ThisMachine => Hosts::Listed(vec![host_identity()?.nqn]),
        config::Hosts::Listed(hosts) => Hosts::Listed(hosts.clone()),
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
        let catalog = prepare(&Config::parse(Path::new("target.toml"), &text).unwrap()).unwrap();
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
