//! From the greeting to the first request: fixed newstyle haggling about options.
//!
//! Bytes in, bytes out. An option is looked at only once all its bytes are there, so nothing is kept
//! between calls but where we are.
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{self, OptionHeader, OptionReply, answer, info, option};
use super::{Fault, Parameters};

/// Data of an option that is read rather than skipped: an export name and more requests for information
/// than there are kinds.
const OPTION_LIMIT: u32 = 8192;
/// A longer option is not even skipped.
const SKIP_LIMIT: u32 = 1 << 20;
/// Options of one connection.
const OPTIONS_LIMIT: u32 = 1024;
/// Bytes which have to be at hand for every option to be understood.
pub(super) const INPUT_LIMIT: usize = size_of::<OptionHeader>() + OPTION_LIMIT as usize;

/// Where one connection stands in the haggling.
#[derive(Debug)]
pub(super) struct Negotiation {
    phase: Phase,
    no_zeroes: bool,
    agreed: Agreed,
    options: u32,
}

/// What requests and replies may contain afterwards.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Agreed {
    pub(super) structured: bool,
    /// Block status of the context `base:allocation` may be asked for.
    pub(super) allocation: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    ClientFlags,
    Option,
    /// Passing over what is left of an option too long to be read.
    Skip {
        option: u32,
        remaining: u32,
    },
}

/// What came of some input.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// More bytes are needed.
    More,
    /// Some were used up; look again.
    Again,
    /// Requests follow.
    Transmission(Agreed),
    /// The client said goodbye.
    Ended,
}

impl Negotiation {
    /// Starts with the greeting, which goes to `output`.
    pub(super) fn new(output: &mut Vec<u8>) -> Self {
        let greeting = wire::Greeting {
            magic: wire::SERVER_MAGIC.into(),
            option_magic: wire::OPTION_MAGIC.into(),
            flags: (wire::FIXED_NEWSTYLE | wire::NO_ZEROES).into(),
        };
        output.extend_from_slice(greeting.as_bytes());
        Self { phase: Phase::ClientFlags, no_zeroes: false, agreed: Agreed::default(), options: 0 }
    }

