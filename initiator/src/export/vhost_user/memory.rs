//! The memory of a virtual machine: files of its, mapped here. Addresses come from the guest and from the front-end; each is
//! looked up, and nothing but what they were given is reached. The guest may write while we read, so everything is copied.
//!
//! The front-end could make a file shorter, whose loss would end this process (SIGBUS), and it alone: QEMU seals its files
//! against that, and whoever does not is of the same user as this process.
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use ironside_common::memory::Region;
use nix::sys::stat::{SFlag, fstat};

use super::message::MemoryRegion;

/// Regions at once.
pub(super) const SLOTS: usize = 64;

/// Why a region is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    #[error("more than {SLOTS} regions")]
    TooMany,
    #[error("a region which ends beyond all addresses, or holds nothing")]
    Range,
    #[error("a region over another")]
    Overlap,
    #[error("a region beyond the end of its file of {0} bytes")]
    File(u64),
    #[error("mapping it: {0}")]
    Map(#[from] io::Error),
    #[error("there is no such region")]
    Unknown,
}

/// An address where the guest has no memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("an address outside the guest's memory")]
pub(super) struct Outside;

/// Every region there is.
#[derive(Default)]
pub(super) struct GuestMemory {
    regions: ArrayVec<Mapped, SLOTS>,
}

struct Mapped {
    is: MemoryRegion,
    memory: Arc<Region>,
}

/// Some memory which stays mapped as long as this is held.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) memory: Arc<Region>,
    pub(super) offset: usize,
}

impl GuestMemory {
    pub(super) fn add(&mut self, is: MemoryRegion, file: &OwnedFd) -> Result<(), MemoryError> {
        if self.regions.is_full() {
            return Err(MemoryError::TooMany);
        }
        let ends = [is.guest, is.user, is.offset].map(|start| start.checked_add(is.size));
        if is.size == 0 || ends.contains(&None) {
            return Err(MemoryError::Range);
        }
        let apart = |ours: u64, theirs: u64, size: u64| {
            ours.abs_diff(theirs) >= if ours < theirs { is.size } else { size }
        };
        let is_apart = |other: &Mapped| {
            apart(is.guest, other.is.guest, other.is.size) && apart(is.user, other.is.user, other.is.size)
        };
        if !self.regions.iter().all(is_apart) {
            return Err(MemoryError::Overlap);
        }
        let memory = map(file, is.offset.saturating_add(is.size))?;
        self.regions.push(Mapped { is, memory });
        Ok(())
    }

    pub(super) fn remove(&mut self, is: MemoryRegion) -> Result<(), MemoryError> {
        let same = |one: &Mapped| (one.is.guest, one.is.user, one.is.size) == (is.guest, is.user, is.size);
        let found = self.regions.iter().position(same).ok_or(MemoryError::Unknown)?;
        self.regions.remove(found);
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.regions.clear();
    }

    /// What the front-end calls by this address; it lies in one region.
    pub(super) fn place(&self, user: u64, length: usize) -> Option<Place> {
        self.regions.iter().find_map(|one| {
            let inside = user.checked_sub(one.is.user)?;
            let fits = one.is.size.checked_sub(inside)? >= length as u64;
            let offset = usize::try_from(one.is.offset + inside).ok()?;
            fits.then(|| Place { memory: Arc::clone(&one.memory), offset })
        })
    }

    /// Copies what the guest has at an address.
    pub(super) fn read(&self, guest: u64, into: &mut [u8]) -> Result<(), Outside> {
        self.each(guest, into.len(), |memory, offset, done, length| {
            memory.read(offset, &mut into[done..done + length]);
        })
    }

    /// Copies bytes to where the guest wants them.
    pub(super) fn write(&self, guest: u64, bytes: &[u8]) -> Result<(), Outside> {
        self.each(guest, bytes.len(), |memory, offset, done, length| {
            memory.write(offset, &bytes[done..done + length]);
        })
    }

    /// Copies what the guest has at an address into a buffer.
    pub(super) fn take(&self, guest: u64, length: usize, to: &Region, at: usize) -> Result<(), Outside> {
        self.each(guest, length, |memory, offset, done, length| {
            to.copy_from(at + done, memory, offset, length);
        })
    }

    /// Copies from a buffer to where the guest wants it.
    pub(super) fn fill(&self, guest: u64, length: usize, from: &Region, at: usize) -> Result<(), Outside> {
        self.each(guest, length, |memory, offset, done, length| {
            memory.copy_from(offset, from, at + done, length);
        })
    }

