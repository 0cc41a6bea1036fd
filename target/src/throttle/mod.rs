//! Limits of namespaces and hosts (quality of service): who may begin a command next, and when.
//!
//! A limit holds for the whole target, whichever reactors its commands come to. So all commands which a limit of a
//! subsystem is about ask one reactor, which has its buckets; they wait at their queues meanwhile, without a buffer. What
//! is not limited does not ask.
//!
//! Where several hosts wait for a namespace, whose turn it is goes by what each has had (start-time fair queueing, Goyal,
//! Vin and Cheng 1996), counted in time at the namespace's rate: a host with large commands or many queues gets no more than
//! one with few and small ones. The queues of a host take turns.
mod bucket;
mod limit;
mod scope;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU64;

use ironside_common::time::Time;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use self::bucket::Meter;
pub use self::limit::{Cost, HostLimits, Limit};
use self::scope::Scope;
use self::waiting::Waiting;
use crate::catalog::Catalog;
use crate::poll_group::{CommandName, QueueName};

/// One host at one subsystem, by digests of their names.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct HostKey {
    subsystem: u64,
    host: u64,
}

impl HostKey {
    /// From the names as a Connect has them.
    #[must_use]
    pub fn new(subnqn: &[u8; 256], hostnqn: &[u8; 256]) -> Self {
        let host = leading(Sha256::new().chain_update(subnqn).chain_update(hostnqn));
        Self { subsystem: Self::subsystem(subnqn), host }
    }

    fn subsystem(subnqn: &[u8; 256]) -> u64 {
        leading(Sha256::new().chain_update(subnqn))
    }

    /// A number for both names together, which is never zero.
    #[must_use]
    pub fn number(&self) -> NonZeroU64 {
        NonZeroU64::new(self.host).unwrap_or(NonZeroU64::MIN)
    }

    /// The reactor, of so many, which has the buckets of the subsystem.
    #[must_use]
    pub fn home(&self, reactors: usize) -> usize {
        usize::try_from(self.subsystem % reactors as u64).expect("reactors are few")
    }
}

fn leading(digest: Sha256) -> u64 {
    u64::from_be_bytes(digest.finalize()[..8].try_into().expect("8 bytes"))
}

/// A command which asks for its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    pub name: CommandName,
    pub namespace: Uuid,
    pub host: HostKey,
    pub cost: Cost,
}

/// All limits one reactor has the buckets of, and the commands that wait for them.
#[derive(Debug, Default)]
pub struct Throttle {
    /// Namespaces which are limited, or whose hosts are.
    scopes: BTreeMap<Uuid, Scope>,
    hosts: BTreeMap<HostKey, HostMeter>,
    /// The limit of each host of a subsystem which has none of its own.
    each: BTreeMap<u64, Limit>,
    /// Queues which may ask, whose they are, and how many commands of each may wait.
    enlisted: BTreeMap<QueueName, (HostKey, u16)>,
    waiting: Waiting,
    /// Namespaces for which commands wait, those whose turn comes first in front.
    active: VecDeque<Uuid>,
    /// Commands of namespaces which are not limited any more.
    free: VecDeque<Ask>,
    /// When it is worth looking again; nothing if nobody waits.
    next: Option<Time>,
}

#[derive(Debug, Default)]
struct HostMeter {
    meter: Meter,
    /// Whether the limit is this host's own.
    is_named: bool,
}

impl Throttle {
    /// From now on these limits hold, also for those who wait.
    pub fn on_catalog(&mut self, now: Time, catalog: &Catalog) {
        let mut before = std::mem::take(&mut self.scopes);
        self.each.clear();
        self.hosts.values_mut().for_each(|host| host.is_named = false);
        for subsystem in catalog.subsystems() {
            let limits = subsystem.host_limits();
            self.each.insert(HostKey::subsystem(&subsystem.nqn().to_field()), limits.each);
            for (host, limit) in &limits.named {
                let key = HostKey::new(&subsystem.nqn().to_field(), &host.to_field());
                let known = self.hosts.entry(key).or_default();
                known.meter.set(now, *limit);
                known.is_named = true;
            }
            for namespace in subsystem.namespaces() {
                if !namespace.limit.is_any() && !limits.is_any() {
                    continue;
                }
                let mut scope = before.remove(&namespace.uuid).unwrap_or_default();
                scope.meter_mut().set(now, namespace.limit);
                self.scopes.insert(namespace.uuid, scope);
            }
        }
        for scope in before.values_mut() {
            scope.dissolve(&mut self.waiting, &mut self.free);
        }
        self.active.retain(|uuid| self.scopes.contains_key(uuid));
        for (key, host) in self.hosts.iter_mut().filter(|(_, host)| !host.is_named) {
            host.meter.set(now, self.each.get(&key.subsystem).copied().unwrap_or_default());
        }
        let waiting: BTreeSet<HostKey> = self.scopes.values().flat_map(Scope::hosts).collect();
        waiting.into_iter().for_each(|host| self.meter(now, host));
        self.reserve(now);
        self.sweep(now);
        self.next = Some(now);
    }

