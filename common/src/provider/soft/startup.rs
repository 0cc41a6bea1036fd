//! From a bare wire to full operation: dialling, the MPA frames, and what the consumer has to say to them.
use std::io;
use std::time::Duration;

use super::connection::{Connection, Full, Inbox, NO_HANDLE, Phase, Wish};
use super::{NOWHERE, NUDGE_INTERVAL, Soft, Wire};
use crate::iwarp::mpa::{Frame, FrameError, FrameKind, Initiator, Offer, Parsed, Refusal, Responder, Terms};
use crate::iwarp::{Config, Outgoing, Role, Stream, ULPDU_MIN};
use crate::memory::Memory;
use crate::provider::receives::Receives;
use crate::verbs::{Address, CmEvent, CmRequest, ConnectParameters, PrivateData, QpHandle, RejectReason};

/// How long the peer has for its MPA Request.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// How long the peer has for the TCP connection and its MPA Reply.
const REPLY_PATIENCE: Duration = Duration::from_secs(10);

/// Why a start-up failed.
#[derive(Debug, thiserror::Error)]
enum StartupError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Refusal(#[from] Refusal),
    #[error("the peer closed the connection")]
    Closed,
}

impl From<StartupError> for RejectReason {
    fn from(error: StartupError) -> Self {
        match error {
            StartupError::Refusal(Refusal::Rejected(private_data)) => Self::Rejected(*private_data),
            StartupError::Refusal(Refusal::Crc) => Self::CrcRequired,
            StartupError::Refusal(refusal) => Self::Protocol(refusal.to_string()),
            StartupError::Frame(error) => Self::Protocol(error.to_string()),
            StartupError::Io(error) => Self::Unreachable(error.to_string()),
            StartupError::Closed => Self::Unreachable(StartupError::Closed.to_string()),
        }
    }
}

impl<W: Wire> Soft<W> {
    /// Takes a connection which was just accepted, and awaits the peer's MPA Request. A
    /// [`CmEvent::Request`] follows, or nothing if the peer does not speak the protocol or no handle is free.
    pub fn adopt(&mut self, wire: W, peer: Address, local: Address) {
        if !self.connections.has_room() {
            let most = self.connections.most;
            return tracing::warn!(%peer, "connection refused: {most} are all that one reactor serves");
        }
        let phase = Phase::Awaiting { inbox: Box::default(), deadline: None };
        self.insert(Connection::new(Some(wire), peer, local, phase));
    }

    pub(super) fn start_connect(
        &mut self,
        to: Address,
        parameters: ConnectParameters,
        private_data: PrivateData,
    ) -> QpHandle {
        if !self.connections.has_room() {
            let most = self.connections.most;
            let reason = format!("{most} connections are all that one reactor has");
            tracing::warn!(%to, "{reason}");
            self.tell(CmEvent::Refused { qp: NO_HANDLE, reason: RejectReason::Unreachable(reason) });
            return NO_HANDLE;
        }
        let phase = Phase::Dialing(Box::new(Wish { parameters, private_data, deadline: None, regions: 0 }));
        match self.dialer.dial(to) {
            Ok(wire) => self.insert(Connection::new(Some(wire), to, NOWHERE, phase)),
            Err(error) => {
                let qp = self.insert(Connection::new(None, to, NOWHERE, phase));
                self.refuse(qp, RejectReason::Unreachable(error.to_string()));
                qp
            }
        }
    }

    /// One step of a connection before full operation; says whether anything moved.
    pub(super) fn advance_startup(&mut self, qp: QpHandle) -> bool {
        let now = self.now;
        let connection = self.connections.get_mut(qp);
        match &mut connection.phase {
            Phase::Dialing(wish) => drop(wish.deadline.get_or_insert(now + REPLY_PATIENCE)),
            Phase::Awaiting { deadline, .. } => drop(deadline.get_or_insert(now + REQUEST_PATIENCE)),
            _ => {}
        }
        let moved = match &connection.phase {
            Phase::Dialing(_) => self.advance_dialing(qp),
            Phase::Requesting { .. } => self.advance_requesting(qp),
            Phase::Awaiting { .. } => {
                return self.advance_awaiting(qp).unwrap_or_else(|error| {
                    self.forget(qp, &error);
                    true
                });
            }
            Phase::Asked(_) | Phase::Full(_) => Ok(false),
        };
        moved.unwrap_or_else(|error| {
            self.refuse(qp, error.into());
            true
        })
    }

