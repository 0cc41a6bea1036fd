//! `ironside error-log`: which commands a controller has failed, laid out as nvme-cli does.
use std::fmt::Write;

use clap::Args;
use ironside_common::nvme::ALL_NAMESPACES;
use ironside_common::nvme::admin::{Cns, GetLogPage, Identify};
use ironside_common::nvme::bits::{bit, bits};
use ironside_common::nvme::identify;
use ironside_common::nvme::log_page::{ErrorEntry, LogPageId};
use serde_json::{Value, json};
use zerocopy::FromBytes;

use super::arguments::{Format, Output};
use super::error::CliError;
use super::inquiry::Subject;
use super::log_page;
use super::table::{print_json, write_raw};

/// Show which commands a controller has failed, the last one first
///
/// Of an attached device or, with -a and -n, of a controller that is not attached.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// How many entries at most; no more are read than the controller keeps
    #[arg(short = 'e', long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    log_entries: u32,
    /// Write the bytes of the page as they are
    #[arg(short = 'b', long)]
    raw_binary: bool,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let subject = &arguments.subject;
    let answer = subject.ask(Identify::new(Cns::CONTROLLER, 0).to_command(0), identify::SIZE)?;
    let (controller, _) = identify::Controller::ref_from_prefix(&answer.data).expect("a page");
    let kept = u32::from(controller.elpe) + 1;
    let length = arguments.log_entries.min(kept) * u32::try_from(size_of::<ErrorEntry>()).expect("64");
    let page = log_page::read(subject, GetLogPage::new(LogPageId::ERROR, ALL_NAMESPACES, length))?;
    if arguments.raw_binary {
        return write_raw(&page);
    }
    let entries = <[ErrorEntry]>::ref_from_bytes(&page).expect("as many as were asked for");
    match arguments.output.output_format {
        Format::Normal => print!("{}", in_words(entries, &subject.name())),
        Format::Json => print_json(&json!({ "errors": entries.iter().map(json_of).collect::<Value>() })),
    }
    Ok(())
}

/// What is behind the phase, and the phase.
fn status(entry: &ErrorEntry) -> (u16, u8) {
    let field = u64::from(entry.status_field.get());
    (bits(field, 15, 1) as u16, u8::from(bit(field, 0)))
}

fn in_words(entries: &[ErrorEntry], name: &str) -> String {
    const RULE: &str = ".................\n";
    let mut text = format!("Error Log Entries for device:{name} entries:{}\n{RULE}", entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let (status, phase) = status(entry);
        let ErrorEntry { count, sqid, cid, parameter_location, lba, nsid, .. } = entry;
        let ErrorEntry { vendor, transport_type, csi, opcode, command_specific, .. } = entry;
        let ErrorEntry { transport_specific, page_version, .. } = entry;
        write!(
            text,
            " Entry[{index:2}]\n{RULE}error_count\t: {count}\nsqid\t\t: {sqid}\ncmdid\t\t: {cid:#x}\n\
             status_field\t: {status:#x} ({})\nphase_tag\t: {phase:#x}\nparm_err_loc\t: {parameter_location:#x}\n\
             lba\t\t: {lba:#x}\nnsid\t\t: {nsid:#x}\nvs\t\t: {vendor}\ntrtype\t\t: {transport_type:#x} ({})\n\
             csi\t\t: {csi}\nopcode\t\t: {opcode:#x}\ncs\t\t: {command_specific:#x}\n\
             trtype_spec_info: {transport_specific:#x}\nlog_page_version: {page_version}\n{RULE}",
            entry.status(),
            transport(*transport_type)
        )
        .expect("a string takes what is written");
    }
    text
}

fn transport(kind: u8) -> &'static str {
    match kind {
        0 => "no error of a transport",
        1 => "RDMA Transport error",
        2 => "Fibre Channel Transport error",
        3 => "TCP Transport error",
        254 => "Intra-host Transport error",
        _ => "Reserved",
    }
}

fn json_of(entry: &ErrorEntry) -> Value {
    let (status, phase) = status(entry);
    json!({
        "error_count": entry.count.get(),
        "sqid": entry.sqid.get(),
        "cmdid": entry.cid.get(),
        "status_field": status,
        "phase_tag": phase,
        "parm_error_location": entry.parameter_location.get(),
        "lba": entry.lba.get(),
        "nsid": entry.nsid.get(),
        "vs": entry.vendor,
        "trtype": entry.transport_type,
        "cs": entry.command_specific.get(),
        "trtype_spec_info": entry.transport_specific.get(),
    })
}

#[cfg(test)]
mod tests {
    use ironside_common::nvme::Status;
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn errors_are_laid_out_as_nvme_cli_does() {
        let entry = ErrorEntry {
            count: 3.into(),
            sqid: 1.into(),
            cid: 0x1F.into(),
            status_field: Status::INVALID_FIELD.to_field().into(),
            parameter_location: 0xFFFF.into(),
            nsid: 1.into(),
            ..ErrorEntry::new_zeroed()
        };
        let text = in_words(&[entry, ErrorEntry::new_zeroed()], "vol0");
        assert!(
            text.starts_with("Error Log Entries for device:vol0 entries:2\n.................\n Entry[ 0]\n")
        );
        for line in ["error_count\t: 3\n", "cmdid\t\t: 0x1f\n", "parm_err_loc\t: 0xffff\n", "(Invalid Field"]
        {
            assert!(text.contains(line), "{line}{text}");
        }
        let json = json_of(&entry);
        // Do Not Retry is bit 14 of what is behind the phase.
        assert_eq!((&json["status_field"], &json["phase_tag"]), (&json!(0x4002), &json!(0)));
        assert_eq!((&json["cmdid"], &json["parm_error_location"]), (&json!(31), &json!(65535)));
    }
}
