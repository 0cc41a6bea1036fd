//! Our target as the table drives it: the whole poll group over the software provider, on byte streams in memory
//! and under a clock of the test's own.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::auth::{Policy, Randomness};
use ironside_common::memory::{Memory, Pool, SizeClass};
use ironside_common::nvme::log_page::AnaState;
use ironside_common::provider::soft::{Settings, Soft};
use ironside_common::time::Time;
use ironside_common::verbs::{Address, Sge, Token};
use ironside_target::backend::{BlockError, Done, Faulty, Medium, OpenMedium, Operation, Outcome};
use ironside_target::catalog::{Access, Catalog, Hosts, Key, Namespace, Subsystem};
use ironside_target::limits::{Census, Limits, Resource};
use ironside_target::poll_group::{self, Message, PollGroup, Storage};
use uuid::Uuid;

use crate::pipe::{Dialled, Peer, Pipe, ToTest, pipe};
use crate::queue::HOST;

/// The subsystem which every host may have. Namespace 1 has 4096 blocks of 512 bytes, namespace 2 has 512 of
/// 4096 bytes, namespace 3 is like the first but takes no writes, and is of ANA group 2.
pub(crate) const OPEN: &str = "nqn.2014-08.org.example:open";
/// The subsystem for [`FRIEND`] alone.
pub(crate) const PRIVATE: &str = "nqn.2014-08.org.example:private";
pub(crate) const FRIEND: &str = "nqn.2014-08.org.example:friend";
pub(crate) const BLOCKS: u64 = 4096;

/// What it is set up with, where rows care.
pub(crate) const QUEUE_DEPTH: u16 = 128;
pub(crate) const IN_CAPSULE: usize = 4096;
pub(crate) const IO_QUEUES: u16 = 4;
/// RDMA Reads it has outstanding at most, and takes at most.
pub(crate) const READS: u16 = 8;

const ADDRESS: &str = "192.0.2.1:4420";

/// A target; clones are the same one.
#[derive(Clone)]
pub(crate) struct Target(Rc<RefCell<Inner>>);

struct Inner {
    group: PollGroup<Soft<Pipe>, Drives>,
    now: Time,
    peers: u16,
}

impl Target {
    pub(crate) fn new() -> Self {
        Self::with_crc(false)
    }

    /// One which itself asks for CRC, or leaves it to the host.
    pub(crate) fn with_crc(crc: bool) -> Self {
        let memory = Memory::new();
        let classes = [SizeClass { size: 4096, count: 64 }, SizeClass { size: 1 << 20, count: 8 }];
        let pool = Pool::new(&memory, &classes).expect("address space is plenty");
        let dialer = ToTest { dialled: Dialled::default() };
        let provider = Settings { crc, reads: READS, seed: 1, ..Settings::default() };
        let verbs = Soft::new(Rc::clone(&memory), Box::new(dialer), provider);
        let settings = poll_group::Settings {
            reactor: 0,
            reactors: 1,
            queue_depth: QUEUE_DEPTH,
            in_capsule: 4096,
            reads: READS.into(),
            transfer_max: 1 << 20,
            census: Census::default(),
            drain: Duration::from_secs(30),
        };
        let drives = Drives::new(&memory);
        let catalog = Catalog::new(1, subsystems(&[1, 2, 3])).expect("it is a catalog").with_limits(limits());
        let group = PollGroup::new(settings, verbs, drives, pool, memory, Arc::new(catalog));
        // A clock that has run for long: nothing may take zero for now.
        let now = Time::from_nanos(1 << 50);
        Self(Rc::new(RefCell::new(Inner { group, now, peers: 0 })))
    }

    /// A new TCP connection.
    pub(crate) fn dial(&self) -> Peer {
        self.dial_over(None)
    }

    /// One over a path whose TCP segments have this size.
    pub(crate) fn dial_over(&self, segment: Option<u32>) -> Peer {
        let (wire, peer) = pipe(segment);
        let mut inner = self.0.borrow_mut();
        inner.peers += 1;
        let from = Address::from(([192, 0, 2, 100], inner.peers));
        inner.group.verbs().adopt(wire, from, address());
        peer
    }

