//! How connections come to be and how they end.
use super::*;

#[test]
fn both_learn_what_the_other_said() {
    for (seed, (host, target)) in (0..).zip([(false, false), (false, true), (true, false), (true, true)]) {
        let mut world = World::new(seed, host, target);
        let ours = world.connect();
        let region = world.host.soft.allocate_mr(ours);
        let request = world.request();
        assert_eq!(&request.private_data[..], b"hello");
        assert_eq!((request.peer, request.local), (HOST.parse().unwrap(), TARGET.parse().unwrap()));
        assert_eq!(request.reads, 128);
        let theirs = request.qp;
        world.target.soft.accept(request, PARAMETERS, b"welcome");
        assert!(matches!(world.host_connection(), CmEvent::Established { qp, .. } if qp == ours));
        assert_eq!(world.target.soft.limits(theirs).reads, 4);
        assert_eq!(world.host.soft.limits(ours).send_queue, 24);
        assert_ne!(region, world.host.soft.allocate_mr(ours));

        world.host.soft.disconnect(ours);
        world.host.soft.disconnect(ours);
        assert!(matches!(world.host_connection(), CmEvent::Disconnected { qp, .. } if qp == ours));
        assert!(matches!(world.target_connection(), CmEvent::Disconnected { qp, .. } if qp == theirs));
        world.settle();
        assert!(world.host.soft.poll().is_none() && world.target.soft.poll().is_none());
        world.host.soft.destroy(ours);
        world.target.soft.destroy(theirs);
        assert_eq!((world.host.soft.queue_pairs(), world.target.soft.queue_pairs()), (0, 0));
    }
}

