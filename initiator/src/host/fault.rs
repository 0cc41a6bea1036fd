//! Why a connection ended that should not have, and why one could not be made.
use ironside_common::auth::HostError;
use ironside_common::verbs::WcStatus;

use super::Refusal;

/// What broke a queue. There is no way back: the connection ends, and with it the association.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error("the connection ended: {0}")]
    Disconnected(String),
    #[error("a command could not be sent: {0:?}")]
    SendFailed(WcStatus),
    #[error("a buffer could not be taken back: {0:?}")]
    InvalidateFailed(WcStatus),
    #[error("a response of {0} bytes")]
    ResponseLength(u32),
    #[error("a response for submission queue {0} on another queue")]
    ResponseQueue(u16),
    #[error("a response to command {0:#06x}, which is not outstanding")]
    UnknownCommand(u16),
    #[error("a second response to command {0:#06x}")]
    SecondResponse(u16),
    #[error(
        "the target invalidated key {named:#010x} with the response to the command of key {exposed:#010x?}"
    )]
    WrongKey { named: u32, exposed: Option<u32> },
    #[error("a submission queue head of {head} in a queue of {size}")]
    QueueHead { head: u16, size: u16 },
    #[error("keep-alive was not answered within {0} ms")]
    KeepAlive(u32),
    #[error("keep-alive was refused: {0}")]
    KeepAliveRefused(Refusal),
    #[error("authenticating again: {0}")]
    Authentication(HostError),
    #[error("the admin queue has no room")]
    NoRoom,
    #[error("a command was not answered within {0} s")]
    CommandTimeout(u64),
}
