//! RDMA adapters as one reactor uses them: connections by rdma_cm, and the events of both. How work is posted is told
//! in `verbs`.
//!
//! Completions are polled at each turn. Connection management is polled by descriptor, always, since it has little to
//! say; completion channels only before sleep, when they are armed.
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use nix::poll::PollFlags;
use rdma_sys::{ibv_context, ibv_wc, rdma_cm_event_type};
use slab::Slab;

use super::adapter::Adapter;
use super::cm::{CmId, EventChannel, Happened, Incoming};
use super::connection::{Connection, Full, Link, Phase, Receiving};
use super::lending::{Lending, Role};
use super::library::Library;
use super::queue_pair::{Outcome, Owner};
use super::shared::{self, SharedReceives};
use crate::memory::Memory;
use crate::provider::soft::Interest;
use crate::time::Time;
use crate::verbs::{CmEvent, CmRequest, Event, QpHandle, Received, Registration, Wc, WcStatus};

/// How long an adapter has to flush what was posted. One that was taken away may never do it.
const FLUSH_DEADLINE: Duration = Duration::from_secs(2);
/// How often it is looked whether registered memory is still in use.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Contexts of identifiers: below are connections by their handles, from here on adapters by their numbers.
const ADAPTERS: usize = 1 << 16;
/// The interest in connection management; adapters follow.
const MANAGEMENT: u16 = 0;
/// Connections there may be: half of what handles name, since another provider may have the other half.
const CONNECTIONS: usize = 1 << 15;

/// The RDMA adapters of this machine, as one reactor uses them. Connections go before adapters, and all identifiers
/// before their channel.
pub struct Ibv {
    pub(super) library: &'static Library,
    pub(super) memory: Rc<Memory>,
    /// Regions that work of every connection names, which each adapter knows before.
    shared: Vec<u32>,
    role: Role,
    pub(super) connections: Slab<Connection>,
    pub(super) adapters: Slab<Adapter>,
    pub(super) channel: EventChannel,
    pub(super) events: VecDeque<Event>,
    now: Time,
    /// Connections which have ended, and until when their work has time to be flushed.
    ending: VecDeque<(Time, Owner)>,
    /// Connections whose queue pair was found broken in this turn.
    broken: Vec<Owner>,
    /// Connections there were, so that one is told from another under its handle.
    generations: u16,
    next_sweep: Time,
    /// Regions which had lost their number when registrations were last looked through.
    swept: u64,
    polled: bool,
    readable: bool,
    /// Adapters whose descriptor is polled, by number.
    polled_adapters: Vec<bool>,
}

impl Ibv {
    /// # Errors
    /// When the system has no channel for connection management.
    pub fn new(library: &'static Library, memory: Rc<Memory>) -> io::Result<Self> {
        let channel = EventChannel::new(library)?;
        Ok(Self {
            library,
            memory,
            shared: Vec::new(),
            role: Role::Target,
            connections: Slab::new(),
            adapters: Slab::new(),
            channel,
            events: VecDeque::new(),
            now: Time::ZERO,
            ending: VecDeque::new(),
            broken: Vec::new(),
            generations: 0,
            next_sweep: Time::ZERO,
            swept: 0,
            polled: false,
            readable: false,
            polled_adapters: Vec::new(),
        })
    }

