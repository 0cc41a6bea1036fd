//! One reactor of the daemon: the poll group over software RDMA, adapters and the ring's backends, its mailbox,
//! and the way to the other reactors.
#[cfg(feature = "ibv")]
mod adapters;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, TrySendError};
use std::time::Duration;

use ironside_common::auth::{Computing, Outcome, SystemRandomness};
use ironside_common::memory::{HugePages, Memory, Pool};
use ironside_common::provider::both::Both;
#[cfg(feature = "ibv")]
use ironside_common::provider::ibv::Incoming;
use ironside_common::provider::shm::{ShmWire, Visitor};
use ironside_common::provider::soft::{self, Interest, Soft};
use ironside_common::provider::tcp::TcpWire;
use ironside_common::provider::wires::{AnyDialer, AnyWire};
use ironside_common::reactor::{Mailbox, Poll, Ring, RingError, Sender, Tenant, run, source};
use ironside_common::time::Time;
use ironside_common::verbs::{Address, Kind, Sge, Token};

use crate::backend::{Backends, Done, Medium, OpenMedium, Operation};
use crate::catalog::{Catalog, Namespace};
use crate::control::config::IoPoll;
use crate::poll_group::{self, Message, PollGroup, QueueName, Storage, Survey, Unanswered};
use crate::reservation::Keep;

/// Entries of a reactor's ring; more in flight are submitted as these complete.
const RING_ENTRIES: u32 = 1024;
/// How long a reactor gives another one whose mailbox is full.
const FULL_MAILBOX_PAUSE: Duration = Duration::from_millis(1);
/// How often a reactor looks whether it can let go of a medium.
const RETIRE_INTERVAL: Duration = Duration::from_millis(5);

/// What reaches a reactor from other threads.
#[derive(Debug)]
pub enum Letter {
    /// A connection the acceptor took.
    Adopt { socket: TcpStream, peer: SocketAddr, local: SocketAddr },
    /// A process of this machine, which shares memory with us by now.
    Admit { visitor: Visitor, peer: Address, local: Address },
    /// A connect request which an adapter got.
    #[cfg(feature = "ibv")]
    Welcome(Box<Incoming>),
    /// An adapter has come back at which hosts will come.
    #[cfg(feature = "ibv")]
    Adapter(SocketAddr),
    /// From another reactor, or from control.
    Group(Message),
    /// What an authentication of this reactor waits for.
    Computed { queue: QueueName, outcome: Outcome },
    /// Get ready for a version which is to come: at its media, and at the adapters of new listeners.
    Attach { catalog: Arc<Catalog>, done: mpsc::Sender<io::Result<()>> },
    /// Go over to a version whose media are attached. Media it does not name are let go of once no command
    /// needs them.
    Switch { catalog: Arc<Catalog>, done: mpsc::Sender<io::Result<()>> },
    /// Say so once nothing is at a medium any more that came by a way which has ended.
    Settle(mpsc::Sender<()>),
    /// Say what you have.
    Survey(mpsc::Sender<Survey>),
}

/// What a reactor is made of; everything else it makes itself, on its own thread.
pub struct Parts {
    pub group: poll_group::Settings,
    pub provider: soft::Settings,
    pub io_poll: IoPoll,
    pub poll: Poll,
    pub huge_pages: HugePages,
    pub catalog: Arc<Catalog>,
    pub mailbox: Mailbox<Letter>,
    pub reactors: Vec<Sender<Letter>>,
    /// Where to have reservations made durable; the first reactor needs it.
    pub keeper: Option<mpsc::Sender<Keep>>,
}

/// Why a reactor could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("no memory for buffers; `buffers` in `limits` says how much they take")]
    Buffers(#[source] io::Error),
    #[error("it panicked; this is a bug")]
    Panicked,
    #[error(
        "a medium did not answer, and these commands may or may not have happened: {0}; look at the device or \
         file system below, or allow more time by `drain-timeout`"
    )]
    Hung(String),
    #[error("the RDMA adapter at {0} cannot be used; provider `iwarp` needs none")]
    Adapter(SocketAddr, #[source] io::Error),
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
    // Memory is taken from the system only as buffers are used.
    let classes = parts.catalog.limits().size_classes();
    let pool = Pool::in_pages(&memory, &classes, parts.huge_pages).map_err(ReactorError::Buffers)?;
    let mut reactor = Reactor::new(parts, &mut ring, memory, pool)?;
    started();
    run(&mut ring, &mut reactor)?;
    match reactor.group.given_up() {
        // Not even a medium is to blame for a command whose answer is nowhere to come from any more.
        None | Some([]) => Ok(()),
        Some(unanswered) => Err(ReactorError::Hung(in_words(unanswered))),
    }
}

