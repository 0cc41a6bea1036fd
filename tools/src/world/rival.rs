//! A host which takes a lock as clusters do: it compares a block with what it last knew, and writes what comes next, by
//! two fused commands. Several of them want the same block, by several queues each, on whichever reactors these are.
//!
//! What must hold: of one content only one successor is ever acknowledged. Two would mean that something came
//! between a Compare and its Write. And who looks sees what was acknowledged before, or a later one.

use ironside_common::nvme::admin::Abort;
use ironside_common::nvme::{Command, Nqn, Status, io};
use ironside_common::provider::sim::Choices;
use ironside_common::time::Time;
use ironside_common::verbs::Address;

use super::BLOCK_SIZE;
use super::fabric::Fabric;
use super::raw::{News, RawHost, Way};

/// The block of the first namespace which rivals have for themselves.
pub(super) const LOCK: usize = 0;
const NSID: u32 = 1;

/// What rivals have been told: how often the block was taken, and the content which replaced the last one.
#[derive(Debug, Default)]
pub(super) struct Taken {
    from: std::collections::BTreeSet<u64>,
}

impl Taken {
    pub(super) fn times(&self) -> u64 {
        self.from.len() as u64
    }

    /// The least which the block may hold from now on: what was acknowledged was forced to the medium.
    fn floor(&self) -> u64 {
        self.from.last().map_or(0, |last| last + 1)
    }
}

pub(super) struct Rival<F: Fabric> {
    raw: RawHost<F>,
    number: u8,
    /// What the block holds, for all this rival knows.
    known: u64,
    /// What is under way on each I/O queue.
    jobs: Vec<Option<Job>>,
    /// An Abort is under way.
    aborting: bool,
    closing: bool,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    /// Two fused commands, and what became of them.
    Take {
        from: u64,
        answers: [Option<Status>; 2],
    },
    Look {
        floor: u64,
    },
}

impl<F: Fabric> Rival<F> {
    pub(super) fn new(fabric: &mut F, number: u8, target: Address, nqn: Nqn, queues: usize) -> Self {
        let raw = RawHost::new(fabric, number, target, nqn, queues);
        Self { raw, number, known: 0, jobs: vec![None; queues], aborting: false, closing: false }
    }

    pub(super) fn turn(&mut self, now: Time, taken: &mut Taken) -> bool {
        let mut busy = self.raw.turn(now);
        while let Some(news) = self.raw.next_news() {
            busy = true;
            match news {
                News::Ready => {}
                News::Lost => {
                    self.jobs.fill(None);
                    self.aborting = false;
                }
                News::Answer { qid: 0, .. } => self.aborting = false,
                News::Answer { qid, cid, status, .. } => self.on_answer(qid, cid, status, taken),
            }
        }
        if self.closing && !self.aborting && self.jobs.iter().all(Option::is_none) {
            self.raw.close(now);
        }
        busy
    }

    /// Takes the block from whoever has it, or looks who has.
    pub(super) fn submit(&mut self, taken: &Taken, choices: &mut impl Choices) {
        let index = choices.below(self.raw.io_queues() as u32) as usize;
        if !self.raw.is_ready() || self.closing {
            return;
        }
        let (qid, lba, blocks) = (index + 1, LOCK as u64, 1);
        if self.jobs[index].is_some() {
            // One half of a pair, before or after it has come.
            if !self.aborting && choices.chance(5) {
                self.aborting = true;
                let abort = Abort { sqid: qid as u16, cid: choices.below(2) as u16 };
                self.raw.send(0, abort.to_command(0), None);
            }
            return;
        }
        if choices.chance(30) {
            self.jobs[index] = Some(Job::Look { floor: taken.floor() });
            let read = io::Request::Read { lba, blocks, fua: false }.to_command(0, NSID);
            return self.raw.send(qid, read, Some((Way::ToHost, BLOCK_SIZE)));
        }
        self.jobs[index] = Some(Job::Take { from: self.known, answers: [None; 2] });
        super::trace(|| format!("rival {} takes the block from {} on queue {qid}", self.number, self.known));
        let compare = io::Request::Compare { lba, blocks, fua: false };
        let write = io::Request::Write { lba, blocks, fua: true };
        for (cid, (request, content)) in (0..).zip([(compare, self.known), (write, self.known + 1)]) {
            let bytes = content.to_le_bytes().repeat(BLOCK_SIZE as usize / 8);
            self.raw.write(self.raw.room(qid, cid, BLOCK_SIZE), &bytes);
            let way = if choices.chance(50) { Way::InCapsule } else { Way::Fetched };
            let command = request.to_command(cid, NSID);
            let command = Command { flags: command.flags | 1 << cid, ..command };
            self.raw.send(qid, command, Some((way, BLOCK_SIZE)));
        }
    }

    /// Nothing begins any more, and what stands ends once nothing is under way.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.raw.is_over()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.raw.deadline()
    }

    fn on_answer(&mut self, qid: usize, cid: u16, status: Status, taken: &mut Taken) {
        match self.jobs[qid - 1].as_mut().expect("an answer to nothing") {
            Job::Look { floor } => {
                let floor = *floor;
                self.jobs[qid - 1] = None;
                if status.is_success() {
                    self.known = self.seen(qid);
                    assert!(
                        self.known >= floor,
                        "the block holds {}, after {floor} was acknowledged",
                        self.known
                    );
                }
            }
            Job::Take { from, answers } => {
                let answered = answers[usize::from(cid)].replace(status);
                assert!(answered.is_none(), "a command was answered twice");
                if let (from, [Some(compare), Some(write)]) = (*from, *answers) {
                    self.jobs[qid - 1] = None;
                    self.on_pair(from, compare, write, taken);
                }
            }
        }
    }

    fn seen(&self, qid: usize) -> u64 {
        let bytes = self.raw.read(self.raw.room(qid, 0, BLOCK_SIZE));
        let (first, rest) = bytes.split_first_chunk().expect("a block is longer");
        assert!(rest.chunks(8).all(|chunk| chunk == first), "a torn block");
        u64::from_le_bytes(*first)
    }

    fn on_pair(&mut self, from: u64, compare: Status, write: Status, taken: &mut Taken) {
        super::trace(|| format!("rival {} at {from}: {compare}, {write}", self.number));
        match (compare.is_success(), write.is_success()) {
            (true, true) => {
                assert!(taken.from.insert(from), "two have taken the block from {from}");
                self.known = from + 1;
            }
            (false, true) => panic!("written although the Compare failed: {compare}"),
            _ if compare.is(Status::COMPARE_FAILURE) => {
                assert!(write.is(Status::ABORTED_FAILED_FUSED), "{write}");
            }
            _ => {}
        }
    }
}
