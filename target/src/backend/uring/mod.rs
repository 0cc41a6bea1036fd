//! Files and block devices, driven by io_uring.
//!
//! Each operation is a small machine: [`File::ask`] says what the ring is to be asked next, and
//! [`File::advance`] takes the answer. Short transfers are continued, interrupted ones repeated, and what a
//! file system cannot do is done another way. Nothing here touches the ring but [`Ask::queue`].
mod open;
#[cfg(test)]
mod tests;

use std::io;

use ironside_common::reactor::{Flags, Ring, RingFile};
use ironside_common::verbs::{Sge, Token};
use nix::fcntl::FallocateFlags;

pub(super) use open::{Alignment, OpenFile};

use super::Operation;
use super::error::{BlockError, Direction};

/// How often an operation is repeated which the kernel has interrupted or had no resources for.
const MOST_REPEATS: u8 = 100;

/// What the ring is asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ask {
    Read {
        offset: u64,
        into: Sge,
    },
    Write {
        offset: u64,
        from: Sge,
        flags: Flags,
    },
    Sync,
    Allocate {
        mode: FallocateFlags,
        offset: u64,
        length: u64,
    },
    /// Not of the ring: to let these bytes share the blocks of those from `source` on, which is done on a thread.
    Share {
        source: u64,
        offset: u64,
        length: u64,
    },
    /// Not of the ring: how large the file is now. [`File::measured`] takes the answer.
    Measure,
}

impl Ask {
    /// # Panics
    /// If the ring cannot answer it.
    pub(super) fn queue(self, ring: &mut Ring, file: RingFile, token: Token) {
        match self {
            Self::Read { offset, into } => ring.read(file, offset, into, token),
            Self::Write { offset, from, flags } => ring.write(file, offset, from, flags, token),
            Self::Sync => ring.fdatasync(file, token),
            Self::Allocate { mode, offset, length } => ring.fallocate(file, mode, offset, length, token),
            Self::Share { .. } | Self::Measure => unreachable!("the ring has no operation for it"),
        }
    }

    /// Whether it reads or writes and promises nothing more.
    pub(super) const fn is_plain_transfer(self) -> bool {
        matches!(self, Self::Read { .. } | Self::Write { flags: Flags::None, .. })
    }
}

/// One operation under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Progress {
    operation: Operation,
    step: Step,
    /// Bytes transferred or zeroed.
    done: u64,
    repeats: u8,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// Reading or writing the caller's memory.
    Transfer,
    /// Give the space back; it reads as zeroes.
    Punch,
    /// Zero the range but keep the space.
    ZeroRange,
    /// Whether the file still reaches so far: a hole beyond its end is a success to the kernel, which changes
    /// nothing there and reads as no zeroes.
    Measure,
    /// Write zeroes, where the file system knows no shorter way.
    Fill,
    /// Let the destination of a copy share the blocks of its source.
    Share,
    Sync,
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Next {
    /// Ask again: [`File::ask`].
    Ask,
    Done(Result<(), BlockError>),
}

/// What one reactor knows of one file.
#[derive(Debug)]
pub(super) struct File {
    /// What direct I/O demands of offsets; 1 where it goes through the page cache.
    alignment: u32,
    /// Memory full of zeroes, to write from.
    zeroes: Sge,
    can_punch: bool,
    can_zero_range: bool,
    can_share: bool,
}

impl File {
    /// `can_share`: whether it has a file system, which may let ranges of a file share their blocks.
    pub(super) fn new(alignment: Option<Alignment>, zeroes: Sge, can_share: bool) -> Self {
        let alignment = alignment.map_or(1, |alignment| alignment.offset);
        Self { alignment, zeroes, can_punch: true, can_zero_range: true, can_share }
    }

    /// Whether it has a copy of its own, for all that is known.
    pub(super) const fn copies(&self) -> bool {
        self.can_share
    }

    /// Starts an operation whose range was checked. None: there is nothing to be done.
    pub(super) fn begin(&self, operation: Operation) -> Option<Progress> {
        let step = match operation {
            Operation::Read { .. } | Operation::Write { .. } => Step::Transfer,
            Operation::Flush => Step::Sync,
            Operation::WriteZeroes { deallocate, .. } => self.way_to_zero(deallocate),
            Operation::Copy { .. } => Step::Share,
            Operation::Deallocate { .. } if self.can_punch => Step::Punch,
            Operation::Deallocate { .. } => return None,
        };
        let is_empty = operation.range().is_some_and(|(_, length)| length == 0);
        (!is_empty).then_some(Progress { operation, step, done: 0, repeats: 0 })
    }

    fn way_to_zero(&self, deallocate: bool) -> Step {
        match deallocate {
            true if self.can_punch => Step::Punch,
            _ if self.can_zero_range => Step::ZeroRange,
            _ => Step::Fill,
        }
    }

