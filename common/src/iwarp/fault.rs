//! Why a stream has to end.
use super::stag::StagError;
use super::terminate::Reason;

/// What broke a stream, on either side. Each has its Terminate in [`Fault::reason`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error("an FPDU failed its CRC")]
    Crc,
    #[error("an ULPDU of {0} bytes does not fit its header")]
    UlpduLength(u16),
    #[error("a DDP version which does not exist")]
    DdpVersion { tagged: bool },
    #[error("an RDMAP version which does not exist")]
    RdmapVersion,
    #[error("an unexpected operation, opcode {0}")]
    UnexpectedOpcode(u8),
    #[error("queue number {0} does not exist or does not fit the operation")]
    Queue(u32),
    #[error("message {got} on a queue which expected {expected}")]
    MessageSequence { expected: u32, got: u32 },
    #[error("message offset {got} where {expected} was next")]
    MessageOffset { expected: u32, got: u32 },
    #[error("a message without a receive buffer")]
    NoBuffer,
    #[error("a message longer than its receive buffer")]
    MessageTooLong,
    #[error("tagged data for memory it may not have: {0}")]
    Tagged(StagError),
    #[error("a Read Response which fits no Read Request")]
    ReadResponse(StagError),
    #[error("an RDMA Read of memory it may not have: {0}")]
    ReadSource(StagError),
    #[error("more RDMA Reads than were agreed on")]
    TooManyReads,
    #[error("key {0:#010x} cannot be invalidated")]
    CannotInvalidate(u32),
    /// The peer says so.
    #[error("the peer terminated the stream: {0}")]
    Terminated(Reason),
    /// Our own wish, or the end of the byte stream.
    #[error("the stream was closed")]
    Closed,
}

impl Fault {
    /// What to tell the peer, if it has to be told.
    #[must_use]
    pub const fn reason(&self) -> Option<Reason> {
        Some(match *self {
            Self::Crc => Reason::MPA_CRC,
            Self::UlpduLength(_) => Reason::MPA_LENGTH,
            Self::DdpVersion { tagged: true } => Reason::TAGGED_VERSION,
            Self::DdpVersion { tagged: false } => Reason::UNTAGGED_VERSION,
            Self::RdmapVersion => Reason::RDMAP_VERSION,
            Self::UnexpectedOpcode(_) => Reason::UNEXPECTED_OPCODE,
            Self::Queue(_) => Reason::INVALID_QUEUE,
            Self::MessageSequence { .. } => Reason::MESSAGE_SEQUENCE,
            Self::MessageOffset { .. } => Reason::MESSAGE_OFFSET,
            Self::NoBuffer => Reason::NO_BUFFER,
            Self::MessageTooLong => Reason::MESSAGE_TOO_LONG,
            Self::Tagged(error) | Self::ReadResponse(error) => error.tagged_reason(),
            Self::ReadSource(error) => error.source_reason(),
            Self::TooManyReads => Reason::CATASTROPHIC,
            Self::CannotInvalidate(_) => Reason::CANNOT_INVALIDATE,
            Self::Terminated(_) | Self::Closed => return None,
        })
    }
}
