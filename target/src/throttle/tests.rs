//! Limits among hosts: a model of its own counts what is let in.
use std::num::NonZeroU64;
use std::time::Duration;

use ironside_common::verbs::QpHandle;
use proptest::prelude::*;

use super::*;
use crate::catalog::tests::{namespace, nqn};
use crate::catalog::{Hosts, Subsystem};

const START: Time = Time::from_nanos(1 << 40);
const SECOND: Duration = Duration::from_secs(1);

fn iops(iops: u64) -> Limit {
    Limit { iops: NonZeroU64::new(iops), burst_ms: 10, ..Limit::default() }
}

fn bandwidth(bandwidth: u64) -> Limit {
    Limit { bandwidth: NonZeroU64::new(bandwidth), burst_ms: 10, ..Limit::default() }
}

/// Namespaces 1, 2, and so on with these limits, and limits of hosts.
fn catalog(namespaces: &[Limit], limits: HostLimits) -> Catalog {
    let numbered = (1..).zip(namespaces);
    let namespaces = numbered
        .map(|(nsid, limit)| crate::catalog::Namespace { limit: *limit, ..namespace(nsid, 1000) })
        .collect();
    let listen = vec!["192.0.2.1:4420".parse().unwrap()];
    let subsystem = Subsystem::new(nqn("s"), "S", Hosts::Any, listen, namespaces).unwrap();
    Catalog::new(1, vec![subsystem.with_host_limits(limits)]).unwrap()
}

fn throttle(namespaces: &[Limit], limits: HostLimits) -> Throttle {
    let mut throttle = Throttle::default();
    throttle.on_catalog(START, &catalog(namespaces, limits));
    throttle
}

fn host(number: usize) -> HostKey {
    HostKey::new(&nqn("s").to_field(), &nqn(&format!("host{number}")).to_field())
}

/// Command `slot` of a host's queue.
fn ask(number: usize, queue: u16, slot: u16, nsid: u32, cost: Cost) -> Ask {
    let queue = QueueName { reactor: 0, qp: QpHandle(100 * number as u16 + queue), generation: 0 };
    let name = CommandName { queue, slot, generation: 0 };
    Ask { name, namespace: namespace(nsid, 1000).uuid, host: host(number), cost }
}

const READ: Cost = Cost { commands: 1, read: 4096, write: 0 };
const WRITE: Cost = Cost { commands: 1, read: 0, write: 1 << 20 };

/// Lets in whatever can be until `end`; says who and when.
fn run(throttle: &mut Throttle, mut now: Time, end: Time) -> Vec<(Time, Ask)> {
    let mut let_in = Vec::new();
    while now <= end {
        while let Some(ask) = throttle.poll(now) {
            let_in.push((now, ask));
        }
        let Some(next) = throttle.deadline() else { break };
        assert!(next > now, "there was nothing to do");
        now = next;
    }
    let_in
}

fn count(let_in: &[(Time, Ask)], number: usize) -> usize {
    let_in.iter().filter(|(_, ask)| ask.host == host(number)).count()
}

#[test]
fn what_is_not_limited_does_not_wait() {
    let mut throttle = throttle(&[iops(1), Limit::default()], HostLimits::default());
    (0..100).for_each(|slot| throttle.ask(START, ask(0, 0, slot, 2, READ)));
    assert_eq!(run(&mut throttle, START, START).len(), 100);
    assert_eq!(throttle.deadline(), None);
}

#[test]
fn hosts_share_a_bandwidth_whatever_they_ask_for() {
    let mut throttle = throttle(&[bandwidth(100 << 20)], HostLimits::default());
    for slot in 0..1000 {
        (0..8).for_each(|queue| throttle.ask(START, ask(0, queue, slot, 1, WRITE)));
    }
    (0..20_000).for_each(|slot| throttle.ask(START, ask(1, 0, slot, 1, READ)));
    let let_in = run(&mut throttle, START, START + SECOND);
    let (large, small) = (count(&let_in, 0), count(&let_in, 1));
    assert!((49..=53).contains(&large), "half of 101 MiB: {large}");
    assert!((12_500..=13_500).contains(&small), "the other half: {small}");
    let of_first = let_in.iter().filter(|(_, ask)| ask.name.queue.qp == QpHandle(0)).count();
    assert!((6..=7).contains(&of_first), "its queues take turns: {of_first}");
    let waits = let_in.iter().filter(|(_, ask)| ask.host == host(1)).map(|(at, _)| *at);
    let longest = waits.clone().zip(waits.skip(1)).map(|(one, next)| next.since(one)).max();
    assert!(longest < Some(Duration::from_millis(25)), "never behind more than one write: {longest:?}");
}