    /// For a host, which lends its buffers as asked, or in the safest way that an adapter has.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn for_host(
        library: &'static Library,
        memory: Rc<Memory>,
        registration: Option<Registration>,
    ) -> io::Result<Self> {
        Ok(Self { role: Role::Host(registration), ..Self::new(library, memory)? })
    }

    /// From now on these are the regions that work of every connection names: each adapter knows them, those which are
    /// open and those which are opened later. What is new to an adapter is registered with it, which takes a while.
    ///
    /// # Errors
    /// If an adapter takes one of them not. Then it is as before.
    pub fn share(&mut self, regions: Vec<u32>) -> io::Result<()> {
        for (_, adapter) in &mut self.adapters {
            if !adapter.is_removed() {
                regions.iter().try_for_each(|&lkey| adapter.share(lkey))?;
            }
        }
        self.shared = regions;
        Ok(())
    }

    /// Takes a connect request which a listener got. A [`CmEvent::Request`] follows.
    pub fn adopt(&mut self, incoming: Incoming) {
        let Incoming { id, channel, peer, local, private_data, reads } = incoming;
        if let Err(error) = id.migrate(&self.channel) {
            drop(id);
            return tracing::warn!(%peer, %error, "connection dropped");
        }
        drop(channel);
        let Some(qp) = self.insert(id, peer, local, Phase::Asked { reads }) else {
            return tracing::warn!(%peer, "connection refused: {CONNECTIONS} are all that one reactor serves");
        };
        self.tell(CmEvent::Request(CmRequest {
            qp,
            peer: peer.into(),
            local: local.into(),
            private_data,
            reads: reads.into(),
        }));
    }

    /// Gives a connection its handle, if one is left.
    pub(super) fn insert(
        &mut self,
        id: CmId,
        peer: SocketAddr,
        local: SocketAddr,
        phase: Phase,
    ) -> Option<QpHandle> {
        let entry = self.connections.vacant_entry();
        let handle = u16::try_from(entry.key()).ok().filter(|_| entry.key() < CONNECTIONS);
        let qp = QpHandle(handle?);
        id.set_context(entry.key());
        self.generations = self.generations.wrapping_add(1);
        let owner = Owner { qp, generation: self.generations };
        entry.insert(Connection { lending: Lending::Nothing, id, peer, local, owner, phase });
        Some(qp)
    }

    /// Takes what adapters and connection management have to say. Says whether there was anything.
    pub fn pump(&mut self, now: Time) -> bool {
        self.now = now;
        let before = self.events.len();
        if self.readable {
            self.readable = false;
            self.manage();
        }
        let mut busy = false;
        for number in 0..self.adapters.capacity() {
            busy |= self.poll_adapter(number);
        }
        self.end_broken();
        self.give_up_flushing();
        let unregistered = self.memory.unregistered();
        if now >= self.next_sweep || unregistered != self.swept {
            (self.next_sweep, self.swept) = (now + SWEEP_INTERVAL, unregistered);
            self.adapters.iter_mut().for_each(|(_, adapter)| adapter.sweep());
            for (_, connection) in &mut self.connections {
                connection.sweep(&self.memory);
            }
        }
        busy || self.events.len() > before
    }

    /// A region in which messages lie from now on and are locked in memory, told of once. Whoever hands it on to the
    /// kernel may register it there too.
    pub fn next_region(&mut self) -> Option<u32> {
        self.adapters.iter_mut().find_map(|(_, adapter)| adapter.next_region())
    }

    /// When [`Self::pump`] has to be called even if nothing arrives.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.ending.front().map(|(until, _)| *until)
    }

    /// To be called at each turn: `poll` is asked for connection management, unless it is polled already.
    pub fn watch(&mut self, mut poll: impl FnMut(Interest<'_>)) {
        if !self.polled {
            self.polled = true;
            let descriptor = self.channel.as_fd();
            poll(Interest { descriptor, events: PollFlags::POLLIN, slot: MANAGEMENT, generation: 0 });
        }
    }

    /// Before sleep: completion queues are armed, and `poll` is asked once for each adapter which is not polled yet.
    /// What has completed before is found by the next [`Self::pump`].
    pub fn arm(&mut self, mut poll: impl FnMut(Interest<'_>)) {
        for (number, adapter) in &mut self.adapters {
            adapter.arm();
            if self.polled_adapters.len() <= number {
                self.polled_adapters.resize(number + 1, false);
            }
            if !std::mem::replace(&mut self.polled_adapters[number], true) {
                let slot = MANAGEMENT + 1 + u16::try_from(number).expect("adapters are few");
                let descriptor = adapter.as_fd();
                poll(Interest { descriptor, events: PollFlags::POLLIN, slot, generation: 0 });
            }
        }
    }

    /// What [`Self::watch`] or [`Self::arm`] asked for has come.
    pub fn on_ready(&mut self, slot: u16) {
        if slot == MANAGEMENT {
            (self.polled, self.readable) = (false, true);
            return;
        }
        let number = usize::from(slot - MANAGEMENT - 1);
        self.polled_adapters[number] = false;
        if let Some(adapter) = self.adapters.get_mut(number) {
            adapter.disarm();
        }
    }

    /// Takes what connection management has to say.
    fn manage(&mut self) {
        while let Some(happened) = self.channel.next() {
            match happened.context.checked_sub(ADAPTERS) {
                Some(number) => self.on_adapter_event(number, &happened),
                None => self.on_connection_event(&happened),
            }
        }
    }

    fn on_connection_event(&mut self, happened: &Happened) {
        let Ok(handle) = u16::try_from(happened.context) else { return };
        let connection = self.connections.get(usize::from(handle));
        if connection.is_some_and(|connection| matches!(connection.phase, Phase::Dialing(_))) {
            return self.on_dialing_event(QpHandle(handle), happened);
        }
        match happened.event {
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED
            | rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT => {}
            _ => self.end(QpHandle(handle), &happened.to_string()),
        }
    }

    fn on_adapter_event(&mut self, number: usize, happened: &Happened) {
        if happened.event != rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL {
            return tracing::debug!(%happened, "an adapter has something to say");
        }
        let Some(adapter) = self.adapters.get_mut(number) else { return };
        tracing::warn!("an adapter is taken away; its connections end");
        adapter.remove();
        let affected: Vec<QpHandle> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.adapter() == Some(number))
            .map(|(_, connection)| connection.owner.qp)
            .collect();
        affected.into_iter().for_each(|qp| self.end(qp, &happened.to_string()));
        self.drop_if_removed(number);
    }

    /// A removed adapter goes with its last connection.
    pub(super) fn drop_if_removed(&mut self, number: usize) {
        if self.adapters.get(number).is_some_and(|adapter| adapter.is_over()) {
            drop(self.adapters.remove(number));
            // Its descriptor has gone; one that takes its number has another.
            if let Some(polled) = self.polled_adapters.get_mut(number) {
                *polled = false;
            }
        }
    }

    /// Connections whose work failed or was flushed end, unless connection management knows better why.
    fn end_broken(&mut self) {
        if self.broken.is_empty() {
            return;
        }
        self.manage();
        while let Some(owner) = self.broken.pop() {
            if self.find(owner).is_some() {
                self.end(owner.qp, "the adapter flushed its work");
            }
        }
    }

    /// Ends a connection, once: its work is flushed by the adapter.
    pub(super) fn end(&mut self, qp: QpHandle, reason: &str) {
        let Some(connection) = self.connections.get_mut(usize::from(qp.0)) else { return };
        let Phase::Full(full) = &mut connection.phase else { return };
        if full.ended {
            return;
        }
        full.ended = true;
        if let Err(error) = connection.id.disconnect() {
            tracing::debug!(peer = %connection.peer, %error, "an adapter does not disconnect");
        }
        let reason = full.trouble.take().unwrap_or_else(|| reason.to_owned());
        self.ending.push_back((self.now + FLUSH_DEADLINE, connection.owner));
        self.tell(CmEvent::Disconnected { qp, reason });
    }

    /// Where an adapter does not flush, its queue pairs are destroyed, after which nothing uses their memory.
    fn give_up_flushing(&mut self) {
        while let Some(&(until, owner)) = self.ending.front()
            && self.now >= until
        {
            self.ending.pop_front();
            if self.find(owner).is_some() {
                self.destroy_queue_pair(owner.qp);
            }
        }
    }

    /// Takes what has completed on an adapter, a batch of each queue at most, and says whether there was anything.
    fn poll_adapter(&mut self, number: usize) -> bool {
        let Self { connections, events, broken, memory, .. } = self;
        let Some(adapter) = self.adapters.get_mut(number) else { return false };
        let mut route = Route { connections, events, broken, memory };
        adapter.poll(|completion, shared| route.take(completion, shared))
    }

    /// Nobody reaches memory by this connection any more. What had come was taken before, since some adapters forget
    /// with a queue pair what has come by it, and which receives it took of those that are shared.
    pub(super) fn destroy_queue_pair(&mut self, qp: QpHandle) {
        let connection = &self.connections[usize::from(qp.0)];
        if let Some(number) = connection.adapter() {
            while self.poll_adapter(number) {}
        }
        self.connections[usize::from(qp.0)].destroy_queue_pair();
        self.unlink(qp);
    }

    /// Takes a connection off its adapter once its queue pair is gone: what has completed is told, what has not
    /// completes as flushed, and there is room for others.
    pub(super) fn unlink(&mut self, qp: QpHandle) {
        let Phase::Full(full) = &self.connections[usize::from(qp.0)].phase else { return };
        let Some(number) = full.link.as_ref().map(|link| link.adapter) else { return };
        while self.poll_adapter(number) {}
        let Phase::Full(full) = &mut self.connections[usize::from(qp.0)].phase else { return };
        let Some(mut link) = full.link.take() else { return };
        for token in link.queue.abandon() {
            self.events.push_back(Event::Completed(Wc { qp, token, status: WcStatus::Flushed }));
        }
        if let Some(receives) = &full.receives {
            self.adapters[number].forgo(receives, Some(link.queue.number()));
        }
        // With it go its sinks, before another connection may use their memory.
        drop(link.sinks);
        self.adapters[number].release(link.reserved);
        self.adapters[number].connections -= 1;
        self.drop_if_removed(number);
    }

    fn find(&mut self, owner: Owner) -> Option<&mut Connection> {
        self.connections.get_mut(usize::from(owner.qp.0)).filter(|connection| connection.owner.is(owner))
    }

    /// The number of the adapter which a connection is bound to; it is made known here the first time.
    pub(super) fn adapter_of(&mut self, qp: QpHandle) -> io::Result<usize> {
        let connection = &self.connections[usize::from(qp.0)];
        let context = connection.id.verbs();
        if let Some(number) = self.number_of(context) {
            return Ok(number);
        }
        let number = self.open(connection.local)?;
        if !self.adapters[number].is(context) {
            return Err(io::Error::other(
                "two adapters own its address; remove one of them from the interface",
            ));
        }
        Ok(number)
    }

    /// Gets at the adapter which owns an address, and registers with it what connections share: that takes a while.
    /// Says its number.
    ///
    /// # Errors
    /// If no adapter does, or it has not what is needed.
    pub fn open(&mut self, at: SocketAddr) -> io::Result<usize> {
        let anchor = CmId::new(self.library, &self.channel)?;
        anchor.bind(SocketAddr::new(at.ip(), 0))?;
        let context = anchor.verbs();
        if context.is_null() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        if let Some(number) = self.number_of(context) {
            return Ok(number);
        }
        let entry = self.adapters.vacant_entry();
        let number = entry.key();
        anchor.set_context(ADAPTERS + number);
        let mut adapter = Adapter::new(self.library, anchor, Rc::clone(&self.memory), self.role)?;
        self.shared.iter().try_for_each(|&lkey| adapter.share(lkey))?;
        entry.insert(adapter);
        Ok(number)
    }

    fn number_of(&self, context: *mut ibv_context) -> Option<usize> {
        let known = self.adapters.iter().find(|(_, adapter)| adapter.is(context) && !adapter.is_removed());
        known.map(|(number, _)| number)
    }

    pub(super) fn tell(&mut self, event: CmEvent) {
        self.events.push_back(Event::Connection(Box::new(event)));
    }
}

