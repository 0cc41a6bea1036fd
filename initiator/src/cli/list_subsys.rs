//! `ironside list-subsys`: the subsystems of what is attached, and the paths to them, laid out as nvme-cli does.
use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::arguments::{Format, Output};
use super::attachment::{Directory, PathCondition, Specification, Status};
use super::error::CliError;
use super::list::{address, look};
use super::table::print_json;

/// List subsystems, and the paths to them
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// That of an attached device or its name alone
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let found: Vec<_> = Directory::open()?.entries()?.iter().filter_map(look).collect();
    let found: Vec<_> = match &arguments.device {
        None => found,
        Some(word) => {
            let found: Vec<_> = found.into_iter().filter(|one| one.attachment.is_called(word)).collect();
            if found.is_empty() {
                return Err(CliError::NoSuchAttachment(word.clone()));
            }
            found
        }
    };
    let subsystems = subsystems(&found);
    match arguments.output.output_format {
        Format::Normal => subsystems.iter().for_each(|one| print!("{}", one.in_words())),
        Format::Json => print_json(&json_of(&subsystems)),
    }
    Ok(())
}

/// A subsystem as one host sees it.
struct Subsystem<'a> {
    /// That of what was attached of it first.
    name: &'a str,
    specification: &'a Specification,
    paths: Vec<Path<'a>>,
}

struct Path<'a> {
    name: &'a str,
    address: String,
    state: &'a str,
    access: Option<&'a str>,
}

/// Several namespaces of one are attached each by itself.
fn subsystems(found: &[Status]) -> Vec<Subsystem<'_>> {
    let mut subsystems: Vec<Subsystem<'_>> = Vec::new();
    for Status { attachment, condition } in found {
        let (name, specification) = (attachment.name.as_str(), &attachment.specification);
        let mut paths = Vec::new();
        for PathCondition { address: at, state, access, .. } in &condition.paths {
            paths.push(Path { name, address: address(*at), state, access: access.as_deref() });
        }
        if paths.is_empty() {
            // The process which knows how each of them is does not answer.
            let lost = |at| Path { name, address: address(at), state: &condition.state, access: None };
            paths.extend(specification.addresses().map(lost));
        }
        let key = |one: &Specification| (one.host_nqn, one.host_id, one.nqn);
        match subsystems.iter_mut().find(|known| key(known.specification) == key(specification)) {
            Some(known) => known.paths.extend(paths),
            None => subsystems.push(Subsystem { name, specification, paths }),
        }
    }
    subsystems
}

impl Subsystem<'_> {
    fn in_words(&self) -> String {
        let Self { name, specification, paths } = self;
        let indent = " ".repeat(name.len() + 3);
        let mut text = format!(
            "{name} - NQN={}\n{indent}hostnqn={}\n{indent}iopolicy={}\n\\\n",
            specification.nqn,
            specification.host_nqn,
            self.policy()
        );
        for Path { name, address, state, access } in paths {
            let access = access.map(|access| format!(" {access}")).unwrap_or_default();
            writeln!(text, " +- {name} rdma {address} {state}{access}").expect("a string takes it");
        }
        text
    }

    fn policy(&self) -> String {
        let policy = json!(self.specification.iopolicy);
        policy.as_str().unwrap_or_default().to_owned()
    }

    fn json(&self) -> Value {
        let path = |path: &Path<'_>| {
            let mut object = json!({
                "Name": path.name,
                "Transport": "rdma",
                "Address": path.address,
                "State": path.state,
            });
            if let Some(access) = path.access {
                object["ANAState"] = access.into();
            }
            object
        };
        json!({
            "Name": self.name,
            "NQN": self.specification.nqn.as_str(),
            "IOPolicy": self.policy(),
            "Type": "nvm",
            "Paths": self.paths.iter().map(path).collect::<Value>(),
        })
    }
}

/// By host.
fn json_of(subsystems: &[Subsystem<'_>]) -> Value {
    let mut hosts: Vec<(&Specification, Vec<Value>)> = Vec::new();
    for one in subsystems {
        let host = |known: &Specification| (known.host_nqn, known.host_id);
        match hosts.iter_mut().find(|(known, _)| host(known) == host(one.specification)) {
            Some((_, of_it)) => of_it.push(one.json()),
            None => hosts.push((one.specification, vec![one.json()])),
        }
    }
    let object = |(host, subsystems): (&Specification, Vec<Value>)| {
        json!({
            "HostNQN": host.host_nqn.as_str(),
            "HostID": host.host_id.to_string(),
            "Subsystems": subsystems,
        })
    };
    hosts.into_iter().map(object).collect()
}
