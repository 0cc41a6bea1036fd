//! Connections that break, and targets that stay away.
use ironside_common::nvme::fabrics::InvalidParameter;
use ironside_common::nvme::private_data::{Reject, RejectStatus};
use ironside_common::nvme::{Status, text};
use ironside_common::verbs::RejectReason;
use zerocopy::IntoBytes;

use super::*;

const WRITE: Operation = Operation::Write { fua: true };

fn break_one(world: &mut World, index: usize) {
    let qp = world.fake.pairs()[index];
    world.fake.break_pair(qp);
    world.run();
}

#[test]
fn what_was_in_flight_is_sent_again_on_the_next_connection() {
    for broken in 0..3 {
        let mut world = World::connected(options());
        world.target.holds_io = true;
        world.fill(0x5A);
        world.submit(1, WRITE, 0, 32_768);
        world.submit(2, Operation::Flush, 0, 0);
        world.events.clear();
        break_one(&mut world, broken);
        assert_eq!(world.host.state(), State::Reconnecting);
        assert!(matches!(world.events[..], [HostEvent::Lost(Fault::Disconnected(_))]), "{:?}", world.events);
        assert!(world.fake.pairs().is_empty(), "all queues of a controller end together");
        // Behind what the write still needs.
        let apart = Some(world.buffer.slice(32_768, 512));
        let read = Request { buffer: apart, ..world.request(3, Operation::Read, 32_768, 512) };
        world.host.submit(0, read).unwrap();
        world.run();
        assert_eq!(world.completed(), None);
        world.target.holds_io = false;
        world.pass(Duration::from_secs(1));
        assert!(world.took_event(&HostEvent::Connected));
        let mut tags: Vec<_> = std::iter::from_fn(|| world.completed()).collect();
        tags.sort_unstable_by_key(|(tag, _)| *tag);
        assert_eq!(tags, [(1, Ok(())), (2, Ok(())), (3, Ok(()))]);
        assert!(world.target.blocks[&1][..32_768].iter().all(|&byte| byte == 0x5A));
        assert_eq!(world.host.counters().reconnects, 1);
    }
}

#[test]
fn a_write_which_another_target_may_still_execute_is_not_sent_again_before() {
    let mut world = World::with_lie(Lie::Controller(|wire| wire.model = text::padded("Other")));
    world.start();
    world.target.holds_io = true;
    world.fill(0x5A);
    world.submit(1, WRITE, 0, 512);
    world.submit(2, Operation::Discard, 8192, 4096);
    world.submit(3, Operation::Read, 16_384, 512);
    break_one(&mut world, 1);
    world.target.holds_io = false;
    // Two keep alive timeouts of 5 s, and 2 s more.
    world.pass(Duration::from_millis(11_900));
    assert_eq!(world.host.state(), State::Connected);
    assert_eq!((world.completed(), world.completed()), (Some((3, Ok(()))), None));
    world.submit(4, WRITE, 32_768, 512);
    assert_eq!(world.completed(), Some((4, Ok(()))), "what is new does not wait");
    world.pass(Duration::from_millis(200));
    let mut tags: Vec<_> = std::iter::from_fn(|| world.completed()).collect();
    tags.sort_unstable_by_key(|(tag, _)| *tag);
    assert_eq!(tags, [(1, Ok(())), (2, Ok(()))]);
}

#[test]
fn a_controller_lost_too_long_fails_its_requests() {
    let mut world = World::connected(options());
    world.target.holds_io = true;
    world.submit(1, Operation::Read, 0, 512);
    world.target.silent = true;
    break_one(&mut world, 0);
    world.pass(Duration::from_secs(59));
    assert_eq!((world.completed(), world.host.state()), (None, State::Reconnecting));
    world.pass(Duration::from_secs(2));
    assert_eq!(world.completed(), Some((1, Err(IoError::ConnectionLost))));
    assert!(matches!(world.failure(), Some(ConnectError::GaveUp { attempts: 6.. })), "{:?}", world.events);
    assert!(world.host.is_over() && world.fake.pairs().is_empty());
    assert_eq!(world.host.deadline(), None);
    world.submit(2, Operation::Read, 0, 512);
    assert_eq!(world.completed(), Some((2, Err(IoError::ConnectionLost))));
}

