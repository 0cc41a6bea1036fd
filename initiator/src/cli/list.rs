//! `ironside list`: what is attached, in nvme-cli's columns.

use clap::Args;
use ironside_common::size::Size;
use ironside_common::verbs::Address;
use serde_json::{Value, json};

use super::arguments::{Format, Output};
use super::attachment::{
    Answer, Attachment, Condition, Directory, Entry, PathCondition, Question, Status, VolumeFacts, ask,
};
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
        found.extend(look(&entry));
        tidy(entry);
    }
    match arguments.output.output_format {
        Format::Normal => {
            let rows: Vec<_> = found.iter().map(|status| row(&status.attachment)).collect();
            table::print_columns(&COLUMNS, &rows);
            for Status { attachment, condition } in &found {
                if let Some(text) = in_words(condition) {
                    println!("{}: {text}", attachment.name);
                }
                if condition.paths.len() > 1 {
                    condition
                        .paths
                        .iter()
                        .for_each(|path| println!("{}: {}", attachment.name, path_in_words(path)));
                }
            }
        }
        Format::Json => {
            let devices: Vec<_> = found.iter().map(device).collect();
            table::print_json(&json!({ "Devices": devices }));
        }
    }
    Ok(())
}

/// How an attachment is; nothing if it is left half made, or nothing is left of it that anybody uses.
pub(super) fn look(entry: &Entry) -> Option<Status> {
    let attachment = entry.attachment.clone()?;
    let without = |state: &str, reason: String| {
        let (state, reason) = (state.into(), Some(reason));
        let paths = Vec::new();
        Condition { state, seconds: 0, reason, failed_attempts: 0, gives_up_in_seconds: None, paths }
    };
    if !entry.is_alive() {
        let condition = match entry.is_recoverable() {
            true => without("orphaned", "its process is gone".into()),
            false => without("dead", "its process is gone".into()),
        };
        return (!entry.uses().is_empty()).then_some(Status { attachment, condition });
    }
    Some(match ask(&entry.path, Question::Status) {
        Ok((Answer::Status(status), _)) => *status,
        Ok(_) => {
            Status { attachment, condition: without("not answering", "its process talks nonsense".into()) }
        }
        Err(error) => Status { attachment, condition: without("not answering", error.to_string()) },
    })
}

/// Why something is not live, since when, what is done about it, and what may be.
fn in_words(condition: &Condition) -> Option<String> {
    let Condition { state, seconds, reason, failed_attempts, gives_up_in_seconds, .. } = condition;
    if state == "live" {
        return None;
    }
    let mut text = state.clone();
    if *seconds > 0 {
        text.push_str(&format!(" for {}", span(*seconds)));
    }
    if let Some(reason) = reason {
        text.push_str(&format!(": {reason}"));
    }
    match (state.as_str(), gives_up_in_seconds) {
        ("connecting", Some(left)) => text.push_str(&format!(
            "; requests wait, {failed_attempts} attempt(s) have failed, given up in {}",
            span(*left)
        )),
        ("connecting", None) => {
            text.push_str(&format!("; requests wait, {failed_attempts} attempt(s) have failed"));
        }
        ("orphaned", _) => text.push_str("; requests wait: ironside recover takes it over"),
        ("gone" | "dead", _) => text.push_str("; requests fail: disconnect it, and connect again"),
        _ => {}
    }
    Some(text)
}

/// One path of several, in nvme-cli's words.
fn path_in_words(path: &PathCondition) -> String {
    let mut text = format!("path {} {}", address(path.address), path.state);
    match (&path.access, &path.reason) {
        (_, Some(reason)) => text.push_str(&format!(": {reason}")),
        (Some(access), None) => text.push_str(&format!(" {access}")),
        (None, None) if path.state == "live" => text.push_str(": it does not lead to the namespace"),
        (None, None) => {}
    }
    text
}

pub(super) fn address(address: Address) -> String {
    match address.socket() {
        Some(address) => format!("traddr={},trsvcid={}", address.ip(), address.port()),
        None => format!("traddr={address}"),
    }
}

