//! The command line of `ironside-target ctl`.
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ironside_common::nvme::Nqn;
use serde_json::Value;
use uuid::Uuid;

use crate::control::config::{Backing, Listen, Namespace, Serial, ValueError};
use crate::control::devices::Format;

#[derive(Args, Debug)]
pub struct Ctl {
    /// The target's control socket; without it what `IRONSIDE_CONTROL` says, else `/run/ironside/target.sock` for root
    /// and `$XDG_RUNTIME_DIR/ironside/target.sock` for everyone else.
    #[arg(short, long, value_name = "PATH", global = true)]
    pub(super) socket: Option<PathBuf>,
    /// How an answer is written.
    #[arg(short, long, value_name = "FORMAT", default_value = "normal", global = true)]
    pub(super) output: Format,
    #[command(subcommand)]
    pub(super) action: Action,
}

#[derive(Debug, Subcommand)]
pub(super) enum Action {
    /// Say what is served, and who is there.
    Status,
    /// List, create and delete subsystems.
    #[command(subcommand)]
    Subsystem(SubsystemAction),
    /// List, add and remove namespaces.
    #[command(subcommand)]
    Namespace(NamespaceAction),
    /// Say who may connect.
    #[command(subcommand)]
    Host(HostAction),
    /// Say where a subsystem is reached.
    #[command(subcommand)]
    Listener(ListenerAction),
    /// List, create, limit and delete what namespaces are made of.
    #[command(subcommand)]
    Bdev(BdevAction),
    /// List the controllers of a subsystem, and whose they are.
    Controllers { nqn: Nqn },
    /// Have the configuration file read again, and say what has changed.
    Reload,
    /// Write the configuration in force to standard output, as a file that `serve --config` takes.
    Save {
        /// As SPDK saves it, for `spdk-rpc load_config`.
        #[arg(long)]
        spdk: bool,
    },
    /// Call a method of the JSON-RPC, and print its result.
    Rpc {
        method: String,
        /// Its parameters: a JSON object.
        #[arg(value_name = "JSON", value_parser = parse_json)]
        parameters: Option<Value>,
    },
}

fn parse_json(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text)
}

#[derive(Debug, Subcommand)]
pub(super) enum SubsystemAction {
    /// List all.
    List,
    /// Create one without a namespace.
    Create {
        nqn: Nqn,
        /// Its serial number; without it one is made, and kept.
        #[arg(long)]
        serial: Option<Serial>,
        /// Admit every host that reaches a listener.
        #[arg(long, conflicts_with = "host")]
        allow_any_host: bool,
        /// Admit this host; repeat for more. Without it nobody is admitted.
        #[arg(long, value_name = "NQN")]
        host: Vec<Nqn>,
        /// Where it is reached; repeat for more. Without it nowhere.
        #[arg(long, value_name = "ADDRESS[:PORT]")]
        listen: Vec<Listen>,
    },
    /// Delete one, with its namespaces but not the bdevs they are made of: its hosts are disconnected.
    Delete { nqn: Nqn },
}

#[derive(Debug, Subcommand)]
pub(super) enum NamespaceAction {
    /// List those of all subsystems, or of one.
    List { nqn: Option<Nqn> },
    /// Add one.
    Add {
        nqn: Nqn,
        /// A bdev by its name; or a file or device by its path, or memory, which becomes one:
        /// `/srv/disk.img,size=1GiB`, `ram:1GiB,lba=512`, `null:1TiB`.
        #[arg(value_name = "BDEV|PATH|ram:SIZE|null:SIZE[,OPTION…]", value_parser = What::parse)]
        what: What,
        /// Its number; without it the lowest there is.
        #[arg(long)]
        nsid: Option<u32>,
        /// What hosts tell it from others by; without it that of the bdev.
        #[arg(long)]
        uuid: Option<Uuid>,
        /// Which group of namespaces it is of.
        #[arg(long, value_name = "N")]
        ana_group: Option<u32>,
    },
    /// Remove one, and the bdev it is made of: a file stays, memory is gone.
    Remove {
        nqn: Nqn,
        nsid: u32,
        /// Keep the bdev, for another namespace.
        #[arg(long)]
        keep: bool,
    },
}

/// What a namespace is to be made of.
#[derive(Clone, Debug)]
pub(super) enum What {
    Bdev(String),
    New(Box<Namespace>),
}

impl What {
    /// A path has a slash, as in a shell.
    fn parse(text: &str) -> Result<Self, String> {
        let is_new = text.contains('/') || text.starts_with("ram:") || text.starts_with("null:");
        match is_new {
            true => described(text).map(Box::new).map(Self::New),
            false => Ok(Self::Bdev(text.to_owned())),
        }
    }
}

/// What a bdev can be made of. Limits and protection have commands of their own.
fn described(text: &str) -> Result<Namespace, String> {
    let namespace: Namespace = text.parse().map_err(|error: ValueError| error.to_string())?;
    if namespace.limit.is_any() {
        return Err("limits are set by `ironside-target ctl bdev limit`".into());
    }
    if namespace.read_only && !matches!(namespace.backing, Backing::File { .. }) {
        return Err("only a file or a device is served read only".into());
    }
    Ok(namespace)
}

#[derive(Debug, Subcommand)]
pub(super) enum HostAction {
    /// List the hosts of a subsystem.
    List { nqn: Nqn },
    /// Admit a host.
    Add { nqn: Nqn, host: Nqn },
    /// Admit a host no more: its connections end.
    Remove { nqn: Nqn, host: Nqn },
    /// Admit every host, or those which are listed.
    Any { nqn: Nqn, allow: Switch },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Switch {
    On,
    Off,
}

impl Switch {
    pub(super) const fn is_on(self) -> bool {
        matches!(self, Self::On)
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum ListenerAction {
    /// List the listeners of a subsystem, and the states of its groups of namespaces there.
    List { nqn: Nqn },
    /// Have it reached at an address.
    Add {
        nqn: Nqn,
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: Listen,
    },
    /// Have it reached there no more: connections which came there end.
    Remove {
        nqn: Nqn,
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: Listen,
    },
    /// Set the state of namespaces there.
    State {
        nqn: Nqn,
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: Listen,
        #[arg(value_parser = ["optimized", "non-optimized", "inaccessible", "persistent-loss", "change"])]
        state: String,
        /// Of this group alone; without it of all.
        #[arg(long, value_name = "N")]
        group: Option<u32>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum BdevAction {
    /// List all.
    List,
    /// Create one which no namespace is made of yet.
    Create {
        name: String,
        #[arg(value_name = "PATH|ram:SIZE|null:SIZE[,OPTION…]", value_parser = described)]
        what: Namespace,
    },
    /// Delete one, and the namespace made of it: a file stays, memory is gone.
    Delete { name: String },
    /// Limit what all hosts together may ask of one; 0 for no limit.
    #[command(group = clap::ArgGroup::new("limit").required(true).multiple(true))]
    Limit {
        name: String,
        /// Commands a second.
        #[arg(long, value_name = "N", group = "limit")]
        iops: Option<u64>,
        /// MiB a second, read and written together.
        #[arg(long, value_name = "MIB", group = "limit")]
        bandwidth: Option<u64>,
        /// MiB a second which are read.
        #[arg(long, value_name = "MIB", group = "limit")]
        read_bandwidth: Option<u64>,
        /// MiB a second which are written.
        #[arg(long, value_name = "MIB", group = "limit")]
        write_bandwidth: Option<u64>,
    },
}
