//! What is under way in each queue, kept in memory which the front-end holds: whoever serves the machine after this process
//! carries it out again ("Inflight I/O tracking" of vhost-user, split virtqueues).
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ironside_common::memory::Region;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use zerocopy::{FromBytes, IntoBytes};

use super::memory::{MemoryError, map};
use super::message::InflightArea;
use super::ring::SIZE_MAX;

/// Offsets of a queue's part: features (8), version (2), descriptors (2), head of the last batch (2), used index (2).
const VERSION: usize = 8;
const COUNT: usize = 10;
const LAST_BATCH: usize = 12;
const USED_INDEX: usize = 14;
const ENTRIES: usize = 16;
/// Offsets of a descriptor's entry: under way (1), padding (5), next of the batch (2), counter (8).
const NEXT: usize = 6;
const COUNTER: usize = 8;
const ENTRY: usize = 16;
/// Each queue's part begins at a multiple of this.
const ALIGNMENT: usize = 64;
const THE_VERSION: u16 = 1;

/// The whole area.
pub(super) struct Inflight {
    memory: Arc<Region>,
    offset: usize,
    queues: u16,
    queue_size: u16,
}

/// One queue's part of it.
pub(super) struct Part {
    memory: Arc<Region>,
    offset: usize,
    size: u16,
    counter: u64,
}

impl Inflight {
    /// Makes the memory for so many queues, which is to be handed to the front-end.
    pub(super) fn make(wanted: InflightArea) -> io::Result<(InflightArea, OwnedFd)> {
        let length = length(wanted.queues, wanted.queue_size).ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = std::fs::File::from(memfd_create(c"ironside-inflight", flags)?);
        file.set_len(length as u64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok((InflightArea { size: length as u64, offset: 0, ..wanted }, file.into()))
    }

    /// Takes the memory from the front-end.
    pub(super) fn take(area: InflightArea, file: &OwnedFd) -> Result<Self, MemoryError> {
        let InflightArea { size, offset, queues, queue_size, .. } = area;
        let needed = length(queues, queue_size).ok_or(MemoryError::Range)?;
        if size < needed as u64 || !offset.is_multiple_of(ALIGNMENT as u64) {
            return Err(MemoryError::Range);
        }
        let memory = map(file, offset.checked_add(size).ok_or(MemoryError::Range)?)?;
        Ok(Self {
            memory,
            offset: usize::try_from(offset).map_err(|_| MemoryError::Range)?,
            queues,
            queue_size,
        })
    }

    /// The part of a queue, if the area was made for such.
    pub(super) fn part(&self, queue: usize, size: u16) -> Option<Part> {
        if queue >= usize::from(self.queues) || size > self.queue_size {
            return None;
        }
        let offset = self.offset + queue * part_length(self.queue_size);
        let memory = Arc::clone(&self.memory);
        if memory.load_u16(offset + VERSION) == 0 {
            memory.store_u16(offset + COUNT, self.queue_size);
            memory.store_u16(offset + VERSION, THE_VERSION);
        }
        Some(Part { memory, offset, size, counter: 0 })
    }
}

impl Part {
    /// The heads which were under way when the queue was last served, the oldest first. `used_index` is what the used ring
    /// says now.
    pub(super) fn recover(&mut self, used_index: u16) -> Vec<u16> {
        // The process died between telling the driver and writing it down here.
        if self.memory.load_u16(self.offset + USED_INDEX) != used_index {
            let last = self.memory.load_u16(self.offset + LAST_BATCH);
            if last < self.size {
                self.mark(last, false);
            }
            self.memory.store_u16(self.offset + USED_INDEX, used_index);
        }
        let mut found: Vec<(u64, u16)> =
            (0..self.size).filter_map(|head| Some((self.counted(head)?, head))).collect();
        found.sort_unstable();
        self.counter = found.last().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        found.into_iter().map(|(_, head)| head).collect()
    }

    /// A chain has been taken from the driver.
    pub(super) fn begin(&mut self, head: u16) {
        self.memory.write(self.entry(head) + COUNTER, self.counter.as_bytes());
        self.counter = self.counter.wrapping_add(1);
        self.mark(head, true);
    }

