//! The drives of a world, shared by all reactors of its targets. They outlive those.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use ironside_common::memory::Memory;
use ironside_common::provider::sim::Choices;
use ironside_common::verbs::{Sge, Token};
use ironside_target::backend::{BlockError, Done, Faulty, Medium, Operation, Outcome};
use ironside_target::catalog::{Catalog, Namespace, Subsystem};
use ironside_target::poll_group::Storage;
use uuid::Uuid;

/// The drives, and who asked for what is pending on each.
#[derive(Debug, Default)]
pub(super) struct Disks {
    drives: Vec<Drive>,
    done: BTreeMap<u32, VecDeque<Done>>,
    next_share: u32,
    /// What is to end early: whose it is, and its token.
    cancelled: BTreeSet<(u32, u64)>,
    /// Whether some operations take far longer than others: what a host has given up may well be among them.
    pub(super) some_are_slow: bool,
    /// Those which do: whose they are, and their tokens.
    slow: BTreeSet<(u32, u64)>,
    asked: u64,
}

/// Of the operations, where some are slow, one in so many is; and how often it ends when it might, in percent.
const SLOW_EVERY: u64 = 5;
const SLOW: u32 = 3;

#[derive(Debug)]
struct Drive {
    uuid: Uuid,
    medium: Faulty,
    /// In the order of the medium's pending operations.
    owners: Vec<u32>,
    /// No way leads here.
    closed: bool,
}

impl Disks {
    pub(super) fn add(&mut self, uuid: Uuid, size: u64, block_size: u32) {
        self.drives.push(Drive {
            uuid,
            medium: Faulty::new(size, block_size),
            owners: Vec::new(),
            closed: false,
        });
    }

    /// From now on no operation may come to a drive, or may again.
    ///
    /// # Panics
    /// If one is pending on a drive to which no way leads.
    pub(super) fn set_closed(&mut self, uuid: Uuid, closed: bool) {
        for drive in self.drives.iter_mut().filter(|drive| drive.uuid == uuid) {
            assert!(!closed || drive.owners.is_empty(), "settled, with an operation under way");
            drive.closed = closed;
        }
    }

    #[must_use]
    pub(super) fn pending(&self) -> usize {
        self.drives.iter().map(|drive| drive.owners.len()).sum()
    }

    fn is_pending(&self, owner: u32, token: Token) -> bool {
        let is_it = |drive: &Drive| {
            let pending = drive.owners.iter().zip(drive.medium.pending());
            pending.into_iter().any(|(&one, pending)| one == owner && pending.token == token)
        };
        self.drives.iter().any(is_it)
    }

    /// What is under way on one drive: whose share it is, and the token of what asked for it.
    pub(super) fn under_way(&self, uuid: Uuid) -> impl Iterator<Item = (u32, Token, &Operation)> {
        let drives = self.drives.iter().filter(move |drive| drive.uuid == uuid);
        drives.flat_map(|drive| {
            let pending = drive.owners.iter().zip(drive.medium.pending());
            pending.map(|(&owner, pending)| (owner, pending.token, &pending.operation))
        })
    }

    /// Ends one operation, which fails in `fails` percent of all cases. False if there is none.
    pub(super) fn complete_one(&mut self, choices: &mut impl Choices, fails: u32) -> bool {
        let Ok(count @ 1..) = u32::try_from(self.pending()) else { return false };
        let index = choices.below(count) as usize;
        let owners = self.drives.iter().flat_map(|drive| drive.owners.iter().zip(drive.medium.pending()));
        let name = owners.map(|(&owner, pending)| (owner, pending.token.to_bits())).nth(index);
        let is_slow = name.is_some_and(|name| self.slow.contains(&name));
        if !is_slow || choices.chance(SLOW) {
            self.complete(index, choices, fails);
        }
        true
    }

    /// Ends the operation of this number among all.
    fn complete(&mut self, mut index: usize, choices: &mut impl Choices, fails: u32) {
        for drive in &mut self.drives {
            if index < drive.owners.len() {
                let pending = &drive.medium.pending()[index];
                let name = (drive.owners[index], pending.token.to_bits());
                self.slow.remove(&name);
                let is_cancelled = self.cancelled.remove(&name);
                let outcome = match is_cancelled && choices.chance(70) {
                    true => {
                        Outcome::Failure { blocks: choices.below(4).into(), error: BlockError::Cancelled }
                    }
                    false => outcome(&pending.operation, choices, fails),
                };
                super::trace(|| {
                    format!("drive {}: {:?} {outcome:?}", drive.uuid, drive.medium.pending()[index].operation)
                });
                let owner = drive.owners.remove(index);
                let done = drive.medium.complete(index, outcome);
                if let Some(queue) = self.done.get_mut(&owner) {
                    queue.push_back(done);
                }
                return;
            }
            index -= drive.owners.len();
        }
        unreachable!("the index is below the number of operations");
    }

    /// A target's process is gone: each thing that these shares had under way happens now, wholly, in part or not at all,
    /// as the kernel ends it with the process.
    pub(super) fn process_gone(&mut self, shares: &[u32], choices: &mut impl Choices) {
        let next = |disks: &Self| {
            let mut owners = disks.drives.iter().flat_map(|drive| &drive.owners);
            owners.position(|owner| shares.contains(owner))
        };
        while let Some(index) = next(self) {
            self.complete(index, choices, 50);
        }
    }