    fn advance_dialing(&mut self, qp: QpHandle) -> Result<bool, StartupError> {
        let connection = self.connections.get_mut(qp);
        let Some(wire) = &mut connection.wire else { return Ok(false) };
        if !wire.established()? {
            return Ok(false);
        }
        let Phase::Dialing(wish) = &connection.phase else { return Ok(false) };
        let offer = self.settings.offer(wish.parameters.reads, wire.stays_on_machine());
        let initiator = Initiator::new(offer);
        let frame = initiator.request(wish.private_data.clone());
        let request = Outgoing::of_frame(&frame.to_bytes());
        let wish = wish.clone();
        connection.phase = Phase::Requesting { wish, initiator, request, inbox: Box::default() };
        self.advance_requesting(qp)?;
        Ok(true)
    }

    fn advance_requesting(&mut self, qp: QpHandle) -> Result<bool, StartupError> {
        let connection = self.connections.get_mut(qp);
        let (Phase::Requesting { request, inbox, initiator, .. }, Some(wire)) =
            (&mut connection.phase, &mut connection.wire)
        else {
            return Ok(false);
        };
        let mut moved = false;
        while !request.is_empty() {
            match wire.send(&self.memory, request) {
                Ok(sent) => request.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(moved),
                Err(error) => return Err(error.into()),
            }
            moved = true;
        }
        let Some(reply) = receive_frame(wire, inbox, FrameKind::Reply, &self.memory)? else {
            return Ok(moved);
        };
        match initiator.agree(&reply) {
            Ok(terms) => self.establish(qp, terms, reply.private_data)?,
            Err(refusal) => {
                self.tell_refusal(qp, &refusal);
                return Err(refusal.into());
            }
        }
        Ok(true)
    }

    /// Lets the peer know by a Terminate why its Reply will not do.
    fn tell_refusal(&mut self, qp: QpHandle, refusal: &Refusal) {
        let wire = self.connections.get_mut(qp).wire.take();
        if let (Some(reason), Some(wire)) = (refusal.reason(), wire) {
            self.linger(wire, Outgoing::of_frame(&reason.fpdu(None, self.settings.crc)));
        }
    }

    fn establish(
        &mut self,
        qp: QpHandle,
        terms: Terms,
        private_data: PrivateData,
    ) -> Result<(), StartupError> {
        let Phase::Requesting { wish, .. } = &self.connections.get(qp).phase else { return Ok(()) };
        let (parameters, regions) = (wish.parameters, wish.regions);
        let receives = Receives::new(&self.memory, parameters.receives, parameters.receive_size)?;
        let mut full = self.full(qp, Role::Initiator, terms, parameters, receives);
        full.nudge_at = Some(self.now + NUDGE_INTERVAL);
        let connection = self.connections.get_mut(qp);
        connection.phase = Phase::Full(full);
        for _ in 0..regions {
            connection.allocate_region();
        }
        self.tell(CmEvent::Established { qp, private_data });
        self.soil(qp);
        Ok(())
    }

    fn full(
        &mut self,
        qp: QpHandle,
        role: Role,
        terms: Terms,
        parameters: ConnectParameters,
        receives: Receives,
    ) -> Box<Full> {
        let segment = self.connections.get(qp).wire.as_ref().and_then(Wire::segment_size);
        self.streams += 1;
        let stream = Stream::new(Config {
            role,
            terms,
            ulpdu_max: self.settings.ulpdu_max.unwrap_or_else(|| ulpdu_max(segment)).max(ULPDU_MIN),
            receives: parameters.receives,
            send_queue: parameters.send_queue,
            seed: scatter(self.settings.seed ^ self.streams),
        });
        let depth = usize::from(parameters.receives) + 2 * parameters.send_queue as usize;
        self.events.reserve(depth);
        self.spares.join();
        Box::new(Full::new(stream, receives, parameters.send_queue, self.now))
    }

