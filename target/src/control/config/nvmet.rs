//! The configuration of the kernel's target, as `nvmetcli save` writes it (`/etc/nvmet/config.json`), read as one of ours. What we
//! do not have is refused with its line; what is only about which software serves is not looked at.
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use ironside_common::nvme::Nqn;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::verbs::Address;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, Unexpected};
use uuid::Uuid;

use super::value::ana_state;
use super::{
    Backing, Config, ConfigError, DRAIN_TIMEOUT_S_DEFAULT, HostLimits, Hosts, Listen, Namespace, Place,
    Problem, QUEUE_DEPTH_DEFAULT, Serial, Subsystem,
};
use crate::catalog::{Access, CNTLIDS};
use crate::limits::{Limits, Resource};
use crate::throttle::Limit;

/// Whether a text is JSON, which no TOML begins as.
pub(super) fn is_it(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

pub(super) fn read(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let root: Root = serde_json::from_str(text).map_err(|error| {
        let at = position(text, error.line(), error.column());
        let words = error.to_string();
        // The place is shown by itself.
        let words = words.rsplit_once(" at line ").map_or(words.as_str(), |(words, _)| words).to_owned();
        ConfigError::at(path, text, &at, Problem::Nvmetcli(words))
    })?;
    let config = root.into_config();
    config.check().map_err(|(place, conflict)| {
        ConfigError::at(path, text, &find(text, &config, place), conflict.into())
    })?;
    Ok(config)
}

/// The byte before which a reader stopped, counted from one as it counts.
fn position(text: &str, line: usize, column: usize) -> Range<usize> {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let at = (before + column.saturating_sub(1)).min(text.len());
    let at = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    at..at
}

/// Where what does not fit is named.
fn find(text: &str, config: &Config, place: Place) -> Range<usize> {
    let (key, value) = match place {
        Place::Whole | Place::Bdev(_) => return 0..0,
        Place::Subsystem(at) => ("\"nqn\"", config.subsystems[at].nqn.map(|nqn| nqn.to_string())),
        Place::Namespace { subsystem, namespace } => {
            ("\"path\"", Some(config.subsystems[subsystem].namespaces[namespace].backing.name()))
        }
    };
    let quoted = serde_json::to_string(&value.unwrap_or_default()).unwrap_or_default();
    let is_named = |at: &usize| {
        text[..*at].trim_end().strip_suffix(':').is_some_and(|before| before.trim_end().ends_with(key))
    };
    let found = text.match_indices(&quoted).map(|(at, _)| at).filter(is_named).last();
    found.map_or(0..0, |at| at..at + quoted.len())
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Root {
    #[serde(default, rename = "hosts")]
    _hosts: Vec<Host>,
    #[serde(default)]
    ports: Vec<Port>,
    #[serde(default)]
    subsystems: Vec<Subsys>,
}

/// Whom a subsystem admits it says itself.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    #[serde(rename = "nqn")]
    _nqn: Parsed<Nqn>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Port {
    #[serde(rename = "portid")]
    _portid: IgnoredAny,
    addr: Addr,
    #[serde(default)]
    param: Param,
    #[serde(default)]
    ana_groups: Vec<AnaGroup>,
    #[serde(default, rename = "referrals")]
    _referrals: NoReferrals,
    #[serde(default)]
    subsystems: Vec<Parsed<Nqn>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Addr {
    #[serde(rename = "trtype")]
    _trtype: Rdma,
    #[serde(default, rename = "adrfam")]
    _adrfam: Option<Family>,
    traddr: Parsed<IpAddr>,
    trsvcid: Number<u16>,
    #[serde(default, rename = "treq")]
    _treq: Option<Treq>,
    /// Of software only.
    #[serde(default, rename = "tsas")]
    _tsas: Option<IgnoredAny>,
}

#[derive(serde::Deserialize)]
enum Rdma {
    #[serde(rename = "rdma")]
    Rdma,
}

#[derive(serde::Deserialize)]
enum Family {
    #[serde(rename = "ipv4")]
    V4,
    #[serde(rename = "ipv6")]
    V6,
}

#[derive(serde::Deserialize)]
enum Treq {
    #[serde(rename = "not specified")]
    NotSpecified,
    #[serde(rename = "not required")]
    NotRequired,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Param {
    /// -1: the kernel's own choice.
    inline_data_size: Option<Number<i64>>,
    max_queue_size: Option<Number<i64>>,
    #[serde(rename = "pi_enable")]
    _pi_enable: Option<Off>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct AnaGroup {
    grpid: Number<u32>,
    #[serde(default)]
    ana: Ana,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Ana {
    state: Option<State>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Subsys {
    nqn: Parsed<Nqn>,
    #[serde(default)]
    attr: Attr,
    #[serde(default)]
    allowed_hosts: Vec<Parsed<Nqn>>,
    #[serde(default)]
    namespaces: Vec<Ns>,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Attr {
    allow_any_host: Option<Number<u8>>,
    serial: Option<Parsed<Serial>>,
    cntlid_min: Option<Number<u16>>,
    cntlid_max: Option<Number<u16>>,
    qid_max: Option<Number<u16>>,
    #[serde(rename = "pi_enable")]
    _pi_enable: Option<Off>,
    // Which software serves, and by which version of NVMe.
    #[serde(rename = "version")]
    _version: Option<IgnoredAny>,
    #[serde(rename = "model")]
    _model: Option<IgnoredAny>,
    #[serde(rename = "firmware")]
    _firmware: Option<IgnoredAny>,
    #[serde(rename = "ieee_oui")]
    _ieee_oui: Option<IgnoredAny>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Ns {
    nsid: Number<u32>,
    enable: Option<Number<u8>>,
    ana_grpid: Option<Number<u32>>,
    #[serde(default)]
    ana: NsAna,
    device: Device,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NsAna {
    grpid: Option<Number<u32>>,
}

struct Device {
    path: PathBuf,
    uuid: Option<Uuid>,
}

/// Both identities are the same 16 bytes here, so two different ones cannot be shown.
impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            path: String,
            uuid: Option<Parsed<Uuid>>,
            nguid: Option<Parsed<Uuid>>,
        }
        let written = Written::deserialize(from)?;
        let given = |one: Option<Parsed<Uuid>>| one.map(|one| one.0).filter(|one| !one.is_nil());
        let uuid = match (given(written.uuid), given(written.nguid)) {
            (Some(uuid), Some(nguid)) if uuid != nguid => {
                return Err(D::Error::custom(
                    "`uuid` and `nguid` are the same 16 bytes here: leave out the one by which hosts do not know it",
                ));
            }
            (uuid, nguid) => uuid.or(nguid),
        };
        match written.path.is_empty() {
            true => Err(D::Error::custom("`path` is empty: name a regular file or a block device")),
            false => Ok(Self { path: written.path.into(), uuid }),
        }
    }
}

/// Text which means something; what is wrong with it is told where it stands.
struct Parsed<T>(T);

impl<'de, T: std::str::FromStr<Err: std::fmt::Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.trim().parse().map(Self).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
    }
}

/// A number, which attributes of the kernel have as text.
struct Number<T>(T);

impl<'de, T: TryFrom<i64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(i64),
            Text(String),
        }
        let number = match Written::deserialize(from)? {
            Written::Number(number) => number,
            Written::Text(text) => text
                .trim()
                .parse()
                .map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &"a whole number"))?,
        };
        T::try_from(number).map(Self).map_err(|_| D::Error::custom(format!("{number} is out of range")))
    }
}

