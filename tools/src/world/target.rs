//! A target of a world: its reactors, the messages between them, and the drives below.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::memory::{Memory, Pool, SizeClass};
use ironside_common::provider::sim::Choices;
use ironside_common::time::Time;
use ironside_common::verbs::{Address, QpHandle};
use ironside_target::backend::Operation;
use ironside_target::catalog::Catalog;
use ironside_target::limits::Census;
use ironside_target::poll_group::{Message, PollGroup, Settings};
use ironside_target::reservation::{HostId, Keep, State};
use uuid::Uuid;

use super::disk::{Disks, Share};
use super::fabric::{Fabric, Pump};
use super::limits::{self, Limits};

/// Bytes one command moves at most.
const TRANSFER_MAX: u32 = 1 << 20;

pub(super) struct Target<F: Fabric> {
    address: Address,
    disks: Rc<RefCell<Disks>>,
    reactors: Vec<Reactor<F>>,
    /// Messages on their way: receiver and content.
    letters: VecDeque<(usize, Message)>,
    /// How many have arrived.
    delivered: u64,
    keeps: VecDeque<Keep>,
    /// The state of reservations which outlasts everything.
    kept: Option<Arc<State>>,
    /// What reactors have to keep to, and the one which has the buckets.
    pub(super) limits: Limits,
    home: usize,
}

struct Reactor<F: Fabric> {
    group: PollGroup<F::Provider, Share>,
    pool: Rc<Pool>,
    /// Of its share of the drives.
    share: u32,
}

impl<F: Fabric> Target<F> {
    /// A target which is not running yet.
    pub(super) fn new(address: Address, disks: Rc<RefCell<Disks>>) -> Self {
        Self {
            address,
            disks,
            reactors: Vec::new(),
            letters: VecDeque::new(),
            delivered: 0,
            keeps: VecDeque::new(),
            kept: None,
            limits: Limits::default(),
            home: 0,
        }
    }

    pub(super) fn start(
        &mut self,
        fabric: &mut F,
        now: Time,
        catalog: &Arc<Catalog>,
        choices: &mut impl Choices,
    ) {
        let reactors = 1 + choices.below(2) as usize;
        self.home = limits::home(&catalog.subsystems()[0], reactors);
        self.limits.start(now, catalog);
        let queue_depth = 16 + choices.below(3) as u16 * 8;
        let (small, large) = (1 + choices.below(8), 2 + choices.below(3));
        let census = Census::default();
        for reactor in 0..reactors {
            let memory = Memory::new();
            let classes =
                [SizeClass { size: 4096, count: small }, SizeClass { size: TRANSFER_MAX, count: large }];
            let pool = Pool::new(&memory, &classes).expect("address space is plenty");
            let provider = fabric.provider(self.address, &memory, 0);
            let storage = Share::new(&self.disks, &memory);
            let share = storage.number();
            let reads = 1 + choices.below(4);
            let drain = Duration::from_secs(30);
            let settings = Settings {
                reactor,
                reactors,
                queue_depth,
                in_capsule: 4096,
                reads,
                transfer_max: TRANSFER_MAX,
                census: census.clone(),
                drain,
            };
            let group =
                PollGroup::new(settings, provider, storage, Rc::clone(&pool), memory, Arc::clone(catalog));
            self.reactors.push(Reactor { group, pool, share });
        }
        fabric.set_listening(self.address, true);
    }

    /// The process is killed.
    pub(super) fn kill(&mut self, fabric: &mut F, choices: &mut impl Choices) {
        while let Some(keep) = self.keeps.pop_front() {
            if choices.chance(50) {
                self.kept = keep.state;
            }
        }
        fabric.set_listening(self.address, false);
        self.reactors.clear();
        self.delivered += self.letters.len() as u64;
        self.letters.clear();
    }

    /// Its reactors' shares of the drives.
    pub(super) fn shares(&self) -> Vec<u32> {
        self.reactors.iter().map(|reactor| reactor.share).collect()
    }

    pub(super) fn is_running(&self) -> bool {
        !self.reactors.is_empty()
    }

    /// One turn of one reactor.
    pub(super) fn turn(&mut self, now: Time, choices: &mut impl Choices) -> bool {
        let Ok(count @ 1..) = u32::try_from(self.reactors.len()) else { return false };
        self.turn_of(choices.below(count) as usize, now)
    }

    /// One turn of every reactor.
    pub(super) fn turn_all(&mut self, now: Time) -> bool {
        let mut busy = self.deliver_letter(now);
        for index in 0..self.reactors.len() {
            busy |= self.turn_of(index, now);
        }
        busy
    }

