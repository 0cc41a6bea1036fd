//! `ironside-target ctl`: what a person tells a target which serves, over its control socket.
mod arguments;
mod client;
mod report;

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

pub use self::arguments::Ctl;
use self::arguments::{
    Action, BdevAction, HostAction, ListenerAction, NamespaceAction, SubsystemAction, What,
};
use self::client::Client;
pub use self::client::{CtlError, default_socket};
use self::report::table;
use crate::control::config::{Backing, Namespace};
use crate::control::devices::Format;

/// Does what the arguments say, and gives what is to be printed.
///
/// # Errors
/// If no target answers, or it refuses.
pub fn run(arguments: Ctl) -> Result<String, CtlError> {
    let socket: PathBuf = arguments.socket.unwrap_or_else(default_socket);
    let mut client = Client::connect(&socket)?;
    let session = &mut Session { client: &mut client, format: arguments.output };
    match arguments.action {
        Action::Status => session.status(),
        Action::Subsystem(action) => session.subsystem(action),
        Action::Namespace(action) => session.namespace(action),
        Action::Host(action) => session.host(action),
        Action::Listener(action) => session.listener(action),
        Action::Bdev(action) => session.bdev(action),
        Action::Controllers { nqn } => session.controllers(&nqn),
        Action::Reload => session.reload(),
        Action::Save { spdk } => session.save(spdk),
        Action::Rpc { method, parameters } => {
            let result = session.client.call(&method, parameters.unwrap_or(Value::Null))?;
            Ok(report::json(&result))
        }
    }
}

struct Session<'a> {
    client: &'a mut Client,
    format: Format,
}