    /// Goes over a range, which may lie in several regions.
    fn each(
        &self,
        guest: u64,
        length: usize,
        mut act: impl FnMut(&Region, usize, usize, usize),
    ) -> Result<(), Outside> {
        let mut done = 0;
        while done < length {
            let at = guest.checked_add(done as u64).ok_or(Outside)?;
            let found = self.regions.iter().find_map(|one| {
                let inside = at.checked_sub(one.is.guest).filter(|&inside| inside < one.is.size)?;
                Some((one, inside))
            });
            let (one, inside) = found.ok_or(Outside)?;
            let there = usize::try_from(one.is.size - inside).unwrap_or(usize::MAX);
            let part = there.min(length - done);
            let offset = usize::try_from(one.is.offset + inside).map_err(|_| Outside)?;
            act(&one.memory, offset, done, part);
            done += part;
        }
        Ok(())
    }
}

/// Maps a file from its beginning, as a place in huge pages cannot begin anywhere, to this length.
pub(super) fn map(file: &OwnedFd, length: u64) -> Result<Arc<Region>, MemoryError> {
    let status = fstat(file).map_err(io::Error::from)?;
    let there = u64::try_from(status.st_size).unwrap_or(0);
    if SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG || there < length {
        return Err(MemoryError::File(there));
    }
    // In huge pages the last has to be mapped as a whole. What lies behind the length is never touched.
    let page = usize::try_from(status.st_blksize).unwrap_or(0).max(1);
    let length = usize::try_from(length).ok().and_then(|length| length.checked_next_multiple_of(page));
    Ok(Region::of_file(file, length.ok_or(MemoryError::Range)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::vhost_user::tests::memfd;

    const AT: MemoryRegion = MemoryRegion { guest: 0x1000, size: 0x2000, user: 0x70_0000, offset: 0x1000 };

    #[test]
    fn addresses_reach_their_bytes_and_no_others() {
        let mut memory = GuestMemory::default();
        memory.add(AT, &memfd(0x3000)).unwrap();
        let next = MemoryRegion { guest: 0x3000, size: 0x1000, user: 0x90_0000, offset: 0 };
        memory.add(next, &memfd(0x1000)).unwrap();
        // Over the seam of the two.
        memory.write(0x2FFE, b"over").unwrap();
        let mut back = [0; 4];
        memory.read(0x2FFE, &mut back).unwrap();
        assert_eq!(&back, b"over");
        for (guest, length) in
            [(0xFFF, 2), (0x3FFF, 2), (0x4000, 1), (0, 1), (u64::MAX, 2), (u64::MAX - 1, 1)]
        {
            assert_eq!(memory.read(guest, &mut vec![0; length]), Err(Outside), "{guest:x}");
        }
        let place = memory.place(0x70_1FFE, 2).unwrap();
        let mut back = [0; 2];
        place.memory.read(place.offset, &mut back);
        assert_eq!(&back, b"ov");
        assert!(memory.place(0x70_1FFE, 3).is_none(), "a ring lies in one region");
        assert!(memory.place(0x6F_FFFF, 1).is_none() && memory.place(u64::MAX, usize::MAX).is_none());
        memory.remove(MemoryRegion { offset: 7, ..AT }).unwrap();
        assert!(memory.read(0x1000, &mut back).is_err());
        assert!(matches!(memory.remove(AT), Err(MemoryError::Unknown)));
    }

    #[test]
    fn regions_that_cannot_be_are_refused() {
        let mut memory = GuestMemory::default();
        let file = memfd(0x3000);
        memory.add(AT, &file).unwrap();
        let mut refused = |region| memory.add(region, &file).unwrap_err().to_string();
        let other = MemoryRegion { guest: 0x10_0000, user: 0x100_0000, ..AT };
        assert!(refused(MemoryRegion { offset: 0x2000, ..other }).contains("12288 bytes"));
        assert!(refused(MemoryRegion { size: 0, ..other }).contains("holds nothing"));
        assert!(refused(MemoryRegion { guest: u64::MAX, ..other }).contains("beyond all"));
        assert!(refused(MemoryRegion { offset: u64::MAX, ..other }).contains("beyond all"));
        assert!(refused(MemoryRegion { guest: 0x2FFF, ..other }).contains("over another"));
        assert!(refused(MemoryRegion { guest: 0, ..other }).contains("over another"));
        assert!(refused(MemoryRegion { user: 0x70_0001, ..other }).contains("over another"));
        let null: OwnedFd = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap().into();
        assert!(memory.add(other, &null).is_err());
        for slot in 1..SLOTS as u64 {
            let guest = 0x10_0000 * slot;
            memory.add(MemoryRegion { guest, user: guest << 8, ..AT }, &file).unwrap();
        }
        let one_more = MemoryRegion { guest: 1 << 50, user: 1 << 50, ..AT };
        assert!(matches!(memory.add(one_more, &file), Err(MemoryError::TooMany)));
    }
}
