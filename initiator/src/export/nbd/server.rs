//! The Unix socket of an export, and everyone connected to it, served from the reactor's own loop.
//!
//! A connection is *hot* while its socket is read each turn; before the reactor sleeps it goes *cold*: the
//! ring watches it, and it is left alone until the ring says that something came.
//!
//! Where several cores serve an export, the first has the listening socket and hands clients over by message, each core in
//! its turn. A connection stays where it was seated.
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::TrySendError;
use std::time::Duration;

use ironside_common::reactor::{Mailbox, Sender, Timer, mailbox, source};
use ironside_common::time::Time;
use ironside_common::verbs::Token;
use nix::poll::PollFlags;
use tracing::{debug, info};

use super::connection::{Connection, Tag};
use super::{Parameters, socket};
use crate::attach::{Context, Export};
use crate::export::Listener;
use crate::volume::{Completed, Geometry};

/// Clients of one core at once. More are turned away.
const CONNECTIONS: u16 = 64;
/// Reads from one socket in one turn, so that one client cannot hold up the others.
const READS_A_TURN: usize = 4;
/// How long clients may take for their last replies when the export ends.
const PATIENCE: Duration = Duration::from_secs(2);
/// Slot of the listening socket among the tokens of the export.
const LISTENER: u16 = u16::MAX;
/// Slots from here on are about room to send, those below about something to read.
const WRITABLE: u16 = 1 << 15;
const _: () = assert!(CONNECTIONS < WRITABLE);

/// Clients handed over to a core which it has not seated yet; one that finds no room stays where it called.
const UNSEATED: usize = 64;

/// One volume as an NBD export, or the part of it that one core serves.
pub struct Server {
    /// Gone once the export is to end.
    listener: Option<Listener>,
    listener_state: Watch,
    /// The kernel, which was handed over, until it has its place.
    handed: Option<UnixStream>,
    /// Clients which another core hands over.
    incoming: Option<Mailbox<UnixStream>>,
    /// To those cores which are handed clients, and whose turn it is; last it is this one's.
    others: Vec<Sender<UnixStream>>,
    turn: usize,
    closing: bool,
    parameters: Arc<Parameters>,
    links: Vec<Option<Link>>,
    clients: Arc<AtomicUsize>,
    generation: u16,
    /// When those who have not taken their last replies are left.
    patience: Timer,
}

/// Whether a socket is tried each turn or the ring watches it.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Watch {
    Hot,
    Cold,
}

struct Link {
    socket: UnixStream,
    connection: Connection,
    generation: u16,
    reading: Watch,
    /// Cold while the kernel takes no more output.
    writing: Watch,
}

/// What one core needs for its part of an export; may move to its thread.
pub struct Part {
    listener: Option<Listener>,
    incoming: Option<Mailbox<UnixStream>>,
    others: Vec<Sender<UnixStream>>,
    clients: Arc<AtomicUsize>,
    parameters: Parameters,
}

impl Part {
    /// For each of so many cores, one at least: the first is to have the listening socket.
    ///
    /// # Errors
    /// When the system gives no mailbox.
    pub fn of_each(listener: Listener, parameters: Parameters, cores: usize) -> io::Result<Vec<Self>> {
        let clients = listener.clients();
        let mailboxes: Vec<_> = (1..cores).map(|_| mailbox(UNSEATED)).collect::<io::Result<_>>()?;
        let (others, mailboxes): (Vec<_>, Vec<_>) = mailboxes.into_iter().unzip();
        let part = |listener, incoming, others| {
            let (clients, parameters) = (Arc::clone(&clients), parameters.clone());
            Self { listener, incoming, others, clients, parameters }
        };
        let first = part(Some(listener), None, others);
        let rest = mailboxes.into_iter().map(|mailbox| part(None, Some(mailbox), Vec::new()));
        Ok(std::iter::once(first).chain(rest).collect())
    }
}

impl Server {
    /// Serves a volume to one client alone, which is connected and knows what it is: the kernel.
    #[must_use]
    pub fn handed(client: UnixStream, parameters: Parameters) -> Self {
        Self::to(Some(client), parameters)
    }

    /// The part of one core, made in its thread.
    #[must_use]
    pub fn of(Part { listener, incoming, others, clients, parameters }: Part) -> Self {
        Self { listener, incoming, others, clients, ..Self::to(None, parameters) }
    }

