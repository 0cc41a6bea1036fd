//! What the target serves, to whom and where: one immutable, versioned value. Control builds the next
//! version; each reactor swaps its `Arc` between two turns. The catalog holds identities, it does not invent
//! them: they have to be the same after a restart, so whoever keeps the configuration keeps them too.
mod access;

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrayvec::ArrayString;
use ironside_common::auth::Policy;
use ironside_common::nvme::Nqn;
use ironside_common::verbs::Address;
use uuid::Uuid;

pub use self::access::{ANA_GROUP_MAX, Access, CNTLIDS, ana_groups};
use crate::backend::OpenMedium;
use crate::limits::Limits;
use crate::reservation::State;
use crate::throttle::{HostLimits, Limit};

/// Largest namespace identifier, and so the most namespaces of a subsystem. A changed namespace list names
/// them all.
pub const NSID_MAX: u32 = 1024;

/// What a catalog cannot hold.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CatalogError {
    #[error("two subsystems are named {0}")]
    DuplicateSubsystem(Box<Nqn>),
    #[error("{0} is the name of the discovery subsystem")]
    DiscoverySubsystem(Box<Nqn>),
    #[error("two namespaces of subsystem {0} are number {1}")]
    DuplicateNamespace(Box<Nqn>, u32),
    #[error("namespaces are numbered 1 to {NSID_MAX}, not {0}")]
    NamespaceNumber(u32),
    #[error("two namespaces have the UUID {0}")]
    DuplicateUuid(Uuid),
    #[error("namespace {0} has no UUID, which hosts tell it from others by")]
    NoUuid(u32),
    #[error("namespace {0} is smaller than one block")]
    EmptyNamespace(u32),
    #[error("blocks have 512 to 4096 bytes, not 2^{0}")]
    BlockSize(u8),
    #[error(
        "namespace {nsid} is for host {host}, which {subsystem} does not admit: name it in `allow-hosts` of the subsystem \
         too, or not in that of the namespace"
    )]
    StrangeHost { nsid: u32, host: Box<Nqn>, subsystem: Box<Nqn> },
    #[error("a serial number is 1 to 20 printable ASCII characters, not {0:?}")]
    Serial(String),
}

/// One version of everything the target serves.
#[derive(Clone, Debug)]
pub struct Catalog {
    version: u64,
    subsystems: Vec<Subsystem>,
    listeners: Vec<Listener>,
    limits: Limits,
}

impl Catalog {
    /// # Errors
    /// If two things have the same name.
    pub fn new(version: u64, mut subsystems: Vec<Subsystem>) -> Result<Self, CatalogError> {
        subsystems.sort_by_key(|subsystem| subsystem.nqn);
        if let Some(pair) = subsystems.windows(2).find(|pair| pair[0].nqn == pair[1].nqn) {
            return Err(CatalogError::DuplicateSubsystem(pair[0].nqn.into()));
        }
        let namespaces = subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let mut uuids: Vec<Uuid> = namespaces.map(|namespace| namespace.uuid).collect();
        uuids.sort_unstable();
        if let Some(pair) = uuids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CatalogError::DuplicateUuid(pair[0]));
        }
        let mut addresses: Vec<Address> =
            subsystems.iter().flat_map(|subsystem| subsystem.listen.iter().copied()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let listener = |(port_id, address)| Listener { port_id, address, by: Way::Software };
        let listeners = (1..).zip(addresses).map(listener).collect();
        Ok(Self { version, subsystems, listeners, limits: Limits::default() })
    }

    /// The same with other limits of what is taken on.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// What is taken on at most. Those which are decided at the start do not change.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The same with some listeners served by adapters.
    #[must_use]
    pub fn with_adapters(mut self, addresses: &[Address]) -> Self {
        for listener in self.listeners.iter_mut().filter(|one| addresses.contains(&one.address)) {
            listener.by = Way::Adapter;
        }
        self
    }

    /// The next version, with the sizes media have now; nothing if all are as they were. A namespace whose
    /// medium has no block left keeps its size, and its commands fail.
    #[must_use]
    pub fn resized(&self) -> Option<Self> {
        let mut next = self.clone();
        next.version += 1;
        let namespaces = next.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.namespaces);
        let mut is_changed = false;
        for namespace in namespaces {
            let blocks = namespace.medium.size() >> namespace.block_shift;
            if blocks != namespace.blocks && blocks > 0 {
                namespace.blocks = blocks;
                is_changed = true;
            }
        }
        is_changed.then_some(next)
    }

    /// The version before this one's place, without some of its namespaces; and this one behind it.
    #[must_use]
    pub fn after_pause_of(self, paused: impl Fn(&Nqn, u32) -> bool) -> (Self, Self) {
        let mut first = self.clone();
        for subsystem in &mut first.subsystems {
            let nqn = subsystem.nqn;
            subsystem.namespaces.retain(|namespace| !paused(&nqn, namespace.nsid));
        }
        (first, Self { version: self.version + 1, ..self })
    }

    /// Grows with every change.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// By name, ascending.
    #[must_use]
    pub fn subsystems(&self) -> &[Subsystem] {
        &self.subsystems
    }

    /// What all namespaces are made of.
    pub fn media(&self) -> impl Iterator<Item = &OpenMedium> {
        self.subsystems.iter().flat_map(Subsystem::namespaces).map(|namespace| &namespace.medium)
    }

    #[must_use]
    pub fn subsystem(&self, nqn: &Nqn) -> Option<&Subsystem> {
        let index = self.subsystems.binary_search_by_key(nqn, |subsystem| subsystem.nqn).ok()?;
        Some(&self.subsystems[index])
    }

    /// Wherever any subsystem is reached, by address, ascending.
    #[must_use]
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }
}

