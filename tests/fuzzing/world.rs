//! The simulated world, with the fuzzer for its source of choices: whatever it chooses, every promise holds.
use ironside_common::provider::sim::{Choices, Prng};
use ironside_tools::world;

/// Any bytes are a list of choices, and a seed goes on where they end.
pub fn fabric(data: &[u8]) {
    let mut chosen = Chosen { bytes: data, after: Prng::new(1) };
    let _report = world::run_with(&mut chosen);
}

struct Chosen<'a> {
    bytes: &'a [u8],
    after: Prng,
}

impl Choices for Chosen<'_> {
    fn below(&mut self, bound: u32) -> u32 {
        let Some((&[high, low], rest)) = self.bytes.split_first_chunk() else {
            return self.after.below(bound);
        };
        self.bytes = rest;
        u32::from(u16::from_be_bytes([high, low])) % bound
    }
}
