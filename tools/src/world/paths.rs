//! The world of several paths: two targets serve one drive, and hosts have a path to each. Links break, targets are killed
//! and come back, ways end and open again, and some operations of the drive take far longer than others, so that a host
//! which turns to the other path leaves writes behind that have yet to happen.
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::nvme::log_page::AnaState;
use ironside_common::provider::sim::{Choices, Network, Prng};
use ironside_common::time::Time;
use ironside_common::verbs::Address;
use ironside_target::backend::OpenMedium;
use ironside_target::catalog::{Access, Catalog, Hosts, Namespace, Subsystem};
use ironside_target::poll_group::Message;

use super::disk::Disks;
use super::fabric::Fabric;
use super::host::HostSide;
use super::pipe::Pipes;
use super::shadow::Shadow;
use super::target::Target;
use super::{BLOCK_SIZE, BLOCKS, LONGEST_WAIT, PATIENCE, Report, nqn, trace, uuid};

const TARGETS: usize = 2;
const NSID: u32 = 1;
/// For how long what has reached a target may be under way. It is all that a host has to go by who turns from one to the other:
/// the shortest time which any of them waits, two keep alive timeouts of a second and two seconds more.
const SILENCE: Duration = Duration::from_secs(4);

/// Runs the world of one seed: on iWARP streams every third, else on the simulated fabric.
///
/// # Panics
/// If a promise is broken; the message says which.
#[must_use]
pub fn run_paths(seed: u64) -> Report {
    let choices = &mut Prng::new(seed);
    if seed.is_multiple_of(3) {
        World::new(Pipes::new(choices), choices).run(choices)
    } else {
        World::new(Network::new(), choices).run(choices)
    }
}

/// Where a target listens.
fn address_of(target: usize) -> Address {
    Address::from(([192, 0, 2, 1 + target as u8], 4420))
}

struct World<F: Fabric> {
    now: Time,
    fabric: F,
    disks: Rc<RefCell<Disks>>,
    shadows: Vec<Shadow>,
    targets: Vec<Target<F>>,
    version: u64,
    /// The state of the drive by each target.
    access: Vec<AnaState>,
    hosts: Vec<HostSide<F>>,
    /// In a thousandth of its steps.
    breaks: u32,
    kills: u32,
    changes: u32,
    /// When all that had reached a target had ended.
    drained_at: Time,
    report: Report,
}

impl<F: Fabric> World<F> {
    fn new(fabric: F, choices: &mut impl Choices) -> Self {
        let disks = Rc::new(RefCell::new(Disks::default()));
        disks.borrow_mut().some_are_slow = true;
        disks.borrow_mut().add(uuid(NSID), BLOCKS * u64::from(BLOCK_SIZE), BLOCK_SIZE);
        let mut world = Self {
            now: Time::from_nanos(1),
            fabric,
            shadows: vec![Shadow::new(BLOCKS as usize)],
            targets: (0..TARGETS).map(|number| Target::new(address_of(number), Rc::clone(&disks))).collect(),
            disks,
            version: 1,
            access: vec![AnaState::OPTIMIZED; TARGETS],
            hosts: Vec::new(),
            breaks: 1 + choices.below(6),
            kills: if choices.chance(30) { 1 } else { 0 },
            changes: if choices.chance(30) { 1 + choices.below(4) } else { 0 },
            drained_at: Time::ZERO,
            report: Report::default(),
        };
        world.start_targets(choices);
        let addresses: Vec<_> = (0..TARGETS).map(address_of).collect();
        let hosts = 1 + choices.below(2) as u8;
        world.hosts = (0..hosts)
            .map(|number| HostSide::new(&mut world.fabric, number, &addresses, nqn(), world.now, choices))
            .collect();
        world
    }

    fn catalog(&self, target: usize) -> Arc<Catalog> {
        let medium =
            OpenMedium::faulty(BLOCKS * u64::from(BLOCK_SIZE), BLOCK_SIZE).expect("a size that fits");
        let namespace = Namespace { ana_group: NSID, ..Namespace::whole(NSID, uuid(NSID), medium) };
        let access = Access { group: NSID, listen: None, state: self.access[target] };
        let listen = vec![address_of(target)];
        let subsystem = Subsystem::new(nqn(), "WORLD", Hosts::Any, listen, vec![namespace]);
        let first = 1 + 1000 * target as u16;
        let subsystem = subsystem.expect("a subsystem by its form").with_access(vec![access]);
        let subsystem = subsystem.shared(first..=first + 999);
        Arc::new(Catalog::new(self.version, vec![subsystem]).expect("one subsystem"))
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
        let target = choices.below(TARGETS as u32) as usize;
        let host = choices.below(self.hosts.len() as u32) as usize;
        match choices.below(9) {
            0 | 1 => drop(self.fabric.step(choices)),
            2 => drop(self.targets[target].turn(self.now, choices)),
            3 => drop(self.targets[target].deliver_letter(self.now)),
            4 | 5 => drop(self.hosts[host].turn(self.now, &mut self.shadows)),
            6 => drop(self.hosts[host].submit(&mut self.shadows, choices)),
            7 => drop(self.disks.borrow_mut().complete_one(choices, 0)),
            _ => {
                if choices.chance(3) {
                    self.advance_clock(choices);
                }
                if choices.chance(20) {
                    self.start_targets(choices);
                }
            }
        }
    }

