//! The command line of `ironside-target`.
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use ironside_common::memory::HugePages;
use ironside_common::nvme::Nqn;
use ironside_common::reactor::Poll;

use super::config::{
    Config, ConfigError, Crc, DRAIN_TIMEOUT_S_DEFAULT, DRAIN_TIMEOUT_S_MAX, HostKey, HostLimits, Hosts,
    IoPoll, Listen, Namespace, Provider, QUEUE_DEPTH_DEFAULT, QUEUE_DEPTH_MAX, REACTORS_MAX, Serial,
    Subsystem, metrics_address,
};
use super::devices::Format;
use super::source::Source;
use crate::ctl::Ctl;
use crate::limits::Limits;
use crate::throttle::Limit;

/// Exports files, block devices and memory over NVMe/RDMA.
#[derive(Debug, Parser)]
#[command(name = "ironside-target", version, arg_required_else_help = true)]
pub struct Cli {
    /// Log more; twice for everything there is. The variable `IRONSIDE_LOG` says it in full.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve namespaces until SIGTERM.
    Serve(Box<Serve>),
    /// Tell a target which serves what to do, and ask it what it does: at the socket of --control.
    Ctl(Box<Ctl>),
    /// Say whether a configuration file is right, and serve nothing.
    Check { file: PathBuf },
    /// Say which RDMA adapters this machine has and what they can do, or why there is none.
    Devices {
        #[arg(short, long, value_name = "FORMAT", default_value = "normal")]
        output: Format,
    },
    /// Write the manual pages into a directory.
    Man { directory: PathBuf },
    /// Write the completions of a shell to standard output.
    Completions { shell: Shell },
}

#[derive(Args, Debug)]
pub struct Serve {
    /// Read everything from this TOML file; no other option goes with it.
    #[arg(long, value_name = "FILE", conflicts_with = "Flags")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

/// One subsystem, described without a file.
#[derive(Args, Debug)]
#[group(id = "Flags", multiple = true)]
struct Flags {
    /// Where to listen; repeat for more. An IPv6 address with a port stands in brackets.
    #[arg(long, value_name = "ADDRESS[:PORT][,provider=…]", default_value = "127.0.0.1:4420")]
    listen: Vec<Listen>,
    /// What carries the connections of listeners which do not say: the RDMA adapter which owns the address (ibv), our
    /// own iWARP over TCP (iwarp), or auto, which is the adapter if there is one, else software.
    #[arg(long, value_name = "auto|ibv|iwarp", default_value = "auto")]
    provider: Provider,
    /// What to serve; repeat for more: a file or block device, `ram:1GiB` or `null:1TiB`, then `,size=1GiB`,
    /// `,lba=512|4096`, `,read-only`, `,uuid=…`; and limits of what all hosts may ask of it: `,iops=N`,
    /// `,bandwidth=SIZE`, `,read-bandwidth=SIZE`, `,write-bandwidth=SIZE`, `,burst=TIME`.
    #[arg(long, value_name = "PATH|ram:SIZE|null:SIZE[,OPTION…]", required_unless_present_any = ["config", "control"])]
    namespace: Vec<Namespace>,
    /// Name of the subsystem; without it one is made once for these listeners, and kept.
    #[arg(long)]
    nqn: Option<Nqn>,
    /// Serial number of the subsystem; without it one is made once, and kept.
    #[arg(long)]
    serial: Option<Serial>,
    /// Admit this host; repeat for more. Without it only this machine's own host is admitted.
    #[arg(long, value_name = "NQN", conflicts_with = "allow_any_host")]
    allow_host: Vec<Nqn>,
    /// Admit every host that reaches a listener.
    #[arg(long)]
    allow_any_host: bool,
    /// What each host may ask for in a second: `iops=N`, `bandwidth=SIZE`, `read-bandwidth=SIZE`,
    /// `write-bandwidth=SIZE`, and `burst=TIME`.
    #[arg(long, value_name = "KEY=VALUE[,…]")]
    host_limit: Option<Limit>,
    /// File of mode 0600 with the secret (DHHC-1:…) by which each admitted host has to authenticate.
    #[arg(long, value_name = "FILE", conflicts_with = "allow_any_host")]
    key_file: Option<PathBuf>,
    /// File of mode 0600 with the secret by which the subsystem authenticates to hosts that ask for it.
    #[arg(long, value_name = "FILE", requires = "key_file")]
    controller_key_file: Option<PathBuf>,
    /// Threads that serve; without it one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(REACTORS_MAX)))]
    reactors: Option<u16>,
    /// Entries of an I/O queue a host may ask for.
    #[arg(long, value_name = "N", default_value_t = QUEUE_DEPTH_DEFAULT,
        value_parser = clap::value_parser!(u16).range(2..=i64::from(QUEUE_DEPTH_MAX)))]
    queue_depth: u16,
    /// What the target takes on at most: `buffers=SIZE`, `connections=N`, `connections-per-address=N`, `controllers=N`,
    /// `controllers-per-host=N`, `io-queues=N`, `transfer-size=SIZE`, `in-capsule=SIZE`, `rdma-reads=N`.
    #[arg(long, value_name = "KEY=VALUE[,…]")]
    limits: Option<Limits>,
    /// CRC32C on software RDMA connections: on, off, or peer (as the peer asks).
    #[arg(long, value_name = "on|off|peer", default_value = "on")]
    crc: Crc,
    /// Poll drives for completions: auto (those whose driver has queues for it) or off.
    #[arg(long, value_name = "auto|off", default_value = "auto")]
    io_poll: IoPoll,
    /// How threads wait for work: always looking, adaptive (looking while that pays, then asleep), or never looking.
    #[arg(long, value_name = "always|adaptive|never", default_value_t)]
    poll: Poll,
    /// Huge pages set aside for buffers and memory namespaces: off, auto (of 2 MiB, if they are there), 2MiB or 1GiB.
    #[arg(long, value_name = "off|auto|2MiB|1GiB", default_value = "off")]
    huge_pages: HugePages,
    /// How long the media have to answer what is under way when the target stops.
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN_TIMEOUT_S_DEFAULT,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(DRAIN_TIMEOUT_S_MAX)))]
    drain_timeout: u16,
    /// Take commands at this Unix socket, which is made, for this user alone: from `ironside-target ctl`, or by SPDK's
    /// JSON-RPC.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Tell what it counts by HTTP, for Prometheus, at /metrics of this address: port 9420 unless it names one.
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = metrics_address)]
    metrics: Option<SocketAddr>,
    /// Where to keep what must outlive the process.
    #[arg(long, value_name = "DIRECTORY")]
    state_dir: Option<PathBuf>,
}

