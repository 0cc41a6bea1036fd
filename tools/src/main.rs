//! Tools for those who look at Ironside from outside: what is on the wire, in words.
mod decode;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "ironside-tools", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put captured NVMe/RDMA messages into words.
    Decode(decode::Decode),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Decode(decode) => decode.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ironside-tools: {error:#}");
            ExitCode::FAILURE
        }
    }
}