    fn turn_of(&mut self, index: usize, now: Time) -> bool {
        let group = &mut self.reactors[index].group;
        let mut busy = group.verbs().pump(now);
        busy |= group.turn(now);
        while let Some(letter) = group.next_message() {
            self.limits.on_sent(now, &letter.1);
            self.letters.push_back(letter);
            busy = true;
        }
        while let Some(keep) = group.next_keep() {
            self.keeps.push_back(keep);
        }
        if index == self.home {
            self.limits.check(now);
        }
        self.retire(index);
        busy
    }

    /// A reactor lets go of drives which are not served any more and which no command needs.
    fn retire(&mut self, index: usize) {
        let group = &mut self.reactors[index].group;
        let catalog = Arc::clone(group.catalog());
        for drive in group.storage().unserved(&catalog) {
            if !group.uses(drive) {
                group.storage().detach(drive);
            }
        }
    }

    /// What its reservations begin with when it starts.
    pub(super) fn kept(&self) -> Option<Arc<State>> {
        self.kept.clone()
    }

    /// Makes the oldest of those states of reservations durable which are to be, or fails to in so many percent of
    /// all cases.
    pub(super) fn keep_one(&mut self, choices: &mut impl Choices, fails: u32) -> bool {
        let Some(Keep { uuid, number, state }) = self.keeps.pop_front() else { return false };
        let kept = !choices.chance(fails);
        if kept {
            self.kept = state;
        }
        self.letters.push_back((0, Message::Kept { uuid, number, kept }));
        true
    }

    /// Whose commands are at the medium of a namespace, and what they do there.
    pub(super) fn at_medium(&self, uuid: Uuid) -> Vec<(HostId, Operation)> {
        let disks = self.disks.borrow();
        let under_way = disks.under_way(uuid).filter_map(|(share, token, operation)| {
            let reactor = self.reactors.iter().find(|reactor| reactor.share == share)?;
            let host = reactor.group.host_of(QpHandle(token.qpair)).expect("a command has a host");
            Some((host, *operation))
        });
        under_way.collect()
    }

    /// Queues of a host, on all reactors.
    pub(super) fn queues_of(&self, host: &HostId) -> usize {
        self.reactors.iter().map(|reactor| reactor.group.queues_of(host)).sum()
    }

    /// # Panics
    /// If something is at the drive of a limited namespace whose turn has not come.
    pub(super) fn check_turns(&self, uuid: Uuid) {
        for (share, token, operation) in self.disks.borrow().under_way(uuid) {
            let reactor = self.reactors.iter().position(|reactor| reactor.share == share);
            if let Some(reactor) = reactor.filter(|_| !matches!(operation, Operation::Flush)) {
                self.limits.check_turn(uuid, reactor, token);
            }
        }
    }

    /// Delivers the oldest message between reactors.
    pub(super) fn deliver_letter(&mut self, now: Time) -> bool {
        let Some((to, message)) = self.letters.pop_front() else { return false };
        self.delivered += 1;
        if to == self.home {
            self.limits.on_message(now, &message);
        }
        self.reactors[to].group.on_message(now, message);
        true
    }

    /// How many messages have arrived, and how many will have when all that were sent have.
    pub(super) fn delivered(&self) -> (u64, u64) {
        (self.delivered, self.delivered + self.letters.len() as u64)
    }

    /// Whether a message is on its way.
    pub(super) fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }

    /// Tells every reactor.
    pub(super) fn tell(&mut self, message: &Message) {
        self.letters.extend((0..self.reactors.len()).map(|reactor| (reactor, message.clone())));
    }

    /// Whether every reactor has this version of what is served, and nothing is at a drive whose way has ended by it.
    pub(super) fn is_settled(&mut self, version: u64) -> bool {
        self.reactors
            .iter_mut()
            .all(|reactor| reactor.group.catalog().version() == version && reactor.group.is_settled())
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let deadlines =
            |reactor: &Reactor<F>| [reactor.group.deadline(), reactor.group.provider().deadline()];
        self.reactors.iter().flat_map(deadlines).flatten().min()
    }

    /// # Panics
    /// If anything of a connection is left.
    pub(super) fn check_at_rest(&self) {
        self.limits.check_at_rest();
        for Reactor { group, pool, .. } in &self.reactors {
            assert_eq!(group.connections(), 0, "a connection is left on the target");
            assert_eq!(group.controllers(), 0, "a controller is left on the target");
            assert_eq!(pool.available(), pool.total(), "a buffer of the target leaked");
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.reactors.iter().map(|reactor| reactor.group.connections()).sum()
    }
}
