//! A machine which is none: memory, one queue, and a driver that fills it, well or badly. Front-end and requests are the real
//! ones; the socket between them is left to the end-to-end tests.
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use allocation_counter::measure;
use ironside_common::memory::{Memory, Pool};
use ironside_common::reactor::Ring as Uring;
use ironside_common::time::Time;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::chain::{Descriptor as Entry, flag};
use super::device::{Disk, feature};
use super::front_end::{Drain, FrontEnd, Outcome};
use super::memory::GuestMemory;
use super::message::{Descriptor, MemoryRegion, Request, VringAddresses, VringState, protocol_feature};
use super::requests::Requests;
use super::ring::Ring;
use super::socket::Descriptors;
use crate::attach::Context;
use crate::export::tests::{GEOMETRY, PIECE, Shelf, pool};
use crate::volume::{Completed, Geometry, IoError, Operation};

pub(super) const QUEUE_SIZE: u16 = 16;
const MEMORY: u64 = 1 << 20;
/// Where the front-end sees the guest's first byte.
const USER: u64 = 0x7000_0000;
const TABLE_AT: u64 = 0x1000;
pub(super) const AVAILABLE_AT: u64 = 0x2000;
const USED_AT: u64 = 0x3000;
const HEADERS_AT: u64 = 0x4000;
const STATUSES_AT: u64 = 0x5000;
const DATA_AT: u64 = 0x10000;

pub(super) fn memfd(length: u64) -> OwnedFd {
    let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(length).unwrap();
    file.into()
}

/// The driver of the one queue, in the guest.
pub(super) struct Driver {
    pub(super) memory: GuestMemory,
    file: OwnedFd,
    available: u16,
    seen: u16,
}

impl Driver {
    pub(super) fn new() -> Self {
        let (file, mut memory) = (memfd(MEMORY), GuestMemory::default());
        memory.add(region(), &file).unwrap();
        Self { memory, file, available: 0, seen: 0 }
    }

    pub(super) fn addresses(&self) -> VringAddresses {
        let bytes = [0_u64, USER + TABLE_AT, USER + USED_AT, USER + AVAILABLE_AT, 0];
        zerocopy::transmute!(bytes)
    }

    pub(super) fn ring(&self, event_index: bool) -> Ring {
        Ring::new(QUEUE_SIZE, self.addresses(), &self.memory, event_index, 0).unwrap()
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes).unwrap();
    }

    fn read<const LENGTH: usize>(&self, at: u64) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        self.memory.read(at, &mut bytes).unwrap();
        bytes
    }

    fn read_u16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.read(at))
    }

    /// Makes a chain available.
    pub(super) fn offer(&mut self, head: u16) {
        let entry = AVAILABLE_AT + 4 + 2 * u64::from(self.available % QUEUE_SIZE);
        self.write(entry, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.write(AVAILABLE_AT + 2, &self.available.to_le_bytes());
    }

    /// The next chain that was used, and how many bytes were written to it.
    pub(super) fn used(&mut self) -> Option<(u32, u32)> {
        if self.read_u16(USED_AT + 2) == self.seen {
            return None;
        }
        let at = USED_AT + 4 + 8 * u64::from(self.seen % QUEUE_SIZE);
        self.seen = self.seen.wrapping_add(1);
        Some((u32::from_le_bytes(self.read(at)), u32::from_le_bytes(self.read(at + 4))))
    }

    pub(super) fn interrupt_after(&self, used: u16) {
        self.write(AVAILABLE_AT + 4 + 2 * u64::from(QUEUE_SIZE), &used.to_le_bytes());
    }

    pub(super) fn notify_after(&self) -> u16 {
        self.read_u16(USED_AT + 4 + 8 * u64::from(QUEUE_SIZE))
    }

    pub(super) fn wants_no_notification(&self) -> bool {
        self.read_u16(USED_AT) & 1 == 1
    }

    fn describe(&self, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        let entry =
            Entry { address: address.into(), length: length.into(), flags: flags.into(), next: next.into() };
        self.write(TABLE_AT + 16 * u64::from(index), entry.as_bytes());
    }

    /// Offers a request of three buffers, from descriptor `head` on. Its data lies at [`DATA_AT`], and is to be filled or
    /// sent.
    fn ask(&mut self, head: u16, kind: u32, sector: u64, length: u32) {
        let header = [kind.to_le_bytes(), [0; 4]].concat();
        let at = HEADERS_AT + 16 * u64::from(head);
        self.write(at, &[header, sector.to_le_bytes().to_vec()].concat());
        self.write(STATUSES_AT + u64::from(head), &[0xFF]);
        let status = STATUSES_AT + u64::from(head);
        let next = if length == 0 { head + 2 } else { head + 1 };
        let filled = if matches!(kind, 0 | 8) { flag::WRITE } else { 0 };
        self.describe(head, at, 16, flag::NEXT, next);
        self.describe(head + 1, DATA_AT, length, flag::NEXT | filled, head + 2);
        self.describe(head + 2, status, 1, flag::WRITE, 0);
        self.offer(head);
    }

    fn status(&self, head: u16) -> u8 {
        self.read::<1>(STATUSES_AT + u64::from(head))[0]
    }
}

