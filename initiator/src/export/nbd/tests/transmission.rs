//! Requests and what becomes of them.
use super::world::{World, parameters, request};
use crate::export::nbd::wire::{chunk, command, command_flag};
use crate::export::nbd::{ErrorNumber, Fault, LARGEST_REQUEST};
use crate::export::tests::{GEOMETRY, PIECE};
use crate::volume::{IoError, Operation};

const SIZE: u64 = GEOMETRY.size;

fn pattern(length: u32) -> Vec<u8> {
    (0..length).map(|i| (i * 7 / 3) as u8).collect()
}

fn write(cookie: u64, flags: u16, offset: u64, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    [request(command::WRITE, flags, cookie, offset, length), data.to_vec()].concat()
}

#[test]
fn what_was_written_is_read_back_at_any_split() {
    let data = pattern(3 * PIECE + 512);
    let mut bytes = write(1, command_flag::FUA, 512, &data);
    bytes.extend(request(command::READ, 0, 2, 512, 512));
    for at_once in [1, 7, 28, 511, 4096, usize::MAX] {
        let mut world = World::transmitting(parameters(), false);
        world.try_say(&bytes, at_once).unwrap();
        let length = data.len();
        assert_eq!(world.shelf.bytes[512..512 + length], data);
        assert!(world.shelf.log[..4].iter().all(|r| r.operation == Operation::Write { fua: true }));
        let mut replies = [world.simple_reply(), (0, 0)];
        if replies[0].1 == 2 {
            world.take(512);
        }
        replies[1] = world.simple_reply();
        replies.sort_unstable();
        assert_eq!(replies, [(0, 1), (0, 2)]);
        assert_eq!(world.pool.available(), 8 - usize::from(world.connection.has_output()));
    }
}

#[test]
fn a_long_read_comes_as_chunks_or_in_order() {
    let length = 2 * PIECE + 1024;
    let bytes = request(command::READ, 0, 5, 1024, length);

    let mut world = World::transmitting(parameters(), true);
    world.say(&bytes);
    let mut data = vec![0; length as usize];
    let mut lasts = Vec::new();
    for _ in 0..3 {
        let (cookie, kind, last, payload) = world.chunk();
        assert_eq!((cookie, kind), (5, chunk::OFFSET_DATA));
        let (offset, content) = payload.split_first_chunk().unwrap();
        let start = usize::try_from(u64::from_be_bytes(*offset)).unwrap() - 1024;
        data[start..start + content.len()].copy_from_slice(content);
        lasts.push(last);
    }
    assert_eq!(lasts, [false, false, true]);
    assert_eq!(data, world.shelf.bytes[1024..1024 + length as usize]);

    let mut world = World::transmitting(parameters(), false);
    world.say(&[bytes, request(command::FLUSH, 0, 6, 0, 0)].concat());
    assert_eq!(world.simple_reply(), (0, 5));
    assert_eq!(world.take(length as usize), world.shelf.bytes[1024..1024 + length as usize]);
    assert_eq!(world.simple_reply(), (0, 6));
}

#[test]
fn a_read_that_must_not_be_cut_is_served_whole_or_refused() {
    let mut world = World::transmitting(parameters(), true);
    world.say(&request(command::READ, command_flag::DF, 1, 0, PIECE));
    let (_, kind, last, payload) = world.chunk();
    assert_eq!((kind, last, payload.len()), (chunk::OFFSET_DATA, true, 8 + PIECE as usize));
    world.say(&request(command::READ, command_flag::DF, 2, 0, PIECE + 512));
    let (_, kind, last, payload) = world.chunk();
    assert_eq!((kind, last, payload[..4].to_vec()), (chunk::ERROR, true, 75_u32.to_be_bytes().to_vec()));
}

#[test]
fn an_error_names_its_offset_and_the_other_pieces_arrive() {
    let mut world = World::transmitting(parameters(), true);
    world.connection_gets(&request(command::READ, 0, 3, 0, 2 * PIECE));
    world.complete_at(1, Some(IoError::Medium)).unwrap();
    world.complete_at(0, None).unwrap();
    world.send(usize::MAX);
    let (_, kind, last, payload) = world.chunk();
    assert_eq!((kind, last), (chunk::ERROR_OFFSET, false));
    assert_eq!(payload[..4], 5_u32.to_be_bytes());
    assert_eq!(payload[6..], u64::from(PIECE).to_be_bytes());
    let (_, kind, last, _) = world.chunk();
    assert_eq!((kind, last), (chunk::OFFSET_DATA, true));
}

