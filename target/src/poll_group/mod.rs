//! All connections of one reactor, their controllers and backends: it takes what the provider and the
//! backends report, lets queue pairs and controllers act on it, and says what other reactors have to know.
//!
//! A controller lives on the reactor of its admin queue, which its identifier names, so that any reactor
//! finds the way to it without asking. Its I/O queues may be anywhere.
mod abort;
mod access;
mod admission;
mod authenticate;
mod claims;
mod connect;
mod connection;
mod controllers;
mod lifecycle;
mod message;
mod protection;
mod quiesce;
mod reservations;
mod roster;
mod survey;
mod tally;
#[cfg(test)]
mod tests;
mod throttle;
mod usage;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use ironside_common::auth::Job;
use ironside_common::memory::{Account, Memory, Pool};
use ironside_common::time::Time;
use ironside_common::verbs::{CmEvent, Connections, Event, QpHandle, Sge, TargetVerbs, Token};
use uuid::Uuid;

pub use self::claims::{Claim, CommandName};
use self::claims::{Held, Keeper};
use self::connection::Connection;
use self::controllers::Controllers;
pub use self::message::{HostName, Join, Message, QueueName};
use self::protection::Protecting;
use self::reservations::Reservations;
pub use self::roster::Member;
use self::roster::Roster;
pub use self::survey::{ControllerReport, QueueReport, Survey, Total};
pub use self::tally::{Tally, TallyKey};
pub use self::usage::NamespaceUse;
use self::usage::Usages;
use crate::backend::{Done, Medium, Operation};
use crate::catalog::Catalog;
use crate::limits::{self, Census};
use crate::qpair::{AdminJob, Context, Extent, Fault, Namespace, Qpair, ReservationJob, Services};
use crate::throttle::{Cost, Throttle};

/// How long a connection may go without a Connect, and a drain may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// The backends of one reactor.
pub trait Storage: Medium {
    /// The number of a namespace's backend on this reactor.
    fn backend_of(&mut self, namespace: &crate::catalog::Namespace) -> usize;
}

/// Which reactor this is, and what its queue pairs may cost.
#[derive(Clone, Debug)]
pub struct Settings {
    pub reactor: usize,
    pub reactors: usize,
    /// Most entries of an I/O queue.
    pub queue_depth: u16,
    /// Bytes of in-capsule data.
    pub in_capsule: u32,
    /// RDMA Reads outstanding on one connection at most.
    pub reads: u32,
    /// Bytes one command moves at most.
    pub transfer_max: u32,
    /// Who is there, on all reactors.
    pub census: Census,
    /// How long a drain waits for the media.
    pub drain: Duration,
}

/// Commands which a medium has not answered.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Unanswered {
    pub subsystem: String,
    pub nsid: u32,
    pub commands: usize,
}

/// Backends, and the admin commands which queue pairs hand out while they are called.
#[derive(Debug)]
struct Desk<B> {
    storage: B,
    jobs: VecDeque<AdminJob>,
    /// Blocks a queue pair wants for a command, or needs no more.
    claims: VecDeque<(Token, Extent, bool)>,
    /// Claims, of whichever reactor, which hold back commands here.
    held: Vec<Held>,
    reservations: VecDeque<ReservationJob>,
    /// Commands which wait for their turn from now on, or no more.
    turns: VecDeque<(Token, Uuid, Option<Cost>)>,
}

impl<B: Storage> Medium for Desk<B> {
    fn submit(&mut self, token: Token, namespace: usize, operation: Operation) {
        self.storage.submit(token, namespace, operation);
    }

    fn cancel(&mut self, token: Token) {
        self.storage.cancel(token);
    }

    fn copies(&self, namespace: usize) -> bool {
        self.storage.copies(namespace)
    }

    fn in_place(&self, namespace: usize, offset: u64, length: u32) -> Option<Sge> {
        self.storage.in_place(namespace, offset, length)
    }

