//! The Copy command, step by step.
//!
//! Where the medium has a copy of its own, each source range is one such. What it cannot do, or could not, is gathered: the
//! ranges are read one behind the other, then written at once. So is a Copy whose source and destination overlap, which
//! therefore writes what was there before; and of what is gathered nothing is written if reading fails.
use ironside_common::memory::Memory;
use ironside_common::nvme::copy::{SourceRange, SourceRanges};
use ironside_common::nvme::{Status, io};
use ironside_common::verbs::Sge;

use super::CommandKind;
use super::phase::{Execution, Work};
use crate::backend::{BlockError, Medium, Operation};

/// The next operation of a Copy whose source ranges lie in `list`, or nothing once all is done.
///
/// # Errors
/// What is wrong with its ranges.
///
/// # Panics
/// If it is no Copy.
pub(super) fn next(
    execution: &mut Execution,
    list: Sge,
    medium: &impl Medium,
    memory: &Memory,
) -> Result<Option<Operation>, Status> {
    const MOST: usize = SourceRanges::MAX as usize * SourceRange::SIZE as usize;
    let Work::Io(namespace, io::Request::Copy { lba, ranges, fua }) = &execution.active.work else {
        unreachable!("it copies")
    };
    let geometry = &namespace.geometry;
    let mut bytes = [0; MOST];
    let bytes = &mut bytes[..usize::from(*ranges) * size_of::<SourceRange>()];
    memory.read(list.slice(0, u32::from(*ranges) * SourceRange::SIZE), bytes);
    let sources = SourceRanges::parse(bytes, *ranges, *lba, geometry)?;
    let (step, end, blocks) = (execution.step, u32::from(*ranges), sources.blocks());
    let overlaps = |(source, count, _): (u64, u32, u32)| {
        source < lba + u64::from(blocks) && *lba < source + u64::from(count)
    };
    if execution.gathers_from.is_none()
        && step < end
        && (!medium.copies(namespace.medium) || sources.iter().any(overlaps))
    {
        execution.gathers_from = Some(step);
    }
    let range = |number: u32| sources.iter().nth(number as usize);
    let to = |before: u32| geometry.bytes(lba + u64::from(before));
    let Some(first) = execution.gathers_from else {
        let copy = |(source, count, before)| Operation::Copy {
            source: geometry.bytes(source),
            offset: to(before),
            length: namespace.bytes(count),
        };
        let flush = (*fua && step == end).then_some(Operation::Flush);
        let next = range(step).map(copy).or(flush);
        if next.is_none() {
            namespace.usage.moved(CommandKind::Copy, namespace.bytes(blocks).into());
        }
        return Ok(next);
    };
    let (_, _, done) = range(first).expect("what is gathered is some of them");
    let room = execution.scratch.as_ref().expect("it leased room for all of them").sge();
    let room = |before: u32, count: u32| room.slice(namespace.bytes(before - done), namespace.bytes(count));
    Ok(match range(step) {
        Some((source, count, before)) => {
            Some(Operation::Read { offset: geometry.bytes(source), into: room(before, count) })
        }
        None if step == end => {
            Some(Operation::Write { offset: to(done), from: room(done, blocks - done), fua: *fua })
        }
        // What the medium has copied before has to be durable as well.
        None if *fua && first > 0 && step == end + 1 => Some(Operation::Flush),
        None => {
            namespace.usage.moved(CommandKind::Copy, namespace.bytes(blocks).into());
            None
        }
    })
}

impl Execution {
    /// Whether a failure of the medium only means that the rest has to be gathered; from now on it is.
    pub(super) fn gathers_instead(&mut self, error: BlockError) -> bool {
        let copies = matches!(self.active.work, Work::Io(_, io::Request::Copy { .. }));
        let gathers = copies && self.gathers_from.is_none() && error == BlockError::Unsupported;
        if gathers {
            self.gathers_from = Some(self.step);
        }
        gathers
    }

    /// Dword 0 of what ends without success: of a Copy, the first source range which has not been copied (NVM Command
    /// Set specification, Copy command, command completion).
    pub(super) fn result_of_failure(&self) -> u64 {
        let Work::Io(_, io::Request::Copy { ranges, .. }) = self.active.work else { return 0 };
        match self.gathers_from {
            Some(first) => first.into(),
            None if self.step < u32::from(ranges) => self.step.into(),
            None => 0,
        }
    }
}