#[test]
fn a_host_that_comes_late_has_its_share_at_once_and_no_more() {
    let mut throttle = throttle(&[iops(1000)], HostLimits::default());
    (0..5000).for_each(|slot| throttle.ask(START, ask(0, 0, slot, 1, READ)));
    let alone = run(&mut throttle, START, START + SECOND);
    assert!((1010..=1012).contains(&alone.len()), "all there is: {}", alone.len());
    let now = START + SECOND;
    (0..5000).for_each(|slot| throttle.ask(now, ask(1, 0, slot, 1, READ)));
    let both = run(&mut throttle, now, now + SECOND);
    assert!((499..=502).contains(&count(&both, 0)) && (499..=502).contains(&count(&both, 1)));
}

#[test]
fn a_host_has_a_limit_of_its_own_over_all_namespaces() {
    let named = vec![(nqn("host0"), iops(100))];
    let limits = HostLimits { each: iops(1000), named };
    let mut throttle = throttle(&[Limit::default(), iops(400)], limits);
    for slot in 0..3000 {
        for number in 0..3 {
            throttle.ask(START, ask(number, 0, slot, 1, READ));
            throttle.ask(START, ask(number, 1, slot, 2, READ));
        }
    }
    let let_in = run(&mut throttle, START, START + SECOND);
    assert!((100..=102).contains(&count(&let_in, 0)));
    assert!((1008..=1012).contains(&count(&let_in, 1)) && (1008..=1012).contains(&count(&let_in, 2)));
    let second = let_in.iter().filter(|(_, ask)| ask.namespace == namespace(2, 1).uuid).count();
    assert!((403..=405).contains(&second), "{second}");
}

#[test]
fn reads_do_not_wait_for_a_limit_of_writes() {
    let limit = Limit { write_bandwidth: NonZeroU64::new(1 << 20), burst_ms: 0, ..Limit::default() };
    let mut throttle = throttle(&[limit], HostLimits::default());
    for slot in 0..10 {
        throttle.ask(START, ask(0, 0, slot, 1, WRITE));
        throttle.ask(START, ask(0, 0, slot + 10, 1, READ));
        throttle.ask(START, ask(0, 0, slot + 20, 1, Cost { commands: 1, ..Cost::default() }));
    }
    assert_eq!(run(&mut throttle, START, START).len(), 21);
}

#[test]
fn commands_of_one_host_take_turns_whatever_they_do() {
    let mut throttle = throttle(&[iops(1000)], HostLimits::default());
    for slot in 0..2000 {
        throttle.ask(START, ask(0, 0, slot, 1, READ));
        throttle.ask(START, ask(0, 0, slot + 2000, 1, WRITE));
    }
    let let_in = run(&mut throttle, START, START + SECOND);
    let reads = let_in.iter().filter(|(_, ask)| ask.cost == READ).count();
    assert!((504..=506).contains(&reads), "{reads}");
}

#[test]
fn another_limit_holds_for_those_who_wait() {
    let mut throttle = throttle(&[iops(1)], HostLimits::default());
    (0..1000).for_each(|slot| throttle.ask(START, ask(0, 0, slot, 1, READ)));
    assert_eq!(run(&mut throttle, START, START).len(), 1);
    throttle.on_catalog(START, &catalog(&[iops(500)], HostLimits::default()));
    let faster = run(&mut throttle, START, START + SECOND).len();
    assert!((500..=506).contains(&faster), "{faster}");
    throttle.on_catalog(START + SECOND, &catalog(&[Limit::default()], HostLimits::default()));
    assert_eq!(run(&mut throttle, START + SECOND, START + SECOND).len(), 999 - faster);
}

