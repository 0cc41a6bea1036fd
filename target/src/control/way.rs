//! Which listeners are served by RDMA adapters: what the configuration wants, held against what this machine has.
use std::net::SocketAddr;

use ironside_common::verbs::Address;

use super::config::{Config, Provider};

/// Why a listener cannot be served as the configuration wants.
#[derive(Debug, thiserror::Error)]
pub enum WayError {
    #[error(
        "{0} is no address of an RDMA adapter: name one which an adapter owns, or serve in software by provider `iwarp`"
    )]
    NoAdaptersAddress(Address),
    #[error(
        "no RDMA adapter owns {0}: `ironside-target devices` says what there is; provider `iwarp` needs none"
    )]
    NoAdapter(SocketAddr),
    #[error("{at} cannot be served by an RDMA adapter ({why}); provider `iwarp` needs none")]
    Unusable { at: SocketAddr, why: String },
}

/// The addresses which adapters serve.
///
/// # Errors
/// If an adapter is demanded which is not there, or cannot be used.
pub fn by_adapters(config: &Config) -> Result<Vec<Address>, WayError> {
    let mut addresses = Vec::new();
    for (at, provider) in config.subsystems.iter().flat_map(|subsystem| config.listeners_of(subsystem)) {
        if !addresses.contains(&at) && is_by_adapter(at, provider)? {
            addresses.push(at);
        }
    }
    Ok(addresses)
}

fn is_by_adapter(at: Address, provider: Provider) -> Result<bool, WayError> {
    let Some(at) = at.socket() else {
        return if provider == Provider::Ibv { Err(WayError::NoAdaptersAddress(at)) } else { Ok(false) };
    };
    let ip = at.ip().to_canonical();
    let is_adapters = !ip.is_loopback() && !ip.is_unspecified();
    match provider {
        Provider::Iwarp => Ok(false),
        Provider::Auto if !is_adapters => Ok(false),
        Provider::Auto => match adapter_at(at) {
            Ok(Some(name)) => {
                tracing::info!(%at, name, "served by an RDMA adapter");
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(why) => {
                tracing::info!(%at, "served in software, not by an RDMA adapter: {why}");
                Ok(false)
            }
        },
        Provider::Ibv if !is_adapters => Err(WayError::NoAdaptersAddress(at.into())),
        Provider::Ibv => match adapter_at(at) {
            Ok(found) => found.map(|_| true).ok_or(WayError::NoAdapter(at)),
            Err(why) => Err(WayError::Unusable { at, why }),
        },
    }
}

/// The name of the adapter which owns the address.
#[cfg(feature = "ibv")]
fn adapter_at(at: SocketAddr) -> Result<Option<String>, String> {
    ironside_common::provider::ibv::adapter_at(at).map_err(|error| error.to_string())
}

#[cfg(not(feature = "ibv"))]
fn adapter_at(_: SocketAddr) -> Result<Option<String>, String> {
    Err("this program was built without the feature `ibv`".into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn told(listen: &str) -> Result<Vec<Address>, String> {
        let text =
            format!("listen = [{listen:?}]\n[[subsystem]]\n[[subsystem.namespace]]\nnull = \"1MiB\"\n");
        by_adapters(&Config::parse(Path::new("target.toml"), &text).unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn loopback_and_wildcards_are_software_unless_an_adapter_is_demanded() {
        for at in ["127.0.0.1", "0.0.0.0", "[::]:4421", "::1"] {
            assert_eq!(told(at), Ok(Vec::new()));
            assert_eq!(told(&format!("{at},provider=iwarp")), Ok(Vec::new()));
            let refused = told(&format!("{at},provider=ibv")).unwrap_err();
            assert!(refused.contains("no address of an RDMA adapter"), "{refused}");
        }
    }

    #[test]
    fn an_adapter_that_is_demanded_and_not_there_is_missed() {
        // An address of documentation, which nothing owns.
        assert_eq!(told("192.0.2.1"), Ok(Vec::new()));
        let refused = told("192.0.2.1,provider=ibv").unwrap_err();
        assert!(refused.contains("192.0.2.1:4420") && refused.contains("`iwarp`"), "{refused}");
    }
}
