//! Questions to a target which need no volumes: what there is to discover, and what a controller says of
//! itself. Each connects, asks and disconnects.
use std::time::Duration;

use ironside_common::nvme::Nqn;

use super::{AttachError, AttachOptions, Attached, Description};
use crate::host::{Answer, HostOptions, Passed, Role};

/// Reads the discovery log at the address the options name; their NQN does not matter.
///
/// # Errors
/// Why it could not be read.
pub fn discover(options: AttachOptions) -> Result<Description, AttachError> {
    let host = HostOptions {
        nqn: Nqn::discovery(),
        role: Role::Discovery,
        keep_alive_tmo: Duration::ZERO,
        ..options.host
    };
    let attached = Attached::attach(AttachOptions { host, buffers: Vec::new(), ..options })?;
    Ok(attached.description().clone())
}

/// Asks a controller and its namespaces what they are, without making I/O queues.
///
/// # Errors
/// Why it could not be asked.
pub fn inquire(options: AttachOptions) -> Result<Description, AttachError> {
    let host = HostOptions { role: Role::Inquiry, ..options.host };
    let attached = Attached::attach(AttachOptions { host, buffers: Vec::new(), ..options })?;
    Ok(attached.description().clone())
}

/// Asks a controller what it is, and `count` times more. Each answer is 4096 bytes which the controller writes into
/// memory of ours by RDMA Write, before its response.
///
/// # Errors
/// Why it could not be asked.
pub fn probe(options: AttachOptions, count: u16) -> Result<Description, AttachError> {
    let host = HostOptions { role: Role::Probe(count), keep_alive_tmo: Duration::ZERO, ..options.host };
    let attached = Attached::attach(AttachOptions { host, buffers: Vec::new(), ..options })?;
    Ok(attached.description().clone())
}

/// Sends one command, on the admin queue or on an I/O queue of its own.
///
/// # Errors
/// Why it was not sent, or what else than success came of it.
pub fn pass(options: AttachOptions, passed: Passed) -> Result<Answer, AttachError> {
    let (role, keep_alive_tmo) = (Role::Command(passed), Duration::ZERO);
    let host = HostOptions { role, keep_alive_tmo, nr_io_queues: 1, ..options.host };
    let attached = Attached::attach(AttachOptions { host, buffers: Vec::new(), ..options })?;
    Ok(attached.description().answer.clone())
}
