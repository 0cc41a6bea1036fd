//! What a queue has done, for the health and error logs of its controller, which may live on another reactor: the queue
//! counts for itself, and lays a copy where the controller finds it.
use std::sync::atomic::{AtomicU64, Ordering};

use ironside_common::nvme::Status;
use ironside_common::nvme::io::Request;

use super::phase::Work;

/// Data units of the health log have 512 bytes.
const UNIT_SHIFT: u32 = 9;

/// What one queue has done since it connected.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Commands received: the controller's sign of life.
    pub commands: u64,
    /// Read and Compare commands which succeeded.
    pub reads: u64,
    /// Write commands which succeeded.
    pub writes: u64,
    /// 512-byte units read by Read, Compare and Verify.
    pub units_read: u64,
    /// 512-byte units written by Write.
    pub units_written: u64,
    /// Commands which the medium failed.
    pub media_errors: u64,
    /// Commands which failed, those apart which a controller answered itself.
    pub failures: u64,
    /// The last of them.
    pub last_failure: Failure,
}

/// A command which failed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Failure {
    pub cid: u16,
    /// As in the completion.
    pub status_field: u16,
    pub nsid: u32,
}

impl Counts {
    /// A command is answered.
    pub(super) fn answered(&mut self, work: &Work, cid: u16, status: Status) {
        let Work::Io(namespace, request) = work else { return };
        if !status.is_success() {
            return self.failed(cid, status, namespace.nsid);
        }
        let units = |blocks: u32| u64::from(namespace.bytes(blocks)) >> UNIT_SHIFT;
        match *request {
            Request::Read { blocks, .. } | Request::Compare { blocks, .. } => {
                self.reads += 1;
                self.units_read += units(blocks);
            }
            Request::Verify { blocks, .. } => self.units_read += units(blocks),
            Request::Write { blocks, .. } => {
                self.writes += 1;
                self.units_written += units(blocks);
            }
            _ => {}
        }
    }

    /// A command is refused, or has failed.
    pub(super) fn failed(&mut self, cid: u16, status: Status, nsid: u32) {
        let of_medium = [Status::WRITE_FAULT, Status::UNRECOVERED_READ];
        self.media_errors += u64::from(of_medium.iter().any(|error| error.is(status)));
        self.failures += 1;
        self.last_failure = Failure { cid, status_field: status.to_field(), nsid };
    }

    /// Both queues' taken together; the last failure is of neither.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            units_read: self.units_read + other.units_read,
            units_written: self.units_written + other.units_written,
            media_errors: self.media_errors + other.media_errors,
            failures: self.failures + other.failures,
            last_failure: Failure::default(),
        }
    }
}

impl Failure {
    const fn pack(self) -> u64 {
        (self.cid as u64) << 48 | (self.status_field as u64) << 32 | self.nsid as u64
    }

    fn unpack(word: u64) -> Self {
        let [cid_0, cid_1, status_0, status_1, nsid @ ..] = word.to_be_bytes();
        Self {
            cid: u16::from_be_bytes([cid_0, cid_1]),
            status_field: u16::from_be_bytes([status_0, status_1]),
            nsid: u32::from_be_bytes(nsid),
        }
    }
}

/// Counts of one queue, written by the one thread that owns it, and read by that of its controller. Each number is
/// whole; those of one moment need not go together.
#[derive(Debug, Default)]
pub struct SharedCounts([AtomicU64; 8]);

impl SharedCounts {
    pub fn publish(&self, counts: &Counts) {
        let Counts {
            commands,
            reads,
            writes,
            units_read,
            units_written,
            media_errors,
            failures,
            last_failure,
        } = *counts;
        let last = last_failure.pack();
        let values = [commands, reads, writes, units_read, units_written, media_errors, failures, last];
        self.0.iter().zip(values).for_each(|(place, value)| place.store(value, Ordering::Relaxed));
    }

    pub fn read(&self) -> Counts {
        let [commands, reads, writes, units_read, units_written, media_errors, failures, last] =
            std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed));
        let last_failure = Failure::unpack(last);
        Counts { commands, reads, writes, units_read, units_written, media_errors, failures, last_failure }
    }

    pub fn commands(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::Namespace;
    use super::*;
    use ironside_common::nvme::io::Geometry;

    fn io(request: Request) -> Work {
        let geometry = Geometry { block_shift: 12, blocks: 100, transfer_max: 1 << 20 };
        Work::Io(
            Rc::new(Namespace {
                nsid: 3,
                uuid: uuid::Uuid::nil(),
                medium: 0,
                geometry,
                read_only: false,
                shared: false,
                limited: false,
                usage: Rc::default(),
            }),
            request,
        )
    }

    #[test]
    fn data_is_counted_in_units_of_512_bytes_once_it_was_moved() {
        let mut counts = Counts::default();
        counts.answered(&io(Request::Read { lba: 0, blocks: 2, fua: false }), 1, Status::SUCCESS);
        counts.answered(&io(Request::Verify { lba: 0, blocks: 1, fua: false }), 2, Status::SUCCESS);
        counts.answered(&io(Request::Write { lba: 0, blocks: 3, fua: false }), 3, Status::SUCCESS);
        counts.answered(&io(Request::Flush), 4, Status::SUCCESS);
        assert_eq!((counts.reads, counts.units_read), (1, 24));
        assert_eq!((counts.writes, counts.units_written), (1, 24));
        assert_eq!((counts.failures, counts.media_errors), (0, 0));

        counts.answered(&io(Request::Write { lba: 0, blocks: 3, fua: false }), 5, Status::WRITE_FAULT);
        counts.failed(6, Status::INVALID_FIELD, 9);
        assert_eq!((counts.failures, counts.media_errors, counts.writes), (2, 1, 1));
        let status_field = Status::INVALID_FIELD.to_field();
        assert_eq!(counts.last_failure, Failure { cid: 6, status_field, nsid: 9 });
    }

    #[test]
    fn what_is_published_is_what_is_read() {
        let counts = Counts {
            commands: 1,
            reads: 2,
            writes: 3,
            units_read: 4,
            units_written: 5,
            media_errors: 6,
            failures: 7,
            last_failure: Failure { cid: 0xFFFE, status_field: 0x4281, nsid: 0x8000_0001 },
        };
        let shared = SharedCounts::default();
        shared.publish(&counts);
        assert_eq!((shared.read(), shared.commands()), (counts, 1));
    }
}
