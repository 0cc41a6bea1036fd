//! `ironside disconnect`: ends attachments, dead ones too.
use std::io;
use std::time::Duration;

use clap::Args;
use ironside_common::nvme::Nqn;
use serde_json::json;

use super::arguments::{Format, Output};
use super::attachment::{Answer, Directory, Entry, Process, Question, ask};
use super::error::CliError;
use super::table;

/// Detach volumes
///
/// Refused while a device is mounted or open, unless forced. Works when the target is dead, and when the
/// process of the attachment is.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Everything attached of the subsystem of this name, be it nothing
    #[arg(short = 'n', long, value_name = "NQN", required_unless_present_any = ["device", "name"])]
    nqn: Option<Nqn>,
    /// The attachment with this device, for instance /dev/loop0
    #[arg(short = 'd', long, value_name = "DEVICE", conflicts_with = "nqn")]
    device: Option<String>,
    /// The attachment of this name or device
    #[arg(value_name = "NAME", conflicts_with_all = ["nqn", "device"])]
    name: Option<String>,
    /// Even while it is in use: what is not written yet is lost
    #[arg(short = 'f', long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

/// How long a process may take to detach; longer than the target may take to answer a farewell.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one may take that is told to whatever the state of things.
const FORCED_PATIENCE: Duration = Duration::from_secs(10);

/// Detach everything
///
/// Whatever is mounted or open stays attached, unless forced.
#[derive(Args, Debug)]
pub(super) struct AllArguments {
    /// Even what is in use: what is not written yet is lost
    #[arg(short = 'f', long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

/// Everything is tried; the first failure of several is the outcome.
pub(super) fn run_all(arguments: &AllArguments) -> Result<(), CliError> {
    let (mut names, mut failures) = (Vec::new(), Vec::new());
    for entry in Directory::open()?.entries()? {
        let name = entry.name();
        match end(entry, arguments.force) {
            Ok(()) => names.push(name),
            Err(error) => failures.push(error),
        }
    }
    match arguments.output.output_format {
        Format::Json => table::print_json(&json!({ "Disconnected": names })),
        Format::Normal => names.iter().for_each(|name| println!("{name} disconnected")),
    }
    first_of(failures)
}

/// The first failure; the others are told right away.
pub(super) fn first_of(failures: Vec<CliError>) -> Result<(), CliError> {
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else { return Ok(()) };
    failures.for_each(|error| eprintln!("ironside: {error}"));
    Err(first)
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let word = arguments.device.as_deref().or(arguments.name.as_deref());
    let is_meant = |entry: &Entry| match (&entry.attachment, word) {
        (Some(attachment), Some(word)) => attachment.is_called(word),
        (Some(attachment), None) => arguments.nqn == Some(attachment.specification.nqn),
        // Left half made: by its name alone.
        (None, word) => word == Some(entry.name().as_str()),
    };
    let entries = Directory::open()?.entries()?;
    let meant: Vec<_> = entries.into_iter().filter(is_meant).collect();
    let names: Vec<_> = meant.iter().map(Entry::name).collect();
    if meant.is_empty() && word.is_some() {
        return Err(CliError::NoSuchAttachment(word.unwrap_or_default().into()));
    }
    for entry in meant {
        end(entry, arguments.force)?;
    }
    match (arguments.output.output_format, &arguments.nqn) {
        (Format::Json, _) => table::print_json(&json!({ "Disconnected": names })),
        (Format::Normal, Some(nqn)) => println!("NQN:{nqn} disconnected {} controller(s)", names.len()),
        (Format::Normal, None) => println!("{} disconnected", names.join(", ")),
    }
    Ok(())
}

fn end(mut entry: Entry, force: bool) -> Result<(), CliError> {
    let name = entry.name();
    entry.settle();
    if !entry.is_alive() {
        let uses = entry.uses();
        if !uses.is_empty() && !force {
            return Err(CliError::InUse { name, uses });
        }
        return Ok(entry.clean_up()?);
    }
    let no_answer = |source| CliError::NoAnswer { name: name.clone(), source };
    match ask(&entry.path, Question::Detach { force }) {
        Ok((Answer::Detaching, process)) => wait(&name, &process, force)?,
        Ok((Answer::InUse(uses), _)) => return Err(CliError::InUse { name, uses }),
        Ok(_) => return Err(no_answer(io::ErrorKind::InvalidData.into())),
        Err(source) => {
            let attachment = entry.attachment.as_ref().filter(|_| force);
            let pid = attachment.ok_or(source).map_err(no_answer)?.pid;
            // Its lock is held, so the number is still its own.
            kill(&name, &Process::open(pid).map_err(no_answer)?)?;
        }
    }
    // Whatever it left: nothing, if it ended in good order.
    let left = Directory::open()?.entries()?.into_iter().find(|entry| entry.name() == name);
    match left.filter(|entry| !entry.is_alive()) {
        Some(left) => Ok(left.clean_up()?),
        None => Ok(()),
    }
}

fn wait(name: &str, process: &Process, force: bool) -> Result<(), CliError> {
    let patience = if force { FORCED_PATIENCE } else { PATIENCE };
    let no_answer = |source| CliError::NoAnswer { name: name.to_owned(), source };
    match process.wait(patience).map_err(no_answer)? {
        true => Ok(()),
        false if force => kill(name, process),
        false => Err(CliError::Stuck { name: name.to_owned(), seconds: patience.as_secs() }),
    }
}

fn kill(name: &str, process: &Process) -> Result<(), CliError> {
    let no_answer = |source| CliError::NoAnswer { name: name.to_owned(), source };
    process.kill().map_err(no_answer)?;
    match process.wait(FORCED_PATIENCE).map_err(no_answer)? {
        true => Ok(()),
        false => Err(CliError::Stuck { name: name.to_owned(), seconds: FORCED_PATIENCE.as_secs() }),
    }
}
