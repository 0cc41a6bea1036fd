//! `ironside resv-notif-log`: what the controllers of an attachment have told of the reservations it shares. The process
//! behind the attachment reads their logs as they fill, and keeps what they said: a controller made for the question
//! would have nothing to say.
use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::arguments::{Format, Output};
use super::attachment::{Answer, Directory, Question, ask};
use super::error::CliError;
use super::table::print_json;
use crate::host::ReservationNotice;

/// Show what other hosts did to the reservations of an attached device
///
/// Each notification which came since it was attached, oldest first. With several paths each of them has its own.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// An attached device or its name
    #[arg(value_name = "DEVICE")]
    device: String,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let device = &arguments.device;
    let is_meant =
        |one: &super::attachment::Entry| one.attachment.as_ref().is_some_and(|one| one.is_called(device));
    let entry = Directory::open()?.entries()?.into_iter().find(is_meant);
    let entry = entry.ok_or_else(|| CliError::NoSuchAttachment(device.clone()))?;
    let no_answer = |source| CliError::NoAnswer { name: entry.name(), source };
    let (answer, _) = ask(&entry.path, Question::Notifications).map_err(no_answer)?;
    let Answer::Notifications(notices) = answer else {
        return Err(no_answer(std::io::ErrorKind::InvalidData.into()));
    };
    match arguments.output.output_format {
        Format::Normal => print!("{}", in_words(device, &notices)),
        Format::Json => print_json(&notices.iter().map(json_of).collect()),
    }
    Ok(())
}

fn in_words(device: &str, notices: &[ReservationNotice]) -> String {
    let mut text = format!("Reservation Notif Log for device: {device}\n");
    for ReservationNotice { count, kind, nsid } in notices {
        write!(
            text,
            "Log Page Count\t\t\t\t: {count:x}\nResv Notif Log Page Type\t\t: {kind} ({})\n\
             Namespace ID:\t\t\t\t: {nsid:x}\n",
            name(*kind)
        )
        .expect("a string takes what is written");
    }
    text
}

fn json_of(notice: &ReservationNotice) -> Value {
    json!({ "count": notice.count, "rn_log_type": notice.kind, "nsid": notice.nsid })
}

fn name(kind: u8) -> &'static str {
    match kind {
        1 => "Registration Preempted",
        2 => "Reservation Released",
        3 => "Reservation Preempted",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_laid_out_as_nvme_cli_does() {
        let notices = [1, 3].map(|kind| ReservationNotice { count: 0x1F, kind, nsid: 2 });
        let text = in_words("d", &notices);
        assert!(
            text.contains("Page Type\t\t: 1 (Registration Preempted)\nNamespace ID:\t\t\t\t: 2\n"),
            "{text}"
        );
        assert_eq!(text.matches("Count\t\t\t\t: 1f").count(), 2);
        assert_eq!(json_of(&notices[1]), json!({ "count": 31, "rn_log_type": 3, "nsid": 2 }));
    }
}
