//! One reactor of the daemon: the poll group over software RDMA and the ring's backends, its mailbox, and
//! the way to the other reactors.
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::Duration;

use ironside_common::memory::{Memory, Pool, SizeClass};
use ironside_common::provider::soft::{self, Interest, Soft};
use ironside_common::provider::tcp::{TcpDialer, TcpSoft, TcpWire};
use ironside_common::reactor::{Mailbox, Ring, RingError, Sender, Tenant, run, source};
use ironside_common::time::Time;
use ironside_common::verbs::{Kind, Sge, Token};

use crate::backend::{Backends, Done, Medium, Operation};
use crate::catalog::{Catalog, Namespace, Subsystem};
use crate::controller::TRANSFER_MAX;
use crate::poll_group::{self, Message, PollGroup, Storage};

/// Entries of a reactor's ring; more in flight are submitted as these complete.
const RING_ENTRIES: u32 = 1024;
/// How long a reactor gives another one whose mailbox is full.
const FULL_MAILBOX_PAUSE: Duration = Duration::from_millis(1);

/// Buffers of a reactor. Memory is taken from the system only as they are used.
const BUFFERS: [SizeClass; 3] = [
    SizeClass { size: 8 << 10, count: 2048 },
    SizeClass { size: 128 << 10, count: 256 },
    SizeClass { size: TRANSFER_MAX, count: 64 },
];

/// What reaches a reactor from other threads.
#[derive(Debug)]
pub enum Letter {
    /// A connection the acceptor took.
    Adopt { socket: TcpStream, peer: SocketAddr, local: SocketAddr },
    /// From another reactor, or from control.
    Group(Message),
}

/// What a reactor is made of; everything else it makes itself, on its own thread.
pub struct Parts {
    pub group: poll_group::Settings,
    pub provider: soft::Settings,
    pub catalog: Arc<Catalog>,
    pub mailbox: Mailbox<Letter>,
    pub reactors: Vec<Sender<Letter>>,
}

