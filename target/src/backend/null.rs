//! A medium which holds nothing: reads are zeroes, writes vanish. It shows what the fabric alone can do.
use std::io;
use std::rc::Rc;

use ironside_common::memory::{Memory, Region};
use ironside_common::verbs::Sge;

use super::{BlockError, Operation};

/// The longest read served in place.
const ZEROES: u32 = 1 << 20;

#[derive(Debug)]
pub(super) struct Null {
    memory: Rc<Memory>,
    zeroes: Sge,
}

impl Null {
    pub(super) fn new(memory: Rc<Memory>) -> io::Result<Self> {
        let lkey = memory.register(Region::new_shared(ZEROES as usize)?);
        let zeroes = memory.sge(lkey, 0, ZEROES);
        Ok(Self { memory, zeroes })
    }

    pub(super) fn execute(&self, operation: Operation) -> Result<(), BlockError> {
        if let Operation::Read { into, .. } = operation {
            self.memory.zero(into);
        }
        Ok(())
    }

    pub(super) const fn lkey(&self) -> u32 {
        self.zeroes.lkey
    }

    pub(super) fn in_place(&self, length: u32) -> Option<Sge> {
        (length <= ZEROES).then(|| self.zeroes.slice(0, length))
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        self.memory.unregister(self.zeroes.lkey);
    }
}
