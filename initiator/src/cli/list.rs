//! `ironside list`: what is attached, in nvme-cli's columns.
use clap::Args;
use ironside_common::nvme::text;
use serde_json::{Value, json};

use super::arguments::{Format, Output};
use super::attachment::{Answer, Attachment, Directory, Entry, Question, ask};
use super::error::CliError;
use super::table;

/// List what is attached
///
/// Attachments whose process has died are cleaned up, unless their device is still in use.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    output: Output,
}

/// nvme-cli's columns and their widths.
const COLUMNS: [(&str, usize); 8] = [
    ("Node", 21),
    ("Generic", 21),
    ("SN", 20),
    ("Model", 40),
    ("Namespace", 9),
    ("Usage", 26),
    ("Format", 16),
    ("FW Rev", 8),
];

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let mut found = Vec::new();
    for entry in Directory::open()?.entries()? {
        if let Some(attachment) = entry.attachment.clone() {
            found.push((attachment, state(&entry)));
        }
        tidy(entry);
    }
    found.retain(|(_, state)| state != GONE);
    match arguments.output.output_format {
        Format::Normal => {
            let rows: Vec<_> = found.iter().map(|(attachment, _)| row(attachment)).collect();
            table::print_columns(&COLUMNS, &rows);
            for (attachment, state) in found.iter().filter(|(_, state)| state != "live") {
                println!("{}: {state}", attachment.name);
            }
        }
        Format::Json => {
            let devices: Vec<_> = found.iter().map(|(attachment, state)| device(attachment, state)).collect();
            table::print_json(&json!({ "Devices": devices }));
        }
    }
    Ok(())
}

const GONE: &str = "gone";

/// How an attachment is, in a word.
fn state(entry: &Entry) -> String {
    if !entry.is_alive() {
        return if entry.uses().is_empty() { GONE } else { "dead" }.into();
    }
    match ask(&entry.path, Question::Status) {
        Ok((Answer::Status(status), _)) => status.state,
        _ => "not answering".into(),
    }
}

/// Takes away what a process that died has left behind, if nobody uses it.
fn tidy(entry: Entry) {
    if entry.is_alive() {
        return;
    }
    let name = entry.name();
    let uses = entry.uses();
    if let Some(first) = uses.first() {
        eprintln!("{name}: its process is gone, but the device is {first}; disconnect --force ends it");
        return;
    }
    match entry.clean_up() {
        Ok(()) => eprintln!("{name}: its process is gone; cleaned up"),
        Err(error) => eprintln!("{name}: its process is gone, but it cannot be cleaned up: {error}"),
    }
}

fn row(attachment: &Attachment) -> Vec<String> {
    let size = table::decimal_size(attachment.size);
    vec![
        attachment.device.display().to_string(),
        attachment.name.clone(),
        text::read(attachment.serial.as_bytes()),
        text::read(attachment.model.as_bytes()),
        attachment.nsid.to_string(),
        format!("{} / {size}", table::decimal_size(attachment.used)),
        format!("{} +  0 B", table::binary_size(attachment.block_size.into())),
        text::read(attachment.firmware.as_bytes()),
    ]
}

/// nvme-cli's names, and ours behind them.
fn device(attachment: &Attachment, state: &str) -> Value {
    json!({
        "NameSpace": attachment.nsid,
        "DevicePath": attachment.device,
        "Firmware": attachment.firmware,
        "ModelNumber": attachment.model,
        "SerialNumber": attachment.serial,
        "UsedBytes": attachment.used,
        "MaximumLBA": attachment.size / u64::from(attachment.block_size.max(1)),
        "PhysicalSize": attachment.size,
        "SectorSize": attachment.block_size,
        "Name": attachment.name,
        "SubsystemNQN": attachment.nqn.as_str(),
        "Transport": "rdma",
        "Address": format!("traddr={},trsvcid={}", attachment.address.ip(), attachment.address.port()),
        "State": state,
        "Via": attachment.via,
        "ReadOnly": attachment.read_only,
        "Process": attachment.pid,
    })
}
