//! Requests: bytes in, requests out, each proved possible before anyone acts on it.
use zerocopy::FromBytes;

use super::negotiation::Agreed;
use super::wire::{self, RequestHeader, command, command_flag};
use super::{ErrorNumber, Fault, LARGEST_REQUEST, Parameters};

/// Data of a refused write is read and thrown away up to this length; a longer one ends the connection.
const DISCARD_LIMIT: u32 = 2 * LARGEST_REQUEST;

/// What a client wants done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Operation {
    /// `whole`: the data has to come back in one piece.
    Read {
        whole: bool,
    },
    /// As many bytes as the request is long follow it.
    Write {
        fua: bool,
    },
    Flush,
    Trim {
        fua: bool,
    },
    /// `hole`: the blocks may be deallocated.
    WriteZeroes {
        fua: bool,
        hole: bool,
    },
    /// Which blocks are allocated.
    BlockStatus,
    /// Read ahead: a hint, which may be answered without doing anything.
    Cache,
}

/// A request that lies within the export, is aligned, and is no longer than [`LARGEST_REQUEST`] if data
/// moves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Request {
    /// The client's name for it, repeated in the reply.
    pub(super) cookie: u64,
    pub(super) operation: Operation,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// What came of some input.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Event {
    /// More bytes are needed.
    More,
    Request(Request),
    /// A request that cannot be; this is the answer.
    Refused {
        cookie: u64,
        error: ErrorNumber,
    },
    /// The client will not ask for more, and waits for the replies to what it has asked for.
    Disconnect,
}

/// The input side of a connection after haggling.
#[derive(Debug)]
pub(super) struct Transmission {
    agreed: Agreed,
    /// Bytes of the last write which have not come yet.
    payload: u32,
    /// Bytes of a refused write which have not come yet.
    discard: u32,
}

impl Transmission {
    pub(super) fn new(agreed: Agreed) -> Self {
        Self { agreed, payload: 0, discard: 0 }
    }

    /// Bytes of the last write which have not come yet: they follow in the stream before the next request.
    pub(super) fn payload(&self) -> u32 {
        self.payload
    }

    /// `count` bytes of data were taken off the stream.
    ///
    /// # Panics
    /// If those are more than there are.
    pub(super) fn take_payload(&mut self, count: u32) {
        self.payload = self.payload.checked_sub(count).expect("no more than the data is taken");
    }

    /// Looks at the start of `input`; says how many bytes it used and what came of them.
    ///
    /// # Errors
    /// When the client broke the protocol so that the connection has to end.
    ///
    /// # Panics
    /// If the data of the last write was not taken before.
    pub(super) fn next(&mut self, parameters: &Parameters, input: &[u8]) -> Result<(usize, Event), Fault> {
        assert_eq!(self.payload, 0, "a write's data comes before the next request");
        let skipped = u32::try_from(input.len()).unwrap_or(u32::MAX).min(self.discard);
        self.discard -= skipped;
        let skipped = skipped as usize;
        let Ok((header, _)) = RequestHeader::read_from_prefix(&input[skipped..]) else {
            return Ok((skipped, Event::More));
        };
        if header.magic.get() != wire::REQUEST_MAGIC {
            return Err(Fault::RequestMagic(header.magic.get()));
        }
        let event = self.parse(parameters, &header)?;
        Ok((skipped + size_of::<RequestHeader>(), event))
    }

    fn parse(&mut self, parameters: &Parameters, header: &RequestHeader) -> Result<Event, Fault> {
        let (cookie, length) = (header.cookie.get(), header.length.get());
        let is_write = header.command.get() == command::WRITE;
        if is_write && length > DISCARD_LIMIT {
            return Err(Fault::WriteLength(length));
        }
        if header.command.get() == command::DISCONNECT {
            return Ok(Event::Disconnect);
        }
        let checked = operation(header, self.agreed).and_then(|operation| {
            check(parameters, operation, header.offset.get(), length).map(|()| operation)
        });
        Ok(match checked {
            Ok(operation) => {
                self.payload = if is_write { length } else { 0 };
                Event::Request(Request { cookie, operation, offset: header.offset.get(), length })
            }
            Err(error) => {
                self.discard = if is_write { length } else { 0 };
                Event::Refused { cookie, error }
            }
        })
    }
}

/// The operation a header asks for, with the flags it may carry.
fn operation(header: &RequestHeader, agreed: Agreed) -> Result<Operation, ErrorNumber> {
    let flags = header.flags.get();
    let fua = flags & command_flag::FUA != 0;
    let (operation, allowed) = match header.command.get() {
        command::READ => {
            let whole = !agreed.structured || flags & command_flag::DF != 0;
            let allowed = if agreed.structured { command_flag::DF } else { 0 };
            (Operation::Read { whole }, allowed)
        }
        command::WRITE => (Operation::Write { fua }, 0),
        command::FLUSH => (Operation::Flush, 0),
        command::TRIM => (Operation::Trim { fua }, 0),
        command::CACHE => (Operation::Cache, 0),
        command::BLOCK_STATUS if agreed.allocation => (Operation::BlockStatus, command_flag::REQ_ONE),
        command::WRITE_ZEROES => {
            let hole = flags & command_flag::NO_HOLE == 0;
            let allowed = command_flag::NO_HOLE | command_flag::FAST_ZERO;
            (Operation::WriteZeroes { fua, hole }, allowed)
        }
        _ => return Err(ErrorNumber::Invalid),
    };
    // FUA may stand on any command; where it means nothing it is ignored (proto.md, "Command flags").
    if flags & !(allowed | command_flag::FUA) != 0 {
        return Err(ErrorNumber::Invalid);
    }
    if flags & command_flag::FAST_ZERO != 0 {
        // The target may have to write every zero, so speed cannot be promised; saying so is the answer.
        return Err(ErrorNumber::NotSupported);
    }
    Ok(operation)
}

fn check(parameters: &Parameters, operation: Operation, offset: u64, length: u32) -> Result<(), ErrorNumber> {
    if operation == Operation::Flush {
        // Offset and length are reserved and zero (proto.md, NBD_CMD_FLUSH).
        return if offset == 0 && length == 0 { Ok(()) } else { Err(ErrorNumber::Invalid) };
    }
    let (changes, moves_data, offered) = match operation {
        Operation::Read { .. } => (false, true, true),
        Operation::Write { .. } => (true, true, true),
        Operation::Trim { .. } => (true, false, parameters.trim),
        Operation::WriteZeroes { .. } => (true, false, parameters.write_zeroes),
        Operation::Cache | Operation::Flush | Operation::BlockStatus => (false, false, true),
    };
    if changes && parameters.read_only {
        return Err(ErrorNumber::NotPermitted);
    }
    if !offered {
        return Err(ErrorNumber::Invalid);
    }
    if moves_data && length > LARGEST_REQUEST {
        return Err(ErrorNumber::Invalid);
    }
    let block = u64::from(parameters.block_size);
    let aligned = length != 0 && offset.is_multiple_of(block) && u64::from(length).is_multiple_of(block);
    if !aligned {
        return Err(ErrorNumber::Invalid);
    }
    let inside = offset.checked_add(u64::from(length)).is_some_and(|end| end <= parameters.size);
    match operation {
        _ if inside => Ok(()),
        // What a write beyond the end is to be told, and everything else (proto.md, "Error values").
        Operation::Write { .. } | Operation::WriteZeroes { .. } => Err(ErrorNumber::NoSpace),
        _ => Err(ErrorNumber::Invalid),
    }
}
