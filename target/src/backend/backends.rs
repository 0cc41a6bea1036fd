//! The media of one reactor, and every operation in flight on them.
//!
//! An operation on a file is a slot here from [`Medium::submit`] to its last ring completion; the ring's
//! token names the slot. Media in memory execute at once. Either way the result waits for
//! [`Medium::poll`].
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use ironside_common::memory::{Memory, Region};
use ironside_common::reactor::{Ring, RingError, RingFile};
use ironside_common::verbs::{Kind, Sge, Token};
use slab::Slab;

use super::medium::{Kind as Opened, OpenMedium};
use super::null::Null;
use super::polled::{Polled, PolledFile, is_refusal};
use super::ram::Ram;
use super::sharing::{self, Call, Sharing};
use super::uring::{Alignment, Ask, File, Next, Progress};
use super::{BlockError, Done, Medium, Operation};

/// How many zeroes are written at a time where a file system knows no shorter way.
const ZEROES: u32 = 256 << 10;

/// The media of one reactor.
pub struct Backends {
    memory: Rc<Memory>,
    attached: Slab<Attached>,
    polled: Polled,
    sharing: Sharing,
    running: Slab<Running>,
    /// Slots which have something to ask the ring.
    asking: VecDeque<usize>,
    /// What the ring is to cancel.
    cancelling: Vec<Token>,
    done: VecDeque<Done>,
    /// Zeroes to write from, once there is a file.
    zeroes: Option<Sge>,
    /// Tells the use of a slot from the one before it.
    generation: u16,
}

struct Attached {
    medium: OpenMedium,
    backend: Backend,
    in_flight: usize,
}

enum Backend {
    File { ring_file: RingFile, polled: Option<PolledFile>, file: File, alignment: Option<Alignment> },
    Ram(Ram),
    Null(Null),
}

/// An operation on a file.
struct Running {
    token: Token,
    generation: u16,
    namespace: usize,
    progress: Progress,
    bounce: Option<Bounce>,
    /// It is to end early.
    is_cancelled: bool,
}

/// Aligned memory in place of a caller's which direct I/O would refuse.
struct Bounce {
    lkey: u32,
    /// Where what was read belongs.
    into: Option<Sge>,
}

impl Backends {
    /// No media yet, and room for `depth` operations in flight; more only cost memory.
    #[must_use]
    pub fn new(memory: Rc<Memory>, depth: usize) -> Self {
        Self {
            polled: Polled::new(Rc::clone(&memory)),
            memory,
            sharing: Sharing::default(),
            attached: Slab::new(),
            running: Slab::with_capacity(depth),
            asking: VecDeque::with_capacity(depth),
            cancelling: Vec::new(),
            done: VecDeque::with_capacity(depth),
            zeroes: None,
            generation: 0,
        }
    }

    /// Polls the drives which can be polled, of those added from here on. As long as one has something to answer,
    /// [`Self::pump`] has to be called again and again.
    #[must_use]
    pub fn polling(mut self) -> Self {
        self.polled.allow();
        self
    }

    /// Completions so far which a drive was polled for.
    #[must_use]
    pub fn polled(&self) -> u64 {
        self.polled.count()
    }

