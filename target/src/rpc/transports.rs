//! The transport there is: RDMA, by adapters and in software. What it is like is decided at the start.
use serde::Deserialize;
use serde_json::{Value, json};

use super::parameters::{self, TARGET, target};
use super::{RpcError, Subject};
use crate::control::config::Config;
use crate::limits::Resource;

/// What SPDK's has that makes no difference to hosts, or is off unless asked for: taken note of by nobody.
const HINTS: [&str; 21] = [
    "abort_timeout_sec",
    "acceptor_backlog",
    "acceptor_poll_rate",
    "ack_timeout",
    "buf_cache_size",
    "c2h_success",
    "control_msg_num",
    "data_wr_pool_size",
    "disable_command_passthru",
    "dif_insert_or_strip",
    "io_unit_size",
    "iobuf_large_cache_size",
    "iobuf_small_cache_size",
    "max_aq_depth",
    "max_srq_depth",
    "no_srq",
    "no_wr_batching",
    "num_cqe",
    "num_shared_buffers",
    "sock_priority",
    "zcopy",
];
/// Of these, what is asked for in vain where it is on.
const MUST_BE_OFF: [&str; 4] =
    ["dif_insert_or_strip", "disable_mappable_bar0", "disable_adaptive_irq", "disable_shadow_doorbells"];

/// What of it is decided by the configuration: SPDK's name, ours, and the number.
fn decided(config: &Config) -> [(&'static str, &'static str, u64); 4] {
    let limit = |resource| config.limits.of(resource);
    [
        ("max_queue_depth", "queue-depth", config.queue_depth.into()),
        ("max_io_qpairs_per_ctrlr", "io-queues in [limits]", limit(Resource::IoQueues)),
        ("in_capsule_data_size", "in-capsule in [limits]", limit(Resource::InCapsule)),
        ("max_io_size", "transfer-size in [limits]", limit(Resource::TransferSize)),
    ]
}

/// As it is saved, to be checked when it is loaded.
pub(super) fn saved(config: &Config) -> Value {
    let mut all = json!({ "trtype": "RDMA" });
    for (name, _, number) in decided(config) {
        all[name] = number.into();
    }
    all
}

/// Whether a transport as it is asked for is the one there is.
///
/// # Errors
/// In what it differs, and what decides that.
pub(super) fn check(config: &Config, given: Value) -> Result<(), RpcError> {
    let Value::Object(given) = given else { return Err(RpcError::invalid("`params` is an object")) };
    let decided = decided(config);
    for (name, value) in &given {
        let is_on = *value == Value::Bool(true);
        match name.as_str() {
            "trtype" if value.as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("rdma")) => {}
            "trtype" => {
                return Err(RpcError::invalid(format!("Transport type {value} unavailable: there is RDMA")));
            }
            "tgt_name" => target(value.as_str())?,
            name if MUST_BE_OFF.contains(&name) && is_on => {
                return Err(RpcError::invalid(format!("`{name}` is not offered: leave it out")));
            }
            name if HINTS.contains(&name) || MUST_BE_OFF.contains(&name) => {}
            name => {
                let Some((_, ours, number)) = decided.iter().find(|(theirs, ..)| *theirs == name) else {
                    return Err(RpcError::invalid(format!("Invalid parameters: there is no `{name}`")));
                };
                if value.as_u64() != Some(*number) {
                    let message = format!(
                        "`{name}` is {number} here, not {value}: the configuration decides, by `{ours}`, at the start"
                    );
                    return Err(RpcError::invalid(message));
                }
            }
        }
    }
    match given.contains_key("trtype") {
        true => Ok(()),
        false => Err(RpcError::invalid("Invalid parameters: missing field `trtype`")),
    }
}

/// It is there already: what is asked for has to be what it is.
pub(super) fn create(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    check(&subject.served().config, given)?;
    Ok(Value::Bool(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    trtype: Option<String>,
    tgt_name: Option<String>,
}

pub(super) fn get(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    let given: Get = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    if given.trtype.is_some_and(|kind| !kind.eq_ignore_ascii_case("rdma")) {
        return Err(RpcError::errno(nix::errno::Errno::ENODEV, "there is no such transport: there is RDMA"));
    }
    Ok(json!([saved(&subject.served().config)]))
}

pub(super) fn get_targets(_: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    parameters::none(given)?;
    Ok(json!([TARGET]))
}
