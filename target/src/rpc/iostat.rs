//! What was asked of bdevs, in the shape of SPDK's `bdev_get_iostat`.
use ironside_common::reactor::clock;
use nix::errno::Errno;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::status::TICK_RATE;
use super::{RpcError, Subject, bdevs, parameters};
use crate::poll_group::Survey;
use crate::qpair::{CommandKind, Used};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetIostat {
    name: Option<String>,
    names: Option<Vec<String>>,
    #[serde(default)]
    per_channel: bool,
    reset_mode: Option<String>,
}

type OfKinds = [Used; CommandKind::ALL.len()];

/// Counts are of the namespace which is made of a bdev: one of which none was made has done nothing.
pub(super) fn get_iostat(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    let given: GetIostat = parameters::read(given)?;
    if given.reset_mode.is_some_and(|mode| mode != "none") {
        let message = "`reset_mode` can only be `none`: what is counted only ever grows";
        return Err(RpcError::invalid(message));
    }
    let names = match (given.name, given.names) {
        (Some(_), Some(_)) => return Err(RpcError::errno(Errno::EINVAL, "`name` or `names`, not both")),
        (Some(name), None) => Some(vec![name]),
        (None, names) => names,
    };
    let surveys = subject.survey()?;
    let all = bdevs::names(subject.served());
    let known = |name: &String| all.iter().find(|(known, uuid)| known == name || uuid.to_string() == *name);
    let missing = |name: &String| RpcError::errno(Errno::ENODEV, format!("there is no bdev {name}"));
    let wanted: Vec<&(String, Uuid)> = match &names {
        None => all.iter().collect(),
        Some(names) => {
            names.iter().map(|name| known(name).ok_or_else(|| missing(name))).collect::<Result<_, _>>()?
        }
    };
    let (tick_rate, ticks) = (TICK_RATE, clock::now().as_nanos());
    match wanted[..] {
        [(name, uuid)] if given.per_channel => {
            let channels = surveys.iter().map(|one| {
                let thread = ("thread_id".to_owned(), one.reactor.into());
                Value::Object([thread].into_iter().chain(describe(used(one, *uuid))).collect())
            });
            let channels: Value = channels.collect();
            Ok(json!({ "tick_rate": tick_rate, "ticks": ticks, "name": name, "channels": channels }))
        }
        _ if given.per_channel => Err(RpcError::errno(Errno::EINVAL, "`per_channel` is for one bdev")),
        _ => {
            let bdevs = wanted.into_iter().map(|(name, uuid)| {
                let named = ("name".to_owned(), name.as_str().into());
                let sum = surveys.iter().fold(OfKinds::default(), |sum, one| plus(sum, used(one, *uuid)));
                Value::Object([named].into_iter().chain(describe(sum)).collect())
            });
            Ok(json!({ "tick_rate": tick_rate, "ticks": ticks, "bdevs": bdevs.collect::<Value>() }))
        }
    }
}

/// What one reactor has done for the namespaces which were made of a bdev.
fn used(survey: &Survey, uuid: Uuid) -> OfKinds {
    let of_it = survey.namespaces.iter().filter(|one| one.uuid == uuid);
    of_it.fold(OfKinds::default(), |sum, one| plus(sum, one.used))
}

fn plus(one: OfKinds, other: OfKinds) -> OfKinds {
    std::array::from_fn(|kind| one[kind].plus(other[kind]))
}

/// SPDK's names: for bytes, commands and times of a kind.
const NAMES: [(CommandKind, &str, &str); 4] = [
    (CommandKind::Read, "read", "read"),
    (CommandKind::Write, "written", "write"),
    (CommandKind::Deallocate, "unmapped", "unmap"),
    (CommandKind::Copy, "copied", "copy"),
];

fn describe(used: OfKinds) -> Map<String, Value> {
    let mut told = Map::new();
    for (kind, done, name) in NAMES {
        let used = used[kind as usize];
        told.insert(format!("bytes_{done}"), used.bytes.into());
        told.insert(format!("num_{name}_ops"), used.succeeded.into());
    }
    for (kind, _, name) in NAMES {
        let used = used[kind as usize];
        told.insert(format!("{name}_latency_ticks"), used.nanos.into());
        told.insert(format!("max_{name}_latency_ticks"), used.longest_nanos.into());
        told.insert(
            format!("min_{name}_latency_ticks"),
            if used.succeeded > 0 { used.shortest_nanos } else { 0 }.into(),
        );
    }
    let failed: u64 = used.iter().map(|used| used.failed).sum();
    told.insert("io_error".into(), if failed > 0 { json!({ "failed": failed }) } else { json!({}) });
    told
}
