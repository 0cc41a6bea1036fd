//! One connection, a volume in memory behind it, and the words of a client.
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use ironside_common::memory::{Memory, Pool};
use ironside_common::reactor::Ring;
use ironside_common::time::Time;
use zerocopy::{FromBytes, IntoBytes};

use crate::attach::Context;
use crate::export::nbd::connection::{Connection, Tag};
use crate::export::nbd::output::Part;
use crate::export::nbd::wire::{self, ChunkHeader, OptionHeader, OptionReply, RequestHeader, SimpleReply};
use crate::export::nbd::{Fault, Parameters};
use crate::export::tests::{GEOMETRY, PIECE, Shelf, pool};
use crate::volume::{Completed, IoError};

const TAG: Tag = Tag(0x1234_5678);

pub(super) fn parameters() -> Parameters {
    Parameters::new("vol".into(), "a volume".into(), GEOMETRY)
}

pub(super) struct World {
    pub(super) connection: Connection,
    pub(super) shelf: Shelf,
    pub(super) pool: Rc<Pool>,
    memory: Rc<Memory>,
    ring: Ring,
    /// Bytes on their way to the export.
    input: VecDeque<u8>,
    /// Bytes which came from it.
    pub(super) output: Vec<u8>,
}

impl World {
    pub(super) fn new(parameters: Parameters) -> Self {
        let memory = Memory::new();
        let (pool, shelf) = (pool(&memory), Shelf::new());
        let ring = Ring::new(8, Rc::clone(&memory)).unwrap();
        let connection = Connection::new(Arc::new(parameters), PIECE);
        Self { connection, shelf, pool, memory, ring, input: VecDeque::new(), output: Vec::new() }
    }

    /// In the transmission phase already, its output empty.
    pub(super) fn transmitting(parameters: Parameters, structured: bool) -> Self {
        let mut world = Self::new(parameters);
        let mut bytes = client_flags();
        if structured {
            bytes.extend(option(wire::option::STRUCTURED_REPLY, &[]));
        }
        bytes.extend(option(wire::option::GO, &info_data("vol", &[])));
        world.say(&bytes);
        world.output.clear();
        world
    }

    /// Sends bytes, and lets everything happen.
    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.try_say(bytes, usize::MAX).unwrap();
    }

    /// The same, at most `at_once` bytes at a time.
    pub(super) fn try_say(&mut self, bytes: &[u8], at_once: usize) -> Result<(), Fault> {
        self.input.extend(bytes);
        loop {
            let received = self.receive(at_once);
            let advanced = self.advance()?;
            let sent = self.send(at_once);
            let completed = self.complete_one(None)?;
            if !(received || advanced || sent || completed) {
                return Ok(());
            }
        }
    }

    /// Bytes on their way, and nothing more happens yet.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
    }

    /// Bytes nobody wanted yet.
    pub(super) fn unread(&self) -> usize {
        self.input.len()
    }

    pub(super) fn receive(&mut self, at_once: usize) -> bool {
        let Some(places) = self.connection.places() else { return false };
        let mut count = 0;
        if let Some(sge) = places.data {
            let direct = (sge.length as usize).min(at_once).min(self.input.len());
            let bytes: Vec<u8> = self.input.drain(..direct).collect();
            self.memory.write(sge, &bytes);
            count += direct;
        }
        let staged = places.staging.len().min(at_once - count).min(self.input.len());
        for (place, byte) in places.staging.iter_mut().zip(self.input.drain(..staged)) {
            *place = byte;
        }
        count += staged;
        self.connection.received(count);
        count > 0
    }

    pub(super) fn advance(&mut self) -> Result<bool, Fault> {
        let mut context = Context {
            volume: &mut self.shelf,
            ring: &mut self.ring,
            pool: &self.pool,
            memory: &self.memory,
            now: Time::ZERO,
            index: 0,
        };
        self.connection.advance(&mut context, TAG)
    }

    pub(super) fn send(&mut self, at_once: usize) -> bool {
        let mut taken = Vec::new();
        for part in self.connection.parts() {
            match part {
                Part::Bytes(bytes) => taken.extend_from_slice(bytes),
                Part::Memory(sge) => {
                    let mut bytes = vec![0; sge.length as usize];
                    self.memory.read(sge, &mut bytes);
                    taken.extend(bytes);
                }
            }
        }
        taken.truncate(at_once);
        self.connection.sent(taken.len());
        self.output.extend(&taken);
        !taken.is_empty()
    }

    /// Carries out the oldest request of the volume, or lets it fail.
    pub(super) fn complete_one(&mut self, error: Option<IoError>) -> Result<bool, Fault> {
        self.complete_at(0, error)
    }

    pub(super) fn complete_at(&mut self, index: usize, error: Option<IoError>) -> Result<bool, Fault> {
        let Some(request) = self.shelf.pending.remove(index) else { return Ok(false) };
        if error.is_none() {
            self.shelf.carry_out(&self.memory, request);
        }
        let completed = Completed { tag: request.tag, result: error.map_or(Ok(()), Err) };
        let (tag, piece) = Tag::split(completed.tag);
        assert_eq!(tag, TAG);
        self.connection.completed(piece, completed.result)?;
        Ok(true)
    }

    /// The next bytes of the output.
    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        self.output.drain(..count).collect()
    }

    pub(super) fn simple_reply(&mut self) -> (u32, u64) {
        let reply = SimpleReply::read_from_bytes(&self.take(16)).unwrap();
        assert_eq!(reply.magic.get(), wire::SIMPLE_REPLY_MAGIC);
        (reply.error.get(), reply.cookie.get())
    }

    /// A chunk: cookie, type, whether it is the last, and what it carries.
    pub(super) fn chunk(&mut self) -> (u64, u16, bool, Vec<u8>) {
        let header = ChunkHeader::read_from_bytes(&self.take(20)).unwrap();
        assert_eq!(header.magic.get(), wire::STRUCTURED_REPLY_MAGIC);
        let last = header.flags.get() & wire::chunk::DONE != 0;
        let payload = self.take(header.length.get() as usize);
        (header.cookie.get(), header.kind.get(), last, payload)
    }

    /// An answer to an option: the option, the type of the answer, and what it carries.
    pub(super) fn answer(&mut self) -> (u32, u32, Vec<u8>) {
        let reply = OptionReply::read_from_bytes(&self.take(20)).unwrap();
        assert_eq!(reply.magic.get(), wire::OPTION_REPLY_MAGIC);
        let data = self.take(reply.length.get() as usize);
        (reply.option.get(), reply.kind.get(), data)
    }
}

pub(super) fn client_flags() -> Vec<u8> {
    u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes().to_vec()
}

pub(super) fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    let header =
        OptionHeader { magic: wire::OPTION_MAGIC.into(), option: option.into(), length: length.into() };
    [header.as_bytes(), data].concat()
}

/// Data of the options `INFO` and `GO`.
pub(super) fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend(u16::try_from(kinds.len()).unwrap().to_be_bytes());
    kinds.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

pub(super) fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let header = RequestHeader {
        magic: wire::REQUEST_MAGIC.into(),
        flags: flags.into(),
        command: command.into(),
        cookie: cookie.into(),
        offset: offset.into(),
        length: length.into(),
    };
    header.as_bytes().to_vec()
}