    fn poll(&mut self) -> Option<Done> {
        self.storage.poll()
    }
}

impl<B: Storage> Services for Desk<B> {
    fn admin(&mut self, job: AdminJob) {
        self.jobs.push_back(job);
    }

    fn claim(&mut self, token: Token, extent: Extent) {
        self.claims.push_back((token, extent, true));
    }

    fn release(&mut self, token: Token, extent: Extent) {
        self.claims.push_back((token, extent, false));
    }

    fn has_claims(&self) -> bool {
        !self.held.is_empty()
    }

    fn is_claimed(&self, extent: &Extent) -> bool {
        self.held.iter().any(|held| held.overlaps(extent))
    }

    fn await_turn(&mut self, token: Token, namespace: Uuid, cost: Cost) {
        self.turns.push_back((token, namespace, Some(cost)));
    }

    fn give_up_turn(&mut self, token: Token, namespace: Uuid) {
        self.turns.push_back((token, namespace, None));
    }

    fn reserve(&mut self, job: ReservationJob) {
        self.reservations.push_back(job);
    }
}

/// One reactor's share of the target, over provider `V` and backends `B`.
pub struct PollGroup<V, B> {
    settings: Settings,
    verbs: V,
    desk: Desk<B>,
    keeper: Keeper,
    /// The limits of those subsystems whose commands ask this reactor.
    throttle: Throttle,
    pool: Rc<Pool>,
    memory: Rc<Memory>,
    catalog: Arc<Catalog>,
    /// Namespaces of each subsystem, in the catalog's order.
    views: Vec<Rc<[Rc<Namespace>]>>,
    connections: Vec<Option<Connection>>,
    next_generation: u32,
    controllers: Controllers,
    /// Admin queue Connects which wait until old writes of the same host have drained.
    held: Vec<connect::HeldConnect>,
    /// Aborts of commands which have not ended yet.
    aborting: Vec<abort::Aborting>,
    /// Questions of reactors about the writes of a host.
    quiescing: Vec<quiesce::Quiesce>,
    reservations: Reservations,
    /// Commands which protect a namespace.
    protecting: Vec<Protecting>,
    roster: Roster,
    /// What there has been of queues which are gone, and how many queues.
    total: Total,
    tallies: Vec<Tally>,
    usages: Usages,
    /// Commands which had begun when their way to a namespace ended: of which queue and namespace, up to which.
    losing: Vec<(QueueName, u32, u64)>,
    /// Admin queues which were at their end when the last version of the catalog was announced.
    ending: Vec<QueueName>,
    outbox: VecDeque<(usize, Message)>,
    /// What authentications have to compute.
    jobs: VecDeque<(QueueName, Job)>,
    /// Queue pairs which wait for a buffer, whose turn comes first in front; and up to which return of
    /// buffers all of them have been offered one.
    waiting: VecDeque<QueueName>,
    offered: u64,
    /// What each peer holds of the pool by all its connections.
    peers: BTreeMap<NonZeroU64, Weak<Account>>,
    next_check: Time,
    draining: Option<Time>,
    /// What a drain did not wait for any longer.
    given_up: Option<Vec<Unanswered>>,
    scratch: Vec<u8>,
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    pub fn new(
        settings: Settings,
        verbs: V,
        storage: B,
        pool: Rc<Pool>,
        memory: Rc<Memory>,
        catalog: Arc<Catalog>,
    ) -> Self {
        let (reactor, reactors) = (settings.reactor, settings.reactors);
        let mut group = Self {
            settings,
            verbs,
            desk: Desk {
                storage,
                jobs: VecDeque::new(),
                claims: VecDeque::new(),
                held: Vec::new(),
                reservations: VecDeque::new(),
                turns: VecDeque::new(),
            },
            keeper: Keeper::default(),
            throttle: Throttle::default(),
            pool,
            memory,
            catalog: Arc::clone(&catalog),
            views: Vec::new(),
            connections: Vec::new(),
            next_generation: 0,
            controllers: Controllers::new(reactor, reactors),
            held: Vec::new(),
            aborting: Vec::new(),
            quiescing: Vec::new(),
            reservations: Reservations::new(reactor, reactors, &catalog),
            protecting: Vec::new(),
            roster: Roster::default(),
            total: Total::default(),
            tallies: Vec::new(),
            usages: Usages::default(),
            losing: Vec::new(),
            ending: Vec::new(),
            outbox: VecDeque::new(),
            jobs: VecDeque::new(),
            waiting: VecDeque::new(),
            offered: 0,
            peers: BTreeMap::new(),
            next_check: Time::ZERO,
            draining: None,
            given_up: None,
            scratch: Vec::new(),
        };
        group.set_views();
        group.throttle.on_catalog(Time::ZERO, &group.catalog);
        group
    }