fn region() -> MemoryRegion {
    MemoryRegion { guest: 0, size: MEMORY, user: USER, offset: 0 }
}

/// A served machine whose front-end is the test.
struct World {
    driver: Driver,
    front_end: FrontEnd,
    requests: Requests,
    disk: Disk,
    shelf: Shelf,
    memory: Rc<Memory>,
    pool: Rc<Pool>,
    ring: Uring,
    call: EventFd,
}

const FEATURES: u64 = feature::FLUSH | feature::PROTOCOL | feature::VERSION_1 | feature::INDIRECT;

impl World {
    fn new() -> Self {
        Self::serving(Driver::new(), None)
    }

    /// Serves a driver as the front-end has it after it has connected, with what was under way kept in `inflight`.
    fn serving(driver: Driver, inflight: Option<(Request, OwnedFd)>) -> Self {
        let memory = Memory::new();
        let (pool, ring) = (pool(&memory), Uring::new(64, Rc::clone(&memory)).unwrap());
        let call = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let mut world = Self {
            driver,
            front_end: FrontEnd::new(),
            requests: Requests::new(PIECE),
            disk: Disk::new(GEOMETRY, "volume"),
            shelf: Shelf::new(),
            memory,
            pool,
            ring,
            call,
        };
        let state = |number| VringState { index: 0, number };
        world.tell(Request::SetFeatures(FEATURES), None);
        if let Some((area, file)) = inflight {
            world.tell(area, Some(file));
        }
        let file = world.driver.file.try_clone().unwrap();
        world.tell(Request::AddMemory(region()), Some(file));
        world.tell(Request::SetQueueSize(state(QUEUE_SIZE.into())), None);
        world.tell(Request::SetQueueBase(state(world.driver.seen.into())), None);
        let addresses = world.driver.addresses();
        world.tell(Request::SetQueueAddresses(addresses), None);
        let kick = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        world.tell(Request::SetKick(Descriptor { index: 0, comes: true }), Some(kick.into()));
        let call = world.call.as_fd().try_clone_to_owned().unwrap();
        world.tell(Request::SetCall(Descriptor { index: 0, comes: true }), Some(call));
        world.tell(Request::EnableQueue(state(1)), None);
        world.front_end.start();
        world
    }

    fn tell(&mut self, request: Request, descriptor: Option<OwnedFd>) -> Outcome {
        let descriptors: Descriptors = descriptor.into_iter().collect();
        self.front_end.handle(request, descriptors, &mut self.disk).unwrap()
    }

    fn advance(&mut self) -> bool {
        let mut context = Context {
            volume: &mut self.shelf,
            ring: &mut self.ring,
            pool: &self.pool,
            memory: &self.memory,
            now: Time::ZERO,
            index: 0,
        };
        self.requests.advance(&mut self.front_end, &self.disk, &mut context)
    }

    /// The volume carries out what it has had for longest.
    fn complete(&mut self, result: Result<(), IoError>) {
        let request = self.shelf.pending.pop_front().expect("something is under way");
        if result.is_ok() {
            self.shelf.carry_out(&self.memory, request);
        }
        let completed = Completed { tag: request.tag, result };
        self.requests.completed(Some(&mut self.front_end), &self.memory, completed);
    }

