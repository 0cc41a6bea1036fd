//! The fabric itself: it moves one thing at a time, whichever the choices name.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use slab::Slab;

use super::connection::{Connection, MESSAGE_OFFSET, STRIDE, Work, copy};
use super::{Choices, REMOTE_ACCESS_ERROR, SimProvider};
use crate::memory::Memory;
use crate::verbs::{Access, Address, CmEvent, Event, QpHandle, Received, RejectReason, WcStatus};

/// All endpoints and connections of one world. A clone is the same network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub(super) state: Rc<RefCell<State>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) connections: Slab<Connection>,
    /// Connects so far, to take turns among the endpoints of one address.
    connects: usize,
}

#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) memory: Rc<Memory>,
    /// RDMA Reads it lets a peer have outstanding.
    pub(super) ird: u32,
    /// Whether connects to it arrive.
    pub(super) listening: bool,
    /// Whether its provider has been dropped.
    pub(super) dead: bool,
    pub(super) events: VecDeque<Told>,
    /// Connection and side of each queue pair.
    pub(super) qps: Slab<(usize, usize)>,
}

/// In place of connection and side: there is none any more.
pub(super) const REFUSED: (usize, usize) = (usize::MAX, 0);

/// An event on its way to its owner; a message carries its bytes along.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) event: Event,
    pub(super) bytes: Vec<u8>,
}

