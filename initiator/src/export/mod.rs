//! How a volume reaches other programs on this machine: as a block device of the ublk driver or of the kernel's NBD
//! client, as an NBD export on a Unix socket, as a disk of virtual machines on such a socket, or as one file of a FUSE file
//! system, which a loop device turns into a block device.
pub mod fuse;
mod listener;
pub mod loop_device;
pub mod nbd;
pub mod nbd_device;
#[cfg(test)]
mod tests;
pub mod ublk;
pub mod usage;
pub mod vhost_user;

use std::time::Duration;

pub use listener::Listener;

/// How long the kernel may take to tidy up behind a process that died, and how often it is asked whether it has.
const BURIAL_PATIENCE: Duration = Duration::from_secs(30);
const BURIAL_INTERVAL: Duration = Duration::from_millis(50);
