//! The verbs traits: what consumers post becomes work requests of adapters.
use std::io;
use std::mem::zeroed;
use std::net::{Ipv4Addr, SocketAddr};

use rdma_sys::{ibv_qp_init_attr, ibv_qp_type, ibv_sge, rdma_conn_param};

use super::adapter::Adapter;
use super::connection::{Connection, Full, Link, Outgoing, Phase, Receiving, as_it_lies};
use super::lending::Lending;
use super::provider::Ibv;
use super::queue_pair::{Posted, QueuePair};
use super::registration::Sinks;
use super::shared::{SharedReceives, Spill};
use crate::memory::Memory;
use crate::verbs::{
    Address, CmEvent, CmRequest, ConnectParameters, Connections, Event, Limits, QpHandle, Received,
    RejectReason, Remote, Sge, TargetVerbs, Token, Verbs, Wc, WcStatus,
};

/// Bytes of a response, which an adapter copies as it is posted, if it can.
const RESPONSE: u32 = 16;
/// Tries before a peer without receives, or one that does not answer, is given up: as often as there are. Of receives
/// that are not ready it means for ever.
const RETRIES: u8 = 7;
/// How long a peer waits before it sends again what has found no receive: 0.64 ms, of which a reactor makes many turns.
/// Unless told otherwise adapters have them wait for 655 ms (InfiniBand Architecture, table of RNR NAK timers).
const RETRY_PAUSE: u8 = 12;

impl Ibv {
    fn full(&self, qp: QpHandle) -> &Full {
        match &self.connections[usize::from(qp.0)].phase {
            Phase::Full(full) => full,
            _ => panic!("the queue pair is not connected yet"),
        }
    }

    fn full_mut(&mut self, qp: QpHandle) -> &mut Full {
        match &mut self.connections[usize::from(qp.0)].phase {
            Phase::Full(full) => full,
            _ => panic!("the queue pair is not connected yet"),
        }
    }

    /// The receives which connections of an adapter share; it is there as long as messages are lent in them.
    fn shared(&self, adapter: usize) -> &SharedReceives {
        self.adapters[adapter].shared().expect("a message has come")
    }

    /// A message is not needed any more which lies in a receive that is shared.
    fn give_back(&mut self, adapter: usize, buffer: u32) {
        self.adapters[adapter].give_back(buffer);
        self.drop_if_removed(adapter);
    }

    /// Posts by `act`, if the connection still goes by an adapter, and sees to what is not taken.
    pub(super) fn post(
        &mut self,
        qp: QpHandle,
        token: Token,
        act: impl FnOnce(&mut Link, &mut Lending, &mut Adapter, &Memory) -> io::Result<Posted>,
    ) {
        let Self { connections, adapters, memory, .. } = self;
        let Connection { phase, lending, .. } = &mut connections[usize::from(qp.0)];
        let link = match phase {
            Phase::Full(full) => full.link.as_mut(),
            _ => panic!("the queue pair is not connected yet"),
        };
        let posted = match link {
            Some(link) => {
                let adapter = &mut adapters[link.adapter];
                act(link, lending, adapter, memory)
            }
            None => Ok(Posted::Refused),
        };
        if matches!(posted, Ok(Posted::Taken)) {
            return;
        }
        if !matches!(posted, Ok(Posted::Partly)) {
            self.events.push_back(Event::Completed(Wc { qp, token, status: WcStatus::Flushed }));
        }
        let reason = posted.map_or_else(|error| error.to_string(), |_| "the adapter takes no work".into());
        self.end(qp, &reason);
    }

    /// Makes the queue pair, posts its receives and says yes.
    fn establish(
        &mut self,
        qp: QpHandle,
        parameters: ConnectParameters,
        private_data: &[u8],
    ) -> io::Result<()> {
        let number = self.adapter_of(qp)?;
        let adapter = &mut self.adapters[number];
        let connection = &mut self.connections[usize::from(qp.0)];
        let Phase::Asked { reads } = connection.phase else {
            unreachable!("a connect request is answered once")
        };
        let reads = parameters.reads.min(reads.into()).min(adapter.reads_out());
        let limits = Limits { send_queue: parameters.send_queue, reads };
        let full = furnish(connection, adapter, number, parameters, limits, TARGET)?;
        connection.phase = Phase::Full(Box::new(full));
        let mut answer = connection_parameters(private_data)?;
        answer.initiator_depth = u8::try_from(reads).unwrap_or(u8::MAX);
        connection.id.accept(&mut answer)?;
        if let Phase::Full(full) = &connection.phase
            && let Some(Receiving::Shared(_)) = &full.receives
            && let Err(error) = connection.id.set_retry_pause(RETRY_PAUSE)
        {
            tracing::debug!(peer = %connection.peer, %error, "an adapter chooses for itself how long its peer waits for a receive");
        }
        Ok(())
    }
}