impl Told {
    pub(super) fn refused(&self) -> Option<QpHandle> {
        match &self.event {
            Event::Connection(event) => match **event {
                CmEvent::Refused { qp, .. } => Some(qp),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn is_about(&self, queue_pair: QpHandle) -> bool {
        match &self.event {
            Event::Received(received) => received.qp == queue_pair,
            Event::Completed(wc) => wc.qp == queue_pair,
            Event::Connection(event) => match &**event {
                CmEvent::Request(request) => request.qp == queue_pair,
                CmEvent::Established { qp, .. }
                | CmEvent::Refused { qp, .. }
                | CmEvent::Disconnected { qp, .. } => *qp == queue_pair,
            },
        }
    }
}

impl From<Event> for Told {
    fn from(event: Event) -> Self {
        Self { event, bytes: Vec::new() }
    }
}

/// Something that can happen next on one side of one connection.
#[derive(Clone, Copy, Debug)]
enum Step {
    Execute,
    FinishRead,
    Tell,
    TellDisconnected,
}

impl Network {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new endpoint, which reaches others by their address. It does not listen until it is told to.
    pub fn endpoint(&self, address: Address, memory: Rc<Memory>, ird: u32) -> SimProvider {
        let mut state = self.state.borrow_mut();
        state.endpoints.push(Endpoint {
            address,
            memory,
            ird,
            listening: false,
            dead: false,
            events: VecDeque::new(),
            qps: Slab::new(),
        });
        SimProvider::new(self.clone(), state.endpoints.len() - 1)
    }

    /// Whether connects to the endpoints at `address` arrive from now on.
    pub fn set_listening(&self, address: Address, listening: bool) {
        for endpoint in &mut self.state.borrow_mut().endpoints {
            if endpoint.address == address {
                endpoint.listening = listening && !endpoint.dead;
            }
        }
    }

    /// Lets one thing happen, if anything can.
    ///
    /// # Panics
    /// If a message finds no receive posted, or a side posts beyond its limits: a promise is broken.
    pub fn step(&self, choices: &mut impl Choices) -> bool {
        let mut state = self.state.borrow_mut();
        let steps = state.possible();
        let Ok(count) = u32::try_from(steps.len()) else { return false };
        if count == 0 {
            return false;
        }
        let (connection, side, step) = steps[choices.below(count) as usize];
        state.perform(connection, side, step);
        true
    }

    /// Breaks one open connection, in the middle of whatever it was doing.
    pub fn break_one(&self, choices: &mut impl Choices) {
        let mut state = self.state.borrow_mut();
        let open: Vec<_> =
            state.connections.iter().filter(|(_, c)| c.open && !c.broken).map(|(id, _)| id).collect();
        if let Ok(count @ 1..) = u32::try_from(open.len()) {
            let id = open[choices.below(count) as usize];
            state.place_a_part(id, choices);
            state.break_connection(id);
        }
    }

    /// What a host's exposed memory looks like from outside: true if nothing is exposed any more but what lasts.
    #[must_use]
    pub fn nothing_exposed(&self) -> bool {
        let state = self.state.borrow();
        let mut ends = state.connections.iter().filter(|(_, c)| !c.broken).flat_map(|(_, c)| &c.ends);
        ends.all(|end| end.regions.iter().all(|region| region.exposed.is_none()))
    }
}

impl State {
    fn possible(&self) -> Vec<(usize, usize, Step)> {
        let mut steps = Vec::new();
        for (id, connection) in &self.connections {
            for (side, end) in connection.ends.iter().enumerate() {
                if !end.queue.is_empty() && connection.open && !connection.broken {
                    steps.push((id, side, Step::Execute));
                }
                if !end.outstanding.is_empty() {
                    steps.push((id, side, Step::FinishRead));
                }
                if !end.pending.is_empty() {
                    steps.push((id, side, Step::Tell));
                }
                if connection.broken && !end.told && !end.destroyed && end.is_idle() {
                    steps.push((id, side, Step::TellDisconnected));
                }
            }
        }
        steps
    }

    fn perform(&mut self, id: usize, side: usize, step: Step) {
        let end = &mut self.connections[id].ends[side];
        match step {
            Step::Execute => {
                let work = end.queue.pop_front().expect("possible only with work posted");
                self.execute(id, side, work);
            }
            Step::FinishRead => {
                let work = end.outstanding.pop_front().expect("possible only with a read outstanding");
                self.finish_read(id, side, work);
            }
            Step::Tell => {
                let pending = end.pending.pop_front().expect("possible only with something to tell");
                end.used -= pending.cost;
                let endpoint = end.endpoint;
                self.tell(endpoint, Event::Completed(pending.wc));
            }
            Step::TellDisconnected => {
                end.told = true;
                let (endpoint, qp) = (end.endpoint, end.qp);
                let reason = "the simulated link broke".to_owned();
                self.tell(endpoint, connection_event(CmEvent::Disconnected { qp, reason }));
            }
        }
    }

    fn execute(&mut self, id: usize, side: usize, work: Work) {
        let end = &mut self.connections[id].ends[side];
        match work {
            Work::Read { .. } => {
                end.outstanding.push_back(work);
                let within = end.outstanding.len() <= end.reads as usize;
                assert!(within, "more reads outstanding than the peer allows");
            }
            Work::Register(exposure) => {
                end.regions[usize::from(exposure.mr.0)].expose(exposure);
            }
            Work::Invalidate { token, key } => {
                assert!(end.invalidate(key), "invalidated a key which is not valid");
                end.complete(token, WcStatus::Success, 1);
            }
            Work::Write { from, to } => {
                let peer = &self.connections[id].ends[1 - side];
                match peer.reach(to, from.length, Access::RemoteWrite) {
                    Some(sink) => copy(
                        (&self.endpoints[self.connections[id].ends[side].endpoint].memory, from),
                        (&self.endpoints[peer.endpoint].memory, sink),
                    ),
                    None => self.access_error(id, side),
                }
            }
            Work::Send { token, head, data, invalidate, cost } => {
                self.deliver(id, side, head, data, invalidate, (token, cost));
            }
        }
    }

    fn deliver(
        &mut self,
        id: usize,
        side: usize,
        mut bytes: Vec<u8>,
        data: Option<crate::verbs::Sge>,
        invalidate: Option<u32>,
        (token, cost): (crate::verbs::Token, u32),
    ) {
        let sender = self.connections[id].ends[side].endpoint;
        if let Some(data) = data {
            let start = bytes.len();
            bytes.resize(start + data.length as usize, 0);
            self.endpoints[sender].memory.read(data, &mut bytes[start..]);
        }
        let [a, b] = &mut self.connections[id].ends;
        let (end, peer) = if side == 0 { (a, b) } else { (b, a) };
        if invalidate.is_some_and(|key| !peer.invalidate_remotely(key)) {
            end.complete(token, WcStatus::Failed(REMOTE_ACCESS_ERROR), cost);
            return self.break_connection(id);
        }
        let buffer = peer.receives.pop_front().expect("a message found no receive posted");
        peer.lent += 1;
        let length = u32::try_from(bytes.len()).expect("messages are short");
        let size = peer.parameters.map_or(0, |parameters| parameters.receive_size);
        assert!(length <= size, "a message longer than the receive buffer");
        end.complete(token, WcStatus::Success, cost);
        let (endpoint, qp, lkey) = (peer.endpoint, peer.qp, peer.receive_lkey);
        let lkey = lkey.expect("an open end has receive buffers");
        let memory = &self.endpoints[endpoint].memory;
        let offset = u64::from(buffer) * u64::from(STRIDE) + u64::from(MESSAGE_OFFSET);
        memory.write(memory.sge(lkey, offset, length), &bytes);
        let received = Received { qp, buffer, length, invalidated: invalidate };
        self.endpoints[endpoint].events.push_back(Told { event: Event::Received(received), bytes });
    }

    fn finish_read(&mut self, id: usize, side: usize, work: Work) {
        let Work::Read { token, from, into } = work else { unreachable!("only reads are outstanding") };
        let end = &self.connections[id].ends[side];
        let peer = &self.connections[id].ends[1 - side];
        match peer.reach(from, into.length, Access::RemoteRead) {
            Some(source) => {
                copy(
                    (&self.endpoints[peer.endpoint].memory, source),
                    (&self.endpoints[end.endpoint].memory, into),
                );
                self.connections[id].ends[side].complete(token, WcStatus::Success, 1);
            }
            None => {
                let failed = WcStatus::Failed(REMOTE_ACCESS_ERROR);
                self.connections[id].ends[side].complete(token, failed, 1);
                self.break_connection(id);
            }
        }
    }

    /// An unsignaled write touched what it must not: the send behind it in the chain is what fails.
    fn access_error(&mut self, id: usize, side: usize) {
        let end = &mut self.connections[id].ends[side];
        if let Some(Work::Send { token, cost, .. }) = end.queue.pop_front() {
            end.complete(token, WcStatus::Failed(REMOTE_ACCESS_ERROR), cost);
        }
        self.break_connection(id);
    }

    /// A link that breaks within an RDMA Write leaves a part of it placed.
    fn place_a_part(&mut self, id: usize, choices: &mut impl Choices) {
        for side in 0..2 {
            let end = &self.connections[id].ends[side];
            let peer = &self.connections[id].ends[1 - side];
            let Some(&Work::Write { from, to }) = end.queue.front() else { continue };
            let Some(sink) = peer.reach(to, from.length, Access::RemoteWrite) else { continue };
            let part = choices.below(from.length + 1);
            let memories = (&self.endpoints[end.endpoint].memory, &self.endpoints[peer.endpoint].memory);
            copy((memories.0, from.slice(0, part)), (memories.1, sink.slice(0, part)));
        }
    }

    pub(super) fn break_connection(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        if !connection.broken {
            connection.broken = true;
            for end in &mut connection.ends {
                end.flush();
                for region in &mut end.regions {
                    region.exposed = None;
                }
                end.lasting.clear();
            }
        }
    }

    pub(super) fn tell(&mut self, endpoint: usize, event: Event) {
        self.endpoints[endpoint].events.push_back(event.into());
    }

    /// Several endpoints may listen at one address, as the reactors of one target do: they take turns.
    pub(super) fn next_listener(&mut self, address: Address) -> Option<usize> {
        let listens = |endpoint: &Endpoint| endpoint.address == address && endpoint.listening;
        let listening = self.endpoints.iter().enumerate().filter(|(_, endpoint)| listens(endpoint));
        let listening: Vec<_> = listening.map(|(index, _)| index).collect();
        self.connects += 1;
        listening.get(self.connects.checked_rem(listening.len())?).copied()
    }

    /// The handle stays taken until its owner has heard.
    pub(super) fn refuse(&mut self, endpoint: usize, qp: QpHandle, reason: RejectReason) {
        self.endpoints[endpoint].qps[usize::from(qp.0)] = REFUSED;
        self.tell(endpoint, connection_event(CmEvent::Refused { qp, reason }));
    }
}

pub(super) fn connection_event(event: CmEvent) -> Event {
    Event::Connection(Box::new(event))
}
