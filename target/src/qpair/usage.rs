//! What a reactor has done for a namespace, counted where a command is answered, by the one thread which answers it: so with
//! neither lock nor atomic. The same thread reads it, between two turns.
use std::cell::Cell;
use std::rc::Rc;

use ironside_common::nvme::IoOpcode;
use ironside_common::nvme::io::Request;

use super::latency::Latencies;

/// I/O commands as they are counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommandKind {
    Read,
    Write,
    Flush,
    /// Dataset Management which deallocates.
    Deallocate,
    Copy,
    /// Compare, Verify, Write Zeroes, reservations, and what we do not know.
    Other,
}

impl CommandKind {
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Flush, Self::Deallocate, Self::Copy, Self::Other];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Deallocate => "deallocate",
            Self::Copy => "copy",
            Self::Other => "other",
        }
    }

    pub(super) const fn of(request: &Request) -> Self {
        match request {
            Request::Read { .. } => Self::Read,
            Request::Write { .. } => Self::Write,
            Request::Flush => Self::Flush,
            Request::DatasetManagement { deallocate: true, .. } => Self::Deallocate,
            Request::Copy { .. } => Self::Copy,
            _ => Self::Other,
        }
    }

    /// Of a command which was refused before it was looked at whole.
    pub(super) const fn of_opcode(opcode: IoOpcode) -> Self {
        match opcode {
            IoOpcode::READ => Self::Read,
            IoOpcode::WRITE => Self::Write,
            IoOpcode::FLUSH => Self::Flush,
            IoOpcode::DATASET_MANAGEMENT => Self::Deallocate,
            IoOpcode::COPY => Self::Copy,
            _ => Self::Other,
        }
    }
}

/// What was done by commands of one kind. A time is from when the capsule came to when its response was known, in
/// nanoseconds, by the time which the reactor takes once a turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Used {
    /// Commands which succeeded.
    pub succeeded: u64,
    /// Commands which were refused or failed.
    pub failed: u64,
    /// Bytes read, written, deallocated or copied by those which succeeded; none of other kinds.
    pub bytes: u64,
    /// How long those took together which succeeded.
    pub nanos: u64,
    /// The longest of these times.
    pub longest_nanos: u64,
    /// The shortest; as long as can be while there was none.
    pub shortest_nanos: u64,
}

impl Default for Used {
    fn default() -> Self {
        let (succeeded, failed, bytes, nanos, longest_nanos) = (0, 0, 0, 0, 0);
        Self { succeeded, failed, bytes, nanos, longest_nanos, shortest_nanos: u64::MAX }
    }
}

impl Used {
    /// Both taken together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            succeeded: self.succeeded + other.succeeded,
            failed: self.failed + other.failed,
            bytes: self.bytes + other.bytes,
            nanos: self.nanos + other.nanos,
            longest_nanos: self.longest_nanos.max(other.longest_nanos),
            shortest_nanos: self.shortest_nanos.min(other.shortest_nanos),
        }
    }
}

/// What one reactor has done for one namespace.
#[derive(Debug, Default)]
pub struct Usage {
    used: [Cell<Used>; CommandKind::ALL.len()],
    /// Of all namespaces.
    latencies: Rc<Latencies>,
}

impl Usage {
    /// Of a namespace whose commands' times are among these.
    pub fn new(latencies: Rc<Latencies>) -> Self {
        Self { used: Default::default(), latencies }
    }

    /// Of each kind, in the order of [`CommandKind::ALL`].
    pub fn read(&self) -> [Used; CommandKind::ALL.len()] {
        self.used.each_ref().map(Cell::get)
    }

    /// A command has succeeded, which took so many nanoseconds.
    pub(super) fn succeeded(&self, kind: CommandKind, bytes: u32, nanos: u64) {
        self.latencies.note(kind, nanos);
        self.change(kind, |used| {
            used.shortest_nanos = used.shortest_nanos.min(nanos);
            used.longest_nanos = used.longest_nanos.max(nanos);
            used.succeeded += 1;
            used.bytes += u64::from(bytes);
            used.nanos += nanos;
        });
    }

    /// A command was refused or has failed.
    pub(super) fn failed(&self, kind: CommandKind) {
        self.change(kind, |used| used.failed += 1);
    }

    /// A command has moved so much, as its own data told.
    pub(super) fn moved(&self, kind: CommandKind, bytes: u64) {
        self.change(kind, |used| used.bytes += bytes);
    }

    fn change(&self, kind: CommandKind, change: impl FnOnce(&mut Used)) {
        let place = &self.used[kind as usize];
        let mut used = place.get();
        change(&mut used);
        place.set(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_lie_in_the_order_in_which_they_are_read() {
        for (index, kind) in CommandKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{}", kind.name());
        }
        let usage = Usage::default();
        usage.moved(CommandKind::Copy, 7);
        usage.failed(CommandKind::Write);
        let [_, write, _, _, copy, _] = usage.read();
        assert_eq!((copy.bytes, copy.succeeded, write.failed), (7, 0, 1));
    }

    #[test]
    fn the_shortest_time_is_one_there_was() {
        let (here, there) = (Usage::default(), Usage::default());
        for nanos in [30, 20, 50] {
            here.succeeded(CommandKind::Read, 512, nanos);
        }
        there.succeeded(CommandKind::Read, 512, 25);
        there.failed(CommandKind::Read);
        let ([here, ..], [there, ..]) = (here.read(), there.read());
        assert_eq!((here.shortest_nanos, here.longest_nanos, here.nanos, here.bytes), (20, 50, 100, 1536));
        let both =
            Used { succeeded: 4, failed: 1, bytes: 2048, nanos: 125, longest_nanos: 50, shortest_nanos: 20 };
        assert_eq!((here.plus(there), there.plus(here)), (both, both));
        assert_eq!((here.plus(Used::default()), Used::default().plus(here)), (here, here));
    }
}