impl Cli {
    /// What a command line says.
    ///
    /// # Errors
    /// What is wrong with it, in clap's words but for one which would list every option there is.
    pub fn read<I, T>(line: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        Self::try_parse_from(line).map_err(|error| {
            let named = |value: &ContextValue| value.to_string().starts_with("--config");
            if error.kind() == ErrorKind::ArgumentConflict
                && error.get(ContextKind::InvalidArg).is_some_and(named)
            {
                let message =
                    "--config takes everything from its file; no other option of serve goes with it";
                return Self::command().error(ErrorKind::ArgumentConflict, message);
            }
            error
        })
    }
}

/// Writes one manual page for the program and one for each command into `directory`, which is made.
///
/// # Errors
/// If a file cannot be written.
pub fn write_manual(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)
}

/// The completions of a shell, as text to be sourced by it.
pub fn write_completions(shell: Shell, out: &mut dyn io::Write) {
    clap_complete::generate(shell, &mut Cli::command(), "ironside-target", out);
}

impl Serve {
    /// What is to be served, from the file or from the flags, and where that is said.
    ///
    /// # Errors
    /// If it cannot be read, or does not go together.
    pub fn into_config(self) -> Result<(Config, Source), ConfigError> {
        match self.config {
            Some(file) => Source::load(&file),
            None => {
                let config = self.flags.into_config()?;
                let source = Source::of_flags(&config);
                Ok((config, source))
            }
        }
    }
}

impl Flags {
    fn into_config(self) -> Result<Config, ConfigError> {
        let named: Vec<_> = if self.allow_host.is_empty() {
            vec![None]
        } else {
            self.allow_host.iter().copied().map(Some).collect()
        };
        let key = |(nqn, file)| HostKey::new(nqn, file, self.controller_key_file.clone());
        let files = self.key_file.iter().cycle().cloned();
        let keys = named.into_iter().zip(files).map(key).collect();
        let hosts = match self.allow_host {
            _ if self.allow_any_host => Hosts::Any,
            listed if listed.is_empty() => Hosts::ThisMachine,
            listed => Hosts::Listed(listed),
        };
        // A target which is told meanwhile what to serve may begin with nothing.
        let is_empty = self.namespace.is_empty() && self.control.is_some();
        let numbered = |(nsid, namespace)| Namespace { nsid, ..namespace };
        let subsystem = Subsystem {
            nqn: self.nqn,
            serial: self.serial,
            hosts,
            keys,
            host_limits: HostLimits { each: self.host_limit.unwrap_or_default(), named: Vec::new() },
            listen: None,
            cntlids: None,
            access: Vec::new(),
            namespaces: (1..).zip(self.namespace).map(numbered).collect(),
        };
        let config = Config {
            listen: self.listen,
            provider: self.provider,
            reactors: self.reactors,
            queue_depth: self.queue_depth,
            limits: self.limits.unwrap_or_default(),
            crc: self.crc,
            io_poll: self.io_poll,
            poll: self.poll,
            huge_pages: self.huge_pages,
            drain_timeout_s: self.drain_timeout,
            state_directory: self.state_dir,
            control: self.control,
            metrics: self.metrics,
            bdevs: Vec::new(),
            subsystems: if is_empty { Vec::new() } else { vec![subsystem] },
        };
        config.check().map_err(ConfigError::of_flags)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_flags_are_refused_in_one_line() {
        let error = Cli::read(["ironside-target", "serve", "--config", "a", "--state-dir", "b"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no other option") && !text.contains("--allow-host"), "{text}");
        let error = Cli::read(["ironside-target", "serve", "--colour"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownArgument);
    }

    #[test]
    fn the_command_line_is_consistent_and_documented() {
        Cli::command().debug_assert();
        let directory = tempfile::tempdir().unwrap();
        write_manual(directory.path()).unwrap();
        let serve = std::fs::read_to_string(directory.path().join("ironside-target-serve.1")).unwrap();
        assert!(serve.contains("allow\\-any\\-host"), "{serve}");
        let mut bash = Vec::new();
        write_completions(Shell::Bash, &mut bash);
        assert!(String::from_utf8(bash).unwrap().contains("--namespace"));
    }
}
