//! TCP connections of a capture: segments put in order, the two directions told from each other.
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use super::Line;
use super::capture::Packet;
use super::direction::{Direction, Shared};

/// Every message of every connection, in the order in which their last bytes were captured.
pub(super) fn lines(packets: &[Packet]) -> Vec<Line> {
    let mut halves: BTreeMap<(SocketAddr, SocketAddr), Half> = BTreeMap::new();
    let mut lines = Vec::new();
    for packet in packets {
        let (from, to) = (packet.from, packet.to);
        if packet.is_first {
            // A port is used again: the old connection is over.
            let shared = match halves.get(&(to, from)) {
                Some(peer) if peer.is_fresh() => peer.shared.clone(),
                _ => Rc::new(Cell::new(Shared::default())),
            };
            halves.insert((from, to), Half::new(packet.sequence.wrapping_add(1), shared));
            continue;
        }
        let peer = halves.get(&(to, from)).map(|peer| peer.shared.clone());
        let half =
            halves.entry((from, to)).or_insert_with(|| Half::new(packet.sequence, peer.unwrap_or_default()));
        let received = half.receive(packet).into_iter();
        lines.extend(received.map(|line| line.between(packet.time, &from, &to)));
    }
    lines
}

/// One direction, as TCP carries it.
struct Half {
    /// Sequence number of the next byte not yet handed on.
    next: u32,
    /// What came too early, by its distance from the beginning.
    early: BTreeMap<u64, Vec<u8>>,
    /// Bytes handed on.
    handed: u64,
    shared: Rc<Cell<Shared>>,
    direction: Direction,
}

impl Half {
    fn new(next: u32, shared: Rc<Cell<Shared>>) -> Self {
        Self { next, early: BTreeMap::new(), handed: 0, direction: Direction::new(shared.clone()), shared }
    }

    fn is_fresh(&self) -> bool {
        self.handed == 0
    }

    fn receive(&mut self, packet: &Packet) -> Vec<Line> {
        if packet.payload.is_empty() {
            return Vec::new();
        }
        // Modulo 2^32 and signed: what lies behind us was sent again, and is known.
        let ahead = i64::from(packet.sequence.wrapping_sub(self.next).cast_signed());
        let known = usize::try_from(-ahead.min(0)).expect("half of 32 bits fit");
        if let Some(fresh) = packet.payload.get(known..).filter(|fresh| !fresh.is_empty()) {
            self.early.insert(self.handed + ahead.max(0).unsigned_abs(), fresh.to_vec());
        }
        let mut lines = Vec::new();
        while let Some(entry) = self.early.first_entry().filter(|entry| *entry.key() <= self.handed) {
            let (at, bytes) = entry.remove_entry();
            let known = usize::try_from(self.handed - at).expect("a packet's length fits");
            let Some(fresh) = bytes.get(known..) else { continue };
            self.next = self.next.wrapping_add(u32::try_from(fresh.len()).expect("a packet's length fits"));
            self.handed += fresh.len() as u64;
            lines.extend(self.direction.receive(fresh));
        }
        lines
    }
}
