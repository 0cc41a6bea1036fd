//! Arguments several commands share.
use std::net::{SocketAddr, ToSocketAddrs};

use clap::{Args, ValueEnum};
use ironside_common::identity::{HostIdentity, host_identity};
use ironside_common::nvme::Nqn;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::CliError;
use crate::attach::{Carried, Crc, Provider};
use crate::host::HostOptions;

/// The transports there are.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    /// NVMe over RDMA, by an RDMA adapter or by software RDMA (iWARP over TCP) in user space
    #[default]
    Rdma,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(super) enum Format {
    #[default]
    Normal,
    Json,
}

#[derive(Args, Clone, Debug)]
pub(super) struct Output {
    /// How to print the result
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "normal")]
    pub(super) output_format: Format,
}

/// Where a target is, and who asks.
#[derive(Args, Clone, Debug)]
pub(super) struct Target {
    /// Transport
    #[arg(short = 't', long, value_name = "TRTYPE", default_value = "rdma")]
    pub(super) transport: Transport,
    /// Address of the target: a name, or an IPv4 or IPv6 address
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    pub(super) traddr: String,
    /// Port of the target
    #[arg(short = 's', long, value_name = "PORT", default_value_t = 4420)]
    pub(super) trsvcid: u16,
    /// NQN of this host, instead of that in /etc/nvme/hostnqn
    #[arg(short = 'q', long, value_name = "NQN")]
    pub(super) hostnqn: Option<Nqn>,
    /// Identifier of this host, instead of that in /etc/nvme/hostid
    #[arg(short = 'I', long, value_name = "UUID")]
    pub(super) hostid: Option<Uuid>,
    /// Whether to check data in flight by CRC32C
    #[arg(long, value_name = "WHEN", default_value = "on")]
    pub(super) crc: Crc,
    /// What carries the connections
    #[arg(long, value_name = "PROVIDER", default_value = "auto")]
    pub(super) provider: Provider,
}

impl Target {
    /// Says what whoever did not choose a provider should know.
    pub(super) fn remark(carried: &Carried) {
        if let Some(remark) = carried.remark() {
            eprintln!("ironside: {remark}");
        }
    }

    /// What the host machine needs to know to connect to `nqn` here.
    pub(super) fn options(&self, nqn: Nqn) -> Result<HostOptions, CliError> {
        let address = self.address()?;
        let (host_nqn, host_id) = self.host()?;
        Ok(HostOptions::new(address, nqn, host_nqn, host_id))
    }

    fn address(&self) -> Result<SocketAddr, CliError> {
        // Brackets are how an IPv6 address is written elsewhere.
        let name = self.traddr.trim_start_matches('[').trim_end_matches(']');
        let unresolved = |source| CliError::Address { traddr: self.traddr.clone(), source };
        let mut addresses = (name, self.trsvcid).to_socket_addrs().map_err(unresolved)?;
        addresses.next().ok_or_else(|| unresolved(std::io::ErrorKind::NotFound.into()))
    }

    fn host(&self) -> Result<(Nqn, Uuid), CliError> {
        if let (Some(nqn), Some(id)) = (self.hostnqn, self.hostid) {
            return Ok((nqn, id));
        }
        let HostIdentity { nqn, id } = host_identity()?;
        Ok((self.hostnqn.unwrap_or(nqn), self.hostid.unwrap_or(id)))
    }
}
