//! How this machine reaches an address: by which interface, and from which address of its own.
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Route {
    pub from: IpAddr,
    /// The interface which has that address; to an address of this machine itself, the interface that has it.
    pub interface: String,
}

impl Route {
    /// # Errors
    /// What the kernel says if there is none.
    pub fn find(to: SocketAddr) -> io::Result<Self> {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // Connecting a datagram socket sends nothing: the kernel only looks the route up.
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        let from = socket.local_addr()?.ip();
        let owner = getifaddrs()?.find(|one| one.address.as_ref().and_then(ip) == Some(from));
        let owner = owner.ok_or_else(|| io::Error::other(format!("no interface has the address {from}")))?;
        Ok(Self { from, interface: owner.interface_name })
    }
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_reached_by_loopback() {
        let route = Route::find("127.0.0.1:4420".parse().unwrap()).unwrap();
        assert_eq!(route, Route { from: Ipv4Addr::LOCALHOST.into(), interface: "lo".into() });
    }
}