#[test]
fn a_simple_read_which_fails_halfway_ends_the_connection() {
    let mut world = World::transmitting(parameters(), false);
    world.connection_gets(&request(command::READ, 0, 3, 0, 2 * PIECE));
    world.complete_one(None).unwrap();
    world.advance().unwrap();
    assert_eq!(world.complete_one(Some(IoError::Medium)), Err(Fault::ReadBroken));

    let mut world = World::transmitting(parameters(), false);
    world.connection_gets(&request(command::READ, 0, 3, 0, 2 * PIECE));
    world.complete_one(Some(IoError::Medium)).unwrap();
    world.say(&request(command::FLUSH, 0, 4, 0, 0));
    assert_eq!([world.simple_reply(), world.simple_reply()], [(5, 3), (0, 4)]);
}

#[test]
fn zeroes_and_trims_reach_the_volume_with_their_flags() {
    let mut world = World::transmitting(parameters(), false);
    world.say(&request(command::WRITE_ZEROES, command_flag::NO_HOLE | command_flag::FUA, 1, 0, 1 << 19));
    world.say(&request(command::WRITE_ZEROES, 0, 2, 512, 512));
    world.say(&request(command::TRIM, command_flag::FUA, 3, 4096, 4096));
    world.say(&request(command::TRIM, 0, 4, 4096, 4096));
    world.say(&request(command::CACHE, 0, 5, 0, 4096));
    let operations: Vec<_> = world.shelf.log.iter().map(|request| request.operation).collect();
    let expected = [
        Operation::WriteZeroes { unmap: false, fua: true },
        Operation::WriteZeroes { unmap: true, fua: false },
        Operation::Discard,
        Operation::Flush,
        Operation::Discard,
    ];
    assert_eq!(operations, expected, "a trim with FUA is followed by a flush");
    assert_eq!(world.shelf.log[0].length, 1 << 19);
    for cookie in 1..=5 {
        assert_eq!(world.simple_reply(), (0, cookie));
    }
}

#[test]
fn impossible_requests_are_refused_with_the_right_number() {
    use ErrorNumber::{Invalid, NoSpace, NotSupported};
    let near_end = SIZE - 512;
    let cases = [
        (command::READ, 0, near_end, 1024, Invalid),
        (command::READ, 0, u64::MAX - 511, 512, Invalid),
        (command::READ, 0, 1, 512, Invalid),
        (command::READ, 0, 0, 511, Invalid),
        (command::READ, 0, 0, 0, Invalid),
        (command::READ, 0, 0, LARGEST_REQUEST + 512, Invalid),
        (command::READ, command_flag::DF, 0, 512, Invalid),
        (command::TRIM, 0, near_end, 1024, Invalid),
        (command::WRITE_ZEROES, 0, near_end, 1024, NoSpace),
        (command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 512, NotSupported),
        (command::CACHE, command_flag::NO_HOLE, 0, 512, Invalid),
        (command::FLUSH, 0, 512, 0, Invalid),
        (7, 0, 0, 512, Invalid),
        (u16::MAX, u16::MAX, u64::MAX, u32::MAX, Invalid),
    ];
    let mut world = World::transmitting(parameters(), false);
    for (cookie, (command, flags, offset, length, expected)) in (0..).zip(cases) {
        world.say(&request(command, flags, cookie, offset, length));
        assert_eq!(world.simple_reply(), (expected as u32, cookie), "command {command} at {offset}");
    }
    assert!(world.shelf.log.is_empty());
}

#[test]
fn the_data_of_a_refused_write_is_passed_over() {
    let mut parameters = parameters();
    let mut world = World::transmitting(parameters.clone(), false);
    let beyond = write(1, 0, SIZE - 512, &pattern(1024));
    world.try_say(&[beyond, request(command::FLUSH, 0, 2, 0, 0)].concat(), 100).unwrap();
    assert_eq!(world.simple_reply(), (28, 1));
    assert_eq!(world.simple_reply(), (0, 2));

    parameters.read_only = true;
    let mut world = World::transmitting(parameters, false);
    let oversized = write(1, 0, 0, &pattern(LARGEST_REQUEST + 512));
    world.say(&[oversized, request(command::READ, 0, 2, 0, 512)].concat());
    assert_eq!(world.simple_reply(), (1, 1));
    assert_eq!(world.simple_reply(), (0, 2));
    assert!(world.shelf.log.iter().all(|request| request.operation == Operation::Read));
}