/// What each reactor has, in their order.
///
/// # Errors
/// If one has ended.
pub fn survey(reactors: &[Sender<Letter>]) -> io::Result<Vec<Survey>> {
    let (asking, answers) = mpsc::channel();
    for reactor in reactors {
        // One that is gone does not answer, which is found below.
        let _ = reactor.send(Letter::Survey(asking.clone()));
    }
    drop(asking);
    let mut surveys: Vec<Survey> = answers.iter().collect();
    if surveys.len() < reactors.len() {
        return Err(io::Error::other("a reactor has failed"));
    }
    surveys.sort_by_key(|survey| survey.reactor);
    Ok(surveys)
}

fn in_words(unanswered: &[Unanswered]) -> String {
    let one = |one: &Unanswered| {
        let Unanswered { subsystem, nsid, commands } = one;
        format!("{commands} of namespace {nsid} of {subsystem}")
    };
    unanswered.iter().map(one).collect::<Vec<_>>().join(", ")
}

struct Reactor {
    me: usize,
    group: PollGroup<Both<AnyWire>, RingStorage>,
    mailbox: Mailbox<Letter>,
    post: Post,
    keeper: Option<mpsc::Sender<Keep>>,
    computing: Computing<QueueName>,
    /// The region of the buffers.
    #[cfg(feature = "ibv")]
    buffers: u32,
    /// Whether adapters have it locked in memory: then the ring may too.
    #[cfg(feature = "ibv")]
    buffers_are_locked: bool,
    /// When to look for media which are not served any more, while there are some.
    retire_at: Option<Time>,
    poll: Poll,
    /// Who waits for commands to end whose way has.
    settling: Vec<mpsc::Sender<()>>,
}

/// The way to the other reactors.
struct Post {
    reactors: Vec<Sender<Letter>>,
    /// Messages which found a full mailbox, and when they are tried again.
    backlog: VecDeque<(usize, Message)>,
    /// Messages for reactors which have ended.
    undelivered: VecDeque<Message>,
    retry: Option<Time>,
}

impl Post {
    fn new(reactors: Vec<Sender<Letter>>) -> Self {
        Self { reactors, backlog: VecDeque::new(), undelivered: VecDeque::new(), retry: None }
    }

    fn push(&mut self, to: usize, message: Message) {
        self.backlog.push_back((to, message));
    }

    /// Sends what there is, in order, until one finds a full mailbox.
    fn send(&mut self, now: Time) {
        self.retry = None;
        while let Some((to, message)) = self.backlog.pop_front() {
            match self.reactors[to].try_send(Letter::Group(message)) {
                Ok(()) => {}
                // A reactor that is gone has drained: nobody there waits for this, but somebody here may.
                Err(TrySendError::Disconnected(Letter::Group(message))) => {
                    self.undelivered.push_back(message);
                }
                Err(TrySendError::Full(Letter::Group(message))) => {
                    self.backlog.push_front((to, message));
                    self.retry = Some(now + FULL_MAILBOX_PAUSE);
                    return;
                }
                Err(_) => unreachable!("a message was sent"),
            }
        }
    }
}

impl Reactor {
    fn new(parts: Parts, ring: &mut Ring, memory: Rc<Memory>, pool: Rc<Pool>) -> Result<Self, ReactorError> {
        let Parts { group, provider, io_poll, poll, catalog, mailbox, reactors, keeper, .. } = parts;
        let depth = usize::from(group.queue_depth);
        let mut backends = Backends::new(Rc::clone(&memory), depth);
        if io_poll == IoPoll::Auto {
            backends = backends.polling();
        }
        let mut storage = RingStorage { backends, attached: Vec::new() };
        storage.attach(&catalog, ring).map_err(ReactorError::Attach)?;
        let soft = Soft::new(Rc::clone(&memory), Box::new(AnyDialer), provider);
        #[cfg(feature = "ibv")]
        let verbs = Both::new(soft, Rc::clone(&memory));
        #[cfg(not(feature = "ibv"))]
        let verbs = Both::new(soft);
        let me = group.reactor;
        #[cfg(feature = "ibv")]
        let buffers = pool.lkey();
        let group = PollGroup::new(group, verbs, storage, pool, memory, catalog);
        let own = reactors[me].clone();
        let computing =
            Computing::new(move |queue, outcome| own.send(Letter::Computed { queue, outcome }).is_ok());
        #[cfg_attr(not(feature = "ibv"), expect(unused_mut, reason = "adapters are opened"))]
        let mut reactor = Self {
            me,
            group,
            mailbox,
            post: Post::new(reactors),
            keeper,
            computing,
            #[cfg(feature = "ibv")]
            buffers,
            #[cfg(feature = "ibv")]
            buffers_are_locked: false,
            retire_at: None,
            poll,
            settling: Vec::new(),
        };
        #[cfg(feature = "ibv")]
        reactor.open_adapters(ring)?;
        Ok(reactor)
    }

