//! `ironside ana-log`: by which controller a namespace is to be used, laid out as nvme-cli does.
use std::fmt::Write;

use clap::Args;
use ironside_common::nvme::ALL_NAMESPACES;
use ironside_common::nvme::admin::GetLogPage;
use ironside_common::nvme::log_page::{AnaHeader, AnaLog, AnaState, LogPageId};
use serde_json::{Value, json};

use super::arguments::{Format, Output};
use super::error::CliError;
use super::inquiry::Subject;
use super::log_page::{self, PIECE};
use super::table::print_json;

/// Show how a controller serves which namespaces (asymmetric namespace access)
///
/// Of an attached device or, with -a and -n, of a controller that is not attached.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// The groups alone, without their namespaces
    #[arg(short = 'g', long)]
    groups: bool,
    #[command(flatten)]
    output: Output,
}

/// Bytes of the log read at most.
const LENGTH_MAX: usize = 1 << 20;
/// How often a log is read which changes meanwhile.
const ATTEMPTS: usize = 10;

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let &Arguments { ref subject, groups, .. } = arguments;
    let log = (0..ATTEMPTS).find_map(|_| read(subject, groups).transpose());
    let log = log.ok_or(CliError::LogChanges)??;
    match arguments.output.output_format {
        Format::Normal => print!("{}", in_words(&log, &subject.name())),
        Format::Json => print_json(&json_of(&log, &subject.name())),
    }
    Ok(())
}

/// The log; nothing if it has changed meanwhile.
fn read(subject: &Subject, groups: bool) -> Result<Option<AnaLog>, CliError> {
    let specific = if groups { AnaHeader::GROUPS_ONLY } else { 0 };
    // Whoever only looks leaves the event to the host that waits for it.
    let all = GetLogPage::new(LogPageId::ANA, ALL_NAMESPACES, PIECE);
    let first = GetLogPage { specific, retain_event: true, ..all };
    let mut page = log_page::read(subject, first)?;
    let mut log = AnaLog::read(&page);
    while !log.is_whole {
        if page.len() >= LENGTH_MAX {
            return Err(CliError::LogTooLong(LENGTH_MAX as u64));
        }
        page.extend(log_page::read(subject, GetLogPage { offset: page.len() as u64, ..first })?);
        log = AnaLog::read(&page);
    }
    let is_one = page.len() <= PIECE as usize
        || AnaLog::read(&log_page::read(subject, first)?).change_count == log.change_count;
    Ok(is_one.then_some(log))
}

fn state(state: u8) -> String {
    match AnaState(state) {
        AnaState::PERSISTENT_LOSS => "persistent-loss".into(),
        known @ (AnaState::OPTIMIZED
        | AnaState::NON_OPTIMIZED
        | AnaState::INACCESSIBLE
        | AnaState::CHANGE) => known.to_string(),
        _ => "invalid state".into(),
    }
}

fn in_words(log: &AnaLog, name: &str) -> String {
    let AnaLog { change_count, groups, .. } = log;
    let mut text = format!(
        "Asymmetric Namespace Access Log for NVMe device: {name}\nANA LOG HEADER :-\nchgcnt\t:\t{change_count}\n\
         ngrps\t:\t{}\nANA Log Desc :-\n",
        groups.len()
    );
    for (group, nsids) in groups {
        let nsids: String = nsids.iter().map(|nsid| format!("\tnsid\t:\t{nsid}\n")).collect();
        writeln!(
            text,
            "grpid\t:\t{}\nnnsids\t:\t{}\nchgcnt\t:\t{}\nstate\t:\t{}\n{nsids}",
            group.group,
            group.nsids,
            group.change_count,
            state(group.state)
        )
        .expect("a string takes what is written");
    }
    text
}

fn json_of(log: &AnaLog, name: &str) -> Value {
    let groups = log.groups.iter().map(|(group, nsids)| {
        json!({
            "grpid": group.group.get(),
            "nnsids": group.nsids.get(),
            "chgcnt": group.change_count.get(),
            "state": state(group.state),
            "NSIDS": nsids.iter().map(|nsid| json!({ "nsid": nsid })).collect::<Value>(),
        })
    });
    json!({
        "Asymmetric Namespace Access Log for NVMe device": name,
        "chgcnt": log.change_count,
        "ngrps": log.groups.len(),
        // The blank behind it is nvme-cli's.
        "ANA DESC LIST ": groups.collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use ironside_common::nvme::log_page::AnaGroup;
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn access_is_laid_out_as_nvme_cli_does() {
        let group = AnaGroup { group: 3.into(), nsids: 2.into(), state: 4, ..AnaGroup::new_zeroed() };
        let log = AnaLog { change_count: 9, groups: vec![(group, vec![1, 7])], is_whole: true };
        let text = in_words(&log, "vol0");
        assert!(text.ends_with(
            "ANA LOG HEADER :-\nchgcnt\t:\t9\nngrps\t:\t1\nANA Log Desc :-\ngrpid\t:\t3\nnnsids\t:\t2\nchgcnt\t:\t0\n\
             state\t:\tpersistent-loss\n\tnsid\t:\t1\n\tnsid\t:\t7\n\n"
        ));
        let json = json_of(&log, "vol0");
        let group = &json["ANA DESC LIST "][0];
        assert_eq!((&group["state"], &group["NSIDS"][1]["nsid"]), (&json!("persistent-loss"), &json!(7)));
        assert_eq!(
            [1, 2, 3, 15, 9].map(state)[..],
            ["optimized", "non-optimized", "inaccessible", "change", "invalid state"]
        );
    }
}
