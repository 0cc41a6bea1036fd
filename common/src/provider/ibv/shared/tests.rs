//! Receives that connections share, over an adapter of our own making.
use std::cell::RefCell;
use std::ffi::c_int;

use rdma_sys::ibv_context;

use super::super::adapter::LOCAL;
use super::super::registration::{Registration, mock};
use super::*;
use crate::verbs::QpHandle;

const SIZE: u32 = 64 + 4096;
const OWNER: Owner = Owner { qp: QpHandle(7), generation: 3 };

unsafe extern "C" fn create_srq(_: *mut ibv_pd, wish: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller gave a whole one.
    assert_eq!(unsafe { (*wish).attr.max_sge }, 1);
    // SAFETY: numbers, pointers and optional functions, for which zeroes are valid.
    let mut context: ibv_context = unsafe { zeroed() };
    context.ops.post_srq_recv = Some(post_srq_recv);
    // SAFETY: as above.
    let mut srq: ibv_srq = unsafe { zeroed() };
    srq.context = Box::into_raw(Box::new(context));
    srq.srq_context = Box::into_raw(Box::new(RefCell::new(Vec::<u64>::new()))).cast();
    Box::into_raw(Box::new(srq))
}

unsafe extern "C" fn destroy_srq(_: *mut ibv_srq) -> c_int {
    0
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a request the caller made.
    posts(srq).borrow_mut().push(unsafe { (*first).wr_id });
    0
}

/// The names of receives that were posted.
fn posts<'a>(srq: *mut ibv_srq) -> &'a RefCell<Vec<u64>> {
    // SAFETY: made above, and leaked.
    let posts = unsafe { (*srq).srq_context };
    // SAFETY: as above.
    unsafe { &*posts.cast::<RefCell<Vec<u64>>>() }
}

struct World {
    shared: SharedReceives,
    memory: Rc<Memory>,
    library: &'static Library,
}

impl World {
    fn new(most: u32) -> Self {
        let library = Box::leak(Box::new(Library { create_srq, destroy_srq, ..mock::library() }));
        // SAFETY: nothing looks at the domain.
        let shared = unsafe { SharedReceives::new(library, null_mut(), most, SIZE) }.unwrap();
        Self { shared, memory: Memory::new(), library }
    }

    fn admit(&mut self, owed: u16) -> io::Result<()> {
        let Self { shared, memory, library } = self;
        shared.admit(owed, |count, size| {
            let receives = Receives::new(memory, count, size)?;
            let region = memory.region(receives.lkey());
            // SAFETY: nothing looks at the domain.
            let registration = unsafe { Registration::new(library, null_mut(), region, LOCAL) }?;
            Ok(Buffers { registration, receives })
        })
    }

    fn posted(&self) -> usize {
        posts(self.shared.handle()).borrow().len()
    }

    /// A message has come into a receive.
    fn arrive(&mut self, spill: &mut Spill, buffer: u32, message: &[u8]) -> u32 {
        self.memory.write(self.shared.buffer(buffer), message);
        assert!(self.shared.on_completion(&report(SHARED | u64::from(buffer), 0)).is_none());
        self.shared.lend(&self.memory, spill, buffer, u32::try_from(message.len()).unwrap())
    }
}

fn report(name: u64, qp_num: u32) -> ibv_wc {
    // SAFETY: numbers, for which zeroes are valid.
    let mut report: ibv_wc = unsafe { zeroed() };
    report.wr_id = name;
    report.qp_num = qp_num;
    report
}

#[test]
fn receives_stop_growing_where_connections_do_not() {
    let mut world = World::new(512);
    let posted: Vec<_> = (0..8)
        .map(|_| {
            world.admit(130).unwrap();
            world.posted()
        })
        .collect();
    assert_eq!(posted, [256, 384, 512, 512, 512, 512, 512, 512]);
    let names = posts(world.shared.handle()).borrow().clone();
    assert!(names.iter().zip(0..).all(|(name, buffer)| *name == SHARED | buffer), "each of them once");
    assert_eq!(
        std::iter::from_fn(|| world.shared.next_region()).count(),
        4,
        "so are the regions they lie in"
    );
    (0..8).for_each(|_| world.shared.leave(None, 130));
    world.admit(512).unwrap();
    assert_eq!(world.posted(), 512, "what others have left serves");
}