    /// Has all at hand that a version takes which is to come: its media, and the adapters which new listeners are
    /// served by.
    fn attach(&mut self, ring: &mut Ring, catalog: &Catalog) -> io::Result<()> {
        self.group.storage().attach(catalog, ring)?;
        #[cfg(feature = "ibv")]
        {
            self.share_memory()?;
            self.open_new_adapters(ring, catalog)?;
        }
        Ok(())
    }

    fn open_letter(&mut self, ring: &mut Ring, now: Time, letter: Letter) {
        match letter {
            Letter::Attach { catalog, done } => {
                // What is attached now is not served before the switch.
                self.retire_at = None;
                // Control waits for the answer, unless it has given up.
                let _ = done.send(self.attach(ring, &catalog));
            }
            Letter::Switch { catalog, done } => {
                self.group.on_message(now, Message::Catalog(catalog));
                self.retire_at = Some(now);
                let _ = done.send(Ok(()));
            }
            Letter::Settle(waiting) => self.settling.push(waiting),
            Letter::Survey(asking) => {
                // Who asked may have given up.
                let _ = asking.send(self.group.survey());
            }
            Letter::Adopt { socket, peer, local } => {
                self.adopt(TcpWire::new(socket), peer.into(), local.into());
            }
            Letter::Admit { visitor, peer, local } => self.adopt(ShmWire::accepted(visitor), peer, local),
            #[cfg(feature = "ibv")]
            Letter::Welcome(incoming) => {
                if let Err(error) = self.group.verbs().adopt_from_adapter(*incoming) {
                    tracing::warn!(%error, "a connection over an adapter is dropped");
                }
            }
            #[cfg(feature = "ibv")]
            Letter::Adapter(at) => {
                if let Err(error) = self.open_adapter(ring, at) {
                    tracing::error!(%at, %error, "the RDMA adapter cannot be used");
                }
            }
            Letter::Group(message) => self.group.on_message(now, message),
            Letter::Computed { queue, outcome } => self.group.on_computed(now, queue, outcome),
        }
    }

