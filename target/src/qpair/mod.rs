//! One NVMe queue pair: the life of every command between its capsule and its response.
//!
//! ```text
//!            capsule            slot free           buffer free
//!  host ────► on_received ─► incoming ─► admit ─► AwaitBuffer ─► start ──write──► Fetching ─► on_fetched ─┐
//!                                         │                        └────read────────────────────────────►│
//!                                         │ refused                                                   execute
//!                                         ▼                                                              ▼
//!  host ◄──── on_responded ◄─ Responding ◄─ respond ◄─ AwaitSend ◄──────── on_done ◄─ medium ◄─── Executing
//! ```
//!
//! Receives and commands are counted apart: the next capsule can arrive on a receive already posted again
//! while the old response has not left. Waiting is fair: one queue for each scarce thing, and a write which
//! waits for a read credit does not hold back reads.
mod abort;
mod admit;
mod copy;
mod counts;
mod errors;
mod execute;
mod fused;
mod latency;
mod phase;
mod respond;
mod restriction;
#[cfg(test)]
mod tests;
mod throttle;
mod usage;

use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;

use ironside_common::memory::{Account, Memory, Pool};
use ironside_common::nvme::io::Geometry;
use ironside_common::nvme::{Command, Status, io, reservation};
use ironside_common::time::Time;
use ironside_common::verbs::{Kind, QpHandle, Received, Sge, TargetVerbs, Token, Wc, WcStatus};
use uuid::Uuid;

pub use self::abort::Aborting;
use self::abort::Unwanted;
pub use self::counts::{Counts, Failure, SharedCounts};
pub use self::errors::Errors;
pub use self::fused::FUSED_MAX;
use self::fused::Pairing;
pub use self::latency::{Histogram, Latencies};
use self::phase::{Active, Execution, Phase, Slot, Work};
pub use self::phase::{Extent, Fault};
use self::restriction::Restriction;
pub use self::usage::{CommandKind, Usage, Used};
use crate::backend::Medium;
use crate::throttle::Cost;

/// A namespace as the data path sees it.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub nsid: u32,
    pub uuid: Uuid,
    /// Its number among the reactor's backends.
    pub medium: usize,
    pub geometry: Geometry,
    pub read_only: bool,
    /// Another target serves it too, which knows nothing of what this one keeps in order.
    pub shared: bool,
    /// Its commands wait for their turn.
    pub limited: bool,
    /// What this reactor has done for it, in this version of the configuration and those before.
    pub usage: Rc<Usage>,
}

impl Namespace {
    /// So many blocks of one command in bytes. They fit: the transfer limit was checked.
    fn bytes(&self, blocks: u32) -> u32 {
        blocks << self.geometry.block_shift
    }

    /// A command is answered, so many nanoseconds after its capsule came.
    fn note_use(&self, request: &io::Request, status: Status, nanos: u64) {
        let kind = CommandKind::of(request);
        if !status.is_success() {
            return self.usage.failed(kind);
        }
        let bytes = match *request {
            io::Request::Read { blocks, .. } | io::Request::Write { blocks, .. } => self.bytes(blocks),
            _ => 0,
        };
        self.usage.succeeded(kind, bytes, nanos);
    }
}

/// What a queue pair asks of its reactor beside the medium.
pub trait Services: Medium {
    /// An admin or Fabrics command: `data` is what the host sent, or room for the answer. The answer comes
    /// by [`Qpair::on_admin_done`] or [`Qpair::hold`].
    fn admin(&mut self, job: AdminJob);

    /// Asks for blocks to be this command's alone: [`Qpair::on_claimed`], once no other is at them on any reactor.
    fn claim(&mut self, token: Token, extent: Extent);

    /// The command needs its blocks no more, or not at all.
    fn release(&mut self, token: Token, extent: Extent);

    /// Whether any blocks are claimed, by whomever.
    fn has_claims(&self) -> bool;

    /// Whether some of these blocks are claimed.
    fn is_claimed(&self, extent: &Extent) -> bool;

