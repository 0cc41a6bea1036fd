//! Limits of a world: a model of what namespaces and hosts may have, which sees what reactors tell each other.
//!
//! What must hold: of commands and bytes no more is let in than the burst, the rate and one command, in any span of time;
//! whoever waits waits for a limit which is used up; and nothing comes to the drive of a limited namespace without its
//! turn.
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use ironside_common::provider::sim::Choices;
use ironside_common::time::Time;
use ironside_common::verbs::Token;
use ironside_target::catalog::{Catalog, Subsystem};
use ironside_target::poll_group::{CommandName, Message};
use ironside_target::throttle::{Ask, Cost, HostKey, Limit};
use uuid::Uuid;

/// What rounding may cost, in seconds.
const SLACK: f64 = 1e-4;

/// One that a world may have: slow enough to make commands wait, and fast enough for all to end.
pub(super) fn draw(choices: &mut impl Choices) -> Limit {
    if choices.chance(30) {
        return Limit::default();
    }
    let mut rate = |percent, least: u64, factors| {
        let rate = NonZeroU64::new(least * u64::from(1 + choices.below(factors)));
        rate.filter(|_| choices.chance(percent))
    };
    let (iops, bandwidth) = (rate(70, 500, 20), rate(40, 1 << 20, 32));
    let (read_bandwidth, write_bandwidth) = (rate(30, 1 << 20, 32), rate(30, 1 << 20, 32));
    Limit { iops, bandwidth, read_bandwidth, write_bandwidth, burst_ms: choices.below(4) }
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    /// The version in force where the buckets are.
    namespaces: BTreeMap<Uuid, Tank>,
    each_host: Limit,
    hosts: BTreeMap<HostKey, Tank>,
    waiting: Vec<Ask>,
    /// Namespaces which are limited, or whose hosts are; and commands of others, which need not wait.
    scopes: BTreeSet<Uuid>,
    free: Vec<CommandName>,
    /// Namespaces limited since the target started, and whose turn has come of whatever asked.
    always: BTreeSet<Uuid>,
    turns: BTreeSet<(usize, u16, u16, u16)>,
    /// Commands which had to wait.
    pub(super) waited: u64,
}

/// What was let in and is not earned yet: commands, bytes, bytes read, bytes written.
#[derive(Debug)]
struct Tank {
    limit: Limit,
    levels: [f64; 4],
    at: Time,
}

impl Limits {
    /// A target starts, and knows nothing of the one before.
    pub(super) fn start(&mut self, now: Time, catalog: &Catalog) {
        *self = Self { waited: self.waited, ..Self::default() };
        self.change(now, catalog);
        self.always = self.namespaces.keys().copied().collect();
    }

    fn change(&mut self, now: Time, catalog: &Catalog) {
        let subsystem = &catalog.subsystems()[0];
        self.each_host = subsystem.host_limits().each;
        let limited = |uuid: Uuid| {
            let namespace = subsystem.namespaces().iter().find(|namespace| namespace.uuid == uuid);
            namespace.map(|namespace| namespace.limit).filter(Limit::is_any)
        };
        for uuid in subsystem.namespaces().iter().map(|namespace| namespace.uuid) {
            if let Some(limit) = limited(uuid) {
                let tank = self.namespaces.entry(uuid).or_insert_with(|| Tank::new(now, limit));
                tank.set(now, limit);
            }
        }
        self.namespaces.retain(|&uuid, _| limited(uuid).is_some());
        let each = self.each_host;
        let namespaces = subsystem.namespaces().iter().map(|namespace| namespace.uuid);
        self.scopes = namespaces.filter(|&uuid| each.is_any() || limited(uuid).is_some()).collect();
        let freed = self.waiting.extract_if(.., |ask| !self.scopes.contains(&ask.namespace));
        self.free.extend(freed.map(|ask| ask.name));
        // Commands under way may have been let in while nothing was limited.
        self.always.retain(|&uuid| limited(uuid).is_some());
        self.hosts.values_mut().for_each(|tank| tank.set(now, each));
    }

    /// A message which comes to the reactor that has the buckets.
    pub(super) fn on_message(&mut self, now: Time, message: &Message) {
        match message {
            Message::Ask(ask) if !self.scopes.contains(&ask.namespace) => self.free.push(ask.name),
            Message::Ask(ask) => {
                self.hosts.entry(ask.host).or_insert_with(|| Tank::new(now, self.each_host));
                self.waiting.push(*ask);
            }
            Message::Withdraw { name, .. } => self.end(|one| one == name),
            Message::Forget(queue) => self.end(|one| one.queue == *queue),
            Message::GiveBack(ask) => self.tanks(ask).for_each(|tank| tank.give_back(now, ask.cost)),
            Message::Catalog(catalog) => self.change(now, catalog),
            _ => {}
        }
    }

