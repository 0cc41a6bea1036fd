//! A configuration file, read key by key, so that whatever is wrong is told with its line.
mod bdev;
mod limit;
mod resources;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ironside_common::memory::HugePages;
use ironside_common::nvme::Nqn;
use ironside_common::reactor::Poll;
use ironside_common::verbs::Address;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::nearest;
use super::value::{address, ana_state, metrics_address};
use super::{
    Bdev, Config, ConfigError, Crc, DEFAULT_PORT, DRAIN_TIMEOUT_S_DEFAULT, DRAIN_TIMEOUT_S_MAX, HostKey,
    Hosts, IoPoll, Listen, Namespace, Place, Problem, QUEUE_DEPTH_DEFAULT, QUEUE_DEPTH_MAX, REACTORS_MAX,
    Size, Subsystem, ValueError,
};
use crate::catalog::{ANA_GROUP_MAX, Access, CNTLIDS, NSID_MAX};

const TOP: [&str; 15] = [
    "listen",
    "provider",
    "reactors",
    "queue-depth",
    "limits",
    "crc",
    "io-poll",
    "poll",
    "huge-pages",
    "drain-timeout",
    "state-dir",
    "control",
    "metrics",
    "bdev",
    "subsystem",
];
const SUBSYSTEM: [&str; 11] = [
    "nqn",
    "serial",
    "allow-hosts",
    "allow-any-host",
    "host",
    "host-limit",
    "listen",
    "cntlid-min",
    "cntlid-max",
    "ana",
    "namespace",
];
const ANA: [&str; 3] = ["group", "listen", "state"];
/// All but the first two are about keys.
const HOST: [&str; 7] =
    ["nqn", "limit", "key-file", "controller-key-file", "hashes", "groups", "on-key-change"];
const NAMESPACE: [&str; 12] = [
    "nsid",
    "bdev",
    "path",
    "size",
    "ram",
    "null",
    "lba",
    "read-only",
    "allow-hosts",
    "ana-group",
    "limit",
    "uuid",
];

pub(super) fn read(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let root = DeTable::parse(text).map_err(|error| {
        let problem = Problem::Syntax(error.message().to_owned());
        ConfigError::at(path, text, &error.span().unwrap_or(0..0), problem)
    })?;
    let file = File { path, text };
    let top = Table::new(file, root.get_ref(), 0..0, &TOP)?;
    let mut spans = Spans::default();
    let bdevs = top.tables("bdev", &bdev::KEYS, |table| {
        spans.bdevs.push(table.span.clone());
        bdev::bdev(table)
    })?;
    let config = Config {
        listen: match top.listen()?.unwrap_or_default() {
            listen if listen.is_empty() => {
                vec![Listen::at(Address::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)))]
            }
            listen => listen,
        },
        provider: top.parsed("provider")?.unwrap_or_default(),
        reactors: top.number("reactors", 1, REACTORS_MAX)?,
        queue_depth: top.number("queue-depth", 2, QUEUE_DEPTH_MAX)?.unwrap_or(QUEUE_DEPTH_DEFAULT),
        limits: resources::limits(&top)?,
        crc: top.parsed::<Crc>("crc")?.unwrap_or_default(),
        io_poll: top.parsed::<IoPoll>("io-poll")?.unwrap_or_default(),
        poll: top.parsed::<Poll>("poll")?.unwrap_or_default(),
        huge_pages: top.parsed::<HugePages>("huge-pages")?.unwrap_or_default(),
        drain_timeout_s: top
            .number("drain-timeout", 1, DRAIN_TIMEOUT_S_MAX)?
            .unwrap_or(DRAIN_TIMEOUT_S_DEFAULT),
        state_directory: top.string("state-dir")?.map(|(text, _)| PathBuf::from(text)),
        control: bdev::path(&top, "control")?,
        metrics: metrics(&top)?,
        subsystems: top.tables("subsystem", &SUBSYSTEM, |table| subsystem(table, &bdevs, &mut spans))?,
        bdevs,
    };
    config.check().map_err(|(place, conflict)| file.error(spans_at(&spans, place), conflict.into()))?;
    Ok(config)
}

