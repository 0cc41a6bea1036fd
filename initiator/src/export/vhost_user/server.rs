//! The socket at which one machine at a time finds its disk, and the machine that has, served from the reactor's own loop.
//!
//! While the reactor turns, the queues are looked at in memory and cost no system call; the socket, which has little to say,
//! is left to the ring.
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ironside_common::verbs::Token;
use nix::poll::PollFlags;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tracing::{info, warn};
use zerocopy::IntoBytes;

use super::QUEUES;
use super::device::Disk;
use super::front_end::{Drain, FrontEnd, Outcome};
use super::machine::Machine;
use super::message::{CONFIGURATION_CHANGED, Header};
use super::queue::Queue;
use super::requests::Requests;
use super::socket::{Gone, Inbox, send};
use crate::attach::{Context, Export};
use crate::export::Listener;
use crate::volume::{Completed, Geometry};

/// Slots among the tokens of the export: a kick has the number of its queue.
const LISTENER: u16 = u16::MAX;
const SOCKET: u16 = u16::MAX - 1;
const _: () = assert!(QUEUES < SOCKET as usize);

/// One volume for one machine.
pub struct Server {
    /// Gone once the export is to end.
    listener: Option<Listener>,
    listener_is_watched: bool,
    disk: Disk,
    link: Option<Link>,
    requests: Requests,
    clients: Arc<AtomicUsize>,
    /// Where it is written down which machine there is.
    directory: PathBuf,
    generation: u16,
}

/// A machine that is connected.
struct Link {
    socket: UnixStream,
    /// The machine's process.
    pid: u32,
    generation: u16,
    is_watched: bool,
    inbox: Inbox,
    front_end: FrontEnd,
    /// Who waits for queues to be drained; nothing more is heard until they are.
    waits: Option<(Header, Drain)>,
}

impl Server {
    /// Serves a volume to whoever connects first. Which machine that is, is written down in `directory`. `piece_size`:
    /// bytes of the buffers requests are cut to.
    #[must_use]
    pub fn new(listener: Listener, disk: Disk, directory: PathBuf, piece_size: u32) -> Self {
        Self {
            clients: listener.clients(),
            listener: Some(listener),
            listener_is_watched: false,
            disk,
            link: None,
            requests: Requests::new(piece_size),
            directory,
            generation: 0,
        }
    }

    fn accept(&mut self, context: &mut Context<'_>) -> bool {
        // What the last machine had under way may still change the volume: the next one waits for its end.
        let is_busy = self.link.is_none() && !self.requests.is_empty();
        let Some(listener) = self.listener.as_ref().filter(|_| !self.listener_is_watched && !is_busy) else {
            return false;
        };
        let Ok((socket, _)) = listener.socket.accept() else {
            self.listener_is_watched = true;
            let token = context.token(LISTENER, 0);
            context.ring.poll_once(listener.socket.as_fd(), PollFlags::POLLIN, token);
            return false;
        };
        if self.link.is_some() {
            info!("a machine was turned away: another one has the volume");
            return true;
        }
        self.generation = self.generation.wrapping_add(1);
        let pid = peer(&socket);
        info!(pid, "a machine has connected");
        self.write_down(pid);
        self.clients.store(1, Ordering::Relaxed);
        self.link = Some(Link {
            socket,
            pid,
            generation: self.generation,
            is_watched: false,
            inbox: Inbox::new(),
            front_end: FrontEnd::new(),
            waits: None,
        });
        true
    }

    fn write_down(&self, pid: u32) {
        if let Err(error) = Machine::of(pid, self.disk.writeback()).write(&self.directory) {
            warn!(
                "it cannot be written down which machine has the volume; after a crash nobody knows of it: {error}"
            );
        }
    }

    /// Hears and answers what the machine has to say. True if that was anything.
    fn converse(&mut self, context: &mut Context<'_>) -> bool {
        let Some(link) = &mut self.link else { return false };
        let writeback = self.disk.writeback();
        let (pid, heard) = (link.pid, link.hear(&mut self.disk, context));
        if self.disk.writeback() != writeback {
            self.write_down(pid);
        }
        heard.unwrap_or_else(|why| {
            info!("the machine is gone: {why}");
            self.hang_up(context);
            true
        })
    }

    /// Lets go of the machine. What it had under way goes on, and is told to nobody.
    fn hang_up(&mut self, context: &mut Context<'_>) {
        let Some(mut link) = self.link.take() else { return };
        // Wakes what the ring still watches. It can only fail if the machine has hung up already.
        let _ = link.socket.shutdown(Shutdown::Both);
        link.front_end.queues.iter_mut().for_each(Queue::end_watch);
        link.end_watches(context);
        self.requests.abandon();
        self.clients.store(0, Ordering::Relaxed);
        Machine::forget(&self.directory);
    }
}

