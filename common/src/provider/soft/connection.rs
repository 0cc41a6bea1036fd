//! One connection through its life, and the table of them.
use std::collections::VecDeque;
use std::time::Duration;

use arrayvec::ArrayVec;

use super::Wire;
use crate::iwarp::mpa::{FRAME_MAX, Initiator, Responder};
use crate::iwarp::{Outgoing, Stream};
use crate::provider::receives::Receives;
use crate::time::Time;
use crate::verbs::{Address, ConnectParameters, PrivateData, QpHandle, Remote, Sge};

/// The beginning of a frame, as far as it has come.
pub(super) type Inbox = ArrayVec<u8, FRAME_MAX>;

pub(super) struct Connection<W> {
    /// Gone once the connection has ended.
    pub(super) wire: Option<W>,
    pub(super) peer: Address,
    pub(super) local: Address,
    pub(super) phase: Phase,
    /// Turns at which it was tried in vain.
    pub(super) idle_turns: u32,
    /// A poll of its readiness is out, perhaps for writing too.
    pub(super) polled: Option<Polled>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Polled {
    pub(super) writable: bool,
}

/// How far a connection has come.
pub(super) enum Phase {
    /// Ours; the wire does not stand yet.
    Dialing(Box<Wish>),
    /// Ours; the Request leaves, then the Reply comes.
    Requesting { wish: Box<Wish>, initiator: Initiator, request: Outgoing, inbox: Box<Inbox> },
    /// The peer's; its Request comes.
    Awaiting { inbox: Box<Inbox>, deadline: Option<Time> },
    /// The peer's; it is for the consumer to answer.
    Asked(Box<Responder>),
    /// In full operation, or ended and not yet destroyed: then the stream is broken and the wire gone.
    Full(Box<Full>),
}

/// What a connect of ours was asked to be.
#[derive(Clone)]
pub(super) struct Wish {
    pub(super) parameters: ConnectParameters,
    pub(super) private_data: PrivateData,
    /// Known from the first turn on.
    pub(super) deadline: Option<Time>,
    /// Memory regions which were asked for before there was a stream.
    pub(super) regions: u16,
}

pub(super) struct Full {
    pub(super) stream: Stream,
    pub(super) receives: Receives,
    pub(super) send_queue: u32,
    /// The number of the first entry for fast registration, and how many there are.
    pub(super) first_region: u16,
    pub(super) regions: u16,
    /// Regions the peer may reach for as long as the connection stands, and as what.
    pub(super) lasting: Vec<(Sge, Remote)>,
    /// The incomplete FPDU at the end of what was received; see [`super::spares::Spares::keep`].
    pub(super) leftover: Vec<u8>,
    /// Since when the oldest Read waits to be answered whole, and the oldest message to be sent whole. A peer
    /// which takes or gives a piece now and then gains no time: buffers wait for each of these.
    pub(super) answered_at: Time,
    pub(super) sent_at: Time,
    /// When the peer is to be nudged; nothing once it has been heard.
    pub(super) nudge_at: Option<Time>,
    /// When it is to give back what it took, unless more is received; nothing once it has.
    pub(super) rest_at: Option<Time>,
    /// Bytes to receive at most until all is known that had arrived when somebody asked.
    pub(super) behind: Option<usize>,
}

impl Full {
    pub(super) fn new(stream: Stream, receives: Receives, send_queue: u32, now: Time) -> Self {
        let mut full = Self {
            first_region: stream.terms().ord,
            stream,
            receives,
            send_queue,
            regions: 0,
            lasting: Vec::new(),
            leftover: Vec::new(),
            answered_at: now,
            sent_at: now,
            nudge_at: None,
            rest_at: None,
            behind: None,
        };
        for (id, buffer) in full.receives.all() {
            full.stream.post_receive(id, buffer);
        }
        full
    }

    /// Gives back the memory of receives which nobody uses now. Says no if somebody uses some.
    pub(super) fn rest(&self) -> bool {
        let rests = self.stream.is_at_rest();
        if rests {
            self.receives.discard();
        }
        rests
    }

    /// By when something has to move, and what.
    fn deadline(&self, patience: Duration) -> Option<(Time, Overdue)> {
        if self.stream.fault().is_some() {
            return None;
        }
        let unsent = self.stream.has_output().then_some((self.sent_at + patience, Overdue::Unsent));
        let unanswered =
            self.stream.awaits_response().then_some((self.answered_at + patience, Overdue::Unanswered));
        unsent.into_iter().chain(unanswered).min_by_key(|&(deadline, _)| deadline)
    }
}

/// What did not happen in time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Overdue {
    #[error("the start-up was not completed in time")]
    StartUp,
    #[error("the peer does not take a message")]
    Unsent,
    #[error("an RDMA Read remains unanswered")]
    Unanswered,
}

impl<W: Wire> Connection<W> {
    pub(super) fn has_descriptor(&self) -> bool {
        self.wire.as_ref().and_then(Wire::descriptor).is_some()
    }
}

impl<W> Connection<W> {
    pub(super) fn new(wire: Option<W>, peer: Address, local: Address, phase: Phase) -> Self {
        Self { wire, peer, local, phase, idle_turns: 0, polled: None }
    }

    pub(super) fn deadline(&self, patience: Duration) -> Option<(Time, Overdue)> {
        match &self.phase {
            Phase::Dialing(wish) | Phase::Requesting { wish, .. } => Some((wish.deadline?, Overdue::StartUp)),
            Phase::Awaiting { deadline, .. } => Some(((*deadline)?, Overdue::StartUp)),
            Phase::Asked(_) => None,
            Phase::Full(full) => full.deadline(patience),
        }
    }

