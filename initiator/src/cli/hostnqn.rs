//! `ironside show-hostnqn` and `gen-hostnqn`: the name by which targets know this machine.
use clap::Args;
use ironside_common::identity::host_identity;
use uuid::Uuid;

use super::error::CliError;

/// Show the NQN of this host, which targets admit
///
/// That in /etc/nvme/hostnqn, else the one which was made once and kept.
#[derive(Args, Debug)]
pub(super) struct Show {}

/// Make an NQN for a host
///
/// Prints one nobody has; nothing is kept. For instance: ironside gen-hostnqn > /etc/nvme/hostnqn
#[derive(Args, Debug)]
pub(super) struct Generate {}

pub(super) fn show(_: &Show) -> Result<(), CliError> {
    println!("{}", host_identity()?.nqn);
    Ok(())
}

pub(super) fn generate(_: &Generate) -> Result<(), CliError> {
    println!("nqn.2014-08.org.nvmexpress:uuid:{}", Uuid::new_v4());
    Ok(())
}