/// Where bdevs and subsystems stand, to point at in a conflict.
#[derive(Default)]
struct Spans {
    bdevs: Vec<Range<usize>>,
    subsystems: Vec<SubsystemSpans>,
}

struct SubsystemSpans {
    subsystem: Range<usize>,
    namespaces: Vec<Range<usize>>,
}

fn spans_at(spans: &Spans, place: Place) -> Range<usize> {
    match place {
        Place::Whole => 0..0,
        Place::Bdev(bdev) => spans.bdevs[bdev].clone(),
        Place::Subsystem(subsystem) => spans.subsystems[subsystem].subsystem.clone(),
        Place::Namespace { subsystem, namespace } => {
            spans.subsystems[subsystem].namespaces[namespace].clone()
        }
    }
}

fn subsystem(table: &Table<'_>, bdevs: &[Bdev], spans: &mut Spans) -> Result<Subsystem, ConfigError> {
    let mut namespaces = Vec::new();
    let mut next = 1;
    let (keys, host_limits) = limit::hosts_in_full(table)?;
    let subsystem = Subsystem {
        nqn: table.parsed::<Nqn>("nqn")?,
        serial: table.parsed("serial")?,
        hosts: hosts(table)?,
        keys,
        host_limits,
        listen: table.listen()?,
        cntlids: cntlids(table)?,
        access: table.tables("ana", &ANA, access)?,
        namespaces: table.tables("namespace", &NAMESPACE, |one| {
            namespaces.push(one.span.clone());
            namespace(one, bdevs, &mut next)
        })?,
    };
    spans.subsystems.push(SubsystemSpans { subsystem: table.span.clone(), namespaces });
    Ok(subsystem)
}

fn metrics(table: &Table<'_>) -> Result<Option<SocketAddr>, ConfigError> {
    let Some((text, span)) = table.string("metrics")? else { return Ok(None) };
    metrics_address(text).map(Some).map_err(|error| table.bad("metrics", span, error))
}

/// A part of all identifiers, if one of its ends is named.
fn cntlids(table: &Table<'_>) -> Result<Option<RangeInclusive<u16>>, ConfigError> {
    let end = |key| table.number(key, *CNTLIDS.start(), *CNTLIDS.end());
    Ok(match (end("cntlid-min")?, end("cntlid-max")?) {
        (None, None) => None,
        (min, max) => Some(min.unwrap_or(*CNTLIDS.start())..=max.unwrap_or(*CNTLIDS.end())),
    })
}

fn access(table: &Table<'_>) -> Result<Access, ConfigError> {
    let group = table.number("group", 1, ANA_GROUP_MAX)?.unwrap_or(1);
    let listen = match table.string("listen")? {
        Some((text, span)) => Some(address(text).map_err(|error| table.bad("listen", span, error))?),
        None => None,
    };
    let Some((text, span)) = table.string("state")? else {
        return Err(table.file.error(table.span.clone(), super::Conflict::NoState.into()));
    };
    let state = ana_state(text).map_err(|error| table.bad("state", span, error))?;
    Ok(Access { group, listen, state })
}

fn hosts(table: &Table<'_>) -> Result<Hosts, ConfigError> {
    let listed = table.strings("allow-hosts")?;
    let any = table.boolean("allow-any-host")?;
    match (listed, any) {
        (Some(_), true) => {
            let span = table.span_of("allow-any-host");
            Err(table.file.error(span, super::Conflict::ListedAndAny.into()))
        }
        (None, true) => Ok(Hosts::Any),
        (None, false) => Ok(Hosts::ThisMachine),
        (Some(names), false) => {
            let parse = |(name, span): Text<'_>| {
                name.parse::<Nqn>().map_err(|error| table.bad("allow-hosts", span, error.into()))
            };
            names.into_iter().map(parse).collect::<Result<_, _>>().map(Hosts::Listed)
        }
    }
}

