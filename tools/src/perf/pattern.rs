//! What a verified block holds: where it belongs, which write it is from, and a checksum over all of it.
use ironside_common::iwarp::crc::crc32c;

/// Block number, sequence number, checksum.
const HEAD: usize = 20;

/// Fills a block. A sequence number of zero is that of a block never written.
pub(super) fn fill(block: &mut [u8], number: u64, sequence: u64) {
    let mut state = (number ^ sequence.rotate_left(32)) | 1;
    let (head, body) = block.split_at_mut(HEAD);
    for chunk in body.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    head[..8].copy_from_slice(&number.to_le_bytes());
    head[8..16].copy_from_slice(&sequence.to_le_bytes());
    head[16..].fill(0);
    let sum = crc32c(block);
    block[16..HEAD].copy_from_slice(&sum);
}

/// Why a block is not what it should be.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Mismatch {
    #[error("block {number} is damaged: its checksum is wrong")]
    Damaged { number: u64 },
    #[error("block {number} holds block {found}")]
    Misplaced { number: u64, found: u64 },
    #[error("block {number} holds write {found}, but write {wanted} was the last")]
    Stale { number: u64, found: u64, wanted: u64 },
}

/// Checks a block against what was written last. `block` is left without its checksum.
pub(super) fn check(block: &mut [u8], number: u64, sequence: u64) -> Result<(), Mismatch> {
    let mut sum = [0; 4];
    sum.copy_from_slice(&block[16..HEAD]);
    block[16..HEAD].fill(0);
    if crc32c(block) != sum {
        return Err(Mismatch::Damaged { number });
    }
    let word = |at: usize| block[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    match (word(0), word(8)) {
        (found, _) if found != number => Err(Mismatch::Misplaced { number, found }),
        (_, found) if found != sequence => Err(Mismatch::Stale { number, found, wanted: sequence }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_what_is_wrong_with_it() {
        let mut block = [0; 512];
        fill(&mut block, 7, 3);
        let good = block;
        assert_eq!(check(&mut block, 7, 3), Ok(()));
        for (number, sequence, mismatch) in [
            (8, 3, Mismatch::Misplaced { number: 8, found: 7 }),
            (7, 4, Mismatch::Stale { number: 7, found: 3, wanted: 4 }),
        ] {
            assert_eq!(check(&mut good.clone(), number, sequence), Err(mismatch));
        }
        for at in [0, 15, 16, 19, 20, 511] {
            let mut bad = good;
            bad[at] ^= 0x10;
            assert_eq!(check(&mut bad, 7, 3), Err(Mismatch::Damaged { number: 7 }), "byte {at}");
        }
    }
}