    /// Attaches this reactor to a medium, and numbers it.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn add(&mut self, medium: &OpenMedium, ring: &mut Ring) -> io::Result<usize> {
        let backend = match medium.kind() {
            Opened::Ram(region) => Backend::Ram(Ram::new(Rc::clone(&self.memory), Arc::clone(region))),
            Opened::Faulty => return Err(io::ErrorKind::Unsupported.into()),
            Opened::Null => Backend::Null(Null::new(Rc::clone(&self.memory))?),
            Opened::File(open) => Backend::File {
                file: File::new(open.alignment, self.zeroes()?, open.has_file_system()),
                ring_file: ring.add_file(Arc::clone(&open.fd)),
                polled: self.polled.add(open),
                alignment: open.alignment,
            },
        };
        Ok(self.attached.insert(Attached { medium: medium.clone(), backend, in_flight: 0 }))
    }

    /// The regions which reads are served from in place.
    pub fn regions(&self) -> impl Iterator<Item = u32> {
        self.attached.iter().filter_map(|(_, attached)| match &attached.backend {
            Backend::File { .. } => None,
            Backend::Ram(ram) => Some(ram.lkey()),
            Backend::Null(null) => Some(null.lkey()),
        })
    }

    /// Operations on this medium which have not ended.
    ///
    /// # Panics
    /// If there is no such medium.
    #[must_use]
    pub fn in_flight(&self, namespace: usize) -> usize {
        self.attached[namespace].in_flight
    }

    /// Detaches this reactor from a medium. Memory got by [`Medium::in_place`] is not to be used any more.
    ///
    /// # Errors
    /// When the ring fails.
    ///
    /// # Panics
    /// If there is no such medium, or an operation on it is in flight.
    pub fn remove(&mut self, namespace: usize, ring: &mut Ring) -> Result<(), RingError> {
        let attached = self.attached.remove(namespace);
        assert_eq!(attached.in_flight, 0, "a medium is detached when its operations have ended");
        match attached.backend {
            Backend::File { ring_file, polled, .. } => {
                if let Some(polled) = polled {
                    self.polled.remove(&polled);
                }
                ring.remove_file(ring_file)
            }
            Backend::Ram(_) | Backend::Null(_) => Ok(()),
        }
    }

    /// Puts what the operations ask for on the ring; says whether there was anything, or will be without the
    /// ring's saying so: then nobody may sleep.
    pub fn pump(&mut self, ring: &mut Ring) -> bool {
        let busy = !self.asking.is_empty() || !self.cancelling.is_empty();
        while let Some(slot) = self.asking.pop_front() {
            let running = &mut self.running[slot];
            if running.is_cancelled {
                self.go_on(slot, Next::Done(Err(BlockError::Cancelled)));
                continue;
            }
            let attached = &self.attached[running.namespace];
            let Backend::File { ring_file, polled, file, .. } = &attached.backend else { continue };
            let token = ring_token(slot, running.generation);
            match file.ask(&running.progress) {
                Ask::Share { source, offset, length } => {
                    let file = attached.medium.descriptor().expect("a file has one");
                    let call = Call { token, file, source, offset, length };
                    if !self.sharing.submit(call, ring) {
                        self.go_on(slot, Next::Done(Err(BlockError::Unsupported)));
                    }
                }
                Ask::Measure => {
                    let next = file.measured(&mut running.progress, attached.medium.current_size());
                    self.go_on(slot, next);
                }
                ask if self.polled.take(polled.as_ref(), ask, token) => {}
                ask => ask.queue(ring, *ring_file, token),
            }
        }
        self.cancelling.drain(..).for_each(|token| ring.cancel(token));
        self.sharing.watch(ring);
        let polls = self.polled.look();
        while let Some((token, result)) = self.polled.reap() {
            self.on_polled(token, result);
        }
        busy || polls
    }

    fn on_polled(&mut self, token: Token, result: i32) {
        let (slot, Backend::File { polled: Some(polled), .. }) = self.running(token) else {
            unreachable!("only what can be polled was");
        };
        if !is_refusal(result) {
            return self.on_ring(token, result);
        }
        polled.refused();
        self.asking.push_back(slot);
    }

    /// Takes a completion of the ring whose token is of [`Kind::Medium`].
    ///
    /// # Panics
    /// If the token is not one of ours.
    pub fn on_ring(&mut self, token: Token, result: i32) {
        if token != sharing::BELL {
            return self.on_answer(token, result);
        }
        self.sharing.on_ring();
        while let Some((token, result)) = self.sharing.next() {
            self.on_answer(token, result);
        }
    }

    fn on_answer(&mut self, token: Token, result: i32) {
        let (slot, _) = self.running(token);
        let running = &mut self.running[slot];
        let Backend::File { file, .. } = &mut self.attached[running.namespace].backend else {
            unreachable!("only files are asked anything");
        };
        let next = file.advance(&mut running.progress, result);
        self.go_on(slot, next);
    }

    /// The slot which a token of ours names, and where its operation takes place.
    fn running(&self, token: Token) -> (usize, &Backend) {
        let slot = usize::from(token.qpair) << 16 | usize::from(token.slot);
        let running = &self.running[slot];
        assert_eq!(running.generation, token.generation, "a completion for an operation which has ended");
        (slot, &self.attached[running.namespace].backend)
    }

    fn go_on(&mut self, slot: usize, next: Next) {
        match next {
            Next::Ask => self.asking.push_back(slot),
            Next::Done(result) => {
                let running = self.running.remove(slot);
                if let Some(bounce) = running.bounce {
                    self.return_bounce(&bounce, result.is_ok());
                }
                self.attached[running.namespace].in_flight -= 1;
                self.done.push_back(Done { token: running.token, result });
            }
        }
    }

    fn start(
        &mut self,
        token: Token,
        namespace: usize,
        mut operation: Operation,
    ) -> Option<Result<(), BlockError>> {
        let attached = &self.attached[namespace];
        if let Err(error) = check(&attached.medium, &operation) {
            return Some(Err(error));
        }
        let (file, alignment) = match &attached.backend {
            Backend::Ram(ram) => return Some(ram.execute(operation)),
            Backend::Null(null) => return Some(null.execute(operation)),
            Backend::File { file, alignment, .. } => (file, *alignment),
        };
        if matches!(operation, Operation::Copy { .. }) && !file.copies() {
            return Some(Err(BlockError::Unsupported));
        }
        let bounce = match self.bounce(&mut operation, alignment) {
            Ok(bounce) => bounce,
            Err(error) => return Some(Err(error)),
        };
        let Some(progress) = file.begin(operation) else { return Some(Ok(())) };
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let slot = self.running.insert(Running {
            token,
            generation,
            namespace,
            progress,
            bounce,
            is_cancelled: false,
        });
        self.asking.push_back(slot);
        self.attached[namespace].in_flight += 1;
        None
    }

    /// Direct I/O may refuse the caller's memory: then memory it takes stands in. Buffers of a pool and
    /// in-capsule data are aligned, so this is rare and may allocate.
    fn bounce(
        &self,
        operation: &mut Operation,
        alignment: Option<Alignment>,
    ) -> Result<Option<Bounce>, BlockError> {
        let (Operation::Read { into: memory, .. } | Operation::Write { from: memory, .. }) = operation else {
            return Ok(None);
        };
        let fits = alignment.is_none_or(|alignment| memory.address % u64::from(alignment.memory) == 0);
        if fits || memory.length == 0 {
            return Ok(None);
        }
        let region = Region::new(memory.length as usize).map_err(|_| BlockError::Busy(libc::ENOMEM))?;
        let lkey = self.memory.register(region);
        let aligned = self.memory.sge(lkey, 0, memory.length);
        let callers = std::mem::replace(memory, aligned);
        let into = match operation {
            Operation::Read { .. } => Some(callers),
            _ => {
                self.memory.copy(callers, aligned);
                None
            }
        };
        Ok(Some(Bounce { lkey, into }))
    }

    fn return_bounce(&self, bounce: &Bounce, succeeded: bool) {
        if let Some(into) = bounce.into.filter(|_| succeeded) {
            self.memory.copy(self.memory.sge(bounce.lkey, 0, into.length), into);
        }
        self.memory.unregister(bounce.lkey);
    }

    fn zeroes(&mut self) -> io::Result<Sge> {
        if let Some(zeroes) = self.zeroes {
            return Ok(zeroes);
        }
        let lkey = self.memory.register(Region::new(ZEROES as usize)?);
        Ok(*self.zeroes.insert(self.memory.sge(lkey, 0, ZEROES)))
    }
}