    /// Commands of this queue may ask from now on, as many as it has entries: they find room for all of them.
    pub fn enlist(&mut self, now: Time, queue: QueueName, host: HostKey, entries: u16) {
        self.enlisted.insert(queue, (host, entries));
        self.reserve(now);
    }

    /// All that commands take which may wait, so that they allocate nothing then.
    fn reserve(&mut self, now: Time) {
        self.waiting.reserve(self.enlisted.values().map(|&(_, entries)| usize::from(entries)).sum());
        let hosts: BTreeSet<HostKey> = self.enlisted.values().map(|&(host, _)| host).collect();
        self.scopes.values_mut().for_each(|scope| scope.reserve(hosts.len()));
        self.active.reserve(self.scopes.len());
        hosts.into_iter().for_each(|host| self.meter(now, host));
    }

    /// Sees to it that a host has buckets, if the hosts of its subsystem are limited each.
    fn meter(&mut self, now: Time, host: HostKey) {
        let each = self.each.get(&host.subsystem).copied().unwrap_or_default();
        if each.is_any() {
            self.hosts.entry(host).or_insert_with(|| {
                let mut meter = Meter::default();
                meter.set(now, each);
                HostMeter { meter, is_named: false }
            });
        }
    }

    /// A command asks for its turn.
    pub fn ask(&mut self, now: Time, ask: Ask) {
        self.next = Some(now);
        self.meter(now, ask.host);
        let Some(scope) = self.scopes.get_mut(&ask.namespace) else { return self.free.push_back(ask) };
        if !std::mem::replace(&mut scope.is_listed, true) {
            self.active.push_back(ask.namespace);
        }
        scope.push(&mut self.waiting, ask);
    }

    /// A command does not wait any more. One whose turn has come already is not known.
    pub fn withdraw(&mut self, now: Time, namespace: Uuid, name: CommandName) {
        self.free.retain(|ask| ask.name != name);
        if let Some(scope) = self.scopes.get_mut(&namespace) {
            scope.withdraw(&mut self.waiting, name);
            self.next = Some(now);
        }
    }

    /// A queue has ended, and what it asked for with it.
    pub fn forget(&mut self, now: Time, queue: QueueName) {
        self.free.retain(|ask| ask.name.queue != queue);
        self.enlisted.remove(&queue);
        self.scopes.values_mut().for_each(|scope| scope.forget(&mut self.waiting, queue));
        self.sweep(now);
        self.next = Some(now);
    }

    /// A command whose turn had come did not wait any more.
    pub fn give_back(&mut self, now: Time, ask: &Ask) {
        if let Some(scope) = self.scopes.get_mut(&ask.namespace) {
            scope.meter_mut().give_back(ask.cost);
        }
        if let Some(host) = self.hosts.get_mut(&ask.host) {
            host.meter.give_back(ask.cost);
        }
        self.next = Some(now);
    }

    /// The next command whose turn has come.
    pub fn poll(&mut self, now: Time) -> Option<Ask> {
        if let Some(ask) = self.free.pop_front() {
            return Some(ask);
        }
        self.next.filter(|&next| next <= now)?;
        self.next = None;
        for _ in 0..self.active.len() {
            let uuid = self.active.pop_front()?;
            let Some(scope) = self.scopes.get_mut(&uuid) else { continue };
            let opening = scope.opening(now, &self.waiting, |host, cost| {
                self.hosts.get(&host).map_or(Time::ZERO, |host| host.meter.opens_at(cost))
            });
            // Withdrawn commands leave a namespace here for which nobody waits.
            let Some(opening) = opening else {
                scope.is_listed = false;
                continue;
            };
            if opening.at > now {
                self.active.push_back(uuid);
                self.next = Some(self.next.map_or(opening.at, |next| next.min(opening.at)));
                continue;
            }
            let ask = scope.serve(now, &mut self.waiting, opening);
            if let Some(host) = self.hosts.get_mut(&ask.host) {
                host.meter.take(now, ask.cost);
            }
            self.active.push_back(uuid);
            self.next = Some(now);
            return Some(ask);
        }
        None
    }

    /// When [`Self::poll`] may have something, if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        if self.free.is_empty() { self.next } else { Some(Time::ZERO) }
    }

    /// Hosts which have none of their own limits, owe nothing and are gone would begin again as they ended.
    fn sweep(&mut self, now: Time) {
        if self.hosts.values().all(|host| host.is_named) {
            return;
        }
        let enlisted = self.enlisted.values().map(|&(host, _)| host);
        let there: BTreeSet<HostKey> = self.scopes.values().flat_map(Scope::hosts).chain(enlisted).collect();
        self.hosts.retain(|key, host| host.is_named || !host.meter.is_rested(now) || there.contains(key));
    }
}