/// One address the target listens at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Listener {
    /// Its number within the target, from 1.
    pub port_id: u16,
    /// May be a wildcard.
    pub address: Address,
    pub by: Way,
}

impl Listener {
    /// Whether both listen at the same address in the same way.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        (self.address, self.by) == (other.address, other.by)
    }
}

/// What carries the connections of a listener.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// Our own software RDMA: iWARP over TCP, or through shared memory at a Unix socket.
    Software,
    /// The RDMA adapter that owns the address.
    Adapter,
}

/// Which hosts may connect, or use a namespace. A name is no secret, which only a [`Key`] adds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Hosts {
    Any,
    Listed(Vec<Nqn>),
}

impl Hosts {
    #[must_use]
    pub fn allow(&self, host: &Nqn) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(hosts) => hosts.contains(host),
        }
    }
}

/// What a host has to prove before it may use a subsystem.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Key {
    pub host: Nqn,
    pub policy: Arc<Policy>,
    /// Whether a host which is connected has to authenticate anew as soon as its key is another.
    pub disconnect_on_change: bool,
}

/// One NVM subsystem.
#[derive(Clone, Debug)]
pub struct Subsystem {
    nqn: Nqn,
    serial: ArrayString<20>,
    hosts: Hosts,
    keys: Vec<Key>,
    listen: Vec<Address>,
    namespaces: Vec<Namespace>,
    access: Vec<Access>,
    /// Its part of the controller identifiers, if another target serves the subsystem too.
    cntlids: Option<RangeInclusive<u16>>,
    limits: HostLimits,
}

impl Subsystem {
    /// A subsystem reached at the addresses `listen`, or nowhere.
    ///
    /// # Errors
    /// If a value is none the wire can carry, or two namespaces have the same number.
    pub fn new(
        nqn: Nqn,
        serial: &str,
        hosts: Hosts,
        listen: Vec<Address>,
        mut namespaces: Vec<Namespace>,
    ) -> Result<Self, CatalogError> {
        if nqn.is_discovery() {
            return Err(CatalogError::DiscoverySubsystem(nqn.into()));
        }
        let printable = !serial.is_empty() && serial.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let serial = ArrayString::from(serial)
            .ok()
            .filter(|_| printable)
            .ok_or_else(|| CatalogError::Serial(serial.to_owned()))?;
        namespaces.sort_by_key(|namespace| namespace.nsid);
        if let Some(pair) = namespaces.windows(2).find(|pair| pair[0].nsid == pair[1].nsid) {
            return Err(CatalogError::DuplicateNamespace(nqn.into(), pair[0].nsid));
        }
        namespaces.iter().try_for_each(Namespace::check)?;
        for namespace in &namespaces {
            let Hosts::Listed(seen_by) = &namespace.hosts else { continue };
            if let Some(stranger) = seen_by.iter().find(|host| !hosts.allow(host)) {
                let (host, subsystem) = (Box::new(*stranger), Box::new(nqn));
                return Err(CatalogError::StrangeHost { nsid: namespace.nsid, host, subsystem });
            }
        }
        let (keys, access) = (Vec::new(), Vec::new());
        let limits = HostLimits::default();
        Ok(Self { nqn, serial, hosts, keys, listen, namespaces, access, cntlids: None, limits })
    }

