//! An NBD server for one volume: what qemu, libnbd, fio and the kernel's `nbd` module speak.
//!
//! Read [`negotiation`] and [`transmission`] first: they turn bytes into requests and know no socket.
//! [`reply`] turns results into bytes.
mod connection;
mod negotiation;
mod output;
mod reply;
mod server;
mod socket;
mod staging;
mod transmission;
mod wire;

#[cfg(test)]
mod tests;

pub use server::{Part, Server};

use crate::volume::Geometry;

/// What clients are told about the export.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Parameters {
    /// The export's name; the empty name asks for it too.
    pub name: String,
    /// One line for people, in the list of exports.
    pub description: String,
    /// Bytes of the volume, a multiple of `block_size`.
    pub size: u64,
    /// Every offset and length has to be a multiple of this: the volume's block, a power of two.
    pub block_size: u32,
    pub read_only: bool,
    /// Whether the volume can deallocate blocks.
    pub trim: bool,
    /// Whether the volume can write zeroes without being sent them.
    pub write_zeroes: bool,
}

/// The largest request served. Clients which do not ask for the limits assume this much.
pub const LARGEST_REQUEST: u32 = 32 << 20;
/// What clients had better use as block size.
const PREFERRED_BLOCK: u32 = 4096;

impl Parameters {
    /// What a volume of this geometry can be offered as.
    #[must_use]
    pub fn new(name: String, description: String, geometry: Geometry) -> Self {
        let Geometry { size, block_size, read_only, write_zeroes, discard, .. } = geometry;
        Self { name, description, size, block_size, read_only, trim: discard, write_zeroes }
    }

    fn with_geometry(self, geometry: Geometry) -> Self {
        let read_only = self.read_only || geometry.read_only;
        Self { read_only, ..Self::new(self.name, self.description, geometry) }
    }

    fn flags(&self, structured: bool) -> u16 {
        use wire::export_flag as flag;
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_FUA;
            flags |= if self.trim { flag::SEND_TRIM } else { 0 };
            flags |= if self.write_zeroes { flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO } else { 0 };
        }
        flags | if structured { flag::SEND_DF } else { 0 }
    }

    /// Minimum, preferred and maximum size of a request.
    fn block_sizes(&self) -> [u32; 3] {
        [self.block_size, PREFERRED_BLOCK.max(self.block_size), LARGEST_REQUEST]
    }
}

/// Error numbers of the protocol: the only ones a reply may carry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum ErrorNumber {
    NotPermitted = 1,
    InputOutput = 5,
    NoMemory = 12,
    Invalid = 22,
    NoSpace = 28,
    TooLarge = 75,
    NotSupported = 95,
    ShuttingDown = 108,
}

impl ErrorNumber {
    /// The nearest number the protocol has for an errno.
    #[must_use]
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EPERM | libc::EACCES | libc::EROFS => Self::NotPermitted,
            libc::ENOMEM => Self::NoMemory,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            // "Not supported" is for fast zeroes alone (proto.md, "Error values").
            libc::EINVAL | libc::EOPNOTSUPP => Self::Invalid,
            libc::ESHUTDOWN => Self::ShuttingDown,
            _ => Self::InputOutput,
        }
    }
}

/// The peer broke the protocol: the connection ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error("the client does not speak fixed newstyle (flags {0:#x})")]
    ClientFlags(u32),
    #[error("an option begins with {0:#018x}")]
    OptionMagic(u64),
    #[error("an option of {0} bytes")]
    OptionLength(u32),
    #[error("the client asked for an export there is not")]
    UnknownExport,
    #[error("more than {0} options")]
    TooManyOptions(u32),
    #[error("a request begins with {0:#010x}")]
    RequestMagic(u32),
    #[error("a write of {0} bytes")]
    WriteLength(u32),
    /// A simple reply has promised data that cannot be read; only hanging up can say so.
    #[error("a read failed after its reply had begun")]
    ReadBroken,
}
