//! Requests as the target sees them, and what comes back.
use super::*;

const WRITE: Operation = Operation::Write { fua: false };

#[test]
fn what_is_written_can_be_read_whatever_its_size() {
    let mut world = World::connected(options());
    for (tag, length) in [(1, 512), (2, 4096), (3, 4608), (4, 8192), (5, 65_536)] {
        let offset = tag * 4096;
        world.fill(tag as u8);
        world.submit(tag, WRITE, offset, length);
        assert_eq!(world.completed(), Some((tag, Ok(()))));
        world.fill(0xEE);
        world.submit(tag, Operation::Read, offset, length);
        assert_eq!(world.completed(), Some((tag, Ok(()))));
        let (read, rest) = (&world.buffer()[..length as usize], &world.buffer()[length as usize..]);
        assert!(read.iter().all(|&byte| u64::from(byte) == tag), "{length} bytes");
        assert!(rest.iter().all(|&byte| byte == 0xEE), "nothing beyond");
        assert_eq!(world.fake.exposed_now(), 0);
    }
    assert_eq!(world.fake.invalidations, 0, "the target invalidated every key");
    assert_eq!(world.host.counters().bytes_read, 512 + 4096 + 4608 + 8192 + 65_536);
}

#[test]
fn a_target_which_does_not_invalidate_is_helped() {
    let mut world = World::connected(options());
    world.target.invalidates = false;
    world.submit(1, Operation::Read, 0, 16_384);
    assert_eq!(world.completed(), Some((1, Ok(()))));
    assert_eq!((world.fake.invalidations, world.fake.exposed_now()), (2, 0));
}

#[test]
fn small_writes_travel_behind_their_command() {
    let mut world = World::connected(options());
    world.target.holds_io = true;
    world.submit(1, WRITE, 0, 4096);
    world.submit(2, WRITE, 4096, 4608);
    let in_capsule: Vec<_> =
        world.fake.posted.iter().map(|posted| (posted.in_capsule.len(), posted.exposure.is_some())).collect();
    assert_eq!(in_capsule, [(4096, false), (0, true)]);
}

#[test]
fn zeroes_and_discards_reach_the_target() {
    let mut world = World::connected(options());
    world.fill(7);
    world.submit(1, WRITE, 0, 8192);
    world.submit(2, Operation::WriteZeroes { unmap: true, fua: false }, 512, 1024);
    world.submit(3, Operation::Discard, 4096, 512);
    world.submit(4, Operation::Flush, 0, 0);
    for tag in 1..=4 {
        assert_eq!(world.completed(), Some((tag, Ok(()))));
    }
    let zeroes: Vec<_> = world.target.blocks[&1][..8192].chunks(512).map(|block| block == [0; 512]).collect();
    let expected: Vec<_> = (0..16).map(|block| [1, 2, 8].contains(&block)).collect();
    assert_eq!(zeroes, expected);
}

#[test]
fn a_refusal_is_an_error_of_its_request_alone() {
    let mut world = World::connected(options());
    world.target.io_status = Some(ironside_common::nvme::Status::CAPACITY_EXCEEDED);
    world.submit(1, WRITE, 0, 8192);
    assert_eq!(world.completed(), Some((1, Err(IoError::NoSpace))));
    assert_eq!((world.host.state(), world.fake.exposed_now()), (State::Connected, 0));
    world.target.io_status = None;
    world.submit(2, Operation::Read, 0, 512);
    assert_eq!(world.completed(), Some((2, Ok(()))));
    assert_eq!(world.host.counters().errors, 1);
}

#[test]
fn more_than_the_queues_take_waits_its_turn() {
    let mut world = World::connected(HostOptions { queue_size: 16, ..options() });
    world.target.holds_io = true;
    for tag in 0..64 {
        world.submit(tag, Operation::Read, 0, 512);
    }
    assert_eq!(world.fake.posted.len(), 2 * 15, "two queues of sixteen entries, less one each");
    let request = world.request(64, Operation::Read, 0, 512);
    assert_eq!(world.host.submit(0, request), Err(request));
    world.target.holds_io = false;
    world.run();
    let tags: Vec<_> = std::iter::from_fn(|| world.completed()).map(|(tag, _)| tag).collect();
    assert_eq!(tags.len(), 64);
}

#[test]
fn after_connect_nothing_is_allocated() {
    let mut world = World::connected(options());
    world.target.invalidates = false;
    let mut allocations = 0;
    let mut count = |act: &mut dyn FnMut()| allocations += allocation_counter::measure(act).count_total;
    let operations = [Operation::Read, WRITE, Operation::Discard, Operation::Flush];
    for round in 0..50 {
        for (tag, operation) in (0..).zip(operations.into_iter().cycle().take(60)) {
            let request = world.request(tag, operation, round * 4096, 16_384);
            count(&mut || world.host.submit(0, request).unwrap());
        }
        let mut ended = 0;
        while ended < 60 {
            count(&mut || _ = world.host.turn(&mut world.fake, world.now));
            while let Some(event) = world.fake.poll() {
                let mut event = Some(event);
                count(&mut || world.host.on_event(&mut world.fake, event.take().unwrap(), world.now));
            }
            world.target.run(&mut world.fake);
            count(&mut || ended += std::iter::from_fn(|| world.host.next_completed()).count());
        }
    }
    assert_eq!(allocations, 0);
}

#[test]
fn a_command_is_over_only_when_its_send_is() {
    let mut world = World::connected(options());
    world.fake.sends_complete = false;
    world.submit(1, Operation::Read, 0, 512);
    assert_eq!(world.completed(), None);
    assert_eq!(world.host.commands_in_flight(), 1);
    let wc = world.fake.unsent.pop_front().unwrap();
    world.fake.events.push_back(ironside_common::verbs::Event::Completed(wc));
    world.run();
    assert_eq!(world.completed(), Some((1, Ok(()))));
}