    fn advance_awaiting(&mut self, qp: QpHandle) -> Result<bool, StartupError> {
        let connection = self.connections.get_mut(qp);
        let (Phase::Awaiting { inbox, .. }, Some(wire)) = (&mut connection.phase, &mut connection.wire)
        else {
            return Ok(false);
        };
        let before = inbox.len();
        let Some(request) = receive_frame(wire, inbox, FrameKind::Request, &self.memory)? else {
            return Ok(inbox.len() > before);
        };
        match Responder::new(*request) {
            Ok(responder) => {
                let request = CmRequest {
                    qp,
                    peer: connection.peer,
                    local: connection.local,
                    private_data: responder.private_data().clone(),
                    reads: responder.reads().into(),
                };
                connection.phase = Phase::Asked(Box::new(responder));
                self.tell(CmEvent::Request(request));
            }
            Err(reply) => {
                if let Some(wire) = connection.wire.take() {
                    self.linger(wire, Outgoing::of_frame(&reply.to_bytes()));
                }
                self.forget(qp, &Refusal::Markers);
            }
        }
        Ok(true)
    }

    pub(super) fn answer_yes(
        &mut self,
        qp: QpHandle,
        parameters: ConnectParameters,
        private_data: PrivateData,
    ) {
        let connection = self.connections.get(qp);
        let Phase::Asked(responder) = &connection.phase else {
            unreachable!("a connect request is answered once");
        };
        let stays_on_machine = connection.wire.as_ref().is_some_and(Wire::stays_on_machine);
        let offer = self.settings.offer(parameters.reads, stays_on_machine);
        let (reply, terms) = responder.accept(offer, private_data);
        let (receives, error) =
            match Receives::new(&self.memory, parameters.receives, parameters.receive_size) {
                Ok(receives) => (receives, None),
                Err(error) => (Receives::none(), Some(error)),
            };
        let mut full = self.full(qp, Role::Responder, terms, parameters, receives);
        full.stream.preface(&reply.to_bytes());
        self.connections.get_mut(qp).phase = Phase::Full(full);
        match error {
            Some(error) => self.end(qp, format!("no memory for receive buffers: {error}"), true),
            None => {
                self.soil(qp);
                self.heat(qp);
            }
        }
    }

    pub(super) fn answer_no(&mut self, qp: QpHandle, private_data: PrivateData) {
        let connection = self.connections.remove(qp);
        let (Phase::Asked(responder), Some(wire)) = (connection.phase, connection.wire) else {
            unreachable!("a connect request is answered once");
        };
        self.linger(wire, Outgoing::of_frame(&responder.reject(private_data).to_bytes()));
    }
}

/// Receives what is missing of a frame, and not a byte more.
fn receive_frame<W: Wire>(
    wire: &mut W,
    inbox: &mut Inbox,
    kind: FrameKind,
    memory: &Memory,
) -> Result<Option<Box<Frame>>, StartupError> {
    loop {
        let needs = match Frame::parse(kind, inbox)? {
            Parsed::Whole(frame) => return Ok(Some(frame)),
            Parsed::Needs(length) => length - inbox.len(),
        };
        let mut bytes = [0; crate::iwarp::mpa::FRAME_MAX];
        match wire.receive(memory, None, &mut bytes[..needs]) {
            Ok(0) => return Err(StartupError::Closed),
            Ok(received) => inbox.extend(bytes[..received].iter().copied()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

impl super::Settings {
    fn offer(&self, reads: u32, stays_on_machine: bool) -> Offer {
        let ord = u16::try_from(reads).unwrap_or(u16::MAX);
        Offer { crc: self.crc && !stays_on_machine, refuse_crc: self.refuse_crc, ird: self.reads, ord }
    }
}

/// The largest ULPDU there may be, however large segments are (RFC 5044, section 3).
const ULPDU_MAX: u16 = 64_768;
/// A network has no segments of that size: both ends are on this machine.
const LOOPBACK_SEGMENT: u32 = 16 * 1024;

/// The largest ULPDU whose FPDU fits into one TCP segment (RFC 5044, section 4.5). On loopback no adapter
/// looks for FPDUs in segments, and the kernel at first names half of what a segment will hold.
fn ulpdu_max(segment_size: Option<u32>) -> u16 {
    let Some(segment) = segment_size.filter(|&segment| segment < LOOPBACK_SEGMENT) else { return ULPDU_MAX };
    u16::try_from(segment.saturating_sub(6 + segment % 4)).unwrap_or(ULPDU_MAX).min(ULPDU_MAX)
}

/// Neighbouring numbers become strangers (the finaliser of MurmurHash3).
const fn scatter(seed: u64) -> u64 {
    let seed = (seed ^ seed >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let seed = (seed ^ seed >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    seed ^ seed >> 33
}
