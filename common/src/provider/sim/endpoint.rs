//! One endpoint of the simulated fabric, behind the same traits as a real provider.
use std::collections::BTreeMap;

use super::Network;
use super::connection::{Connection, End, MESSAGE_OFFSET, Region, STRIDE, Work};
use super::network::{REFUSED, State, connection_event};
use crate::memory;
use crate::verbs::{
    Access, Address, CmEvent, CmRequest, ConnectParameters, Connections, Event, Exposure, HostVerbs, Limits,
    MrHandle, QpHandle, Received, Registration, RejectReason, Remote, Sge, TargetVerbs, Token, Verbs,
};

/// What one reactor of a simulated world holds.
#[derive(Debug)]
pub struct SimProvider {
    network: Network,
    me: usize,
    /// Bytes of the messages lent out, by queue pair and buffer.
    lent: BTreeMap<(QpHandle, u32), Vec<u8>>,
    registration: Registration,
}

impl SimProvider {
    pub(super) fn new(network: Network, me: usize) -> Self {
        Self { network, me, lent: BTreeMap::new(), registration: Registration::default() }
    }

    /// How buffers are lent to peers from now on.
    pub fn set_registration(&mut self, registration: Registration) {
        self.registration = registration;
    }

    /// Whether a peer reaches any of a region of ours.
    #[must_use]
    pub fn exposes(&self, lkey: u32) -> bool {
        let state = self.network.state.borrow();
        let standing = state.connections.iter().filter(|(_, connection)| !connection.broken);
        let mut ours = standing.flat_map(|(_, one)| &one.ends).filter(|end| end.endpoint == self.me);
        ours.any(|end| end.exposes(lkey))
    }

    /// Queue pairs not destroyed yet.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        self.network.state.borrow().endpoints[self.me].qps.len()
    }

    fn with<R>(&self, qp: QpHandle, act: impl FnOnce(&mut State, usize, usize) -> R) -> R {
        let mut state = self.network.state.borrow_mut();
        let (id, side) = state.endpoints[self.me].qps[usize::from(qp.0)];
        act(&mut state, id, side)
    }

    fn post(&mut self, qp: QpHandle, works: impl IntoIterator<Item = Work>, cost: u32) {
        self.with(qp, |state, id, side| {
            let connection = &mut state.connections[id];
            let end = &mut connection.ends[side];
            end.used += cost;
            let depth = end.parameters.map_or(0, |parameters| parameters.send_queue);
            assert!(end.used <= depth, "send queue overrun: {} of {depth}", end.used);
            end.queue.extend(works);
            if connection.broken {
                end.flush();
            }
        });
    }
}

impl Verbs for SimProvider {
    fn limits(&self, qp: QpHandle) -> Limits {
        self.with(qp, |state, id, side| {
            let end = &state.connections[id].ends[side];
            let send_queue = end.parameters.map_or(0, |parameters| parameters.send_queue);
            Limits { send_queue, reads: end.reads }
        })
    }

    fn poll(&mut self) -> Option<Event> {
        let endpoint = &mut self.network.state.borrow_mut().endpoints[self.me];
        let told = endpoint.events.pop_front()?;
        if let Some(qp) = told.refused() {
            endpoint.qps.remove(usize::from(qp.0));
        }
        if let Event::Received(received) = &told.event {
            self.lent.insert((received.qp, received.buffer), told.bytes);
        }
        Some(told.event)
    }

    fn message(&self, received: &Received) -> &[u8] {
        &self.lent[&(received.qp, received.buffer)]
    }

    fn message_sge(&self, received: &Received, offset: u32) -> Sge {
        assert!(offset <= received.length, "beyond the message");
        self.with(received.qp, |state, id, side| {
            let end = &state.connections[id].ends[side];
            let lkey = end.receive_lkey.expect("a message came, so there are receive buffers");
            let start = received.buffer * STRIDE + MESSAGE_OFFSET + offset;
            state.endpoints[end.endpoint].memory.sge(lkey, start.into(), received.length - offset)
        })
    }

