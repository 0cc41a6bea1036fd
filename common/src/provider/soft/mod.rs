//! Software RDMA: the verbs traits over one [`crate::iwarp::Stream`] per connection and a [`Wire`] under it.
//!
//! A connection is *hot* while bytes move: each turn tries it. Before sleep, and when many are idle, it
//! goes *cold*: its owner polls the descriptor once, and [`Soft::on_ready`] makes it hot again.
mod connection;
mod linger;
mod pump;
mod spares;
mod startup;
#[cfg(test)]
#[cfg(feature = "sim")]
mod tests;
mod verbs;
mod wire;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use nix::poll::PollFlags;

use crate::iwarp::fpdu::FPDU_MAX;
use crate::iwarp::{LocalMemory, Outgoing};
use crate::memory::Memory;
use crate::time::Time;
use crate::verbs::{Address, CmEvent, Event, QpHandle, Registration, Sge};
use connection::{Connection, Phase, Polled, Table};
use linger::Lingering;
use spares::Spares;

pub use wire::{Dialer, Wire};

/// How the software provider is to behave.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether we ask for CRC32C. It is used when either side asks.
    pub crc: bool,
    /// Whether a connect of ours fails when the peer asks.
    pub refuse_crc: bool,
    /// The largest ULPDU to send; nothing means what one TCP segment takes.
    pub ulpdu_max: Option<u16>,
    /// RDMA Reads a peer may have outstanding towards us at most (our IRD).
    pub reads: u16,
    /// How buffers are lent to peers.
    pub registration: Registration,
    /// Where the unpredictable part of keys comes from.
    pub seed: u64,
    /// How long the peer has for each message and each RDMA Read, one after another: to take the one whole, to
    /// answer the other whole.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            crc: true,
            refuse_crc: false,
            ulpdu_max: None,
            reads: 128,
            registration: Registration::Window,
            seed: 0,
            patience: Duration::from_secs(15),
        }
    }
}

/// One source of readiness to poll once, as [`Soft::arm`] asks for it.
#[derive(Clone, Copy, Debug)]
pub struct Interest<'a> {
    pub descriptor: BorrowedFd<'a>,
    pub events: PollFlags,
    /// To be handed back to [`Soft::on_ready`].
    pub slot: u16,
    pub generation: u16,
}

/// Bytes received at once from one connection: they are copied on while they are in the cache nearest to
/// the core. Half as much means more calls, four times as much costs half the speed.
const STAGED_AT_ONCE: usize = 64 * 1024;
/// Room for what the longest FPDU left over, before the place where new bytes come. That place is the
/// beginning of a cache line, which the kernel's copy likes best.
const HEADROOM: usize = FPDU_MAX.next_multiple_of(CACHE_LINE);
const CACHE_LINE: usize = 64;
/// How often deadlines are looked at while the loop is busy.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a connection has received nothing when it gives its memory back.
const REST_AFTER: Duration = Duration::from_secs(5);
/// How long a peer which accepted may say nothing before it is nudged. Linux's siw overlooks an FPDU that
/// comes between its MPA Reply and the moment it begins to listen, until more comes.
const NUDGE_INTERVAL: Duration = Duration::from_millis(250);
/// With so many hot connections or fewer, trying them all costs less than polling them.
const HOT_FREELY: usize = 8;
/// Turns in vain after which a connection goes cold, if there are more.
const COLD_AFTER: u32 = 64;

/// Where bytes come first, whichever connection they are for.
struct Staging {
    bytes: Box<[u8]>,
    start: usize,
}

impl Staging {
    fn new() -> Self {
        let bytes = vec![0; CACHE_LINE + HEADROOM + STAGED_AT_ONCE].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(CACHE_LINE) + HEADROOM;
        Self { bytes, start }
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + STAGED_AT_ONCE]
    }

    /// The first `received` bytes of the room, behind what was left over before.
    fn join(&mut self, leftover: &[u8], received: usize) -> &[u8] {
        let begin = self.start - leftover.len();
        self.bytes[begin..self.start].copy_from_slice(leftover);
        &self.bytes[begin..self.start + received]
    }
}