fn refused(world: &mut World) -> RejectReason {
    match world.host_connection() {
        CmEvent::Refused { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rejection_arrives_whole_though_the_wire_is_closed_behind_it() {
    for seed in 0..20 {
        let mut world = World::new(seed, true, false);
        world.connect();
        let request = world.request();
        world.target.soft.reject(request, b"no");
        assert_eq!(refused(&mut world), RejectReason::Rejected(b"no"[..].try_into().unwrap()));
        world.settle();
        assert_eq!((world.host.soft.queue_pairs(), world.target.soft.queue_pairs()), (0, 0));
    }
}

#[test]
fn nobody_listens() {
    let mut world = World::new(1, false, false);
    let elsewhere = "10.0.0.3:1".parse().unwrap();
    world.host.soft.connect(elsewhere, PARAMETERS, &[]);
    assert!(matches!(refused(&mut world), RejectReason::Unreachable(_)));
    assert_eq!(world.host.soft.queue_pairs(), 0);
}

#[test]
fn a_connect_can_be_given_up() {
    let mut world = World::new(1, false, false);
    let qp = world.connect();
    world.pump();
    world.host.soft.disconnect(qp);
    assert!(matches!(refused(&mut world), RejectReason::Unreachable(_)));
    world.host.soft.disconnect(qp);
    // The target may have been asked before, and then learns of it after its yes.
    for _ in 0..100 {
        world.pump();
        if let Some(Event::Connection(event)) = world.target.soft.poll() {
            match *event {
                CmEvent::Request(request) => world.target.soft.accept(request, PARAMETERS, &[]),
                CmEvent::Disconnected { qp, .. } => world.target.soft.destroy(qp),
                other => panic!("{other:?}"),
            }
        }
    }
    world.settle();
    assert_eq!(world.target.soft.queue_pairs(), 0);
}

#[test]
fn silence_ends_a_start_up_on_both_sides() {
    let mut world = World::new(3, false, false);
    let mut dialer = world.pipes.dialer(HOST.parse().unwrap());
    let silent = dialer.dial(TARGET.parse().unwrap()).unwrap();
    world.pump();
    assert_eq!(world.target.soft.queue_pairs(), 1);
    let deadline = world.target.soft.deadline().expect("the request has a deadline");
    assert_eq!(deadline - world.now, Duration::from_secs(5));
    world.now = deadline;
    world.pump();
    assert_eq!(world.target.soft.queue_pairs(), 0);
    drop(silent);

    world.connect();
    while world.pipes.accept(TARGET.parse().unwrap()).is_none() {
        world.host.soft.pump(world.now);
    }
    let mut world = World::new(3, false, false);
    world.connect();
    let kept = world.pipes.accept(TARGET.parse().unwrap());
    world.pump();
    let deadline = world.host.soft.deadline().expect("the reply has a deadline");
    assert_eq!(deadline - world.now, Duration::from_secs(10));
    world.now = deadline;
    assert_eq!(refused(&mut world), RejectReason::TimedOut);
    drop(kept);
}

#[test]
fn who_speaks_something_else_is_hung_up_on() {
    let mut world = World::new(4, false, false);
    let mut dialer = world.pipes.dialer(HOST.parse().unwrap());
    let mut wire = dialer.dial(TARGET.parse().unwrap()).unwrap();
    let hello = Outgoing::of_frame(b"GET / HTTP/1.1\r\n\r\n");
    while wire.send(&world.host.memory, &hello).is_err() {}
    for _ in 0..100 {
        world.pump();
    }
    assert_eq!(world.target.soft.queue_pairs(), 0);
    assert!(world.target.soft.poll().is_none());
}

#[test]
fn a_read_without_an_answer_ends_the_connection() {
    let mut world = World::new(5, false, false);
    let (ours, theirs) = world.connected();
    let remote = Remote { address: 0, rkey: 0 };
    world.host.soft.post_command(ours, token(Kind::Command, 0), &[0; 64], None, None);
    let Event::Received(received) = world.next(|world| &mut world.target) else { panic!() };
    world.target.soft.repost(received);
    let into = world.target.data.slice(0, 4096);
    world.target.soft.post_fetch(theirs, token(Kind::Fetch, 7), remote, into);
    // The host is never pumped again.
    for _ in 0..100 {
        world.now = world.now + TICK;
        world.target.soft.pump(world.now);
    }
    let posted = world.now;
    // Before that it gives back what it has received into.
    world.now = world.target.soft.deadline().expect("it rests");
    assert_eq!(world.now - posted, REST_AFTER - 100 * TICK);
    world.target.soft.pump(world.now);
    let deadline = world.target.soft.deadline().expect("an answer has a deadline");
    assert!(deadline - posted <= Duration::from_secs(15) && deadline - posted > Duration::from_secs(14));
    world.now = deadline;
    world.target.soft.pump(world.now);
    let status = WcStatus::Flushed;
    let flushed = Wc { qp: theirs, token: token(Kind::Fetch, 7), status };
    assert!(matches!(world.target.soft.poll(), Some(Event::Completed(wc)) if wc == flushed));
    match world.target_connection() {
        CmEvent::Disconnected { reason, .. } => assert_eq!(reason, "an RDMA Read remains unanswered"),
        other => panic!("{other:?}"),
    }
}

/// A connection of which the target reads a megabyte of the host's memory; at the host no time passes.
fn with_a_large_read(seed: u64) -> (World, Time) {
    let mut world = World::new(seed, false, false);
    let (ours, theirs) = world.connected();
    let region = world.host.soft.allocate_mr(ours);
    let exposure = world.host.soft.prepare(ours, region, world.host.data, Access::RemoteRead);
    world.host.soft.post_command(ours, token(Kind::Command, 0), &[0; 64], None, Some(exposure));
    let Event::Received(received) = world.next(|world| &mut world.target) else { panic!() };
    world.target.soft.repost(received);
    world.target.soft.post_fetch(theirs, token(Kind::Fetch, 7), exposure.remote, world.target.data);
    let frozen = world.now;
    (world, frozen)
}

/// The host sends what fits into the pipe, the target takes it at its time.
fn trickle(world: &mut World, host_time: Time) {
    for _ in 0..20 {
        world.target.soft.pump(world.now);
    }
    for _ in 0..20 {
        world.host.soft.pump(host_time);
    }
}

#[test]
fn pieces_of_an_answer_gain_a_read_no_time() {
    let (mut world, frozen) = with_a_large_read(8);
    trickle(&mut world, frozen);
    trickle(&mut world, frozen);
    for second in 1..=15 {
        assert!(world.target.soft.poll().is_none(), "the read stands after {second} s");
        world.now = world.now + Duration::from_secs(1);
        if second % 5 == 0 {
            trickle(&mut world, frozen);
        }
        world.target.soft.pump(world.now);
    }
    assert!(matches!(world.target.soft.poll(), Some(Event::Completed(wc)) if wc.status == WcStatus::Flushed));
    match world.target_connection() {
        CmEvent::Disconnected { reason, .. } => assert_eq!(reason, "an RDMA Read remains unanswered"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pieces_taken_gain_a_message_no_time() {
    let (mut world, frozen) = with_a_large_read(9);
    for _ in 0..20 {
        world.target.soft.pump(world.now);
    }
    // The host answers as fast as the pipe takes it, and the target reads on now and then.
    for second in 0..=20 {
        world.host.soft.pump(frozen + Duration::from_secs(second));
        if second == 5 || second == 10 {
            world.target.soft.pump(world.now);
        }
    }
    let ended = std::iter::from_fn(|| world.host.soft.poll()).find_map(|event| match event {
        Event::Connection(event) => Some(*event),
        _ => None,
    });
    match ended.expect("its time is up") {
        CmEvent::Disconnected { reason, .. } => assert_eq!(reason, "the peer does not take a message"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_provider_that_is_full_refuses_and_goes_on() {
    let mut world = World::new(10, false, false);
    world.target.soft.connections.most = 2;
    world.host.soft.connections.most = 3;
    let connected = [world.connected(), world.connected()];
    // The target has no handle for a third, and hangs up.
    world.connect();
    assert!(matches!(refused(&mut world), RejectReason::Unreachable(_)));
    // Nor has the host for a fourth.
    world.connect();
    world.host.soft.connections.most = 2;
    let qp = world.connect();
    world.host.soft.disconnect(qp);
    let reasons = [refused(&mut world), refused(&mut world)];
    assert!(reasons.iter().any(|reason| reason.to_string().contains("2 connections are all")), "{reasons:?}");
    for (ours, theirs) in connected {
        world.host.soft.disconnect(ours);
        assert!(matches!(world.host_connection(), CmEvent::Disconnected { .. }));
        assert!(matches!(world.target_connection(), CmEvent::Disconnected { .. }));
        world.host.soft.destroy(ours);
        world.target.soft.destroy(theirs);
    }
    world.connected();
    assert_eq!((world.host.soft.queue_pairs(), world.target.soft.queue_pairs()), (1, 1));
}

#[test]
fn the_peer_learns_why() {
    for seed in 0..20 {
        let mut world = World::new(seed, seed % 2 == 0, false);
        let (ours, theirs) = world.connected();
        // More messages than the target has buffers for.
        for slot in 0..9 {
            world.host.soft.post_command(ours, token(Kind::Command, slot), &[0; 64], None, None);
        }
        let mut lent = Vec::new();
        let reason = loop {
            match world.next(|world| &mut world.target) {
                Event::Received(received) => lent.push(received),
                Event::Connection(event) => match *event {
                    CmEvent::Disconnected { reason, .. } => break reason,
                    other => panic!("{other:?}"),
                },
                Event::Completed(wc) => panic!("{wc:?}"),
            }
        };
        assert_eq!(reason, "a message without a receive buffer");
        assert_eq!(lent.len(), 8);
        for received in lent {
            assert_eq!(world.target.soft.message(&received), [0; 64]);
            world.target.soft.repost(received);
        }
        world.target.soft.destroy(theirs);
        let reason = loop {
            match world.next(|world| &mut world.host) {
                Event::Connection(event) => break *event,
                Event::Completed(_) => {}
                Event::Received(received) => panic!("{received:?}"),
            }
        };
        let CmEvent::Disconnected { reason, .. } = reason else { panic!("{reason:?}") };
        assert!(reason.contains("no buffer available"), "{reason}");
        world.settle();
    }
}

#[test]
#[should_panic(expected = "messages still lent")]
fn a_lent_message_forbids_to_destroy() {
    let mut world = World::new(6, false, false);
    let (ours, theirs) = world.connected();
    world.host.soft.post_command(ours, token(Kind::Command, 0), &[0; 64], None, None);
    let Event::Received(_lent) = world.next(|world| &mut world.target) else { panic!() };
    world.target.soft.disconnect(theirs);
    world.target.soft.destroy(theirs);
}

#[test]
fn nobody_has_caught_up_before_the_wire_was_found_empty() {
    let mut world = World::new(11, false, false);
    let (ours, theirs) = world.connected();
    assert!(world.target.soft.has_caught_up(theirs), "nobody asked");
    world.target.soft.catch_up(theirs);
    for slot in 0..8 {
        assert!(!world.target.soft.has_caught_up(theirs));
        world.host.soft.post_command(ours, token(Kind::Command, slot), &[0; 64], None, None);
        world.host.soft.pump(world.now);
    }
    while !world.target.soft.has_caught_up(theirs) {
        world.pump();
    }
    world.target.soft.catch_up(theirs);
    world.target.soft.disconnect(theirs);
    assert!(world.target.soft.has_caught_up(theirs), "nothing comes any more");
}

#[test]
fn a_peer_that_says_nothing_is_nudged_until_it_does() {
    let mut world = World::new(7, true, true);
    let (ours, _) = world.connected();
    let nudge_at = |world: &World| world.host.soft.connections.get(ours).nudge_at();
    let first = nudge_at(&world).expect("the target owes an answer");
    while nudge_at(&world) == Some(first) {
        assert!(world.host.soft.deadline().is_some(), "whoever sleeps has to be woken for it");
        world.now = world.now + Duration::from_millis(50);
        world.pump();
    }
    assert!(world.now >= first);
    // What says nothing is no message, and breaks nothing.
    for _ in 0..100 {
        world.pump();
    }
    assert!(world.target.soft.poll().is_none() && world.host.soft.poll().is_none());
}