#[test]
fn no_message_is_copied_while_everybody_finds_a_receive() {
    let mut world = World::new(512);
    world.admit(256).unwrap();
    let mut spill = Spill::new(&world.memory, 256, SIZE).unwrap();
    for buffer in 0..256 {
        assert_eq!(world.arrive(&mut spill, buffer, b"as it came"), buffer);
    }
    assert!(world.shared.is_lent());
    (0..256).for_each(|buffer| world.shared.give_back(buffer));
    assert_eq!((world.posted(), world.shared.is_lent()), (512, false));
}

#[test]
fn what_comes_while_few_are_left_is_copied_out_and_its_receive_posted_again() {
    let mut world = World::new(512);
    (0..8).for_each(|_| world.admit(128).unwrap());
    let mut spill = Spill::new(&world.memory, 128, SIZE).unwrap();
    for buffer in 0..384 {
        assert_eq!(world.arrive(&mut spill, buffer, b"as it came"), buffer);
    }
    for round in 0..128_u8 {
        let before = world.posted();
        let buffer = world.arrive(&mut spill, 400, &[round; 4160]);
        let place = Spill::number(buffer).expect("it was copied");
        assert_eq!(world.posted(), before + 1, "somebody else finds the receive");
        world.memory.write(world.shared.buffer(400), &[0xFF; 4160]);
        assert_eq!(spill.bytes(place, 4160), [round; 4160]);
        assert_eq!((spill.buffer(place).address + 64) % 512, 0, "its data is aligned for direct I/O");
    }
    // Its peer has sent more than it may, which is not ours to keep; the connection ends for it.
    assert_eq!(world.arrive(&mut spill, 401, b"too much"), 401);
    world.shared.give_back(401);
    (0..128).for_each(|place| spill.give_back(place));
    spill.sweep(&world.memory);
    assert!(!spill.touched);
    assert_eq!(spill.bytes(0, 4160), [0; 4160], "its pages are the system's again");
}

#[test]
fn messages_are_known_by_the_queue_pair_they_came_by() {
    let mut world = World::new(512);
    world.admit(128).unwrap();
    world.shared.enrol(0xABC, OWNER);
    let name = SHARED | 5;
    assert_eq!(number(&report(name, 0xABC)), Some(5));
    assert_eq!(number(&report(1 << 63 | 0x0003_0007_0000_0005, 0xABC)), None, "it is a connection's own");
    assert_eq!(world.shared.on_completion(&report(name, 0xABC)), Some(OWNER));
    world.shared.leave(Some(0xABC), 128);
    assert_eq!(world.shared.on_completion(&report(name, 0xABC)), None);
}

#[test]
fn an_adapter_shares_as_many_as_it_has_and_none_if_they_are_few() {
    let limits = |max_srq, max_srq_wr, max_cqe| {
        // SAFETY: numbers, for which zeroes are valid.
        let mut limits: ibv_device_attr = unsafe { zeroed() };
        (limits.max_srq, limits.max_srq_wr, limits.max_cqe) = (max_srq, max_srq_wr, max_cqe);
        limits
    };
    assert_eq!(most(&limits(1, 32_767, 1 << 22)), 4096);
    assert_eq!(most(&limits(1, 1000, 1 << 22)), 896, "whole chunks");
    assert_eq!(most(&limits(1, 32_767, 4096)), 1024, "completion queues have room for other work");
    for none in
        [limits(0, 32_767, 1 << 22), limits(1, 511, 1 << 22), limits(1, 32_767, 2000), limits(-1, 0, 0)]
    {
        assert_eq!(most(&none), 0);
    }
}
