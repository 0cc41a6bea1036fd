//! The command line of the target daemon.
use std::io::IsTerminal;
use std::process::ExitCode;

use ironside_target::control::cli::{self, Cli, Command};
use ironside_target::control::config::{Config, ConfigError};
use ironside_target::control::devices;
use ironside_target::ctl::{self, CtlError};
use ironside_target::serve::{self, ServeError};
use tracing_subscriber::EnvFilter;

/// The command line or the configuration is wrong.
const USAGE: u8 = 2;
/// There is no target to be told anything.
const UNREACHABLE: u8 = 3;

fn main() -> ExitCode {
    let cli = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    start_logging(cli.verbose);
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Config(error)) => {
            eprintln!("error: {error}");
            ExitCode::from(USAGE)
        }
        Err(Failure::Ctl(error)) => {
            eprintln!("ironside-target: {}", serve::chain(&error));
            if error.is_unreachable() { ExitCode::from(UNREACHABLE) } else { ExitCode::FAILURE }
        }
        Err(Failure::Serve(error)) => {
            eprintln!("ironside-target: {}", serve::chain(&error));
            ExitCode::FAILURE
        }
        Err(Failure::Other(error)) => {
            eprintln!("ironside-target: {error:#}");
            ExitCode::FAILURE
        }
    }
}

enum Failure {
    Config(ConfigError),
    Ctl(CtlError),
    Serve(ServeError),
    Other(anyhow::Error),
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(arguments) => {
            let (config, source) = arguments.into_config().map_err(Failure::Config)?;
            serve::serve(config, source).map_err(Failure::Serve)
        }
        Command::Ctl(arguments) => {
            print!("{}", ctl::run(*arguments).map_err(Failure::Ctl)?);
            Ok(())
        }
        Command::Check { file } => {
            let config = Config::load(&file).map_err(Failure::Config)?;
            println!("{}: good", file.display());
            print!("taken on at most:\n{}", config.limits);
            println!("  {:<24}{:>8}  entries of an I/O queue", "queue-depth", config.queue_depth);
            Ok(())
        }
        Command::Devices { output } => {
            print!("{}", devices::report(output));
            Ok(())
        }
        Command::Man { directory } => {
            cli::write_manual(&directory).map_err(|error| Failure::Other(error.into()))
        }
        Command::Completions { shell } => {
            cli::write_completions(shell, &mut std::io::stdout());
            Ok(())
        }
    }
}

/// Logs go to standard error; `IRONSIDE_LOG` wins over `-v`, if it can be understood: nobody's target stays down
/// for the sake of a filter.
fn start_logging(verbose: u8) {
    let default = match verbose {
        0 => "warn,ironside_target=info",
        1 => "info,ironside_target=debug",
        _ => "trace",
    };
    let wanted = std::env::var("IRONSIDE_LOG").ok().filter(|filter| !filter.is_empty());
    let wanted = wanted.unwrap_or_else(|| default.into());
    let filter = EnvFilter::try_new(&wanted).unwrap_or_else(|error| {
        eprintln!(
            "ironside-target: IRONSIDE_LOG is ignored: {wanted:?} is no filter ({error}); write for instance \
             ironside_target=debug"
        );
        EnvFilter::new(default)
    });
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
}
