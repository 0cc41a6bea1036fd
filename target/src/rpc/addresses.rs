//! Addresses as NVMe over Fabrics and SPDK write them: transport, family, address and service in four strings.
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use serde_json::{Value, json};

use super::RpcError;
use crate::control::config::DEFAULT_PORT;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Address {
    trtype: String,
    traddr: String,
    trsvcid: Option<String>,
    adrfam: Option<String>,
}

impl Address {
    /// # Errors
    /// If it is none of ours: RDMA, and IPv4 or IPv6.
    pub(super) fn parse(&self) -> Result<SocketAddr, RpcError> {
        if !self.trtype.eq_ignore_ascii_case("rdma") {
            return Err(RpcError::invalid(format!("`trtype` is RDMA here, not {}", self.trtype)));
        }
        let ip: IpAddr = self.traddr.parse().map_err(|_| {
            RpcError::invalid(format!("`traddr` is an address such as 192.0.2.1, not {:?}", self.traddr))
        })?;
        let port = self.trsvcid.as_deref().map_or(Some(DEFAULT_PORT), |text| text.parse().ok());
        let Some(port) = port.filter(|port| *port != 0) else {
            return Err(RpcError::invalid("`trsvcid` is a port, 1 to 65535"));
        };
        let at = SocketAddr::new(ip, port);
        match &self.adrfam {
            Some(said) if !said.eq_ignore_ascii_case(family(at)) => {
                Err(RpcError::invalid(format!("`adrfam` is {}, not {said}", family(at))))
            }
            _ => Ok(at),
        }
    }
}

const fn family(at: SocketAddr) -> &'static str {
    match at {
        SocketAddr::V4(_) => "IPv4",
        SocketAddr::V6(_) => "IPv6",
    }
}

pub(super) fn describe(at: SocketAddr) -> Value {
    json!({
        "trtype": "RDMA",
        "adrfam": family(at),
        "traddr": at.ip().to_string(),
        "trsvcid": at.port().to_string(),
    })
}
