//! The entry points of the fuzzers, driven by a seed: what runs where libFuzzer cannot. `IRONSIDE_SEEDS` says
//! how many seeds, `IRONSIDE_SEED` which one to replay.
use ironside_tests::fuzzing::{authentication, bytes, operations, world};

const SEEDS: u64 = 2000;

/// Hands `entry` bytes of any length and, for every second seed, bytes which begin like `example`.
#[track_caller]
fn drive(entry: fn(&[u8]), examples: &[&[u8]]) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("IRONSIDE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("IRONSIDE_SEEDS").unwrap_or(SEEDS).min(SEEDS * 100),
    };
    for seed in seeds {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let length = usize::try_from(random.next() % 4096).expect("less than 4096");
        let mut data: Vec<u8> = (0..length).map(|_| (random.next() >> 32) as u8).collect();
        if let Some(example) = examples.get(usize::try_from(seed % 8).expect("less than 8")) {
            data.splice(..0, example.iter().copied());
            for _ in 0..random.next() % 4 {
                let at = usize::try_from(random.next()).unwrap_or(usize::MAX) % data.len();
                data[at] = (random.next() >> 32) as u8;
            }
        }
        let outcome = std::panic::catch_unwind(|| entry(&data));
        assert!(outcome.is_ok(), "replay it by IRONSIDE_SEED={seed}");
    }
}

/// xorshift64*: the same numbers for the same seed, for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

#[test]
fn mpa_survives_any_bytes() {
    let request: &[u8] = b"MPA ID Req Frame\x40\x01\x00\x20";
    let reply: &[u8] = b"MPA ID Rep Frame\x50\x02\x00\x24\x80\x10\x40\x10";
    drive(bytes::mpa, &[request, reply]);
}

#[test]
fn a_stream_survives_any_bytes() {
    // Length, tagged or untagged and last, opcode; the two bytes before choose CRC, role and the first split.
    let send: &[u8] = b"\x00\x00\x07\xD0\x00\x32\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0";
    let write: &[u8] = b"\x00\x00\x07\xD0\x00\x20\xC1\x40";
    let read: &[u8] = b"\x00\x01\x07\xD0\x00\x2E\x41\x41\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\0";
    drive(bytes::iwarp, &[send, write, read]);
}

#[test]
fn capsules_survive_any_bytes() {
    drive(bytes::nvme, &[b"\x7F\x00\x00\x00\x01", b"\x01", b"\x02", b"\x06"]);
}

#[test]
fn nobody_authenticates_without_the_secret() {
    // No group, one of the hashes, no controller key; then step after step without a change.
    let steps: &[u8] = b"\0\0\0\0\0\x04\0\x02\0\x04\0\x02\0\x04\0\x02\0\x04\0\x02\0\x04\0\x02";
    let other_hash: &[u8] = b"\0\0\x02\x01\0\x04\0\x02\0\x04\0\x02\0\x04\0\0\0\x10\x01\0\x04\0\x02";
    drive(authentication::messages, &[steps, other_hash]);
}

#[test]
fn two_streams_agree_under_any_split() {
    drive(operations::pair, &[]);
}

#[test]
fn a_world_keeps_its_promises_under_any_choices() {
    drive(world::fabric, &[]);
}