/// What both ends of a connection say alike. The private data has to live as long as this.
pub(super) fn connection_parameters(private_data: &[u8]) -> io::Result<rdma_conn_param> {
    // SAFETY: numbers and pointers, for which zeroes are valid.
    let mut parameters: rdma_conn_param = unsafe { zeroed() };
    parameters.private_data = private_data.as_ptr().cast();
    parameters.private_data_len = u8::try_from(private_data.len()).map_err(io::Error::other)?;
    parameters.flow_control = 1;
    parameters.retry_count = RETRIES;
    parameters.rnr_retry_count = RETRIES;
    Ok(parameters)
}

/// What a role posts.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Bytes of a message that an adapter may copy as it is posted.
    message: u32,
    /// Pieces of a message.
    pieces: u32,
}

pub(super) const TARGET: Shape = Shape { message: RESPONSE, pieces: 1 };
/// Data may lie behind a command, which then is not copied.
pub(super) const HOST: Shape = Shape { message: 64, pieces: 2 };

/// What a connection has of its adapter: a queue pair, room for its completions, and receives, which are posted.
pub(super) fn furnish(
    connection: &mut Connection,
    adapter: &mut Adapter,
    number: usize,
    parameters: ConnectParameters,
    limits: Limits,
    shape: Shape,
) -> io::Result<Full> {
    let ConnectParameters { receives: count, receive_size, send_queue, .. } = parameters;
    let receives = adapter.receives(number, count, receive_size)?;
    let own = receives.own(count);
    let reserved = match adapter.reserve(send_queue + u32::from(own)) {
        Ok(reserved) => reserved,
        Err(error) => {
            adapter.forgo(&receives, None);
            return Err(error);
        }
    };
    // SAFETY: numbers and pointers, for which zeroes are valid.
    let mut wish: ibv_qp_init_attr = unsafe { zeroed() };
    wish.send_cq = adapter.queue(&reserved);
    wish.recv_cq = wish.send_cq;
    wish.qp_type = ibv_qp_type::IBV_QPT_RC;
    wish.cap.max_send_wr = send_queue;
    wish.cap.max_send_sge = shape.pieces;
    match (&receives, adapter.shared()) {
        (Receiving::Shared(_), Some(shared)) => wish.srq = shared.handle(),
        _ => (wish.cap.max_recv_wr, wish.cap.max_recv_sge) = (own.into(), 1),
    }
    let made = adapter.queue_pair(&mut connection.id, wish, shape.message).and_then(|(pointer, inline)| {
        // SAFETY: just made, and destroyed after this value.
        let queue = unsafe { QueuePair::new(pointer, connection.owner, inline, send_queue as usize) };
        match &receives {
            Receiving::Own(buffers) => {
                for (buffer, _) in buffers.receives.all() {
                    queue
                        .post_receive(buffer, buffers.piece(buffer))
                        .map_err(io::Error::from_raw_os_error)?;
                }
            }
            Receiving::Shared(_) => adapter.enrol(queue.number(), connection.owner),
        }
        let slots = u16::try_from(send_queue).unwrap_or(u16::MAX);
        let outgoing = || -> io::Result<Outgoing> {
            Ok(Outgoing { buffers: adapter.buffers(slots, shape.message)?, count: slots.into(), next: 0 })
        };
        let outgoing = if inline && shape.pieces == 1 { None } else { Some(outgoing()?) };
        Ok((queue, outgoing))
    });
    match made {
        Ok((queue, outgoing)) => {
            adapter.connections += 1;
            let sinks = Sinks::new(limits.reads);
            let link = Link { queue, adapter: number, reserved, outgoing, sinks };
            Ok(Full { link: Some(link), receives: Some(receives), ended: false, ..Full::broken(limits) })
        }
        Err(error) => {
            let qp_num = connection.id.queue_pair_number();
            connection.id.destroy_queue_pair();
            adapter.forgo(&receives, qp_num);
            adapter.release(reserved);
            Err(error)
        }
    }
}

impl Verbs for Ibv {
    fn limits(&self, qp: QpHandle) -> Limits {
        self.full(qp).limits
    }

    fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn message(&self, received: &Received) -> &[u8] {
        let Received { buffer, length, .. } = *received;
        match self.full(received.qp).receives.as_ref().expect("a message has come") {
            Receiving::Own(buffers) => buffers.receives.bytes(buffer, length),
            Receiving::Shared(share) => match Spill::number(buffer) {
                Some(place) => share.spill.bytes(place, length),
                None => self.shared(share.adapter).bytes(buffer, length),
            },
        }
    }

    fn message_sge(&self, received: &Received, offset: u32) -> Sge {
        let buffer = match self.full(received.qp).receives.as_ref().expect("a message has come") {
            Receiving::Own(buffers) => buffers.receives.buffer(received.buffer),
            Receiving::Shared(share) => match Spill::number(received.buffer) {
                Some(place) => share.spill.buffer(place),
                None => self.shared(share.adapter).buffer(received.buffer),
            },
        };
        buffer.slice(0, received.length).slice(offset, received.length - offset)
    }

