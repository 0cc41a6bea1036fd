//! Where the bytes of a namespace live: files and block devices, memory, nothing at all.
//!
//! A medium is opened once, by the control thread, as an [`OpenMedium`]; each reactor attaches its own
//! backend to it. A reactor's [`Backends`] take operations by namespace, never fail to accept one, and give
//! each back exactly once as a [`Done`], by [`Medium::poll`].
mod backends;
mod error;
mod faulty;
mod medium;
mod null;
mod polled;
mod ram;
mod sharing;
mod uring;

#[cfg(test)]
mod tests;

use ironside_common::verbs::{Sge, Token};

pub use backends::Backends;
pub use error::BlockError;
pub use faulty::{Faulty, Outcome, Pending};
pub use medium::{FileOptions, Identity, OpenError, OpenMedium, WeakMedium};

/// What can be asked of a medium. Offsets and lengths are in bytes, whole blocks, within the medium.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    Read {
        offset: u64,
        into: Sge,
    },
    /// With `fua` the completion means durable.
    Write {
        offset: u64,
        from: Sge,
        fua: bool,
    },
    /// Makes every write which has completed before durable.
    Flush,
    /// Reads as zeroes afterwards; with `deallocate` it may give the space back.
    WriteZeroes {
        offset: u64,
        length: u64,
        deallocate: bool,
        fua: bool,
    },
    /// The content is no longer needed. A hint: the medium may ignore it, and then keeps the content.
    Deallocate {
        offset: u64,
        length: u64,
    },
    /// The medium's own copy of what lies from `source` on, which does not overlap its destination. If it cannot
    /// after all ([`BlockError::Unsupported`]), it is to be read and written.
    Copy {
        source: u64,
        offset: u64,
        length: u32,
    },
}

impl Operation {
    /// First byte and number of bytes it concerns; nothing for a flush, the destination of a copy.
    #[must_use]
    pub const fn range(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Read { offset, into: memory } | Self::Write { offset, from: memory, .. } => {
                Some((offset, memory.length as u64))
            }
            Self::WriteZeroes { offset, length, .. } | Self::Deallocate { offset, length } => {
                Some((offset, length))
            }
            Self::Copy { offset, length, .. } => Some((offset, length as u64)),
            Self::Flush => None,
        }
    }

    /// Whether it changes what the medium holds.
    #[must_use]
    pub const fn modifies(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
    }
}

/// An operation has ended, and its memory is the caller's again.
#[must_use]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Done {
    pub token: Token,
    pub result: Result<(), BlockError>,
}

/// The media of one reactor, by number.
pub trait Medium {
    /// Starts an operation. The memory it names stays the medium's until it is done.
    fn submit(&mut self, token: Token, namespace: usize, operation: Operation);

    /// Asks for an operation to end early. It ends in any case: cancelled, or as it would have.
    fn cancel(&mut self, _token: Token) {}

    /// Whether [`Operation::Copy`] is worth asking for.
    fn copies(&self, _namespace: usize) -> bool {
        false
    }

    /// Where the bytes of a range lie, if they lie in memory which can be sent from directly. They may
    /// change meanwhile.
    fn in_place(&self, namespace: usize, offset: u64, length: u32) -> Option<Sge>;

    /// The next operation which has ended.
    fn poll(&mut self) -> Option<Done>;
}
