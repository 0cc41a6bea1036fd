//! The configuration as a list of methods which make it, as SPDK saves and loads it; and as the file it is.
use serde::Deserialize;
use serde_json::{Value, json};

use super::methods::{Method, method};
use super::{Applied, RpcError, Subject, addresses, bdevs, parameters, subsystems, transports};
use crate::catalog::{Hosts, Subsystem};
use crate::control::config::Backing;
use crate::control::draft::Draft;
use crate::control::prepare::Served;

/// The parts a configuration has, in the order in which they are made.
const PARTS: [&str; 2] = ["bdev", "nvmf"];
/// Calls which one configuration loads.
const CALLS_MAX: usize = 65_536;

pub(super) fn get_subsystems(_: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    parameters::none(given)?;
    Ok(json!([
        { "subsystem": "bdev", "depends_on": [] },
        { "subsystem": "nvmf", "depends_on": ["bdev"] },
    ]))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetConfig {
    name: String,
    /// Nothing is saved in batches here.
    #[serde(default, rename = "with_batches")]
    _with_batches: bool,
}

pub(super) fn get_config(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    let given: GetConfig = parameters::read(given)?;
    let served = subject.served();
    match given.name.as_str() {
        "bdev" => Ok(bdev_calls(served).into()),
        "nvmf" => {
            check_sayable(served)?;
            Ok(nvmf_calls(served).into())
        }
        name => {
            Err(RpcError::invalid(format!("Subsystem '{name}' not found: there are {}", PARTS.join(" and "))))
        }
    }
}

/// Whoever loads what was saved shall not admit without proof, or without limit, whom we do not.
///
/// # Errors
/// If SPDK's methods have no words for something that is served.
fn check_sayable(served: &Served) -> Result<(), RpcError> {
    for nqn in served.catalog.subsystems().iter().map(Subsystem::nqn) {
        let Some(said) = served.said(nqn) else { continue };
        let limits = &said.host_limits;
        let what = if !said.keys.is_empty() {
            "a host has to authenticate"
        } else if !limits.named.is_empty() {
            "a host has a limit of its own"
        } else if limits.each.is_any() {
            "each host is limited"
        } else {
            continue;
        };
        return Err(RpcError::internal(format!(
            "{what} at {nqn}, which SPDK's methods do not say and whoever loads this would not know: save the file \
             instead (`ironside-target ctl save`, ironside_get_config)"
        )));
    }
    Ok(())
}

fn call(method: &str, parameters: Value) -> Value {
    json!({ "method": method, "params": parameters })
}

fn bdev_calls(served: &Served) -> Vec<Value> {
    let mut calls = Vec::new();
    for bdevs::There { name, backing, medium, uuid, limit, .. } in bdevs::all(served) {
        let block_size = medium.block_size();
        let blocks = |size: u64| size / u64::from(block_size);
        calls.push(match backing {
            Backing::Ram { size } => call(
                "bdev_malloc_create",
                json!({
                    "name": name, "num_blocks": blocks(*size), "block_size": block_size, "uuid": uuid,
                }),
            ),
            Backing::Null { size } => call(
                "bdev_null_create",
                json!({
                    "name": name, "num_blocks": blocks(*size), "block_size": block_size, "uuid": uuid,
                }),
            ),
            // Only this one of the two knows what is read only.
            Backing::File { path, .. } if medium.read_only() => call(
                "bdev_aio_create",
                json!({
                    "name": name, "filename": path, "block_size": block_size, "readonly": true, "uuid": uuid,
                }),
            ),
            Backing::File { path, .. } => call(
                "bdev_uring_create",
                json!({
                    "name": name, "filename": path, "block_size": block_size, "uuid": uuid,
                }),
            ),
        });
        if limit.is_any() {
            let rate = |rate: Option<std::num::NonZeroU64>| rate.map_or(0, std::num::NonZeroU64::get);
            calls.push(call(
                "bdev_set_qos_limit",
                json!({
                    "name": name,
                    "rw_ios_per_sec": rate(limit.iops),
                    "rw_mbytes_per_sec": rate(limit.bandwidth).div_ceil(1 << 20),
                    "r_mbytes_per_sec": rate(limit.read_bandwidth).div_ceil(1 << 20),
                    "w_mbytes_per_sec": rate(limit.write_bandwidth).div_ceil(1 << 20),
                }),
            ));
        }
    }
    calls
}

fn nvmf_calls(served: &Served) -> Vec<Value> {
    let mut calls = vec![call("nvmf_create_transport", transports::saved(&served.config))];
    for subsystem in served.catalog.subsystems() {
        let nqn = subsystem.nqn().as_str();
        calls.push(call(
            "nvmf_create_subsystem",
            json!({
                "nqn": nqn,
                "allow_any_host": *subsystem.hosts() == Hosts::Any,
                "serial_number": subsystem.serial(),
                "model_number": subsystems::MODEL,
                "min_cntlid": subsystem.cntlids().start(),
                "max_cntlid": subsystem.cntlids().end(),
                "ana_reporting": true,
            }),
        ));
        if let Hosts::Listed(hosts) = subsystem.hosts() {
            let host = |host: &ironside_common::nvme::Nqn| {
                call("nvmf_subsystem_add_host", json!({ "nqn": nqn, "host": host.as_str() }))
            };
            calls.extend(hosts.iter().map(host));
        }
        for namespace in subsystem.namespaces() {
            let name = bdevs::name_of(served, subsystem.nqn(), namespace.nsid);
            calls.push(call(
                "nvmf_subsystem_add_ns",
                json!({
                    "nqn": nqn,
                    "namespace": {
                        "nsid": namespace.nsid, "bdev_name": name, "uuid": namespace.uuid,
                        "anagrpid": namespace.ana_group,
                    },
                }),
            ));
            if let Hosts::Listed(hosts) = &namespace.hosts {
                calls.extend(hosts.iter().map(|host| {
                    let parameters = json!({ "nqn": nqn, "nsid": namespace.nsid, "host": host.as_str() });
                    call("nvmf_ns_add_host", parameters)
                }));
            }
        }
        for &at in subsystem.listen() {
            let address = addresses::describe(at);
            calls.push(call("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": address })));
            for group in subsystem.ana_groups() {
                let state = subsystem.ana_state(group, at);
                if state != ironside_common::nvme::log_page::AnaState::OPTIMIZED {
                    let word = state.to_string().replace(['-', ' '], "_");
                    calls.push(call(
                        "nvmf_subsystem_listener_set_ana_state",
                        json!({
                            "nqn": nqn, "listen_address": address, "ana_state": word, "anagrpid": group,
                        }),
                    ));
                }
            }
        }
    }
    calls
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    subsystems: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    subsystem: String,
    config: Option<Vec<Call>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    method: String,
    #[serde(default)]
    params: Value,
}

