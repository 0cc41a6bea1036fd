//! What namespaces are made of, in a file: described where it is used, or as a bdev with a name.
use std::path::PathBuf;

use uuid::Uuid;

use super::{Table, limit};
use crate::control::config::value::uuid;
use crate::control::config::{
    Backing, Bdev, BdevName, BlockSize, ConfigError, Conflict, Namespace, Problem, ValueError,
};

pub(super) const KEYS: [&str; 9] =
    ["name", "path", "size", "ram", "null", "lba", "read-only", "limit", "uuid"];

pub(super) fn bdev(table: &Table<'_>) -> Result<Bdev, ConfigError> {
    let Some(name) = table.parsed("name")? else {
        return Err(table.file.error(table.span.clone(), Conflict::NoName.into()));
    };
    let Namespace { backing, block_size, read_only, limit, .. } = described(table, 0)?;
    Ok(Bdev { name, backing, block_size, read_only, limit, uuid: identity(table)? })
}

/// The bdev which a namespace names.
pub(super) fn of<'a>(table: &Table<'_>, bdevs: &'a [Bdev]) -> Result<Option<&'a Bdev>, ConfigError> {
    let Some(name) = table.parsed::<BdevName>("bdev")? else { return Ok(None) };
    if let Some(key) = KEYS[1..8].iter().find(|key| table.get(key).is_some()) {
        return Err(table.file.error(table.span_of(key), Conflict::OfBdev(key).into()));
    }
    let found = bdevs.iter().find(|bdev| bdev.name == name);
    let missing = || table.file.error(table.span_of("bdev"), Conflict::NoBdev(name.to_string()).into());
    found.map(Some).ok_or_else(missing)
}

/// What the keys of a namespace or a bdev describe.
pub(super) fn described(table: &Table<'_>, nsid: u32) -> Result<Namespace, ConfigError> {
    Ok(Namespace {
        nsid,
        bdev: None,
        backing: backing(table)?,
        block_size: table.number("lba", 0, u32::MAX)?.map(|lba| block_size(table, lba)).transpose()?,
        read_only: table.boolean("read-only")?,
        hosts: None,
        ana_group: 1,
        limit: limit::limit(table, "limit")?.unwrap_or_default(),
        uuid: None,
    })
}

pub(super) fn identity(table: &Table<'_>) -> Result<Option<Uuid>, ConfigError> {
    let Some((text, span)) = table.string("uuid")? else { return Ok(None) };
    uuid(text).map(Some).map_err(|error| table.bad("uuid", span, error))
}

pub(super) fn path(table: &Table<'_>, key: &'static str) -> Result<Option<PathBuf>, ConfigError> {
    match table.string(key)? {
        Some(("", span)) => Err(table.bad(key, span, ValueError::EmptyPath)),
        found => Ok(found.map(|(text, _)| PathBuf::from(text))),
    }
}

fn block_size(table: &Table<'_>, lba: u32) -> Result<BlockSize, ConfigError> {
    lba.to_string().parse().map_err(|error| table.bad("lba", table.span_of("lba"), error))
}

fn backing(table: &Table<'_>) -> Result<Backing, ConfigError> {
    let size = table.size("size")?;
    match (table.string("path")?, table.size("ram")?, table.size("null")?) {
        (Some(("", span)), None, None) => Err(table.bad("path", span, ValueError::EmptyPath)),
        (Some((path, _)), None, None) => Ok(Backing::File { path: PathBuf::from(path), size }),
        (None, Some(_), None) if size.is_some() => {
            Err(table.bad("size", table.span_of("size"), ValueError::SizeBehindColon("ram")))
        }
        (None, None, Some(_)) if size.is_some() => {
            Err(table.bad("size", table.span_of("size"), ValueError::SizeBehindColon("null")))
        }
        (None, Some(size), None) => Ok(Backing::Ram { size }),
        (None, None, Some(size)) => Ok(Backing::Null { size }),
        _ => Err(table.file.error(table.span.clone(), Problem::Backing)),
    }
}