    /// Lets it do all it can without time passing.
    pub(crate) fn run(&self) {
        let Inner { group, now, .. } = &mut *self.0.borrow_mut();
        // The last rounds look once more, as a reactor does before it sleeps.
        let mut idle = 0;
        while idle < 4 {
            let mut busy = group.verbs().pump(*now);
            busy |= group.turn(*now);
            while let Some((_, message)) = group.next_message() {
                group.on_message(*now, message);
                busy = true;
            }
            // Here everything is durable at once.
            while let Some(keep) = group.next_keep() {
                group.on_message(*now, Message::Kept { uuid: keep.uuid, number: keep.number, kept: true });
                busy = true;
            }
            while let Some((queue, job)) = group.next_job() {
                group.on_computed(*now, queue, job.run(&mut Counted));
                busy = true;
            }
            busy |= group.verbs().flush(*now);
            idle = if busy { 0 } else { idle + 1 };
        }
    }

    /// Lets time pass, a little at a time.
    pub(crate) fn wait(&self, duration: Duration) {
        const STEP: Duration = Duration::from_millis(100);
        let mut left = duration;
        while !left.is_zero() {
            let step = left.min(STEP);
            left -= step;
            let now = self.0.borrow().now + step;
            self.0.borrow_mut().now = now;
            self.run();
        }
    }

    /// From now on it serves these namespaces of [`OPEN`].
    pub(crate) fn serve(&self, version: u64, nsids: &[u32]) {
        self.take_over(Catalog::new(version, subsystems(nsids)).expect("it is a catalog"));
    }

    /// From now on it serves [`OPEN`] alone.
    pub(crate) fn serve_open_alone(&self) {
        let open = subsystems(&[1, 2, 3]).into_iter().take(1).collect();
        self.take_over(Catalog::new(2, open).expect("it is a catalog"));
    }

    /// From now on groups of [`OPEN`] are in these states; those not named are optimized.
    pub(crate) fn set_access(&self, version: u64, states: &[(u32, u8)]) {
        let access = |&(group, state): &(u32, u8)| Access { group, listen: None, state: AnaState(state) };
        let access: Vec<Access> = states.iter().map(access).collect();
        self.change_open(version, |open| open.with_access(access));
    }

    /// From now on another target serves [`OPEN`] too, and has the other controller identifiers.
    pub(crate) fn share(&self, version: u64, cntlids: RangeInclusive<u16>) {
        self.change_open(version, |open| open.shared(cntlids));
    }

    /// From now on one namespace of [`OPEN`], which is alone, is for one host alone.
    pub(crate) fn show_to(&self, version: u64, nsid: u32, host: &str) {
        let seen_by = Hosts::Listed(vec![host.parse().expect("a name")]);
        let shown = |one: Namespace| {
            let hosts = if one.nsid == nsid { seen_by.clone() } else { Hosts::Any };
            Namespace { hosts, ..one }
        };
        self.serve_to(version, Hosts::Any, [1, 2, 3].map(namespace).map(shown).into());
    }

    /// From now on it serves [`OPEN`] alone, and that to one host alone.
    pub(crate) fn admit(&self, version: u64, host: &str) {
        let hosts = Hosts::Listed(vec![host.parse().expect("a name")]);
        self.serve_to(version, hosts, [1, 2, 3].map(namespace).into());
    }

    fn serve_to(&self, version: u64, hosts: Hosts, namespaces: Vec<Namespace>) {
        let nqn = OPEN.parse().expect("a name");
        let open = Subsystem::new(nqn, "SERIAL-1", hosts, vec![address()], namespaces);
        self.take_over(Catalog::new(version, vec![open.expect("it is one")]).expect("it is a catalog"));
    }

    fn change_open(&self, version: u64, change: impl FnOnce(Subsystem) -> Subsystem) {
        let mut subsystems = subsystems(&[1, 2, 3]);
        let open = change(subsystems.swap_remove(0));
        subsystems.push(open);
        self.take_over(Catalog::new(version, subsystems).expect("it is a catalog"));
    }

