//! A namespace for a program's own reads and writes: no export in between, and no copy where memory begins and ends with
//! a page. Such memory is registered where it lies; for any other there is a bounce buffer of the same size.
//!
//! Memory is registered once for as many requests as one likes. It is lent for each, as a value which is nobody's to look
//! into until the request has ended, and by then the target's key to it is invalid, in whichever way buffers are lent.
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use ironside_common::memory::{Away, Lendable, Loan, Memory, Own, PAGE, Region};
use ironside_common::reactor::{Mailbox, Sender, mailbox};
use ironside_common::verbs::{Sge, Token};
use slab::Slab;

use super::{Attached, Context, Export, ExportError};
use crate::volume::{Completed, Geometry, IoError, Operation, Request};

/// Questions a reactor may leave unread.
const ASKS: usize = 1024;

/// Why memory could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error("memory of {0} bytes cannot be lent: from 1 byte to 4 GiB can")]
    Length(usize),
    #[error("no memory for a bounce buffer: {0}")]
    Memory(io::Error),
    #[error("its reactor has ended")]
    Gone,
}

impl Attached {
    /// Opens a namespace for reads and writes of this program, from any thread but the reactor's own.
    ///
    /// # Errors
    /// If there is no such namespace, or it is exported already.
    pub fn open(&self, nsid: u32) -> Result<Direct, ExportError> {
        let (asks, mailbox) = mailbox(ASKS).map_err(ExportError::Make)?;
        let (sender, geometry) = sync_channel(1);
        self.export(
            nsid,
            Box::new(move |site| {
                let _ = sender.try_send(site.geometry);
                Ok(Box::new(Desk { mailbox, buffers: Slab::new(), pending: Slab::new(), closing: false }))
            }),
        )?;
        let geometry = geometry.recv().map_err(|_| ExportError::Gone)?;
        Ok(Direct { asks: Arc::new(asks), geometry })
    }
}

/// See the module's description.
pub struct Direct {
    asks: Arc<Sender<Ask>>,
    geometry: Geometry,
}

impl Direct {
    /// What the namespace was like when it was opened.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Gets memory ready to be lent.
    ///
    /// # Errors
    /// If it has no bytes or too many, or there is no memory for a bounce buffer.
    pub fn register<B: Lendable>(&self, mut memory: B) -> Result<Registered<B>, RegisterError> {
        let length = memory.bytes().len();
        if length == 0 || u32::try_from(length.next_multiple_of(PAGE)).is_err() {
            return Err(RegisterError::Length(length));
        }
        let own = Own::new(memory);
        let (reply, answer) = sync_channel(1);
        let ask = Ask::Register { region: Arc::clone(own.region()), reply };
        self.asks.send(ask).map_err(|_| RegisterError::Gone)?;
        let number = answer.recv().map_err(|_| RegisterError::Gone)?.map_err(RegisterError::Memory)?;
        Ok(Registered { own, ticket: Ticket { asks: Arc::clone(&self.asks), number } })
    }

    /// Fills all of the memory with what is at `offset`.
    ///
    /// # Panics
    /// If it was registered elsewhere.
    pub fn read<B: Lendable>(&self, offset: u64, into: Registered<B>) -> Lent<B> {
        self.transfer(Operation::Read, offset, into)
    }

    /// Writes all of the memory to `offset`; with `fua`, durably.
    ///
    /// # Panics
    /// If it was registered elsewhere.
    pub fn write<B: Lendable>(&self, offset: u64, from: Registered<B>, fua: bool) -> Lent<B> {
        self.transfer(Operation::Write { fua }, offset, from)
    }

    /// Waits until everything written before is durable.
    ///
    /// # Errors
    /// Why it may not be.
    pub fn flush(&self) -> Result<(), IoError> {
        let (reply, ended) = sync_channel(1);
        let work = Work { operation: Operation::Flush, offset: 0, lent: None, reply };
        self.asks.send(Ask::Work(work)).map_err(|_| IoError::Closing)?;
        ended.recv().unwrap_or(Err(IoError::Closing))
    }

    fn transfer<B: Lendable>(&self, operation: Operation, offset: u64, memory: Registered<B>) -> Lent<B> {
        let Registered { own, ticket } = memory;
        assert!(Arc::ptr_eq(&self.asks, &ticket.asks), "the memory was registered for another namespace");
        let (away, loan) = own.lend();
        let (reply, ended) = sync_channel(1);
        let work = Work { operation, offset, lent: Some((ticket.number, loan)), reply };
        // If the reactor has ended the loan is over at once.
        drop(self.asks.send(Ask::Work(work)));
        Lent { away, ticket, ended }
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Direct({:?})", self.geometry)
    }
}

/// Memory which is registered, and with its owner.
#[derive(Debug)]
pub struct Registered<B> {
    own: Own<B>,
    ticket: Ticket,
}

impl<B: Lendable> Registered<B> {
    /// Whether it is registered where it lies, so that nothing is copied.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.own.region().is_whole_pages()
    }

    /// The memory as it was given; waits until it is registered no more.
    #[must_use]
    pub fn into_inner(self) -> B {
        let Self { own, ticket } = self;
        drop(ticket);
        own.into_inner()
    }
}

impl<B> Deref for Registered<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.own
    }
}

impl<B> DerefMut for Registered<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.own
    }
}

/// Memory which is lent for one request. If this is dropped the request goes on, and the memory ends with it.
#[must_use = "memory that is lent comes back by `wait`"]
#[derive(Debug)]
pub struct Lent<B> {
    away: Away<B>,
    ticket: Ticket,
    ended: Receiver<Result<(), IoError>>,
}

