//! A volume as the disk of a virtual machine: the back-end of vhost-user-blk, as QEMU, libvirt and Cloud Hypervisor know it.
//!
//! The machine's memory is mapped here, and its virtqueues are served from the reactor's own loop. Read [`front_end`] for what
//! is agreed upon, [`ring`] and [`chain`] for what the guest says, [`requests`] for what is done about it. None of what the
//! guest says is trusted. What is under way is kept in memory the front-end holds ([`inflight`]): whoever serves the
//! machine next carries it out again.
mod chain;
mod device;
mod front_end;
mod inflight;
mod machine;
mod memory;
mod message;
mod queue;
mod requests;
mod ring;
mod server;
mod socket;
#[cfg(test)]
mod tests;

pub use device::Disk;
pub use machine::Machine;
pub use server::Server;

/// Queues a machine may have.
const QUEUES: usize = 128;
