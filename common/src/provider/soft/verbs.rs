//! The verbs traits: what consumers post becomes work for the streams.
use std::rc::Rc;

use arrayvec::ArrayVec;

use super::connection::{Full, Phase};
use super::{Soft, Wire, pump};
use crate::iwarp::{HEAD_MAX, StagSlot, Work};
use crate::memory::Memory;
use crate::verbs::{
    Access, Address, CmRequest, ConnectParameters, Connections, Event, Exposure, HostVerbs, Limits, MrHandle,
    PrivateData, QpHandle, Received, Registration, RejectReason, Remote, Sge, TargetVerbs, Token, Verbs,
};

/// More than a socket's receive buffer holds: whoever has received so much has received all that was there.
const RECEIVE_BUFFER_MAX: usize = 64 << 20;

impl<W: Wire> Soft<W> {
    fn stream_of(&self, qp: QpHandle) -> &Full {
        match &self.connections.get(qp).phase {
            Phase::Full(full) => full,
            _ => panic!("the queue pair is not connected yet"),
        }
    }

    fn stream_of_mut(&mut self, qp: QpHandle) -> &mut Full {
        match &mut self.connections.get_mut(qp).phase {
            Phase::Full(full) => full,
            _ => panic!("the queue pair is not connected yet"),
        }
    }

    fn post(&mut self, qp: QpHandle, works: impl IntoIterator<Item = Work>) {
        let full = self.stream_of_mut(qp);
        for work in works {
            full.stream.post(work);
        }
        if full.stream.fault().is_some() {
            let Phase::Full(full) = &mut self.connections.get_mut(qp).phase else { return };
            pump::drain(qp, full, &mut self.events);
            return;
        }
        self.soil(qp);
    }
}

impl<W: Wire> Verbs for Soft<W> {
    fn limits(&self, qp: QpHandle) -> Limits {
        let full = self.stream_of(qp);
        Limits { send_queue: full.send_queue, reads: full.stream.terms().ord.into() }
    }

    fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn message(&self, received: &Received) -> &[u8] {
        self.stream_of(received.qp).receives.bytes(received.buffer, received.length)
    }

    fn message_sge(&self, received: &Received, offset: u32) -> Sge {
        let buffer = self.stream_of(received.qp).receives.buffer(received.buffer);
        buffer.slice(0, received.length).slice(offset, received.length - offset)
    }

    fn repost(&mut self, received: Received) {
        let full = self.stream_of_mut(received.qp);
        full.receives.lent -= 1;
        let buffer = full.receives.buffer(received.buffer);
        full.stream.post_receive(received.buffer, buffer);
    }
}

impl<W: Wire> TargetVerbs for Soft<W> {
    fn post_fetch(&mut self, qp: QpHandle, token: Token, from: Remote, into: Sge) {
        self.post(qp, [Work::Read { token, from, into }]);
    }

    fn post_respond(
        &mut self,
        qp: QpHandle,
        token: Token,
        data: Option<(Sge, Remote)>,
        response: &[u8; 16],
        invalidate: Option<u32>,
    ) {
        let write = data.map(|(from, to)| Work::Write { from, to });
        let head = head(response);
        let send = Work::Send { token, head, data: None, invalidate, solicited: false };
        self.post(qp, write.into_iter().chain([send]));
    }
}

impl<W: Wire> HostVerbs for Soft<W> {
    fn allocate_mr(&mut self, qp: QpHandle) -> MrHandle {
        MrHandle(self.connections.get_mut(qp).allocate_region())
    }

    fn prepare(&mut self, qp: QpHandle, mr: MrHandle, sge: Sge, access: Access) -> Exposure {
        let registration = self.memory.lends(sge.lkey, self.settings.registration);
        let memory = Rc::clone(&self.memory);
        let full = self.stream_of_mut(qp);
        let remote = match registration {
            Registration::Window => full.stream.prepare(full.slot(mr), sge),
            Registration::Pool => full.lasting(sge, &memory),
            Registration::Dynamic => {
                let slot = full.slot(mr);
                let remote = full.stream.prepare(slot, sge);
                full.stream.expose(slot, remote, sge, Some(access));
                remote
            }
        };
        Exposure { mr, sge, access, remote, registration }
    }

