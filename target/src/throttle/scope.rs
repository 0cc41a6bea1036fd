//! The commands which wait for one namespace, and whose turn is next among them.
use std::collections::VecDeque;

use ironside_common::time::Time;

use super::bucket::Meter;
use super::waiting::{List, Waiting};
use super::{Ask, Cost, HostKey};
use crate::poll_group::{CommandName, QueueName};

#[derive(Debug, Default)]
pub(super) struct Scope {
    meter: Meter,
    /// Hosts which have asked and wait, or have had more than others.
    flows: Vec<Flow>,
    waiting: usize,
    /// Named by the list of those for which commands wait.
    pub(super) is_listed: bool,
    /// Virtual time: how far the host is which was served last.
    clock: u64,
    served: u64,
}

/// The commands of one host.
#[derive(Debug)]
struct Flow {
    host: HostKey,
    /// In virtual time, when all it has had is paid for.
    finish: u64,
    /// The number of its last turn.
    served: u64,
    /// One for each set of buckets which commands ask, so that reads do not wait for writes, nor the other way round.
    lanes: [Lane; 4],
}

/// Commands which are let in at the same time: those that read, that write, that do both or neither.
#[derive(Debug, Default)]
struct Lane {
    waiting: usize,
    /// The number of its last turn.
    served: u64,
    /// Those whose turn comes first in front.
    queues: List,
}

/// Whose turn is next, and from when on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub(super) at: Time,
    flow: usize,
    lane: usize,
}

impl Scope {
    pub(super) const fn meter_mut(&mut self) -> &mut Meter {
        &mut self.meter
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = HostKey> {
        self.flows.iter().map(|flow| flow.host)
    }

    /// So many hosts may ask.
    pub(super) fn reserve(&mut self, hosts: usize) {
        self.flows.reserve(hosts.saturating_sub(self.flows.len()));
    }

    pub(super) fn push(&mut self, waiting: &mut Waiting, ask: Ask) {
        let index = self.flows.iter().position(|flow| flow.host == ask.host).unwrap_or_else(|| {
            let host = ask.host;
            self.flows.push(Flow { host, finish: 0, served: 0, lanes: Default::default() });
            self.flows.len() - 1
        });
        self.waiting += 1;
        let lane = &mut self.flows[index].lanes[lane_of(ask.cost)];
        lane.waiting += 1;
        waiting.push(&mut lane.queues, ask);
    }

    pub(super) fn withdraw(&mut self, waiting: &mut Waiting, name: CommandName) {
        self.remove(waiting, name.queue, |ask| ask.name == name);
    }

    pub(super) fn forget(&mut self, waiting: &mut Waiting, name: QueueName) {
        self.remove(waiting, name, |_| true);
        // What a host has had is remembered as long as it would make a difference to others.
        let (clock, waiting) = (self.clock, self.waiting);
        let is_there = |flow: &Flow| flow.lanes.iter().any(|lane| lane.waiting > 0);
        self.flows.retain(|flow| is_there(flow) || waiting > 0 && flow.finish > clock);
    }

    fn remove(&mut self, waiting: &mut Waiting, name: QueueName, is_over: impl Fn(&Ask) -> bool) {
        for lane in self.flows.iter_mut().flat_map(|flow| &mut flow.lanes) {
            let gone = waiting.remove(&mut lane.queues, name, &is_over);
            lane.waiting -= gone;
            self.waiting -= gone;
        }
    }

    /// All that waits, which need not any more.
    pub(super) fn dissolve(&mut self, waiting: &mut Waiting, free: &mut VecDeque<Ask>) {
        self.waiting = 0;
        for mut lane in self.flows.drain(..).flat_map(|flow| flow.lanes) {
            free.extend(std::iter::from_fn(|| waiting.pop(&mut lane.queues)));
        }
    }

    /// Whose turn it is: of those whom their own limit lets begin the one that has had least, and of such the one that has
    /// waited longest. If there is none, when there will be one. Nothing if nobody waits.
    pub(super) fn opening(
        &self,
        now: Time,
        commands: &Waiting,
        host_opens_at: impl Fn(HostKey, Cost) -> Time,
    ) -> Option<Opening> {
        let lanes = self.flows.iter().enumerate().flat_map(|(index, flow)| {
            flow.lanes.iter().enumerate().map(move |(lane, waiting)| ((index, flow), (lane, waiting)))
        });
        let waiting = lanes.filter(|(_, (_, waiting))| waiting.waiting > 0);
        let rank = |((index, flow), (number, lane)): ((usize, &Flow), (usize, &Lane))| {
            let cost = commands.head(&lane.queues)?.cost;
            let at = self.meter.opens_at(cost).max(host_opens_at(flow.host, cost));
            let order = (at.max(now), flow.finish.max(self.clock), flow.served, lane.served);
            Some((order, Opening { at, flow: index, lane: number }))
        };
        let first = waiting.filter_map(rank).min_by_key(|&(order, _)| order);
        first.map(|(_, opening)| opening)
    }

    /// Takes the command of an opening out, and counts it.
    pub(super) fn serve(&mut self, now: Time, waiting: &mut Waiting, opening: Opening) -> Ask {
        self.served += 1;
        self.waiting -= 1;
        let flow = &mut self.flows[opening.flow];
        let lane = &mut flow.lanes[opening.lane];
        lane.served = self.served;
        lane.waiting -= 1;
        let ask = waiting.pop(&mut lane.queues).expect("a command waits");
        self.meter.take(now, ask.cost);
        let span = u64::try_from(self.meter.span(ask.cost).as_nanos()).unwrap_or(u64::MAX);
        self.clock = flow.finish.max(self.clock);
        flow.finish = self.clock.saturating_add(span);
        flow.served = self.served;
        ask
    }
}

fn lane_of(cost: Cost) -> usize {
    usize::from(cost.read > 0) + 2 * usize::from(cost.write > 0)
}