#[test]
fn what_is_gone_takes_no_turn() {
    let mut throttle = throttle(&[iops(10)], HostLimits { each: iops(5), ..HostLimits::default() });
    let [first, second, third] = [0, 1, 2].map(|slot| ask(0, 0, slot, 1, READ));
    [first, second, third].into_iter().for_each(|ask| throttle.ask(START, ask));
    assert_eq!(throttle.poll(START), Some(first));
    throttle.withdraw(START, second.namespace, second.name);
    // It had ended when its turn came: the next one need not wait for it.
    throttle.give_back(START, &first);
    assert_eq!(throttle.poll(START), Some(third));
    throttle.ask(START, second);
    throttle.forget(START, second.name.queue);
    assert_eq!((throttle.poll(START), throttle.deadline()), (None, None));
    assert_eq!(throttle.hosts.len(), 1, "what it owes is not forgotten");
    throttle.forget(START + 10 * SECOND, second.name.queue);
    assert!(throttle.hosts.is_empty() && throttle.scopes.values().all(|scope| scope.hosts().count() == 0));
}

/// A bucket which fills up: what is let in and not yet earned.
struct Model {
    rate: u64,
    level: f64,
    at: Time,
}

impl Model {
    fn level(&mut self, now: Time) -> f64 {
        let earned = now.since(self.at).as_secs_f64() * self.rate as f64;
        (self.level, self.at) = ((self.level - earned).max(0.0), now);
        self.level
    }
}

proptest! {
    /// Of bytes and of commands no more is let in than the burst, the rate and one command, in any span of time; and
    /// nobody waits while all that he needs is there.
    #[test]
    fn a_limit_holds_and_nothing_is_wasted(
        rates in (1_u64..5000, 4096_u64..1 << 24),
        burst_ms in 0_u32..50,
        asks in prop::collection::vec((0_u64..20_000_000, 0_usize..3, 0_u16..2, 1_u32..200), 1..300),
    ) {
        let limit = Limit {
            iops: NonZeroU64::new(rates.0),
            write_bandwidth: NonZeroU64::new(rates.1),
            burst_ms,
            ..Limit::default()
        };
        let mut throttle = throttle(&[limit], HostLimits::default());
        let [mut commands, mut bytes] = [rates.0, rates.1].map(|rate| Model { rate, level: 0.0, at: START });
        let burst = f64::from(burst_ms) / 1000.0;
        let (mut now, mut waiting, mut slot) = (START, 0, 0);
        let mut asks = asks.into_iter().peekable();
        let mut arrival = START;
        while asks.peek().is_some() || waiting > 0 {
            if let Some((pause, number, queue, pages)) = asks.next_if(|_| arrival <= now) {
                let cost = Cost { commands: 1, read: 0, write: pages << 12 };
                slot += 1;
                throttle.ask(now, ask(number, queue, slot, 1, cost));
                arrival = now + Duration::from_nanos(pause);
                waiting += 1;
            }
            while let Some(ask) = throttle.poll(now) {
                waiting -= 1;
                let slack = 1.0 + 1e-6 * now.since(START).as_secs_f64() * rates.1 as f64;
                prop_assert!(commands.level(now) <= burst * rates.0 as f64 + slack);
                prop_assert!(bytes.level(now) <= burst * rates.1 as f64 + slack);
                commands.level += 1.0;
                bytes.level += f64::from(ask.cost.write);
            }
            // Rounding is in favour of the limit, by a nanosecond a command.
            let slack = |rate: u64| 1e-9 * rate as f64 * f64::from(slot) + 1e-3;
            let is_full = commands.level(now) > burst * rates.0 as f64 - slack(rates.0)
                || bytes.level(now) > burst * rates.1 as f64 - slack(rates.1);
            prop_assert!(waiting == 0 || is_full, "somebody waits for nothing");
            let next = [throttle.deadline(), asks.peek().map(|_| arrival)].into_iter().flatten().min();
            now = next.unwrap_or(now).max(now);
        }
    }
}