    fn repost(&mut self, received: Received) {
        let full = self.full_mut(received.qp);
        full.lent -= 1;
        let posted = match (&full.link, &mut full.receives) {
            (_, Some(Receiving::Shared(share))) => {
                let number = share.adapter;
                match Spill::number(received.buffer) {
                    Some(place) => share.spill.give_back(place),
                    None => self.give_back(number, received.buffer),
                }
                Ok(())
            }
            (Some(link), Some(Receiving::Own(buffers))) => {
                link.queue.post_receive(received.buffer, buffers.piece(received.buffer))
            }
            _ => Ok(()),
        };
        if let Err(error) = posted {
            let error = io::Error::from_raw_os_error(error);
            self.end(received.qp, &format!("the adapter takes no receive: {error}"));
        }
    }
}

impl TargetVerbs for Ibv {
    fn post_fetch(&mut self, qp: QpHandle, token: Token, from: Remote, into: Sge) {
        self.post(qp, token, |link, _, adapter, _| {
            let Some(sink) = adapter.sink(into)? else {
                return Ok(link.queue.post_fetch(token, from, adapter.piece(into)?));
            };
            let piece = sink.piece(into).expect("registered for it");
            let posted = link.queue.post_fetch(token, from, piece);
            if posted != Posted::Refused {
                link.sinks.lend(token, sink);
            }
            Ok(posted)
        });
    }

    fn post_respond(
        &mut self,
        qp: QpHandle,
        token: Token,
        data: Option<(Sge, Remote)>,
        response: &[u8; 16],
        invalidate: Option<u32>,
    ) {
        self.post(qp, token, |link, _, adapter, memory| {
            let data = data.map(|(from, to)| adapter.piece(from).map(|piece| (piece, to))).transpose()?;
            let piece = outgoing(link, memory, response);
            Ok(link.queue.post_respond(token, data, piece, invalidate))
        });
    }
}

/// A short message as it is posted: from where it lies, or from memory that the adapter can reach.
fn outgoing(link: &mut Link, memory: &Memory, message: &[u8]) -> ibv_sge {
    link.outgoing.as_mut().map_or_else(|| as_it_lies(message), |outgoing| outgoing.hold(memory, message))
}

impl Connections for Ibv {
    fn accept(&mut self, request: CmRequest, parameters: ConnectParameters, private_data: &[u8]) {
        let qp = request.qp;
        let Err(error) = self.establish(qp, parameters, private_data) else { return };
        let limits = Limits { send_queue: parameters.send_queue, reads: 0 };
        let connection = &mut self.connections[usize::from(qp.0)];
        connection.destroy_queue_pair();
        match &mut connection.phase {
            Phase::Full(full) => full.ended = true,
            asked => *asked = Phase::Full(Box::new(Full::broken(limits))),
        }
        self.unlink(qp);
        self.tell(CmEvent::Disconnected { qp, reason: format!("it cannot be accepted: {error}") });
    }

    fn reject(&mut self, request: CmRequest, private_data: &[u8]) {
        let connection = self.connections.remove(usize::from(request.qp.0));
        if let Err(error) = connection.id.reject(private_data) {
            tracing::debug!(peer = %connection.peer, %error, "a rejection was not sent");
        }
    }

    fn connect(&mut self, to: Address, parameters: ConnectParameters, private_data: &[u8]) -> QpHandle {
        // No adapter leads to a socket of this machine, and nobody answers at an address that is none.
        let to = to.socket().unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        self.dial(to, parameters, private_data.try_into().expect("private data is short"))
    }

    fn disconnect(&mut self, qp: QpHandle) {
        let connection = self.connections.get(usize::from(qp.0));
        if connection.is_some_and(|connection| matches!(connection.phase, Phase::Dialing(_))) {
            return self.refuse(qp, RejectReason::Unreachable("given up by ourselves".into()));
        }
        self.end(qp, "closed by ourselves");
    }

    fn catch_up(&mut self, qp: QpHandle) {
        let Self { connections, adapters, .. } = self;
        let Phase::Full(full) = &mut connections[usize::from(qp.0)].phase else { return };
        full.catching_up = full.link.as_ref().map(|link| adapters[link.adapter].emptied(&link.reserved));
    }

    fn has_caught_up(&self, qp: QpHandle) -> bool {
        let full = self.full(qp);
        match (&full.link, full.catching_up) {
            (Some(link), Some(then)) => self.adapters[link.adapter].emptied(&link.reserved) > then,
            _ => true,
        }
    }

    fn destroy(&mut self, qp: QpHandle) {
        let full = self.full(qp);
        assert!(full.ended, "destroyed before it was disconnected");
        assert_eq!(full.lent, 0, "destroyed with messages still lent");
        self.destroy_queue_pair(qp);
        self.connections.remove(usize::from(qp.0));
    }
}
