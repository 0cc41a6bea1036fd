//! Bit fields, by one pair of functions: a mask and a shift written by hand disagree sooner or later.

/// Bits `hi` down to `lo` of `word`, as the specifications write `hi:lo`.
#[must_use]
pub const fn bits(word: u64, hi: u32, lo: u32) -> u64 {
    assert!(lo <= hi && hi < 64, "a field is hi:lo within 64 bits");
    (word >> lo) & (u64::MAX >> (63 - (hi - lo)))
}

/// Whether bit `n` of `word` is set.
#[must_use]
pub const fn bit(word: u64, n: u32) -> bool {
    bits(word, n, n) == 1
}

/// `value` put into bits `hi:lo` of a word otherwise zero.
///
/// # Panics
/// If it does not fit: a promise of ours, never a peer's number.
#[must_use]
pub const fn place(value: u64, hi: u32, lo: u32) -> u64 {
    assert!(value == bits(value, hi - lo, 0), "a value wider than its field");
    value << lo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_from_where_it_was_placed() {
        for hi in 0..64 {
            for lo in 0..=hi {
                let widest = u64::MAX >> (63 - (hi - lo));
                assert_eq!(bits(place(widest, hi, lo), hi, lo), widest);
                assert_eq!(bits(!place(widest, hi, lo), hi, lo), 0);
            }
        }
    }

    #[test]
    fn the_twelve_bits_of_a_shifted_length_are_read_whole() {
        assert_eq!(bits(0x0FFF_0000, 27, 16), 0xFFF);
        assert!(bit(0x8000_0000_0000_0000, 63));
    }
}
