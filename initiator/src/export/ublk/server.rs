//! The reactor's half, of one queue: one command for each tag waits in the ring for a request, whose data lies in the tag's own buffer.
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ironside_common::memory::{Memory, Region};
use ironside_common::reactor::{RingFile, UblkCommand, UblkTag};
use ironside_common::verbs::{Sge, Token};
use tracing::error;

use super::descriptors::Descriptors;
use super::wire::Request;
use crate::attach::{Context, Export};
use crate::volume::{self, Completed, IoError};

/// What a reactor needs for its half; may move to its thread.
pub struct Parts {
    pub(super) device: OwnedFd,
    pub(super) queue: u16,
    pub(super) descriptors: Descriptors,
    pub(super) queue_depth: u16,
    pub(super) buffer_size: u32,
}

/// See the module's description.
pub struct Ublk {
    device: Arc<OwnedFd>,
    /// Once the ring knows it.
    file: Option<RingFile>,
    queue: u16,
    descriptors: Descriptors,
    buffer_size: u32,
    lkey: u32,
    tags: Vec<Tag>,
    /// Tags whose requests wait for room.
    waiting: VecDeque<u16>,
    closing: bool,
}

/// Who has a tag.
#[derive(Clone, Copy)]
enum Tag {
    /// Nobody: before the first word, and once the device is over.
    Nobody,
    Kernel,
    Ours(Request),
}

impl Ublk {
    /// Called in the reactor's thread.
    ///
    /// # Errors
    /// When there is no memory for buffers.
    pub fn new(parts: Parts, memory: &Memory) -> io::Result<Self> {
        let Parts { device, queue, descriptors, queue_depth, buffer_size } = parts;
        let depth = usize::from(queue_depth);
        // Taken from the system only as it is used.
        let region = Region::new(depth * buffer_size as usize)?;
        Ok(Self {
            device: Arc::new(device),
            file: None,
            queue,
            descriptors,
            buffer_size,
            lkey: memory.register(region),
            tags: vec![Tag::Nobody; depth],
            waiting: VecDeque::with_capacity(depth),
            closing: false,
        })
    }

    /// The buffer of a tag: the beginning, or all of it.
    fn buffer(&self, memory: &Memory, tag: u16, length: u32) -> Sge {
        memory.sge(self.lkey, u64::from(tag) * u64::from(self.buffer_size), length)
    }

    fn tell(&mut self, context: &mut Context<'_>, tag: u16, command: UblkCommand) {
        let file = *self.file.get_or_insert_with(|| context.ring.add_file(Arc::clone(&self.device)));
        let buffer = self.buffer(context.memory, tag, self.buffer_size);
        let token = context.token(tag, 0);
        context.ring.ublk(file, command, UblkTag { queue: self.queue, tag }, buffer, token);
        self.tags[usize::from(tag)] = Tag::Kernel;
    }

    fn end(&mut self, context: &mut Context<'_>, tag: u16, result: Result<(), IoError>) {
        let Tag::Ours(request) = self.tags[usize::from(tag)] else {
            panic!("a request of this tag is under way")
        };
        let command = request.answer(result.map_err(errno));
        self.tell(context, tag, command);
    }

    fn start(&mut self, context: &mut Context<'_>, tag: u16) {
        let Tag::Ours(request) = self.tags[usize::from(tag)] else {
            panic!("a request of this tag has come")
        };
        if self.closing {
            return self.end(context, tag, Err(IoError::Closing));
        }
        let Request { operation, offset, length } = request;
        let buffer = request.moves_data().then(|| {
            let length = u32::try_from(length).expect("no more than a buffer holds");
            self.buffer(context.memory, tag, length)
        });
        let request = volume::Request { tag: tag.into(), operation, offset, length, buffer };
        context.volume.submit(request).expect("the volume said it had room");
    }

    fn drain(&mut self, context: &mut Context<'_>) -> bool {
        let mut did = false;
        while (self.closing || context.volume.has_room())
            && let Some(tag) = self.waiting.pop_front()
        {
            self.start(context, tag);
            did = true;
        }
        did
    }
}

impl Export for Ublk {
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        if self.file.is_none() && !self.closing {
            for tag in 0..u16::try_from(self.tags.len()).expect("a queue has 4096 tags at most") {
                self.tell(context, tag, UblkCommand::Fetch);
            }
            return true;
        }
        self.drain(context)
    }

    fn completed(&mut self, context: &mut Context<'_>, completed: Completed) {
        let tag = u16::try_from(completed.tag).expect("a tag of ours");
        self.end(context, tag, completed.result);
    }

    fn on_ring(&mut self, context: &mut Context<'_>, token: Token, result: i32) {
        let tag = token.slot;
        self.tags[usize::from(tag)] = Tag::Nobody;
        if result < 0 {
            // The device is being taken away, or this process.
            if result != -libc::ENODEV && result != -libc::ECANCELED {
                error!(tag, error = %io::Error::from_raw_os_error(-result), "the ublk driver refuses a command");
            }
            return;
        }
        match self.descriptors.get(tag).request(self.buffer_size) {
            Some(request) => {
                self.tags[usize::from(tag)] = Tag::Ours(request);
                self.waiting.push_back(tag);
                self.drain(context);
            }
            None => self.tell(context, tag, UblkCommand::CommitAndFetch { result: -libc::EOPNOTSUPP }),
        }
    }

    fn arm(&mut self, _context: &mut Context<'_>) {
        // Its commands are in the ring at all times.
    }

    /// The device has been stopped before, so that the kernel gives every tag back.
    fn close(&mut self, context: &mut Context<'_>) -> bool {
        self.closing = true;
        self.drain(context);
        let over = self.tags.iter().all(|tag| matches!(tag, Tag::Nobody));
        if over
            && let Some(file) = self.file.take()
            && let Err(error) = context.ring.remove_file(file)
        {
            error!(%error, "the ring keeps the device");
        }
        over
    }
}

/// The block layer has a number of its own for reservations.
const fn errno(error: IoError) -> i32 {
    match error {
        IoError::ReservationConflict => libc::EBADE,
        other => other.errno(),
    }
}