    /// What to ask the ring next.
    pub(super) fn ask(&self, progress: &Progress) -> Ask {
        let Progress { operation, step, done, .. } = *progress;
        let (start, length) = operation.range().unwrap_or((0, 0));
        let durable = if wants_durable(operation) { Flags::Durable } else { Flags::None };
        let allocate =
            |mode| Ask::Allocate { mode: mode | FallocateFlags::FALLOC_FL_KEEP_SIZE, offset: start, length };
        let rest = |memory: Sge| {
            let done = u32::try_from(done).expect("a transfer is no longer than its memory");
            memory.slice(done, memory.length - done)
        };
        match (step, operation) {
            (Step::Punch, _) => allocate(FallocateFlags::FALLOC_FL_PUNCH_HOLE),
            (Step::ZeroRange, _) => allocate(FallocateFlags::FALLOC_FL_ZERO_RANGE),
            (Step::Transfer, Operation::Read { into, .. }) => {
                Ask::Read { offset: start + done, into: rest(into) }
            }
            (Step::Transfer, Operation::Write { from, .. }) => {
                Ask::Write { offset: start + done, from: rest(from), flags: durable }
            }
            (Step::Fill, _) => {
                let part = u32::try_from(length - done).unwrap_or(u32::MAX).min(self.zeroes.length);
                Ask::Write { offset: start + done, from: self.zeroes.slice(0, part), flags: durable }
            }
            (Step::Share, Operation::Copy { source, .. }) => Ask::Share { source, offset: start, length },
            (Step::Measure, _) => Ask::Measure,
            (Step::Sync | Step::Transfer | Step::Share, _) => Ask::Sync,
        }
    }

    /// Takes what the ring has answered.
    pub(super) fn advance(&mut self, progress: &mut Progress, result: i32) -> Next {
        match u32::try_from(result) {
            Ok(count) => self.succeeded(progress, count),
            Err(_) => self.failed(progress, result.wrapping_neg()),
        }
    }

    /// Takes the size of the file, after zeroes or a hole were put into it without making it longer.
    pub(super) fn measured(&self, progress: &mut Progress, size: io::Result<u64>) -> Next {
        let (offset, length) = progress.operation.range().unwrap_or((0, 0));
        match size {
            Ok(size) if size < offset + length => Next::Done(Err(BlockError::Truncated)),
            Ok(_) if wants_durable(progress.operation) => {
                progress.step = Step::Sync;
                Next::Ask
            }
            Ok(_) => Next::Done(Ok(())),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                Next::Done(Err(BlockError::from_errno(errno, Direction::Write)))
            }
        }
    }

    fn succeeded(&self, progress: &mut Progress, count: u32) -> Next {
        match progress.step {
            Step::Sync | Step::Measure | Step::Share => Next::Done(Ok(())),
            Step::Punch | Step::ZeroRange => {
                progress.step = Step::Measure;
                Next::Ask
            }
            Step::Transfer | Step::Fill => self.transferred(progress, count),
        }
    }

    fn transferred(&self, progress: &mut Progress, count: u32) -> Next {
        let (_, length) = progress.operation.range().unwrap_or((0, 0));
        progress.done += u64::from(count);
        if progress.done >= length {
            return Next::Done(Ok(()));
        }
        match direction(progress.operation) {
            // Direct I/O stops within a sector only where the file ends.
            Direction::Read if count == 0 || !count.is_multiple_of(self.alignment) => {
                Next::Done(Err(BlockError::EndOfFile))
            }
            Direction::Write if count == 0 => Next::Done(Err(BlockError::Write(0))),
            Direction::Write if !count.is_multiple_of(self.alignment) => {
                progress.done -= u64::from(count % self.alignment);
                self.repeat(progress, libc::EIO)
            }
            _ => Next::Ask,
        }
    }

    fn failed(&mut self, progress: &mut Progress, errno: i32) -> Next {
        let lasting = matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY);
        let deallocate = matches!(progress.operation, Operation::WriteZeroes { deallocate: true, .. });
        match (progress.step, errno) {
            (_, libc::EINTR | libc::EAGAIN) => self.repeat(progress, errno),
            (Step::Punch, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => {
                self.can_punch &= !lasting;
                if !deallocate {
                    return Next::Done(Ok(()));
                }
                progress.step = if self.can_zero_range { Step::ZeroRange } else { Step::Fill };
                Next::Ask
            }
            // Unaligned, for instance, or no room for what says who shares: reading and writing shows what is the matter.
            (Step::Share, _) => {
                self.can_share &= !lasting;
                Next::Done(Err(BlockError::Unsupported))
            }
            (Step::ZeroRange, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => {
                self.can_zero_range &= !lasting;
                progress.step = Step::Fill;
                Next::Ask
            }
            _ => Next::Done(Err(BlockError::from_errno(errno, direction(progress.operation)))),
        }
    }

    fn repeat(&self, progress: &mut Progress, errno: i32) -> Next {
        if progress.repeats == MOST_REPEATS {
            return Next::Done(Err(BlockError::from_errno(errno, direction(progress.operation))));
        }
        progress.repeats += 1;
        Next::Ask
    }
}

fn direction(operation: Operation) -> Direction {
    match operation {
        Operation::Read { .. } => Direction::Read,
        _ => Direction::Write,
    }
}

fn wants_durable(operation: Operation) -> bool {
    matches!(operation, Operation::Write { fua: true, .. } | Operation::WriteZeroes { fua: true, .. })
}
