//! One NVMe queue over one queue pair: the life of a command, from its slot to the moment nobody at the other
//! end can touch its buffer any more.
//!
//! A command is over when three things have happened, in any order: its Send has completed (the provider no
//! longer needs the capsule), its response has come, and its key is invalid. Only then is its slot free and
//! its owner told. Whatever the target gets wrong is a [`Fault`]; the queue then takes nothing new and waits
//! for its posted work to come back.
use std::fmt;

use ironside_common::nvme::fabrics::SQHD_FLOW_CONTROL_DISABLED;
use ironside_common::nvme::{Command, Completion, DataPointer, Status};
use ironside_common::time::Time;
use ironside_common::verbs::{
    Access, Exposure, HostVerbs, Kind, MrHandle, QpHandle, Received, Sge, Token, Wc, WcStatus,
};

use super::Fault;

/// Bits of a command identifier which name the slot; the others tell this use of it from the ones before.
const SLOT_BITS: u32 = 10;
/// Entries the largest queue may have: a slot fits its bits of the command identifier.
pub const MAX_QUEUE_SIZE: u16 = 1 << SLOT_BITS;

/// Data of one command, as seen from the host's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Data {
    None,
    /// The target writes it.
    In(Sge),
    /// The target reads it, or finds it behind the command.
    Out(Sge),
}

/// How a queue is set up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct QueueParameters {
    /// NVMe queue identifier: 0 is the admin queue.
    pub id: u16,
    /// Entries of the submission queue; one less may be outstanding.
    pub size: u16,
    /// Bytes of data which may travel behind a command.
    pub in_capsule: u32,
    /// Whether Connect asks the controller to do without flow control.
    pub disable_flow_control: bool,
}

/// A command which is over.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Finished<O> {
    pub owner: O,
    /// Dwords 0 and 1 of the completion, or why the controller refused.
    pub result: Result<u64, Refusal>,
}

/// A completion with a status other than success.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refusal {
    pub status: Status,
    /// Dwords 0 and 1 of the completion, which may say more.
    pub value: u64,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the controller answered: {}", self.status)
    }
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Queue<O> {
    qp: QpHandle,
    parameters: QueueParameters,
    /// Whether the controller takes part in flow control by its queue head.
    flow_control: bool,
    head: u16,
    tail: u16,
    slots: Box<[Slot<O>]>,
    free: Vec<u16>,
    /// Signaled work the provider still has to complete.
    posted: u32,
    broken: bool,
    disconnected: bool,
}

#[derive(Debug)]
struct Slot<O> {
    mr: MrHandle,
    generation: u16,
    command: Option<InFlight<O>>,
}

#[derive(Debug)]
struct InFlight<O> {
    owner: O,
    /// The key under which its buffer is exposed for it alone; gone once that is invalid.
    key: Option<u32>,
    sent: bool,
    answer: Option<Completion>,
    since: Time,
}

impl<O> Queue<O> {
    /// The queue on a queue pair just established, one memory region for each command it can have.
    pub(super) fn new<V: HostVerbs>(verbs: &mut V, qp: QpHandle, parameters: QueueParameters) -> Self {
        let count = parameters.size - 1;
        assert!(count > 0 && parameters.size <= MAX_QUEUE_SIZE, "a queue of {} entries", parameters.size);
        let slot = |_| Slot { mr: verbs.allocate_mr(qp), generation: 0, command: None };
        Self {
            qp,
            parameters,
            flow_control: true,
            head: 0,
            tail: 0,
            slots: (0..count).map(slot).collect(),
            free: (0..count).rev().collect(),
            posted: 0,
            broken: false,
            disconnected: false,
        }
    }

    /// Send queue entries a queue of `size` needs: registration, Send and invalidation of each command.
    pub(super) const fn send_queue(size: u16) -> u32 {
        3 * size as u32
    }

    pub(super) fn qp(&self) -> QpHandle {
        self.qp
    }

    /// Commands in flight.
    pub(super) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Commands in flight of those `counts` counts.
    pub(super) fn outstanding_of(&self, counts: impl Fn(&O) -> bool) -> usize {
        self.commands().filter(|command| counts(&command.owner)).count()
    }

