//! `ironside resv-report`: who is registered with a namespace, and who has reserved it, laid out as nvme-cli does.
use clap::Args;
use ironside_common::nvme::reservation::{ReportEntry, ReportHeader, Request};
use serde_json::{Value, json};
use zerocopy::FromBytes;

use super::arguments::{Format, Output};
use super::error::CliError;
use super::reserve::Place;
use super::table::print_json;
use crate::host::{IDENTIFY_LENGTH, PassedData};

/// Show who has registered with a namespace and who has reserved it
///
/// Of an attached device or, with -a and -n, of a subsystem that is not attached.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    place: Place,
    /// Extended data structures, which are all that NVMe over fabrics has: said by habit
    #[arg(short = 'e', long)]
    eds: bool,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let length = u32::try_from(IDENTIFY_LENGTH).expect("a page");
    let request = Request::Report { length, extended: true };
    let answer = arguments.place.send(request, PassedData::In(length))?;
    let report = Report::read(&answer.data);
    match arguments.output.output_format {
        Format::Normal => print!("{}", report.in_words()),
        Format::Json => print_json(&report.json()),
    }
    Ok(())
}

/// A report, as far as it has come.
struct Report {
    header: ReportHeader,
    entries: Vec<ReportEntry>,
}

impl Report {
    /// Of a page which holds one, or a part of one.
    fn read(page: &[u8]) -> Self {
        let (header, mut rest) =
            ReportHeader::read_from_prefix(page).expect("a page is longer than the head of a report");
        let mut entries = Vec::new();
        for _ in 0..header.registrants.get() {
            let Ok((entry, behind)) = ReportEntry::read_from_prefix(rest) else { break };
            entries.push(entry);
            rest = behind;
        }
        Self { header, entries }
    }

    fn in_words(&self) -> String {
        use std::fmt::Write;
        let ReportHeader { generation, kind, registrants, persists, .. } = self.header;
        let mut text = format!(
            "\nNVME Reservation status:\n\ngen       : {generation}\nrtype     : {kind}\nregctl    : {registrants}\nptpls     : {persists}\n"
        );
        for (index, entry) in self.entries.iter().enumerate() {
            let ReportEntry { cntlid, status, key, .. } = entry;
            write!(
                text,
                "regctlext[{index}] :\n  cntlid     : {cntlid:x}\n  rcsts      : {status:x}\n  rkey       : {key:x}\n  hostid     : {}\n\n",
                host_id(entry)
            )
            .expect("a string takes what is written");
        }
        text
    }

    fn json(&self) -> Value {
        let entry = |entry: &ReportEntry| {
            json!({
                "cntlid": entry.cntlid.get(),
                "rcsts": entry.status,
                "rkey": entry.key.get(),
                "hostid": host_id(entry),
            })
        };
        json!({
            "gen": self.header.generation.get(),
            "rtype": self.header.kind,
            "regctl": self.header.registrants.get(),
            "ptpls": self.header.persists,
            "regctlext": self.entries.iter().map(entry).collect::<Value>(),
        })
    }
}

fn host_id(entry: &ReportEntry) -> String {
    entry.host_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    #[test]
    fn a_report_is_laid_out_as_nvme_cli_does() {
        let header = ReportHeader {
            generation: 4.into(),
            kind: 1,
            registrants: 2.into(),
            ..ReportHeader::new_zeroed()
        };
        let entry = ReportEntry {
            cntlid: 0xFFFF.into(),
            status: 1,
            key: 0x1F.into(),
            host_id: [0xAB; 16],
            ..ReportEntry::new_zeroed()
        };
        // The second registrant is beyond what was read.
        let page = [header.as_bytes(), entry.as_bytes()].concat();
        let report = Report::read(&page);
        let text = "\nNVME Reservation status:\n\ngen       : 4\nrtype     : 1\nregctl    : 2\nptpls     : 0\n\
                    regctlext[0] :\n  cntlid     : ffff\n  rcsts      : 1\n  rkey       : 1f\n  hostid     : \
                    abababababababababababababababab\n\n";
        assert_eq!(report.in_words(), text);
        let json = report.json();
        assert_eq!((&json["gen"], &json["regctl"]), (&json!(4), &json!(2)));
        assert_eq!(
            json["regctlext"],
            json!([{ "cntlid": 65535, "rcsts": 1, "rkey": 31, "hostid": "ab".repeat(16) }])
        );
    }
}
