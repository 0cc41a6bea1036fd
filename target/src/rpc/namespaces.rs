//! Namespaces of subsystems, each made of a bdev, and who sees them.
use ironside_common::nvme::Nqn;
use serde::Deserialize;
use serde_json::{Value, json};

use super::RpcError;
use super::parameters::{self, nqn, refuse, target};
use crate::control::draft::{Draft, DraftError};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Add {
    nqn: String,
    namespace: Namespace,
    tgt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Namespace {
    bdev_name: String,
    nsid: Option<u32>,
    nguid: Option<String>,
    eui64: Option<String>,
    uuid: Option<String>,
    anagrpid: Option<u32>,
    ptpl_file: Option<String>,
    #[serde(default)]
    no_auto_visible: bool,
}

/// Gives the number it has got.
pub(super) fn add(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let Add { nqn: name, namespace, tgt_name } = parameters::read(given)?;
    target(tgt_name.as_deref())?;
    let uuid = namespace.uuid.as_deref().map(identity).transpose()?;
    let nguid = namespace.nguid.as_deref().map(identity).transpose()?;
    // Both are the same 16 bytes here.
    let uuid = match (uuid, nguid) {
        (Some(uuid), Some(nguid)) if uuid != nguid => {
            return Err(RpcError::invalid("`nguid` and `uuid` are the same 16 bytes here: give one of them"));
        }
        (uuid, nguid) => uuid.or(nguid),
    };
    refuse(&[("eui64", namespace.eui64.is_some())])?;
    // Where they last is the state directory, for every namespace but one in memory.
    refuse(&[("ptpl_file", namespace.ptpl_file.is_some())])?;
    if !draft.config().bdevs.iter().any(|bdev| bdev.name.as_str() == namespace.bdev_name) {
        return Err(DraftError::NoBdev(namespace.bdev_name).into());
    }
    let mut entries = vec![("bdev", namespace.bdev_name.into())];
    if let Some(uuid) = uuid {
        entries.push(("uuid", uuid.to_string().into()));
    }
    if let Some(group) = namespace.anagrpid.filter(|group| *group != 1) {
        entries.push(("ana-group", i64::from(group).into()));
    }
    if namespace.no_auto_visible {
        return Err(RpcError::invalid(
            "`no_auto_visible` is not offered: a namespace is for all hosts of its subsystem until nvmf_ns_add_host names some",
        ));
    }
    let nsid = namespace.nsid.filter(|nsid| *nsid != 0);
    Ok(json!(draft.add_namespace(&nqn(&name)?, nsid, entries)?))
}

/// 16 bytes, with dashes or without.
fn identity(text: &str) -> Result<uuid::Uuid, RpcError> {
    text.parse().map_err(|_| RpcError::invalid(format!("{text:?} is not 16 bytes in hexadecimal")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    nqn: String,
    nsid: u32,
    tgt_name: Option<String>,
    anagrpid: Option<u32>,
    host: Option<String>,
}

fn named(given: Value) -> Result<(Nqn, Named), RpcError> {
    let given: Named = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    Ok((nqn(&given.nqn)?, given))
}

pub(super) fn remove(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let (subsystem, given) = named(given)?;
    refuse(&[("anagrpid", given.anagrpid.is_some()), ("host", given.host.is_some())])?;
    draft.remove_namespace(&subsystem, given.nsid)?;
    Ok(Value::Bool(true))
}

pub(super) fn set_ana_group(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let (subsystem, given) = named(given)?;
    refuse(&[("host", given.host.is_some())])?;
    let group =
        given.anagrpid.ok_or_else(|| RpcError::invalid("Invalid parameters: missing field `anagrpid`"))?;
    draft.group_namespace(&subsystem, given.nsid, group)?;
    Ok(Value::Bool(true))
}

/// Of a namespace which all hosts see, the first host named is the one for which it remains.
pub(super) fn add_host(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let (subsystem, nsid, host) = visible(given)?;
    let mut hosts = draft.namespace(&subsystem, nsid)?.hosts.clone().unwrap_or_default();
    if !hosts.contains(&host) {
        hosts.push(host);
    }
    draft.show_namespace(&subsystem, nsid, Some(&hosts))?;
    Ok(Value::Bool(true))
}

pub(super) fn remove_host(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let (subsystem, nsid, host) = visible(given)?;
    let Some(mut hosts) = draft.namespace(&subsystem, nsid)?.hosts.clone() else {
        return Err(RpcError::invalid(
            "all hosts of the subsystem see it: nvmf_ns_add_host names those which are to",
        ));
    };
    hosts.retain(|one| *one != host);
    if hosts.is_empty() {
        return Err(RpcError::invalid(
            "it is the last host which sees the namespace: nvmf_subsystem_remove_ns takes it away from all",
        ));
    }
    draft.show_namespace(&subsystem, nsid, Some(&hosts))?;
    Ok(Value::Bool(true))
}

fn visible(given: Value) -> Result<(Nqn, u32, Nqn), RpcError> {
    let (subsystem, given) = named(given)?;
    refuse(&[("anagrpid", given.anagrpid.is_some())])?;
    let host = given.host.ok_or_else(|| RpcError::invalid("Invalid parameters: missing field `host`"))?;
    Ok((subsystem, given.nsid, nqn(&host)?))
}