impl Export for Server {
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        let mut did = self.accept(context) | self.converse(context);
        if let Some(link) = &mut self.link {
            did |= self.requests.advance(&mut link.front_end, &self.disk, context);
            link.front_end.queues.iter_mut().for_each(Queue::tell);
        }
        did
    }

    fn completed(&mut self, context: &mut Context<'_>, completed: Completed) {
        let front_end = self.link.as_mut().map(|link| &mut link.front_end);
        self.requests.completed(front_end, context.memory, completed);
    }

    fn on_ring(&mut self, _context: &mut Context<'_>, token: Token, _result: i32) {
        if token.slot == LISTENER {
            self.listener_is_watched = false;
        } else if let Some(link) = &mut self.link {
            match token.slot {
                // Whatever the result, the next try tells what is the matter.
                SOCKET if token.generation == link.generation => link.is_watched = false,
                SOCKET => {}
                queue => {
                    if let Some(queue) = link.front_end.queues.get_mut(usize::from(queue)) {
                        queue.kicked(token.generation);
                    }
                }
            }
        }
    }

    fn arm(&mut self, context: &mut Context<'_>) {
        let Some(link) = &mut self.link else { return };
        for (queue, slot) in link.front_end.queues.iter_mut().zip(0..) {
            if let Some((kick, generation)) = queue.listen() {
                let token = context.token(slot, generation);
                context.ring.poll_once(kick, PollFlags::POLLIN, token);
            }
        }
    }

    fn changed(&mut self, _context: &mut Context<'_>, geometry: Geometry) {
        self.disk.changed(geometry);
        let channel = self.link.as_ref().and_then(|link| link.front_end.channel());
        if let Some(channel) = channel
            && let Err(error) = send(channel, Header::to_front_end(CONFIGURATION_CHANGED), &[], None)
        {
            warn!("the machine cannot be told that the volume has changed: {error}");
        }
    }

    /// What is under way is not told to the machine: it counts as not done, and whoever serves it next does it again.
    fn close(&mut self, context: &mut Context<'_>) -> bool {
        self.listener = None;
        self.hang_up(context);
        self.requests.is_empty()
    }
}

impl Link {
    fn hear(&mut self, disk: &mut Disk, context: &mut Context<'_>) -> Result<bool, Gone> {
        let mut did = false;
        loop {
            if let Some((header, drain)) = self.waits {
                if !self.front_end.is_drained(drain) {
                    return Ok(did);
                }
                self.waits = None;
                // The driver is to see all that was used before it hears that no more will be.
                self.front_end.queues.iter_mut().for_each(Queue::tell);
                let outcome = self.front_end.drained(drain);
                self.end_watches(context);
                self.answer(header, outcome)?;
                did = true;
            }
            if self.is_watched {
                return Ok(did);
            }
            let Some((header, request, descriptors)) = self.inbox.receive(self.socket.as_fd())? else {
                self.is_watched = true;
                self.front_end.start();
                let token = context.token(SOCKET, self.generation);
                context.ring.poll_once(self.socket.as_fd(), PollFlags::POLLIN, token);
                return Ok(did);
            };
            did = true;
            match self.front_end.handle(request, descriptors, disk) {
                Ok(Outcome::Drain(drain)) => self.waits = Some((header, drain)),
                Ok(outcome) => self.answer(header, outcome)?,
                Err(refusal) if header.needs_reply() && self.front_end.acknowledges() => {
                    warn!("the machine is refused {refusal}");
                    send(self.socket.as_fd(), header.answer(8), 1_u64.as_bytes(), None)?;
                }
                Err(refusal) => return Err(refusal.into()),
            }
            self.end_watches(context);
        }
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<(), Gone> {
        let socket = self.socket.as_fd();
        match outcome {
            Outcome::Reply(payload, descriptor) => {
                let length = u32::try_from(payload.len()).expect("a payload is short");
                Ok(send(socket, header.answer(length), &payload, descriptor.as_ref().map(AsFd::as_fd))?)
            }
            Outcome::Done if header.needs_reply() && self.front_end.acknowledges() => {
                Ok(send(socket, header.answer(8), 0_u64.as_bytes(), None)?)
            }
            Outcome::Done | Outcome::Drain(_) => Ok(()),
        }
    }

    /// Has the ring let go of kicks that are over.
    fn end_watches(&mut self, context: &mut Context<'_>) {
        for (queue, slot) in self.front_end.queues.iter_mut().zip(0..) {
            if let Some(generation) = queue.take_ended_watch() {
                let token = context.token(slot, generation);
                context.ring.cancel(token);
            }
        }
    }
}

/// The process at the other end; zero if it is one of another container.
fn peer(socket: &UnixStream) -> u32 {
    getsockopt(socket, PeerCredentials).map_or(0, |peer| peer.pid().cast_unsigned())
}
