//! `ironside man`: the manual pages, one for each command.
use std::path::PathBuf;

use clap::{Args, CommandFactory};

use super::error::CliError;

/// Write the manual pages into a directory
///
/// For instance: ironside man /usr/local/share/man/man1
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Where they go; made if it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let path = arguments.directory.clone();
    std::fs::create_dir_all(&path)
        .and_then(|()| clap_mangen::generate_to(super::Cli::command(), &path))
        .map_err(|source| CliError::Write { path, source })
}
