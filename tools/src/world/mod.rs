//! The whole system under one seed: the target's reactors, hosts and drives, on a fabric which does whatever
//! the choices say. What must hold whatever happens is checked all the time:
//!
//! 1. every request ends exactly once;
//! 2. a block reads as its last acknowledged write or a later unacknowledged one, and after a loss of power
//!    as nothing older than its last flushed or forced one;
//! 3. at rest every buffer, slot, credit and registration is back;
//! 4. a message never finds no receive posted;
//! 5. nobody touches memory outside of what was lent;
//! 6. once faults stop, everything ends within a bounded number of steps;
//! 7. a drive which is not served any more is let go of, and nothing comes to it afterwards;
//! 8. once every way to a namespace has ended and what had begun too, nothing comes to its drive, and a command
//!    refused for want of a way has changed nothing;
//! 9. memory which a program lends in place is out of everybody's reach once its request has ended;
//! 10. of those who take a block by fused commands, from the same content only one is told that it has;
//! 11. every answer to a command which reserves is explained by those before it and those at the same time, and nothing
//!     of a host is at a medium once an answer says that it must not be;
//! 12. once a namespace is kept from a host, and what had begun has ended, nothing of that host is at its drive;
//! 13. a limit is never exceeded by more than one command, nobody waits for a limit which is not used up, and nothing
//!     limited comes to a drive before its turn;
//! 14. where hosts have a path to each of two targets, an old write which one of them still has never lands after a newer
//!     one that came by the other: in the end the drives themselves hold what (2) says.
//! 15. once a host is removed, and what had begun has ended, it has no queue and nothing of it is at a drive ever after; others
//!     notice nothing;
//! 16. while some have as many large writes under way as they can, others connect, read and keep alive within a bounded
//!     number of rounds.
//!
//! (4), (5) and the slots and credits of (3) are asserted by the fabric and the queue pairs themselves.
mod agreement;
mod claimant;
mod disk;
mod fabric;
mod feast;
mod host;
mod limits;
mod paths;
mod pipe;
mod raw;
mod report;
mod rival;
mod served;
mod shadow;
mod target;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use ironside_common::nvme::Nqn;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::provider::sim::{Choices, Network, Prng};
use ironside_common::time::Time;
use ironside_common::verbs::Address;
use ironside_target::poll_group::Message;
use ironside_target::reservation::HostId;
use ironside_target::throttle::Limit;
use uuid::Uuid;

use self::agreement::Agreement;
use self::claimant::{Claimant, SHARED, SHARED_BLOCKS};
use self::disk::Disks;
use self::fabric::Fabric;
use self::feast::{Feast, TABLE, TABLE_BLOCKS};
use self::host::HostSide;
pub use self::paths::run_paths;
use self::pipe::Pipes;
use self::raw::host_id;
pub use self::report::Report;
use self::rival::{LOCK, Rival, Taken};
use self::served::Served;
use self::shadow::Shadow;
use self::target::Target;

const BLOCK_SIZE: u32 = 512;
const BLOCKS: u64 = 96;
/// What a namespace may grow by, and shrink again.
const BLOCKS_MORE: u64 = 32;
/// Steps without faults after which everything must have ended.
const PATIENCE: u32 = 30_000;
/// The numbers of guests: rivals or claimants.
const GUESTS: Range<u8> = 150..153;
/// How far the clock may be turned on while nothing happens: hosts wait this long at most.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Which faults a world has, in a thousandth of its steps, except where said.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    breaks: u32,
    kills: u32,
    /// Of the kills, in percent.
    power: u32,
    /// Of the medium's operations, in percent.
    medium: u32,
    /// The last namespace goes or comes back, and all grow or shrink.
    namespaces: u32,
    /// The ways to a namespace end or come back.
    access: u32,
    /// A namespace is kept from a host, or from none.
    masks: u32,
    /// Limits change, in a world that has any.
    limits: u32,
    /// A host is not admitted any more.
    removals: u32,
}

impl Faults {
    /// Each seed has a random subset of all faults.
    fn draw(choices: &mut impl Choices) -> Self {
        let breaks = if choices.chance(50) { 1 + choices.below(4) } else { 0 };
        let kills = if choices.chance(30) { 1 } else { 0 };
        let power = choices.below(101);
        let medium = if choices.chance(30) { 1 + choices.below(20) } else { 0 };
        let namespaces = if choices.chance(20) { 1 + choices.below(3) } else { 0 };
        let access = if choices.chance(20) { 1 + choices.below(4) } else { 0 };
        let masks = if choices.chance(20) { 1 + choices.below(4) } else { 0 };
        let limits = if choices.chance(50) { choices.below(4) } else { 0 };
        let removals = if choices.chance(15) { 1 + choices.below(2) } else { 0 };
        Self { breaks, kills, power, medium, namespaces, access, masks, limits, removals }
    }
}