    fn settle(&mut self) {
        while self.advance() || !self.shelf.pending.is_empty() {
            if !self.shelf.pending.is_empty() {
                self.complete(Ok(()));
            }
        }
    }

    /// How a request ended, and how many bytes it wrote.
    fn ask(&mut self, kind: u32, sector: u64, length: u32) -> (u8, u32) {
        self.driver.ask(0, kind, sector, length);
        self.settle();
        let (head, written) = self.driver.used().expect("it is given back");
        assert_eq!((head, self.driver.used()), (0, None));
        (self.driver.status(0), written)
    }
}

#[test]
fn data_goes_both_ways_in_pieces() {
    let mut world = World::new();
    let bytes: Vec<u8> = (0..100 * 1024_u32).map(|at| (at % 251) as u8).collect();
    world.driver.write(DATA_AT, &bytes);
    assert_eq!(world.ask(1, 16, 100 * 1024), (0, 1));
    assert_eq!(world.shelf.log.len(), 7, "as many pieces as buffers hold");
    assert_eq!(&world.shelf.bytes[8192..8192 + bytes.len()], &bytes);
    world.driver.write(DATA_AT, &vec![0; bytes.len()]);
    assert_eq!(world.ask(0, 16, 100 * 1024), (0, 100 * 1024 + 1));
    let mut back = vec![0; bytes.len()];
    world.driver.memory.read(DATA_AT, &mut back).unwrap();
    assert!(back == bytes);
    assert_eq!(world.ask(8, 0, 20), (0, 21));
    assert_eq!(&world.driver.read::<7>(DATA_AT), b"volume\0");
    assert_eq!(world.pool.available(), world.pool.total());
    assert!(world.requests.is_empty());
    world.front_end.queues[0].tell();
    assert_eq!(world.call.read().unwrap(), 1);
}