    fn post_command(
        &mut self,
        qp: QpHandle,
        token: Token,
        command: &[u8; 64],
        data: Option<Sge>,
        expose: Option<Exposure>,
    ) {
        let bound = expose.filter(|exposure| exposure.registration.is_work());
        let register = bound.map(|Exposure { mr, sge, access, remote, .. }| Work::Register {
            slot: self.stream_of(qp).slot(mr),
            remote,
            memory: sge,
            access,
        });
        let head = head(command);
        let send = Work::Send { token, head, data, invalidate: None, solicited: false };
        self.post(qp, register.into_iter().chain([send]));
    }

    fn post_invalidate(&mut self, qp: QpHandle, token: Token, key: u32) {
        self.post(qp, [Work::Invalidate { token, key }]);
    }
}

impl Full {
    fn slot(&self, mr: MrHandle) -> StagSlot {
        assert!(mr.0 < self.regions, "no such memory region");
        StagSlot::from_number(self.first_region + mr.0)
    }

    /// As what the peer reaches `sge`, whose region it may reach from now on if it might not before.
    fn lasting(&mut self, sge: Sge, memory: &Memory) -> Remote {
        let known = self.lasting.iter().find(|(whole, _)| whole.lkey == sge.lkey);
        let (whole, remote) = known.copied().unwrap_or_else(|| {
            let (slot, whole) = (self.stream.allocate(), memory.whole(sge.lkey));
            let remote = self.stream.prepare(slot, whole);
            self.stream.expose(slot, remote, whole, None);
            self.lasting.push((whole, remote));
            (whole, remote)
        });
        Remote { address: remote.address + (sge.address - whole.address), ..remote }
    }
}

impl<W: Wire> Connections for Soft<W> {
    fn accept(&mut self, request: CmRequest, parameters: ConnectParameters, private_data: &[u8]) {
        self.answer_yes(request.qp, parameters, private(private_data));
    }

    fn reject(&mut self, request: CmRequest, private_data: &[u8]) {
        self.answer_no(request.qp, private(private_data));
    }

    fn connect(&mut self, to: Address, parameters: ConnectParameters, private_data: &[u8]) -> QpHandle {
        self.start_connect(to, parameters, private(private_data))
    }

    fn disconnect(&mut self, qp: QpHandle) {
        // A connect of ours may have failed without the consumer having been told yet.
        let Some(connection) = self.connections.find(qp) else { return };
        match connection.phase {
            Phase::Dialing(_) | Phase::Requesting { .. } => {
                self.refuse(qp, RejectReason::Unreachable("given up by ourselves".into()));
            }
            Phase::Awaiting { .. } | Phase::Asked(_) => panic!("a connect request has to be answered"),
            Phase::Full(_) => {
                self.send(qp);
                self.end(qp, "closed by ourselves".into(), false);
            }
        }
    }

    fn catch_up(&mut self, qp: QpHandle) {
        let Some(connection) = self.connections.find(qp) else { return };
        if let Phase::Full(full) = &mut connection.phase {
            full.behind = Some(RECEIVE_BUFFER_MAX);
            self.heat(qp);
        }
    }

    fn has_caught_up(&self, qp: QpHandle) -> bool {
        let connection = self.connections.get(qp);
        match &connection.phase {
            Phase::Full(full) if connection.wire.is_some() => full.behind.is_none(),
            _ => true,
        }
    }

    fn destroy(&mut self, qp: QpHandle) {
        if let Phase::Full(full) = &self.connections.get(qp).phase {
            assert!(full.stream.fault().is_some(), "destroyed before it was disconnected");
            assert_eq!(full.receives.lent, 0, "destroyed with messages still lent");
        }
        drop(self.connections.remove(qp));
    }
}

fn head(bytes: &[u8]) -> ArrayVec<u8, HEAD_MAX> {
    bytes.try_into().expect("responses and commands are short")
}

fn private(bytes: &[u8]) -> PrivateData {
    bytes.try_into().expect("private data is short")
}