fn host_key(table: &Table<'_>) -> Result<HostKey, ConfigError> {
    let path = |key| Ok::<_, ConfigError>(table.string(key)?.map(|(text, _)| PathBuf::from(text)));
    let Some(key_file) = path("key-file")? else {
        return Err(table.file.error(table.span.clone(), super::Conflict::NoKeyFile.into()));
    };
    let mut key = HostKey::new(table.parsed::<Nqn>("nqn")?, key_file, path("controller-key-file")?);
    if let Some(hashes) = table.list("hashes")? {
        key.hashes = hashes;
    }
    if let Some(groups) = table.list("groups")? {
        key.groups = groups;
    }
    key.disconnect_on_change = match table.string("on-key-change")? {
        None | Some(("keep", _)) => false,
        Some(("disconnect", _)) => true,
        Some((other, span)) => {
            return Err(table.bad("on-key-change", span, ValueError::OnKeyChange(other.into())));
        }
    };
    Ok(key)
}

/// A namespace without a number takes the one after its predecessor's.
fn namespace(table: &Table<'_>, bdevs: &[Bdev], next: &mut u32) -> Result<Namespace, ConfigError> {
    let nsid = table.number("nsid", 1, NSID_MAX)?.unwrap_or(*next);
    *next = nsid + 1;
    let whole = match bdev::of(table, bdevs)? {
        Some(bdev) => bdev.as_namespace(nsid),
        None => bdev::described(table, nsid)?,
    };
    Ok(Namespace {
        hosts: table.list("allow-hosts")?,
        ana_group: table.number("ana-group", 1, ANA_GROUP_MAX)?.unwrap_or(1),
        uuid: bdev::identity(table)?.or(whole.uuid),
        ..whole
    })
}

/// A string, and where it stands.
type Text<'a> = (&'a str, Range<usize>);

#[derive(Clone, Copy)]
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn error(self, span: Range<usize>, problem: Problem) -> ConfigError {
        ConfigError::at(self.path, self.text, &span, problem)
    }
}

/// One table whose keys are all known ones.
struct Table<'a> {
    file: File<'a>,
    entries: &'a DeTable<'a>,
    span: Range<usize>,
}