    fn adopt(&mut self, wire: io::Result<impl Into<AnyWire>>, peer: Address, local: Address) {
        match wire {
            Ok(wire) => self.group.verbs().adopt(wire.into(), peer, local),
            Err(error) => tracing::warn!(%peer, %error, "connection dropped"),
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
        while let Some(message) = self.post.undelivered.pop_front() {
            busy = true;
            self.group.on_undeliverable(now, message);
        }
        while let Some(keep) = self.group.next_keep() {
            busy = true;
            let (uuid, number) = (keep.uuid, keep.number);
            if self.keeper.as_ref().is_none_or(|keeper| keeper.send(keep).is_err()) {
                self.group.on_message(now, Message::Kept { uuid, number, kept: false });
            }
        }
        busy
    }

    fn compute(&mut self, now: Time) {
        while let Some((queue, job)) = self.group.next_job() {
            if let Err(job) = self.computing.submit(queue, job) {
                let outcome = job.run(&mut SystemRandomness);
                self.group.on_computed(now, queue, outcome);
            }
        }
    }

    /// Lets go of media which are not served any more and which no command needs.
    fn retire(&mut self, ring: &mut Ring, now: Time) -> bool {
        if self.retire_at.is_none_or(|at| now < at) {
            return false;
        }
        let catalog = Arc::clone(self.group.catalog());
        let stale = self.group.storage().unserved(&catalog);
        let (busy, idle): (Vec<_>, Vec<_>) = stale.into_iter().partition(|&number| self.group.uses(number));
        let kept = idle.into_iter().filter(|&number| !self.group.storage().detach(number, ring)).count();
        #[cfg(feature = "ibv")]
        if let Err(error) = self.share_memory() {
            tracing::error!(%error, "an adapter does not know all memory that it is to send");
        }
        self.retire_at = (kept + busy.len() > 0).then(|| now + RETIRE_INTERVAL);
        true
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
        #[cfg(feature = "ibv")]
        while let Some(lkey) = self.group.verbs().next_region() {
            ring.register_region(lkey);
        }
        busy |= self.group.turn(now);
        busy |= self.group.storage().backends.pump(ring);
        busy |= self.retire(ring, now);
        if !self.settling.is_empty() && self.group.is_settled() {
            // To let go of them says it.
            self.settling.clear();
        }
        self.compute(now);
        busy |= self.post_letters(now);
        busy |= self.group.verbs().flush(now);
        self.group.verbs().cool(|source, interest| watch(ring, source, interest));
        busy
    }

    fn on_ring(&mut self, _ring: &mut Ring, token: Token, result: i32, _now: Time) {
        match (token.kind, token.qpair) {
            (Kind::Medium, _) => self.group.storage().backends.on_ring(token, result),
            (Kind::Reactor, source::WIRE | source::ADAPTER) => self.group.verbs().on_ready(token),
            (Kind::Reactor, source::MAILBOX) => self.mailbox.on_ring(),
            _ => unreachable!("a completion of nobody here: {token:?}"),
        }
    }

    fn arm(&mut self, ring: &mut Ring) {
        self.group.verbs().arm(|source, interest| watch(ring, source, interest));
        self.mailbox.arm(ring, 0);
    }

    fn deadline(&self) -> Option<Time> {
        let deadlines =
            [self.group.deadline(), self.group.provider().deadline(), self.post.retry, self.retire_at];
        deadlines.into_iter().flatten().min()
    }

    fn poll(&self) -> Poll {
        self.poll
    }

    fn finished(&self) -> bool {
        self.group.is_drained()
    }
}

fn watch(ring: &mut Ring, source: u16, interest: Interest<'_>) {
    let token = source::token(source, interest.slot, interest.generation);
    ring.poll_once(interest.descriptor, interest.events, token);
}

/// The backends of this reactor, each with the medium it serves. A medium is known by itself: another one under
/// the same UUID is another.
struct RingStorage {
    backends: Backends,
    attached: Vec<(OpenMedium, usize)>,
}

impl RingStorage {
    /// Attaches to the media which were not there before.
    fn attach(&mut self, catalog: &Catalog, ring: &mut Ring) -> io::Result<()> {
        for medium in catalog.media() {
            if self.number_of(medium).is_none() {
                self.attached.push((medium.clone(), self.backends.add(medium, ring)?));
            }
        }
        Ok(())
    }

    fn number_of(&self, medium: &OpenMedium) -> Option<usize> {
        self.attached.iter().find(|(attached, _)| attached.is(medium)).map(|(_, number)| *number)
    }

    /// Backends whose medium this version does not name.
    fn unserved(&self, catalog: &Catalog) -> Vec<usize> {
        let served = |medium: &OpenMedium| catalog.media().any(|one| one.is(medium));
        self.attached.iter().filter(|(medium, _)| !served(medium)).map(|(_, number)| *number).collect()
    }

    /// Detaches from a medium, if nothing is under way on it.
    fn detach(&mut self, number: usize, ring: &mut Ring) -> bool {
        if self.backends.in_flight(number) > 0 {
            return false;
        }
        if let Err(error) = self.backends.remove(number, ring) {
            tracing::error!(%error, "a medium stays open");
        }
        self.attached.retain(|(_, attached)| *attached != number);
        true
    }
}

impl Medium for RingStorage {
    fn submit(&mut self, token: Token, namespace: usize, operation: Operation) {
        self.backends.submit(token, namespace, operation);
    }

    fn cancel(&mut self, token: Token) {
        self.backends.cancel(token);
    }

    fn copies(&self, namespace: usize) -> bool {
        self.backends.copies(namespace)
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
        self.number_of(&namespace.medium).expect("a version comes after its media were attached")
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
            let queue = QueueName { reactor: 0, qp: ironside_common::verbs::QpHandle(0), generation: 0 };
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
