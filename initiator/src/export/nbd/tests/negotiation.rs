//! Haggling, option by option.
use super::world::{World, client_flags, info_data, option, parameters};
use crate::export::nbd::wire::{self, answer, export_flag, info, option as number};
use crate::export::nbd::{Fault, LARGEST_REQUEST};
use crate::export::tests::GEOMETRY;

const SIZE: u64 = GEOMETRY.size;

fn greeted() -> World {
    let mut world = World::new(parameters());
    world.say(&client_flags());
    let greeting = world.take(18);
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    assert_eq!(greeting[16..], 3_u16.to_be_bytes());
    assert!(world.output.is_empty());
    world
}

#[test]
fn go_tells_size_flags_and_limits_and_then_requests_are_served() {
    let mut world = greeted();
    let kinds = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 77];
    world.say(&option(number::GO, &info_data("", &kinds)));
    let (_, kind, export) = world.answer();
    assert_eq!(kind, answer::INFO);
    let flags = u16::from_be_bytes([export[10], export[11]]);
    assert_eq!(export[..2], info::EXPORT.to_be_bytes());
    assert_eq!(export[2..10], SIZE.to_be_bytes());
    assert_eq!(flags & export_flag::READ_ONLY, 0);
    assert_eq!(flags & export_flag::SEND_DF, 0, "only with structured replies");
    let expected = export_flag::SEND_FLUSH
        | export_flag::SEND_FUA
        | export_flag::SEND_TRIM
        | export_flag::SEND_WRITE_ZEROES
        | export_flag::CAN_MULTI_CONN;
    assert_eq!(flags & expected, expected);
    let (_, _, sizes) = world.answer();
    assert_eq!(sizes[2..6], 512_u32.to_be_bytes());
    assert_eq!(sizes[6..10], 4096_u32.to_be_bytes());
    assert_eq!(sizes[10..14], LARGEST_REQUEST.to_be_bytes());
    assert_eq!(world.answer().2[2..], *b"vol");
    assert_eq!(world.answer().2[2..], *b"a volume");
    assert_eq!(world.answer(), (number::GO, answer::ACK, vec![]));
    world.say(&super::world::request(wire::command::FLUSH, 0, 9, 0, 0));
    assert_eq!(world.simple_reply(), (0, 9));
}

#[test]
fn info_does_not_end_the_haggling() {
    let mut world = greeted();
    world.say(&option(number::INFO, &info_data("vol", &[])));
    let kinds: Vec<u32> = (0..3).map(|_| world.answer().1).collect();
    assert_eq!(kinds, [answer::INFO, answer::INFO, answer::ACK]);
    world.say(&option(number::LIST, &[]));
    let (_, kind, entry) = world.answer();
    assert_eq!((kind, &entry[4..7]), (answer::SERVER, &b"vol"[..]));
    assert_eq!(world.answer().1, answer::ACK);
}

#[test]
fn what_cannot_be_is_refused_and_haggling_goes_on() {
    let mut world = greeted();
    let bad_name = info_data("other", &[]);
    let short = info_data("vol", &[])[..5].to_vec();
    let long = [info_data("vol", &[]), vec![0]].concat();
    let endless_name = info_data(&"x".repeat(4097), &[]);
    let cases: [(u32, &[u8], u32); 11] = [
        (number::GO, &bad_name, answer::UNKNOWN),
        (number::GO, &short, answer::INVALID),
        (number::INFO, &long, answer::INVALID),
        (number::INFO, &endless_name, answer::INVALID),
        (number::LIST, &[1], answer::INVALID),
        (number::STRUCTURED_REPLY, &[1], answer::INVALID),
        (5, &[], answer::UNSUPPORTED),
        (10, &[1, 2, 3], answer::INVALID),
        (11, &[], answer::UNSUPPORTED),
        (u32::MAX, &[], answer::UNSUPPORTED),
        (number::GO, &[0; 9000], answer::TOO_BIG),
    ];
    for (number, data, expected) in cases {
        world.say(&option(number, data));
        assert_eq!(world.answer(), (number, expected, vec![]));
        assert!(world.output.is_empty());
    }
}

