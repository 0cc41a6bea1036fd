//! Arguments several commands share.
use ironside_common::verbs::{Address, SocketPath};
use std::net::ToSocketAddrs;

use clap::{Args, ValueEnum};
use ironside_common::identity::{HostIdentity, host_identity};
use ironside_common::nvme::Nqn;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::CliError;
use crate::attach::{Carried, Crc, Provider};
use crate::host::HostOptions;
use crate::paths::PATHS_MAX;

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
    /// Address of the target: a name, an IPv4 or IPv6 address, or the path of its Unix socket on this machine; connect takes
    /// several, one for each path
    #[arg(short = 'a', long, value_name = "ADDRESS", required = true)]
    pub(super) traddr: Vec<String>,
    /// Port of the target: one for all addresses, or as many as there are addresses
    #[arg(short = 's', long, value_name = "PORT", default_values_t = [4420])]
    pub(super) trsvcid: Vec<u16>,
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

    /// What the host machine needs to know to connect to `nqn` here, by one way.
    pub(super) fn options(&self, nqn: Nqn) -> Result<HostOptions, CliError> {
        let [address] = self.addresses()?[..] else { return Err(CliError::OneAddress) };
        self.options_at(address, nqn)
    }

    /// The same by the way which leads to this address.
    pub(super) fn options_at(&self, address: Address, nqn: Nqn) -> Result<HostOptions, CliError> {
        let (host_nqn, host_id) = self.host()?;
        Ok(HostOptions::new(address, nqn, host_nqn, host_id))
    }

    /// Where the target is reached, in the order given: one address at least, and none twice.
    pub(super) fn addresses(&self) -> Result<Vec<Address>, CliError> {
        let Self { traddr, trsvcid, .. } = self;
        if traddr.len() > PATHS_MAX {
            return Err(CliError::TooManyAddresses);
        }
        if trsvcid.len() != 1 && trsvcid.len() != traddr.len() {
            return Err(CliError::Ports);
        }
        let mut addresses: Vec<Address> = Vec::new();
        for (name, port) in traddr.iter().zip(trsvcid.iter().cycle()) {
            let address = resolve(name, *port)?;
            if addresses.contains(&address) {
                return Err(CliError::SameAddress(address));
            }
            addresses.push(address);
        }
        Ok(addresses)
    }

    fn host(&self) -> Result<(Nqn, Uuid), CliError> {
        if let (Some(nqn), Some(id)) = (self.hostnqn, self.hostid) {
            return Ok((nqn, id));
        }
        let HostIdentity { nqn, id } = host_identity()?;
        Ok((self.hostnqn.unwrap_or(nqn), self.hostid.unwrap_or(id)))
    }
}

fn resolve(traddr: &str, port: u16) -> Result<Address, CliError> {
    if traddr.starts_with('/') {
        return SocketPath::new(traddr).map(Address::Path).map_err(CliError::SocketPath);
    }
    // Brackets are how an IPv6 address is written elsewhere.
    let name = traddr.trim_start_matches('[').trim_end_matches(']');
    let unresolved = |source| CliError::Address { traddr: traddr.to_owned(), source };
    let mut addresses = (name, port).to_socket_addrs().map_err(unresolved)?;
    addresses.next().map(Address::Ip).ok_or_else(|| unresolved(std::io::ErrorKind::NotFound.into()))
}

/// A number as nvme-cli takes it: decimal, or hexadecimal behind 0x.
pub(super) fn number<T: TryFrom<u64>>(word: &str) -> Result<T, String> {
    let number = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    let number = number.map_err(|error| error.to_string())?;
    T::try_from(number).map_err(|_| format!("{number} is too large"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        target: Target,
    }

    fn addresses(line: &str) -> Result<Vec<String>, CliError> {
        let line = Line::try_parse_from(std::iter::once("connect").chain(line.split(' '))).unwrap();
        Ok(line.target.addresses()?.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!((number::<u64>("17").unwrap(), number::<u8>("0x1F").unwrap()), (17, 31));
        assert_eq!(number::<u64>("0xffffffffffffffff").unwrap(), u64::MAX);
        assert!(number::<u64>("1f").is_err() && number::<u64>("").is_err() && number::<u64>("0x").is_err());
        assert!(number::<u8>("256").is_err());
    }

    #[test]
    fn addresses_have_one_port_together_or_one_each() {
        assert_eq!(addresses("-a 192.0.2.1").unwrap(), ["192.0.2.1:4420"]);
        assert_eq!(addresses("-a 192.0.2.1 -a ::1 -s 1").unwrap(), ["192.0.2.1:1", "[::1]:1"]);
        assert_eq!(addresses("-a ::1 -a ::1 -s 1 -s 2").unwrap(), ["[::1]:1", "[::1]:2"]);
        assert_eq!(addresses("-a /run/a.sock -a ::1").unwrap(), ["/run/a.sock", "[::1]:4420"]);
        assert!(matches!(addresses(&format!("-a /{}", "x".repeat(200))), Err(CliError::SocketPath(_))));
        assert!(matches!(addresses("-a ::1 -a ::1"), Err(CliError::SameAddress(_))));
        assert!(matches!(addresses("-a ::1 -s 1 -s 2"), Err(CliError::Ports)));
        let nine = ["-a ::1"; PATHS_MAX + 1].join(" ");
        assert!(matches!(addresses(&nine), Err(CliError::TooManyAddresses)));
    }
}
