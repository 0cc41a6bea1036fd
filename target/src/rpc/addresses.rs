//! Addresses as NVMe over Fabrics and SPDK write them: transport, family, address and service in four strings.
use std::net::{IpAddr, SocketAddr};

use ironside_common::verbs;
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
    pub(super) fn parse(&self) -> Result<verbs::Address, RpcError> {
        if !self.trtype.eq_ignore_ascii_case("rdma") {
            return Err(RpcError::invalid(format!("`trtype` is RDMA here, not {}", self.trtype)));
        }
        if self.traddr.starts_with('/') {
            let path = verbs::SocketPath::new(&self.traddr);
            let at = path.map_err(|error| RpcError::invalid(format!("`traddr`: {error}")))?;
            return self.of_its_family(verbs::Address::Path(at));
        }
        let ip: IpAddr = self.traddr.parse().map_err(|_| {
            RpcError::invalid(format!("`traddr` is an address such as 192.0.2.1, not {:?}", self.traddr))
        })?;
        let port = self.trsvcid.as_deref().map_or(Some(DEFAULT_PORT), |text| text.parse().ok());
        let Some(port) = port.filter(|port| *port != 0) else {
            return Err(RpcError::invalid("`trsvcid` is a port, 1 to 65535"));
        };
        self.of_its_family(SocketAddr::new(ip, port).into())
    }

    fn of_its_family(&self, at: verbs::Address) -> Result<verbs::Address, RpcError> {
        match &self.adrfam {
            Some(said) if !said.eq_ignore_ascii_case(family(at)) => {
                Err(RpcError::invalid(format!("`adrfam` is {}, not {said}", family(at))))
            }
            _ => Ok(at),
        }
    }
}

const fn family(at: verbs::Address) -> &'static str {
    match at {
        verbs::Address::Ip(SocketAddr::V4(_)) => "IPv4",
        verbs::Address::Ip(SocketAddr::V6(_)) => "IPv6",
        verbs::Address::Path(_) | verbs::Address::Process { .. } => "INTRA_HOST",
    }
}

pub(super) fn describe(at: verbs::Address) -> Value {
    let (address, port) = in_words(at);
    json!({ "trtype": "RDMA", "adrfam": family(at), "traddr": address, "trsvcid": port })
}

/// Address and port; of what is on this machine there is no port.
fn in_words(at: verbs::Address) -> (String, String) {
    match at.socket() {
        Some(at) => (at.ip().to_string(), at.port().to_string()),
        None => (at.to_string(), String::new()),
    }
}
