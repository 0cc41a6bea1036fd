//! Who may connect to a subsystem.
use ironside_common::identity::host_identity;
use ironside_common::nvme::Nqn;
use serde::Deserialize;
use serde_json::Value;

use super::RpcError;
use super::parameters::{self, nqn, refuse, target};
use crate::control::config::{Hosts, Subsystem};
use crate::control::draft::Draft;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    psk: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
    /// How long hosts have is in the configuration.
    #[serde(rename = "timeout_ms")]
    _timeout_ms: Option<u64>,
}

/// The hosts on the list, this machine's own in full; nothing if any is admitted.
fn listed(said: &Subsystem) -> Result<Option<Vec<Nqn>>, RpcError> {
    let own = || host_identity().map(|host| host.nqn).map_err(|error| RpcError::internal(error.to_string()));
    Ok(match &said.hosts {
        Hosts::Any => None,
        Hosts::Listed(hosts) => Some(hosts.clone()),
        // Whoever has a key or a limit is admitted in its place.
        Hosts::ThisMachine if !said.keys.is_empty() || !said.host_limits.named.is_empty() => Some(Vec::new()),
        Hosts::ThisMachine => Some(vec![own()?]),
    })
}

fn has_table(said: &Subsystem, host: Nqn) -> bool {
    let keys = said.keys.iter().map(|key| key.nqn);
    keys.chain(said.host_limits.named.iter().map(|(nqn, _)| *nqn)).any(|one| one == Some(host))
}

pub(super) fn add(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given: Host = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    let keys = [
        ("psk", given.psk.is_some()),
        ("dhchap_key", given.dhchap_key.is_some()),
        ("dhchap_ctrlr_key", given.dhchap_ctrlr_key.is_some()),
    ];
    refuse(&keys).map_err(|mut error| {
        error.message.push_str("; a host which has to authenticate is described in the configuration file, as [[subsystem.host]]");
        error
    })?;
    let (subsystem, host) = (nqn(&given.nqn)?, nqn(&given.host)?);
    let said = draft.subsystem(&subsystem)?;
    let Some(mut hosts) = listed(said)? else {
        return Err(RpcError::invalid("any host is allowed: nvmf_subsystem_allow_any_host ends that"));
    };
    if hosts.contains(&host) || has_table(said, host) {
        return Err(RpcError::invalid(format!("host {host} is allowed already")));
    }
    hosts.push(host);
    draft.admit(&subsystem, Some(&hosts))?;
    Ok(Value::Bool(true))
}

/// Its connections end, and all that is said of it goes.
pub(super) fn remove(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given: Host = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    let (subsystem, host) = (nqn(&given.nqn)?, nqn(&given.host)?);
    let said = draft.subsystem(&subsystem)?;
    let hosts = listed(said)?.unwrap_or_default();
    if !hosts.contains(&host) && !has_table(said, host) {
        return Err(RpcError::invalid(format!("host {host} is not on the list of {subsystem}")));
    }
    // The list first: with no table left it would be this machine's host who is admitted.
    if said.hosts != Hosts::Any {
        let others: Vec<Nqn> = hosts.into_iter().filter(|one| *one != host).collect();
        draft.admit(&subsystem, Some(&others))?;
    }
    draft.forget_host(&subsystem, &host)?;
    Ok(Value::Bool(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowAny {
    nqn: String,
    allow_any_host: bool,
    tgt_name: Option<String>,
}

pub(super) fn allow_any(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given: AllowAny = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    let subsystem = nqn(&given.nqn)?;
    let is_any = draft.subsystem(&subsystem)?.hosts == Hosts::Any;
    match (given.allow_any_host, is_any) {
        (true, false) => draft.admit(&subsystem, None)?,
        (false, true) => draft.admit(&subsystem, Some(&[]))?,
        _ => {}
    }
    Ok(Value::Bool(true))
}
