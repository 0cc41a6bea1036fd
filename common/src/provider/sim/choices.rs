//! Where a simulated world gets its decisions from: a seed, a fuzzer's bytes, or a recorded list.

/// One decision after another. Everything a world does follows from these.
pub trait Choices {
    /// A number below `bound`, which is not zero.
    fn below(&mut self, bound: u32) -> u32;

    /// True in `percent` of all cases.
    fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

/// A pseudo-random source of our own (SplitMix64), so that a seed means the same world for ever.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

impl Choices for Prng {
    fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "nothing to choose from");
        // The high half times the bound, its high half: unbiased enough for bounds this small.
        u32::try_from(((self.next() >> 32) * u64::from(bound)) >> 32).expect("below a 32-bit bound")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_stays_below_the_bound() {
        let draw = |seed| {
            let mut prng = Prng::new(seed);
            (1..200).map(|bound| prng.below(bound)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(9).iter().zip(1..).all(|(&drawn, bound)| drawn < bound));
    }
}
