//! The ring against real files and pipes.
use std::fs::File;
use std::os::fd::AsFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{ftruncate, pipe, write};

use super::*;
use crate::verbs::Kind;

fn token(slot: u16) -> Token {
    Token { kind: Kind::Medium, generation: 1, qpair: 2, slot }
}

fn file(size: i64) -> Arc<OwnedFd> {
    let fd = memfd_create(c"ring", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    Arc::new(fd)
}

/// Everything in flight, reaped in any order, by slot.
fn reap_all(ring: &mut Ring) -> Vec<(u16, i32)> {
    let mut results = Vec::new();
    while ring.in_flight() > 0 {
        ring.wait(None).unwrap();
        while let Some((token, result)) = ring.reap() {
            results.push((token.slot, result));
        }
    }
    results.sort_unstable();
    results
}

#[test]
fn bytes_written_are_read_back_by_registered_and_by_plain_memory() {
    let memory = Memory::new();
    let registered = memory.register(Region::new(8192).unwrap());
    let plain = memory.register(Region::new(8192).unwrap());
    let mut ring = Ring::new(8, Rc::clone(&memory)).unwrap();
    assert!(ring.register_region(registered));
    let file = ring.add_file(file(1 << 16));
    for (from, into) in [(registered, plain), (plain, registered)] {
        let (source, sink) = (memory.sge(from, 100, 5), memory.sge(into, 4096, 5));
        memory.write(source, b"hello");
        memory.write(sink, b".....");
        ring.write(file, 77, source, Flags::Durable, token(0));
        assert_eq!(reap_all(&mut ring), [(0, 5)]);
        ring.read(file, 77, sink, token(1));
        assert_eq!(reap_all(&mut ring), [(1, 5)]);
        let mut back = [0; 5];
        memory.read(sink, &mut back);
        assert_eq!(&back, b"hello");
    }
    ring.unregister_region(registered);
    ring.read(file, 77, memory.sge(registered, 0, 5), token(1));
    assert_eq!(reap_all(&mut ring), [(1, 5)]);
}

#[test]
fn a_number_that_has_passed_on_to_another_region_is_not_taken_for_the_registered_one() {
    let memory = Memory::new();
    let lkey = memory.register(Region::new(4096).unwrap());
    let mut ring = Ring::new(8, Rc::clone(&memory)).unwrap();
    assert!(ring.register_region(lkey));
    memory.unregister(lkey);
    assert_eq!(memory.register(Region::new(8192).unwrap()), lkey);
    let file = ring.add_file(file(8192));
    ring.read(file, 0, memory.sge(lkey, 0, 8192), token(0));
    assert_eq!(reap_all(&mut ring), [(0, 8192)]);
}

#[test]
fn ranges_are_punched_and_files_synced() {
    let memory = Memory::new();
    let lkey = memory.register(Region::new(4096).unwrap());
    let mut ring = Ring::new(8, Rc::clone(&memory)).unwrap();
    let file = ring.add_file(file(8192));
    let sge = memory.sge(lkey, 0, 4096);
    memory.write(sge, &[7; 4096]);
    ring.write(file, 0, sge, Flags::None, token(0));
    assert_eq!(reap_all(&mut ring), [(0, 4096)]);
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    ring.fallocate(file, mode, 0, 4096, token(1));
    ring.fdatasync(file, token(2));
    assert_eq!(reap_all(&mut ring), [(1, 0), (2, 0)]);
    ring.read(file, 0, sge, token(3));
    assert_eq!(reap_all(&mut ring), [(3, 4096)]);
    let mut back = [7; 4096];
    memory.read(sge, &mut back);
    assert_eq!(back, [0; 4096]);
}

#[test]
fn more_operations_than_the_queue_holds_all_complete() {
    let memory = Memory::new();
    let lkey = memory.register(Region::new(4096).unwrap());
    let mut ring = Ring::new(2, Rc::clone(&memory)).unwrap();
    let file = ring.add_file(file(4096));
    for slot in 0..500 {
        ring.read(file, 0, memory.sge(lkey, 0, 512), token(slot));
    }
    assert_eq!(ring.in_flight(), 500);
    let expected: Vec<_> = (0..500).map(|slot| (slot, 512)).collect();
    assert_eq!(reap_all(&mut ring), expected);
}

#[test]
fn files_come_and_go() {
    let memory = Memory::new();
    let lkey = memory.register(Region::new(4096).unwrap());
    let mut ring = Ring::new(8, Rc::clone(&memory)).unwrap();
    let first = ring.add_file(file(4096));
    let second = ring.add_file(file(512));
    ring.remove_file(first).unwrap();
    let third = ring.add_file(file(1024));
    ring.read(second, 0, memory.sge(lkey, 0, 4096), token(2));
    ring.read(third, 0, memory.sge(lkey, 0, 4096), token(3));
    assert_eq!(reap_all(&mut ring), [(2, 512), (3, 1024)]);
    for _ in 0..FIXED_FILES {
        ring.add_file(file(0));
    }
    let beyond_the_table = ring.add_file(file(2048));
    ring.read(beyond_the_table, 0, memory.sge(lkey, 0, 4096), token(4));
    assert_eq!(reap_all(&mut ring), [(4, 2048)]);
    ring.remove_file(beyond_the_table).unwrap();
}

#[test]
fn readiness_comes_once_and_can_be_cancelled() {
    let mut ring = Ring::new(8, Memory::new()).unwrap();
    let (reader, writer) = pipe().unwrap();
    ring.poll_once(reader.as_fd(), PollFlags::POLLIN, token(1));
    ring.wait(Some(Duration::ZERO)).unwrap();
    assert_eq!(ring.reap(), None);
    write(&writer, b"x").unwrap();
    let readable = i32::from(PollFlags::POLLIN.bits());
    assert_eq!(reap_all(&mut ring), [(1, readable)]);
    let (idle, _writer) = pipe().unwrap();
    ring.poll_once(idle.as_fd(), PollFlags::POLLIN, token(2));
    ring.cancel(token(2));
    assert_eq!(reap_all(&mut ring), [(2, -libc::ECANCELED)]);
}

#[test]
fn a_dropped_ring_leaves_nothing_to_the_kernel() {
    let memory = Memory::new();
    let lkey = memory.register(Region::new(1 << 20).unwrap());
    let mut ring = Ring::new(64, Rc::clone(&memory)).unwrap();
    let (never, _writer) = pipe().unwrap();
    let waiting = ring.add_file(Arc::new(never));
    let file = ring.add_file(Arc::new(OwnedFd::from(File::open("/dev/zero").unwrap())));
    ring.read(waiting, u64::MAX, memory.sge(lkey, 0, 512), token(1));
    for slot in 2..100 {
        ring.read(file, 0, memory.sge(lkey, 4096, 1 << 19), token(slot));
    }
    ring.submit().unwrap();
    drop(ring);
    assert_eq!(Rc::strong_count(&memory), 1, "the ring leaked its memory");
}

#[test]
#[should_panic(expected = "beyond the region")]
fn memory_outside_its_region_never_reaches_the_kernel() {
    let memory = Memory::new();
    let lkey = memory.register(Region::new(4096).unwrap());
    let mut ring = Ring::new(8, Rc::clone(&memory)).unwrap();
    let file = ring.add_file(file(4096));
    ring.read(file, 0, memory.sge(lkey, 4000, 4096), token(0));
}

#[test]
fn a_polled_ring_refuses_what_cannot_be_polled_and_lets_go_of_it() {
    let memory = Memory::new();
    let lkey = memory.register(Region::new(4096).unwrap());
    let mut ring = Ring::polled(8, Rc::clone(&memory)).unwrap();
    let file = ring.add_file(file(4096));
    for slot in 0..20 {
        ring.read(file, 0, memory.sge(lkey, 0, 512), token(slot));
    }
    let expected: Vec<_> = (0..20).map(|slot| (slot, -libc::EOPNOTSUPP)).collect();
    assert_eq!(reap_all(&mut ring), expected);
    ring.write(file, 0, memory.sge(lkey, 0, 512), Flags::None, token(0));
    drop(ring);
    assert_eq!(Rc::strong_count(&memory), 1, "the ring leaked its memory");
}
