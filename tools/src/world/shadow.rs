//! What every block of a simulated disk may hold: the last acknowledged write or a later one that was not
//! acknowledged; after a loss of power, at least the last flushed or forced one.
use std::ops::Range;

/// One version of a block.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// Which write made it; grows with time.
    write: u64,
    /// What it filled the block with.
    content: u64,
    acknowledged: bool,
}

#[derive(Clone, Debug)]
struct Block {
    /// Oldest first; never empty. Nothing older than the first can come back.
    versions: Vec<Version>,
    readers: u32,
    written: bool,
}

/// A disk as those who were acknowledged may expect it.
#[derive(Clone, Debug)]
pub(super) struct Shadow {
    blocks: Vec<Block>,
    next_write: u64,
    power_losses: u32,
}

/// What a flush has to keep: the write each block held, unless the power goes meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Flush {
    began_with: Vec<u64>,
    power_losses: u32,
}

/// A write under way.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) blocks: Range<usize>,
    number: u64,
    pub(super) content: u64,
    power_losses: u32,
}

impl Shadow {
    /// A disk of zeroes.
    #[must_use]
    pub(super) fn new(blocks: usize) -> Self {
        let zero = Version { write: 0, content: 0, acknowledged: true };
        let block = Block { versions: vec![zero], readers: 0, written: false };
        Self { blocks: vec![block; blocks], next_write: 1, power_losses: 0 }
    }

    /// Begins a write of `content`, or of a content nobody else writes. Nothing if another operation of the
    /// workload is at one of these blocks: then nobody could say what is right.
    pub(super) fn begin_write(&mut self, blocks: Range<usize>, content: Option<u64>) -> Option<Write> {
        if self.blocks[blocks.clone()].iter().any(|block| block.written || block.readers > 0) {
            return None;
        }
        let number = self.next_write;
        self.next_write += 1;
        let content = content.unwrap_or(number);
        for block in &mut self.blocks[blocks.clone()] {
            block.written = true;
            block.versions.push(Version { write: number, content, acknowledged: false });
        }
        Some(Write { blocks, number, content, power_losses: self.power_losses })
    }

    /// The write has ended. One that failed, or was a hint, may or may not have happened; so may one whose
    /// acknowledgement was on its way when the power went, unless it was forced.
    pub(super) fn end_write(&mut self, write: &Write, acknowledged: bool, durable: bool) {
        let acknowledged = acknowledged && (durable || write.power_losses == self.power_losses);
        for block in &mut self.blocks[write.blocks.clone()] {
            block.written = false;
            let index = block.versions.iter().position(|version| version.write == write.number);
            let Some(index) = index else { continue };
            block.versions[index].acknowledged |= acknowledged;
            if acknowledged && durable {
                block.versions.drain(..index);
            }
        }
    }

    /// The write was refused before it began: nothing of it happened.
    pub(super) fn withdraw_write(&mut self, write: &Write) {
        for block in &mut self.blocks[write.blocks.clone()] {
            block.written = false;
            block.versions.retain(|version| version.write != write.number);
        }
    }

    /// Begins a read, unless a write is under way at one of the blocks.
    pub(super) fn begin_read(&mut self, blocks: Range<usize>) -> bool {
        if self.blocks[blocks.clone()].iter().any(|block| block.written) {
            return false;
        }
        for block in &mut self.blocks[blocks] {
            block.readers += 1;
        }
        true
    }

    /// The read has ended, with these contents if it succeeded.
    ///
    /// # Panics
    /// If a block holds what it cannot hold.
    pub(super) fn end_read(&mut self, blocks: Range<usize>, contents: Option<&[u64]>) {
        for (index, at) in blocks.enumerate() {
            let block = &mut self.blocks[at];
            block.readers -= 1;
            if let Some(contents) = contents {
                self.check(at, contents[index]);
            }
        }
    }

    /// # Panics
    /// If a block holds what it cannot hold.
    pub(super) fn check(&self, at: usize, found: u64) {
        let versions = &self.blocks[at].versions;
        let last = versions.iter().rposition(|version| version.acknowledged);
        let allowed = &versions[last.expect("the first version counts as acknowledged")..];
        let possible = allowed.iter().any(|version| version.content == found);
        assert!(possible, "block {at} reads as {found}, which is none of {allowed:?}");
    }

    /// What is acknowledged now: a flush which begins now has to keep it.
    #[must_use]
    pub(super) fn begin_flush(&self) -> Flush {
        let last = |block: &Block| {
            let acknowledged = block.versions.iter().rfind(|version| version.acknowledged);
            acknowledged.map_or(0, |version| version.write)
        };
        Flush { began_with: self.blocks.iter().map(last).collect(), power_losses: self.power_losses }
    }

    /// The flush succeeded: nothing older than what it began with comes back. If the power went before it
    /// did, a host which sent it again cannot know what it kept.
    pub(super) fn end_flush(&mut self, flush: &Flush) {
        if flush.power_losses != self.power_losses {
            return;
        }
        for (block, &write) in self.blocks.iter_mut().zip(&flush.began_with) {
            if let Some(index) = block.versions.iter().position(|version| version.write == write) {
                block.versions.drain(..index);
            }
        }
    }

    /// The power went: every version since the last durable one is possible.
    pub(super) fn power_lost(&mut self) {
        self.power_losses += 1;
        for block in &mut self.blocks {
            for (index, version) in block.versions.iter_mut().enumerate() {
                version.acknowledged = index == 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_write_replaces_what_was_before() {
        let mut shadow = Shadow::new(4);
        let write = shadow.begin_write(1..3, None).unwrap();
        assert!(!shadow.begin_read(2..4), "a read would race with the write");
        shadow.end_write(&write, true, false);
        assert!(shadow.begin_read(0..2));
        shadow.end_read(0..2, Some(&[0, write.content]));
    }

    #[test]
    #[should_panic(expected = "block 0 reads as 0")]
    fn a_lost_write_is_found() {
        let mut shadow = Shadow::new(1);
        let write = shadow.begin_write(0..1, None).unwrap();
        shadow.end_write(&write, true, false);
        shadow.begin_read(0..1);
        shadow.end_read(0..1, Some(&[0]));
    }

    #[test]
    fn a_failed_write_leaves_both_possible() {
        for content in [0, 1] {
            let mut shadow = Shadow::new(1);
            let write = shadow.begin_write(0..1, None).unwrap();
            shadow.end_write(&write, false, false);
            shadow.begin_read(0..1);
            shadow.end_read(0..1, Some(&[content]));
        }
    }

    #[test]
    #[should_panic(expected = "block 0 reads as 1")]
    fn a_refused_write_which_happened_is_found() {
        let mut shadow = Shadow::new(1);
        let write = shadow.begin_write(0..1, None).unwrap();
        shadow.withdraw_write(&write);
        shadow.begin_read(0..1);
        shadow.end_read(0..1, Some(&[1]));
    }

    #[test]
    #[should_panic(expected = "block 0 reads as 0")]
    fn power_loss_does_not_undo_a_flush() {
        let mut shadow = Shadow::new(1);
        let write = shadow.begin_write(0..1, None).unwrap();
        shadow.end_write(&write, true, false);
        let flush = shadow.begin_flush();
        shadow.end_flush(&flush);
        shadow.power_lost();
        shadow.begin_read(0..1);
        shadow.end_read(0..1, Some(&[0]));
    }
}
