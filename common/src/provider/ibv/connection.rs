//! One connection over an adapter, from the request to the last completion.
use std::net::SocketAddr;

use rdma_sys::ibv_sge;

use super::adapter::Reserved;
use super::cm::CmId;
use super::dial::Wish;
use super::lending::Lending;
use super::queue_pair::{Owner, QueuePair};
use super::registration::{Buffers, Sinks};
use super::shared::Spill;
use crate::memory::Memory;
use crate::verbs::Limits;

/// Fields go in this order: what is lent goes before the queue pair, which goes with the identifier, before the memory
/// which it may use.
pub(super) struct Connection {
    pub(super) lending: Lending,
    pub(super) id: CmId,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) owner: Owner,
    pub(super) phase: Phase,
}

pub(super) enum Phase {
    /// The peer asks, and lets us have so many RDMA Reads outstanding.
    Asked {
        reads: u8,
    },
    /// A connect of ours.
    Dialing(Box<Wish>),
    Full(Box<Full>),
}

impl Connection {
    /// Gives memory back to the system that it has no use for.
    pub(super) fn sweep(&mut self, memory: &Memory) {
        if let Phase::Full(full) = &mut self.phase
            && let Some(Receiving::Shared(share)) = &mut full.receives
        {
            share.spill.sweep(memory);
        }
    }

    /// Nobody reaches memory by it any more. What was posted completes no more.
    pub(super) fn destroy_queue_pair(&mut self) {
        self.lending = Lending::Nothing;
        self.id.destroy_queue_pair();
    }
}

/// A connection which was answered.
pub(super) struct Full {
    /// How its work reaches an adapter; nothing if it never could, or not any more.
    pub(super) link: Option<Link>,
    pub(super) receives: Option<Receiving>,
    /// Messages which are out with the consumer.
    pub(super) lent: u32,
    pub(super) limits: Limits,
    pub(super) ended: bool,
    /// What went wrong first.
    pub(super) trouble: Option<String>,
    /// How often its completion queue had been empty when everything that had arrived was asked for.
    pub(super) catching_up: Option<u64>,
}

/// Where a connection's messages come.
pub(super) enum Receiving {
    /// Into buffers of its own.
    Own(Buffers),
    /// Into those which connections share.
    Shared(Share),
}

/// A part in the receives of an adapter.
pub(super) struct Share {
    pub(super) adapter: usize,
    /// Messages which the peer may send at once.
    pub(super) owed: u16,
    pub(super) spill: Spill,
}

impl Receiving {
    /// Receives which the queue pair itself has.
    pub(super) const fn own(&self, count: u16) -> u16 {
        match self {
            Self::Own(_) => count,
            Self::Shared(_) => 0,
        }
    }
}

/// What a connection has of an adapter.
pub(super) struct Link {
    pub(super) queue: QueuePair,
    pub(super) adapter: usize,
    pub(super) reserved: Reserved,
    /// Where short messages lie until they are sent, in turns: a queue pair sends in order.
    pub(super) outgoing: Option<Outgoing>,
    pub(super) sinks: Sinks,
}

/// Memory for messages on an adapter which does not copy them as they are posted.
pub(super) struct Outgoing {
    pub(super) buffers: Buffers,
    pub(super) count: u32,
    pub(super) next: u32,
}

/// A message for an adapter which copies it as it is posted.
pub(super) fn as_it_lies(message: &[u8]) -> ibv_sge {
    ibv_sge { addr: message.as_ptr().expose_provenance() as u64, length: length(message), lkey: 0 }
}

fn length(message: &[u8]) -> u32 {
    u32::try_from(message.len()).expect("a message is short")
}

impl Full {
    /// One that ends as it begins.
    pub(super) const fn broken(limits: Limits) -> Self {
        Self { link: None, receives: None, lent: 0, limits, ended: true, trouble: None, catching_up: None }
    }
}

impl Outgoing {
    /// Copies a message into the next buffer in turn, where it lies until it is sent.
    pub(super) fn hold(&mut self, memory: &Memory, message: &[u8]) -> ibv_sge {
        let buffer = self.next;
        self.next = (buffer + 1) % self.count;
        memory.write(self.buffers.receives.buffer(buffer), message);
        ibv_sge { length: length(message), ..self.buffers.piece(buffer) }
    }
}