    /// Looks at the start of `input`; says how many bytes it used and what came of them. Answers go to
    /// `output`.
    ///
    /// # Errors
    /// When the client broke the protocol so that the connection has to end.
    pub(super) fn advance(
        &mut self,
        parameters: &Parameters,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Outcome), Fault> {
        match self.phase {
            Phase::ClientFlags => self.client_flags(input),
            Phase::Option => self.option(parameters, input, output),
            Phase::Skip { option, remaining } => Ok(self.skip(option, remaining, input, output)),
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> Result<(usize, Outcome), Fault> {
        let Some((bytes, _)) = input.split_first_chunk() else { return Ok((0, Outcome::More)) };
        let flags = u32::from_be_bytes(*bytes);
        let known = u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
        if flags & u32::from(wire::FIXED_NEWSTYLE) == 0 || flags & !known != 0 {
            return Err(Fault::ClientFlags(flags));
        }
        self.no_zeroes = flags & u32::from(wire::NO_ZEROES) != 0;
        self.phase = Phase::Option;
        Ok((bytes.len(), Outcome::Again))
    }

    fn option(
        &mut self,
        parameters: &Parameters,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Outcome), Fault> {
        let Ok((header, rest)) = OptionHeader::read_from_prefix(input) else { return Ok((0, Outcome::More)) };
        if header.magic.get() != wire::OPTION_MAGIC {
            return Err(Fault::OptionMagic(header.magic.get()));
        }
        let (option, length) = (header.option.get(), header.length.get());
        if length > SKIP_LIMIT {
            return Err(Fault::OptionLength(length));
        }
        if self.options == OPTIONS_LIMIT {
            return Err(Fault::TooManyOptions(OPTIONS_LIMIT));
        }
        if length > OPTION_LIMIT {
            self.options += 1;
            self.phase = Phase::Skip { option, remaining: length };
            return Ok((size_of::<OptionHeader>(), Outcome::Again));
        }
        let Some(data) = rest.get(..length as usize) else { return Ok((0, Outcome::More)) };
        self.options += 1;
        let outcome = self.answer(parameters, option, data, output)?;
        Ok((size_of::<OptionHeader>() + data.len(), outcome))
    }

    fn skip(&mut self, option: u32, remaining: u32, input: &[u8], output: &mut Vec<u8>) -> (usize, Outcome) {
        let skipped = u32::try_from(input.len()).unwrap_or(u32::MAX).min(remaining);
        let remaining = remaining - skipped;
        if remaining == 0 {
            reply(output, option, answer::TOO_BIG, &[]);
            self.phase = Phase::Option;
            return (skipped as usize, Outcome::Again);
        }
        self.phase = Phase::Skip { option, remaining };
        (skipped as usize, Outcome::More)
    }

    fn answer(
        &mut self,
        parameters: &Parameters,
        option: u32,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Outcome, Fault> {
        match option {
            option::EXPORT_NAME => return self.export_name(parameters, data, output),
            option::INFO | option::GO => return Ok(self.info(parameters, option, data, output)),
            option::ABORT => {
                reply(output, option, answer::ACK, &[]);
                return Ok(Outcome::Ended);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(parameters, option, data, output);
            }
            option::LIST if data.is_empty() => list(parameters, output),
            option::STRUCTURED_REPLY if data.is_empty() => {
                reply(output, option, answer::ACK, &[]);
                self.agreed.structured = true;
            }
            option::LIST | option::STRUCTURED_REPLY => reply(output, option, answer::INVALID, &[]),
            _ => reply(output, option, answer::UNSUPPORTED, &[]),
        }
        Ok(Outcome::Again)
    }

    /// The old way to begin, which knows no error but hanging up.
    fn export_name(
        &self,
        parameters: &Parameters,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Outcome, Fault> {
        if !names(parameters, data) {
            return Err(Fault::UnknownExport);
        }
        output.extend_from_slice(&parameters.size.to_be_bytes());
        output.extend_from_slice(&parameters.flags(self.agreed.structured).to_be_bytes());
        if !self.no_zeroes {
            output.extend_from_slice(&[0; wire::EXPORT_NAME_PADDING]);
        }
        Ok(Outcome::Transmission(self.agreed))
    }

    /// Lists the metadata contexts asked for, or selects them.
    fn meta_context(&mut self, parameters: &Parameters, option: u32, data: &[u8], output: &mut Vec<u8>) {
        let selects = option == option::SET_META_CONTEXT;
        // What was selected before is not any more, even if this fails.
        self.agreed.allocation &= !selects;
        let request = ContextRequest::parse(data).filter(|_| self.agreed.structured);
        let Some(request) = request else { return reply(output, option, answer::INVALID, &[]) };
        if !names(parameters, request.name) {
            return reply(output, option, answer::UNKNOWN, &[]);
        }
        let listed = !selects && (!request.asks_anything || request.names_base);
        let found = request.names_allocation || listed;
        if selects {
            self.agreed.allocation = found;
        }
        if found {
            // The identifier of a context that is only listed has no meaning.
            let id = if selects { wire::ALLOCATION_ID } else { 0 }.to_be_bytes();
            reply(output, option, answer::META_CONTEXT, &[&id, wire::ALLOCATION]);
        }
        reply(output, option, answer::ACK, &[]);
    }

    fn info(&self, parameters: &Parameters, option: u32, data: &[u8], output: &mut Vec<u8>) -> Outcome {
        let Some(request) = InfoRequest::parse(data) else {
            reply(output, option, answer::INVALID, &[]);
            return Outcome::Again;
        };
        if !names(parameters, request.name) {
            reply(output, option, answer::UNKNOWN, &[]);
            return Outcome::Again;
        }
        let mut send = |kind: u16, parts: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let parts: Vec<&[u8]> = std::iter::once(&kind[..]).chain(parts.iter().copied()).collect();
            reply(output, option, answer::INFO, &parts);
        };
        send(
            info::EXPORT,
            &[&parameters.size.to_be_bytes(), &parameters.flags(self.agreed.structured).to_be_bytes()],
        );
        // The limits are told unasked: who does not understand them ignores them, as the protocol demands.
        let [minimum, preferred, maximum] = parameters.block_sizes().map(u32::to_be_bytes);
        send(info::BLOCK_SIZE, &[&minimum, &preferred, &maximum]);
        if request.wants(info::NAME) {
            send(info::NAME, &[parameters.name.as_bytes()]);
        }
        if request.wants(info::DESCRIPTION) {
            send(info::DESCRIPTION, &[parameters.description.as_bytes()]);
        }
        reply(output, option, answer::ACK, &[]);
        match option {
            option::GO => Outcome::Transmission(self.agreed),
            _ => Outcome::Again,
        }
    }
}

/// Data of the options about metadata contexts: an export's name, and what is asked for.
struct ContextRequest<'a> {
    name: &'a [u8],
    asks_anything: bool,
    names_allocation: bool,
    names_base: bool,
}

impl<'a> ContextRequest<'a> {
    fn parse(data: &'a [u8]) -> Option<Self> {
        let (name, rest) = string(data)?;
        let (count, mut rest) = rest.split_first_chunk()?;
        let count = u32::from_be_bytes(*count);
        let mut request = Self { name, asks_anything: count > 0, names_allocation: false, names_base: false };
        // Every query takes four bytes at least, so a count that lies ends with the data.
        for _ in 0..count {
            let query;
            (query, rest) = string(rest)?;
            request.names_allocation |= query == wire::ALLOCATION;
            request.names_base |= query == wire::BASE;
        }
        rest.is_empty().then_some(request)
    }
}

/// A string with its length before it, and what follows.
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    rest.split_at_checked(length).filter(|(string, _)| string.len() <= wire::STRING_LIMIT)
}

/// Data of the options `INFO` and `GO`.
struct InfoRequest<'a> {
    name: &'a [u8],
    kinds: &'a [[u8; 2]],
}

impl<'a> InfoRequest<'a> {
    fn parse(data: &'a [u8]) -> Option<Self> {
        let (name, rest) = string(data)?;
        let (count, rest) = rest.split_first_chunk()?;
        let (kinds, odd) = rest.as_chunks::<2>();
        let count = usize::from(u16::from_be_bytes(*count));
        (odd.is_empty() && kinds.len() == count).then_some(Self { name, kinds })
    }

    fn wants(&self, kind: u16) -> bool {
        self.kinds.contains(&kind.to_be_bytes())
    }
}

/// Whether a client's name for the export means ours.
fn names(parameters: &Parameters, name: &[u8]) -> bool {
    name.is_empty() || name == parameters.name.as_bytes()
}

fn list(parameters: &Parameters, output: &mut Vec<u8>) {
    let name = parameters.name.as_bytes();
    let length = u32::try_from(name.len()).expect("our own name is short").to_be_bytes();
    reply(output, option::LIST, answer::SERVER, &[&length, name, parameters.description.as_bytes()]);
    reply(output, option::LIST, answer::ACK, &[]);
}

fn reply(output: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let header = OptionReply {
        magic: wire::OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        length: u32::try_from(length).expect("our own replies are short").into(),
    };
    output.extend_from_slice(header.as_bytes());
    parts.iter().for_each(|part| output.extend_from_slice(part));
}