#[test]
fn what_is_no_transfer_reaches_the_volume_as_it_is() {
    let mut world = World::new();
    assert_eq!(world.ask(4, 0, 0), (0, 1));
    let range = [8_u64.to_le_bytes().as_slice(), &4_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat();
    world.driver.write(DATA_AT, &range);
    assert_eq!(world.ask(13, 0, 16), (0, 1));
    world.driver.write(DATA_AT + 12, &[0; 4]);
    assert_eq!(world.ask(11, 0, 16), (0, 1));
    let asked: Vec<_> = world.shelf.log.iter().map(|one| (one.operation, one.offset, one.length)).collect();
    let zeroes = Operation::WriteZeroes { unmap: true, fua: false };
    assert_eq!(asked, [(Operation::Flush, 0, 0), (zeroes, 4096, 2048), (Operation::Discard, 4096, 2048)]);
    assert_eq!((world.ask(99, 0, 0), world.ask(1, 0, 100)), ((2, 1), (1, 1)));
    assert_eq!(world.shelf.log.len(), 3, "what cannot be is refused without asking the volume");
}

#[test]
fn a_failed_piece_fails_its_request_once_nothing_of_it_is_under_way() {
    let mut world = World::new();
    world.driver.ask(0, 0, 0, 40_000 / 512 * 512);
    world.advance();
    assert_eq!(world.shelf.pending.len(), 3);
    world.complete(Err(IoError::Medium));
    world.complete(Ok(()));
    assert_eq!(world.driver.used(), None);
    world.complete(Ok(()));
    assert_eq!((world.driver.used().map(|(head, _)| head), world.driver.status(0)), (Some(0), 1));
}

#[test]
fn buffers_outside_the_guest_are_errors_and_a_request_without_room_for_that_breaks_the_queue() {
    let mut world = World::new();
    for (kind, outside) in [(0, MEMORY - 256), (1, MEMORY), (0, u64::MAX - 8), (1, u64::MAX)] {
        world.driver.ask(0, kind, 0, 512);
        let filled = if kind == 0 { flag::WRITE } else { 0 };
        world.driver.describe(1, outside, 512, flag::NEXT | filled, 2);
        world.settle();
        assert!(world.driver.used().is_some());
        assert_eq!(world.driver.status(0), 1, "{kind} at {outside:x}");
    }
    // No room for a status.
    world.driver.ask(0, 0, 0, 512);
    world.driver.describe(2, MEMORY, 1, flag::WRITE, 0);
    world.settle();
    world.driver.ask(3, 0, 0, 512);
    world.settle();
    assert_eq!(world.driver.used(), None, "the queue rests");
    assert!(matches!(
        world.tell(Request::GetQueueBase(VringState { index: 0, number: 0 }), None),
        Outcome::Drain(_)
    ));
    assert!(world.front_end.is_drained(Drain::One(0)) && world.requests.is_empty());
}

#[test]
fn without_a_cache_in_use_every_write_is_durable() {
    let mut world = World::new();
    world.ask(1, 0, 512);
    assert!(world.disk.configure(32, &[0]));
    world.ask(1, 0, 512);
    let fua: Vec<_> = world.shelf.log.iter().map(|request| request.operation).collect();
    assert_eq!(fua, [Operation::Write { fua: false }, Operation::Write { fua: true }]);
}

#[test]
fn a_queue_is_stopped_once_it_is_drained_and_goes_on_where_it_was() {
    let mut world = World::new();
    world.driver.ask(0, 0, 0, 512);
    world.advance();
    let state = VringState { index: 0, number: 0 };
    let Outcome::Drain(drain) = world.tell(Request::GetQueueBase(state), None) else { panic!("it drains") };
    world.driver.ask(3, 0, 0, 512);
    assert!(!world.advance() && !world.front_end.is_drained(drain));
    world.complete(Ok(()));
    assert!(world.front_end.is_drained(drain));
    let Outcome::Reply(payload, None) = world.front_end.drained(drain) else { panic!("it says where") };
    assert_eq!(&payload[..], VringState { index: 0, number: 1 }.as_bytes());
    let World { mut driver, .. } = world;
    assert_eq!(driver.used(), Some((0, 513)));
    let mut after = World::serving(driver, None);
    after.settle();
    assert_eq!(after.driver.used(), Some((3, 513)));
}

#[test]
fn whoever_comes_after_a_crash_does_what_was_under_way_and_nothing_twice() {
    let mut world = World::new();
    let state = VringState { index: 0, number: 0 };
    let area = super::message::InflightArea {
        size: 0,
        offset: 0,
        queues: 1,
        queue_size: QUEUE_SIZE,
        padding: [0; 4],
    };
    let (area, file) = super::inflight::Inflight::make(area).unwrap();
    let kept = || (Request::SetInflight(area), file.try_clone().unwrap());
    assert!(matches!(world.tell(Request::GetInflight(area, 24), None), Outcome::Reply(_, Some(_))));
    world.front_end.drained(Drain::One(state.index));
    let World { driver, .. } = world;
    let mut world = World::serving(driver, Some(kept()));
    for head in [0, 3, 6, 9] {
        world.driver.ask(head, 1, u64::from(head), 512);
    }
    world.advance();
    world.shelf.pending.swap(0, 1);
    world.complete(Ok(()));
    assert_eq!(world.driver.used(), Some((3, 1)), "out of order");
    // The process dies. One more comes meanwhile.
    let World { mut driver, .. } = world;
    driver.ask(12, 1, 12, 512);
    let mut after = World::serving(driver, Some(kept()));
    after.advance();
    let sectors: Vec<_> = after.shelf.log.iter().map(|request| request.offset / 512).collect();
    assert_eq!(sectors, [0, 6, 9, 12]);
    after.settle();
    let used: Vec<_> = std::iter::from_fn(|| after.driver.used()).map(|(head, _)| head).collect();
    assert_eq!(used, [0, 6, 9, 12]);
}

#[test]
fn requests_wait_for_room_and_nothing_is_allocated() {
    let mut world = World::new();
    world.shelf.room = 1;
    world.ask(0, 0, 512);
    let counted = measure(|| {
        for head in [0, 3, 6, 9] {
            allocation_counter::opt_out(|| world.driver.ask(head, u32::from(head == 3), 0, 65536));
        }
        while world.advance() || !world.shelf.pending.is_empty() {
            if !world.shelf.pending.is_empty() {
                world.complete(Ok(()));
            }
        }
        world.front_end.queues[0].tell();
    });
    assert_eq!(std::iter::from_fn(|| world.driver.used()).count(), 5 - 1);
    assert_eq!((world.shelf.log.len(), counted.count_total), (17, 0));
}

#[test]
fn a_machine_that_goes_is_told_nothing_more() {
    let mut world = World::new();
    world.driver.ask(0, 0, 0, 65536);
    world.driver.ask(3, 0, 0, 65536);
    world.shelf.room = 3;
    world.advance();
    world.requests.abandon();
    while let Some(request) = world.shelf.pending.pop_front() {
        assert!(!world.requests.is_empty());
        let completed = Completed { tag: request.tag, result: Ok(()) };
        world.requests.completed(None, &world.memory, completed);
    }
    assert!(world.requests.is_empty() && world.driver.used().is_none());
    assert_eq!(world.pool.available(), world.pool.total());
}

#[test]
fn a_front_end_is_refused_what_is_not_there() {
    let mut world = World::new();
    let mut refused = |request| world.front_end.handle(request, Descriptors::new(), &mut world.disk).is_err();
    let state = |index, number| VringState { index, number };
    assert!(refused(Request::SetFeatures(1 << 34)) && refused(Request::SetProtocolFeatures(1 << 1)));
    assert!(refused(Request::SetQueueSize(state(0, 32))), "it is at work");
    assert!(refused(Request::SetQueueSize(state(1, 0))) && refused(Request::SetQueueSize(state(1, 12))));
    assert!(refused(Request::SetQueueSize(state(1, 2048))) && refused(Request::SetQueueSize(state(128, 16))));
    assert!(
        refused(Request::GetQueueBase(state(u32::MAX, 0))) && refused(Request::SetQueueBase(state(0, 65536)))
    );
    assert!(refused(Request::SetKick(Descriptor { index: 0, comes: false })));
    assert!(refused(Request::SetKick(Descriptor { index: 0, comes: true })), "but none came");
    assert!(refused(Request::AddMemory(region())) && refused(Request::SetBackendChannel));
    assert!(refused(Request::RemoveMemory(MemoryRegion { guest: 1, ..region() })));
    assert!(refused(Request::Unknown(6)));
    assert!(!refused(Request::SetProtocolFeatures(protocol_feature::OFFERED)));
}

#[test]
fn a_change_of_size_is_told() {
    let mut disk = Disk::new(GEOMETRY, "a");
    disk.changed(Geometry { size: 2 << 20, ..GEOMETRY });
    assert_eq!(disk.configuration()[..8], 4096_u64.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever a guest writes into its queue, requests end or the queue rests, and nothing is left behind.
    #[test]
    fn no_guest_ends_us(
        table in proptest::collection::vec((0..MEMORY + 4096, 0..70_000_u32, 0..8_u16, 0..20_u16), usize::from(QUEUE_SIZE)),
        kinds in proptest::collection::vec((0..16_u32, 0..4096_u64), 1..20),
        heads in proptest::collection::vec(0..18_u16, 1..40),
        noise in proptest::collection::vec(any::<u8>(), 256),
    ) {
        let mut world = World::new();
        for (round, head) in heads.into_iter().enumerate() {
            let (kind, sector) = kinds[round % kinds.len()];
            for (index, &(address, length, flags, next)) in (0..).zip(&table) {
                // Many point at something which may be a request.
                let address = if address % 3 == 0 { HEADERS_AT } else { address };
                let length = if length % 3 == 0 { 16 } else { length };
                world.driver.describe(index, address, length, flags, next);
            }
            world.driver.write(HEADERS_AT, &[kind.to_le_bytes(), [0; 4]].concat());
            world.driver.write(HEADERS_AT + 8, &sector.to_le_bytes());
            world.driver.offer(head);
            world.settle();
            if round % 7 == 6 {
                world.driver.write(AVAILABLE_AT, &noise);
                world.settle();
            }
        }
        prop_assert!(world.requests.is_empty());
        prop_assert_eq!(world.pool.available(), world.pool.total());
    }
}
