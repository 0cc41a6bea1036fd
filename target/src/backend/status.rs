//! What a host is told of a failure of the medium: the one place where errors become NVMe status.
use ironside_common::nvme::Status;

use super::BlockError;

impl From<BlockError> for Status {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::NoSpace => Self::CAPACITY_EXCEEDED,
            BlockError::ReadOnly => Self::NAMESPACE_WRITE_PROTECTED,
            BlockError::OutOfRange => Self::LBA_OUT_OF_RANGE,
            BlockError::EndOfFile | BlockError::Read(_) => Self::UNRECOVERED_READ,
            BlockError::Unsupported => Self::INVALID_OPCODE,
            BlockError::Reserved => Self::RESERVATION_CONFLICT,
            BlockError::Gone => Self::INTERNAL_PATH_ERROR,
            BlockError::Busy(_) => Self::NAMESPACE_NOT_READY,
            BlockError::Protection => Self::INTERNAL,
            BlockError::Write(_) => Self::WRITE_FAULT,
        }
    }
}
