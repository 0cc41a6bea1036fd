//! Marks in the memory of a read, by which data that never came is told from data which did.
//!
//! A target answers a Read with success when it has written the data. One that lies, or loses a part on the way, would
//! have whatever lay in the buffer before taken for the content of the volume. So the end of every [`STRIDE`] of the
//! buffer is marked before the command is sent, with a number nobody has used before: a mark that is still there when
//! success is told was not written over. It costs a touch of memory which the data is about to fill anyway, and works
//! with every provider, which counting the bytes of RDMA Writes does not: an adapter does not tell.
use ironside_common::memory::Memory;
use ironside_common::verbs::Sge;
use uuid::Uuid;

/// Bytes between two marks, which end with the last byte of each.
const STRIDE: u32 = 4096;
const LENGTH: u32 = size_of::<u128>() as u32;

/// What one read is marked with.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Mark(u128);

/// Gives out marks, each once.
#[derive(Debug)]
pub(super) struct Marks {
    next: u128,
}

impl Marks {
    /// Those which begin with `first`, another one for each controller: nobody takes the data of one for the mark of another.
    pub(super) fn new(first: Uuid) -> Self {
        Self { next: first.as_u128().rotate_left(64) }
    }

    /// Marks the memory of a read.
    pub(super) fn set(&mut self, memory: &Memory, buffer: Sge) -> Mark {
        let mark = Mark(self.next);
        self.next = self.next.wrapping_add(1);
        for place in places(buffer) {
            memory.write(place, &mark.0.to_ne_bytes());
        }
        mark
    }
}

impl Mark {
    /// Whether every piece of the memory was written over since it was marked.
    pub(super) fn is_gone(self, memory: &Memory, buffer: Sge) -> bool {
        places(buffer).all(|place| {
            let mut found = [0; LENGTH as usize];
            memory.read(place, &mut found);
            found != self.0.to_ne_bytes()
        })
    }
}

/// Where the marks of a buffer of whole blocks lie; a block has 512 bytes at least.
fn places(buffer: Sge) -> impl Iterator<Item = Sge> {
    let ends = (STRIDE..buffer.length).step_by(STRIDE as usize).chain([buffer.length]);
    ends.filter(|end| *end >= LENGTH).map(move |end| buffer.slice(end - LENGTH, LENGTH))
}

#[cfg(test)]
mod tests {
    use ironside_common::memory::Region;

    use super::*;

    #[test]
    fn data_which_did_not_come_whole_is_noticed() {
        let memory = Memory::new();
        let lkey = memory.register(Region::new(64 << 10).unwrap());
        let mut marks = Marks::new(Uuid::from_u128(7));
        for length in [512, 4096, 4608, 64 << 10] {
            let buffer = memory.sge(lkey, 0, length);
            let mark = marks.set(&memory, buffer);
            assert!(!mark.is_gone(&memory, buffer), "{length}: nothing came");
            memory.zero(buffer);
            assert!(mark.is_gone(&memory, buffer), "{length}: all came");

            let mark = marks.set(&memory, buffer);
            memory.zero(buffer.slice(0, length - LENGTH));
            assert!(!mark.is_gone(&memory, buffer), "{length}: the last bytes did not come");
        }
    }

    #[test]
    fn data_which_is_an_older_mark_is_data() {
        let memory = Memory::new();
        let lkey = memory.register(Region::new(4096).unwrap());
        let mut marks = Marks::new(Uuid::from_u128(7));
        let buffer = memory.sge(lkey, 0, 4096);
        marks.set(&memory, buffer);
        let mut old = [0; 4096];
        memory.read(buffer, &mut old);
        let mark = marks.set(&memory, buffer);
        memory.write(buffer, &old);
        assert!(mark.is_gone(&memory, buffer));
    }
}