#[test]
fn requests_may_fail_before_all_is_over_and_go_on_with_the_connection() {
    let fast_io_fail_tmo = Some(Duration::from_secs(4));
    let mut world = World::connected(HostOptions { fast_io_fail_tmo, ..options() });
    world.target.silent = true;
    world.submit(1, Operation::Read, 0, 512);
    break_one(&mut world, 0);
    world.pass(Duration::from_millis(3900));
    assert_eq!((world.completed(), world.host.state()), (None, State::Reconnecting));
    world.pass(Duration::from_millis(200));
    assert!(world.took_event(&HostEvent::FailsFast));
    world.submit(2, Operation::Read, 0, 512);
    for tag in [1, 2] {
        assert_eq!(world.completed(), Some((tag, Err(IoError::ConnectionLost))));
    }
    assert_eq!(world.host.state(), State::Reconnecting);
    world.target.silent = false;
    world.pass(Duration::from_secs(10));
    world.submit(3, Operation::Read, 0, 512);
    assert_eq!((world.host.state(), world.completed()), (State::Connected, Some((3, Ok(())))));
    let too_long = HostOptions { ctrl_loss_tmo: Some(Duration::from_secs(3)), fast_io_fail_tmo, ..options() };
    assert_eq!(too_long.check(), Err(OptionsError::FastIoFail));
}

#[test]
fn silence_is_noticed_after_one_to_one_and_a_half_keep_alive_timeouts() {
    const STEP: Duration = Duration::from_millis(100);
    for steps in (0..50).step_by(7) {
        let mut world = World::connected(options());
        world.pass(STEP * steps);
        world.target.silent = true;
        let began = world.now;
        while world.host.state() == State::Connected {
            world.pass(STEP);
        }
        let noticed = world.now.since(began);
        assert!((Duration::from_secs(5)..=Duration::from_millis(7600)).contains(&noticed), "{noticed:?}");
    }
}

#[test]
fn a_silent_controller_is_lost() {
    let mut world = World::connected(options());
    world.target.silent = true;
    world.submit(1, Operation::Read, 0, 512);
    world.pass(Duration::from_secs(8));
    assert!(world.took_event(&HostEvent::Lost(Fault::KeepAlive(5000))), "{:?}", world.events);
    world.target.silent = false;
    world.pass(Duration::from_secs(10));
    assert_eq!(world.completed(), Some((1, Ok(()))));
}

#[test]
fn a_command_never_answered_loses_the_connection() {
    let mut world = World::connected(options());
    world.target.holds_io = true;
    world.submit(1, Operation::Read, 0, 512);
    world.pass(Duration::from_secs(29));
    assert_eq!(world.host.state(), State::Connected);
    world.pass(Duration::from_secs(3));
    assert!(world.took_event(&HostEvent::Lost(Fault::CommandTimeout(30))));
    world.target.holds_io = false;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.completed(), Some((1, Ok(()))));
}

#[test]
fn what_is_to_be_sent_again_waits_for_room_without_haste() {
    let mut world = World::connected(HostOptions { nr_io_queues: 1, queue_size: 16, ..options() });
    world.target.io_status = Some(Status::INTERRUPTED);
    world.submit(0, Operation::Read, 0, 512);
    world.target.io_status = None;
    world.target.holds_io = true;
    for tag in 1..16 {
        world.submit(tag, Operation::Read, 0, 512);
    }
    world.pass(Duration::from_secs(1));
    assert!(world.host.deadline().is_some_and(|deadline| deadline > world.now), "nothing can be done now");
    assert_eq!((world.completed(), world.host.state()), (None, State::Connected));
}