/// A time as people say it, in its two largest units.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
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
        let recover = if entry.is_recoverable() { "recover takes it over, " } else { "" };
        eprintln!(
            "{name}: its process is gone, but the device is {first}; {recover}disconnect --force ends it"
        );
        return;
    }
    match entry.clean_up() {
        Ok(()) => eprintln!("{name}: its process is gone; cleaned up"),
        Err(error) => eprintln!("{name}: its process is gone, but it cannot be cleaned up: {error}"),
    }
}

fn row(attachment: &Attachment) -> Vec<String> {
    let VolumeFacts { size, block_size, used, serial, model, firmware } = &attachment.volume;
    vec![
        attachment.device.display().to_string(),
        attachment.name.clone(),
        serial.clone(),
        model.clone(),
        attachment.nsid.to_string(),
        format!("{:>11} / {:>11}", Size(*used), Size(*size)),
        format!("{:>7} +  0 B", Size((*block_size).into())),
        firmware.clone(),
    ]
}

/// nvme-cli's names, and ours behind them.
fn device(status: &Status) -> Value {
    let Status { attachment, condition } = status;
    let (specification, volume) = (&attachment.specification, &attachment.volume);
    let path = |path: &PathCondition| {
        json!({
            "Address": address(path.address),
            "State": path.state,
            "ANAState": path.access,
            "ControllerId": path.cntlid,
            "Requests": path.requests,
            "Reason": path.reason,
        })
    };
    let paths: Vec<_> = condition.paths.iter().map(path).collect();
    json!({
        "NameSpace": attachment.nsid,
        "DevicePath": attachment.device,
        "Firmware": volume.firmware,
        "ModelNumber": volume.model,
        "SerialNumber": volume.serial,
        "UsedBytes": volume.used,
        "MaximumLBA": volume.size / u64::from(volume.block_size.max(1)),
        "PhysicalSize": volume.size,
        "SectorSize": volume.block_size,
        "Name": attachment.name,
        "SubsystemNQN": specification.nqn.as_str(),
        "HostNQN": specification.host_nqn.as_str(),
        "Transport": "rdma",
        "Address": address(specification.address),
        "IOPolicy": specification.iopolicy,
        "Paths": paths,
        "State": condition.state,
        "StateSeconds": condition.seconds,
        "Reason": condition.reason,
        "FailedAttempts": condition.failed_attempts,
        "GivesUpInSeconds": condition.gives_up_in_seconds,
        "Via": attachment.via,
        "ViaReason": attachment.reason,
        "Carrier": attachment.carried,
        "ReadOnly": attachment.read_only,
        "Process": attachment.pid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(state: &str, reason: &str, gives_up_in_seconds: Option<u64>) -> Condition {
        let (state, reason) = (state.into(), Some(reason.into()));
        let paths = Vec::new();
        Condition { state, seconds: 75, reason, failed_attempts: 3, gives_up_in_seconds, paths }
    }

    #[test]
    fn what_is_not_live_says_why_and_since_when() {
        assert_eq!(
            in_words(&condition("connecting", "nobody listens", Some(525))).unwrap(),
            "connecting for 1 min 15 s: nobody listens; requests wait, 3 attempt(s) have failed, given up in 8 min 45 s"
        );
        let dead = in_words(&condition("dead", "it was refused", None)).unwrap();
        assert!(dead.contains("1 min 15 s: it was refused; requests fail: disconnect it"), "{dead}");
        assert_eq!(in_words(&Condition { state: "live".into(), ..condition("", "", None) }), None);
        let path = PathCondition {
            address: "192.0.2.1:4420".parse().unwrap(),
            state: "live".into(),
            access: Some("optimized".into()),
            cntlid: Some(1),
            requests: 0,
            reason: None,
        };
        assert_eq!(path_in_words(&path), "path traddr=192.0.2.1,trsvcid=4420 live optimized");
        let lost =
            PathCondition { state: "connecting".into(), reason: Some("nobody listens".into()), ..path };
        assert_eq!(path_in_words(&lost), "path traddr=192.0.2.1,trsvcid=4420 connecting: nobody listens");
        assert_eq!(
            (span(59), span(7265), span(90_000)),
            ("59 s".into(), "2 h 1 min".into(), "1 d 1 h".into())
        );
    }
}
