//! The table in which the driver writes what each request of a queue is, before it brings the request.
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::wire::Descriptor;

const PAGE: usize = 4096;
/// Bytes from one queue's table to the next: as many as the largest queue the driver knows, of 4096 requests, would take.
const TABLE_MAX: i64 = 4096 * size_of::<Descriptor>() as i64;
const _: () = assert!(TABLE_MAX % PAGE as i64 == 0);

/// The table of one queue, mapped.
pub(super) struct Descriptors {
    base: NonNull<Descriptor>,
    length: NonZeroUsize,
    count: u16,
}

// SAFETY: the mapping is not tied to a thread, and whoever owns it alone reads it.
unsafe impl Send for Descriptors {}

impl Descriptors {
    /// Maps that of a queue, for so many requests, from the device's control side.
    pub(super) fn map(device: impl AsFd, queue: u16, count: u16) -> io::Result<Self> {
        let bytes = usize::from(count) * size_of::<Descriptor>();
        let length = NonZeroUsize::new(bytes.next_multiple_of(PAGE))
            .ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        let at = i64::from(queue) * TABLE_MAX;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap(None, length, ProtFlags::PROT_READ, flags, device, at) }?;
        Ok(Self { base: base.cast(), length, count })
    }

    /// What the kernel has brought under a tag.
    ///
    /// # Panics
    /// If there is no such tag.
    pub(super) fn get(&self, tag: u16) -> Descriptor {
        assert!(tag < self.count, "a tag of the queue");
        // SAFETY: the table has as many entries, and the driver writes one only while its tag is with the kernel.
        let at = unsafe { self.base.add(tag.into()) };
        // SAFETY: as above; what was mapped is aligned to a page, and an entry is plain data.
        unsafe { at.read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and nobody has a reference into it.
        let unmapped = unsafe { munmap(self.base.cast(), self.length.get()) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours");
    }
}