/// Why a reactor could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("no memory for buffers")]
    Buffers(#[source] io::Error),
    #[error("it panicked; this is a bug")]
    Panicked,
    #[error("a namespace's medium cannot be attached")]
    Attach(#[source] io::Error),
}

/// Runs a reactor on this thread until it has drained. Calls `started` once it can take connections.
///
/// # Errors
/// When the system refuses what it needs, or the ring fails.
pub fn serve(parts: Parts, started: impl FnOnce()) -> Result<(), ReactorError> {
    let memory = Memory::new();
    let mut ring = Ring::new(RING_ENTRIES, Rc::clone(&memory))?;
    let pool = Pool::new(&memory, &BUFFERS).map_err(ReactorError::Buffers)?;
    let mut reactor = Reactor::new(parts, &mut ring, memory, pool)?;
    started();
    Ok(run(&mut ring, &mut reactor)?)
}

struct Reactor {
    me: usize,
    group: PollGroup<TcpSoft, RingStorage>,
    mailbox: Mailbox<Letter>,
    post: Post,
}

/// The way to the other reactors.
struct Post {
    reactors: Vec<Sender<Letter>>,
    /// Messages which found a full mailbox, and when they are tried again.
    backlog: VecDeque<(usize, Message)>,
    retry: Option<Time>,
}

impl Post {
    fn new(reactors: Vec<Sender<Letter>>) -> Self {
        Self { reactors, backlog: VecDeque::new(), retry: None }
    }

    fn push(&mut self, to: usize, message: Message) {
        self.backlog.push_back((to, message));
    }

    /// Sends what there is, in order, until one finds a full mailbox.
    fn send(&mut self, now: Time) {
        self.retry = None;
        while let Some((to, message)) = self.backlog.pop_front() {
            match self.reactors[to].try_send(Letter::Group(message)) {
                // A reactor that is gone has drained: nobody there waits for this.
                Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                Err(TrySendError::Full(Letter::Group(message))) => {
                    self.backlog.push_front((to, message));
                    self.retry = Some(now + FULL_MAILBOX_PAUSE);
                    return;
                }
                Err(TrySendError::Full(Letter::Adopt { .. })) => unreachable!("a message was sent"),
            }
        }
    }
}

impl Reactor {
    fn new(parts: Parts, ring: &mut Ring, memory: Rc<Memory>, pool: Rc<Pool>) -> Result<Self, ReactorError> {
        let Parts { group, provider, catalog, mailbox, reactors } = parts;
        let depth = usize::from(group.queue_depth);
        let backends = Backends::new(Rc::clone(&memory), depth);
        let mut storage = RingStorage { backends, numbers: Vec::new() };
        storage.attach(&catalog, ring).map_err(ReactorError::Attach)?;
        let verbs = Soft::new(Rc::clone(&memory), Box::new(TcpDialer), provider);
        let me = group.reactor;
        let group = PollGroup::new(group, verbs, storage, pool, memory, catalog);
        Ok(Self { me, group, mailbox, post: Post::new(reactors) })
    }

    fn open_letter(&mut self, ring: &mut Ring, now: Time, letter: Letter) {
        match letter {
            Letter::Group(Message::Catalog(catalog)) => match self.group.storage().attach(&catalog, ring) {
                Ok(()) => self.group.on_message(now, Message::Catalog(catalog)),
                Err(error) => tracing::error!(%error, "the new configuration is not taken over"),
            },
            Letter::Adopt { socket, peer, local } => match TcpWire::new(socket) {
                Ok(wire) => self.group.verbs().adopt(wire, peer, local),
                Err(error) => tracing::warn!(%peer, %error, "connection dropped"),
            },
            Letter::Group(message) => self.group.on_message(now, message),
        }
    }

    fn post_letters(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some((to, message)) = self.group.next_message() {
            busy = true;
            if to == self.me {
                self.group.on_message(now, message);
            } else {
                self.post.push(to, message);
            }
        }
        self.post.send(now);
        busy
    }
}

impl Tenant for Reactor {
    fn turn(&mut self, ring: &mut Ring, now: Time) -> bool {
        let mut busy = false;
        while let Some(letter) = self.mailbox.receive() {
            busy = true;
            self.open_letter(ring, now, letter);
        }
        busy |= self.group.verbs().pump(now);
        busy |= self.group.turn(now);
        busy |= self.group.storage().backends.pump(ring);
        busy |= self.post_letters(now);
        busy |= self.group.verbs().flush(now);
        self.group.verbs().cool(|interest| watch(ring, interest));
        busy
    }

    fn on_ring(&mut self, _ring: &mut Ring, token: Token, result: i32, _now: Time) {
        match (token.kind, token.qpair) {
            (Kind::Medium, _) => self.group.storage().backends.on_ring(token, result),
            (Kind::Reactor, source::WIRE) => self.group.verbs().on_ready(token.slot, token.generation),
            (Kind::Reactor, source::MAILBOX) => self.mailbox.on_ring(),
            _ => unreachable!("a completion of nobody here: {token:?}"),
        }
    }

    fn arm(&mut self, ring: &mut Ring) {
        self.group.verbs().arm(|interest| watch(ring, interest));
        self.mailbox.arm(ring, 0);
    }

    fn deadline(&self) -> Option<Time> {
        let deadlines = [self.group.deadline(), self.group.provider().deadline(), self.post.retry];
        deadlines.into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        self.group.is_drained()
    }
}

fn watch(ring: &mut Ring, interest: Interest<'_>) {
    let token = source::token(source::WIRE, interest.slot, interest.generation);
    ring.poll_once(interest.descriptor, interest.events, token);
}

/// The backends of this reactor, and which of them is whose.
struct RingStorage {
    backends: Backends,
    numbers: Vec<(uuid::Uuid, usize)>,
}

impl RingStorage {
    /// Attaches to the media of namespaces which were not there before.
    fn attach(&mut self, catalog: &Catalog, ring: &mut Ring) -> io::Result<()> {
        let namespaces = catalog.subsystems().iter().flat_map(Subsystem::namespaces);
        for namespace in namespaces {
            if self.numbers.iter().all(|(uuid, _)| *uuid != namespace.uuid) {
                self.numbers.push((namespace.uuid, self.backends.add(&namespace.medium, ring)?));
            }
        }
        Ok(())
    }
}

impl Medium for RingStorage {
    fn submit(&mut self, token: Token, namespace: usize, operation: Operation) {
        self.backends.submit(token, namespace, operation);
    }

    fn in_place(&self, namespace: usize, offset: u64, length: u32) -> Option<Sge> {
        self.backends.in_place(namespace, offset, length)
    }

    fn poll(&mut self) -> Option<Done> {
        self.backends.poll()
    }
}

impl Storage for RingStorage {
    fn backend_of(&mut self, namespace: &Namespace) -> usize {
        let found = self.numbers.iter().find(|(uuid, _)| *uuid == namespace.uuid);
        found.expect("every namespace of a catalog was attached before the catalog came").1
    }
}

#[cfg(test)]
mod tests {
    use ironside_common::reactor::mailbox;

    use super::*;

    #[test]
    fn a_full_mailbox_is_tried_again_later_and_in_order() {
        let (sender, mut mailbox) = mailbox(1).unwrap();
        let mut post = Post::new(vec![sender]);
        let now = Time::from_nanos(1 << 50);
        let left = |cntlid| {
            let queue =
                poll_group::QueueName { reactor: 0, qp: ironside_common::verbs::QpHandle(0), generation: 0 };
            Message::Left { cntlid, queue }
        };
        (1..=3).for_each(|cntlid| post.push(0, left(cntlid)));
        for cntlid in 1..=3 {
            post.send(now);
            let expected = (cntlid < 3).then_some(now + FULL_MAILBOX_PAUSE);
            assert_eq!(post.retry, expected, "not in the past, or the loop would spin");
            let Some(Letter::Group(Message::Left { cntlid: got, .. })) = mailbox.receive() else { panic!() };
            assert_eq!(got, cntlid);
        }
    }
}
