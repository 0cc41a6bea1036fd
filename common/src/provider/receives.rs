//! The receive buffers of one connection, in a region of their own.
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::memory::{Memory, Region};
use crate::verbs::Sge;

/// Where the command lies in a buffer that also takes in-capsule data: the data behind its 64 bytes is
/// then aligned for direct I/O.
const CAPSULE_OFFSET: u32 = 448;
/// What direct I/O wants.
const ALIGNMENT: u32 = 512;
/// Messages up to here carry no data: they lie close together, each in a cache line.
const SMALL: u32 = 64;

#[derive(Debug)]
pub(in crate::provider) struct Receives {
    /// Absent, if there are none.
    memory: Option<Rc<Memory>>,
    first: Sge,
    stride: u32,
    count: u16,
    /// Messages which are out with the consumer.
    pub(in crate::provider) lent: u32,
}

impl Receives {
    pub(in crate::provider) fn new(memory: &Rc<Memory>, count: u16, size: u32) -> io::Result<Self> {
        let offset = if size <= SMALL { 0 } else { CAPSULE_OFFSET };
        let alignment = if size <= SMALL { SMALL } else { ALIGNMENT };
        let stride = size.checked_add(offset).and_then(|size| size.checked_next_multiple_of(alignment));
        let stride = stride.ok_or(io::ErrorKind::InvalidInput)?.max(SMALL);
        let length = u64::from(stride) * u64::from(count.max(1));
        let region = Region::new(usize::try_from(length).map_err(io::Error::other)?)?;
        let lkey = memory.register(region);
        let first = memory.sge(lkey, offset.into(), size);
        Ok(Self { memory: Some(Rc::clone(memory)), first, stride, count, lent: 0 })
    }

    /// No buffer at all: what a connection gets which ends as it begins.
    pub(in crate::provider) const fn none() -> Self {
        let first = Sge { address: 0, length: 0, lkey: 0 };
        Self { memory: None, first, stride: 0, count: 0, lent: 0 }
    }

    /// The region they lie in.
    #[cfg(feature = "ibv")]
    pub(in crate::provider) const fn lkey(&self) -> u32 {
        self.first.lkey
    }

    /// All buffers by number.
    pub(in crate::provider) fn all(&self) -> impl Iterator<Item = (u32, Sge)> {
        (0..u32::from(self.count)).map(|id| (id, self.buffer(id)))
    }

    pub(in crate::provider) fn buffer(&self, id: u32) -> Sge {
        assert!(id < self.count.into(), "no such receive buffer");
        Sge { address: self.first.address + u64::from(id) * u64::from(self.stride), ..self.first }
    }

    /// Gives the memory of all buffers back to the system, until they are written next. None may be with anybody.
    pub(in crate::provider) fn discard(&self) {
        if let Some(memory) = &self.memory {
            let region = memory.region(self.first.lkey);
            // If the system will not have it, it stays, which harms nobody.
            let _ = region.discard(0, region.len());
        }
    }

    /// The bytes of a lent message.
    pub(in crate::provider) fn bytes(&self, id: u32, length: u32) -> &[u8] {
        let message = self.buffer(id).slice(0, length);
        let pointer = self.memory.as_ref().map_or(NonNull::dangling(), |memory| memory.pointer(message));
        // SAFETY: the memory is mapped (the table looked), initialised (a mapping begins as zeroes), and
        // nobody writes it while the message is lent: the stream writes posted buffers only, and
        // posting takes this provider mutably, which the slice forbids.
        unsafe { std::slice::from_raw_parts(pointer.as_ptr(), length as usize) }
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            drop(memory.unregister(self.first.lkey));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_capsule_data_is_aligned_for_direct_io() {
        let memory = Memory::new();
        let receives = Receives::new(&memory, 3, 64 + 4096).unwrap();
        for (_, buffer) in receives.all() {
            assert_eq!((buffer.address + 64) % 512, 0);
            assert_eq!(buffer.length, 64 + 4096);
        }
        assert_eq!(receives.stride, 4608);
    }

    #[test]
    fn small_buffers_lie_close_and_hold_their_bytes() {
        let memory = Memory::new();
        let receives = Receives::new(&memory, 2, 16).unwrap();
        assert_eq!(receives.buffer(1).address - receives.buffer(0).address, 64);
        memory.write(receives.buffer(1), b"0123456789abcdef");
        assert_eq!(receives.bytes(1, 10), b"0123456789");
    }
}