impl Connection {
    /// The adapter it goes by.
    fn adapter(&self) -> Option<usize> {
        match &self.phase {
            Phase::Full(full) => full.link.as_ref().map(|link| link.adapter),
            Phase::Dialing(wish) => wish.full.as_ref()?.link.as_ref().map(|link| link.adapter),
            Phase::Asked { .. } => None,
        }
    }
}

/// Where completions go.
struct Route<'a> {
    connections: &'a mut Slab<Connection>,
    events: &'a mut VecDeque<Event>,
    broken: &'a mut Vec<Owner>,
    memory: &'a Memory,
}

impl Route<'_> {
    /// Tells what a completion means to its connection, if that is still there.
    fn take(&mut self, completion: &ibv_wc, shared: Option<&mut SharedReceives>) {
        match (shared::number(completion), shared) {
            (Some(buffer), Some(shared)) => {
                let owner = shared.on_completion(completion);
                let lent = owner.is_some_and(|owner| self.tell(owner, completion, Some(&mut *shared)));
                if !lent {
                    shared.post(buffer);
                }
            }
            _ => drop(self.tell(Owner::of(completion), completion, None)),
        }
    }

    /// Says whether a receive that is shared is taken care of.
    fn tell(&mut self, owner: Owner, completion: &ibv_wc, mut shared: Option<&mut SharedReceives>) -> bool {
        let Some(connection) = self.connections.get_mut(usize::from(owner.qp.0)) else { return false };
        let Connection { owner: current, peer, phase: Phase::Full(full), .. } = connection else {
            return false;
        };
        let Full { link: Some(link), receives, lent, trouble, ended, .. } = &mut **full else { return false };
        if !current.is(owner) {
            return false;
        }
        let qp = owner.qp;
        let mut taken = false;
        let Link { queue, sinks, .. } = link;
        queue.on_completion(completion, |outcome| match outcome {
            // Whoever was told of the end may destroy the connection: it is lent no message any more.
            Outcome::Received { .. } if *ended => {}
            Outcome::Received { buffer, length, invalidated } => {
                let buffer = match (&mut *receives, &mut shared) {
                    (Some(Receiving::Shared(share)), Some(shared)) => {
                        taken = true;
                        shared.lend(self.memory, &mut share.spill, buffer, length)
                    }
                    _ => buffer,
                };
                *lent += 1;
                self.events.push_back(Event::Received(Received { qp, buffer, length, invalidated }));
            }
            Outcome::Completed { token, status } => {
                // What the peer could write to is its no more, before anybody looks at it.
                sinks.end(token);
                self.events.push_back(Event::Completed(Wc { qp, token, status }));
            }
            Outcome::Failed { status, vendor } => {
                let words =
                    Library::get().map_or_else(|_| String::new(), |library| library.status_in_words(status));
                tracing::debug!(%peer, status, words, vendor, "work of an adapter failed");
                trouble.get_or_insert_with(|| {
                    format!("work failed: {words} (status {status}, vendor code {vendor:#x})")
                });
                self.broken.push(owner);
            }
            Outcome::Flushed if *ended => {}
            Outcome::Flushed => self.broken.push(owner),
        });
        taken
    }
}
