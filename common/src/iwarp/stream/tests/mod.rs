//! Two streams joined by pipes that split as they like, and one stream alone with a hostile peer.
mod hostile;
mod pair;
mod property;

use std::cell::RefCell;

use super::*;
use crate::iwarp::LocalMemory;
use crate::verbs::Kind;

/// Memory in which an address is an index.
pub(super) struct TestMemory(RefCell<Vec<u8>>);

impl TestMemory {
    pub(super) fn new(length: usize) -> Self {
        Self(RefCell::new(vec![0; length]))
    }

    pub(super) fn fill(&self, at: Sge, seed: u8) {
        let bytes: Vec<u8> = (0..at.length).map(|i| (i * 31 + 7) as u8 ^ seed ^ (i >> 8) as u8).collect();
        self.write(at, &bytes);
    }

    pub(super) fn bytes(&self, at: Sge) -> Vec<u8> {
        let start = at.address as usize;
        self.0.borrow()[start..start + at.length as usize].to_vec()
    }
}

impl LocalMemory for TestMemory {
    fn write(&self, to: Sge, bytes: &[u8]) {
        assert!(bytes.len() <= to.length as usize);
        let start = to.address as usize;
        self.0.borrow_mut()[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, from: Sge, into: &mut [u8]) {
        assert!(into.len() <= from.length as usize);
        let start = from.address as usize;
        into.copy_from_slice(&self.0.borrow()[start..start + into.len()]);
    }
}

pub(super) fn sge(address: u64, length: u32) -> Sge {
    Sge { address, length, lkey: 0 }
}

pub(super) fn token(slot: u16) -> Token {
    Token { kind: Kind::Command, generation: 0, qpair: 0, slot }
}

pub(super) fn config(role: Role, crc: bool) -> Config {
    let terms = Terms { crc, ird: 4, ord: 4, rtr: None };
    Config { role, terms, ulpdu_max: 1024, receives: 8, send_queue: 16, seed: 5 }
}

pub(super) fn send(slot: u16, head: &[u8]) -> Work {
    Work::Send {
        token: token(slot),
        head: head.iter().copied().collect(),
        data: None,
        invalidate: None,
        solicited: false,
    }
}

/// Sends up to `limit` bytes of what a stream has.
pub(super) fn take(stream: &mut Stream, memory: &TestMemory, limit: usize) -> Vec<u8> {
    if stream.wants_room() {
        stream.lend(Staging::new());
    }
    let bytes = stream.transmit(memory).first(limit, memory);
    stream.sent(bytes.len());
    bytes
}

pub(super) fn events(stream: &mut Stream) -> Vec<StreamEvent> {
    std::iter::from_fn(|| stream.poll()).collect()
}

pub(super) const fn done(slot: u16) -> StreamEvent {
    completed(slot, WcStatus::Success)
}

pub(super) const fn completed(slot: u16, status: WcStatus) -> StreamEvent {
    StreamEvent::Completed { token: Token { kind: Kind::Command, generation: 0, qpair: 0, slot }, status }
}
