//! Which provider carries an attachment, as a user asks for it, held against what this machine has.
use std::net::SocketAddr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::route::Route;

/// What carries the connections.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The RDMA adapter which owns the way to the target, if there is one, else software
    #[default]
    Auto,
    /// An RDMA adapter, by libibverbs: InfiniBand, RoCE or iWARP
    Ibv,
    /// Software RDMA in this process: iWARP over TCP
    Iwarp,
}

/// Why the provider asked for cannot be had.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ProviderError {
    #[error("no RDMA adapter can be used ({0}); --provider iwarp needs none")]
    Unusable(String),
    #[error(
        "no RDMA adapter owns {interface}, which leads to {to}; ironside-target devices says which there are, and --provider iwarp needs none"
    )]
    NotOnTheWay { interface: String, to: SocketAddr },
}

impl Provider {
    /// Whether connections to an address go by an adapter.
    ///
    /// # Errors
    /// If one is demanded, and there is none on the way.
    pub fn by_adapter(self, to: SocketAddr) -> Result<bool, ProviderError> {
        match self {
            Self::Iwarp => Ok(false),
            Self::Auto => {
                let found = adapter(to);
                match &found {
                    Ok(name) => tracing::info!(%to, name, "by an RDMA adapter"),
                    Err(why) => tracing::debug!(%to, %why, "by software RDMA"),
                }
                Ok(found.is_ok())
            }
            Self::Ibv => adapter(to).map(|_| true),
        }
    }
}

/// The name of the adapter on the way to an address.
#[cfg(feature = "ibv")]
fn adapter(to: SocketAddr) -> Result<String, ProviderError> {
    use ironside_common::provider::ibv;

    let unusable = |why: String| ProviderError::Unusable(why);
    ibv::check_connection_management().map_err(unusable)?;
    let Route { interface, .. } = Route::find(to).map_err(|error| unusable(error.to_string()))?;
    let owner = ibv::devices().map_err(|absence| unusable(absence.to_string()))?.into_iter();
    let owner = owner.filter(|device| device.details.is_ok()).find(|device| device.owns(&interface));
    owner.map(|device| device.name).ok_or(ProviderError::NotOnTheWay { interface, to })
}

#[cfg(not(feature = "ibv"))]
fn adapter(to: SocketAddr) -> Result<String, ProviderError> {
    drop(Route::find(to));
    Err(ProviderError::Unusable("this program was built without the feature `ibv`".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_is_taken_unless_an_adapter_is_on_the_way_or_demanded() {
        let loopback = "127.0.0.1:4420".parse().unwrap();
        assert_eq!(Provider::Iwarp.by_adapter(loopback), Ok(false));
        assert_eq!(Provider::Auto.by_adapter(loopback), Ok(false));
        let refused = Provider::Ibv.by_adapter(loopback).unwrap_err().to_string();
        assert!(refused.contains("--provider iwarp"), "{refused}");
    }
}