#[test]
fn without_a_buffer_the_client_waits() {
    let mut world = World::transmitting(parameters(), false);
    let leases: Vec<_> = std::iter::from_fn(|| world.pool.lease(512)).collect();
    let data = pattern(4096);
    world.say(&write(1, 0, 0, &data));
    world.say(&vec![0; 200_000]);
    assert!(world.unread() > 100_000, "reads on without an end");
    assert!(world.shelf.log.is_empty());
    drop(leases);
    assert_eq!(world.try_say(&[], usize::MAX), Err(Fault::RequestMagic(0)));
    assert_eq!(world.shelf.log.len(), 1);
}

#[test]
fn without_room_in_the_volume_or_a_reader_the_client_waits() {
    let mut world = World::transmitting(parameters(), false);
    world.shelf.room = 1;
    let mut bytes = Vec::new();
    (0..500).for_each(|cookie| bytes.extend(request(command::FLUSH, 0, cookie, 0, 0)));
    world.connection_gets(&bytes);
    assert_eq!(world.shelf.pending.len(), 1);
    // Nobody takes the replies: at some point no more requests are taken either.
    while world.complete_one(None).unwrap() {
        world.advance().unwrap();
    }
    assert_eq!(world.shelf.log.len(), crate::export::nbd::connection::DEPTH);
    world.say(&[]);
    for cookie in 0..500 {
        assert_eq!(world.simple_reply(), (0, cookie));
    }
}

#[test]
fn a_goodbye_waits_for_what_was_asked() {
    let mut world = World::transmitting(parameters(), false);
    let bytes = [write(1, 0, 0, &pattern(512)), request(command::DISCONNECT, 0, 0, 0, 0)].concat();
    world.connection_gets(&bytes);
    assert!(!world.connection.is_over());
    world.say(&[]);
    assert_eq!(world.simple_reply(), (0, 1));
    assert!(world.connection.is_over());
}

#[test]
fn an_ended_connection_answers_what_it_can_and_drops_half_a_write() {
    let mut world = World::transmitting(parameters(), false);
    let mut bytes = request(command::READ, 0, 1, 0, 512);
    bytes.extend(write(2, 0, 0, &pattern(2 * PIECE)));
    bytes.truncate(bytes.len() - 1);
    world.connection_gets(&bytes);
    world.connection.end();
    world.say(&[]);
    assert_eq!(world.simple_reply(), (0, 1));
    world.take(512);
    assert_eq!(world.simple_reply(), (108, 2));
    assert!(world.connection.is_over());
    assert_eq!(world.pool.available(), world.pool.total());
}

#[test]
fn an_abandoned_connection_keeps_its_buffers_until_the_volume_is_done() {
    let mut world = World::transmitting(parameters(), true);
    world.connection_gets(&request(command::READ, 0, 1, 0, 4 * PIECE));
    world.connection.abandon();
    assert!(!world.connection.is_over());
    assert_eq!(world.pool.available(), world.pool.total() - 4);
    while world.complete_one(None).unwrap() {}
    assert!(world.connection.is_over());
    assert_eq!(world.pool.available(), world.pool.total());
}

#[test]
fn after_the_haggling_nothing_is_allocated() {
    let mut world = World::transmitting(parameters(), true);
    let data = pattern(PIECE + 512);
    let mut allocations = 0;
    for round in 0..50 {
        let offset = round * 512;
        let mut bytes = write(1, 0, offset, &data);
        bytes.extend(request(command::READ, 0, 2, offset, 3 * PIECE));
        bytes.extend(request(command::TRIM, command_flag::FUA, 3, offset, 512));
        bytes.extend(request(command::READ, 0, 4, 1, 512));
        bytes.extend(request(command::FLUSH, 0, 5, 0, 0));
        world.queue(&bytes);
        loop {
            let received = world.receive(usize::MAX);
            let mut did = false;
            let mut step = || did = world.advance().unwrap() | world.complete_one(None).unwrap();
            allocations += allocation_counter::measure(&mut step).count_total;
            let mut sent = 0;
            let send = || {
                sent = world.connection.parts().map(|part| part.len()).sum();
                world.connection.sent(sent);
            };
            allocations += allocation_counter::measure(send).count_total;
            if !received && !did && sent == 0 {
                break;
            }
        }
    }
    assert!(world.shelf.log.len() > 50 * 5);
    assert_eq!(allocations, 0);
}

impl World {
    /// Sends bytes which are understood, while the volume does nothing and nobody reads.
    fn connection_gets(&mut self, bytes: &[u8]) {
        self.queue(bytes);
        while self.receive(usize::MAX) | self.advance().unwrap() {}
    }
}