    fn repost(&mut self, received: Received) {
        self.lent.remove(&(received.qp, received.buffer));
        self.with(received.qp, |state, id, side| {
            let connection = &mut state.connections[id];
            let end = &mut connection.ends[side];
            end.lent -= 1;
            if !connection.broken {
                end.receives.push_back(received.buffer);
            }
        });
    }
}

impl TargetVerbs for SimProvider {
    fn post_fetch(&mut self, qp: QpHandle, token: Token, from: Remote, into: Sge) {
        self.post(qp, [Work::Read { token, from, into }], 1);
    }

    fn post_respond(
        &mut self,
        qp: QpHandle,
        token: Token,
        data: Option<(Sge, Remote)>,
        response: &[u8; 16],
        invalidate: Option<u32>,
    ) {
        let cost = 1 + u32::from(data.is_some());
        let write = data.map(|(from, to)| Work::Write { from, to });
        let send = Work::Send { token, head: response.to_vec(), data: None, invalidate, cost };
        self.post(qp, write.into_iter().chain([send]), cost);
    }
}

impl HostVerbs for SimProvider {
    fn allocate_mr(&mut self, qp: QpHandle) -> MrHandle {
        self.with(qp, |state, id, side| {
            let regions = &mut state.connections[id].ends[side].regions;
            let index = u16::try_from(regions.len()).expect("regions are few");
            regions.push(Region { key: u32::from(index + 1) << 8, exposed: None });
            MrHandle(index)
        })
    }

    fn prepare(&mut self, qp: QpHandle, mr: MrHandle, sge: Sge, access: Access) -> Exposure {
        let registration = self.registration;
        self.with(qp, |state, id, side| {
            let end = &mut state.connections[id].ends[side];
            let registration = state.endpoints[end.endpoint].memory.lends(sge.lkey, registration);
            if registration == Registration::Pool {
                let whole = state.endpoints[end.endpoint].memory.whole(sge.lkey);
                let remote = end.lasting(whole, mr);
                let address = remote.address + (sge.address - whole.address);
                return Exposure { mr, sge, access, remote: Remote { address, ..remote }, registration };
            }
            let region = &mut end.regions[usize::from(mr.0)];
            region.key = (region.key & !0xff) | (region.key.wrapping_add(1) & 0xff);
            // Not the true address: nobody may rely on it being one.
            let remote = Remote { address: u64::from(region.key) << 20, rkey: region.key };
            let exposure = Exposure { mr, sge, access, remote, registration };
            if registration == Registration::Dynamic {
                region.expose(exposure);
            }
            exposure
        })
    }

    fn post_command(
        &mut self,
        qp: QpHandle,
        token: Token,
        command: &[u8; 64],
        data: Option<Sge>,
        expose: Option<Exposure>,
    ) {
        let cost = 1 + u32::from(expose.is_some());
        let send = Work::Send { token, head: command.to_vec(), data, invalidate: None, cost };
        let bound = expose.filter(|exposure| exposure.registration.is_work());
        self.post(qp, bound.map(Work::Register).into_iter().chain([send]), cost);
    }

    fn post_invalidate(&mut self, qp: QpHandle, token: Token, key: u32) {
        self.post(qp, [Work::Invalidate { token, key }], 1);
    }
}

/// The process is gone: its peers find their connections broken, and nobody listens.
impl Drop for SimProvider {
    fn drop(&mut self) {
        let mut state = self.network.state.borrow_mut();
        let state = &mut *state;
        let endpoint = &mut state.endpoints[self.me];
        endpoint.listening = false;
        endpoint.dead = true;
        endpoint.events.clear();
        let qps: Vec<_> = endpoint.qps.drain().collect();
        for (id, side) in qps.into_iter().filter(|&qp| qp != REFUSED) {
            state.break_connection(id);
            let ends = &mut state.connections[id].ends;
            ends[side].destroyed = true;
            ends[side].pending.clear();
            if ends.iter().all(|end| end.destroyed) {
                state.connections.remove(id);
            }
        }
    }
}

