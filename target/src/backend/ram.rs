//! A medium in memory which all reactors share. Reads are served in place.
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use ironside_common::memory::{Memory, Region};
use ironside_common::verbs::Sge;

use super::{BlockError, Operation};

const PAGE: usize = 4096;

#[derive(Debug)]
pub(super) struct Ram {
    memory: Rc<Memory>,
    region: Arc<Region>,
    lkey: u32,
}

impl Ram {
    pub(super) fn new(memory: Rc<Memory>, region: Arc<Region>) -> Self {
        let lkey = memory.register(Arc::clone(&region));
        Self { memory, region, lkey }
    }

    /// Executes an operation whose range was checked. There is nothing volatile about this memory as
    /// long as it exists, so there is nothing to flush.
    pub(super) fn execute(&self, operation: Operation) -> Result<(), BlockError> {
        match operation {
            Operation::Read { offset, into } => {
                self.memory.copy(self.memory.sge(self.lkey, offset, into.length), into);
            }
            Operation::Write { offset, from, .. } => {
                self.memory.copy(from, self.memory.sge(self.lkey, offset, from.length));
            }
            Operation::Copy { source, offset, length, .. } => {
                let at = |offset| self.memory.sge(self.lkey, offset, length);
                self.memory.copy(at(source), at(offset));
            }
            Operation::Flush => {}
            Operation::WriteZeroes { offset, length, .. } | Operation::Deallocate { offset, length } => {
                self.clear(offset, length)?;
            }
        }
        Ok(())
    }

    pub(super) const fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(super) fn in_place(&self, offset: u64, length: u32) -> Sge {
        self.memory.sge(self.lkey, offset, length)
    }

    /// Zeroes what is not a whole page, and gives whole pages back to the system.
    fn clear(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        let start = usize::try_from(offset).map_err(|_| BlockError::OutOfRange)?;
        let end = usize::try_from(offset + length).map_err(|_| BlockError::OutOfRange)?;
        let pages = start.next_multiple_of(PAGE)..end - end % PAGE;
        if pages.is_empty() {
            self.zero(start..end);
            return Ok(());
        }
        self.zero(start..pages.start);
        self.zero(pages.end..end);
        if self.region.discard(pages.start, pages.len()).is_err() {
            // Memory locked by an adapter may not be given back.
            self.zero(pages);
        }
        Ok(())
    }

    fn zero(&self, range: Range<usize>) {
        self.region.zero(range.start, range.len());
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        self.memory.unregister(self.lkey);
    }
}
