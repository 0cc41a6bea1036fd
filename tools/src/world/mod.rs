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
//! 9. memory which a program lends in place is out of everybody's reach once its request has ended.
//!
//! (4), (5) and the slots and credits of (3) are asserted by the fabric and the queue pairs themselves.
mod disk;
mod fabric;
mod host;
mod pipe;
mod shadow;
mod target;

use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ironside_common::nvme::Nqn;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::provider::sim::{Choices, Network, Prng};
use ironside_common::time::Time;
use ironside_target::backend::OpenMedium;
use ironside_target::catalog::{Access, Catalog, Hosts, Namespace, Subsystem};
use ironside_target::poll_group::Message;
use uuid::Uuid;

use self::disk::Disks;
use self::fabric::Fabric;
use self::host::HostSide;
use self::pipe::Pipes;
use self::shadow::Shadow;
use self::target::Target;

const BLOCK_SIZE: u32 = 512;
const BLOCKS: u64 = 96;
/// What a namespace may grow by, and shrink again.
const BLOCKS_MORE: u64 = 32;
/// Steps without faults after which everything must have ended.
const PATIENCE: u32 = 30_000;
/// How far the clock may be turned on while nothing happens: hosts wait this long at most.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// What a world went through, to see that the seeds reach everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub succeeded: u64,
    pub failed: u64,
    pub breaks: u64,
    pub kills: u64,
    pub power_losses: u64,
    /// Simulated time.
    pub elapsed: Duration,
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.breaks += other.breaks;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.elapsed += other.elapsed;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { succeeded, failed, breaks, kills, power_losses, elapsed } = self;
        write!(f, "{succeeded} requests succeeded and {failed} failed, {breaks} links broke, ")?;
        write!(f, "the target was killed {kills} times, {power_losses} of them by a loss of power, ")?;
        write!(f, "in {} simulated seconds", elapsed.as_secs())
    }
}

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
        Self { breaks, kills, power, medium, namespaces, access }
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

/// What is served: the first namespaces, of so many blocks, each in a group of its own.
#[derive(Clone, Debug)]
struct Served {
    version: u64,
    present: u32,
    blocks: u64,
    /// The state of each group.
    access: Vec<AnaState>,
}

impl Served {
    /// The catalog of it. What namespaces are made of is the world's own affair.
    fn catalog(&self, address: SocketAddr) -> Arc<Catalog> {
        let namespaces = (1..=self.present).map(|nsid| {
            let medium = OpenMedium::faulty(self.blocks * u64::from(BLOCK_SIZE), BLOCK_SIZE)
                .expect("a size that fits");
            Namespace { ana_group: nsid, ..Namespace::whole(nsid, uuid(nsid), medium) }
        });
        let access = (1..).zip(&self.access).map(|(group, &state)| Access { group, listen: None, state });
        let subsystem = Subsystem::new(nqn(), "WORLD", Hosts::Any, vec![address], namespaces.collect());
        let subsystem = subsystem.expect("a subsystem by its form").with_access(access.collect());
        Arc::new(Catalog::new(self.version, vec![subsystem]).expect("one subsystem"))
    }
}

struct World<F: Fabric> {
    now: Time,
    address: SocketAddr,
    fabric: F,
    served: Served,
    /// Namespaces whose ways have ended, though commands may still be at their drives.
    closing: Vec<u32>,
    disks: Rc<RefCell<Disks>>,
    shadows: Vec<Shadow>,
    target: Target<F>,
    hosts: Vec<HostSide<F>>,
    faults: Faults,
    report: Report,
}