impl Session<'_> {
    /// Something which is asked for, as JSON or in words.
    fn ask(
        &mut self,
        method: &str,
        parameters: Value,
        in_words: impl FnOnce(&Value) -> String,
    ) -> Result<String, CtlError> {
        let result = self.client.call(method, parameters)?;
        Ok(match self.format {
            Format::Json => report::json(&result),
            Format::Normal => in_words(&result),
        })
    }

    /// Something which is done: there is nothing to say but what it gave.
    fn tell(&mut self, method: &str, parameters: Value) -> Result<String, CtlError> {
        self.ask(method, parameters, |_| String::new())
    }

    /// All of these calls, or none.
    fn tell_all(&mut self, calls: Vec<(&str, Value)>) -> Result<String, CtlError> {
        let calls: Value = calls
            .into_iter()
            .map(|(method, parameters)| json!({ "method": method, "params": parameters }))
            .collect();
        self.tell("load_config", json!({ "subsystems": [{ "subsystem": "ctl", "config": calls }] }))
    }

    fn status(&mut self) -> Result<String, CtlError> {
        self.ask("ironside_get_status", json!({}), report::status)
    }

    fn subsystem(&mut self, action: SubsystemAction) -> Result<String, CtlError> {
        match action {
            SubsystemAction::List => self.ask("nvmf_get_subsystems", json!({}), report::subsystems),
            SubsystemAction::Create { nqn, serial, allow_any_host, host, listen } => {
                let mut parameters = json!({ "nqn": nqn.as_str(), "allow_any_host": allow_any_host });
                if let Some(serial) = serial {
                    parameters["serial_number"] = serial.as_str().into();
                }
                let mut calls = vec![("nvmf_create_subsystem", parameters)];
                calls.extend(host.iter().map(|host| {
                    ("nvmf_subsystem_add_host", json!({ "nqn": nqn.as_str(), "host": host.as_str() }))
                }));
                calls.extend(listen.iter().map(|at| {
                    let address = report::address(at.address);
                    ("nvmf_subsystem_add_listener", json!({ "nqn": nqn.as_str(), "listen_address": address }))
                }));
                self.tell_all(calls)
            }
            SubsystemAction::Delete { nqn } => {
                self.tell("nvmf_delete_subsystem", json!({ "nqn": nqn.as_str() }))
            }
        }
    }

    fn namespace(&mut self, action: NamespaceAction) -> Result<String, CtlError> {
        match action {
            NamespaceAction::List { nqn } => {
                let bdevs = self.client.call("bdev_get_bdevs", json!({}))?;
                let parameters = nqn.map_or(json!({}), |nqn| json!({ "nqn": nqn.as_str() }));
                self.ask("nvmf_get_subsystems", parameters, |subsystems| {
                    report::namespaces(subsystems, &bdevs)
                })
            }
            NamespaceAction::Add { nqn, what, nsid, uuid, ana_group } => {
                let mut calls = Vec::new();
                let name = match what {
                    What::Bdev(name) => name,
                    What::New(namespace) => {
                        let name = self.free_name(&namespace.backing)?;
                        calls.extend(create(&name, &namespace));
                        name
                    }
                };
                let mut namespace = json!({ "bdev_name": name });
                if let Some(nsid) = nsid {
                    namespace["nsid"] = nsid.into();
                }
                if let Some(uuid) = uuid {
                    namespace["uuid"] = uuid.to_string().into();
                }
                if let Some(group) = ana_group {
                    namespace["anagrpid"] = group.into();
                }
                calls.push(("nvmf_subsystem_add_ns", json!({ "nqn": nqn.as_str(), "namespace": namespace })));
                self.tell_all(calls)
            }
            NamespaceAction::Remove { nqn, nsid, keep } => {
                let mut calls =
                    vec![("nvmf_subsystem_remove_ns", json!({ "nqn": nqn.as_str(), "nsid": nsid }))];
                if !keep {
                    calls.extend(self.bdev_of(nqn.as_str(), nsid)?.map(|name| delete(&name)).transpose()?);
                }
                self.tell_all(calls)
            }
        }
    }

    /// The bdev that a namespace is made of, unless it is described where it is; with its kind.
    fn bdev_of(&mut self, nqn: &str, nsid: u32) -> Result<Option<Value>, CtlError> {
        let subsystems = self.client.call("nvmf_get_subsystems", json!({ "nqn": nqn }))?;
        let namespaces = subsystems[0]["namespaces"].as_array().cloned().unwrap_or_default();
        let found = namespaces.into_iter().find(|one| one["nsid"] == nsid);
        let Some(name) = found.and_then(|one| one["bdev_name"].as_str().map(str::to_owned)) else {
            return Ok(None);
        };
        if name == format!("{nqn}/{nsid}") {
            return Ok(None);
        }
        Ok(Some(self.client.call("bdev_get_bdevs", json!({ "name": name }))?[0].take()))
    }

    /// The first of Ram0, Ram1 and so on which is not taken.
    fn free_name(&mut self, backing: &Backing) -> Result<String, CtlError> {
        let bdevs = self.client.call("bdev_get_bdevs", json!({}))?;
        let kind = match backing {
            Backing::File { .. } => "File",
            Backing::Ram { .. } => "Ram",
            Backing::Null { .. } => "Null",
        };
        let taken =
            |name: &str| bdevs.as_array().is_some_and(|all| all.iter().any(|one| one["name"] == name));
        let name = (0..u32::MAX).map(|index| format!("{kind}{index}")).find(|name| !taken(name));
        Ok(name.unwrap_or_default())
    }

    fn host(&mut self, action: HostAction) -> Result<String, CtlError> {
        match action {
            HostAction::List { nqn } => {
                self.ask("nvmf_get_subsystems", json!({ "nqn": nqn.as_str() }), report::hosts)
            }
            HostAction::Add { nqn, host } => {
                self.tell("nvmf_subsystem_add_host", json!({ "nqn": nqn.as_str(), "host": host.as_str() }))
            }
            HostAction::Remove { nqn, host } => {
                self.tell("nvmf_subsystem_remove_host", json!({ "nqn": nqn.as_str(), "host": host.as_str() }))
            }
            HostAction::Any { nqn, allow } => {
                let parameters = json!({ "nqn": nqn.as_str(), "allow_any_host": allow.is_on() });
                self.tell("nvmf_subsystem_allow_any_host", parameters)
            }
        }
    }

    fn listener(&mut self, action: ListenerAction) -> Result<String, CtlError> {
        let at = |nqn: &str, at: &crate::control::config::Listen| json!({ "nqn": nqn, "listen_address": report::address(at.address) });
        match action {
            ListenerAction::List { nqn } => {
                self.ask("nvmf_subsystem_get_listeners", json!({ "nqn": nqn.as_str() }), report::listeners)
            }
            ListenerAction::Add { nqn, address } => {
                self.tell("nvmf_subsystem_add_listener", at(nqn.as_str(), &address))
            }
            ListenerAction::Remove { nqn, address } => {
                self.tell("nvmf_subsystem_remove_listener", at(nqn.as_str(), &address))
            }
            ListenerAction::State { nqn, address, state, group } => {
                let mut parameters = at(nqn.as_str(), &address);
                parameters["ana_state"] = state.replace('-', "_").into();
                if let Some(group) = group {
                    parameters["anagrpid"] = group.into();
                }
                self.tell("nvmf_subsystem_listener_set_ana_state", parameters)
            }
        }
    }

    fn bdev(&mut self, action: BdevAction) -> Result<String, CtlError> {
        match action {
            BdevAction::List => self.ask("bdev_get_bdevs", json!({}), report::bdevs),
            BdevAction::Create { name, what } => self.tell_all(create(&name, &what)),
            BdevAction::Delete { name } => {
                let found = self.client.call("bdev_get_bdevs", json!({ "name": name }))?[0].take();
                let (method, parameters) = delete(&found)?;
                self.tell(method, parameters)
            }
            BdevAction::Limit { name, iops, bandwidth, read_bandwidth, write_bandwidth } => {
                let parameters = json!({
                    "name": name, "rw_ios_per_sec": iops, "rw_mbytes_per_sec": bandwidth,
                    "r_mbytes_per_sec": read_bandwidth, "w_mbytes_per_sec": write_bandwidth,
                });
                self.tell("bdev_set_qos_limit", parameters)
            }
        }
    }

    fn controllers(&mut self, nqn: &ironside_common::nvme::Nqn) -> Result<String, CtlError> {
        self.ask("nvmf_subsystem_get_controllers", json!({ "nqn": nqn.as_str() }), |all| {
            let rows = report::list(all).map(|one| {
                vec![
                    report::text(&one["cntlid"]),
                    report::text(&one["num_io_qpairs"]),
                    report::text(&one["hostnqn"]),
                ]
            });
            table(&["CNTLID", "I/O QUEUES", "HOST"], rows)
        })
    }

    fn reload(&mut self) -> Result<String, CtlError> {
        self.ask("ironside_reload", json!({}), |result| {
            let mut said = String::new();
            for change in report::list(&result["changes"]) {
                let _ = writeln!(said, "{}", report::text(change));
            }
            if said.is_empty() {
                said.push_str("nothing has changed\n");
            }
            for setting in report::list(&result["needs_restart"]) {
                let _ = writeln!(said, "{} stays as it is until a restart", report::text(setting));
            }
            said
        })
    }

    /// The configuration in force: as a file of ours, or as one that SPDK's tools load.
    fn save(&mut self, spdk: bool) -> Result<String, CtlError> {
        if !spdk {
            let result = self.client.call("ironside_get_config", json!({}))?;
            return Ok(report::text(&result["toml"]));
        }
        let mut parts = Vec::new();
        for name in ["bdev", "nvmf"] {
            let config = self.client.call("framework_get_config", json!({ "name": name }))?;
            parts.push(json!({ "subsystem": name, "config": config }));
        }
        Ok(report::json(&json!({ "subsystems": parts })))
    }
}

