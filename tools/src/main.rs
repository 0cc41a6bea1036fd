//! Tools for those who look at Ironside from outside: what is on the wire, in words, and how fast it goes.
mod decode;
mod perf;
mod sim;

use std::process::ExitCode;

use clap::Parser;

/// Tools around Ironside.
#[derive(Parser)]
#[command(name = "ironside-tools", version, arg_required_else_help = true)]
enum Tool {
    /// Put captured NVMe/RDMA messages into words.
    Decode(decode::Decode),
    Perf(Box<perf::PerfArgs>),
    Sim(sim::Sim),
}

fn main() -> ExitCode {
    let result = match Tool::parse() {
        Tool::Decode(decode) => decode.run(),
        Tool::Perf(args) => perf::run(&args),
        Tool::Sim(sim) => sim.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ironside-tools: {error:#}");
            ExitCode::FAILURE
        }
    }
}