impl<'a> Table<'a> {
    fn new(
        file: File<'a>,
        entries: &'a DeTable<'a>,
        span: Range<usize>,
        known: &[&'static str],
    ) -> Result<Self, ConfigError> {
        let unknown = entries.keys().find(|key| !known.contains(&key.get_ref().as_ref()));
        if let Some(key) = unknown {
            let nearest = nearest(key.get_ref(), known);
            let problem = Problem::UnknownKey { key: key.get_ref().to_string(), nearest };
            return Err(file.error(key.span(), problem));
        }
        Ok(Self { file, entries, span })
    }

    fn get(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.entries.get(key)
    }

    fn span_of(&self, key: &'static str) -> Range<usize> {
        self.get(key).map_or_else(|| self.span.clone(), Spanned::span)
    }

    fn wrong(&self, key: &'static str, value: &Spanned<DeValue<'_>>, expected: &'static str) -> ConfigError {
        let problem = Problem::WrongType { key, expected, found: value.get_ref().type_str() };
        self.file.error(value.span(), problem)
    }

    fn bad(&self, key: &'static str, span: Range<usize>, error: ValueError) -> ConfigError {
        self.file.error(span, Problem::Value { key, error })
    }

    fn string(&self, key: &'static str) -> Result<Option<Text<'a>>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = value.get_ref().as_str().ok_or_else(|| self.wrong(key, value, "a string"))?;
        Ok(Some((text, value.span())))
    }

    fn parsed<T>(&self, key: &'static str) -> Result<Option<T>, ConfigError>
    where
        T: FromStr<Err: Into<ValueError>>,
    {
        let Some((text, span)) = self.string(key)? else { return Ok(None) };
        text.parse().map(Some).map_err(|error: T::Err| self.bad(key, span, error.into()))
    }

    fn boolean(&self, key: &'static str) -> Result<bool, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(false) };
        value.get_ref().as_bool().ok_or_else(|| self.wrong(key, value, "true or false"))
    }

    fn number<T>(&self, key: &'static str, min: T, max: T) -> Result<Option<T>, ConfigError>
    where
        T: TryFrom<i64> + Into<u64> + PartialOrd + Copy,
    {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = self.integer(key, value, "a whole number")?;
        match T::try_from(found) {
            Ok(number) if number >= min && number <= max => Ok(Some(number)),
            _ => {
                let error = ValueError::Range { min: min.into(), max: max.into(), found };
                Err(self.bad(key, value.span(), error))
            }
        }
    }

    fn integer(
        &self,
        key: &'static str,
        value: &Spanned<DeValue<'_>>,
        expected: &'static str,
    ) -> Result<i64, ConfigError> {
        let integer = value.get_ref().as_integer().ok_or_else(|| self.wrong(key, value, expected))?;
        i64::from_str_radix(integer.as_str(), integer.radix()).map_err(|_| self.wrong(key, value, expected))
    }

    /// `"1GiB"`, or a number of bytes.
    fn size(&self, key: &'static str) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = match value.get_ref().as_str() {
            Some(text) => text.parse::<Size>(),
            None => {
                let bytes = self.integer(key, value, "a size such as \"1GiB\"")?;
                u64::try_from(bytes).map_err(|_| ValueError::Blocks).and_then(Size::of)
            }
        };
        size.map(|size| Some(size.0)).map_err(|error| self.bad(key, value.span(), error))
    }

    fn strings(&self, key: &'static str) -> Result<Option<Vec<Text<'a>>>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let expected = "a list of strings";
        let array = value.get_ref().as_array().ok_or_else(|| self.wrong(key, value, expected))?;
        let text = |entry: &'a Spanned<DeValue<'a>>| {
            let text = entry.get_ref().as_str().ok_or_else(|| self.wrong(key, entry, expected))?;
            Ok((text, entry.span()))
        };
        array.iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Names of which there is one at least.
    fn list<T: FromStr>(&self, key: &'static str) -> Result<Option<Vec<T>>, ConfigError>
    where
        ValueError: From<T::Err>,
    {
        let Some(names) = self.strings(key)? else { return Ok(None) };
        if names.is_empty() {
            return Err(self.bad(key, self.span_of(key), ValueError::EmptyList));
        }
        let parse =
            |(name, span): Text<'_>| name.parse().map_err(|error: T::Err| self.bad(key, span, error.into()));
        names.into_iter().map(parse).collect::<Result<_, _>>().map(Some)
    }

    fn listen(&self) -> Result<Option<Vec<Listen>>, ConfigError> {
        let Some(texts) = self.strings("listen")? else { return Ok(None) };
        let parse = |(text, span): Text<'_>| text.parse().map_err(|error| self.bad("listen", span, error));
        texts.into_iter().map(parse).collect::<Result<_, _>>().map(Some)
    }

    fn tables<T>(
        &self,
        key: &'static str,
        known: &[&'static str],
        mut read: impl FnMut(&Self) -> Result<T, ConfigError>,
    ) -> Result<Vec<T>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let expected = "tables: write [[bdev]], [[subsystem]], [[subsystem.host]], [[subsystem.ana]] or [[subsystem.namespace]]";
        let array = value.get_ref().as_array().ok_or_else(|| self.wrong(key, value, expected))?;
        let one = |entry: &'a Spanned<DeValue<'a>>| {
            let table = entry.get_ref().as_table().ok_or_else(|| self.wrong(key, entry, expected))?;
            read(&Table::new(self.file, table, entry.span(), known)?)
        };
        array.iter().map(one).collect()
    }
}