    /// Does all that can be done without waiting. Says whether there was anything.
    pub fn turn(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(event) = self.verbs.poll() {
            busy = true;
            self.on_event(now, event);
        }
        while let Some(done) = self.desk.storage.poll() {
            busy = true;
            if self.protecting.is_empty() || !self.on_flushed(now, &done) {
                self.with_qpair(now, QpHandle(done.token.qpair), |qpair, cx| qpair.on_done(cx, done));
            }
        }
        // Only here, so that an answer which lets the next command in does not recurse.
        while let Some(job) = self.desk.jobs.pop_front() {
            busy = true;
            self.on_admin(now, job);
        }
        busy |= self.check_claims();
        while let Some(job) = self.desk.reservations.pop_front() {
            busy = true;
            self.on_reservation(now, job);
        }
        busy |= self.give_turns(now);
        busy |= self.check_aborting(now);
        busy |= self.check_quiescing();
        busy |= self.check_installing();
        if now >= self.next_check || self.draining.is_some() {
            busy |= self.check_deadlines(now);
        }
        busy |= self.wake_waiters(now);
        busy || !self.outbox.is_empty() || !self.jobs.is_empty()
    }

    /// When [`Self::turn`] has something to do even if nothing happens.
    pub fn deadline(&self) -> Option<Time> {
        let quiet = self.connections.iter().all(Option::is_none) && self.draining.is_none();
        let check = (!quiet).then_some(self.next_check);
        [check, self.throttle.deadline()].into_iter().flatten().min()
    }

    /// The next message for another reactor.
    pub fn next_message(&mut self) -> Option<(usize, Message)> {
        self.outbox.pop_front()
    }

    /// True once a drain is over: nobody is connected any more, or a medium has not answered in time.
    pub fn is_drained(&self) -> bool {
        let nobody = || self.connections.iter().all(Option::is_none);
        let is_over = || nobody() && self.reservations.is_idle();
        self.draining.is_some() && (self.given_up.is_some() || is_over())
    }

    /// What a drain which is over has not waited for.
    pub fn given_up(&self) -> Option<&[Unanswered]> {
        self.given_up.as_deref()
    }

    pub fn provider(&self) -> &V {
        &self.verbs
    }

    pub fn verbs(&mut self) -> &mut V {
        &mut self.verbs
    }

    pub fn storage(&mut self) -> &mut B {
        &mut self.desk.storage
    }

    /// The version in force.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Whether a command under way may still come to this backend, or is answered from its memory.
    pub fn uses(&self, backend: usize) -> bool {
        let uses = |connection: &Connection| connection.qpair.uses(backend);
        self.is_flushing(backend) || self.connections.iter().flatten().any(uses)
    }

    /// Connections there are, of all kinds.
    pub fn connections(&self) -> usize {
        self.connections.iter().flatten().count()
    }

    /// Controllers which live here.
    pub fn controllers(&self) -> usize {
        self.controllers.count()
    }

