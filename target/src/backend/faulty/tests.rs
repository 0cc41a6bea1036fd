//! What a drive with a volatile cache may forget, and what it may not.
use ironside_common::memory::Region;
use ironside_common::verbs::{Kind, Sge};

use super::*;

struct Bench {
    memory: Rc<Memory>,
    drive: Faulty,
}

impl Bench {
    fn new() -> Self {
        let memory = Memory::new();
        memory.register(Region::new(1 << 16).unwrap());
        Self { memory, drive: Faulty::new(1 << 20, 512) }
    }

    fn submit(&mut self, operation: Operation) {
        let token = Token { kind: Kind::Medium, generation: 0, qpair: 0, slot: 0 };
        self.drive.submit(&self.memory, token, operation);
    }

    fn execute(&mut self, operation: Operation) -> Result<(), BlockError> {
        self.submit(operation);
        self.drive.complete(self.drive.pending().len() - 1, Outcome::Success).result
    }

    /// A write of one value to the first `blocks` blocks; its memory is where `value` says.
    fn write(&self, value: u8, blocks: u32, fua: bool) -> Operation {
        let from = Sge { length: blocks * 512, ..self.memory.sge(0, u64::from(value) * 4096, 0) };
        self.memory.write(from, &vec![value; blocks as usize * 512]);
        Operation::Write { offset: 0, from, fua }
    }

    fn first(&self) -> u8 {
        self.drive.block(0)[0]
    }
}

/// Loses everything that may be lost.
const fn lose_all(_: u64) -> u64 {
    0
}

/// Keeps the newest of everything.
const fn keep_all(count: u64) -> u64 {
    count - 1
}

#[test]
fn a_read_sees_what_was_written_last() {
    let mut bench = Bench::new();
    for value in [1, 2] {
        let write = bench.write(value, 2, false);
        bench.execute(write).unwrap();
    }
    let into = bench.memory.sge(0, 0, 1536);
    bench.execute(Operation::Read { offset: 0, into }).unwrap();
    let mut bytes = vec![9; 1536];
    bench.memory.read(into, &mut bytes);
    assert_eq!(bytes, [vec![2; 1024], vec![0; 512]].concat());
}

#[test]
fn only_what_was_flushed_or_forced_survives_for_certain() {
    let mut bench = Bench::new();
    let (one, two, three) = (bench.write(1, 1, false), bench.write(2, 1, false), bench.write(3, 1, true));
    bench.execute(one).unwrap();
    bench.execute(Operation::Flush).unwrap();
    bench.execute(two).unwrap();
    assert_eq!(bench.first(), 2);
    bench.drive.power_loss(lose_all);
    assert_eq!(bench.first(), 1, "flushed");
    bench.execute(two).unwrap();
    bench.execute(three).unwrap();
    bench.drive.power_loss(lose_all);
    assert_eq!(bench.first(), 3, "forced");
    bench.execute(two).unwrap();
    bench.drive.power_loss(keep_all);
    assert_eq!(bench.first(), 2, "lucky");
}

#[test]
fn a_flush_covers_what_had_completed_before_it_was_submitted() {
    let mut bench = Bench::new();
    let (one, two) = (bench.write(1, 1, false), bench.write(2, 1, false));
    bench.execute(one).unwrap();
    bench.submit(Operation::Flush);
    bench.execute(two).unwrap();
    assert_eq!(bench.drive.complete(0, Outcome::Success).result, Ok(()));
    bench.drive.power_loss(lose_all);
    assert_eq!(bench.first(), 1);
}

#[test]
fn a_failed_write_may_have_written_a_part() {
    let mut bench = Bench::new();
    let write = bench.write(5, 3, true);
    bench.submit(write);
    let error = BlockError::Write(libc::EIO);
    let done = bench.drive.complete(0, Outcome::Failure { blocks: 2, error });
    assert_eq!(done.result, Err(error));
    assert_eq!((0..3).map(|block| bench.drive.block(block)[0]).collect::<Vec<_>>(), [5, 5, 0]);
    bench.drive.power_loss(lose_all);
    assert_eq!(bench.first(), 0, "a failed write is not durable");
}

#[test]
fn an_unfinished_write_may_survive_block_by_block() {
    let mut bench = Bench::new();
    let write = bench.write(5, 2, false);
    bench.submit(write);
    // Written: yes for the first block, no for the second. Then the version kept of the first: the new.
    let mut choices = [1, 0, 1].into_iter();
    bench.drive.power_loss(|_| choices.next().unwrap());
    assert_eq!((bench.drive.block(0)[0], bench.drive.block(1)[0]), (5, 0));
    assert!(bench.drive.pending().is_empty());
}

#[test]
fn a_range_beyond_the_drive_fails_and_touches_nothing() {
    let mut bench = Bench::new();
    let zeroes = |offset, length| Operation::WriteZeroes { offset, length, deallocate: false, fua: false };
    assert_eq!(bench.execute(zeroes(1 << 20, 512)), Err(BlockError::OutOfRange));
    assert_eq!(bench.execute(zeroes(u64::MAX, 512)), Err(BlockError::OutOfRange));
    assert_eq!(bench.execute(zeroes(0, 1 << 20)), Ok(()));
}

#[test]
fn a_copy_is_lost_like_any_write() {
    let mut bench = Bench::new();
    let write = bench.write(5, 2, true);
    bench.execute(write).unwrap();
    bench.execute(Operation::Copy { source: 512, offset: 4096, length: 512 }).unwrap();
    assert_eq!([8, 9].map(|block| bench.drive.block(block)[0]), [5, 0]);
    bench.drive.power_loss(lose_all);
    assert_eq!(bench.drive.block(8)[0], 0);
}
