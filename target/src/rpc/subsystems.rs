//! Subsystems: what there is, and one more or less.
use ironside_common::nvme::Nqn;
use serde::Deserialize;
use serde_json::{Value, json};
use toml_edit::Array;

use super::parameters::{self, nqn, refuse, target};
use super::{RpcError, Subject, addresses, bdevs};
use crate::catalog::{CNTLIDS, Catalog, Hosts, NSID_MAX, Subsystem};
use crate::control::draft::Draft;
use crate::control::prepare::Served;

/// The model of every controller here.
pub(super) const MODEL: &str = "Ironside";
/// What SPDK's are called unless told otherwise, which its saved configurations therefore say.
const MODEL_OF_SPDK: &str = "SPDK bdev Controller";
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    nqn: Option<String>,
    tgt_name: Option<String>,
}

pub(super) fn get(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    let given: Named = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    let served = subject.served();
    let all = served.catalog.subsystems().iter();
    match given.nqn {
        Some(name) if name == DISCOVERY => Ok(json!([discovery(&served.catalog)])),
        Some(name) => Ok(json!([describe(served, find(served, &name)?)])),
        None => {
            let all = all.map(|one| describe(served, one));
            Ok(std::iter::once(discovery(&served.catalog)).chain(all).collect())
        }
    }
}

/// The subsystem of this name.
///
/// # Errors
/// If there is none.
pub(super) fn find<'a>(served: &'a Served, name: &str) -> Result<&'a Subsystem, RpcError> {
    let found = served.catalog.subsystem(&nqn(name)?);
    found.ok_or_else(|| RpcError::invalid(format!("Unable to find subsystem with NQN {name}")))
}

fn discovery(catalog: &Catalog) -> Value {
    let listeners = catalog.listeners().iter().map(|one| addresses::describe(one.address));
    json!({
        "nqn": DISCOVERY,
        "subtype": "Discovery",
        "listen_addresses": listeners.collect::<Value>(),
        "allow_any_host": true,
        "hosts": [],
    })
}

fn describe(served: &Served, subsystem: &Subsystem) -> Value {
    let key_files = |host: &Nqn| {
        let said = served.said(subsystem.nqn())?;
        let key = said.keys.iter().find(|key| key.nqn == Some(*host))?;
        Some((key.key_file.display().to_string(), key.controller_key_file.as_ref()))
    };
    let host = |host: &Nqn| {
        let mut one = json!({ "nqn": host.as_str() });
        if let Some((file, controller)) = key_files(host) {
            one["dhchap_key"] = file.into();
            if let Some(controller) = controller {
                one["dhchap_ctrlr_key"] = controller.display().to_string().into();
            }
        }
        one
    };
    let hosts = match subsystem.hosts() {
        Hosts::Any => json!([]),
        Hosts::Listed(hosts) => hosts.iter().map(host).collect(),
    };
    let namespaces = subsystem.namespaces().iter().map(|one| {
        let name = bdevs::name_of(served, subsystem.nqn(), one.nsid);
        json!({
            "nsid": one.nsid,
            "bdev_name": name,
            "name": name,
            "nguid": one.nguid.simple().to_string().to_uppercase(),
            "uuid": one.uuid.to_string(),
            "anagrpid": one.ana_group,
        })
    });
    json!({
        "nqn": subsystem.nqn().as_str(),
        "subtype": "NVMe",
        "listen_addresses": subsystem.listen().iter().map(|&at| addresses::describe(at)).collect::<Value>(),
        "allow_any_host": *subsystem.hosts() == Hosts::Any,
        "hosts": hosts,
        "serial_number": subsystem.serial(),
        "model_number": MODEL,
        "max_namespaces": NSID_MAX,
        "passthrough": false,
        "min_cntlid": subsystem.cntlids().start(),
        "max_cntlid": subsystem.cntlids().end(),
        "dmrsl": 0,
        "wzsl": 0,
        "namespaces": namespaces.collect::<Value>(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    nqn: String,
    tgt_name: Option<String>,
    serial_number: Option<String>,
    model_number: Option<String>,
    admin_label: Option<String>,
    max_namespaces: Option<u32>,
    #[serde(default)]
    allow_any_host: bool,
    /// Always on.
    #[serde(default, rename = "ana_reporting")]
    _ana_reporting: bool,
    min_cntlid: Option<u16>,
    max_cntlid: Option<u16>,
    #[serde(default)]
    dmrsl: u32,
    #[serde(default)]
    wzsl: u8,
    #[serde(default)]
    passthrough: bool,
    #[serde(default)]
    enable_nssr: bool,
}

/// A subsystem nobody reaches yet, without a namespace.
pub(super) fn create(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given: Create = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    let model = given.model_number.as_deref();
    refuse(&[
        ("model_number", model.is_some_and(|model| ![MODEL, MODEL_OF_SPDK].contains(&model))),
        ("admin_label", given.admin_label.is_some()),
        ("max_namespaces", given.max_namespaces.is_some_and(|most| most > NSID_MAX)),
        ("dmrsl", given.dmrsl != 0),
        ("wzsl", given.wzsl != 0),
        ("passthrough", given.passthrough),
        ("enable_nssr", given.enable_nssr),
    ])?;
    let mut entries = Vec::new();
    if let Some(serial) = given.serial_number {
        entries.push(("serial", serial.into()));
    }
    match given.allow_any_host {
        true => entries.push(("allow-any-host", true.into())),
        false => entries.push(("allow-hosts", Array::new().into())),
    }
    entries.push(("listen", Array::new().into()));
    let (min, max) =
        (given.min_cntlid.unwrap_or(*CNTLIDS.start()), given.max_cntlid.unwrap_or(*CNTLIDS.end()));
    if (min..=max) != CNTLIDS {
        entries.push(("cntlid-min", i64::from(min).into()));
        entries.push(("cntlid-max", i64::from(max).into()));
    }
    draft.add_subsystem(&nqn(&given.nqn)?, entries)?;
    Ok(Value::Bool(true))
}

pub(super) fn delete(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given: Named = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    let name = given.nqn.ok_or_else(|| RpcError::invalid("Invalid parameters: missing field `nqn`"))?;
    draft.remove_subsystem(&nqn(&name)?)?;
    Ok(Value::Bool(true))
}