    /// A command waits for its turn under a limit: [`Qpair::on_turn`].
    fn await_turn(&mut self, token: Token, namespace: Uuid, cost: Cost);

    /// The command waits for it no more.
    fn give_up_turn(&mut self, token: Token, namespace: Uuid);

    /// A reservation command. The answer comes by [`Qpair::on_admin_done`].
    fn reserve(&mut self, job: ReservationJob);
}

/// A reservation command on its way to whoever knows the reservations: `data` is as in [`AdminJob`].
#[derive(Debug)]
pub struct ReservationJob {
    pub token: Token,
    pub nsid: u32,
    pub request: reservation::Request,
    pub data: Option<Sge>,
}

/// An admin or Fabrics command on its way to a controller.
#[derive(Debug)]
pub struct AdminJob {
    pub token: Token,
    pub command: Command,
    pub data: Option<Sge>,
}

/// A controller's answer.
#[derive(Clone, Copy, Debug)]
pub struct AdminReply {
    pub status: Status,
    pub result: u64,
    /// Bytes of the room given which it filled.
    pub length: u32,
}

/// What a queue pair borrows from its reactor for the length of one call.
#[derive(Debug)]
pub struct Context<'a, V, S> {
    pub verbs: &'a mut V,
    pub services: &'a mut S,
    pub pool: &'a Rc<Pool>,
    pub memory: &'a Memory,
    /// Buffers it may take in this call.
    pub buffers: u32,
    /// Where others wait for some: up to which return of buffers they have been offered what there was. What has come
    /// back since, be it in this call, is for them.
    pub offered: Option<u64>,
    /// The time of this turn.
    pub now: Time,
}

/// What a queue is for; known once its Connect has succeeded.
#[derive(Clone, Debug)]
pub enum Role {
    Unconnected,
    /// Connected, but nobody has proven yet to be its host.
    Unauthenticated,
    Admin,
    Io(Rc<[Rc<Namespace>]>),
}

#[derive(Debug)]
pub struct Qpair {
    handle: QpHandle,
    role: Role,
    sqid: u16,
    /// Entries of the submission queue; zero while flow control is off.
    sq_size: u16,
    sqhd: u16,
    slots: Box<[Slot]>,
    free: Vec<u16>,
    send_credits: u32,
    read_credits: u32,
    /// With the time each came.
    incoming: VecDeque<(Received, Time)>,
    await_buffer: VecDeque<u16>,
    await_fetch: VecDeque<u16>,
    await_send: VecDeque<u16>,
    await_fused: VecDeque<u16>,
    /// Commands whose blocks others have claimed.
    fenced: VecDeque<u16>,
    pairing: Pairing,
    /// Commands which are to end early.
    unwanted: Vec<Unwanted>,
    /// What it holds of the shared pool.
    account: Rc<Account>,
    /// Which of the two queues for a buffer is served first next time.
    writes_first: bool,
    fault: Option<Fault>,
    counts: Counts,
    errors: Errors,
    /// Since they were asked for last.
    counts_changed: bool,
    /// What reservations of namespaces keep its host from.
    restrictions: Vec<Restriction>,
    /// Namespaces to which this is no way, and what their commands are refused with.
    inaccessible: Vec<(u32, Status)>,
    /// Its host is limited: all commands wait for their turn.
    limited: bool,
    /// No new command starts any more.
    stopped: bool,
}