/// An empty list.
#[derive(Default)]
struct NoReferrals;

impl<'de> Deserialize<'de> for NoReferrals {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Vec::<IgnoredAny>::deserialize(from)?.is_empty() {
            true => Ok(Self),
            false => {
                Err(D::Error::custom("`referrals` are not offered: name the other target to hosts yourself"))
            }
        }
    }
}

/// What we do not have.
struct Off;

impl<'de> Deserialize<'de> for Off {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Number::<i64>::deserialize(from)?.0 {
            0 => Ok(Self),
            _ => Err(D::Error::custom("protection information (`pi_enable`) is not offered")),
        }
    }
}

#[derive(Clone, Copy)]
struct State(AnaState);

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        ana_state(text.trim()).map(Self).map_err(D::Error::custom)
    }
}

impl Port {
    const fn at(&self) -> Address {
        Address::Ip(SocketAddr::new(self.addr.traddr.0, self.addr.trsvcid.0))
    }
}

impl Root {
    fn into_config(self) -> Config {
        let mut limits = Limits::default();
        let given = |size: &Option<Number<i64>>| size.as_ref().and_then(|size| u64::try_from(size.0).ok());
        let in_capsule = self.ports.iter().filter_map(|port| given(&port.param.inline_data_size)).max();
        // What is more than we take is fewer round trips for hosts, no more.
        let in_capsule = in_capsule.map(|bytes| bytes.min(*Resource::InCapsule.range().end()) / 4096 * 4096);
        if let Some(bytes) = in_capsule {
            limits = limits.with(Resource::InCapsule, bytes);
        }
        let queues =
            self.subsystems.iter().filter_map(|one| one.attr.qid_max.as_ref().map(|most| u64::from(most.0)));
        if let Some(most) = queues.max() {
            let range = Resource::IoQueues.range();
            limits = limits.with(Resource::IoQueues, most.clamp(*range.start(), *range.end()));
        }
        let depth = self.ports.iter().filter_map(|port| given(&port.param.max_queue_size)).max();
        let depth = depth.and_then(|depth| u16::try_from(depth.clamp(2, super::QUEUE_DEPTH_MAX.into())).ok());
        let ports = &self.ports;
        let subsystems = self.subsystems.iter().map(|one| one.subsystem(ports)).collect();
        Config {
            listen: ports.iter().map(|port| Listen::at(port.at())).collect(),
            provider: super::Provider::default(),
            reactors: None,
            queue_depth: depth.unwrap_or(QUEUE_DEPTH_DEFAULT),
            limits,
            crc: super::Crc::default(),
            io_poll: super::IoPoll::default(),
            poll: super::Poll::default(),
            huge_pages: ironside_common::memory::HugePages::default(),
            drain_timeout_s: DRAIN_TIMEOUT_S_DEFAULT,
            state_directory: None,
            control: None,
            metrics: None,
            bdevs: Vec::new(),
            subsystems,
        }
    }
}

