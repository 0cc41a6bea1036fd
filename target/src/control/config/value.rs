//! Values as an operator writes them, on the command line or in a file.
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use arrayvec::ArrayString;
use ironside_common::auth::{GroupError, HashError};
use ironside_common::memory::HugePagesError;
use ironside_common::nvme::NqnError;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::reactor::PollError;
use ironside_common::size::{self, SizeError};
use ironside_common::verbs::{Address, AddressError, SocketPath};

use super::{Backing, DEFAULT_PORT, METRICS_PORT, Namespace, limit};
use crate::throttle::Limit;

/// Why a value is not what its key takes.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ValueError {
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error("a size is a whole number of 4096-byte blocks, at least one")]
    Blocks,
    #[error("`{0}` is not an address: write 192.0.2.1:4420, [2001:db8::1]:4420 or /run/ironside.sock")]
    Address(String),
    #[error("a Unix socket to listen at: {0}")]
    Socket(#[source] AddressError),
    #[error("hosts cannot connect to port 0, which `{0}` names; name the port, as 192.0.2.1:{DEFAULT_PORT}")]
    NoPort(String),
    #[error("a logical block has 512 or 4096 bytes, not {0}")]
    BlockSize(String),
    #[error("`{0}` is none of on, off and peer")]
    Crc(String),
    #[error("`{0}` is neither auto nor off")]
    IoPoll(String),
    #[error(transparent)]
    Poll(#[from] PollError),
    #[error(transparent)]
    HugePages(#[from] HugePagesError),
    #[error("`{0}` is none of auto, ibv and iwarp")]
    Provider(String),
    #[error("`{0}` is no option of a listener; there is provider=")]
    ListenOption(String),
    #[error("a serial number is 1 to 20 printable ASCII characters")]
    Serial,
    #[error("the name of a bdev has 1 to 256 bytes, and neither spaces nor control characters")]
    BdevName,
    #[error("`{0}` is not a UUID")]
    Uuid(String),
    #[error(transparent)]
    Nqn(#[from] NqnError),
    #[error(transparent)]
    Hash(#[from] HashError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error("the list is empty: name one at least, or leave it out for all")]
    EmptyList,
    #[error("`{0}` is none of keep and disconnect")]
    OnKeyChange(String),
    #[error("`{0}` is none of optimized, non-optimized, inaccessible, persistent-loss and change")]
    AnaState(String),
    #[error("must be between {min} and {max}, not {found}")]
    Range { min: u64, max: u64, found: i64 },
    #[error("the path is empty: name a regular file or a block device")]
    EmptyPath,
    #[error("no path before the first comma")]
    NoPath,
    #[error("`{0}` takes its size behind the colon, as in {0}:1GiB")]
    SizeBehindColon(&'static str),
    #[error(
        "`{option}` is no option of a namespace; there are size=, lba=, read-only, uuid=, iops=, bandwidth=, \
         read-bandwidth=, write-bandwidth= and burst="
    )]
    Option { option: String },
    #[error(
        "`{0}` is no part of a limit; there are iops, bandwidth, read-bandwidth, write-bandwidth and burst"
    )]
    LimitOption(String),
    #[error("a limit is between {min} and {max} a second, not {found}")]
    Rate { min: u64, max: u64, found: String },
    #[error("a burst is a time of 60s at most, such as 100ms, not {0}")]
    Burst(String),
    #[error("nothing is limited: say iops, bandwidth, read-bandwidth or write-bandwidth")]
    EmptyLimit,
    #[error("must be {expected}, not {found}")]
    Resource { expected: String, found: String },
    #[error("`{found}` is no limit of what is taken on; there are {known}")]
    NoResource { found: String, known: String },
}

/// A number of bytes, whole blocks of 4096.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Size(pub u64);

impl Size {
    pub(super) const fn of(bytes: u64) -> Result<Self, ValueError> {
        if bytes == 0 || !bytes.is_multiple_of(4096) { Err(ValueError::Blocks) } else { Ok(Self(bytes)) }
    }
}

impl FromStr for Size {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::of(text.parse::<size::Size>()?.0)
    }
}

/// Bytes of a logical block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BlockSize {
    B512,
    B4096,
}

impl BlockSize {
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

impl FromStr for BlockSize {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "512" => Ok(Self::B512),
            "4096" => Ok(Self::B4096),
            _ => Err(ValueError::BlockSize(text.into())),
        }
    }
}

/// What carries connections.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Provider {
    /// The adapter which owns the address, else software.
    #[default]
    Auto,
    /// The adapter which owns the address, by libibverbs.
    Ibv,
    /// Our own iWARP, in software over TCP.
    Iwarp,
}

impl FromStr for Provider {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "auto" => Ok(Self::Auto),
            "ibv" => Ok(Self::Ibv),
            "iwarp" => Ok(Self::Iwarp),
            _ => Err(ValueError::Provider(text.into())),
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Ibv => "ibv",
            Self::Iwarp => "iwarp",
        })
    }
}

/// Where to listen: an address, with a port unless it is the usual one, and what carries the connections, if it says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Listen {
    pub address: Address,
    pub provider: Option<Provider>,
}

impl Listen {
    pub const fn at(address: Address) -> Self {
        Self { address, provider: None }
    }
}

