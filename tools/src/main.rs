//! The command line of the tools.
mod perf;

use std::process::ExitCode;

use clap::Parser;

/// Tools around Ironside.
#[derive(Parser)]
#[command(version, name = "ironside-tools")]
enum Tool {
    Perf(perf::PerfArgs),
}

fn main() -> ExitCode {
    let result = match Tool::parse() {
        Tool::Perf(args) => perf::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ironside-tools: {error:#}");
            ExitCode::FAILURE
        }
    }
}