/// All that a saved configuration says, or nothing of it. What it says of the transport has to be what it is.
pub(super) fn load_config(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let saved: Saved = parameters::read(given)?;
    let calls: usize = saved.subsystems.iter().map(|part| part.config.as_ref().map_or(0, Vec::len)).sum();
    if calls > CALLS_MAX {
        return Err(RpcError::invalid(format!("a configuration has {CALLS_MAX} calls at most")));
    }
    for part in saved.subsystems {
        for (number, Call { method: name, params }) in (1..).zip(part.config.unwrap_or_default()) {
            let parameters = if params.is_null() { json!({}) } else { params };
            let done = match method(&name) {
                Some(Method::Edit(edit)) if name != "load_config" => edit(draft, parameters).map(drop),
                Some(_) if name == "nvmf_create_transport" => transports::check(draft.config(), parameters),
                _ => Err(RpcError::method(&name)),
            };
            done.map_err(|mut error| {
                error.message = format!("{}, call {number}, {name}: {}", part.subsystem, error.message);
                error
            })?;
        }
    }
    Ok(Value::Bool(true))
}

/// The configuration as a file has it.
pub(super) fn get_file(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    parameters::none(given)?;
    let file = subject.file().map(|path| path.display().to_string());
    Ok(json!({ "file": file, "toml": subject.text() }))
}

pub(super) fn reload(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    parameters::none(given)?;
    let Applied { changes, kept } = subject.reload()?;
    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
    Ok(json!({ "changes": changes, "needs_restart": kept }))
}
