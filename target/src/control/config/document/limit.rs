//! Limits in a file, and the hosts they may be of.
use ironside_common::nvme::Nqn;
use toml::de::DeValue;

use super::{HOST, Table, host_key};
use crate::control::config::limit::{self, HostLimits};
use crate::control::config::{ConfigError, Conflict, HostKey, Problem};
use crate::throttle::Limit;

/// The limit which is the value of a key.
pub(super) fn limit(table: &Table<'_>, key: &'static str) -> Result<Option<Limit>, ConfigError> {
    let Some(value) = table.get(key) else { return Ok(None) };
    let expected = "a table such as { iops = 1000, bandwidth = \"100MiB\" }";
    let entries = value.get_ref().as_table().ok_or_else(|| table.wrong(key, value, expected))?;
    let inner = Table::new(table.file, entries, value.span(), &limit::KEYS)?;
    let mut limit = Limit::default();
    for key in limit::KEYS {
        let Some(value) = inner.get(key) else { continue };
        let set = match value.get_ref() {
            DeValue::String(text) => limit::set(&mut limit, key, text),
            DeValue::Integer(_) => {
                let number = inner.integer(key, value, "a whole number")?;
                limit::set(&mut limit, key, &number.to_string())
            }
            _ => return Err(inner.wrong(key, value, "a number or a string")),
        };
        set.map_err(|error| inner.bad(key, value.span(), error))?;
    }
    match limit.is_any() {
        true => Ok(Some(limit)),
        false => Err(table.file.error(value.span(), Problem::from(Conflict::EmptyLimit))),
    }
}

/// The hosts of a subsystem about whom there is something to say: those which have to authenticate, and limits.
pub(super) fn hosts_in_full(table: &Table<'_>) -> Result<(Vec<HostKey>, HostLimits), ConfigError> {
    let each = limit(table, "host-limit")?.unwrap_or_default();
    let hosts = table.tables("host", &HOST, |host| {
        let limit = limit(host, "limit")?;
        // A host that is only limited needs no key.
        let key = if limit.is_some() && host.get("key-file").is_none() {
            if let Some(key) = HOST[2..].iter().find(|key| host.get(key).is_some()) {
                return Err(host.file.error(host.span_of(key), Conflict::NoKeyFile.into()));
            }
            None
        } else {
            Some(host_key(host)?)
        };
        Ok((host.parsed::<Nqn>("nqn")?, key, limit))
    })?;
    let named = hosts.iter().filter_map(|(nqn, _, limit)| Some((*nqn, (*limit)?))).collect();
    Ok((hosts.into_iter().filter_map(|(_, key, _)| key).collect(), HostLimits { each, named }))
}
