//! What the tests of every export share: a volume in memory, and a reactor with nothing but the export.
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use ironside_common::memory::{Memory, Pool, SizeClass};
use ironside_common::reactor::{Mailbox, Poll, Ring, Sender, Tenant, mailbox, run, source};
use ironside_common::time::Time;
use ironside_common::verbs::Token;

use crate::attach::{Context, Export};
use crate::volume::{Completed, Geometry, Operation, Request, State, Volume};

pub(crate) const GEOMETRY: Geometry = Geometry {
    size: 1 << 20,
    block_size: 512,
    max_transfer: 1 << 20,
    preferred_write: 4096,
    read_only: false,
    write_zeroes: true,
    discard: true,
    volatile_cache: true,
};

/// A volume which answers when told to.
pub(crate) struct Shelf {
    pub(crate) bytes: Vec<u8>,
    pub(crate) pending: VecDeque<Request>,
    /// Everything ever asked, for tests to look at.
    pub(crate) log: Vec<Request>,
    pub(crate) room: usize,
}

impl Shelf {
    pub(crate) fn new() -> Self {
        let bytes = (0..GEOMETRY.size).map(|i| (i / 512) as u8).collect();
        Self { bytes, pending: VecDeque::new(), log: Vec::new(), room: 64 }
    }

    pub(crate) fn carry_out(&mut self, memory: &Memory, request: Request) {
        let start = usize::try_from(request.offset).unwrap();
        let range = start..start + usize::try_from(request.length).unwrap();
        match request.operation {
            Operation::Read => memory.write(request.buffer.unwrap(), &self.bytes[range]),
            Operation::Write { .. } => memory.read(request.buffer.unwrap(), &mut self.bytes[range]),
            Operation::WriteZeroes { .. } | Operation::Discard => self.bytes[range].fill(0),
            Operation::Flush => {}
        }
    }
}

impl Volume for Shelf {
    fn geometry(&self) -> Geometry {
        GEOMETRY
    }

    fn state(&self) -> State {
        State::Connected
    }

    fn has_room(&self) -> bool {
        self.pending.len() < self.room
    }

    fn submit(&mut self, request: Request) -> Result<(), Request> {
        assert!(self.has_room());
        // What this stand-in allocates is not the export's doing.
        allocation_counter::opt_out(|| {
            self.pending.push_back(request);
            self.log.push(request);
        });
        Ok(())
    }
}

/// Bytes of the buffers of a reactor's pool.
pub(crate) const PIECE: u32 = 16384;

pub(crate) fn pool(memory: &Memory) -> Rc<Pool> {
    Pool::new(memory, &[SizeClass { size: PIECE, count: 8 }]).unwrap()
}

/// A reactor at work in a thread of its own.
pub(crate) struct Running {
    stop: Sender<()>,
    thread: JoinHandle<Vec<u8>>,
}

impl Running {
    /// Serves the export which `make` makes in the reactor's thread.
    pub(crate) fn start<E: Export>(make: impl FnOnce(&Memory) -> E + Send + 'static) -> Self {
        Self::start_with(Poll::Adaptive, make)
    }

    /// The same, by a loop which waits for work as said.
    pub(crate) fn start_with<E: Export>(
        poll: Poll,
        make: impl FnOnce(&Memory) -> E + Send + 'static,
    ) -> Self {
        let (sender, stop) = mailbox(1).unwrap();
        let (ready, started) = mpsc::channel();
        let thread = thread::spawn(move || {
            let memory = Memory::new();
            let mut ring = Ring::new(64, Rc::clone(&memory)).unwrap();
            let (export, pool, shelf) = (make(&memory), pool(&memory), Shelf::new());
            ready.send(()).unwrap();
            let (closing, closed, now) = (false, false, Time::ZERO);
            let mut reactor = Reactor { export, shelf, pool, memory, stop, poll, closing, closed, now };
            run(&mut ring, &mut reactor).unwrap();
            assert_eq!(reactor.pool.available(), reactor.pool.total());
            reactor.shelf.bytes
        });
        started.recv().unwrap();
        Self { stop: sender, thread }
    }

    /// What the volume holds in the end.
    pub(crate) fn end(self) -> Vec<u8> {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

/// A reactor with nothing but the export and its volume.
struct Reactor<E> {
    export: E,
    shelf: Shelf,
    pool: Rc<Pool>,
    memory: Rc<Memory>,
    stop: Mailbox<()>,
    poll: Poll,
    closing: bool,
    closed: bool,
    now: Time,
}

impl<E: Export> Reactor<E> {
    fn with<T>(&mut self, ring: &mut Ring, act: impl FnOnce(&mut E, &mut Context<'_>) -> T) -> T {
        let (volume, pool, memory) = (&mut self.shelf, &self.pool, &*self.memory);
        act(&mut self.export, &mut Context { volume, ring, pool, memory, now: self.now, index: 0 })
    }
}

impl<E: Export> Tenant for Reactor<E> {
    fn turn(&mut self, ring: &mut Ring, now: Time) -> bool {
        self.now = now;
        self.closing |= self.stop.receive().is_some();
        let mut did = self.with(ring, |export, context| export.turn(context));
        while let Some(request) = self.shelf.pending.pop_front() {
            self.shelf.carry_out(&self.memory, request);
            let completed = Completed { tag: request.tag, result: Ok(()) };
            self.with(ring, |export, context| export.completed(context, completed));
            did = true;
        }
        if self.closing {
            self.closed = self.with(ring, |export, context| export.close(context));
        }
        did
    }

    fn on_ring(&mut self, ring: &mut Ring, token: Token, result: i32, _now: Time) {
        match token.qpair {
            source::MAILBOX if token.slot == 0 => self.stop.on_ring(),
            _ => self.with(ring, |export, context| export.on_ring(context, token, result)),
        }
    }

    fn arm(&mut self, ring: &mut Ring) {
        self.stop.arm(ring, 0);
        self.with(ring, |export, context| export.arm(context));
    }

    fn poll(&self) -> Poll {
        self.poll
    }

    fn deadline(&self) -> Option<Time> {
        self.export.deadline()
    }

    fn finished(&self) -> bool {
        self.closed
    }
}