/// The software provider of one reactor.
pub struct Soft<W> {
    memory: Rc<Memory>,
    dialer: Box<dyn Dialer<W>>,
    settings: Settings,
    now: Time,
    connections: Table<W>,
    /// Each handle is named at most once in each of these, and may be free or another connection's by now.
    hot: Vec<QpHandle>,
    dirty: Vec<QpHandle>,
    flushing: Vec<QpHandle>,
    /// Those which went cold last and are owed one more look.
    cooled: Vec<QpHandle>,
    /// Those on this machine whose descriptors may not be polled.
    unwatched: Vec<QpHandle>,
    lingering: Lingering<W>,
    events: VecDeque<Event>,
    staging: Staging,
    spares: Spares,
    next_look: Time,
    /// Streams there were, so that no two get the same keys.
    streams: u64,
}

impl<W: Wire> Soft<W> {
    #[must_use]
    pub fn new(memory: Rc<Memory>, dialer: Box<dyn Dialer<W>>, settings: Settings) -> Self {
        Self {
            memory,
            dialer,
            settings,
            now: Time::ZERO,
            connections: Table::new(),
            hot: Vec::new(),
            dirty: Vec::new(),
            flushing: Vec::new(),
            cooled: Vec::new(),
            unwatched: Vec::new(),
            lingering: Lingering::new(),
            events: VecDeque::new(),
            staging: Staging::new(),
            spares: Spares::default(),
            next_look: Time::ZERO,
            streams: 0,
        }
    }

    /// How buffers are lent to peers: to be said before anything is connected.
    pub fn set_registration(&mut self, registration: Registration) {
        self.settings.registration = registration;
    }

    /// Whether a peer reaches any of a region of ours.
    #[must_use]
    pub fn exposes(&self, lkey: u32) -> bool {
        self.connections.iter().any(|(_, connection)| connection.exposes(lkey))
    }

    /// How many connections there may be, fewer than handles name.
    pub(in crate::provider) fn set_most(&mut self, most: u16) {
        self.connections.most = most;
    }

