//! Any bytes, split in any way: nothing panics, the split makes no difference, and every buffer comes back.
use proptest::prelude::*;

use super::world::{World, client_flags, info_data, option, parameters, request};

/// Something a client might say, mostly with sense.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let blocks = |limit: u64| (0..limit).prop_map(|block| block * 512);
    let any_option = (0_u32..14, prop::collection::vec(any::<u8>(), 0..40));
    let sound_request = (0_u16..8, 0_u16..4, any::<u64>(), blocks(2100), blocks(80)).prop_map(
        |(c, f, cookie, offset, length)| {
            let length = u32::try_from(length).unwrap();
            let mut bytes = request(c, f, cookie, offset, length);
            let data = if c == 1 { length as usize } else { 0 };
            bytes.resize(bytes.len() + data, 0xA5);
            bytes
        },
    );
    let any_request = (any::<u16>(), any::<u16>(), any::<u64>(), any::<u64>(), any::<u32>())
        .prop_map(|(c, f, cookie, offset, length)| request(c, f, cookie, offset, length));
    prop_oneof![
        2 => any_option.prop_map(|(number, data)| option(number, &data)),
        1 => Just(option(8, &[])),
        2 => Just(option(7, &info_data("vol", &[3]))),
        8 => sound_request,
        1 => any_request,
        1 => prop::collection::vec(any::<u8>(), 0..60),
    ]
}

fn conversation() -> impl Strategy<Value = Vec<u8>> {
    (prop::bool::weighted(0.95), prop::collection::vec(words(), 0..20)).prop_map(|(sound, words)| {
        let start = if sound { client_flags() } else { vec![0xFF; 4] };
        [start, words.concat()].concat()
    })
}

/// What becomes of a conversation at most so many bytes at a time.
fn outcome(bytes: &[u8], at_once: usize) -> (Vec<u8>, bool) {
    let mut world = World::new(parameters());
    let result = world.try_say(bytes, at_once);
    if result.is_err() {
        world.connection.abandon();
    } else {
        world.connection.end();
        world.try_say(&[], usize::MAX).unwrap();
    }
    while world.complete_one(None).unwrap() {}
    assert!(world.connection.is_over());
    assert_eq!(world.pool.available(), world.pool.total());
    (world.shelf.bytes, result.is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_split_makes_no_difference(bytes in conversation(), at_once in 1_usize..5000) {
        prop_assert_eq!(outcome(&bytes, at_once), outcome(&bytes, usize::MAX));
    }

    #[test]
    fn noise_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..2000), at_once in 1_usize..100) {
        outcome(&bytes, at_once);
        let mut world = World::transmitting(parameters(), true);
        // Whether it is refused or ignored depends on the noise; that it ends is what counts.
        let _ = world.try_say(&bytes, at_once);
        world.connection.abandon();
        while world.complete_one(None).unwrap() {}
        prop_assert!(world.connection.is_over());
    }
}