    /// Whether nothing is at a medium any more whose way there has ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.0.borrow_mut().group.is_settled()
    }

    /// From now on it serves [`OPEN`] to [`FRIEND`], to whoever has the subsystem's own name, and to [`HOST`]; the latter
    /// two have to prove what the policy says.
    pub(crate) fn ask_for_a_key(&self, version: u64, policy: Policy, disconnect_on_change: bool) {
        let policy = Arc::new(policy);
        let [host, namesake, friend] = [HOST, OPEN, FRIEND].map(|name| name.parse().expect("a name"));
        let key = |host| Key { host, policy: Arc::clone(&policy), disconnect_on_change };
        let hosts = Hosts::Listed(vec![host, namesake, friend]);
        let namespaces = [1, 2, 3].map(namespace).into();
        let open = Subsystem::new(namesake, "SERIAL-1", hosts, vec![address()], namespaces);
        let open = open.expect("it is a subsystem").with_keys(vec![key(host), key(namesake)]);
        self.take_over(Catalog::new(version, vec![open]).expect("it is a catalog"));
    }

    /// From now on there may be so many of one thing.
    pub(crate) fn limit(&self, version: u64, resource: Resource, most: u64) {
        let catalog = Catalog::new(version, subsystems(&[1, 2, 3])).expect("it is a catalog");
        self.go_over_to(catalog.with_limits(limits().with(resource, most)));
    }

    fn take_over(&self, catalog: Catalog) {
        self.go_over_to(catalog.with_limits(limits()));
    }

    fn go_over_to(&self, catalog: Catalog) {
        let Inner { group, now, .. } = &mut *self.0.borrow_mut();
        group.on_message(*now, Message::Catalog(Arc::new(catalog)));
        group.on_message(*now, Message::Announce);
    }

    /// Every operation of the medium which begins from now on fails like this.
    pub(crate) fn fail_with(&self, error: Option<BlockError>) {
        self.0.borrow_mut().group.storage().fails = error;
    }

    /// Every read of the medium which ends from now on fails like this.
    pub(crate) fn fail_at_read(&self, error: Option<BlockError>) {
        self.0.borrow_mut().group.storage().reads_fail = error;
    }

    /// From now on media copy by themselves, until as many copies are made; the next one fails like this.
    pub(crate) fn copies_itself(&self, most: usize, error: BlockError) {
        let mut inner = self.0.borrow_mut();
        let drives = inner.group.storage();
        (drives.copies, drives.copies_fail_at) = (Some(0), (most, error));
    }

    /// Copies which media have made by themselves.
    pub(crate) fn copies(&self) -> usize {
        self.0.borrow_mut().group.storage().copies.unwrap_or(0)
    }

    /// The medium ends nothing until it is told to go on.
    pub(crate) fn stall(&self, stalled: bool) {
        self.0.borrow_mut().group.storage().stalled = stalled;
    }

    /// Whether the medium ends what it is asked to cancel.
    pub(crate) fn cancels(&self, cancels: bool) {
        self.0.borrow_mut().group.storage().cancels = cancels;
    }

    /// Flushes the medium has done.
    pub(crate) fn flushes(&self) -> usize {
        self.0.borrow_mut().group.storage().flushes
    }
}

fn limits() -> Limits {
    Limits::default().with(Resource::IoQueues, IO_QUEUES.into())
}

/// Bytes which are the same in every run, and not all zero.
pub(crate) struct Counted;

impl Randomness for Counted {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().zip((1..=255).cycle()).for_each(|(byte, number)| *byte = number);
    }
}

fn address() -> Address {
    ADDRESS.parse().expect("an address")
}

pub(crate) fn uuid_of(nsid: u32) -> Uuid {
    Uuid::from_u128(0x1234_5678_9ABC_4DEF_8000_0000_0000_0000 | u128::from(nsid))
}

fn subsystems(nsids: &[u32]) -> Vec<Subsystem> {
    let namespaces = nsids.iter().map(|&nsid| namespace(nsid)).collect();
    let nqn = |name: &str| name.parse().expect("a name");
    let listen = || vec![address()];
    let open = Subsystem::new(nqn(OPEN), "SERIAL-1", Hosts::Any, listen(), namespaces);
    let hosts = Hosts::Listed(vec![nqn(FRIEND)]);
    let private = Subsystem::new(nqn(PRIVATE), "SERIAL-2", hosts, listen(), Vec::new());
    [open, private].map(|subsystem| subsystem.expect("it is a subsystem")).into()
}

