//! How a medium fails, and what the host is told.
use ironside_common::nvme::Status;

/// Why an operation failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BlockError {
    #[error("no space is left for the medium")]
    NoSpace,
    #[error("the medium is read-only")]
    ReadOnly,
    #[error("the range is not within the medium")]
    OutOfRange,
    #[error("the medium has become shorter than its namespace")]
    EndOfFile,
    /// As above, for what would change blocks that are not there.
    #[error("the medium has become shorter than its namespace, and has no such blocks to change")]
    Truncated,
    #[error("the medium cannot do this")]
    Unsupported,
    #[error("another host has reserved the medium")]
    Reserved,
    #[error("the medium is gone")]
    Gone,
    /// Worth another try.
    #[error("the medium has no resources at the moment (errno {0})")]
    Busy(i32),
    /// As it was asked to be.
    #[error("the operation was cancelled")]
    Cancelled,
    #[error("the protection information does not match")]
    Protection,
    #[error("reading fails (errno {0})")]
    Read(i32),
    #[error("writing fails (errno {0})")]
    Write(i32),
}

/// Which way the failed operation went, for the errors which say no more than that it failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Direction {
    Read,
    Write,
}

impl BlockError {
    /// What an errno of a storage system call means. Block devices name the reasons of the drive by errno,
    /// see `blk_errors` in the kernel's block/blk-core.c.
    pub(super) const fn from_errno(errno: i32, direction: Direction) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::EROFS | libc::EPERM | libc::EACCES | libc::EBADF => Self::ReadOnly,
            libc::EOPNOTSUPP | libc::ENOSYS => Self::Unsupported,
            libc::EBADE => Self::Reserved,
            libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN | libc::ENOLINK | libc::ESTALE => Self::Gone,
            libc::ENOMEM | libc::EAGAIN | libc::EBUSY | libc::ETIMEDOUT | libc::EINTR => Self::Busy(errno),
            libc::ECANCELED => Self::Cancelled,
            libc::EILSEQ => Self::Protection,
            _ => match direction {
                Direction::Read => Self::Read(errno),
                Direction::Write => Self::Write(errno),
            },
        }
    }
}

impl From<BlockError> for Status {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::NoSpace => Self::CAPACITY_EXCEEDED,
            BlockError::ReadOnly => Self::NAMESPACE_WRITE_PROTECTED,
            BlockError::OutOfRange => Self::LBA_OUT_OF_RANGE,
            // Nothing is there to be read, however often it is tried.
            BlockError::EndOfFile => Self::UNRECOVERED_READ.with_dnr(true),
            BlockError::Truncated => Self::WRITE_FAULT.with_dnr(true),
            BlockError::Unsupported => Self::INVALID_OPCODE,
            BlockError::Reserved => Self::RESERVATION_CONFLICT,
            // Another path may lead to it.
            BlockError::Gone => Self::INTERNAL_PATH_ERROR,
            BlockError::Busy(_) => Self::INTERRUPTED,
            BlockError::Cancelled => Self::ABORT_REQUESTED,
            BlockError::Protection | BlockError::Read(_) => Self::UNRECOVERED_READ,
            BlockError::Write(_) => Self::WRITE_FAULT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_has_a_meaning() {
        let read = |errno| BlockError::from_errno(errno, Direction::Read);
        let write = |errno| BlockError::from_errno(errno, Direction::Write);
        assert_eq!(write(libc::ENOSPC), BlockError::NoSpace);
        assert_eq!(write(libc::EDQUOT), BlockError::NoSpace);
        assert_eq!(write(libc::EROFS), BlockError::ReadOnly);
        assert_eq!(read(libc::ENODEV), BlockError::Gone);
        assert_eq!(read(libc::ENODATA), BlockError::Read(libc::ENODATA));
        assert_eq!(read(libc::EIO), BlockError::Read(libc::EIO));
        assert_eq!(write(libc::EIO), BlockError::Write(libc::EIO));
        assert_eq!(write(i32::MAX), BlockError::Write(i32::MAX));
    }

    #[test]
    fn the_host_is_told_what_it_can_act_on() {
        let status = |errno, direction| Status::from(BlockError::from_errno(errno, direction));
        for direction in [Direction::Read, Direction::Write] {
            assert_eq!(status(libc::ENOSPC, direction), Status::CAPACITY_EXCEEDED);
            assert_eq!(status(libc::EROFS, direction), Status::NAMESPACE_WRITE_PROTECTED);
            assert!(!status(libc::EAGAIN, direction).dnr(), "worth another try");
            let none_succeeds = (1..=133).all(|errno| !status(errno, direction).is_success());
            assert!(none_succeeds);
        }
        assert_eq!(status(libc::EIO, Direction::Read), Status::UNRECOVERED_READ);
        assert_eq!(status(libc::EIO, Direction::Write), Status::WRITE_FAULT);
    }
}