    /// Queue pairs there are, ended ones that were not destroyed among them.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        self.connections.iter().count()
    }

    /// The wires of connections which have not ended, for tests which look behind them.
    #[cfg(test)]
    pub(in crate::provider) fn wires(&self) -> impl Iterator<Item = (QpHandle, &W)> {
        self.connections.iter().filter_map(|(qp, connection)| Some((qp, connection.wire.as_ref()?)))
    }

    /// When [`Self::pump`] has to be called even if nothing arrives.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let patience = self.settings.patience;
        let due = self.connections.iter().filter_map(|(_, connection)| {
            let deadline = connection.deadline(patience).map(|(deadline, _)| deadline);
            deadline.into_iter().chain(connection.nudge_at()).chain(connection.rest_at()).min()
        });
        // Deadlines are looked at now and then, so there is no point in coming earlier.
        let due = due.map(|deadline| deadline.max(self.next_look)).min();
        due.into_iter().chain(self.lingering.deadline()).min()
    }

    /// To be called at each turn: of many hot connections, those that have been idle for long go cold, and
    /// `poll` is asked for each once.
    pub fn cool(&mut self, mut poll: impl FnMut(Interest<'_>)) {
        while let Some(qp) = self.unwatched.pop() {
            self.watch(qp, &mut poll);
        }
        if self.hot.len() > HOT_FREELY {
            self.go_cold(COLD_AFTER, poll);
        }
    }

    /// Before sleep: every connection goes cold, and `poll` is asked once for each which is not polled yet.
    /// The next [`Self::pump`] looks at all of them once more.
    pub fn arm(&mut self, poll: impl FnMut(Interest<'_>)) {
        self.go_cold(0, poll);
    }

    fn go_cold(&mut self, idle_turns: u32, mut poll: impl FnMut(Interest<'_>)) {
        let mut index = 0;
        while let Some(&qp) = self.hot.get(index) {
            let Some(connection) = self.connections.find(qp) else {
                self.unlist_hot(index);
                continue;
            };
            if connection.idle_turns < idle_turns || !connection.has_descriptor() {
                index += 1;
                continue;
            }
            self.watch(qp, &mut poll);
            let connection = self.connections.get_mut(qp);
            let for_room = connection.awaits_writable();
            if let Some(wire) = &mut connection.wire {
                wire.rest(for_room);
            }
            self.unlist_hot(index);
            self.cooled.push(qp);
        }
    }

    /// Has the descriptor of a connection polled, unless it is.
    fn watch(&mut self, qp: QpHandle, poll: &mut impl FnMut(Interest<'_>)) {
        let Some(connection) = self.connections.find(qp) else { return };
        let Some(wire) = connection.wire.as_ref() else { return };
        let writable = !wire.stays_on_machine() && connection.awaits_writable();
        if connection.polled.is_some_and(|polled| polled.writable || !writable) {
            return;
        }
        let generation = self.connections.next_generation(qp);
        let connection = self.connections.get_mut(qp);
        let Some(descriptor) = connection.wire.as_ref().and_then(Wire::descriptor) else { return };
        connection.polled = Some(Polled { writable });
        let out = if writable { PollFlags::POLLOUT } else { PollFlags::empty() };
        poll(Interest { descriptor, events: PollFlags::POLLIN | out, slot: qp.0, generation });
    }

    /// Takes one off the list of hot connections; another takes its place.
    fn unlist_hot(&mut self, index: usize) {
        let qp = self.hot.swap_remove(index);
        self.connections.listed(qp).hot = false;
    }

    /// What [`Self::arm`] or [`Self::cool`] asked for has come: the connection is hot again.
    pub fn on_ready(&mut self, slot: u16, generation: u16) {
        let qp = QpHandle(slot);
        let current = self.connections.generation(qp) == Some(generation);
        let Some(connection) = self.connections.find(qp) else { return };
        if current {
            connection.polled = None;
            if let Some(wire) = connection.wire.as_mut().filter(|wire| wire.stays_on_machine()) {
                wire.woken();
                self.unwatched.push(qp);
            }
        }
        // To look in vain, for a poll that is long superseded, costs next to nothing.
        self.heat(qp);
    }

    fn heat(&mut self, qp: QpHandle) {
        let connection = self.connections.get_mut(qp);
        connection.idle_turns = 0;
        let receiving = connection.is_receiving();
        let listed = self.connections.listed(qp);
        if receiving && !listed.hot {
            listed.hot = true;
            self.hot.push(qp);
        }
    }

    /// There may be something to send.
    fn soil(&mut self, qp: QpHandle) {
        let listed = self.connections.listed(qp);
        if !listed.dirty {
            listed.dirty = true;
            self.dirty.push(qp);
        }
    }

    fn insert(&mut self, connection: Connection<W>) -> QpHandle {
        let is_to_be_watched = connection.wire.as_ref().is_some_and(Wire::stays_on_machine);
        let qp = self.connections.insert(connection);
        if is_to_be_watched {
            self.unwatched.push(qp);
        }
        self.heat(qp);
        qp
    }

    fn tell(&mut self, event: CmEvent) {
        self.events.push_back(Event::Connection(Box::new(event)));
    }

    fn linger(&mut self, wire: W, outgoing: Outgoing) {
        self.lingering.add(wire, outgoing, self.now, &self.memory, self.staging.room());
    }

    /// Ends a connection in full operation, once: everything completes, then its end is told. The peer may
    /// still be told why, unless it has gone.
    fn end(&mut self, qp: QpHandle, reason: String, peer_gone: bool) {
        let connection = self.connections.get_mut(qp);
        let Phase::Full(full) = &mut connection.phase else { return };
        let Some(wire) = connection.wire.take() else { return };
        full.stream.close(&*self.memory);
        self.spares.leave(full);
        let outgoing = full.stream.take_outgoing();
        pump::drain(qp, full, &mut self.events);
        tracing::debug!(qp = qp.0, peer = %connection.peer, reason, "connection ended");
        if !peer_gone {
            self.linger(wire, outgoing);
        }
        self.tell(CmEvent::Disconnected { qp, reason });
    }
}

impl LocalMemory for Memory {
    fn write(&self, to: Sge, bytes: &[u8]) {
        Self::write(self, to, bytes);
    }

    fn read(&self, from: Sge, into: &mut [u8]) {
        Self::read(self, from, into);
    }
}

/// An endpoint of nothing, for what has no address of its own.
const NOWHERE: Address = Address::Ip(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)));