/// The calls which make a bdev.
fn create(name: &str, what: &Namespace) -> Vec<(&'static str, Value)> {
    let block_size = what.block_size.map(crate::control::config::BlockSize::bytes);
    let blocks = |bytes: u64| bytes / u64::from(block_size.unwrap_or(4096));
    let mut parameters = json!({ "name": name });
    if let Some(uuid) = what.uuid {
        parameters["uuid"] = uuid.to_string().into();
    }
    let method = match &what.backing {
        Backing::File { path, size } => {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            parameters["filename"] = absolute.display().to_string().into();
            parameters["readonly"] = what.read_only.into();
            if let Some(block_size) = block_size {
                parameters["block_size"] = block_size.into();
            }
            if let Some(size) = size {
                parameters["size"] = (*size).into();
            }
            "bdev_aio_create"
        }
        Backing::Ram { size } | Backing::Null { size } => {
            parameters["block_size"] = block_size.unwrap_or(4096).into();
            parameters["num_blocks"] = blocks(*size).into();
            if matches!(what.backing, Backing::Ram { .. }) {
                "bdev_malloc_create"
            } else {
                "bdev_null_create"
            }
        }
    };
    vec![(method, parameters)]
}

/// The call which deletes a bdev, by its kind.
fn delete(bdev: &Value) -> Result<(&'static str, Value), CtlError> {
    let method = match bdev["product_name"].as_str() {
        Some("Malloc disk") => "bdev_malloc_delete",
        Some("Null disk") => "bdev_null_delete",
        Some(_) => "bdev_aio_delete",
        None => return Err(CtlError::Answer("a bdev has no product name".into())),
    };
    Ok((method, json!({ "name": bdev["name"] })))
}