    /// A chain is about to be given back.
    pub(super) fn ending(&mut self, head: u16) {
        let last = self.memory.load_u16(self.offset + LAST_BATCH);
        self.memory.store_u16(self.entry(head) + NEXT, last);
        self.memory.store_u16(self.offset + LAST_BATCH, head);
    }

    /// It was given back.
    pub(super) fn ended(&mut self, head: u16, used_index: u16) {
        self.mark(head, false);
        self.memory.store_u16(self.offset + USED_INDEX, used_index);
    }

    fn entry(&self, head: u16) -> usize {
        assert!(head < self.size, "a head of the queue");
        self.offset + ENTRIES + usize::from(head) * ENTRY
    }

    fn mark(&self, head: u16, under_way: bool) {
        // The byte beside it is padding.
        self.memory.store_u16(self.entry(head), u16::from_ne_bytes([under_way.into(), 0]));
    }

    fn counted(&self, head: u16) -> Option<u64> {
        let at = self.entry(head);
        let is_under_way = self.memory.load_u16(at).to_ne_bytes()[0] != 0;
        let mut counter = [0; 8];
        self.memory.read(at + COUNTER, &mut counter);
        is_under_way.then(|| u64::read_from_bytes(&counter).expect("eight bytes"))
    }
}

fn part_length(queue_size: u16) -> usize {
    (ENTRIES + usize::from(queue_size) * ENTRY).next_multiple_of(ALIGNMENT)
}

fn length(queues: u16, queue_size: u16) -> Option<usize> {
    let sound = queues > 0 && usize::from(queues) <= super::QUEUES && (1..=SIZE_MAX).contains(&queue_size);
    sound.then(|| usize::from(queues) * part_length(queue_size))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: InflightArea = InflightArea { size: 0, offset: 0, queues: 2, queue_size: 8, padding: [0; 4] };

    #[test]
    fn what_was_under_way_is_found_again_in_its_order() {
        let (area, file) = Inflight::make(AREA).unwrap();
        let mut part = Inflight::take(area, &file).unwrap().part(1, 8).unwrap();
        assert_eq!(part.recover(0), [0; 0]);
        for head in [5, 1, 7, 2] {
            part.begin(head);
        }
        part.ending(7);
        part.ended(7, 1);
        // Another process, by the front-end's copy.
        let mut after = Inflight::take(area, &file).unwrap().part(1, 8).unwrap();
        assert_eq!(after.recover(1), [5, 1, 2]);
        after.begin(0);
        assert_eq!(Inflight::take(area, &file).unwrap().part(1, 8).unwrap().recover(1), [5, 1, 2, 0]);
        assert_eq!(Inflight::take(area, &file).unwrap().part(0, 8).unwrap().recover(0), [0; 0]);
    }

    #[test]
    fn a_death_between_telling_the_driver_and_writing_it_down_repeats_nothing() {
        let (area, file) = Inflight::make(AREA).unwrap();
        let mut part = Inflight::take(area, &file).unwrap().part(0, 8).unwrap();
        part.recover(0);
        part.begin(3);
        part.begin(4);
        part.ending(3);
        let again = || Inflight::take(area, &file).unwrap().part(0, 8).unwrap();
        assert_eq!(again().recover(0), [3, 4], "the driver was not told yet");
        assert_eq!(again().recover(1), [4], "it was");
    }

    #[test]
    fn areas_that_cannot_be_are_refused() {
        let (area, file) = Inflight::make(AREA).unwrap();
        let refused = |area| Inflight::take(area, &file).is_err();
        assert!(refused(InflightArea { queues: 4, ..area }));
        assert!(refused(InflightArea { offset: 64, ..area }), "beyond the end of the file");
        assert!(refused(InflightArea { offset: u64::MAX - 63, ..area }));
        assert!(
            refused(InflightArea { queue_size: 0, ..area })
                && refused(InflightArea { queues: u16::MAX, ..area })
        );
        let whole = Inflight::take(area, &file).unwrap();
        assert!(whole.part(2, 8).is_none() && whole.part(0, 16).is_none());
        assert!(Inflight::make(InflightArea { queues: 0, ..AREA }).is_err());
    }
}