    /// What each block of a drive is filled with.
    pub(super) fn contents(&self, uuid: Uuid) -> Vec<u64> {
        let drive = self.drives.iter().find(|drive| drive.uuid == uuid).expect("a drive of the world");
        let blocks = drive.medium.size() / u64::from(super::BLOCK_SIZE);
        let word = |block| {
            let bytes = drive.medium.block(block);
            u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
        };
        (0..blocks).map(word).collect()
    }

    /// The power goes: what was not flushed is lost at will.
    pub(super) fn power_loss(&mut self, choices: &mut impl Choices) {
        self.slow.clear();
        for drive in &mut self.drives {
            drive.owners.clear();
            drive
                .medium
                .power_loss(|bound| choices.below(u32::try_from(bound).expect("few versions")).into());
        }
    }
}

fn outcome(operation: &Operation, choices: &mut impl Choices, fails: u32) -> Outcome {
    if matches!(operation, Operation::Copy { .. }) && choices.chance(30) {
        // As a file system of which parts share no blocks.
        return Outcome::Failure { blocks: choices.below(4).into(), error: BlockError::Unsupported };
    }
    if !choices.chance(fails) {
        return Outcome::Success;
    }
    let error = match choices.below(3) {
        0 => BlockError::NoSpace,
        _ if operation.modifies() => BlockError::Write(libc::EIO),
        _ => BlockError::Read(libc::EIO),
    };
    Outcome::Failure { blocks: choices.below(4).into(), error }
}

/// What one reactor sees of the drives.
#[derive(Debug)]
pub(super) struct Share {
    disks: Rc<RefCell<Disks>>,
    memory: Rc<Memory>,
    number: u32,
    /// Drives it has let go of.
    detached: BTreeSet<usize>,
}

impl Share {
    pub(super) fn new(disks: &Rc<RefCell<Disks>>, memory: &Rc<Memory>) -> Self {
        let number = {
            let mut disks = disks.borrow_mut();
            disks.next_share += 1;
            let number = disks.next_share;
            disks.done.insert(number, VecDeque::new());
            number
        };
        Self { disks: Rc::clone(disks), memory: Rc::clone(memory), number, detached: BTreeSet::new() }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Drives it holds though this version does not name them.
    pub(super) fn unserved(&self, catalog: &Catalog) -> Vec<usize> {
        let served = |uuid| {
            let namespaces = catalog.subsystems().iter().flat_map(Subsystem::namespaces);
            namespaces.into_iter().any(|namespace| namespace.uuid == uuid)
        };
        let disks = self.disks.borrow();
        let drives = disks.drives.iter().enumerate();
        let unserved = drives.filter(|(index, drive)| !served(drive.uuid) && !self.detached.contains(index));
        unserved.map(|(index, _)| index).collect()
    }

    /// Lets go of a drive.
    ///
    /// # Panics
    /// If something is under way on it.
    pub(super) fn detach(&mut self, drive: usize) {
        let disks = self.disks.borrow();
        assert!(!disks.drives[drive].owners.contains(&self.number), "a drive in use is let go of");
        self.detached.insert(drive);
    }
}

/// A reactor that is gone: what it asked for may still happen, but nobody is told.
impl Drop for Share {
    fn drop(&mut self) {
        self.disks.borrow_mut().done.remove(&self.number);
    }
}

impl Medium for Share {
    fn submit(&mut self, token: Token, namespace: usize, operation: Operation) {
        assert!(!self.detached.contains(&namespace), "an operation on a drive which was let go of");
        let mut disks = self.disks.borrow_mut();
        disks.asked += 1;
        if disks.some_are_slow && disks.asked.is_multiple_of(SLOW_EVERY) {
            disks.slow.insert((self.number, token.to_bits()));
        }
        let drive = &mut disks.drives[namespace];
        assert!(!drive.closed, "an operation on a drive to which no way leads");
        drive.medium.submit(&self.memory, token, operation);
        drive.owners.push(self.number);
    }

    fn cancel(&mut self, token: Token) {
        let mut disks = self.disks.borrow_mut();
        // What has ended already is not there to be cancelled, nor is what may bear its token later.
        if disks.is_pending(self.number, token) {
            disks.cancelled.insert((self.number, token.to_bits()));
        }
    }

    fn copies(&self, _namespace: usize) -> bool {
        true
    }

    fn in_place(&self, _namespace: usize, _offset: u64, _length: u32) -> Option<Sge> {
        None
    }

    fn poll(&mut self) -> Option<Done> {
        self.disks.borrow_mut().done.get_mut(&self.number)?.pop_front()
    }
}

impl Storage for Share {
    fn backend_of(&mut self, namespace: &Namespace) -> usize {
        let disks = self.disks.borrow();
        let found = disks.drives.iter().position(|drive| drive.uuid == namespace.uuid);
        let drive = found.expect("every namespace of the world has a drive");
        self.detached.remove(&drive);
        drive
    }
}