/// Runs the world of one seed on the simulated fabric.
///
/// # Panics
/// If a promise is broken; the message says which.
#[must_use]
pub fn run(seed: u64) -> Report {
    run_with(&mut Prng::new(seed))
}

/// Runs the world of one seed on iWARP streams over byte pipes.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn run_streams(seed: u64) -> Report {
    let choices = &mut Prng::new(seed);
    World::new(Pipes::new(choices), choices).run(choices)
}

/// Runs a world whose choices come from elsewhere: a fuzzer's bytes, or a recorded list.
///
/// # Panics
/// As [`run`].
pub fn run_with(choices: &mut impl Choices) -> Report {
    World::new(Network::new(), choices).run(choices)
}

/// Says what happens in the world of one seed, for whoever repeats it with `IRONSIDE_TRACE` set.
fn trace(what: impl FnOnce() -> String) {
    static WANTED: OnceLock<bool> = OnceLock::new();
    if *WANTED.get_or_init(|| std::env::var_os("IRONSIDE_TRACE").is_some()) {
        eprintln!("{}", what());
    }
}

fn uuid(nsid: u32) -> Uuid {
    Uuid::from_u128(0x1000 + u128::from(nsid))
}

fn nqn() -> Nqn {
    "nqn.2014-08.org.example:world".parse().expect("an NQN by its form")
}

/// The name which a host of this identifier connects by.
fn host_nqn(id: Uuid) -> Nqn {
    format!("nqn.2014-08.org.nvmexpress:uuid:{id}").parse().expect("an NQN by its form")
}

struct World<F: Fabric> {
    now: Time,
    address: Address,
    fabric: F,
    served: Served,
    /// Namespaces whose ways have ended, though commands may still be at their drives.
    closing: Vec<u32>,
    /// What is hidden from whom by now, with whatever had begun.
    masked: Option<(u8, u32)>,
    /// How many messages have arrived once every reactor was told of what is served.
    announced: u64,
    /// The host which is removed, once nothing of it is left.
    gone: Option<u8>,
    disks: Rc<RefCell<Disks>>,
    shadows: Vec<Shadow>,
    target: Target<F>,
    hosts: Vec<HostSide<F>>,
    rivals: Vec<Rival<F>>,
    taken: Taken,
    claimants: Vec<Claimant<F>>,
    agreement: Agreement,
    feast: Option<Feast<F>>,
    faults: Faults,
    /// Nothing broke that a host has to notice, except that one was removed.
    is_calm: bool,
    report: Report,
}

impl<F: Fabric> World<F> {
    fn new(mut fabric: F, choices: &mut impl Choices) -> Self {
        let address = Address::from(([192, 0, 2, 1], 4420));
        let disks = Rc::new(RefCell::new(Disks::default()));
        let count = 1 + choices.below(2);
        for nsid in 1..=count {
            let size = (BLOCKS + BLOCKS_MORE) * u64::from(BLOCK_SIZE);
            disks.borrow_mut().add(uuid(nsid), size, BLOCK_SIZE);
        }
        for (nsid, blocks) in [(SHARED, SHARED_BLOCKS), (TABLE, TABLE_BLOCKS)] {
            disks.borrow_mut().add(uuid(nsid), blocks * u64::from(BLOCK_SIZE), BLOCK_SIZE);
        }
        let access = vec![AnaState::OPTIMIZED; count as usize];
        let mut served = Served {
            version: 1,
            present: count,
            blocks: BLOCKS,
            access,
            hidden: None,
            removed: None,
            limits: vec![Limit::default(); count as usize],
            host_limit: Limit::default(),
        };
        let is_limited = choices.chance(40);
        if is_limited {
            served.draw_limits(choices);
        }
        let mut target = Target::new(address, Rc::clone(&disks));
        let now = Time::from_nanos(1);
        target.start(&mut fabric, now, &served.catalog(address, None), choices);
        let hosts = 1 + choices.below(host::HOSTS_MAX.into()) as u8;
        let hosts = (0..hosts)
            .map(|number| HostSide::new(&mut fabric, number, &[address], nqn(), now, choices))
            .collect();
        let mut faults = Faults::draw(choices);
        if !is_limited {
            faults.limits = 0;
        }
        let shadows = (0..count).map(|_| Shadow::new((BLOCKS + BLOCKS_MORE) as usize)).collect();
        let mut world = Self {
            now,
            address,
            fabric,
            served,
            closing: Vec::new(),
            masked: None,
            announced: 0,
            gone: None,
            disks,
            shadows,
            target,
            hosts,
            rivals: Vec::new(),
            taken: Taken::default(),
            claimants: Vec::new(),
            agreement: Agreement::new(),
            feast: None,
            faults,
            is_calm: false,
            report: Report::default(),
        };
        world.invite(choices);
        world
    }

