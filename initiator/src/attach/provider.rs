//! Which provider carries an attachment, as a user asks for it, held against what this machine has and the target answers.
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use ironside_common::verbs::Address;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::route::Route;

/// How long a connection may take by an adapter that was demanded: resolving address and route up to 2 s each, and one
/// repetition of a request that was lost (rdma_cm asks again after 4.3 s). Under `auto` the adapter has as long as
/// software, so that both together take no longer.
const ADAPTER_PATIENCE: Duration = Duration::from_secs(10);

/// What carries the connections.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The RDMA adapter which owns the way to the target, if there is one and the target answers there, else software
    #[default]
    Auto,
    /// An RDMA adapter, by libibverbs: InfiniBand, RoCE or iWARP
    Ibv,
    /// Software RDMA in this process: iWARP over TCP
    Iwarp,
}

/// What carries an attachment.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carried {
    Adapter,
    #[default]
    Software,
    /// An adapter owns the way to the target, which does not answer there: why.
    SoftwareInstead(String),
}

impl Carried {
    /// What is to be said to whoever did not choose: why an adapter was passed over.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        matches!(self, Self::SoftwareInstead(_)).then(|| format!("by {self}"))
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adapter => out.write_str("an RDMA adapter"),
            Self::Software => out.write_str("software RDMA"),
            Self::SoftwareInstead(why) => {
                write!(out, "software RDMA, since by the RDMA adapter on the way nobody answers ({why})")
            }
        }
    }
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
    #[error("{0} is on this machine, where no RDMA adapter leads; leave out --provider ibv")]
    OnMachine(Box<Address>),
    #[error(
        "an RDMA adapter leads to {by_adapter}, and software to {by_software}: one attachment has one of them; --provider iwarp takes software to both"
    )]
    Mixed { by_adapter: Box<Address>, by_software: Box<Address> },
}

impl Provider {
    /// How long a connection by an adapter may take, if one by software may take so long.
    #[must_use]
    pub fn adapter_patience(self, software: Duration) -> Duration {
        if self == Self::Ibv { software.max(ADAPTER_PATIENCE) } else { software }
    }

    /// Whether connections to all of these addresses go by adapters.
    ///
    /// # Errors
    /// As [`Self::by_adapter`], and if only some do.
    pub fn by_adapters(self, to: &[Address]) -> Result<bool, ProviderError> {
        let ways = to.iter().map(|&to| Ok((to, self.by_adapter(to)?))).collect::<Result<Vec<_>, _>>()?;
        let first = |by| ways.iter().find(|(_, way)| *way == by).map(|(to, _)| *to);
        match (first(true), first(false)) {
            (Some(by_adapter), Some(by_software)) => {
                Err(ProviderError::Mixed { by_adapter: by_adapter.into(), by_software: by_software.into() })
            }
            (by_adapter, _) => Ok(by_adapter.is_some()),
        }
    }

    /// Whether connections to an address go by an adapter.
    ///
    /// # Errors
    /// If one is demanded, and there is none on the way.
    pub fn by_adapter(self, to: Address) -> Result<bool, ProviderError> {
        let Some(to) = to.socket() else {
            return if self == Self::Ibv { Err(ProviderError::OnMachine(to.into())) } else { Ok(false) };
        };
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
        let socket: Address = "/run/ironside.sock".parse().unwrap();
        assert_eq!(Provider::Auto.by_adapters(&[socket, loopback]), Ok(false));
        assert_eq!(Provider::Ibv.by_adapter(socket), Err(ProviderError::OnMachine(socket.into())));
        assert_eq!(Provider::Iwarp.by_adapter(loopback), Ok(false));
        assert_eq!(Provider::Auto.by_adapter(loopback), Ok(false));
        let refused = Provider::Ibv.by_adapter(loopback).unwrap_err().to_string();
        assert!(refused.contains("--provider iwarp"), "{refused}");
    }

    #[test]
    fn an_adapter_that_was_not_demanded_leaves_software_its_time() {
        let software = Duration::from_secs(5);
        assert_eq!(Provider::Auto.adapter_patience(software), software);
        assert_eq!(Provider::Ibv.adapter_patience(software), ADAPTER_PATIENCE);
        assert_eq!(Provider::Ibv.adapter_patience(ADAPTER_PATIENCE * 2), ADAPTER_PATIENCE * 2);
    }

    #[test]
    fn only_an_adapter_that_was_passed_over_is_worth_a_remark() {
        assert_eq!(Carried::Adapter.remark(), None);
        assert_eq!(Carried::Software.remark(), None);
        let remark = Carried::SoftwareInstead("no RDMA listener".into()).remark().unwrap();
        assert!(
            remark.starts_with("by software RDMA, since") && remark.ends_with("(no RDMA listener)"),
            "{remark}"
        );
    }
}
