//! Replies: results in, bytes out. Every head is built in place, so answering allocates nothing.
use arrayvec::ArrayVec;
use zerocopy::IntoBytes;

use super::ErrorNumber;
use super::wire::{self, ChunkHeader, SimpleReply, chunk};

/// The bytes before a reply's data, or the whole of a reply without data.
pub(super) type Head = ArrayVec<u8, 40>;

/// A read's data in one piece of `length` bytes from `offset` on, which follows the head.
pub(super) fn read(structured: bool, cookie: u64, offset: u64, length: u32, last: bool) -> Head {
    if !structured {
        return simple(cookie, 0);
    }
    let offset = offset.to_be_bytes();
    let total = u32::try_from(offset.len()).expect("eight") + length;
    head(&[chunk_header(chunk::OFFSET_DATA, cookie, total, last).as_bytes(), &offset])
}

/// All of a range is allocated: a volume does not say more of itself.
pub(super) fn allocated(cookie: u64, length: u32) -> Head {
    let (context, data) = (wire::ALLOCATION_ID.to_be_bytes(), 0_u32.to_be_bytes());
    let header = chunk_header(chunk::BLOCK_STATUS, cookie, 12, true);
    head(&[header.as_bytes(), &context, &length.to_be_bytes(), &data])
}

/// Success without data.
pub(super) fn done(structured: bool, cookie: u64) -> Head {
    if !structured {
        return simple(cookie, 0);
    }
    head(&[chunk_header(chunk::NONE, cookie, 0, true).as_bytes()])
}

/// The whole request failed.
pub(super) fn failed(structured: bool, cookie: u64, error: ErrorNumber) -> Head {
    if !structured {
        return simple(cookie, error as u32);
    }
    let (number, no_message) = ((error as u32).to_be_bytes(), 0_u16.to_be_bytes());
    head(&[chunk_header(chunk::ERROR, cookie, 6, true).as_bytes(), &number, &no_message])
}

/// A part of a read failed at `offset`; only a structured reply can say so.
pub(super) fn failed_at(cookie: u64, error: ErrorNumber, offset: u64, last: bool) -> Head {
    let (number, no_message) = ((error as u32).to_be_bytes(), 0_u16.to_be_bytes());
    let header = chunk_header(chunk::ERROR_OFFSET, cookie, 14, last);
    head(&[header.as_bytes(), &number, &no_message, &offset.to_be_bytes()])
}

fn simple(cookie: u64, error: u32) -> Head {
    let reply =
        SimpleReply { magic: wire::SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() };
    head(&[reply.as_bytes()])
}

fn chunk_header(kind: u16, cookie: u64, length: u32, last: bool) -> ChunkHeader {
    ChunkHeader {
        magic: wire::STRUCTURED_REPLY_MAGIC.into(),
        flags: if last { chunk::DONE } else { 0 }.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        length: length.into(),
    }
}

fn head(parts: &[&[u8]]) -> Head {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}