impl SimProvider {
    fn open_end(state: &mut State, id: usize, side: usize, parameters: ConnectParameters) {
        let peer_ird = state.endpoints[state.connections[id].ends[1 - side].endpoint].ird;
        let endpoint = state.connections[id].ends[side].endpoint;
        let length = STRIDE as usize * usize::from(parameters.receives);
        let region = memory::Region::new(length).expect("a simulated world is small");
        let lkey = state.endpoints[endpoint].memory.register(region);
        let end = &mut state.connections[id].ends[side];
        end.parameters = Some(parameters);
        end.reads = parameters.reads.min(peer_ird);
        end.receives = (0..u32::from(parameters.receives)).collect();
        end.receive_lkey = Some(lkey);
    }
}

impl Connections for SimProvider {
    fn accept(&mut self, request: CmRequest, parameters: ConnectParameters, private_data: &[u8]) {
        let private_data = private_data.try_into().expect("private data is short");
        self.with(request.qp, |state, id, side| {
            Self::open_end(state, id, side, parameters);
            state.connections[id].open = true;
            let peer = &state.connections[id].ends[1 - side];
            if !peer.destroyed {
                let (endpoint, qp) = (peer.endpoint, peer.qp);
                state.tell(endpoint, connection_event(CmEvent::Established { qp, private_data }));
            }
        });
    }

    fn reject(&mut self, request: CmRequest, private_data: &[u8]) {
        let reason = RejectReason::Rejected(private_data.try_into().expect("private data is short"));
        self.with(request.qp, |state, id, side| {
            let own = &state.connections[id].ends[side];
            state.endpoints[own.endpoint].qps.remove(usize::from(own.qp.0));
            if state.connections[id].broken {
                // The asking side has given up, and hears of its end by the break.
                state.connections[id].ends[side].destroyed = true;
                if state.connections[id].ends[1 - side].destroyed {
                    state.connections.remove(id);
                }
                return;
            }
            let connection = state.connections.remove(id);
            let peer = &connection.ends[1 - side];
            let lkey = peer.receive_lkey.expect("the asking end posted its receives");
            drop(state.endpoints[peer.endpoint].memory.unregister(lkey));
            state.refuse(peer.endpoint, peer.qp, reason);
        });
    }

    fn connect(&mut self, to: Address, parameters: ConnectParameters, private_data: &[u8]) -> QpHandle {
        let mut state = self.network.state.borrow_mut();
        let state = &mut *state;
        let id = state.connections.vacant_key();
        let handle = |key: usize| QpHandle(u16::try_from(key).expect("queue pairs are few"));
        let own = handle(state.endpoints[self.me].qps.insert((id, 0)));
        let Some(peer) = state.next_listener(to) else {
            let reason = RejectReason::Unreachable(format!("nobody listens at {to}"));
            state.refuse(self.me, own, reason);
            return own;
        };
        let qp = handle(state.endpoints[peer].qps.insert((id, 1)));
        let ends = [End::new(self.me, own), End::new(peer, qp)];
        state.connections.insert(Connection { ends, open: false, broken: false });
        Self::open_end(state, id, 0, parameters);
        let request = CmRequest {
            qp,
            peer: state.endpoints[self.me].address,
            local: to,
            private_data: private_data.try_into().expect("private data is short"),
            reads: state.endpoints[self.me].ird,
        };
        state.tell(peer, connection_event(CmEvent::Request(request)));
        own
    }

    fn disconnect(&mut self, qp: QpHandle) {
        self.with(qp, |state, id, side| {
            if (id, side) != REFUSED {
                state.break_connection(id);
            }
        });
    }

    fn destroy(&mut self, qp: QpHandle) {
        self.with(qp, |state, id, side| {
            let end = &mut state.connections[id].ends[side];
            assert!(end.is_idle() && end.lent == 0, "destroyed with work in flight: {end:?}");
            end.destroyed = true;
            let (endpoint, lkey) = (end.endpoint, end.receive_lkey.take());
            state.endpoints[endpoint].qps.remove(usize::from(qp.0));
            // Nothing is said any more of a queue pair which is gone.
            state.endpoints[endpoint].events.retain(|told| !told.is_about(qp));
            if let Some(lkey) = lkey {
                drop(state.endpoints[endpoint].memory.unregister(lkey));
            }
            state.break_connection(id);
            if state.connections[id].ends.iter().all(|end| end.destroyed) {
                state.connections.remove(id);
            }
        });
    }
}

#[cfg(test)]
mod tests;