impl FromStr for Listen {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let Some((at, option)) = text.split_once(',') else { return Ok(Self::at(address(text)?)) };
        let provider =
            option.strip_prefix("provider=").ok_or_else(|| ValueError::ListenOption(option.into()))?;
        Ok(Self { address: address(at)?, provider: Some(provider.parse()?) })
    }
}

/// As it is read.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.provider.map_or(Ok(()), |provider| write!(f, ",provider={provider}"))
    }
}

/// Whether connections carry the CRC of MPA (RFC 5044).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Crc {
    #[default]
    On,
    /// Refuses nobody: a peer that wants it gets it.
    Off,
    /// As the peer asks.
    Peer,
}

impl FromStr for Crc {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "peer" => Ok(Self::Peer),
            _ => Err(ValueError::Crc(text.into())),
        }
    }
}

/// Whether drives are polled for completions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum IoPoll {
    /// Those whose driver was given queues to be polled.
    #[default]
    Auto,
    Off,
}

impl FromStr for IoPoll {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err(ValueError::IoPoll(text.into())),
        }
    }
}

/// The serial number of a subsystem: printable ASCII, 20 characters at most (NVM Express base
/// specification 2.2, figure 313, SN).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Serial(ArrayString<20>);

impl Serial {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Serial {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let printable = !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        match ArrayString::from(text) {
            Ok(serial) if printable => Ok(Self(serial)),
            _ => Err(ValueError::Serial),
        }
    }
}

/// An address of ours, with or without a port.
///
/// # Errors
/// If it is none.
pub(super) fn address(text: &str) -> Result<Address, ValueError> {
    if text.starts_with('/') {
        return SocketPath::new(text).map(Address::Path).map_err(ValueError::Socket);
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address: SocketAddr = text
        .parse()
        .or_else(|_| bare.parse().map(|ip: IpAddr| SocketAddr::new(ip, DEFAULT_PORT)))
        .map_err(|_| ValueError::Address(text.into()))?;
    // Whichever port the system picked, hosts would be told zero by discovery.
    if address.port() == 0 { Err(ValueError::NoPort(text.into())) } else { Ok(address.into()) }
}

/// Where metrics are told: an address, with or without a port, or a port of loopback.
///
/// # Errors
/// If it is none.
pub fn metrics_address(text: &str) -> Result<SocketAddr, ValueError> {
    if let Ok(port @ 1..) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let is_bare = |ip: &str| ip.parse::<IpAddr>().is_ok();
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    match is_bare(bare) {
        true => bare
            .parse()
            .map(|ip: IpAddr| SocketAddr::new(ip, METRICS_PORT))
            .map_err(|_| ValueError::Address(text.into())),
        // Over HTTP by a network alone.
        false => address(text)?.socket().ok_or_else(|| ValueError::Address(text.into())),
    }
}

pub(super) fn ana_state(text: &str) -> Result<AnaState, ValueError> {
    match text {
        "optimized" => Ok(AnaState::OPTIMIZED),
        "non-optimized" => Ok(AnaState::NON_OPTIMIZED),
        "inaccessible" => Ok(AnaState::INACCESSIBLE),
        "persistent-loss" => Ok(AnaState::PERSISTENT_LOSS),
        "change" => Ok(AnaState::CHANGE),
        _ => Err(ValueError::AnaState(text.into())),
    }
}

pub(super) fn uuid(text: &str) -> Result<uuid::Uuid, ValueError> {
    text.parse().map_err(|_| ValueError::Uuid(text.into()))
}

impl FromStr for Namespace {
    type Err = ValueError;

    /// `PATH`, `ram:SIZE` or `null:SIZE`, then options separated by commas. The number is given later.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut parts = text.split(',');
        let backing = backing(parts.next().unwrap_or_default())?;
        let mut namespace = Self {
            nsid: 0,
            bdev: None,
            backing,
            block_size: None,
            read_only: false,
            hosts: None,
            ana_group: 1,
            limit: Limit::default(),
            uuid: None,
        };
        for option in parts {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match (name, &mut namespace.backing) {
                ("size", Backing::File { size, .. }) => *size = Some(value.parse::<Size>()?.0),
                ("size", Backing::Ram { .. }) => return Err(ValueError::SizeBehindColon("ram")),
                ("size", Backing::Null { .. }) => return Err(ValueError::SizeBehindColon("null")),
                ("lba", _) => namespace.block_size = Some(value.parse()?),
                ("read-only", _) if option == name => namespace.read_only = true,
                ("uuid", _) => namespace.uuid = Some(uuid(value)?),
                (name, _) if limit::KEYS.contains(&name) => limit::set(&mut namespace.limit, name, value)?,
                _ => return Err(ValueError::Option { option: option.into() }),
            }
        }
        if namespace.limit.is_unused() {
            return Err(ValueError::EmptyLimit);
        }
        Ok(namespace)
    }
}

fn backing(text: &str) -> Result<Backing, ValueError> {
    match text.split_once(':') {
        Some(("ram", size)) => Ok(Backing::Ram { size: size.parse::<Size>()?.0 }),
        Some(("null", size)) => Ok(Backing::Null { size: size.parse::<Size>()?.0 }),
        _ if text.is_empty() => Err(ValueError::NoPath),
        _ => Ok(Backing::File { path: PathBuf::from(text), size: None }),
    }
}
