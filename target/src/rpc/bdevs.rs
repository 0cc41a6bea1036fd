//! What namespaces are made of: memory, nothing, and files or devices, which whoever makes them by `aio` or `uring` gets through
//! io_uring alike. A namespace described where it is has the name `NQN/NSID` here.
use std::num::NonZeroU64;

use ironside_common::nvme::Nqn;
use nix::errno::Errno;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::parameters::{self, refuse};
use super::{RpcError, Subject};
use crate::backend::OpenMedium;
use crate::control::config::{Backing, BdevName, Config};
use crate::control::draft::{Draft, DraftError, Entries, size};
use crate::control::prepare::Served;
use crate::throttle::Limit;

const MEBIBYTE: u64 = 1 << 20;

/// A bdev as the target has it.
pub(super) struct There<'a> {
    pub(super) name: String,
    pub(super) backing: &'a Backing,
    pub(super) medium: &'a OpenMedium,
    pub(super) uuid: Uuid,
    pub(super) limit: Limit,
    is_used: bool,
}

/// Under which name a namespace is listed.
pub(super) fn name_of(served: &Served, nqn: &Nqn, nsid: u32) -> String {
    let said = served.said(nqn).and_then(|said| said.namespaces.iter().find(|one| one.nsid == nsid));
    match said.and_then(|said| said.bdev.as_ref()) {
        Some(name) => name.to_string(),
        None => format!("{nqn}/{nsid}"),
    }
}

/// Those with names of their own, then those which namespaces describe.
pub(super) fn all(served: &Served) -> Vec<There<'_>> {
    let is_used = |name: &BdevName| served.namespaces().any(|(_, said, _)| said.bdev.as_ref() == Some(name));
    let named = served.bdevs().map(|(said, bdev)| There {
        name: said.name.to_string(),
        backing: &said.backing,
        medium: &bdev.medium,
        uuid: bdev.uuid,
        limit: said.limit,
        is_used: is_used(&said.name),
    });
    let described = served.namespaces().filter(|(_, said, _)| said.bdev.is_none());
    let described = described.map(|(nqn, said, namespace)| There {
        name: format!("{nqn}/{}", said.nsid),
        backing: &said.backing,
        medium: &namespace.medium,
        uuid: namespace.uuid,
        limit: said.limit,
        is_used: true,
    });
    named.chain(described).collect()
}

/// The name and the UUID of each.
pub(super) fn names(served: &Served) -> Vec<(String, Uuid)> {
    all(served).into_iter().map(|one| (one.name, one.uuid)).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetBdevs {
    name: Option<String>,
    /// Nobody waits here for what is not there.
    #[serde(rename = "timeout")]
    _timeout: Option<u64>,
}

pub(super) fn get_bdevs(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    let given: GetBdevs = parameters::read(given)?;
    subject.refresh();
    let all = all(subject.served());
    let wanted = |one: &&There<'_>| {
        given.name.as_ref().is_none_or(|name| one.name == *name || one.uuid.to_string() == *name)
    };
    let found: Vec<Value> = all.iter().filter(wanted).map(describe).collect();
    match given.name {
        Some(name) if found.is_empty() => {
            Err(RpcError::errno(Errno::ENODEV, format!("there is no bdev {name}")))
        }
        _ => Ok(found.into()),
    }
}