    /// A message of another reactor, or of control.
    pub fn on_message(&mut self, now: Time, message: Message) {
        match message {
            Message::Join(join) => self.on_join(now, *join),
            Message::Joined { queue, result } => self.on_joined(now, queue, result),
            Message::Left { cntlid, queue } => self.controllers.left(cntlid, queue),
            Message::End { queue, why } => {
                if self.named(queue).is_some() {
                    self.end(now, queue.qp, Fault::Ended(why));
                }
            }
            Message::Quiesce { host, asking } => self.begin_quiesce(&host, asking),
            Message::Quiesced { asking } => self.on_quiesced(now, asking),
            Message::GaveUp { asking } => self.quiescing.retain(|quiesce| quiesce.asking != asking),
            Message::Abort { queue, cid, asker } => self.on_abort(now, queue, cid, asker),
            Message::Aborted { asker, aborted } => self.on_aborted(now, asker, aborted),
            Message::Reserve(reserve) => self.on_reserve(*reserve),
            Message::Reserved { asker, status } => self.on_reserved(now, asker, status),
            Message::Kept { uuid, number, kept } => self.on_kept(uuid, number, kept),
            Message::Install(install) => self.on_install(now, install),
            Message::Installed { uuid, number } => self.on_installed(uuid, number),
            Message::Notify { uuid, notices } => self.on_notify(now, uuid, &notices),
            Message::Show { uuid } => self.on_show(now, uuid),
            Message::Appeared { cntlid, member } => self.roster.appeared(cntlid, *member),
            Message::Vanished { cntlid } => self.roster.vanished(cntlid),
            Message::Catalog(catalog) => self.on_catalog(now, catalog),
            Message::Announce => self.announce(now),
            Message::Drain => self.drain(now),
            Message::Enlist { queue, host, entries } => self.throttle.enlist(now, queue, host, entries),
            Message::Ask(ask) => self.throttle.ask(now, ask),
            Message::Turn(ask) => self.on_turn(now, ask),
            Message::Withdraw { namespace, name } => self.throttle.withdraw(now, namespace, name),
            Message::GiveBack(ask) => self.throttle.give_back(now, &ask),
            Message::Forget(queue) => self.throttle.forget(now, queue),
            Message::Claim(claim) => self.on_claim(claim),
            Message::Hold(claim) => self.on_hold(claim),
            Message::Clear(name) => self.on_clear(name),
            Message::Granted(name) => self.on_granted(now, name),
            Message::Release(claim) => self.on_release(claim),
            Message::Resume(name) => self.on_resume(now, name),
        }
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::Received(received) => {
                let qp = received.qp;
                self.with_qpair(now, qp, |qpair, cx| qpair.on_received(cx, received));
            }
            Event::Completed(wc) => self.with_qpair(now, wc.qp, |qpair, cx| qpair.on_wc(cx, wc)),
            Event::Connection(event) => match *event {
                CmEvent::Request(request) => self.on_request(now, request),
                CmEvent::Disconnected { qp, reason } => self.on_disconnected(now, qp, &reason),
                CmEvent::Established { .. } | CmEvent::Refused { .. } => {
                    unreachable!("a target does not connect")
                }
            },
        }
    }

    /// Calls into one queue pair, then sees to whatever came of it. Buffers which have just come back are for
    /// those who wait, if anybody does; what they were offered and could not take is for all.
    fn with_qpair(
        &mut self,
        now: Time,
        qp: QpHandle,
        act: impl FnOnce(&mut Qpair, &mut Context<'_, V, Desk<B>>),
    ) {
        let offered = (!self.waiting.is_empty()).then_some(self.offered);
        self.with_buffers(now, qp, (u32::MAX, offered), act);
    }

    /// As [`Self::with_qpair`], for up to so many buffers; says how many it has left.
    fn with_buffers(
        &mut self,
        now: Time,
        qp: QpHandle,
        (buffers, offered): (u32, Option<u64>),
        act: impl FnOnce(&mut Qpair, &mut Context<'_, V, Desk<B>>),
    ) -> u32 {
        let Self { connections, verbs, desk, pool, memory, .. } = self;
        let connection = connections.get_mut(usize::from(qp.0)).and_then(Option::as_mut);
        let connection = connection.expect("only a queue pair of ours is reported about");
        let mut cx = Context { verbs, services: desk, pool, memory, buffers, offered, now };
        act(&mut connection.qpair, &mut cx);
        let left = cx.buffers;
        connection.publish_counts();
        if connection.qpair.waits_for_buffer() && !connection.waiting {
            connection.waiting = true;
            let (reactor, generation) = (self.settings.reactor, connection.generation);
            self.waiting.push_back(QueueName { reactor, qp, generation });
        }
        let (generation, is_at_its_end) = (connection.generation, connection.qpair.fault().is_some());
        if !self.desk.claims.is_empty() {
            self.pass_claims_on(qp, generation);
        }
        if !self.desk.turns.is_empty() {
            self.pass_asks_on(qp, generation);
        }
        if is_at_its_end {
            self.settle(now, qp);
        }
        left
    }

    /// When buffers have come back, those who wait get one each, in turn, until none is left that serves anybody. Whoever
    /// got one is the last then; whoever was offered what does not fit keeps its place. Says whether somebody got one.
    fn wake_waiters(&mut self, now: Time) -> bool {
        if self.waiting.is_empty() || self.offered == self.pool.returned() {
            return false;
        }
        let (mut any, mut index) = (false, 0);
        while let Some(&queue) = self.waiting.get(index) {
            let served = self.named(queue).is_some()
                && self.with_buffers(now, queue.qp, (1, None), |qpair, cx| qpair.advance(cx)) == 0;
            any |= served;
            let waits = self.named(queue).is_some_and(|connection| {
                connection.waiting = connection.qpair.waits_for_buffer();
                connection.waiting
            });
            if waits && !served {
                index += 1;
                continue;
            }
            self.waiting.remove(index);
            if waits {
                self.waiting.push_back(queue);
            }
        }
        // What was taken and given back meanwhile has been offered too.
        self.offered = self.pool.returned();
        any
    }

    /// The account of a peer's connections together.
    fn peer_account(&mut self, peer: IpAddr) -> Rc<Account> {
        let network = limits::network(peer);
        let known = self.peers.get(&network).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let account = self.pool.account(None);
            self.peers.insert(network, Rc::downgrade(&account));
            account
        })
    }

    fn connection(&mut self, qp: QpHandle) -> Option<&mut Connection> {
        self.connections.get_mut(usize::from(qp.0))?.as_mut()
    }

    /// The connection of a queue named by another reactor, unless it is gone.
    fn named(&mut self, queue: QueueName) -> Option<&mut Connection> {
        self.connection(queue.qp).filter(|connection| connection.generation == queue.generation)
    }

    fn name(&self, qp: QpHandle, generation: u32) -> QueueName {
        QueueName { reactor: self.settings.reactor, qp, generation }
    }

    /// The name of the queue a token of which is given, unless its connection is gone.
    fn queue_of(&mut self, token: Token) -> Option<QueueName> {
        let qp = QpHandle(token.qpair);
        let generation = self.connection(qp)?.generation;
        Some(self.name(qp, generation))
    }

    /// To every reactor, this one too.
    fn tell_all(&mut self, message: &Message) {
        for reactor in 0..self.settings.reactors {
            self.send(reactor, message.clone());
        }
    }

    /// To another reactor, or to ourselves at the next occasion.
    fn send(&mut self, reactor: usize, message: Message) {
        self.outbox.push_back((reactor, message));
    }
}

/// The handle of the connection at this place of the list.
fn handle(index: usize) -> QpHandle {
    QpHandle(u16::try_from(index).expect("handles are numbered by a u16"))
}
