//! A medium that fails on command, for the simulator: no clock, no thread, no chance of its own.
//!
//! It behaves as a drive with a volatile write cache may at worst. Operations complete in whatever order
//! the caller chooses; what was written is durable only after a flush or with FUA; and when the power goes,
//! each block which was not durable keeps any of the versions it had since, as the caller chooses.
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::rc::Rc;

use ironside_common::memory::Memory;
use ironside_common::verbs::Token;

use super::{BlockError, Done, Operation};

/// How an operation ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    Success,
    /// It fails, after this many of its blocks have been transferred, zeroed or deallocated.
    Failure {
        blocks: u64,
        error: BlockError,
    },
}

/// An operation which has not ended.
#[derive(Debug)]
pub struct Pending {
    pub token: Token,
    pub operation: Operation,
    memory: Rc<Memory>,
    /// Everything numbered below has completed before this was submitted.
    since: u64,
}

type Block = Box<[u8]>;

/// One drive, whose content lives in memory.
#[derive(Debug)]
pub struct Faulty {
    block_size: u32,
    size: u64,
    pending: Vec<Pending>,
    /// What survives a loss of power. A block which is not here is zero.
    durable: BTreeMap<u64, Block>,
    /// What was written since, oldest first, with the number of the write.
    cached: BTreeMap<u64, Vec<(u64, Block)>>,
    /// The number of the next completion.
    next: u64,
}

impl Faulty {
    /// A drive of zeroes.
    #[must_use]
    pub const fn new(size: u64, block_size: u32) -> Self {
        Self {
            block_size,
            size,
            pending: Vec::new(),
            durable: BTreeMap::new(),
            cached: BTreeMap::new(),
            next: 0,
        }
    }

    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Takes an operation; `memory` is where its elements lie.
    pub fn submit(&mut self, memory: &Rc<Memory>, token: Token, operation: Operation) {
        self.pending.push(Pending { token, operation, memory: Rc::clone(memory), since: self.next });
    }

    /// The operations which have not ended, oldest first.
    #[must_use]
    pub fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// Ends the operation at this index of [`Self::pending`], and takes it out of there.
    ///
    /// # Panics
    /// If there is none.
    pub fn complete(&mut self, index: usize, outcome: Outcome) -> Done {
        let pending = self.pending.remove(index);
        let token = pending.token;
        let out_of_range = pending
            .operation
            .range()
            .is_some_and(|(offset, length)| offset.checked_add(length).is_none_or(|end| end > self.size));
        if out_of_range {
            return Done { token, result: Err(BlockError::OutOfRange) };
        }
        match outcome {
            Outcome::Success => {
                self.execute(&pending, u64::MAX, true);
                Done { token, result: Ok(()) }
            }
            Outcome::Failure { blocks, error } => {
                self.execute(&pending, blocks, false);
                Done { token, result: Err(error) }
            }
        }
    }

    /// The power goes, and comes back. `choose(n)` answers with a number below `n`: which version of a
    /// block survives, and whether a block of an unfinished write had been written. Nothing is pending any
    /// more, and nobody is told how it ended.
    pub fn power_loss(&mut self, mut choose: impl FnMut(u64) -> u64) {
        for pending in std::mem::take(&mut self.pending) {
            let (first, count) = self.blocks(&pending.operation);
            for block in first..first + count {
                if pending.operation.modifies() && choose(2) == 1 {
                    let content = self.written(&pending, block);
                    self.cached.entry(block).or_default().push((self.next, content));
                }
            }
        }
        for (block, mut versions) in std::mem::take(&mut self.cached) {
            let survivor = choose(versions.len() as u64 + 1);
            if let Some(version) = usize::try_from(survivor).ok().and_then(|survivor| survivor.checked_sub(1))
            {
                self.durable.insert(block, versions.swap_remove(version).1);
            }
        }
    }

    /// What a block reads as now.
    #[must_use]
    pub fn block(&self, block: u64) -> Block {
        let newest = self.cached.get(&block).and_then(|versions| versions.last()).map(|(_, content)| content);
        newest.or_else(|| self.durable.get(&block)).cloned().unwrap_or_else(|| self.zeroes())
    }

    /// Does up to `most` blocks of an operation. Only one which succeeds makes anything durable.
    fn execute(&mut self, pending: &Pending, most: u64, succeeds: bool) {
        let number = self.next;
        self.next += 1;
        let (first, count) = self.blocks(&pending.operation);
        for block in first..first + count.min(most) {
            match pending.operation {
                Operation::Read { into, .. } => {
                    let at = self.part(block - first);
                    pending.memory.write(into.slice(at, self.block_size), &self.block(block));
                }
                Operation::Write { fua, .. } | Operation::WriteZeroes { fua, .. } => {
                    let content = self.written(pending, block);
                    self.store(block, number, content, fua && succeeds);
                }
                Operation::Copy { .. } => self.store(block, number, self.written(pending, block), false),
                Operation::Deallocate { .. } => self.store(block, number, self.zeroes(), false),
                Operation::Flush => {}
            }
        }
        if pending.operation == Operation::Flush && succeeds {
            self.flush(pending.since);
        }
    }

    fn store(&mut self, block: u64, number: u64, content: Block, durable: bool) {
        if durable {
            self.cached.remove(&block);
            self.durable.insert(block, content);
        } else {
            self.cached.entry(block).or_default().push((number, content));
        }
    }

    /// Makes durable what had completed before the flush was submitted, and not a block more.
    fn flush(&mut self, before: u64) {
        self.cached.retain(|block, versions| {
            let count = versions.partition_point(|(number, _)| *number < before);
            if let Some((_, content)) = versions.drain(..count).next_back() {
                self.durable.insert(*block, content);
            }
            !versions.is_empty()
        });
    }

    /// What a block holds after this operation.
    fn written(&self, pending: &Pending, block: u64) -> Block {
        let (first, _) = self.blocks(&pending.operation);
        match pending.operation {
            Operation::Write { from, .. } => {
                let mut content = self.zeroes();
                let at = self.part(block - first);
                pending.memory.read(from.slice(at, self.block_size), &mut content);
                content
            }
            Operation::Copy { source, .. } => self.block(source / u64::from(self.block_size) + block - first),
            _ => self.zeroes(),
        }
    }

    /// First block, and how many.
    fn blocks(&self, operation: &Operation) -> (u64, u64) {
        let (offset, length) = operation.range().unwrap_or((0, 0));
        (offset / u64::from(self.block_size), length / u64::from(self.block_size))
    }

    /// Where the block of this index lies in the operation's memory.
    fn part(&self, index: u64) -> u32 {
        u32::try_from(index * u64::from(self.block_size)).expect("memory elements have 32-bit lengths")
    }

    fn zeroes(&self) -> Block {
        vec![0; self.block_size as usize].into()
    }
}