impl<B: Lendable> Lent<B> {
    /// Waits until the request has ended, and nobody at the other end reaches the memory any more.
    pub fn wait(self) -> (Registered<B>, Result<(), IoError>) {
        let Self { mut away, ticket, ended } = self;
        let result = ended.recv().unwrap_or(Err(IoError::Closing));
        loop {
            // The loan is over before the end is told; only a reactor on its way out may be a moment behind.
            match away.take_back() {
                Ok(own) => return (Registered { own, ticket }, result),
                Err(still) => away = still,
            }
            std::thread::yield_now();
        }
    }
}

/// The number of a registration, which ends with this.
struct Ticket {
    asks: Arc<Sender<Ask>>,
    number: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // With the reactor all registrations have ended.
        drop(self.asks.send(Ask::Release(self.number)));
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Ticket({})", self.number)
    }
}

enum Ask {
    Register { region: Arc<Region>, reply: SyncSender<io::Result<usize>> },
    Release(usize),
    Work(Work),
}

/// The loan goes before the reply, so that whoever hears of the end can have the memory.
struct Work {
    operation: Operation,
    offset: u64,
    lent: Option<(usize, Loan)>,
    reply: SyncSender<Result<(), IoError>>,
}

impl Work {
    fn end(self, result: Result<(), IoError>) {
        let Self { lent, reply, .. } = self;
        drop(lent);
        // Whoever asked may have gone.
        let _ = reply.try_send(result);
    }
}

/// The reactor's half.
struct Desk {
    mailbox: Mailbox<Ask>,
    buffers: Slab<Buffer>,
    pending: Slab<Work>,
    closing: bool,
}

/// What is registered for some memory.
struct Buffer {
    lkey: u32,
    in_place: bool,
    at_work: bool,
    released: bool,
}

impl Buffer {
    fn new(memory: &Memory, region: Arc<Region>) -> io::Result<Self> {
        let in_place = region.is_whole_pages();
        let region =
            if in_place { region } else { Region::new_passing(region.len().next_multiple_of(PAGE))? };
        Ok(Self { lkey: memory.register(region), in_place, at_work: false, released: false })
    }
}

impl Desk {
    fn open(&mut self, context: &mut Context<'_>, ask: Ask) {
        match ask {
            Ask::Register { region, reply } => {
                let made = Buffer::new(context.memory, region).map(|buffer| self.buffers.insert(buffer));
                // Whoever asked may have gone; then its ticket is not there to be dropped.
                if let Err(TrySendError::Disconnected(Ok(number))) = reply.try_send(made) {
                    self.release(context.memory, number);
                }
            }
            Ask::Release(number) => self.release(context.memory, number),
            Ask::Work(work) if self.closing => work.end(Err(IoError::Closing)),
            Ask::Work(work) => self.start(context, work),
        }
    }

    fn release(&mut self, memory: &Memory, number: usize) {
        let buffer = &mut self.buffers[number];
        buffer.released = true;
        if !buffer.at_work {
            drop(memory.unregister(self.buffers.remove(number).lkey));
        }
    }

    fn start(&mut self, context: &mut Context<'_>, work: Work) {
        let buffer = work.lent.as_ref().map(|(number, loan)| {
            let buffer = &mut self.buffers[*number];
            buffer.at_work = true;
            if !buffer.in_place && matches!(work.operation, Operation::Write { .. }) {
                let bounce = context.memory.region(buffer.lkey);
                bounce.copy_from(0, loan.region(), 0, loan.region().len());
            }
            piece(context.memory, buffer.lkey, loan)
        });
        let (operation, offset) = (work.operation, work.offset);
        let length = buffer.map_or(0, |sge| sge.length.into());
        let tag = self.pending.insert(work) as u64;
        let request = Request { tag, operation, offset, length, buffer };
        context.volume.submit(request).expect("the volume said it had room");
    }
}

fn piece(memory: &Memory, lkey: u32, loan: &Loan) -> Sge {
    memory.sge(lkey, 0, u32::try_from(loan.region().len()).expect("checked when it was registered"))
}

impl Export for Desk {
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        let mut did = false;
        while context.volume.has_room()
            && let Some(ask) = self.mailbox.receive()
        {
            self.open(context, ask);
            did = true;
        }
        did
    }

    fn completed(&mut self, context: &mut Context<'_>, completed: Completed) {
        let work = self.pending.remove(usize::try_from(completed.tag).expect("a tag of ours"));
        if let Some((number, loan)) = &work.lent {
            let buffer = &mut self.buffers[*number];
            buffer.at_work = false;
            if !buffer.in_place && work.operation == Operation::Read && completed.result.is_ok() {
                let bounce = context.memory.region(buffer.lkey);
                loan.region().copy_from(0, &bounce, 0, loan.region().len());
            }
            if buffer.released {
                self.release(context.memory, *number);
            }
        }
        work.end(completed.result);
    }

    fn on_ring(&mut self, _context: &mut Context<'_>, _token: Token, _result: i32) {
        self.mailbox.on_ring();
    }

    fn arm(&mut self, context: &mut Context<'_>) {
        let slot = context.mailbox_slot();
        self.mailbox.arm(context.ring, slot);
    }

    fn close(&mut self, context: &mut Context<'_>) -> bool {
        self.closing = true;
        self.turn(context);
        self.pending.is_empty()
    }
}
