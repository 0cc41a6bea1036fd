//! The command line: see [`ironside_initiator::cli`].
use std::process::ExitCode;

use clap::Parser;
use ironside_initiator::cli::Cli;

fn main() -> ExitCode {
    let Err(error) = Cli::parse().run() else { return ExitCode::SUCCESS };
    eprintln!("ironside: {error}");
    if let Some(remedy) = error.remedy() {
        eprintln!("  {remedy}");
    }
    ExitCode::from(error.class() as u8)
}
