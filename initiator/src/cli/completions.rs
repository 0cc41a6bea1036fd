//! `ironside completions`: what a shell needs to complete our commands.
use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::error::CliError;

/// Print the completions of a shell
///
/// For instance: ironside completions bash > /etc/bash_completion.d/ironside
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut super::Cli::command(), "ironside", &mut text);
    // Whoever closes the pipe has seen enough.
    let _ = io::stdout().write_all(&text);
    Ok(())
}
