//! What NBD puts on the wire: the numbers and fixed structures of the NBD protocol description
//! (`doc/proto.md` of NetworkBlockDevice/nbd). All integers are big-endian.
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First thing a server says: `NBDMAGIC`.
pub(super) const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, before the handshake flags and before every option.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags, the same bits from server and client.
pub(super) const FIXED_NEWSTYLE: u16 = 1 << 0;
pub(super) const NO_ZEROES: u16 = 1 << 1;
/// Zeroes behind the answer to `EXPORT_NAME`, unless both sides said [`NO_ZEROES`].
pub(super) const EXPORT_NAME_PADDING: usize = 124;

/// No string of the protocol is longer.
pub(super) const STRING_LIMIT: usize = 4096;

/// The one metadata context there is, and what stands for all of its kind.
pub(super) const ALLOCATION: &[u8] = b"base:allocation";
pub(super) const BASE: &[u8] = b"base:";
/// How that context is called in block status replies.
pub(super) const ALLOCATION_ID: u32 = 1;

/// Option numbers.
pub(super) mod option {
    pub(in super::super) const EXPORT_NAME: u32 = 1;
    pub(in super::super) const ABORT: u32 = 2;
    pub(in super::super) const LIST: u32 = 3;
    pub(in super::super) const INFO: u32 = 6;
    pub(in super::super) const GO: u32 = 7;
    pub(in super::super) const STRUCTURED_REPLY: u32 = 8;
    pub(in super::super) const LIST_META_CONTEXT: u32 = 9;
    pub(in super::super) const SET_META_CONTEXT: u32 = 10;
}

/// Types of option replies.
pub(super) mod answer {
    pub(in super::super) const ACK: u32 = 1;
    pub(in super::super) const SERVER: u32 = 2;
    pub(in super::super) const INFO: u32 = 3;
    pub(in super::super) const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub(in super::super) const UNSUPPORTED: u32 = ERROR + 1;
    pub(in super::super) const INVALID: u32 = ERROR + 3;
    pub(in super::super) const UNKNOWN: u32 = ERROR + 6;
    pub(in super::super) const TOO_BIG: u32 = ERROR + 9;
}

/// Types of information about an export.
pub(super) mod info {
    pub(in super::super) const EXPORT: u16 = 0;
    pub(in super::super) const NAME: u16 = 1;
    pub(in super::super) const DESCRIPTION: u16 = 2;
    pub(in super::super) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub(super) mod export_flag {
    pub(in super::super) const HAS_FLAGS: u16 = 1 << 0;
    pub(in super::super) const READ_ONLY: u16 = 1 << 1;
    pub(in super::super) const SEND_FLUSH: u16 = 1 << 2;
    pub(in super::super) const SEND_FUA: u16 = 1 << 3;
    pub(in super::super) const SEND_TRIM: u16 = 1 << 5;
    pub(in super::super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(in super::super) const SEND_DF: u16 = 1 << 7;
    pub(in super::super) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(in super::super) const SEND_CACHE: u16 = 1 << 10;
    pub(in super::super) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Request types.
pub(super) mod command {
    pub(in super::super) const READ: u16 = 0;
    pub(in super::super) const WRITE: u16 = 1;
    pub(in super::super) const DISCONNECT: u16 = 2;
    pub(in super::super) const FLUSH: u16 = 3;
    pub(in super::super) const TRIM: u16 = 4;
    pub(in super::super) const CACHE: u16 = 5;
    pub(in super::super) const WRITE_ZEROES: u16 = 6;
    pub(in super::super) const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub(super) mod command_flag {
    pub(in super::super) const FUA: u16 = 1 << 0;
    pub(in super::super) const NO_HOLE: u16 = 1 << 1;
    pub(in super::super) const DF: u16 = 1 << 2;
    pub(in super::super) const REQ_ONE: u16 = 1 << 3;
    pub(in super::super) const FAST_ZERO: u16 = 1 << 4;
}

/// Structured reply chunks.
pub(super) mod chunk {
    pub(in super::super) const DONE: u16 = 1 << 0;
    pub(in super::super) const NONE: u16 = 0;
    pub(in super::super) const OFFSET_DATA: u16 = 1;
    pub(in super::super) const BLOCK_STATUS: u16 = 5;
    const ERROR_BIT: u16 = 1 << 15;
    pub(in super::super) const ERROR: u16 = ERROR_BIT + 1;
    pub(in super::super) const ERROR_OFFSET: u16 = ERROR_BIT + 2;
}

/// What a server says first.
#[derive(Clone, Copy, Immutable, IntoBytes, Unaligned)]
#[repr(C)]
pub(super) struct Greeting {
    pub(super) magic: U64,
    pub(super) option_magic: U64,
    pub(super) flags: U16,
}
const _: () = assert!(size_of::<Greeting>() == 18);

/// Head of every option; `length` bytes of data follow.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct OptionHeader {
    pub(super) magic: U64,
    pub(super) option: U32,
    pub(super) length: U32,
}
const _: () = assert!(size_of::<OptionHeader>() == 16);

/// Head of every reply to an option; `length` bytes of data follow.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct OptionReply {
    pub(super) magic: U64,
    pub(super) option: U32,
    pub(super) kind: U32,
    pub(super) length: U32,
}
const _: () = assert!(size_of::<OptionReply>() == 20);

/// A request; a write's data follows.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RequestHeader {
    pub(super) magic: U32,
    pub(super) flags: U16,
    pub(super) command: U16,
    pub(super) cookie: U64,
    pub(super) offset: U64,
    pub(super) length: U32,
}
const _: () = assert!(size_of::<RequestHeader>() == 28);

/// A simple reply; a successful read's data follows.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct SimpleReply {
    pub(super) magic: U32,
    pub(super) error: U32,
    pub(super) cookie: U64,
}
const _: () = assert!(size_of::<SimpleReply>() == 16);

/// Head of every chunk of a structured reply; `length` bytes follow.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ChunkHeader {
    pub(super) magic: U32,
    pub(super) flags: U16,
    pub(super) kind: U16,
    pub(super) cookie: U64,
    pub(super) length: U32,
}
const _: () = assert!(size_of::<ChunkHeader>() == 20);