    /// Whether one more command may be sent now.
    pub(super) fn has_room(&self) -> bool {
        !self.broken && !self.free.is_empty() && (!self.flow_control || self.next(self.tail) != self.head)
    }

    /// The slot which the next command will have: a name for scratch memory of its own.
    pub(super) fn next_slot(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Sends `command`, whose identifier and data pointer are filled in here.
    ///
    /// # Panics
    /// If there is no room: [`Self::has_room`] says.
    pub(super) fn submit<V: HostVerbs>(
        &mut self,
        verbs: &mut V,
        mut command: Command,
        data: Data,
        owner: O,
        now: Time,
    ) {
        assert!(self.has_room(), "a command without room for it");
        let index = self.free.pop().expect("has_room looked");
        self.tail = self.next(self.tail);
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        let (mr, generation) = (slot.mr, slot.generation);
        command.cid.set(command_identifier(index, generation));
        let mut expose = |sge, access| Some(verbs.prepare(self.qp, mr, sge, access));
        let (in_capsule, exposure) = match data {
            Data::None => (None, None),
            Data::Out(sge) if sge.length <= self.parameters.in_capsule => (Some(sge), None),
            Data::Out(sge) => (None, expose(sge, Access::RemoteRead)),
            Data::In(sge) => (None, expose(sge, Access::RemoteWrite)),
        };
        command.sgl = data_pointer(in_capsule, exposure).to_sgl();
        let ending = exposure.filter(|exposure| exposure.registration.ends_with_command());
        let key = ending.map(|exposure| exposure.remote.rkey);
        slot.command = Some(InFlight { owner, key, sent: false, answer: None, since: now });
        let token = Token { kind: Kind::Command, generation, qpair: self.parameters.id, slot: index };
        verbs.post_command(self.qp, token, &command.to_bytes(), in_capsule, exposure);
        self.posted += 1;
    }

    /// A response has come. Its receive buffer goes back at once.
    ///
    /// # Errors
    /// When it is not a response to anything of ours.
    pub(super) fn on_received<V: HostVerbs>(
        &mut self,
        verbs: &mut V,
        received: Received,
    ) -> Result<Option<Finished<O>>, Fault> {
        let answer = Completion::from_capsule(verbs.message(&received));
        let (length, invalidated) = (received.length, received.invalidated);
        verbs.repost(received);
        if self.broken {
            return Ok(None);
        }
        let answer = answer.ok_or(Fault::ResponseLength(length))?;
        self.check_queue(&answer)?;
        let cid = answer.cid.get();
        let (index, command) = self.by_identifier(cid).ok_or(Fault::UnknownCommand(cid))?;
        if command.answer.replace(answer).is_some() {
            return Err(Fault::SecondResponse(cid));
        }
        if let Some(named) = invalidated {
            let exposed = command.key.take();
            if exposed != Some(named) {
                return Err(Fault::WrongKey { named, exposed });
            }
        }
        if let Some(key) = command.key {
            self.invalidate(verbs, index, key);
        }
        self.advance_head(answer.sqhd.get())?;
        Ok(self.finish(index))
    }

    /// Posted work has completed.
    ///
    /// # Errors
    /// When it failed, which the connection does not survive.
    pub(super) fn on_completed(&mut self, wc: Wc) -> Result<Option<Finished<O>>, Fault> {
        self.posted = self.posted.checked_sub(1).expect("a provider completes what was posted, once");
        if self.broken {
            return Ok(None);
        }
        let slot = &mut self.slots[usize::from(wc.token.slot)];
        assert_eq!(slot.generation, wc.token.generation, "a slot is free only after its work has completed");
        let command = slot.command.as_mut().expect("as above");
        match (wc.token.kind, wc.status) {
            (Kind::Command, WcStatus::Success) => command.sent = true,
            (Kind::Command, status) => return Err(Fault::SendFailed(status)),
            (_, WcStatus::Success) => command.key = None,
            (_, status) => return Err(Fault::InvalidateFailed(status)),
        }
        Ok(self.finish(wc.token.slot))
    }

    /// Takes nothing new, and tells nobody of what still comes back.
    pub(super) fn set_broken(&mut self) {
        self.broken = true;
    }

    /// The queue pair has ended.
    pub(super) fn on_disconnected(&mut self) {
        self.broken = true;
        self.disconnected = true;
    }

    /// Whether the queue pair may be destroyed: it has ended and nothing posted is left. From then on no
    /// buffer of its commands can be reached by the peer.
    pub(super) fn is_drained(&self) -> bool {
        self.disconnected && self.posted == 0
    }

    /// The owners of commands which never ended.
    ///
    /// # Panics
    /// If the queue is not drained: their buffers might still be in use.
    pub(super) fn into_unfinished(self) -> impl Iterator<Item = O> {
        assert!(self.is_drained(), "commands may still touch their buffers");
        self.slots.into_iter().filter_map(|slot| Some(slot.command?.owner))
    }

    /// When the command longest in flight was sent, of those `counts` counts.
    pub(super) fn oldest(&self, counts: impl Fn(&O) -> bool) -> Option<Time> {
        self.commands().filter(|command| counts(&command.owner)).map(|command| command.since).min()
    }

    fn commands(&self) -> impl Iterator<Item = &InFlight<O>> {
        self.slots.iter().filter_map(|slot| slot.command.as_ref())
    }

    fn check_queue(&self, answer: &Completion) -> Result<(), Fault> {
        // The field is reserved in fabrics responses: some targets name the queue, others leave it zero.
        let named = answer.sqid.get();
        if named == self.parameters.id || named == 0 { Ok(()) } else { Err(Fault::ResponseQueue(named)) }
    }

    fn by_identifier(&mut self, cid: u16) -> Option<(u16, &mut InFlight<O>)> {
        let index = cid & (MAX_QUEUE_SIZE - 1);
        let slot = self.slots.get_mut(usize::from(index))?;
        (command_identifier(index, slot.generation) == cid).then_some(())?;
        Some((index, slot.command.as_mut()?))
    }

    fn invalidate<V: HostVerbs>(&mut self, verbs: &mut V, index: u16, key: u32) {
        let generation = self.slots[usize::from(index)].generation;
        let token = Token { kind: Kind::Invalidate, generation, qpair: self.parameters.id, slot: index };
        verbs.post_invalidate(self.qp, token, key);
        self.posted += 1;
    }

    /// Follows the controller's queue head. Two responses sent at once may carry theirs in either order, so
    /// an older one is passed over; and where no command is left, none is waiting to be fetched.
    fn advance_head(&mut self, head: u16) -> Result<(), Fault> {
        let size = self.parameters.size;
        if self.parameters.disable_flow_control && head == SQHD_FLOW_CONTROL_DISABLED {
            self.flow_control = false;
        }
        if !self.flow_control {
            return Ok(());
        }
        if head >= size {
            return Err(Fault::QueueHead { head, size });
        }
        let distance = |from: u16, to: u16| (to + size - from) % size;
        if distance(self.head, head) <= distance(self.head, self.tail) {
            self.head = head;
        }
        Ok(())
    }

    fn finish(&mut self, index: u16) -> Option<Finished<O>> {
        let slot = &mut self.slots[usize::from(index)];
        let over =
            |command: &mut InFlight<O>| command.sent && command.answer.is_some() && command.key.is_none();
        let command = slot.command.take_if(over)?;
        self.free.push(index);
        if self.outstanding() == 0 {
            self.head = self.tail;
        }
        let answer = command.answer?;
        let (status, value) = (answer.status(), answer.result.get());
        let result = if status.is_success() { Ok(value) } else { Err(Refusal { status, value }) };
        Some(Finished { owner: command.owner, result })
    }

    fn next(&self, index: u16) -> u16 {
        (index + 1) % self.parameters.size
    }
}

/// What the command says of its data. Remote invalidation is asked for wherever the key permits it.
fn data_pointer(in_capsule: Option<Sge>, exposure: Option<Exposure>) -> DataPointer {
    match (in_capsule, exposure) {
        (Some(sge), _) => DataPointer::InCapsule { offset: 0, length: sge.length },
        (None, Some(Exposure { sge, remote, registration, .. })) => {
            DataPointer::Keyed { remote, length: sge.length, invalidate: registration.peer_invalidates() }
        }
        (None, None) => DataPointer::None,
    }
}

const fn command_identifier(slot: u16, generation: u16) -> u16 {
    generation << SLOT_BITS | slot
}
