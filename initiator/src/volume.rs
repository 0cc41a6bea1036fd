//! What a volume is to whoever uses it: requests in, completions out, and what it can do. The machine behind
//! it is the host machine; exports, tests and tools know only this.
use ironside_common::nvme::Status;
use ironside_common::verbs::Sge;

/// What is to be done with a range of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    Read,
    /// With `fua`, durable before it completes.
    Write {
        fua: bool,
    },
    /// Everything completed before becomes durable. Offset and length do not matter.
    Flush,
    /// Reads return zeroes afterwards; with `unmap` the space may be given back.
    WriteZeroes {
        unmap: bool,
        fua: bool,
    },
    /// The contents are no longer needed. Advice: what reads return afterwards is the target's choice.
    Discard,
}

impl Operation {
    /// Whether what it does shows when it is done again later.
    #[must_use]
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::Flush)
    }
}

/// One request to a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// The caller's own name for it; comes back in [`Completed`].
    pub tag: u64,
    pub operation: Operation,
    /// In bytes, whole blocks.
    pub offset: u64,
    /// In bytes, whole blocks; any size, also beyond what one command can transfer.
    pub length: u64,
    /// Exactly `length` bytes of registered memory for a read or a write. The caller keeps it lent until the
    /// request completes; nobody at the other end can reach it after that.
    pub buffer: Option<Sge>,
}

/// How a request ended. Every request accepted ends exactly once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completed {
    pub tag: u64,
    pub result: Result<(), IoError>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IoError {
    #[error("the range is not whole blocks inside the volume, or the buffer does not match it")]
    Invalid,
    #[error("beyond the end of the volume")]
    OutOfRange,
    #[error("the volume does not offer this operation")]
    NotSupported,
    #[error("the volume is read-only")]
    ReadOnly,
    #[error("no space left behind the volume")]
    NoSpace,
    #[error("the medium failed")]
    Medium,
    #[error("a reservation of another host forbids it")]
    ReservationConflict,
    #[error("the controller said that it has read, but did not write all of the data")]
    NoData,
    #[error("the controller answered: {0}")]
    Refused(Status),
    #[error("the controller could not be reached within the time allowed")]
    ConnectionLost,
    /// Of one of several paths: another may do better.
    #[error("{0}")]
    Path(PathError),
    #[error("the namespace is gone, or is not the one it was")]
    NamespaceGone,
    #[error("the volume is being closed")]
    Closing,
}

/// Why a request did not end on a path which is one of several.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PathError {
    #[error("the path was lost before the request was sent")]
    NotSent,
    /// It may have been executed, and may still be.
    #[error("the path was lost before the answer came")]
    Unanswered,
    /// It has not been executed, nor will it be.
    #[error("the controller answered: {0}")]
    Refused(Status),
}

impl IoError {
    /// The error number which says it best.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Invalid => libc::EINVAL,
            Self::OutOfRange | Self::NoSpace => libc::ENOSPC,
            Self::NotSupported => libc::EOPNOTSUPP,
            Self::ReadOnly => libc::EROFS,
            Self::ReservationConflict => libc::EBUSY,
            Self::Medium
            | Self::NoData
            | Self::Refused(_)
            | Self::ConnectionLost
            | Self::Path(_)
            | Self::NamespaceGone
            | Self::Closing => libc::EIO,
        }
    }
}

/// What a volume is like. Only `size` and the last three may change while it is attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// In bytes; a multiple of `block_size`.
    pub size: u64,
    /// Bytes of a logical block, a power of two from 512 on: every offset and length is a multiple of it.
    pub block_size: u32,
    /// Bytes of a transfer which costs one command; more is split.
    pub max_transfer: u32,
    /// Preferred granularity of writes in bytes; at least `block_size`.
    pub preferred_write: u32,
    pub read_only: bool,
    pub write_zeroes: bool,
    pub discard: bool,
    /// Whether completed writes may be lost until a flush; without it `fua` and `Flush` cost nothing.
    pub volatile_cache: bool,
}

/// Whether a volume answers at the moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum State {
    /// The first connection is being made.
    #[default]
    Connecting,
    Connected,
    /// The connection is lost; requests are held and will be issued again.
    Reconnecting,
    /// It is gone for good, or was closed: every request fails at once.
    Failed,
}

/// One volume, as its user sees it.
///
/// Completions do not come back through this: they are handed to whoever owns the volume (an
/// [`crate::attach::Export`] by [`crate::attach::Export::completed`]).
pub trait Volume {
    fn geometry(&self) -> Geometry;

    fn state(&self) -> State;

    /// Whether [`Self::submit`] would take one more request now.
    fn has_room(&self) -> bool;

    /// Starts a request. What is wrong with it comes back as its completion, never at once.
    ///
    /// # Errors
    /// Gives the request back if there is no room for it; try again after the next completion.
    fn submit(&mut self, request: Request) -> Result<(), Request>;
}