    /// Some worlds have rivals, and some have claimants.
    fn invite(&mut self, choices: &mut impl Choices) {
        let guests = choices.below(6);
        let numbers = GUESTS.take(2 + choices.below(2) as usize);
        let queues = 1 + choices.below(2) as usize;
        for number in numbers.filter(|_| guests < 2) {
            if guests == 0 {
                self.rivals.push(Rival::new(&mut self.fabric, number, self.address, nqn(), queues));
                // Never ended: nobody else comes to this block.
                let _lasting = self.shadows[0].begin_write(LOCK..LOCK + 1, None);
            } else {
                self.claimants.push(Claimant::new(&mut self.fabric, number, self.address, nqn(), queues));
            }
        }
    }

    fn run(mut self, choices: &mut impl Choices) -> Report {
        // Guests take time to come.
        let times = if self.has_guests() { 3 } else { 1 };
        for _ in 0..times * (500 + choices.below(4000)) {
            self.step(choices);
            self.break_something(choices);
            self.check_rights();
            self.check_masked();
            self.check_removed();
        }
        self.heal(choices);
        if choices.chance(10) {
            self.hold_feast(choices);
        }
        self.settle(choices);
        self.report.elapsed = self.now.since(Time::ZERO);
        self.report
    }

    /// One thing happens somewhere.
    fn step(&mut self, choices: &mut impl Choices) {
        self.now = self.now + Duration::from_micros(choices.below(20).into());
        match choices.below(if self.has_guests() { 16 } else { 9 }) {
            0 | 1 => drop(self.fabric.step(choices)),
            2 => drop(self.target.turn(self.now, choices)),
            3 => drop(self.target.deliver_letter(self.now)),
            4 | 5 => {
                let index = choices.below(self.hosts.len() as u32) as usize;
                self.hosts[index].turn(self.now, &mut self.shadows);
            }
            6 => {
                let index = choices.below(self.hosts.len() as u32) as usize;
                self.hosts[index].submit(&mut self.shadows, choices);
            }
            7 => drop(self.disks.borrow_mut().complete_one(choices, self.faults.medium)),
            9 | 10 => drop(self.fabric.step(choices)),
            11.. => self.guest(choices),
            _ => {
                // Time passes by itself only now and then, so that most of what happens is I/O.
                if choices.chance(3) {
                    self.advance_clock();
                }
                if !self.target.is_running() && choices.chance(20) {
                    self.start(choices);
                }
                self.target.keep_one(choices, self.faults.medium);
            }
        }
        self.check_access();
        (1..=self.shadows.len() as u32).for_each(|nsid| self.target.check_turns(uuid(nsid)));
    }

    fn start(&mut self, choices: &mut impl Choices) {
        let catalog = self.served.catalog(self.address, self.target.kept());
        self.target.start(&mut self.fabric, self.now, &catalog, choices);
    }

    fn has_guests(&self) -> bool {
        !self.rivals.is_empty() || !self.claimants.is_empty()
    }

    /// A rival or a claimant does something.
    fn guest(&mut self, choices: &mut impl Choices) {
        let index = choices.below((self.rivals.len() + self.claimants.len()) as u32) as usize;
        if let Some(rival) = self.rivals.get_mut(index) {
            rival.turn(self.now, &mut self.taken);
            rival.submit(&self.taken, choices);
        } else if let Some(claimant) = self.claimants.get_mut(index) {
            claimant.turn(self.now, &mut self.agreement);
            claimant.submit(&mut self.agreement, choices);
        }
    }