#[test]
fn another_namespace_under_the_same_number_is_not_taken_for_it() {
    let mut world = World::connected(options());
    world.target.holds_io = true;
    world.submit(1, WRITE, 0, 512);
    world.target.uuid_of = |nsid| 0xDEAD_0000 + u128::from(nsid);
    world.target.holds_io = false;
    break_one(&mut world, 1);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.completed(), Some((1, Err(IoError::NamespaceGone))));
    assert!(world.target.blocks[&1].iter().all(|&byte| byte == 0), "nothing reached the wrong data");
    let namespace = &world.host.namespaces()[0];
    assert!(!namespace.available);
    let other = namespace.replacement.unwrap().uuid.unwrap();
    assert_eq!(other.as_u128(), 0xDEAD_0001);
}

#[test]
fn a_final_no_ends_the_attempts() {
    let mut world = World::connected(options());
    world.target.lie = Some(Lie::ConnectStatus(Status::CONNECT_INVALID_PARAMETERS, InvalidParameter::SUBNQN));
    break_one(&mut world, 0);
    world.pass(Duration::from_secs(1));
    assert!(matches!(world.failure(), Some(ConnectError::InvalidParameter { .. })), "{:?}", world.events);
    assert!(world.failure().unwrap().to_string().contains("no subsystem of that name"));
}

#[test]
fn a_passing_no_does_not() {
    let mut world = World::connected(options());
    let busy = Status::CONNECT_CONTROLLER_BUSY.with_dnr(false);
    world.target.lie = Some(Lie::ConnectStatus(busy, InvalidParameter::SUBNQN));
    break_one(&mut world, 0);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.host.state(), State::Reconnecting);
    world.target.lie = None;
    world.pass(Duration::from_secs(5));
    assert_eq!(world.host.state(), State::Connected);
}

#[test]
fn the_first_connection_is_tried_once() {
    let mut world = World::new(options());
    world.host.start(&mut world.fake, world.now);
    let (qp, _) = world.fake.dialled.pop_front().unwrap();
    let status = Reject::new(RejectStatus::NO_RESOURCES);
    world.fake.refuse(qp, RejectReason::Rejected(status.as_bytes().try_into().unwrap()));
    world.run();
    let error = world.failure().unwrap().to_string();
    assert_eq!(error, "connecting the admin queue: the target rejected it: no resources");
    assert!(world.host.is_over());
}

#[test]
fn a_target_that_does_not_answer_is_given_up() {
    let mut world = World::new(options());
    world.target.silent = true;
    world.start();
    world.pass(Duration::from_secs(6));
    let error = world.failure().unwrap().to_string();
    assert_eq!(error, "connecting the admin queue: no answer within 5 s");
    assert!(world.host.is_over() && world.fake.pairs().is_empty());
}

#[test]
fn closing_works_without_a_target() {
    let mut world = World::connected(options());
    world.target.holds_io = true;
    world.submit(1, Operation::Read, 0, 512);
    world.target.silent = true;
    break_one(&mut world, 0);
    world.pass(Duration::from_millis(60));
    world.host.close(&mut world.fake, world.now);
    world.run();
    assert_eq!(world.completed(), Some((1, Err(IoError::Closing))));
    assert!(world.host.is_over() && world.fake.pairs().is_empty());
}

#[test]
fn closing_waits_for_commands_but_not_for_ever() {
    let mut world = World::connected(options());
    world.target.holds_io = true;
    world.submit(1, Operation::Read, 0, 512);
    world.host.close(&mut world.fake, world.now);
    world.pass(Duration::from_secs(1));
    assert_eq!((world.completed(), world.host.is_over()), (None, false));
    world.pass(Duration::from_secs(10));
    assert_eq!(world.completed(), Some((1, Err(IoError::Closing))));
    assert!(world.took_event(&HostEvent::Closed));
}
