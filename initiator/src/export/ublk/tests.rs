//! The reactor's half against a table of requests in memory: there is no driver, and what a ring would tell it is refused.
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use allocation_counter::measure;
use ironside_common::memory::{Memory, Pool};
use ironside_common::reactor::Ring;
use ironside_common::time::Time;
use ironside_common::verbs::{Kind, Token};
use nix::sys::memfd::{MFdFlags, memfd_create};
use zerocopy::IntoBytes;

use super::descriptors::Descriptors;
use super::server::{Parts, Ublk};
use super::wire::Descriptor;
use crate::attach::{Context, Export};
use crate::export::tests::{Shelf, pool};
use crate::volume::{Completed, IoError, Operation};

const DEPTH: u16 = 8;
const BUFFER: u32 = 65536;
/// From one queue's table to the next, as the driver has it (`UBLK_MAX_QUEUE_DEPTH` descriptors of 24 bytes).
const TABLE: u64 = 4096 * 24;

/// A served device whose driver is the test.
struct World {
    ublk: Ublk,
    shelf: Shelf,
    table: File,
    memory: Rc<Memory>,
    pool: Rc<Pool>,
    ring: Ring,
}

impl World {
    fn new() -> Self {
        let table: OwnedFd = memfd_create(c"requests", MFdFlags::MFD_CLOEXEC).unwrap();
        let table = File::from(table);
        table.set_len(2 * TABLE).unwrap();
        let memory = Memory::new();
        let parts = Parts {
            device: table.try_clone().unwrap().into(),
            queue: 1,
            descriptors: Descriptors::map(&table, 1, DEPTH).unwrap(),
            queue_depth: DEPTH,
            buffer_size: BUFFER,
        };
        let ublk = Ublk::new(parts, &memory).unwrap();
        let (pool, ring) = (pool(&memory), Ring::new(64, Rc::clone(&memory)).unwrap());
        Self { ublk, shelf: Shelf::new(), table, memory, pool, ring }
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Ublk, &mut Context<'_>) -> R) -> R {
        let mut context = Context {
            volume: &mut self.shelf,
            ring: &mut self.ring,
            pool: &self.pool,
            memory: &self.memory,
            now: Time::ZERO,
            index: 0,
        };
        act(&mut self.ublk, &mut context)
    }

    /// The kernel brings a request.
    fn bring(&mut self, tag: u16, operation_and_flags: u32, sectors: u32, start_sector: u64) {
        let descriptor = Descriptor { operation_and_flags, sectors, start_sector, address: 0 };
        self.table.write_all_at(descriptor.as_bytes(), TABLE + u64::from(tag) * 24).unwrap();
        self.hear(tag, 0);
    }

    fn hear(&mut self, tag: u16, result: i32) {
        let token = Token { kind: Kind::Reactor, generation: 0, qpair: 3, slot: tag };
        self.with(|ublk, context| ublk.on_ring(context, token, result));
    }

    /// The volume has carried out what it has had for longest.
    fn complete(&mut self, result: Result<(), IoError>) {
        let request = self.shelf.pending.pop_front().expect("something is under way");
        if result.is_ok() {
            self.shelf.carry_out(&self.memory, request);
        }
        self.with(|ublk, context| ublk.completed(context, Completed { tag: request.tag, result }));
    }
}

#[test]
fn every_tag_waits_for_a_request_and_each_request_reaches_the_volume_once() {
    let mut world = World::new();
    assert!(world.with(|ublk, context| ublk.turn(context)));
    assert_eq!(world.ring.in_flight(), usize::from(DEPTH));
    world.bring(3, 0, 8, 16);
    world.bring(5, 1 | 1 << 13, 1, 7);
    world.bring(0, 2, 0, 0);
    let [read, write, flush] = world.shelf.log[..] else { panic!("three requests") };
    assert_eq!((read.operation, read.offset, read.length), (Operation::Read, 8192, 4096));
    assert_eq!((write.operation, write.offset), (Operation::Write { fua: true }, 7 * 512));
    assert_eq!((flush.operation, flush.buffer), (Operation::Flush, None));
    let (first, second) = (read.buffer.unwrap(), write.buffer.unwrap());
    assert_eq!((first.length, second.length), (4096, 512));
    assert_eq!(second.address - first.address, u64::from(2 * BUFFER));
    for _ in 0..3 {
        world.complete(Ok(()));
    }
    assert_eq!(world.ring.in_flight(), usize::from(DEPTH) + 3, "each end is told");
    // What cannot be is refused without asking the volume.
    world.bring(1, 1, 1 << 20, 0);
    world.bring(2, 13, 1, 0);
    assert_eq!((world.shelf.log.len(), world.ring.in_flight()), (3, usize::from(DEPTH) + 5));
}

#[test]
fn requests_wait_for_room_and_nothing_is_allocated() {
    let mut world = World::new();
    world.with(|ublk, context| ublk.turn(context));
    world.shelf.room = 1;
    let counted = measure(|| {
        for tag in 0..4 {
            world.bring(tag, 0, 1, 0);
        }
        for _ in 0..4 {
            world.complete(if world.shelf.log.len() == 2 { Err(IoError::Medium) } else { Ok(()) });
            world.with(|ublk, context| ublk.turn(context));
        }
    });
    assert_eq!((world.shelf.log.len(), counted.count_total), (4, 0));
}

#[test]
fn it_is_over_once_the_kernel_has_given_every_tag_back() {
    let mut world = World::new();
    world.with(|ublk, context| ublk.turn(context));
    world.bring(0, 0, 1, 0);
    assert!(!world.with(|ublk, context| ublk.close(context)));
    world.complete(Err(IoError::Closing));
    // A late request finds nobody.
    world.bring(1, 0, 1, 0);
    assert_eq!(world.shelf.log.len(), 1);
    for tag in 0..DEPTH {
        assert!(!world.with(|ublk, context| ublk.close(context)));
        world.hear(tag, -libc::ENODEV);
    }
    assert!(world.with(|ublk, context| ublk.close(context)));
}