impl Qpair {
    /// A queue pair with `depth` command slots; as many receives are posted. Its buffers go on `account`.
    pub fn new(verbs: &impl TargetVerbs, handle: QpHandle, depth: u16, account: Rc<Account>) -> Self {
        let limits = verbs.limits(handle);
        let queue = || VecDeque::with_capacity(depth.into());
        Self {
            handle,
            role: Role::Unconnected,
            sqid: 0,
            sq_size: 0,
            sqhd: 0,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth).rev().collect(),
            send_credits: limits.send_queue,
            read_credits: limits.reads,
            incoming: VecDeque::with_capacity(depth.into()),
            await_buffer: queue(),
            await_fetch: queue(),
            await_send: queue(),
            await_fused: queue(),
            fenced: queue(),
            pairing: Pairing::None,
            unwanted: Vec::new(),
            account,
            writes_first: false,
            fault: None,
            counts: Counts::default(),
            errors: Errors::default(),
            counts_changed: false,
            restrictions: Vec::new(),
            inaccessible: Vec::new(),
            limited: false,
            stopped: false,
        }
    }

    /// The Connect succeeded: what the queue is for, and its size if the host wants flow control.
    pub fn connected(&mut self, role: Role, sqid: u16, sq_size: Option<u16>) {
        self.role = role;
        self.sqid = sqid;
        self.sq_size = sq_size.unwrap_or(0);
        // Said once, by the response to that Connect.
        self.sqhd = if sq_size.is_none() { u16::MAX } else { 0 };
    }

    /// The host has proven who it is: what the queue is for from now on.
    pub fn authenticated(&mut self, role: Role) {
        self.role = role;
    }

    /// New namespaces for an I/O queue, between two turns. Commands under way finish on the old ones.
    pub fn set_namespaces(&mut self, namespaces: Rc<[Rc<Namespace>]>) {
        if let Role::Io(current) = &mut self.role {
            *current = namespaces;
        }
    }

    /// One message of the host.
    pub fn on_received<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        received: Received,
    ) {
        if self.fault.is_some() {
            return cx.verbs.repost(received);
        }
        if (received.length as usize) < Command::SIZE {
            let length = received.length;
            cx.verbs.repost(received);
            return self.fail(cx, Fault::ShortCapsule(length));
        }
        if self.incoming.len() == self.slots.len() {
            cx.verbs.repost(received);
            return self.fail(cx, Fault::QueueOverrun);
        }
        self.incoming.push_back((received, cx.now));
        self.advance(cx);
    }

    /// One completion of the fabric.
    pub fn on_wc<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, wc: Wc) {
        let slot = wc.token.slot;
        match (wc.status, wc.token.kind) {
            (WcStatus::Success, Kind::Fetch) => self.on_fetched(cx, slot),
            (WcStatus::Success, Kind::Respond) => self.on_responded(slot),
            (WcStatus::Flushed, kind) => self.on_failed(cx, kind, slot, Fault::Disconnected),
            (WcStatus::Failed(code), kind) => self.on_failed(cx, kind, slot, Fault::WorkRequest(code)),
            (WcStatus::Success, kind) => unreachable!("a queue pair posts no {kind:?}"),
        }
        self.advance(cx);
    }

    /// The connection has ended, or has to.
    pub fn fail<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, fault: Fault) {
        if self.fault.is_some() {
            return;
        }
        self.fault = Some(fault);
        for (received, _) in mem::take(&mut self.incoming) {
            cx.verbs.repost(received);
        }
        self.await_buffer.clear();
        self.await_fetch.clear();
        self.await_send.clear();
        self.await_fused.clear();
        self.fenced.clear();
        self.pairing = Pairing::None;
        // What merely waits is let go now. What the device or the kernel may still touch stays leased until
        // its own completion.
        for slot in 0..self.slots.len() {
            let slot = u16::try_from(slot).expect("slots are counted by a u16");
            match self.leave(slot) {
                Phase::AwaitBuffer(active)
                | Phase::Throttled(active)
                | Phase::AwaitSecond(active)
                | Phase::Second(active)
                | Phase::Held(active) => self.release(cx.verbs, slot, active.message),
                Phase::Fenced(execution) => self.release(cx.verbs, slot, execution.active.message),
                Phase::Claiming(execution) => {
                    self.release_claim(cx, slot, &execution.active);
                    self.release(cx.verbs, slot, execution.active.message);
                }
                Phase::AwaitSend(_) => self.release(cx.verbs, slot, None),
                Phase::Free => {}
                busy @ (Phase::Fetching(_) | Phase::Executing(_) | Phase::Responding(_)) => {
                    self.enter(slot, busy);
                }
            }
        }
    }

    /// Why the connection has to end, once it has to.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// True when nothing in flight names this queue pair: it may now be destroyed.
    pub fn is_drained(&self) -> bool {
        self.fault.is_some() && self.free.len() == self.slots.len()
    }

    /// No new command starts from now on; those under way are finished.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// True when no command is under way, held ones apart, nor about to start.
    pub fn is_idle(&self) -> bool {
        let held = self.slots.iter().filter(|slot| matches!(slot.phase, Phase::Held(_))).count();
        self.free.len() + held == self.slots.len() && (self.stopped || self.incoming.is_empty())
    }

    /// Whether a command under way may still come to this medium, or is answered from its memory.
    pub fn uses(&self, medium: usize) -> bool {
        self.slots.iter().any(|slot| slot.phase.medium() == Some(medium))
    }

    /// True while a command waits for a buffer of the shared pool.
    pub fn waits_for_buffer(&self) -> bool {
        !self.await_buffer.is_empty() || !self.await_fetch.is_empty() || !self.await_fused.is_empty()
    }

    /// True while a command waits for blocks which others have claimed.
    pub fn is_fenced(&self) -> bool {
        !self.fenced.is_empty()
    }

    /// Whether a medium is at work on some of these blocks for a command of this queue.
    pub fn is_at(&self, extent: &Extent) -> bool {
        self.slots.iter().any(|slot| slot.phase.is_at(extent))
    }

    /// The namespace of each command which a medium has been asked and has not answered.
    pub fn at_media(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().filter_map(|slot| match &slot.phase {
            Phase::Executing(Execution {
                active: Active { work: Work::Io(namespace, request), .. }, ..
            }) => (!matches!(request, io::Request::Reservation(_))).then_some(namespace.nsid),
            _ => None,
        })
    }

    /// Commands which have come so far, whether or not they have found a slot.
    pub fn received(&self) -> u64 {
        self.counts.commands + self.incoming.len() as u64
    }

    /// Whether one of the first so many commands may still change the medium.
    pub fn changes_until(&self, received: u64) -> bool {
        let waits = self.counts.commands < received && !self.stopped && !self.incoming.is_empty();
        waits || self.slots.iter().any(|slot| slot.number <= received && slot.changing().is_some())
    }

    /// What it has done so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How its commands failed.
    pub const fn errors(&self) -> &Errors {
        &self.errors
    }

    /// Its counts, to be changed.
    fn count(&mut self) -> &mut Counts {
        self.counts_changed = true;
        &mut self.counts
    }

    /// What it has done so far, if it has done anything since this was asked.
    pub fn new_counts(&mut self) -> Option<&Counts> {
        mem::take(&mut self.counts_changed).then_some(&self.counts)
    }

    pub fn send_credits(&self) -> u32 {
        self.send_credits
    }

    pub fn read_credits(&self) -> u32 {
        self.read_credits
    }

    /// Everything that can go on, goes on: oldest waiter first in each queue. Mostly there is nothing.
    pub fn advance<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>) {
        if self.fault.is_some() {
            return;
        }
        if !self.incoming.is_empty() {
            self.admit(cx);
        }
        if self.waits_for_buffer() {
            self.start(cx);
        }
        if !self.await_send.is_empty() {
            self.respond(cx.verbs);
        }
    }

    /// Step 3. Those who wait for a buffer get one; reads and writes take turns in being first.
    fn start<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>) {
        if self.writes_first {
            self.start_fetches(cx);
            self.start_reads(cx);
        } else {
            self.start_reads(cx);
            self.start_fetches(cx);
        }
        self.start_fused(cx);
        self.writes_first = !self.writes_first;
    }

    /// Blocks which others had claimed may be free.
    pub fn on_released<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>) {
        for _ in 0..self.fenced.len() {
            let slot = self.fenced.pop_front().expect("just counted");
            let Phase::Fenced(execution) = self.leave(slot) else { unreachable!("it waits for blocks") };
            self.execute(cx, slot, execution);
        }
        self.advance(cx);
    }

    /// Step 3, reads and commands with room of their own. A buffer is free: on to the medium.
    fn start_reads<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>) {
        while let Some(&slot) = self.await_buffer.front() {
            let Phase::AwaitBuffer(active) = &self.slots[usize::from(slot)].phase else {
                unreachable!("only commands without a buffer wait for one");
            };
            let need = execute::need(active).expect("it waits because it needs some");
            let Some(room) = self.room(cx, need) else { return };
            self.await_buffer.pop_front();
            let Phase::AwaitBuffer(active) = self.leave(slot) else { unreachable!("just seen") };
            self.execute(cx, slot, Execution::new(active, room));
        }
    }

    /// Step 3, writes. A buffer, a read credit and a send credit are free: fetch the host's data.
    fn start_fetches<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>) {
        while let Some(&slot) = self.await_fetch.front() {
            let Phase::AwaitBuffer(active) = &self.slots[usize::from(slot)].phase else {
                unreachable!("only commands without a buffer wait for one");
            };
            if self.send_credits == 0 || self.read_credits == 0 {
                return;
            }
            let (need, remote) = (execute::need(active), active.remote());
            let need = need.expect("it has data to fetch");
            let Some(room) = self.room(cx, need) else { return };
            self.await_fetch.pop_front();
            self.send_credits -= 1;
            self.read_credits -= 1;
            let from = remote.expect("only a host's memory is fetched from");
            let into = room.0.as_ref().expect("the data needs room").sge();
            cx.verbs.post_fetch(self.handle, self.token(Kind::Fetch, slot), from, into);
            let Phase::AwaitBuffer(active) = self.leave(slot) else { unreachable!("just seen") };
            self.enter(slot, Phase::Fetching(Execution::new(active, room)));
        }
    }

    /// Step 4, writes only. The host's data is here.
    fn on_fetched<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, slot: u16) {
        self.send_credits += 1;
        self.read_credits += 1;
        let Phase::Fetching(execution) = self.leave(slot) else {
            unreachable!("a fetch completed for a command which did not fetch");
        };
        if self.fault.is_some() {
            return self.release(cx.verbs, slot, execution.active.message);
        }
        self.execute(cx, slot, execution);
    }

    fn on_failed<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        kind: Kind,
        slot: u16,
        fault: Fault,
    ) {
        self.fail(cx, fault);
        match kind {
            Kind::Fetch => self.on_fetched(cx, slot),
            Kind::Respond => self.on_responded(slot),
            kind => unreachable!("a queue pair posts no {kind:?}"),
        }
    }

    fn enter(&mut self, slot: u16, phase: Phase) {
        let place = &mut self.slots[usize::from(slot)].phase;
        assert!(matches!(place, Phase::Free), "{place:?} would be left behind");
        *place = phase;
    }

    fn leave(&mut self, slot: u16) -> Phase {
        mem::take(&mut self.slots[usize::from(slot)].phase)
    }

    /// The command is over without an answer.
    fn release(&mut self, verbs: &mut impl TargetVerbs, slot: u16, message: Option<Received>) {
        if let Some(received) = message {
            verbs.repost(received);
        }
        self.note_end(slot, false);
        self.free_slot(slot);
    }

    fn free_slot(&mut self, slot: u16) {
        let inner = &mut self.slots[usize::from(slot)];
        assert!(matches!(inner.phase, Phase::Free), "freed while {:?}", inner.phase);
        inner.generation = inner.generation.wrapping_add(1);
        self.free.push(slot);
    }

    fn token(&self, kind: Kind, slot: u16) -> Token {
        let generation = self.slots[usize::from(slot)].generation;
        Token { kind, generation, qpair: self.handle.0, slot }
    }
}