impl Subsys {
    fn subsystem(&self, ports: &[Port]) -> Subsystem {
        let here = || ports.iter().filter(|port| port.subsystems.iter().any(|nqn| nqn.0 == self.nqn.0));
        let namespaces: Vec<Namespace> = self.namespaces.iter().filter_map(Ns::namespace).collect();
        let has = |group: u32| namespaces.iter().any(|one| one.ana_group == group);
        let access = here().flat_map(|port| {
            port.ana_groups.iter().filter_map(|group| {
                let state = group.ana.state?.0;
                Some(Access { group: group.grpid.0, listen: Some(port.at()), state })
            })
        });
        let access = access.filter(|one| has(one.group) && one.state != AnaState::OPTIMIZED).collect();
        let end = |end: &Option<Number<u16>>, usual: u16| end.as_ref().map_or(usual, |end| end.0);
        let min = end(&self.attr.cntlid_min, *CNTLIDS.start());
        let cntlids = min..=end(&self.attr.cntlid_max, *CNTLIDS.end());
        let hosts = self.allowed_hosts.iter().map(|nqn| nqn.0).collect();
        let is_any = self.attr.allow_any_host.as_ref().is_some_and(|any| any.0 != 0);
        Subsystem {
            nqn: Some(self.nqn.0),
            serial: self.attr.serial.as_ref().map(|serial| serial.0),
            hosts: if is_any { Hosts::Any } else { Hosts::Listed(hosts) },
            keys: Vec::new(),
            host_limits: HostLimits::default(),
            listen: Some(here().map(|port| Listen::at(port.at())).collect()),
            cntlids: (cntlids != CNTLIDS).then_some(cntlids),
            access,
            namespaces,
        }
    }
}