#[test]
fn the_old_way_gets_size_and_flags_and_zeroes_unless_told_not_to() {
    let mut world = greeted();
    world.say(&option(number::EXPORT_NAME, b"vol"));
    assert_eq!(world.take(8), SIZE.to_be_bytes());
    world.take(2);
    assert!(world.output.is_empty());

    let mut world = World::new(parameters());
    world.say(&1_u32.to_be_bytes());
    world.take(18);
    world.say(&option(number::EXPORT_NAME, b""));
    assert_eq!(world.output.len(), 8 + 2 + 124);

    let failed = greeted().try_say(&option(number::EXPORT_NAME, b"other"), usize::MAX);
    assert_eq!(failed, Err(Fault::UnknownExport));
}

#[test]
fn abort_is_acknowledged_and_ends_the_connection() {
    let mut world = greeted();
    world.say(&option(number::ABORT, &[]));
    assert_eq!(world.answer().1, answer::ACK);
    assert!(world.connection.is_over());
}

#[test]
fn a_client_which_does_not_speak_the_protocol_is_left() {
    let flags = World::new(parameters()).try_say(&0xFF_u32.to_be_bytes(), usize::MAX);
    assert_eq!(flags, Err(Fault::ClientFlags(0xFF)));
    assert_eq!(greeted().try_say(&[0; 16], usize::MAX), Err(Fault::OptionMagic(0)));
    let mut endless = option(number::GO, &[]);
    endless[12..].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(greeted().try_say(&endless, usize::MAX), Err(Fault::OptionLength(u32::MAX)));
    let many = option(number::LIST, &[]).repeat(2000);
    assert_eq!(greeted().try_say(&many, usize::MAX), Err(Fault::TooManyOptions(1024)));
}

#[test]
fn a_read_only_volume_says_so() {
    let mut parameters = parameters();
    parameters.read_only = true;
    let flags = parameters.flags(true);
    assert_ne!(flags & export_flag::READ_ONLY, 0);
    assert_ne!(flags & export_flag::SEND_DF, 0);
    assert_eq!(flags & (export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES), 0);
}

/// Data of the options about metadata contexts.
fn contexts(queries: &[&str]) -> Vec<u8> {
    let queries_count = queries.len();
    let number = |number: usize| u32::try_from(number).unwrap().to_be_bytes();
    let string = |text: &str| [&number(text.len()), text.as_bytes()].concat();
    let queries = queries.iter().flat_map(|query| string(query)).collect();
    [string("vol"), number(queries_count).to_vec(), queries].concat()
}

#[test]
fn the_allocation_context_is_listed_selected_and_served() {
    const NAME: &[u8] = b"base:allocation";
    let mut world = greeted();
    let select = option(number::SET_META_CONTEXT, &contexts(&["other:x", "base:allocation"]));
    world.say(&select);
    assert_eq!(world.answer().1, answer::INVALID, "structured replies come first");
    world.say(&option(number::STRUCTURED_REPLY, &[]));
    world.answer();
    for queries in [&[][..], &["base:"]] {
        world.say(&option(number::LIST_META_CONTEXT, &contexts(queries)));
        let (_, kind, context) = world.answer();
        assert_eq!((kind, &context[4..]), (answer::META_CONTEXT, NAME));
        assert_eq!(world.answer().1, answer::ACK);
    }
    world.say(&option(number::LIST_META_CONTEXT, &contexts(&["base:other", "qemu:"])));
    assert_eq!(world.answer().1, answer::ACK);
    world.say(&select);
    let (_, _, context) = world.answer();
    assert_eq!(world.answer().1, answer::ACK);
    world.say(&option(number::GO, &info_data("vol", &[])));
    world.output.clear();
    let status = |cookie, length| super::world::request(wire::command::BLOCK_STATUS, 8, cookie, 512, length);
    world.say(&status(1, 4096));
    let (cookie, kind, last, payload) = world.chunk();
    assert_eq!((cookie, kind, last), (1, wire::chunk::BLOCK_STATUS, true));
    assert_eq!(payload, [&context[..4], &4096_u32.to_be_bytes(), &[0; 4]].concat());
    world.say(&status(2, u32::MAX - 511));
    assert_eq!(world.chunk().1, wire::chunk::ERROR);
}

#[test]
fn without_the_context_block_status_is_refused() {
    let mut world = World::transmitting(parameters(), true);
    world.say(&super::world::request(wire::command::BLOCK_STATUS, 0, 3, 0, 512));
    assert_eq!(world.chunk().1, wire::chunk::ERROR);
}
