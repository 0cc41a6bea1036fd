//! Where somebody is reached.
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An end of a connection.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(into = "String", try_from = "String")]
pub enum Address {
    /// Over a network.
    Ip(SocketAddr),
    /// At a Unix socket of this machine.
    Path(SocketPath),
    /// A process of this machine which came to such a socket.
    Process { id: u32, user: u32 },
}

/// The absolute path of a Unix socket.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SocketPath {
    length: u8,
    bytes: [u8; Self::MAX],
}

/// Why a text is no address.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AddressError {
    #[error("the path of a socket has at most {} bytes", SocketPath::MAX)]
    Long,
    #[error("the path of a socket begins with a slash and has no zero in it")]
    NoPath,
    #[error("neither an address with a port nor the path of a socket")]
    Neither,
}

impl SocketPath {
    /// What the kernel takes (unix(7)), less the zero at its end.
    pub const MAX: usize = 107;

    /// # Errors
    /// If it is too long, or not absolute.
    pub fn new(text: &str) -> Result<Self, AddressError> {
        if !text.starts_with('/') || text.contains('\0') {
            return Err(AddressError::NoPath);
        }
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..text.len()).ok_or(AddressError::Long)?.copy_from_slice(text.as_bytes());
        let length = u8::try_from(text.len()).map_err(|_| AddressError::Long)?;
        Ok(Self { length, bytes })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.length)];
        std::str::from_utf8(bytes).expect("it was made of a text")
    }

    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(self.as_str())
    }
}

impl fmt::Display for SocketPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl fmt::Debug for SocketPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(out)
    }
}

impl Address {
    /// Of a network, what it is.
    #[must_use]
    pub const fn socket(self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(address),
            Self::Path(_) | Self::Process { .. } => None,
        }
    }

    /// The address of the machine, which of processes of this one is the loopback's.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        match self {
            Self::Ip(address) => address.ip(),
            Self::Path(_) | Self::Process { .. } => IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }

    /// With an IPv4 address as such, where IPv6 carries it (`::ffff:192.0.2.1`): so the same place has one name.
    #[must_use]
    pub const fn canonical(self) -> Self {
        match self {
            Self::Ip(at) => Self::Ip(SocketAddr::new(at.ip().to_canonical(), at.port())),
            Self::Path(_) | Self::Process { .. } => self,
        }
    }

    /// Whether it is reached without a network.
    #[must_use]
    pub const fn is_on_machine(self) -> bool {
        matches!(self, Self::Path(_) | Self::Process { .. })
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Address {
    fn from(socket: (I, u16)) -> Self {
        Self::Ip(socket.into())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with('/') {
            return SocketPath::new(text).map(Self::Path);
        }
        text.parse().map(Self::Ip).map_err(|_| AddressError::Neither)
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(out),
            Self::Path(path) => path.fmt(out),
            Self::Process { id, user } => write!(out, "process {id} of user {user}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_as_it_is_written() {
        for text in ["192.0.2.1:4420", "[::1]:1", "/run/ironside.sock"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.is_on_machine(), text.starts_with('/'));
        }
        let longest = format!("/{}", "x".repeat(SocketPath::MAX - 1));
        assert!(longest.parse::<Address>().is_ok());
        assert_eq!(format!("{longest}x").parse::<Address>(), Err(AddressError::Long));
        assert_eq!(format!("/{}", "x".repeat(300)).parse::<Address>(), Err(AddressError::Long));
        assert_eq!("run/socket".parse::<Address>(), Err(AddressError::Neither));
        assert_eq!("/a\0b".parse::<Address>(), Err(AddressError::NoPath));
    }

    #[test]
    fn an_ipv4_address_within_ipv6_is_itself() {
        let canonical = |text: &str| text.parse::<Address>().unwrap().canonical().to_string();
        assert_eq!(canonical("[::ffff:192.0.2.1]:4420"), "192.0.2.1:4420");
        for text in ["192.0.2.1:4420", "[::1]:1", "/run/ironside.sock"] {
            assert_eq!(canonical(text), text);
        }
    }

    #[test]
    fn a_process_of_this_machine_counts_as_its_loopback() {
        let process = Address::Process { id: 7, user: 0 };
        assert_eq!((process.ip(), process.socket()), (Ipv4Addr::LOCALHOST.into(), None));
        assert_eq!(process.to_string(), "process 7 of user 0");
    }
}