impl Medium for Backends {
    fn submit(&mut self, token: Token, namespace: usize, operation: Operation) {
        if let Some(result) = self.start(token, namespace, operation) {
            self.done.push_back(Done { token, result });
        }
    }

    /// Rare, and so a search through all there are.
    fn cancel(&mut self, token: Token) {
        if let Some((slot, running)) = self.running.iter_mut().find(|(_, running)| running.token == token) {
            running.is_cancelled = true;
            self.cancelling.push(ring_token(slot, running.generation));
        }
    }

    fn copies(&self, namespace: usize) -> bool {
        match &self.attached[namespace].backend {
            Backend::File { file, .. } => file.copies(),
            Backend::Ram(_) | Backend::Null(_) => true,
        }
    }

    fn in_place(&self, namespace: usize, offset: u64, length: u32) -> Option<Sge> {
        let attached = &self.attached[namespace];
        within(&attached.medium, offset, u64::from(length)).ok()?;
        match &attached.backend {
            Backend::Ram(ram) => Some(ram.in_place(offset, length)),
            Backend::Null(null) => null.in_place(length),
            Backend::File { .. } => None,
        }
    }

    fn poll(&mut self) -> Option<Done> {
        self.done.pop_front()
    }
}

/// The ring's name of a slot. Slots are fewer than four billion, since memory is.
fn ring_token(slot: usize, generation: u16) -> Token {
    Token { kind: Kind::Medium, generation, qpair: (slot >> 16) as u16, slot: slot as u16 }
}

/// Refuses what is not within the medium or would change one that is read-only.
fn check(medium: &OpenMedium, operation: &Operation) -> Result<(), BlockError> {
    if medium.read_only() && operation.modifies() {
        return Err(BlockError::ReadOnly);
    }
    if let Operation::Copy { source, length, .. } = *operation {
        within(medium, source, length.into())?;
    }
    operation.range().map_or(Ok(()), |(offset, length)| within(medium, offset, length))
}

fn within(medium: &OpenMedium, offset: u64, length: u64) -> Result<(), BlockError> {
    let end = offset.checked_add(length).ok_or(BlockError::OutOfRange)?;
    if end <= medium.size() { Ok(()) } else { Err(BlockError::OutOfRange) }
}