    /// Nothing is at the shared namespace's medium of a host which has no right to.
    fn check_rights(&self) {
        if self.claimants.is_empty() {
            return;
        }
        for (host, operation) in self.target.at_medium(uuid(SHARED)) {
            let name = GUESTS.into_iter().find(|&number| host_id(number).into_bytes() == host);
            let name = name.expect("nobody else uses it");
            let may = self.agreement.may(name, operation.modifies());
            assert!(may, "{operation:?} of {name}, which it must not");
        }
    }

    /// Nothing is at a medium of a host which does not see it.
    fn check_masked(&mut self) {
        if self.served.hidden != self.masked && self.target.is_settled(self.served.version) {
            self.masked = self.served.hidden;
        }
        let Some((host, nsid)) = self.masked else { return };
        let is_its = |(name, _): &(HostId, _)| *name == host::id(host).into_bytes();
        let found = self.target.at_medium(uuid(nsid)).into_iter().find(is_its);
        assert!(found.is_none(), "{found:?} of host {host} at namespace {nsid}, which it does not see");
    }

    /// Nothing is left of a host which was removed.
    fn check_removed(&mut self) {
        let is_told = self.target.delivered().0 >= self.announced;
        let is_settled = is_told && self.target.is_settled(self.served.version);
        if self.served.removed.is_some() && self.gone.is_none() && is_settled {
            self.gone = self.served.removed;
            self.report.removed += 1;
        }
        let Some(host) = self.gone else { return };
        let id: HostId = host::id(host).into_bytes();
        assert_eq!(self.target.queues_of(&id), 0, "queues of host {host}, which is removed");
        for nsid in (1..=self.shadows.len() as u32).chain([SHARED]) {
            let found = self.target.at_medium(uuid(nsid)).into_iter().find(|(name, _)| *name == id);
            assert!(found.is_none(), "{found:?} of host {host} at namespace {nsid}, after it was removed");
        }
    }

    fn break_something(&mut self, choices: &mut impl Choices) {
        if choices.below(1000) < self.faults.breaks {
            self.fabric.break_one(choices);
            trace(|| "a link breaks".to_owned());
            self.report.breaks += 1;
        }
        if choices.below(1000) < self.faults.namespaces {
            self.served.present = self.shadows.len() as u32 - choices.below(2);
            self.served.blocks = if choices.chance(50) { BLOCKS + BLOCKS_MORE } else { BLOCKS };
            self.go_over();
        }
        if choices.below(1000) < self.faults.limits {
            self.served.draw_limits(choices);
            self.go_over();
        }
        if choices.below(1000) < self.faults.access {
            const STATES: [AnaState; 5] = [
                AnaState::OPTIMIZED,
                AnaState::NON_OPTIMIZED,
                AnaState::INACCESSIBLE,
                AnaState::PERSISTENT_LOSS,
                AnaState::CHANGE,
            ];
            let namespace = choices.below(self.shadows.len() as u32) as usize;
            self.served.access[namespace] = STATES[choices.below(5) as usize];
            self.go_over();
        }
        if choices.below(1000) < self.faults.masks {
            let host = choices.below(self.hosts.len() as u32) as u8;
            let nsid = 1 + choices.below(self.shadows.len() as u32);
            self.served.hidden = choices.chance(70).then_some((host, nsid));
            self.go_over();
        }
        if choices.below(1000) < self.faults.removals && self.served.removed.is_none() {
            let host = choices.below(self.hosts.len() as u32) as u8;
            self.hosts[usize::from(host)].is_expelled = true;
            self.served.removed = Some(host);
            self.go_over();
        }
        if choices.below(1000) < self.faults.kills && self.target.is_running() {
            self.report.kills += 1;
            trace(|| "the target is killed".to_owned());
            // What was under way still names the memory of the process: it comes first.
            if choices.chance(self.faults.power) {
                self.report.power_losses += 1;
                trace(|| "the power goes".to_owned());
                self.disks.borrow_mut().power_loss(choices);
                self.shadows.iter_mut().for_each(Shadow::power_lost);
            } else {
                self.disks.borrow_mut().process_gone(&self.target.shares(), choices);
            }
            self.target.kill(&mut self.fabric, choices);
            self.agreement.target_gone();
        }
    }

    /// From now on the target serves this.
    fn go_over(&mut self) {
        self.served.version += 1;
        trace(|| format!("from now on: {:?}", self.served));
        self.closing.clear();
        self.masked = None;
        for (nsid, state) in (1..).zip(&self.served.access) {
            match state.refusal() {
                // On some reactor the way may be there at once.
                None => self.disks.borrow_mut().set_closed(uuid(nsid), false),
                Some(_) => self.closing.push(nsid),
            }
        }
        let catalog = self.served.catalog(self.address, self.target.kept());
        self.target.tell(&Message::Catalog(catalog));
        self.target.tell(&Message::Announce);
        self.announced = self.target.delivered().1;
    }