    /// When it is to rest.
    pub(super) const fn rest_at(&self) -> Option<Time> {
        match &self.phase {
            Phase::Full(full) if self.wire.is_some() => full.rest_at,
            _ => None,
        }
    }

    pub(super) const fn nudge_at(&self) -> Option<Time> {
        match &self.phase {
            Phase::Full(full) if self.wire.is_some() => full.nudge_at,
            _ => None,
        }
    }

    /// Whether it waits for the wire to take bytes, or to stand.
    pub(super) fn awaits_writable(&self) -> bool {
        match &self.phase {
            Phase::Dialing(_) => true,
            Phase::Requesting { request, .. } => !request.is_empty(),
            Phase::Awaiting { .. } | Phase::Asked(_) => false,
            Phase::Full(full) => !full.stream.outgoing().is_empty(),
        }
    }

    /// One more entry for fast registration, also while there is no stream yet.
    pub(super) fn allocate_region(&mut self) -> u16 {
        let regions = match &mut self.phase {
            Phase::Dialing(wish) | Phase::Requesting { wish, .. } => &mut wish.regions,
            Phase::Awaiting { .. } | Phase::Asked(_) => panic!("not connected, nor about to be"),
            Phase::Full(full) => {
                full.stream.allocate();
                &mut full.regions
            }
        };
        *regions += 1;
        *regions - 1
    }

    pub(super) fn exposes(&self, lkey: u32) -> bool {
        matches!(&self.phase, Phase::Full(full) if full.stream.exposes(lkey))
    }

    /// Whether anything can come from its wire.
    pub(super) fn is_receiving(&self) -> bool {
        self.wire.is_some() && !matches!(self.phase, Phase::Asked(_))
    }
}

/// Free handles rest until there are so many, so that one is not at once used again.
const RESTING: usize = 8;

/// The handle of a connect which found no handle free; no connection ever has it.
pub(super) const NO_HANDLE: QpHandle = QpHandle(u16::MAX);

/// Connections by handle.
pub(super) struct Table<W> {
    slots: Vec<Slot<W>>,
    free: VecDeque<u16>,
    /// Handles there are.
    pub(super) most: u16,
}

struct Slot<W> {
    connection: Option<Connection<W>>,
    /// Tells one poll of readiness from the one before.
    generation: u16,
    /// Which lists name the handle. They may go on to when the connection is gone, and find that out when
    /// its turn comes: so an end costs nothing for every connection there is.
    listed: Listed,
}

/// Whether the list of hot connections, and the one of those with something to send, name a handle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listed {
    pub(super) hot: bool,
    pub(super) dirty: bool,
}

impl<W> Table<W> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), most: NO_HANDLE.0 }
    }

    /// Whether a handle is free.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < usize::from(self.most)
    }

    /// # Panics
    /// If there is no room.
    pub(super) fn insert(&mut self, connection: Connection<W>) -> QpHandle {
        let full = self.slots.len() >= usize::from(self.most);
        if self.free.len() > RESTING || full {
            let index = self.free.pop_front().expect("the caller looked whether there is room");
            self.slots[usize::from(index)].connection = Some(connection);
            return QpHandle(index);
        }
        let index = u16::try_from(self.slots.len()).expect("looked above");
        self.slots.push(Slot { connection: Some(connection), generation: 0, listed: Listed::default() });
        QpHandle(index)
    }

    /// Which lists name the handle.
    pub(super) fn listed(&mut self, qp: QpHandle) -> &mut Listed {
        &mut self.slots[usize::from(qp.0)].listed
    }

    pub(super) fn remove(&mut self, qp: QpHandle) -> Connection<W> {
        let connection = self.slots[usize::from(qp.0)].connection.take().expect("the handle is in use");
        self.free.push_back(qp.0);
        connection
    }

    pub(super) fn find(&mut self, qp: QpHandle) -> Option<&mut Connection<W>> {
        self.slots.get_mut(usize::from(qp.0))?.connection.as_mut()
    }

    /// # Panics
    /// If the handle is not in use: a promise of the consumer's is broken.
    pub(super) fn get(&self, qp: QpHandle) -> &Connection<W> {
        self.slots[usize::from(qp.0)].connection.as_ref().expect("the handle is in use")
    }

    /// # Panics
    /// As [`Self::get`].
    pub(super) fn get_mut(&mut self, qp: QpHandle) -> &mut Connection<W> {
        self.slots[usize::from(qp.0)].connection.as_mut().expect("the handle is in use")
    }

    pub(super) fn generation(&self, qp: QpHandle) -> Option<u16> {
        self.slots.get(usize::from(qp.0)).map(|slot| slot.generation)
    }

    pub(super) fn next_generation(&mut self, qp: QpHandle) -> u16 {
        let slot = &mut self.slots[usize::from(qp.0)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.generation
    }

    pub(super) fn connections_mut(&mut self) -> impl Iterator<Item = &mut Connection<W>> {
        self.slots.iter_mut().filter_map(|slot| slot.connection.as_mut())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (QpHandle, &Connection<W>)> {
        let slots = (0..=u16::MAX).zip(&self.slots);
        slots.filter_map(|(index, slot)| Some((QpHandle(index), slot.connection.as_ref()?)))
    }
}
