//! What a host is told before it connects.
use std::sync::Arc;
use std::time::Duration;

use ironside_common::auth::Keys;
use ironside_common::nvme::Nqn;
use ironside_common::verbs::Address;

use super::passed::Passed;
use super::queue::MAX_QUEUE_SIZE;

/// Entries of the admin queue, as every NVMe/RDMA host has it.
pub const ADMIN_QUEUE_SIZE: u16 = 32;
/// I/O queues one host may have.
pub const IO_QUEUES_MAX: u16 = 64;

/// What is wanted of the controller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Volumes.
    Io,
    /// What the controller and its namespaces say of themselves: no I/O queues.
    Inquiry,
    /// What the controller says of itself, and how long it takes to say it so many times more.
    Probe(u16),
    /// The discovery log page.
    Discovery,
    /// The answer to one command.
    Command(Passed),
}

/// Which controller, and how. The names are nvme-cli's.
#[derive(Clone, Debug)]
pub struct HostOptions {
    pub address: Address,
    pub nqn: Nqn,
    pub role: Role,
    pub host_nqn: Nqn,
    pub host_id: uuid::Uuid,
    /// With what the marks in the memory of reads begin: another for each run and core of a host, so that what one of them
    /// left anywhere is not taken for the mark of another.
    pub marks: uuid::Uuid,
    /// What to authenticate by, if the controller asks for it. With a secret of the controller, it has to.
    pub keys: Option<Arc<Keys>>,
    pub nr_io_queues: u16,
    /// Entries of each I/O queue; one less may be outstanding.
    pub queue_size: u16,
    /// Zero switches keep-alive off.
    pub keep_alive_tmo: Duration,
    pub reconnect_delay: Duration,
    /// From the loss of the connection until requests fail; `None` for never.
    pub ctrl_loss_tmo: Option<Duration>,
    /// From the loss of the connection until requests fail for as long as there is none; `None` holds them.
    pub fast_io_fail_tmo: Option<Duration>,
    /// Ask the controller to do without submission queue flow control.
    pub disable_sqflow: bool,
    /// How long the connection of one queue may take to stand.
    pub dial_patience: Duration,
    /// How long a command may stay unanswered before the connection counts as lost.
    pub io_timeout: Duration,
    /// Most bytes of one transfer, whatever the controller would take.
    pub max_transfer: u32,
    /// Requests of the user that may be outstanding.
    pub requests: u32,
    /// Other hosts of the same user share the volume, each on a core of its own, and know nothing of this one's losses. So
    /// nobody is told that a write has failed which may still be executed: see [`super::fence`].
    pub one_of_cores: bool,
    /// It is one path of several: what it cannot end comes back as [`crate::volume::IoError::Path`] instead of being
    /// held, and its first connection is tried until it stands.
    pub one_of_many: bool,
}

/// Why options make no sense.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OptionsError {
    #[error("nr_io_queues must be between 1 and {IO_QUEUES_MAX}")]
    IoQueues,
    #[error("queue_size must be between 16 and {MAX_QUEUE_SIZE}")]
    QueueSize,
    #[error("keep_alive_tmo must be below 2^32 milliseconds")]
    KeepAlive,
    #[error(
        "several cores take a keep_alive_tmo: without one nobody knows when an unanswered write cannot happen any more"
    )]
    KeepAliveOfCores,
    #[error("fast_io_fail_tmo must not be longer than ctrl_loss_tmo, when all is over")]
    FastIoFail,
    #[error("max_transfer must be a multiple of 4096 below 16 MiB")]
    MaxTransfer,
}

impl HostOptions {
    /// The defaults of nvme-cli where it has some; one I/O queue, since one reactor drives them all.
    #[must_use]
    pub fn new(address: Address, nqn: Nqn, host_nqn: Nqn, host_id: uuid::Uuid) -> Self {
        Self {
            address,
            nqn,
            role: Role::Io,
            host_nqn,
            host_id,
            marks: host_id,
            keys: None,
            nr_io_queues: 1,
            queue_size: 128,
            keep_alive_tmo: Duration::from_secs(5),
            reconnect_delay: Duration::from_secs(10),
            ctrl_loss_tmo: Some(Duration::from_secs(600)),
            fast_io_fail_tmo: None,
            disable_sqflow: false,
            dial_patience: Duration::from_secs(5),
            io_timeout: Duration::from_secs(30),
            max_transfer: 1 << 20,
            requests: 1024,
            one_of_cores: false,
            one_of_many: false,
        }
    }

    /// # Errors
    /// If a number is out of its range.
    pub fn check(&self) -> Result<(), OptionsError> {
        if !(1..=IO_QUEUES_MAX).contains(&self.nr_io_queues) {
            return Err(OptionsError::IoQueues);
        }
        if !(16..=MAX_QUEUE_SIZE).contains(&self.queue_size) {
            return Err(OptionsError::QueueSize);
        }
        if u32::try_from(self.keep_alive_tmo.as_millis()).is_err() {
            return Err(OptionsError::KeepAlive);
        }
        if self.one_of_cores && self.keep_alive_tmo.is_zero() {
            return Err(OptionsError::KeepAliveOfCores);
        }
        if self.ctrl_loss_tmo.zip(self.fast_io_fail_tmo).is_some_and(|(all, fast)| fast > all) {
            return Err(OptionsError::FastIoFail);
        }
        if self.max_transfer < 4096 || !self.max_transfer.is_multiple_of(4096) || self.max_transfer >= 1 << 24
        {
            return Err(OptionsError::MaxTransfer);
        }
        Ok(())
    }

    /// As Connect carries it.
    #[must_use]
    pub fn kato_ms(&self) -> u32 {
        u32::try_from(self.keep_alive_tmo.as_millis()).unwrap_or(u32::MAX)
    }
}
