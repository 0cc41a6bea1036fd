//! `ironside discover`: the discovery log page of a target, laid out as nvme-cli does.
use clap::Args;
use ironside_common::nvme::Nqn;
use ironside_common::nvme::discovery::{Entry, RdmaAttributes, TransportRequirements, TransportType};
use serde_json::{Map, Value, json};

use super::arguments::{Format, Output, Target};
use super::error::CliError;
use super::table;
use crate::attach::{self, AttachOptions, Description};
use crate::host::DiscoveryLog;

/// Show which subsystems a target offers
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let DiscoveryLog { generation, entries } = read(&arguments.target)?;
    match arguments.output.output_format {
        Format::Normal => {
            println!("\nDiscovery Log Number of Records {}, Generation counter {generation}", entries.len());
            for (index, entry) in entries.iter().enumerate() {
                println!("=====Discovery Log Entry {index}======");
                for (name, value) in fields(entry) {
                    // The columns of nvme-cli.
                    let width = if name == "rdma_pkey" {
                        11
                    } else if name.starts_with("rdma") {
                        13
                    } else {
                        9
                    };
                    println!("{:<width$}{}", format!("{name}:"), text(name, &value));
                }
            }
        }
        Format::Json => {
            let records: Vec<_> = entries
                .iter()
                .map(|entry| fields(entry).into_iter().map(|(name, value)| (name.to_owned(), value)))
                .map(|fields| Value::Object(fields.collect::<Map<_, _>>()))
                .collect();
            table::print_json(&json!({ "genctr": generation, "records": records }));
        }
    }
    Ok(())
}

/// The discovery log of this target.
pub(super) fn read(target: &Target) -> Result<DiscoveryLog, CliError> {
    let options = target.options(Nqn::discovery())?;
    let &Target { crc, provider, .. } = target;
    let attach = AttachOptions { crc, provider, ..AttachOptions::new(options.clone()) };
    let options = Box::new(options);
    let Description { discovered, carried, .. } =
        attach::discover(attach).map_err(|source| CliError::Attach { options, source })?;
    Target::remark(&carried);
    Ok(discovered)
}

fn text(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if name == "rdma_pkey" => format!("{:#06x}", number.as_u64().unwrap_or(0)),
        other => other.to_string(),
    }
}

/// An entry in nvme-cli's words and order.
fn fields(entry: &Entry) -> Vec<(&'static str, Value)> {
    let mut fields = vec![
        ("trtype", entry.transport_type().to_string().into()),
        ("adrfam", entry.address_family().to_string().into()),
        ("subtype", entry.subsystem_type().to_string().into()),
        ("treq", requirements(entry.transport_requirements).into()),
        ("portid", entry.port_id.get().into()),
        ("trsvcid", entry.service().into()),
        ("subnqn", entry.subnqn().into()),
        ("traddr", entry.address().into()),
        ("eflags", flags(entry.flags.get()).into()),
    ];
    match entry.transport_type() {
        TransportType::RDMA => fields.extend([
            ("rdma_prtype", provider(entry.tsas.provider).into()),
            ("rdma_qptype", queue_pair(entry.tsas.qp_type).into()),
            ("rdma_cms", (if entry.tsas.cm_service == 1 { "rdma-cm" } else { "unrecognized" }).into()),
            ("rdma_pkey", entry.tsas.pkey.get().into()),
        ]),
        // The same byte says something else of this transport.
        TransportType::TCP => fields.push(("sectype", security(entry.tsas.qp_type).into())),
        _ => {}
    }
    fields
}

fn queue_pair(qptype: u8) -> &'static str {
    match qptype {
        1 => "connected",
        2 => "datagram",
        _ => "unrecognized",
    }
}

fn security(sectype: u8) -> &'static str {
    match sectype {
        0 => "none",
        1 => "tls",
        2 => "tls13",
        _ => "unrecognized",
    }
}

fn requirements(treq: u8) -> String {
    let channel = match treq & 3 {
        0 => "not specified",
        1 => "required",
        2 => "not required",
        _ => "reserved",
    };
    let optional = treq & TransportRequirements::FLOW_CONTROL_OPTIONAL.0 != 0;
    format!("{channel}{}", if optional { ", sq flow control disable supported" } else { "" })
}

fn flags(eflags: u16) -> String {
    let names = [
        (1 << 1, "explicit discovery connections"),
        (1 << 0, "duplicate discovery information"),
        (1 << 2, "no cdc connectivity"),
    ];
    let set: Vec<_> = names.into_iter().filter(|(bit, _)| eflags & bit != 0).map(|(_, name)| name).collect();
    if set.is_empty() { "none".into() } else { set.join(", ") }
}

fn provider(prtype: u8) -> &'static str {
    match prtype {
        RdmaAttributes::PROVIDER_UNSPECIFIED => "not specified",
        2 => "infiniband",
        3 => "roce",
        4 => "roce-v2",
        RdmaAttributes::PROVIDER_IWARP => "iwarp",
        _ => "unrecognized",
    }
}
