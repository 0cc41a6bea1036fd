//! `ironside recover`: goes on with attachments whose process has died.
use clap::Args;
use serde_json::json;

use super::arguments::{Format, Output};
use super::attachment::{Directory, Entry, Order};
use super::connect;
use super::error::CliError;
use super::secrets::Given;
use super::table;

/// Take over devices whose process has died
///
/// A ublk device holds its requests when the process behind it dies, and a virtual machine waits for its disk. This starts
/// another one, which connects as the first did, makes sure that the volume is the same, and has the requests go on. Secrets
/// come from the files that connect was given. Without a name, everything that can be recovered is.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The attachment of this name or device
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let orders = orders(arguments.name.as_deref())?;
    let mut names = Vec::new();
    for order in orders {
        let attachment = connect::start(&order)?;
        if arguments.output.output_format == Format::Normal {
            connect::print(&attachment, Format::Normal);
        }
        names.push(attachment.name);
    }
    if arguments.output.output_format == Format::Json {
        table::print_json(&json!({ "Recovered": names }));
    }
    Ok(())
}

/// What is to be started. Locks on what was found end with this, for those who take it over.
fn orders(name: Option<&str>) -> Result<Vec<Order>, CliError> {
    let mut entries = Directory::open()?.entries()?;
    entries.iter_mut().for_each(Entry::settle);
    if let Some(word) = name {
        let is_meant = |entry: &Entry| {
            entry.name() == word || entry.attachment.as_ref().is_some_and(|found| found.is_called(word))
        };
        entries.retain(is_meant);
        if entries.is_empty() {
            return Err(CliError::NoSuchAttachment(word.into()));
        }
        if !entries.iter().any(Entry::is_recoverable) {
            return Err(CliError::NotRecoverable { name: word.into() });
        }
    }
    entries.retain(Entry::is_recoverable);
    let order = |entry: Entry| {
        let take_over = Some(entry.name());
        let specification = entry.attachment?.specification;
        let given = Given::again(&specification.secrets, &specification.options());
        Some(given.map(|given| Order { specification, given, take_over }).map_err(CliError::from))
    };
    entries.into_iter().filter_map(order).collect()
}
