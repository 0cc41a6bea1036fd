//! The CRC32C which ends every FPDU (RFC 5044, section 4.4).

/// Bytes the CRC field takes on the wire.
pub const CRC_LENGTH: usize = 4;

/// The CRC field over `covered`, as it stands on the wire: ULPDU length, ULPDU and padding.
#[must_use]
pub fn crc32c(covered: &[u8]) -> [u8; CRC_LENGTH] {
    crc_fast::crc32_iscsi(covered).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One bit at a time: slow, and too simple to be wrong.
    fn reference(bytes: &[u8]) -> [u8; 4] {
        let mut state = u32::MAX;
        for &byte in bytes {
            state ^= u32::from(byte);
            for _ in 0..8 {
                state = if state & 1 == 1 { (state >> 1) ^ 0x82F6_3B78 } else { state >> 1 };
            }
        }
        (!state).to_le_bytes()
    }

    #[test]
    fn known_sums() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283_u32.to_le_bytes());
        assert_eq!(crc32c(&[0; 32]), [0xAA, 0x36, 0x91, 0x8A]);
        assert_eq!(crc32c(&[0xFF; 32]), [0x43, 0xAB, 0xA8, 0x62]);
    }

    proptest! {
        #[test]
        fn it_is_what_the_bitwise_reference_says(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert_eq!(crc32c(&bytes), reference(&bytes));
        }
    }
}
