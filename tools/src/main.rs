//! Tools for those who look at Ironside from outside: what is on the wire, in words, and how fast it goes.
mod decode;
mod perf;
mod sim;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use anyhow::Context;
use clap::{CommandFactory, Parser};
use clap_complete::Shell;

/// Tools around Ironside.
#[derive(Parser)]
#[command(name = "ironside-tools", version, arg_required_else_help = true)]
enum Tool {
    /// Put captured NVMe/RDMA messages into words.
    Decode(decode::Decode),
    Perf(Box<perf::PerfArgs>),
    Sim(sim::Sim),
    /// Write the manual pages into a directory.
    Man {
        directory: PathBuf,
    },
    /// Write the completions of a shell to standard output.
    Completions {
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let result = match Tool::parse() {
        Tool::Decode(decode) => decode.run(),
        Tool::Perf(args) => perf::run(&args),
        Tool::Sim(sim) => sim.run(),
        Tool::Man { directory } => write_manual(&directory),
        Tool::Completions { shell } => {
            // Whoever closes the pipe has seen enough.
            let _ = io::stdout().write_all(&completions(shell));
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ironside-tools: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write_manual(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Tool::command(), directory))
        .with_context(|| format!("writing manual pages into {}", directory.display()))
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Tool::command(), "ironside-tools", &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_documented() {
        Tool::command().debug_assert();
        let directory = tempfile::tempdir().unwrap();
        write_manual(directory.path()).unwrap();
        let perf = fs::read_to_string(directory.path().join("ironside-tools-perf.1")).unwrap();
        assert!(perf.contains("yes\\-overwrite"), "{perf}");
        assert!(String::from_utf8(completions(Shell::Bash)).unwrap().contains("--yes-overwrite"));
    }
}