    /// A message which some reactor sends.
    ///
    /// # Panics
    /// If it lets in a command which has to wait.
    pub(super) fn on_sent(&mut self, now: Time, message: &Message) {
        let Message::Turn(ask) = message else { return };
        if let Some(index) = self.free.iter().position(|name| *name == ask.name) {
            self.free.swap_remove(index);
            return;
        }
        let index = self.waiting.iter().position(|waiting| waiting.name == ask.name);
        let _known = self.waiting.remove(index.expect("a turn of nobody"));
        for tank in self.tanks(ask) {
            assert!(tank.has_room(now, ask.cost, SLACK), "{ask:?} is let in over {tank:?}");
            tank.take(ask.cost);
        }
        let CommandName { queue, slot, generation } = ask.name;
        self.turns.insert((queue.reactor, queue.qp.0, slot, generation));
    }

    /// The reactor that has the buckets has done all it could.
    ///
    /// # Panics
    /// If somebody waits for nothing.
    pub(super) fn check(&mut self, now: Time) {
        self.waited += self.waiting.len() as u64;
        for ask in std::mem::take(&mut self.waiting) {
            let is_full = self.tanks(&ask).any(|tank| !tank.has_room(now, ask.cost, -SLACK));
            assert!(is_full, "{ask:?} waits for nothing");
            self.waiting.push(ask);
        }
    }

    /// An operation is at the drive of a namespace.
    ///
    /// # Panics
    /// If its turn has not come.
    pub(super) fn check_turn(&self, namespace: Uuid, reactor: usize, token: Token) {
        let came = self.turns.contains(&(reactor, token.qpair, token.slot, token.generation));
        assert!(came || !self.always.contains(&namespace), "{token:?} came without its turn");
    }

    /// # Panics
    /// If anybody waits.
    pub(super) fn check_at_rest(&self) {
        assert!(self.waiting.is_empty(), "a command waits for its turn for ever");
    }

    fn end(&mut self, is_over: impl Fn(&CommandName) -> bool) {
        self.waiting.retain(|ask| !is_over(&ask.name));
        self.free.retain(|name| !is_over(name));
    }

    fn tanks(&mut self, ask: &Ask) -> impl Iterator<Item = &mut Tank> {
        let namespace = self.namespaces.get_mut(&ask.namespace);
        namespace.into_iter().chain(self.hosts.get_mut(&ask.host))
    }
}

impl Tank {
    fn new(now: Time, limit: Limit) -> Self {
        Self { limit, levels: [0.0; 4], at: now }
    }

    fn rates(&self) -> [Option<f64>; 4] {
        let Limit { iops, bandwidth, read_bandwidth, write_bandwidth, .. } = self.limit;
        [iops, bandwidth, read_bandwidth, write_bandwidth].map(|rate| rate.map(|rate| rate.get() as f64))
    }

    fn set(&mut self, now: Time, limit: Limit) {
        self.earn(now);
        self.limit = limit;
        let limited = self.rates();
        for (level, _) in self.levels.iter_mut().zip(limited).filter(|(_, rate)| rate.is_none()) {
            *level = 0.0;
        }
    }

    fn earn(&mut self, now: Time) {
        let seconds = now.since(self.at).as_secs_f64();
        self.at = now;
        let rates = self.rates();
        for (level, rate) in self.levels.iter_mut().zip(rates) {
            *level = (*level - rate.unwrap_or_default() * seconds).max(0.0);
        }
    }

    fn has_room(&mut self, now: Time, cost: Cost, slack: f64) -> bool {
        self.earn(now);
        let burst = self.limit.burst().as_secs_f64() + slack;
        let limited = self.rates().into_iter().zip(self.levels).zip(units(cost));
        limited
            .into_iter()
            .all(|((rate, level), units)| rate.is_none_or(|rate| units == 0.0 || level <= burst * rate))
    }

    fn take(&mut self, cost: Cost) {
        let rates = self.rates();
        for ((level, units), rate) in self.levels.iter_mut().zip(units(cost)).zip(rates) {
            *level += if rate.is_some() { units } else { 0.0 };
        }
    }

    fn give_back(&mut self, now: Time, cost: Cost) {
        self.earn(now);
        for (level, units) in self.levels.iter_mut().zip(units(cost)) {
            *level = (*level - units).max(0.0);
        }
    }
}

fn units(cost: Cost) -> [f64; 4] {
    let Cost { commands, read, write } = cost;
    [commands, read + write, read, write].map(f64::from)
}

/// The reactor which has the buckets of the world's subsystem.
pub(super) fn home(subsystem: &Subsystem, reactors: usize) -> usize {
    HostKey::new(&subsystem.nqn().to_field(), &[0; 256]).home(reactors)
}