    /// The same, but for hosts which have to authenticate.
    #[must_use]
    pub fn with_keys(self, keys: Vec<Key>) -> Self {
        Self { keys, ..self }
    }

    /// The same with limits for its hosts.
    #[must_use]
    pub fn with_host_limits(self, limits: HostLimits) -> Self {
        Self { limits, ..self }
    }

    #[must_use]
    pub const fn host_limits(&self) -> &HostLimits {
        &self.limits
    }

    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// What this host has to prove; nothing if its name is enough.
    #[must_use]
    pub fn key(&self, host: &Nqn) -> Option<&Key> {
        self.keys.iter().find(|key| key.host == *host)
    }

    #[must_use]
    pub const fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// By number, ascending.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        let index = self.namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid).ok()?;
        Some(&self.namespaces[index])
    }

    #[must_use]
    pub fn allows(&self, host: &Nqn) -> bool {
        self.hosts.allow(host)
    }

    /// The namespaces which this host sees, by number, ascending. For it there are no others.
    pub fn namespaces_for(&self, host: &Nqn) -> impl Iterator<Item = &Namespace> {
        self.namespaces.iter().filter(|namespace| namespace.hosts.allow(host))
    }

    /// The namespace of a number, if this host sees it.
    #[must_use]
    pub fn namespace_for(&self, host: &Nqn, nsid: u32) -> Option<&Namespace> {
        self.namespace(nsid).filter(|namespace| namespace.hosts.allow(host))
    }

    #[must_use]
    pub const fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Whether a connection which came to `local`, an address of this machine, may lead here.
    #[must_use]
    pub fn is_reached_at(&self, local: Address) -> bool {
        self.listen.iter().any(|&address| covers(address, local))
    }

    /// The addresses it is reached at.
    #[must_use]
    pub fn listen(&self) -> &[Address] {
        &self.listen
    }

    /// Whether one of its addresses is exactly `address`.
    #[must_use]
    pub fn listens_at(&self, address: Address) -> bool {
        self.listen.contains(&address)
    }
}

/// One namespace of a subsystem.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub nsid: u32,
    pub uuid: Uuid,
    /// All zero for none.
    pub nguid: Uuid,
    /// Binary logarithm of the block size in bytes.
    pub block_shift: u8,
    /// Its size. The medium may meanwhile have become larger.
    pub blocks: u64,
    pub read_only: bool,
    /// Which of the subsystem's hosts see it: for all others its number is that of no namespace.
    pub hosts: Hosts,
    /// ANAGRPID: of which group of namespaces it is, whose access is the same.
    pub ana_group: u32,
    pub medium: OpenMedium,
    /// What all hosts together may ask of it.
    pub limit: Limit,
    /// Its reservations as they were kept when this version was made: where it begins if it was not served before.
    pub kept: Option<Arc<State>>,
}

impl Namespace {
    /// The whole of `medium`, whose UUID is also its NGUID.
    #[must_use]
    pub fn whole(nsid: u32, uuid: Uuid, medium: OpenMedium) -> Self {
        let block_shift = medium.block_size().trailing_zeros();
        Self {
            nsid,
            uuid,
            nguid: uuid,
            block_shift: u8::try_from(block_shift).expect("a block size has 32 bits"),
            blocks: medium.size() >> block_shift,
            read_only: medium.read_only(),
            hosts: Hosts::Any,
            ana_group: 1,
            medium,
            limit: Limit::default(),
            kept: None,
        }
    }

