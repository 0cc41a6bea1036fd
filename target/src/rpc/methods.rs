//! The methods there are.
use serde_json::{Value, json};

use super::{
    RpcError, Subject, bdevs, configuration, hosts, iostat, listeners, namespaces, status, subsystems,
    transports,
};
use crate::control::draft::Draft;

/// How a method is done.
#[derive(Clone, Copy)]
pub(super) enum Method {
    /// It looks at the target, or has it do something of its own.
    Look(fn(&mut dyn Subject, Value) -> Result<Value, RpcError>),
    /// It changes the configuration; the target goes over to that afterwards.
    Edit(fn(&mut Draft, Value) -> Result<Value, RpcError>),
}

use Method::{Edit, Look};

/// By name.
const METHODS: [(&str, Method); 46] = [
    ("bdev_aio_create", Edit(bdevs::aio_create)),
    ("bdev_aio_delete", Edit(bdevs::file_delete)),
    ("bdev_aio_rescan", Look(bdevs::rescan)),
    ("bdev_get_bdevs", Look(bdevs::get_bdevs)),
    ("bdev_get_iostat", Look(iostat::get_iostat)),
    ("bdev_malloc_create", Edit(bdevs::malloc_create)),
    ("bdev_malloc_delete", Edit(bdevs::malloc_delete)),
    ("bdev_null_create", Edit(bdevs::null_create)),
    ("bdev_null_delete", Edit(bdevs::null_delete)),
    ("bdev_set_qos_limit", Edit(bdevs::set_qos_limit)),
    ("bdev_uring_create", Edit(bdevs::uring_create)),
    ("bdev_uring_delete", Edit(bdevs::file_delete)),
    ("bdev_uring_rescan", Look(bdevs::rescan)),
    ("bdev_wait_for_examine", Look(yes)),
    ("framework_get_config", Look(configuration::get_config)),
    ("framework_get_pci_devices", Look(nothing)),
    ("framework_get_reactors", Look(status::get_reactors)),
    ("framework_get_subsystems", Look(configuration::get_subsystems)),
    ("framework_wait_init", Look(yes)),
    ("ironside_get_config", Look(configuration::get_file)),
    ("ironside_get_status", Look(status::get_status)),
    ("ironside_reload", Look(configuration::reload)),
    ("load_config", Edit(configuration::load_config)),
    ("nvmf_create_subsystem", Edit(subsystems::create)),
    ("nvmf_create_transport", Look(transports::create)),
    ("nvmf_delete_subsystem", Edit(subsystems::delete)),
    ("nvmf_get_stats", Look(status::get_stats)),
    ("nvmf_get_subsystems", Look(subsystems::get)),
    ("nvmf_get_targets", Look(transports::get_targets)),
    ("nvmf_get_transports", Look(transports::get)),
    ("nvmf_ns_add_host", Edit(namespaces::add_host)),
    ("nvmf_ns_remove_host", Edit(namespaces::remove_host)),
    ("nvmf_subsystem_add_host", Edit(hosts::add)),
    ("nvmf_subsystem_add_listener", Edit(listeners::add)),
    ("nvmf_subsystem_add_ns", Edit(namespaces::add)),
    ("nvmf_subsystem_allow_any_host", Edit(hosts::allow_any)),
    ("nvmf_subsystem_get_controllers", Look(status::get_controllers)),
    ("nvmf_subsystem_get_listeners", Look(listeners::get)),
    ("nvmf_subsystem_get_qpairs", Look(status::get_qpairs)),
    ("nvmf_subsystem_listener_set_ana_state", Edit(listeners::set_ana_state)),
    ("nvmf_subsystem_remove_host", Edit(hosts::remove)),
    ("nvmf_subsystem_remove_listener", Edit(listeners::remove)),
    ("nvmf_subsystem_remove_ns", Edit(namespaces::remove)),
    ("nvmf_subsystem_set_ns_ana_group", Edit(namespaces::set_ana_group)),
    ("rpc_get_methods", Look(get_methods)),
    ("spdk_get_version", Look(get_version)),
];

pub(super) fn method(name: &str) -> Option<Method> {
    let index = METHODS.binary_search_by_key(&name, |(name, _)| name).ok()?;
    Some(METHODS[index].1)
}

/// Of all methods, ascending.
pub fn names() -> impl Iterator<Item = &'static str> {
    METHODS.iter().map(|(name, _)| *name)
}

/// Two parameters which make no difference here: every method can be called at any time, and has one name.
fn get_methods(_: &mut dyn Subject, parameters: Value) -> Result<Value, RpcError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parameters {
        #[serde(default, rename = "current")]
        _current: bool,
        #[serde(default, rename = "include_aliases")]
        _include_aliases: bool,
    }
    super::parameters::read::<Parameters>(parameters)?;
    Ok(names().collect())
}

/// SPDK's shape, with what we are.
fn get_version(_: &mut dyn Subject, parameters: Value) -> Result<Value, RpcError> {
    super::parameters::none(parameters)?;
    let part = |text: &str| text.parse::<u64>().unwrap_or_default();
    Ok(json!({
        "version": concat!("Ironside v", env!("CARGO_PKG_VERSION")),
        "fields": {
            "major": part(env!("CARGO_PKG_VERSION_MAJOR")),
            "minor": part(env!("CARGO_PKG_VERSION_MINOR")),
            "patch": part(env!("CARGO_PKG_VERSION_PATCH")),
            "suffix": "",
        },
    }))
}

/// What is so as soon as the socket is there.
fn yes(_: &mut dyn Subject, parameters: Value) -> Result<Value, RpcError> {
    super::parameters::none(parameters)?;
    Ok(Value::Bool(true))
}

/// The kernel has the devices.
fn nothing(_: &mut dyn Subject, parameters: Value) -> Result<Value, RpcError> {
    super::parameters::none(parameters)?;
    Ok(json!([]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_found() {
        assert!(METHODS.is_sorted_by_key(|(name, _)| name));
        assert!(names().all(|name| method(name).is_some()) && method("nvmf_nothing").is_none());
    }
}