impl Ns {
    /// Nothing if it is not enabled.
    fn namespace(&self) -> Option<Namespace> {
        let group = self.ana_grpid.as_ref().or(self.ana.grpid.as_ref()).map_or(1, |group| group.0.max(1));
        self.enable.as_ref().is_none_or(|enable| enable.0 != 0).then(|| Namespace {
            nsid: self.nsid.0,
            bdev: None,
            backing: Backing::File { path: self.device.path.clone(), size: None },
            block_size: None,
            read_only: false,
            hosts: None,
            ana_group: group,
            limit: Limit::default(),
            uuid: self.device.uuid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As nvmetcli saves what the attributes of a kernel's target say: in the order in which directories are listed.
    const SAVED: &str = include_str!("nvmet.json");

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("config.json"), text)
    }

    fn refused(from: &str, to: &str) -> String {
        assert!(SAVED.contains(from), "{from}");
        parse(&SAVED.replace(from, to)).unwrap_err().to_string()
    }

    #[test]
    fn what_nvmetcli_saved_is_what_we_serve() {
        let config = parse(SAVED).unwrap();
        let [one] = &config.subsystems[..] else { panic!("there is one") };
        assert_eq!(one.nqn.unwrap().as_str(), "nqn.2014-08.org.example:kernel");
        assert_eq!(one.serial.unwrap().as_str(), "c6c0b4b3e5d3a1f2");
        assert_eq!(one.hosts, Hosts::Listed(vec!["nqn.2014-08.org.example:host".parse().unwrap()]));
        let at = |port: u16| Address::from(([192, 0, 2, 1], port));
        assert_eq!(one.listen, Some(vec![Listen::at(at(4421)), Listen::at(at(4420))]));
        assert_eq!(one.access, [Access { group: 2, listen: Some(at(4421)), state: AnaState::INACCESSIBLE }]);
        let namespaces: Vec<_> =
            one.namespaces.iter().map(|one| (one.nsid, one.ana_group, one.backing.name())).collect();
        assert_eq!(namespaces, [(3, 2, "/srv/three.img".into()), (1, 1, "/srv/one.img".into())]);
        assert_eq!(one.namespaces[1].uuid.unwrap().to_string(), "e1b59f6f-4b0c-4b9a-8e09-9b1f5f3d8c6a");
        assert_eq!((one.cntlids.clone(), config.limits.of(Resource::IoQueues)), (None, 128));
        assert_eq!(config.limits.of(Resource::InCapsule), 16 << 10);
    }

    #[test]
    fn what_we_do_not_have_is_refused_where_it_stands() {
        for (from, to, words) in [
            ("\"trtype\": \"rdma\"", "\"trtype\": \"tcp\"", "unknown variant `tcp`, expected `rdma`"),
            ("\"pi_enable\": \"0\"", "\"pi_enable\": \"1\"", "protection information"),
            ("\"treq\": \"not specified\"", "\"treq\": \"required\"", "unknown variant `required`"),
            ("\"allowed_hosts\"", "\"hosts_allowed\"", "unknown field `hosts_allowed`"),
            ("nqn.2014-08.org.example:host", "host", "\"host\": "),
            ("\"trsvcid\": \"4420\"", "\"trsvcid\": \"70000\"", "70000 is out of range"),
            (
                "00000000-0000-0000-0000-000000000000",
                "e1b59f6f-4b0c-4b9a-8e09-9b1f5f3d8c6b",
                "the same 16 bytes",
            ),
            ("\"nsid\": 3", "\"nsid\": 1", "a namespace 1 already"),
            ("/srv/three.img", "/srv/one.img", "is a namespace already"),
        ] {
            let error = refused(from, to);
            let line = 1 + SAVED[..SAVED.find(from).unwrap()].matches('\n').count();
            assert!(error.contains(words) && error.contains("--> config.json:"), "{error}");
            let told: usize =
                error.split("config.json:").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
            assert!(told.abs_diff(line) <= 30, "{from}: line {line}, told {told}: {error}");
        }
        let nowhere = parse(&SAVED.replace("        \"nqn.2014-08.org.example:kernel\"\n", "")).unwrap_err();
        assert!(
            nowhere.to_string().contains("reached nowhere") && nowhere.line_and_column().is_some(),
            "{nowhere}"
        );
        assert!(refused("\"portid\": 1", "\"portid\": ").contains("config.json:"));
    }
}