    fn break_something(&mut self, choices: &mut impl Choices) {
        let target = choices.below(TARGETS as u32) as usize;
        if choices.below(1000) < self.breaks {
            self.fabric.break_one(choices);
            trace(|| "a link breaks".to_owned());
            self.report.breaks += 1;
        }
        if choices.below(1000) < self.changes {
            const STATES: [AnaState; 4] =
                [AnaState::OPTIMIZED, AnaState::NON_OPTIMIZED, AnaState::INACCESSIBLE, AnaState::CHANGE];
            self.access[target] = STATES[choices.below(4) as usize];
            self.go_over();
        }
        if choices.below(1000) < self.kills && self.targets[target].is_running() {
            self.report.kills += 1;
            trace(|| format!("target {target} is killed"));
            // What was under way still names the memory of the process: it comes first.
            self.disks.borrow_mut().process_gone(&self.targets[target].shares(), choices);
            self.targets[target].kill(&mut self.fabric, choices);
        }
    }

    /// Those which do not run do again.
    fn start_targets(&mut self, choices: &mut impl Choices) {
        for number in 0..TARGETS {
            let catalog = self.catalog(number);
            if !self.targets[number].is_running() {
                self.targets[number].start(&mut self.fabric, self.now, &catalog, choices);
            }
        }
    }

    /// From now on targets say these states.
    fn go_over(&mut self) {
        self.version += 1;
        trace(|| format!("from now on: {:?}", self.access));
        for number in 0..TARGETS {
            let catalog = self.catalog(number);
            self.targets[number].tell(&Message::Catalog(catalog));
            self.targets[number].tell(&Message::Announce);
        }
    }

    /// To the next moment at which anybody wants to do something.
    fn advance_clock(&mut self, choices: &mut impl Choices) {
        let hosts = self.hosts.iter().filter_map(HostSide::deadline);
        let next = hosts.chain(self.targets.iter().filter_map(Target::deadline)).min();
        if let Some(next) = next {
            assert!(next.since(self.now) < LONGEST_WAIT, "everybody sleeps too long");
            if next.since(self.drained_at) >= SILENCE {
                self.drain(choices);
                self.drained_at = self.now;
            }
            self.now = self.now.max(next);
        }
    }

    /// Whatever has reached a target ends.
    fn drain(&mut self, choices: &mut impl Choices) {
        loop {
            let mut busy = self.fabric.step(choices);
            for target in &mut self.targets {
                busy |= target.turn_all(self.now);
            }
            busy |= self.disks.borrow_mut().complete_one(choices, 0);
            if !busy {
                return;
            }
        }
    }

    /// Faults stop: everything has to end, and everything has to come back.
    fn settle(&mut self, choices: &mut impl Choices) {
        self.access.fill(AnaState::OPTIMIZED);
        self.go_over();
        self.start_targets(choices);
        self.until("requests to end", choices, |world| world.hosts.iter().all(|host| host.in_flight() == 0));
        for host in &mut self.hosts {
            host.close(self.now);
        }
        self.until("hosts to close", choices, |world| world.hosts.iter().all(HostSide::is_over));
        let connections = |world: &Self| world.targets.iter().map(Target::connections).sum::<usize>();
        self.until("targets to let go", choices, |world| connections(world) == 0);
        self.drain(choices);
        self.targets.iter().for_each(Target::check_at_rest);
        for host in &self.hosts {
            host.check_at_rest();
            self.report.succeeded += host.succeeded;
            self.report.failed += host.failed;
        }
        let disks = self.disks.borrow();
        assert_eq!(disks.pending(), 0, "an operation of the medium is left");
        for (at, found) in disks.contents(uuid(NSID)).into_iter().enumerate() {
            self.shadows[0].check(at, found);
        }
    }

    fn until(&mut self, what: &str, choices: &mut impl Choices, done: impl Fn(&Self) -> bool) {
        for _ in 0..PATIENCE {
            if done(self) {
                return;
            }
            let mut busy = self.fabric.step(choices);
            for target in &mut self.targets {
                busy |= target.turn_all(self.now);
            }
            for host in &mut self.hosts {
                busy |= host.turn(self.now, &mut self.shadows);
            }
            busy |= self.disks.borrow_mut().complete_one(choices, 0);
            if !busy {
                self.advance_clock(choices);
            }
        }
        let hosts: Vec<_> = self.hosts.iter().map(HostSide::describe).collect();
        panic!("waited too long for {what}: {hosts:?}");
    }
}