    /// Once every reactor knows that the ways to a namespace have ended, and what had begun has ended too, nothing
    /// comes to its drive any more.
    fn check_access(&mut self) {
        if !self.closing.is_empty() && self.target.is_settled(self.served.version) {
            for nsid in self.closing.drain(..) {
                self.disks.borrow_mut().set_closed(uuid(nsid), true);
            }
        }
    }

    /// To the next moment at which anybody wants to do something.
    fn advance_clock(&mut self) {
        let hosts = self.hosts.iter().filter_map(HostSide::deadline).min();
        let rivals = self.rivals.iter().filter_map(Rival::deadline);
        let guests = rivals.chain(self.claimants.iter().filter_map(Claimant::deadline)).min();
        let feast = self.feast.as_ref().and_then(Feast::deadline);
        let next = [hosts, guests, feast, self.target.deadline()].into_iter().flatten().min();
        if let Some(next) = next {
            assert!(next.since(self.now) < LONGEST_WAIT, "everybody sleeps too long");
            self.now = self.now.max(next);
        }
    }

    /// Faults stop, and what was under way ends.
    fn heal(&mut self, choices: &mut impl Choices) {
        let before = std::mem::take(&mut self.faults);
        self.is_calm = before.breaks == 0 && before.kills == 0;
        (self.served.present, self.served.blocks) = (self.shadows.len() as u32, BLOCKS);
        self.served.access.fill(AnaState::OPTIMIZED);
        self.served.hidden = None;
        self.go_over();
        if !self.target.is_running() {
            self.start(choices);
        }
        self.until("requests to end", choices, |world| world.hosts.iter().all(|host| host.in_flight() == 0));
    }

    /// Everything has to end, and everything has to come back.
    fn settle(&mut self, choices: &mut impl Choices) {
        for host in &mut self.hosts {
            host.close(self.now);
        }
        self.rivals.iter_mut().for_each(Rival::close);
        self.claimants.iter_mut().for_each(Claimant::close);
        self.until("rivals to leave", choices, |world| world.rivals.iter().all(Rival::is_over));
        self.until("claimants to leave", choices, |world| world.claimants.iter().all(Claimant::is_over));
        self.until("hosts to close", choices, |world| world.hosts.iter().all(HostSide::is_over));
        self.until("the target to let go", choices, |world| world.target.connections() == 0);
        self.until("messages to arrive", choices, |world| !world.target.turn_all(world.now));
        self.target.check_at_rest();
        self.report.waited = self.target.limits.waited;
        self.report.taken = self.taken.times();
        self.report.reserved = self.agreement.succeeded;
        self.report.conflicts = self.claimants.iter().map(|claimant| claimant.conflicts).sum();
        for host in &self.hosts {
            host.check_at_rest();
            assert!(!self.is_calm || host.is_undisturbed(), "a host lost its connection for nothing");
            self.report.succeeded += host.succeeded;
            self.report.failed += host.failed;
        }
        assert_eq!(self.disks.borrow().pending(), 0, "an operation of the medium is left");
    }

    fn until(&mut self, what: &str, choices: &mut impl Choices, done: impl Fn(&mut Self) -> bool) {
        for _ in 0..PATIENCE {
            if done(self) {
                return;
            }
            let mut busy = self.fabric.step(choices);
            busy |= self.target.turn_all(self.now);
            for host in &mut self.hosts {
                busy |= host.turn(self.now, &mut self.shadows);
            }
            for rival in &mut self.rivals {
                busy |= rival.turn(self.now, &mut self.taken);
            }
            for claimant in &mut self.claimants {
                busy |= claimant.turn(self.now, &mut self.agreement);
            }
            if let Some(feast) = &mut self.feast {
                busy |= feast.turn(self.now);
            }
            busy |= self.disks.borrow_mut().complete_one(choices, 0);
            busy |= self.target.keep_one(choices, 0);
            self.check_rights();
            if !busy {
                self.advance_clock();
            }
        }
        let hosts: Vec<_> = self.hosts.iter().map(HostSide::describe).collect();
        panic!("waited too long for {what}: {hosts:?}, {} connections", self.target.connections());
    }
}
