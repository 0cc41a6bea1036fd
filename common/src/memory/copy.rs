//! Copies of bytes which others may write, or read, meanwhile.
//!
//! Two hosts may race for a block of a memory namespace, and what a reader of it gets is then a mixture. For Rust that race
//! must not exist: the bytes are moved by instructions the compiler knows nothing of or, where nobody wrote
//! them down, by relaxed atomics, which are four times slower in the cache since they are words.

/// Copies `length` bytes. They may change meanwhile; what is copied of those that do is not specified.
///
/// # Safety
/// Both ranges are mapped, and no Rust reference to a byte of them exists which the copy would contradict. If they
/// overlap, what is copied is not specified either.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy_racing(from: *const u8, to: *mut u8, length: usize) {
    const CHUNK: usize = 64;
    let (mut from, mut to) = (from, to);
    if length >= CHUNK {
        // SAFETY: whole chunks of the two ranges are read and written, and nothing else; SSE2 is part of
        // x86-64, and no alignment is asked for.
        unsafe {
            std::arch::asm!(
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}",
                "movups [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "sub {chunks}, 1",
                "jnz 2b",
                from = inout(reg) from,
                to = inout(reg) to,
                chunks = inout(reg) length / CHUNK => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
    // SAFETY: what is left of the two ranges, by the direction flag which Rust keeps clear.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length % CHUNK => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// As above, by atomics: words where both ranges have them at the same places, else bytes.
///
/// # Safety
/// As above.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[expect(clippy::cast_ptr_alignment, reason = "words are taken where both ranges are aligned")]
pub(super) unsafe fn copy_by_atomics(from: *const u8, to: *mut u8, length: usize) {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    const WORD: usize = size_of::<u64>();
    let alike = from.addr() % WORD == to.addr() % WORD;
    let head = if alike { to.align_offset(WORD).min(length) } else { length };
    let tail = length - (length - head) % WORD;
    let byte = |offset: usize| {
        // SAFETY: the offset is less than the length of the range.
        let from = unsafe { from.add(offset) };
        // SAFETY: as above.
        let to = unsafe { to.add(offset) };
        // SAFETY: the byte is mapped, and whoever else touches it does so by atomics or by instructions.
        let value = unsafe { AtomicU8::from_ptr(from.cast_mut()) }.load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(to) }.store(value, Ordering::Relaxed);
    };
    let word = |offset: usize| {
        // SAFETY: a whole word lies between the offset and the end of the range.
        let from = unsafe { from.add(offset) }.cast::<u64>();
        // SAFETY: as above.
        let to = unsafe { to.add(offset) }.cast::<u64>();
        // SAFETY: the word is mapped and aligned, and whoever else touches it does so as above.
        let value = unsafe { AtomicU64::from_ptr(from.cast_mut()) }.load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(to) }.store(value, Ordering::Relaxed);
    };
    (0..head).for_each(byte);
    (head..tail).step_by(WORD).for_each(word);
    (tail..length).for_each(byte);
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use copy_by_atomics as copy_racing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_and_no_other() {
        for copy in [copy_racing as unsafe fn(_, _, _), copy_by_atomics] {
            for (from_offset, to_offset) in [(0, 0), (1, 1), (3, 5), (8, 0), (0, 9)] {
                for length in [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 200, 4096] {
                    let from: Vec<u8> = (0..5000).map(|i| (i * 7 + 1) as u8).collect();
                    let mut to = vec![0xEE; 5000];
                    // SAFETY: both ranges lie in vectors of this test, whose only borrower it is.
                    unsafe { copy(from[from_offset..].as_ptr(), to[to_offset..].as_mut_ptr(), length) };
                    let (before, rest) = to.split_at(to_offset);
                    let (copied, after) = rest.split_at(length);
                    assert_eq!(copied, &from[from_offset..][..length]);
                    assert!(before.iter().chain(after).all(|&byte| byte == 0xEE));
                }
            }
        }
    }
}