fn describe(there: &There<'_>) -> Value {
    let rate = |rate: Option<NonZeroU64>| rate.map_or(0, NonZeroU64::get);
    let mebibytes = |bytes: Option<NonZeroU64>| rate(bytes).div_ceil(MEBIBYTE);
    let (limit, medium) = (there.limit, there.medium);
    let (product, specific) = match there.backing {
        Backing::File { path, .. } => {
            ("URING bdev", json!({ "uring": { "filename": path.display().to_string() } }))
        }
        Backing::Ram { .. } => ("Malloc disk", json!({})),
        Backing::Null { .. } => ("Null disk", json!({})),
    };
    let is_written = !medium.read_only();
    json!({
        "name": there.name,
        "aliases": [there.uuid.to_string()],
        "product_name": product,
        "block_size": medium.block_size(),
        "num_blocks": medium.size() / u64::from(medium.block_size()),
        "uuid": there.uuid.to_string(),
        "assigned_rate_limits": {
            "rw_ios_per_sec": rate(limit.iops),
            "rw_mbytes_per_sec": mebibytes(limit.bandwidth),
            "r_mbytes_per_sec": mebibytes(limit.read_bandwidth),
            "w_mbytes_per_sec": mebibytes(limit.write_bandwidth),
        },
        "claimed": there.is_used,
        "claim_type": if there.is_used { "exclusive_write" } else { "not_claimed" },
        "zoned": false,
        "supported_io_types": {
            "read": true,
            "write": is_written,
            "unmap": is_written && medium.deallocates(),
            "flush": true,
            "reset": false,
            "write_zeroes": is_written,
            "compare": true,
            "compare_and_write": is_written,
            "abort": true,
            "copy": is_written,
        },
        "driver_specific": specific,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: Option<String>,
    block_size: u32,
    num_blocks: u64,
    uuid: Option<Uuid>,
    physical_block_size: Option<u32>,
    optimal_io_boundary: Option<u32>,
    md_size: Option<u32>,
    #[serde(default)]
    md_interleave: bool,
    dif_type: Option<i32>,
    #[serde(default)]
    dif_is_head_of_md: bool,
    dif_pi_format: Option<u32>,
    numa_id: Option<i32>,
    preferred_write_granularity: Option<u32>,
    preferred_write_alignment: Option<u32>,
    optimal_write_size: Option<u32>,
    preferred_unmap_granularity: Option<u32>,
    preferred_unmap_alignment: Option<u32>,
}

impl Create {
    fn read(given: Value) -> Result<Self, RpcError> {
        let given: Self = parameters::read(given)?;
        let is_on = |number: Option<u32>| number.is_some_and(|number| number != 0);
        refuse(&[
            (
                "physical_block_size",
                given.physical_block_size.is_some_and(|size| ![0, given.block_size].contains(&size)),
            ),
            ("optimal_io_boundary", is_on(given.optimal_io_boundary)),
            ("md_size", is_on(given.md_size)),
            ("md_interleave", given.md_interleave),
            ("dif_type", given.dif_type.is_some_and(|kind| kind != 0)),
            ("dif_is_head_of_md", given.dif_is_head_of_md),
            ("dif_pi_format", is_on(given.dif_pi_format)),
            ("numa_id", given.numa_id.is_some_and(|node| node != -1)),
            ("preferred_write_granularity", is_on(given.preferred_write_granularity)),
            ("preferred_write_alignment", is_on(given.preferred_write_alignment)),
            ("optimal_write_size", is_on(given.optimal_write_size)),
            ("preferred_unmap_granularity", is_on(given.preferred_unmap_granularity)),
            ("preferred_unmap_alignment", is_on(given.preferred_unmap_alignment)),
        ])?;
        Ok(given)
    }

    /// # Errors
    /// If there is no such size.
    fn entries(&self, key: &'static str) -> Result<Entries, RpcError> {
        let bytes = self.num_blocks.checked_mul(self.block_size.into());
        let Some(bytes) = bytes.filter(|bytes| *bytes > 0 && bytes.is_multiple_of(4096)) else {
            let message = format!(
                "{} blocks of {} bytes are not whole blocks of 4096 bytes, at least one",
                self.num_blocks, self.block_size
            );
            return Err(RpcError::errno(Errno::EINVAL, message));
        };
        let mut entries = vec![(key, size(bytes)), ("lba", i64::from(self.block_size).into())];
        entries.extend(self.uuid.map(|uuid| ("uuid", uuid.to_string().into())));
        Ok(entries)
    }
}

/// Adds a bdev, and gives its name.
fn add(draft: &mut Draft, name: &str, entries: Entries) -> Result<Value, RpcError> {
    let name: BdevName = name.parse().map_err(|error| RpcError::invalid(format!("{error}")))?;
    draft.add_bdev(&name, entries)?;
    Ok(name.as_str().into())
}

/// Memory; without a name it is the first of Malloc0, Malloc1 and so on which there is not.
pub(super) fn malloc_create(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given = Create::read(given)?;
    let is_free = |name: &String| draft.config().bdevs.iter().all(|bdev| bdev.name.as_str() != name);
    let name = given.name.clone().or_else(|| (0..).map(|index| format!("Malloc{index}")).find(is_free));
    add(draft, &name.unwrap_or_default(), given.entries("ram")?)
}

pub(super) fn null_create(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given = Create::read(given)?;
    let name =
        given.name.as_deref().ok_or_else(|| RpcError::invalid("Invalid parameters: missing field `name`"))?;
    add(draft, name, given.entries("null")?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateFile {
    name: String,
    filename: String,
    block_size: Option<u32>,
    #[serde(default)]
    readonly: bool,
    /// Always so.
    #[serde(default, rename = "fallocate")]
    _fallocate: bool,
    #[serde(default)]
    nowait: bool,
    uuid: Option<Uuid>,
    /// Ours: bytes of a file which is made if it is missing.
    size: Option<u64>,
}

pub(super) fn aio_create(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given: CreateFile = parameters::read(given)?;
    refuse(&[("nowait", given.nowait)])?;
    let mut entries: Entries = vec![("path", given.filename.into())];
    entries.extend(given.block_size.filter(|size| *size != 0).map(|size| ("lba", i64::from(size).into())));
    entries.extend(given.size.map(|bytes| ("size", size(bytes))));
    entries.extend(given.readonly.then(|| ("read-only", true.into())));
    entries.extend(given.uuid.map(|uuid| ("uuid", uuid.to_string().into())));
    add(draft, &given.name, entries)
}

pub(super) fn uring_create(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let known = ["name", "filename", "block_size", "uuid", "size"];
    let others = given.as_object().and_then(|all| all.keys().find(|key| !known.contains(&key.as_str())));
    match others {
        Some(name) => Err(RpcError::invalid(format!("Invalid parameters: there is no `{name}`"))),
        None => aio_create(draft, given),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

fn delete(draft: &mut Draft, given: Value, is_such: fn(&Backing) -> bool) -> Result<Value, RpcError> {
    let Named { name } = parameters::read(given)?;
    if let Some((nqn, nsid)) = described(draft.config(), &name) {
        let message =
            format!("{name} is namespace {nsid} of {nqn} itself: nvmf_subsystem_remove_ns takes it away");
        return Err(RpcError::errno(Errno::EBUSY, message));
    }
    let found = draft.config().bdevs.iter().find(|bdev| bdev.name.as_str() == name);
    match found {
        Some(bdev) if is_such(&bdev.backing) => draft.remove_bdev(&name)?,
        Some(_) => return Err(RpcError::errno(Errno::ENODEV, format!("bdev {name} is of another kind"))),
        None => return Err(DraftError::NoBdev(name).into()),
    }
    Ok(Value::Bool(true))
}

/// The namespace which a name of the form `NQN/NSID` means, if it is one that is described where it is.
fn described(config: &Config, name: &str) -> Option<(Nqn, u32)> {
    let (nqn, nsid) = name.rsplit_once('/')?;
    let (nqn, nsid) = (nqn.parse().ok()?, nsid.parse().ok()?);
    let subsystem = config.subsystems.iter().find(|one| one.nqn.is_none_or(|name| name == nqn))?;
    subsystem.namespaces.iter().find(|one| one.nsid == nsid && one.bdev.is_none()).map(|_| (nqn, nsid))
}

pub(super) fn malloc_delete(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    delete(draft, given, |backing| matches!(backing, Backing::Ram { .. }))
}

pub(super) fn null_delete(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    delete(draft, given, |backing| matches!(backing, Backing::Null { .. }))
}

pub(super) fn file_delete(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    delete(draft, given, |backing| matches!(backing, Backing::File { .. }))
}

/// Sizes are looked at once a second anyway; this does it now.
pub(super) fn rescan(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    let Named { name } = parameters::read(given)?;
    subject.refresh();
    match all(subject.served()).iter().any(|one| one.name == name) {
        true => Ok(Value::Bool(true)),
        false => Err(DraftError::NoBdev(name).into()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QosLimit {
    name: String,
    rw_ios_per_sec: Option<u64>,
    rw_mbytes_per_sec: Option<u64>,
    r_mbytes_per_sec: Option<u64>,
    w_mbytes_per_sec: Option<u64>,
}

/// What is not named stays as it is; 0 is no limit.
pub(super) fn set_qos_limit(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given: QosLimit = parameters::read(given)?;
    let all = [given.rw_ios_per_sec, given.rw_mbytes_per_sec, given.r_mbytes_per_sec, given.w_mbytes_per_sec];
    if all.iter().all(Option::is_none) {
        return Err(RpcError::errno(Errno::EINVAL, "no rate limit is given: name one, 0 for none"));
    }
    let bytes = |mebibytes: u64| {
        let too_many = || RpcError::errno(Errno::EINVAL, format!("{mebibytes} MiB a second are too many"));
        mebibytes.checked_mul(MEBIBYTE).ok_or_else(too_many).map(NonZeroU64::new)
    };
    let set = |limit: &mut Limit| {
        if let Some(iops) = given.rw_ios_per_sec {
            limit.iops = NonZeroU64::new(iops);
        }
        if let Some(rate) = given.rw_mbytes_per_sec {
            limit.bandwidth = bytes(rate)?;
        }
        if let Some(rate) = given.r_mbytes_per_sec {
            limit.read_bandwidth = bytes(rate)?;
        }
        if let Some(rate) = given.w_mbytes_per_sec {
            limit.write_bandwidth = bytes(rate)?;
        }
        Ok::<_, RpcError>(())
    };
    match described(draft.config(), &given.name) {
        Some((nqn, nsid)) => {
            let mut limit = draft.namespace(&nqn, nsid)?.limit;
            set(&mut limit)?;
            draft.limit_namespace(&nqn, nsid, &limit)?;
        }
        None => {
            let found = draft.config().bdevs.iter().find(|bdev| bdev.name.as_str() == given.name);
            let mut limit = found.ok_or_else(|| DraftError::NoBdev(given.name.clone()))?.limit;
            set(&mut limit)?;
            draft.limit_bdev(&given.name, &limit)?;
        }
    }
    Ok(Value::Bool(true))
}
