//! `ironside rekey`: has attachments authenticate by the secrets which their files have now.
use std::io;

use clap::Args;
use serde_json::json;

use super::arguments::{Format, Output};
use super::attachment::{Answer, Directory, Entry, Question, ask};
use super::error::CliError;
use super::table;

/// Authenticate again by secrets which have changed
///
/// Reads the secrets again from where connect had them (files, or nvme-cli's configuration), and authenticates by them on
/// every queue, while the device is in use. Give the target its new ones first. SIGHUP to the attach process does the same.
/// Without a name, all attachments are meant.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The attachment of this name or device
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let is_meant = |entry: &Entry| match (&arguments.name, &entry.attachment) {
        (_, None) => false,
        (None, Some(_)) => entry.is_alive(),
        (Some(word), Some(attachment)) => attachment.is_called(word),
    };
    let meant: Vec<_> = Directory::open()?.entries()?.into_iter().filter(is_meant).collect();
    if let Some(word) = arguments.name.as_ref().filter(|_| meant.is_empty()) {
        return Err(CliError::NoSuchAttachment(word.clone()));
    }
    let mut told = Vec::new();
    for entry in meant {
        let name = entry.name();
        let no_answer = |source| CliError::NoAnswer { name: name.clone(), source };
        let (queues, goes_on) = match ask(&entry.path, Question::Rekey).map_err(no_answer)?.0 {
            Answer::Rekeyed { queues, goes_on } => (queues, goes_on),
            Answer::NotRekeyed { why } => return Err(CliError::NotRekeyed { name, why }),
            _ => return Err(no_answer(io::ErrorKind::InvalidData.into())),
        };
        if arguments.output.output_format == Format::Normal {
            println!("{name}: {}", in_words(queues, goes_on));
        }
        told.push(json!({ "Name": name, "Queues": queues, "GoesOn": goes_on }));
    }
    if arguments.output.output_format == Format::Json {
        table::print_json(&json!({ "Rekeyed": told }));
    }
    Ok(())
}

fn in_words(queues: u16, goes_on: bool) -> String {
    match (queues, goes_on) {
        (_, true) => "authenticating goes on; the log says how it ends".into(),
        (0, false) => {
            "nothing that is connected has to authenticate; the next connection goes by these secrets".into()
        }
        (queues, false) => format!("{queues} queues have authenticated again"),
    }
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn it_is_said_what_became_of_it() {
        assert_eq!(in_words(2, false), "2 queues have authenticated again");
        assert!(in_words(0, false).contains("next connection") && in_words(1, true).contains("goes on"));
    }
}