    fn to(handed: Option<UnixStream>, parameters: Parameters) -> Self {
        Self {
            clients: Arc::default(),
            listener: None,
            listener_state: Watch::Hot,
            handed,
            incoming: None,
            others: Vec::new(),
            turn: 0,
            closing: false,
            parameters: Arc::new(parameters),
            links: (0..CONNECTIONS).map(|_| None).collect(),
            generation: 0,
            patience: Timer::unset(),
        }
    }

    fn accept(&mut self, context: &Context<'_>) -> bool {
        let piece_size = context.pool.largest().min(context.volume.geometry().max_transfer);
        let parameters = Arc::clone(&self.parameters);
        if let Some(socket) = self.handed.take() {
            self.seat(socket, Connection::agreed(parameters, piece_size));
            return true;
        }
        if let Some(socket) = self.incoming.as_mut().and_then(Mailbox::receive) {
            self.seat(socket, Connection::new(parameters, piece_size));
            return true;
        }
        let Some(listener) = self.listener.as_ref().filter(|_| self.listener_state == Watch::Hot) else {
            return false;
        };
        match listener.socket.accept() {
            Ok((socket, _)) => {
                if let Some(socket) = self.hand_over(socket) {
                    self.seat(socket, Connection::new(parameters, piece_size));
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Gives a client to the core whose turn it is; gives it back if it is this one's.
    fn hand_over(&mut self, socket: UnixStream) -> Option<UnixStream> {
        let turn = self.turn;
        self.turn = (turn + 1) % (self.others.len() + 1);
        let Some(other) = self.others.get(turn) else { return Some(socket) };
        match other.try_send(socket) {
            Ok(()) => None,
            Err(TrySendError::Full(socket) | TrySendError::Disconnected(socket)) => Some(socket),
        }
    }

    fn seat(&mut self, socket: UnixStream, connection: Connection) {
        let Some(free) = self.links.iter_mut().find(|link| link.is_none()) else {
            return info!("a client was turned away: {CONNECTIONS} are connected");
        };
        self.generation = self.generation.wrapping_add(1);
        *free = Some(Link::new(socket, connection, self.generation));
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    fn link(&mut self, slot: u16, generation: u16) -> Option<&mut Link> {
        let link = self.links.get_mut(usize::from(slot))?.as_mut()?;
        (link.generation == generation).then_some(link)
    }
}

impl Export for Server {
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        let mut did = self.accept(context);
        let links = self.links.iter_mut().zip(0..);
        for (link, slot) in links.filter(|(link, _)| link.is_some()) {
            did |= link.as_mut().is_some_and(|link| link.serve(slot, context));
            if link.as_ref().is_some_and(|link| link.connection.is_over()) {
                *link = None;
                self.clients.fetch_sub(1, Ordering::Relaxed);
                did = true;
            }
        }
        did
    }

    fn completed(&mut self, _context: &mut Context<'_>, completed: Completed) {
        let (tag, piece) = Tag::split(completed.tag);
        let (slot, generation) = (tag.0 as u16, (tag.0 >> 16) as u16);
        let link = self.link(slot, generation).expect("a connection stays until its pieces are done");
        if let Err(fault) = link.connection.completed(piece, completed.result) {
            link.abandon(slot, &fault);
        }
    }

    fn on_ring(&mut self, _context: &mut Context<'_>, token: Token, _result: i32) {
        if token.qpair & 0xFF == source::MAILBOX {
            // Gone, if it is closing.
            self.incoming.iter_mut().for_each(Mailbox::on_ring);
        } else if token.slot == LISTENER {
            self.listener_state = Watch::Hot;
        } else if let Some(link) = self.link(token.slot & !WRITABLE, token.generation) {
            // Whatever the result, the next try tells what is the matter.
            if token.slot & WRITABLE == 0 {
                link.reading = Watch::Hot;
            } else {
                link.writing = Watch::Hot;
            }
        }
    }

    fn arm(&mut self, context: &mut Context<'_>) {
        if let Some(listener) = self.listener.as_ref().filter(|_| self.listener_state == Watch::Hot) {
            let token = context.token(LISTENER, 0);
            context.ring.poll_once(listener.socket.as_fd(), PollFlags::POLLIN, token);
            self.listener_state = Watch::Cold;
        }
        if let Some(incoming) = &mut self.incoming {
            let slot = context.mailbox_slot();
            incoming.arm(context.ring, slot);
        }
        for (link, slot) in self.links.iter_mut().zip(0..) {
            if let Some(link) = link {
                link.arm(slot, context);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.patience.deadline()
    }

    fn changed(&mut self, _context: &mut Context<'_>, geometry: Geometry) {
        // The protocol has no word for it: clients learn of it when they connect again.
        let parameters = Parameters::clone(&self.parameters);
        self.parameters = Arc::new(parameters.with_geometry(geometry));
    }

    fn close(&mut self, context: &mut Context<'_>) -> bool {
        // Who has not been seated by now is hung up on.
        (self.listener, self.incoming) = (None, None);
        if !std::mem::replace(&mut self.closing, true) {
            self.patience.set(context.now + PATIENCE);
        }
        let impatient = self.patience.expired(context.now);
        for link in self.links.iter_mut().flatten() {
            link.connection.end();
            if impatient {
                link.connection.abandon();
            }
        }
        self.turn(context);
        self.links.iter().all(Option::is_none)
    }
}

impl Link {
    fn new(socket: UnixStream, connection: Connection, generation: u16) -> Self {
        let (reading, writing) = (Watch::Hot, Watch::Hot);
        Self { socket, connection, generation, reading, writing }
    }

    fn tag(&self, slot: u16) -> Tag {
        Tag(u64::from(self.generation) << 16 | u64::from(slot))
    }

    /// Sends, receives and acts as far as that goes now.
    fn serve(&mut self, slot: u16, context: &mut Context<'_>) -> bool {
        let tag = self.tag(slot);
        let served = self.send(slot, context).and_then(|sent| {
            let mut did = sent | self.connection.advance(context, tag)?;
            for _ in 0..READS_A_TURN {
                if !self.receive(context)? {
                    break;
                }
                did = true;
                self.connection.advance(context, tag)?;
            }
            // What was answered without asking the volume; the rest goes with the next turn.
            Ok(did | self.send(slot, context)?)
        });
        served.unwrap_or_else(|reason| {
            self.abandon(slot, &reason);
            true
        })
    }

    /// True if anything came.
    fn receive(&mut self, context: &Context<'_>) -> Result<bool, Gone> {
        if self.reading == Watch::Cold {
            return Ok(false);
        }
        let Some(places) = self.connection.places() else { return Ok(false) };
        match socket::receive(self.socket.as_fd(), context.memory, places) {
            Ok(0) => Err(Gone::HungUp),
            Ok(count) => {
                self.connection.received(count);
                Ok(true)
            }
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// True if anything went. The ring is asked for room at once: a loop which is busy, or always polls, never arms.
    fn send(&mut self, slot: u16, context: &mut Context<'_>) -> Result<bool, Gone> {
        let mut did = false;
        while self.connection.has_output() && self.writing == Watch::Hot {
            match socket::send(self.socket.as_fd(), context.memory, self.connection.parts()) {
                Ok(count) => {
                    self.connection.sent(count);
                    did = true;
                }
                Err(error) if is_transient(&error) => {
                    let token = context.token(slot | WRITABLE, self.generation);
                    context.ring.poll_once(self.socket.as_fd(), PollFlags::POLLOUT, token);
                    self.writing = Watch::Cold;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(did)
    }

    fn arm(&mut self, slot: u16, context: &mut Context<'_>) {
        if self.reading == Watch::Hot && self.connection.places().is_some() {
            let token = context.token(slot, self.generation);
            context.ring.poll_once(self.socket.as_fd(), PollFlags::POLLIN, token);
            self.reading = Watch::Cold;
        }
    }

    /// Ends the connection at once; it stays until the volume has let go of its buffers.
    fn abandon(&mut self, slot: u16, reason: &dyn std::fmt::Display) {
        debug!("NBD connection {slot} ended: {reason}");
        self.connection.abandon();
        // Wakes whatever the ring still watches. It can only fail if the client has hung up already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Gone {
    #[error("the client hung up")]
    HungUp,
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Fault(#[from] super::Fault),
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