fn namespace(nsid: u32) -> Namespace {
    let block_size = if nsid == 2 { 4096 } else { 512 };
    let medium = OpenMedium::faulty(BLOCKS * 512, block_size).expect("whole blocks");
    let medium = if nsid == 3 { medium.protected() } else { medium };
    let ana_group = if nsid == 3 { 2 } else { 1 };
    Namespace { ana_group, ..Namespace::whole(nsid, uuid_of(nsid), medium) }
}

/// A drive in memory for each namespace.
struct Drives {
    memory: Rc<Memory>,
    drives: Vec<(Uuid, Faulty)>,
    /// Which drive has the next operation to end.
    waiting: VecDeque<usize>,
    fails: Option<BlockError>,
    stalled: bool,
    cancels: bool,
    cancelled: VecDeque<Done>,
    flushes: usize,
    reads_fail: Option<BlockError>,
    /// Copies they have made by themselves, if they do; the next one fails if that many are made.
    copies: Option<usize>,
    copies_fail_at: (usize, BlockError),
}

impl Drives {
    fn new(memory: &Rc<Memory>) -> Self {
        Self {
            memory: Rc::clone(memory),
            drives: Vec::new(),
            waiting: VecDeque::new(),
            fails: None,
            stalled: false,
            cancels: true,
            cancelled: VecDeque::new(),
            flushes: 0,
            reads_fail: None,
            copies: None,
            copies_fail_at: (usize::MAX, BlockError::Unsupported),
        }
    }
}

impl Medium for Drives {
    fn submit(&mut self, token: Token, namespace: usize, operation: Operation) {
        self.flushes += usize::from(operation == Operation::Flush);
        if matches!(operation, Operation::Copy { .. }) {
            assert!(self.copies.is_some(), "it has no copy of its own");
        }
        self.drives[namespace].1.submit(&self.memory, token, operation);
        self.waiting.push_back(namespace);
    }

    fn cancel(&mut self, token: Token) {
        for (number, (_, drive)) in self.drives.iter_mut().enumerate().filter(|_| self.cancels) {
            let Some(index) = drive.pending().iter().position(|pending| pending.token == token) else {
                continue;
            };
            let outcome = Outcome::Failure { blocks: 0, error: BlockError::Cancelled };
            self.cancelled.push_back(drive.complete(index, outcome));
            let place = self.waiting.iter().position(|&waiting| waiting == number);
            self.waiting.remove(place.expect("it waited"));
        }
    }

    fn copies(&self, _: usize) -> bool {
        self.copies.is_some()
    }

    fn in_place(&self, _: usize, _: u64, _: u32) -> Option<Sge> {
        None
    }

    fn poll(&mut self) -> Option<Done> {
        if self.stalled || !self.cancelled.is_empty() {
            return self.cancelled.pop_front();
        }
        let drive = &mut self.drives[self.waiting.pop_front()?].1;
        let reads = matches!(drive.pending()[0].operation, Operation::Read { .. });
        let mut fails = self.fails.or(self.reads_fail.filter(|_| reads));
        if let (Some(copies), Operation::Copy { .. }) = (&mut self.copies, &drive.pending()[0].operation) {
            let (made, error) = self.copies_fail_at;
            fails = fails.or((*copies == made).then_some(error));
            *copies += usize::from(fails.is_none());
        }
        let outcome = fails.map_or(Outcome::Success, |error| Outcome::Failure { blocks: 0, error });
        Some(drive.complete(0, outcome))
    }
}

impl Storage for Drives {
    fn backend_of(&mut self, namespace: &Namespace) -> usize {
        let found = self.drives.iter().position(|(uuid, _)| *uuid == namespace.uuid);
        found.unwrap_or_else(|| {
            let Namespace { uuid, medium, .. } = namespace;
            self.drives.push((*uuid, Faulty::new(medium.size(), medium.block_size())));
            self.drives.len() - 1
        })
    }
}