impl<F: Fabric> World<F> {
    fn new(mut fabric: F, choices: &mut impl Choices) -> Self {
        let address = SocketAddr::from(([192, 0, 2, 1], 4420));
        let disks = Rc::new(RefCell::new(Disks::default()));
        let count = 1 + choices.below(2);
        for nsid in 1..=count {
            let size = (BLOCKS + BLOCKS_MORE) * u64::from(BLOCK_SIZE);
            disks.borrow_mut().add(uuid(nsid), size, BLOCK_SIZE);
        }
        let access = vec![AnaState::OPTIMIZED; count as usize];
        let served = Served { version: 1, present: count, blocks: BLOCKS, access };
        let mut target = Target::new(address, Rc::clone(&disks));
        target.start(&mut fabric, &served.catalog(address), choices);
        let now = Time::from_nanos(1);
        let hosts = 1 + choices.below(2) as u8;
        let hosts = (0..hosts)
            .map(|number| HostSide::new(&mut fabric, number, address, nqn(), now, choices))
            .collect();
        let faults = Faults::draw(choices);
        let shadows = (0..count).map(|_| Shadow::new((BLOCKS + BLOCKS_MORE) as usize)).collect();
        let report = Report::default();
        let closing = Vec::new();
        Self { now, address, fabric, served, closing, disks, shadows, target, hosts, faults, report }
    }

    fn run(mut self, choices: &mut impl Choices) -> Report {
        for _ in 0..500 + choices.below(4000) {
            self.step(choices);
            self.break_something(choices);
        }
        self.settle(choices);
        self.report.elapsed = self.now.since(Time::ZERO);
        self.report
    }

    /// One thing happens somewhere.
    fn step(&mut self, choices: &mut impl Choices) {
        self.now = self.now + Duration::from_micros(choices.below(20).into());
        match choices.below(9) {
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
            _ => {
                // Time passes by itself only now and then, so that most of what happens is I/O.
                if choices.chance(3) {
                    self.advance_clock();
                }
                if !self.target.is_running() && choices.chance(20) {
                    let catalog = self.served.catalog(self.address);
                    self.target.start(&mut self.fabric, &catalog, choices);
                }
            }
        }
        self.check_access();
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
                self.disks.borrow_mut().process_gone(choices);
            }
            self.target.kill(&mut self.fabric);
        }
    }

    /// From now on the target serves this.
    fn go_over(&mut self) {
        self.served.version += 1;
        trace(|| format!("from now on: {:?}", self.served));
        self.closing.clear();
        for (nsid, state) in (1..).zip(&self.served.access) {
            match state.refusal() {
                // On some reactor the way may be there at once.
                None => self.disks.borrow_mut().set_closed(uuid(nsid), false),
                Some(_) => self.closing.push(nsid),
            }
        }
        let catalog = self.served.catalog(self.address);
        self.target.tell(&Message::Catalog(catalog));
        self.target.tell(&Message::Announce);
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
        let next = [hosts, self.target.deadline()].into_iter().flatten().min();
        if let Some(next) = next {
            assert!(next.since(self.now) < LONGEST_WAIT, "everybody sleeps too long");
            self.now = self.now.max(next);
        }
    }

    /// Faults stop: everything has to end, and everything has to come back.
    fn settle(&mut self, choices: &mut impl Choices) {
        self.faults = Faults::default();
        (self.served.present, self.served.blocks) = (self.shadows.len() as u32, BLOCKS);
        self.served.access.fill(AnaState::OPTIMIZED);
        self.go_over();
        if !self.target.is_running() {
            let catalog = self.served.catalog(self.address);
            self.target.start(&mut self.fabric, &catalog, choices);
        }
        self.until("requests to end", choices, |world| world.hosts.iter().all(|host| host.in_flight() == 0));
        for host in &mut self.hosts {
            host.close(self.now);
        }
        self.until("hosts to close", choices, |world| world.hosts.iter().all(HostSide::is_over));
        self.until("the target to let go", choices, |world| world.target.connections() == 0);
        self.until("messages to arrive", choices, |world| !world.target.turn_all(world.now));
        self.target.check_at_rest();
        for host in &self.hosts {
            host.check_at_rest();
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
            busy |= self.disks.borrow_mut().complete_one(choices, 0);
            if !busy {
                self.advance_clock();
            }
        }
        let hosts: Vec<_> = self.hosts.iter().map(HostSide::describe).collect();
        panic!("waited too long for {what}: {hosts:?}, {} connections", self.target.connections());
    }
}
