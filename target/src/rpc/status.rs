//! What the reactors of the target have and have done.
use ironside_common::nvme::Nqn;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::parameters::{self, target};
use super::{RpcError, Subject, addresses, subsystems};
use crate::poll_group::{QueueReport, Survey};

/// Ticks of a second in what is reported: nanoseconds.
pub(super) const TICK_RATE: u64 = 1_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    nqn: String,
    tgt_name: Option<String>,
}

/// The name of a subsystem that is there.
fn named(subject: &dyn Subject, given: Value) -> Result<Nqn, RpcError> {
    let given: Named = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    Ok(*subsystems::find(subject.served(), &given.nqn)?.nqn())
}

pub(super) fn get_controllers(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    let nqn = named(subject, given)?;
    let surveys = subject.survey()?;
    let all = surveys.iter().flat_map(|survey| &survey.controllers).filter(|one| one.subsystem == nqn);
    Ok(all
        .map(|one| {
            json!({
                "cntlid": one.cntlid,
                "cntrltype": "io",
                "hostnqn": one.host.as_str(),
                "hostid": Uuid::from_bytes(one.host_id).to_string(),
                "num_io_qpairs": one.io_queues,
            })
        })
        .collect())
}

pub(super) fn get_qpairs(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    let nqn = named(subject, given)?;
    let surveys = subject.survey()?;
    let of_it: Vec<u16> = {
        let controllers = surveys.iter().flat_map(|survey| &survey.controllers);
        controllers.filter(|one| one.subsystem == nqn).map(|one| one.cntlid).collect()
    };
    let queue = |reactor: usize, one: &QueueReport| {
        json!({
            "cntlid": one.cntlid,
            "qid": one.qid,
            "state": "enabled",
            "thread": thread(reactor),
            "hostnqn": one.host,
            "listen_address": addresses::describe(one.local),
            "peer_address": addresses::describe(one.peer),
        })
    };
    let mut queues = Vec::new();
    for survey in &surveys {
        let here = survey.queues.iter().filter(|one| of_it.contains(&one.cntlid));
        queues.extend(here.map(|one| queue(survey.reactor, one)));
    }
    Ok(queues.into())
}

fn thread(reactor: usize) -> String {
    format!("reactor-{reactor}")
}

pub(super) fn get_stats(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parameters {
        tgt_name: Option<String>,
    }
    let given: Parameters = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    let groups: Vec<Value> = subject.survey()?.iter().map(group).collect();
    Ok(json!({ "tick_rate": TICK_RATE, "poll_groups": groups }))
}

fn group(survey: &Survey) -> Value {
    let admin = survey.queues.iter().filter(|queue| queue.qid == 0).count();
    json!({
        "name": thread(survey.reactor),
        "admin_qpairs": survey.total.admin_queues,
        "io_qpairs": survey.total.io_queues,
        "current_admin_qpairs": admin,
        "current_io_qpairs": survey.queues.len() - admin,
        "current_unassociated_qpairs": survey.unassociated,
        "pending_bdev_io": survey.waiting,
        "completed_nvme_io": survey.total.commands,
        "transports": [{ "trtype": "RDMA" }],
    })
}

pub(super) fn get_reactors(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    parameters::none(given)?;
    let reactors: Vec<Value> = subject
        .survey()?
        .iter()
        .map(|survey| json!({ "lcore": survey.reactor, "lw_threads": [{ "name": thread(survey.reactor) }] }))
        .collect();
    Ok(json!({ "tick_rate": TICK_RATE, "pid": std::process::id(), "reactors": reactors }))
}

/// All at a glance, for people.
pub(super) fn get_status(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    parameters::none(given)?;
    let surveys = subject.survey()?;
    let served = subject.served();
    let controllers = || surveys.iter().flat_map(|survey| &survey.controllers);
    let subsystems = served.catalog.subsystems().iter().map(|one| {
        let here = || controllers().filter(|controller| controller.subsystem == *one.nqn());
        let mut hosts: Vec<&str> = here().map(|controller| controller.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        json!({
            "nqn": one.nqn().as_str(),
            "namespaces": one.namespaces().len(),
            "bytes": one.namespaces().iter().map(|one| one.blocks << one.block_shift).sum::<u64>(),
            "listeners": one.listen().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "controllers": here().count(),
            "hosts": hosts,
        })
    });
    let queues: usize = surveys.iter().map(|survey| survey.queues.len()).sum();
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "configuration": subject.file().map(|path| path.display().to_string()),
        "catalog_version": served.catalog.version(),
        "reactors": surveys.len(),
        "connections": queues + surveys.iter().map(|survey| survey.unassociated).sum::<usize>(),
        "commands": surveys.iter().map(|survey| survey.total.commands).sum::<u64>(),
        "subsystems": subsystems.collect::<Value>(),
    }))
}
