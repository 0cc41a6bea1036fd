//! Memory the session's threads and the reactor share: a thread fills a buffer, the reactor transfers it.
//! One owner at a time; it changes hands with the message.
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ironside_common::memory::Region;

use super::LARGEST;

/// Bytes around the largest request, when it does not begin and end with a block.
pub(super) const SLACK: u32 = 65536;
/// Bytes of a small buffer. Most requests are small, and a small buffer touches little memory.
const SMALL: u32 = 16384;
const SMALL_COUNT: u32 = 256;
const LARGE: u32 = LARGEST + 2 * SLACK;
const LARGE_COUNT: u32 = 32;
const SMALL_BYTES: u64 = SMALL as u64 * SMALL_COUNT as u64;

/// All buffers of one session.
pub(super) struct Buffers {
    region: Arc<Region>,
    free: Mutex<[Vec<u32>; 2]>,
    returned: Condvar,
}

/// One buffer in use. Comes back by being dropped.
pub(super) struct Buffer {
    buffers: Arc<Buffers>,
    class: usize,
    index: u32,
}

impl Buffers {
    /// Buffers for a volume with such blocks.
    ///
    /// # Errors
    /// When the system has no memory, or a block is larger than anything known.
    pub(super) fn new(block_size: u32) -> io::Result<Arc<Self>> {
        if block_size > SLACK {
            return Err(io::Error::new(io::ErrorKind::Unsupported, format!("blocks of {block_size} bytes")));
        }
        let bytes = SMALL_BYTES + u64::from(LARGE) * u64::from(LARGE_COUNT);
        let region = Region::new_shared(usize::try_from(bytes).map_err(io::Error::other)?)?;
        let free = [(0..SMALL_COUNT).rev().collect(), (0..LARGE_COUNT).rev().collect()];
        Ok(Arc::new(Self { region, free: Mutex::new(free), returned: Condvar::new() }))
    }

    pub(super) fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    /// A buffer of at least `length` bytes. Waits for one if need be: the kernel waits too, then.
    ///
    /// # Panics
    /// If no buffer is that large.
    pub(super) fn take(self: &Arc<Self>, length: u32) -> Buffer {
        assert!(length <= LARGE, "{length} bytes are more than a buffer holds");
        let class = usize::from(length > SMALL);
        // Nothing panics while it holds the lock, and the lists are whole between two calls.
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(index) = free[class].pop() {
                return Buffer { buffers: Arc::clone(self), class, index };
            }
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Buffer {
    /// Where it begins in the region.
    pub(super) fn offset(&self) -> u64 {
        match self.class {
            0 => u64::from(SMALL) * u64::from(self.index),
            _ => SMALL_BYTES + u64::from(LARGE) * u64::from(self.index),
        }
    }

    /// Fills its beginning.
    pub(super) fn fill(&self, bytes: &[u8]) {
        let offset = usize::try_from(self.offset()).expect("the region is in memory");
        self.buffers.region.write(offset, bytes);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.buffers.free.lock().unwrap_or_else(PoisonError::into_inner);
        free[self.class].push(self.index);
        // Waiters want either size: wake all, so that no wake-up goes to the wrong one.
        self.buffers.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_and_come_back() {
        let buffers = Buffers::new(4096).unwrap();
        let all: Vec<_> = (0..SMALL_COUNT).map(|_| buffers.take(SMALL)).collect();
        let large: Vec<_> = (0..LARGE_COUNT).map(|_| buffers.take(LARGE)).collect();
        let mut offsets: Vec<_> = all.iter().chain(&large).map(Buffer::offset).collect();
        offsets.sort_unstable();
        assert!(offsets[..256].windows(2).all(|pair| pair[1] - pair[0] == u64::from(SMALL)));
        assert!(offsets[256..].windows(2).all(|pair| pair[1] - pair[0] == u64::from(LARGE)));
        assert_eq!(offsets[256] - offsets[255], u64::from(SMALL));
        let waiting = Arc::clone(&buffers);
        let waiter = std::thread::spawn(move || waiting.take(1).offset());
        let last = all.into_iter().next_back().unwrap();
        let offset = last.offset();
        drop(last);
        assert!(waiter.join().unwrap() % u64::from(SMALL) == 0 && offset < SMALL_BYTES);
    }

    #[test]
    fn absurd_blocks_are_refused() {
        assert!(Buffers::new(1 << 20).is_err());
    }
}