    /// Whether it is the same to a host, which takes another UUID or block size for other data.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let known = |one: &Self| (one.nsid, one.uuid, one.nguid, one.block_shift);
        known(self) == known(other)
    }

    /// Whether a host would see any difference.
    #[must_use]
    pub fn looks_like(&self, other: &Self) -> bool {
        let seen = |one: &Self| (one.blocks, one.read_only, one.ana_group);
        self.is_same(other) && seen(self) == seen(other)
    }

    fn check(&self) -> Result<(), CatalogError> {
        if !(1..=NSID_MAX).contains(&self.nsid) {
            return Err(CatalogError::NamespaceNumber(self.nsid));
        }
        if self.uuid.is_nil() {
            return Err(CatalogError::NoUuid(self.nsid));
        }
        if !(9..=12).contains(&self.block_shift) {
            return Err(CatalogError::BlockSize(self.block_shift));
        }
        if self.blocks == 0 {
            return Err(CatalogError::EmptyNamespace(self.nsid));
        }
        Ok(())
    }
}

/// Whether a socket bound to `bound` gets connections which come to `local`. IPv6's wildcard gets IPv4's too.
fn covers(bound: Address, local: Address) -> bool {
    let (Address::Ip(bound), Address::Ip(local)) = (bound, local) else { return bound == local };
    let (ip, local_ip) = (bound.ip().to_canonical(), local.ip().to_canonical());
    let anywhere = ip.is_unspecified() && (ip.is_ipv6() || local_ip.is_ipv4());
    bound.port() == local.port() && (anywhere || ip == local_ip)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Catalog {
        /// The same with so many commands a second for every namespace.
        pub(crate) fn with_limit(mut self, iops: Option<std::num::NonZeroU64>) -> Self {
            for namespace in self.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.namespaces) {
                namespace.limit.iops = iops;
            }
            self
        }
    }

    pub(crate) fn namespace(nsid: u32, blocks: u64) -> Namespace {
        let medium = OpenMedium::null(blocks << 9, 512).unwrap();
        Namespace::whole(nsid, Uuid::from_u128(0xABCD_0000 + u128::from(nsid)), medium)
    }

    pub(crate) fn subsystem(name: &str, hosts: Hosts, listen: &[&str], nsids: &[u32]) -> Subsystem {
        let listen = listen.iter().map(|address| address.parse().unwrap()).collect();
        let namespaces = nsids.iter().map(|&nsid| namespace(nsid, 1000)).collect();
        Subsystem::new(nqn(name), "SERIAL", hosts, listen, namespaces).unwrap()
    }

    pub(crate) fn nqn(name: &str) -> Nqn {
        format!("nqn.2014-08.org.example:{name}").parse().unwrap()
    }

    const HERE: &[&str] = &["127.0.0.1:4420"];

    fn wrong(namespaces: Vec<Namespace>) -> CatalogError {
        let listen = vec!["127.0.0.1:4420".parse().unwrap()];
        Subsystem::new(nqn("a"), "S", Hosts::Any, listen, namespaces).unwrap_err()
    }

    #[test]
    fn everything_is_found_by_its_name() {
        let subsystems =
            vec![subsystem("b", Hosts::Any, HERE, &[]), subsystem("a", Hosts::Any, HERE, &[7, 2])];
        let mut second = subsystems.clone();
        let catalog = Catalog::new(1, subsystems).unwrap();
        let a = catalog.subsystem(&nqn("a")).unwrap();
        assert!(a.namespaces().iter().map(|namespace| namespace.nsid).eq([2, 7]));
        assert_eq!(a.namespace(7).unwrap().blocks, 1000);
        assert!(a.namespace(3).is_none() && catalog.subsystem(&nqn("c")).is_none());
        assert!(catalog.subsystems().iter().map(Subsystem::nqn).eq(&[nqn("a"), nqn("b")]));

        let one = Namespace { hosts: Hosts::Listed(vec![nqn("h")]), ..namespace(1, 8) };
        let strange =
            CatalogError::StrangeHost { nsid: 1, host: nqn("h").into(), subsystem: nqn("a").into() };
        let others = Hosts::Listed(vec![nqn("i")]);
        let refused = Subsystem::new(nqn("a"), "S", others, vec![HERE[0].parse().unwrap()], vec![one]);
        assert_eq!(refused.unwrap_err(), strange);

        second.push(subsystem("a", Hosts::Any, HERE, &[]));
        assert_eq!(Catalog::new(2, second).unwrap_err(), CatalogError::DuplicateSubsystem(nqn("a").into()));
    }

    #[test]
    fn what_the_wire_cannot_carry_is_refused() {
        assert_eq!(wrong(vec![namespace(0, 8)]), CatalogError::NamespaceNumber(0));
        assert_eq!(wrong(vec![namespace(1025, 8)]), CatalogError::NamespaceNumber(1025));
        assert_eq!(
            wrong(vec![namespace(3, 8), namespace(3, 9)]),
            CatalogError::DuplicateNamespace(nqn("a").into(), 3)
        );
        assert_eq!(wrong(vec![Namespace { blocks: 0, ..namespace(1, 8) }]), CatalogError::EmptyNamespace(1));
        assert_eq!(
            wrong(vec![Namespace { block_shift: 13, ..namespace(1, 8) }]),
            CatalogError::BlockSize(13)
        );
        assert_eq!(wrong(vec![Namespace { uuid: Uuid::nil(), ..namespace(1, 8) }]), CatalogError::NoUuid(1));
        let serial = |serial: &str| {
            Subsystem::new(nqn("a"), serial, Hosts::Any, vec!["[::]:1".parse().unwrap()], vec![]).is_ok()
        };
        assert!(serial("12345678901234567890"));
        assert!(!serial("") && !serial("123456789012345678901") && !serial("ä"));
    }

    #[test]
    fn two_namespaces_with_one_uuid_would_hide_each_other() {
        let subsystems = vec![subsystem("a", Hosts::Any, HERE, &[1]), subsystem("b", Hosts::Any, HERE, &[1])];
        let uuid = subsystems[0].namespaces()[0].uuid;
        assert_eq!(Catalog::new(1, subsystems).unwrap_err(), CatalogError::DuplicateUuid(uuid));
    }

    #[test]
    fn a_wildcard_covers_its_family_and_ipv6_both() {
        let at = |address: &str| -> Address { address.parse().unwrap() };
        let everywhere = subsystem("a", Hosts::Any, &["[::]:4420"], &[]);
        let four = subsystem("a", Hosts::Any, &["0.0.0.0:4420"], &[]);
        let one = subsystem("a", Hosts::Any, &["10.0.0.1:4420"], &[]);
        for (local, of_everywhere, of_four, of_one) in [
            ("10.0.0.1:4420", true, true, true),
            ("[::ffff:10.0.0.1]:4420", true, true, true),
            ("10.0.0.2:4420", true, true, false),
            ("[::1]:4420", true, false, false),
            ("10.0.0.1:4421", false, false, false),
        ] {
            assert_eq!(everywhere.is_reached_at(at(local)), of_everywhere, "{local}");
            assert_eq!(four.is_reached_at(at(local)), of_four, "{local}");
            assert_eq!(one.is_reached_at(at(local)), of_one, "{local}");
        }
    }

    #[test]
    fn listeners_are_numbered_and_each_is_one() {
        let subsystems = vec![
            subsystem("a", Hosts::Any, &["127.0.0.1:4421", "127.0.0.1:4420"], &[]),
            subsystem("b", Hosts::Listed(vec![nqn("host")]), &["127.0.0.1:4420"], &[]),
        ];
        let catalog = Catalog::new(1, subsystems).unwrap();
        let ports: Vec<_> = catalog
            .listeners()
            .iter()
            .map(|one| (one.port_id, one.address.socket().unwrap().port()))
            .collect();
        assert_eq!(ports, [(1, 4420), (2, 4421)]);
        let b = catalog.subsystem(&nqn("b")).unwrap();
        assert!(b.allows(&nqn("host")) && !b.allows(&nqn("other")));
    }
}
