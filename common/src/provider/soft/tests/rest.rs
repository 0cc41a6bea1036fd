//! What an idle connection keeps: next to nothing.
use super::*;

/// A command which comes to the target.
fn command(world: &mut World, ours: QpHandle, byte: u8) -> Received {
    world.host.soft.post_command(ours, token(Kind::Command, 0), &[byte; 64], None, None);
    match world.next(|world| &mut world.target) {
        Event::Received(received) => received,
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_one_after_another_lie_in_the_same_memory() {
    let mut world = World::new(1, false, false);
    let (ours, _) = world.connected();
    let places = [1, 2, 3].map(|byte| {
        let received = command(&mut world, ours, byte);
        let place = world.target.soft.message_sge(&received, 0);
        world.target.soft.repost(received);
        place
    });
    assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
}

#[test]
fn who_has_received_nothing_for_a_while_gives_the_memory_back_but_nothing_that_is_in_use() {
    let mut world = World::new(2, false, true);
    let (ours, theirs) = world.connected();
    let (first, second) = (command(&mut world, ours, 1), command(&mut world, ours, 2));
    let place = world.target.soft.message_sge(&second, 0);
    world.target.soft.repost(second);

    world.now = world.target.soft.deadline().expect("it rests");
    world.target.soft.pump(world.now);
    assert_eq!(world.target.soft.message(&first), [1; 64]);
    assert_eq!(world.target.bytes(place), [2; 64]);

    world.target.soft.repost(first);
    world.now = world.target.soft.deadline().expect("it tries again");
    world.target.soft.pump(world.now);
    assert_eq!(world.target.bytes(place), [0; 64]);
    assert_eq!(world.target.soft.deadline(), None, "it sleeps on");

    let third = command(&mut world, ours, 3);
    assert_eq!((world.target.soft.message(&third), third.qp), (&[3; 64][..], theirs));
}

#[test]
fn room_for_what_is_under_way_comes_back_however_a_connection_ends() {
    for seed in 0..20 {
        let mut world = World::new(seed, seed % 2 == 0, false);
        let connections = [(); 3].map(|()| world.connected());
        let spare = |side: &Side| (side.soft.spares.stagings.len(), side.soft.spares.leftovers.len());
        for (ours, _) in connections {
            let received = command(&mut world, ours, 7);
            world.target.soft.repost(received);
        }
        assert_eq!((spare(&world.host), spare(&world.target)), ((3, 3), (3, 3)));

        // One is cut in the midst of a large message, the others end in order.
        let [(first, _), (second, _), (third, _)] = connections;
        let data = world.host.data.slice(0, 4096);
        world.host.soft.post_command(first, token(Kind::Command, 0), &[0; 64], Some(data), None);
        world.host.soft.pump(world.now);
        world.target.soft.pump(world.now);
        for ours in [first, second, third] {
            world.host.soft.disconnect(ours);
        }
        world.settle();
        assert_eq!((spare(&world.host), spare(&world.target)), ((0, 0), (0, 0)));
    }
}
