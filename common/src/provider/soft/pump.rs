//! The turn of the provider: receive from what is hot, advance, send what there is, look at deadlines.
use std::collections::VecDeque;
use std::io;

use super::connection::{Connection, Full, Overdue, Phase};
use super::{LOOK_INTERVAL, NUDGE_INTERVAL, REST_AFTER, Soft, Spares, Staging, Wire};
use crate::iwarp::StreamEvent;
use crate::time::Time;
use crate::verbs::{CmEvent, Event, QpHandle, Received, RejectReason, Wc};

/// Bytes sent to, and received from, one connection in one turn, about: others wait.
const BYTES_IN_A_TURN: usize = 1 << 20;
/// From how many bytes on it pays to receive each payload into its place.
const LARGE_PAYLOAD: u32 = 16 * 1024;
/// What is staged behind such a payload: its trailer, a response, and the header of the next.
const STAGED_BETWEEN: usize = 128;

/// Why a connection in full operation ends.
enum End {
    Peer,
    Error(io::Error),
    Fault(crate::iwarp::Fault),
}

impl<W: Wire> Soft<W> {
    /// Receives from every hot connection, advances, and sends what there is: one gathered send for each
    /// connection. Says whether anything happened.
    pub fn pump(&mut self, now: Time) -> bool {
        self.now = now;
        let mut busy = self.receive_hot();
        busy |= self.look_once_more();
        busy |= self.flush(now);
        busy |= self.advance_lingering();
        if now >= self.next_look {
            self.next_look = now + LOOK_INTERVAL;
            busy |= self.nudge();
            busy |= self.expire();
            self.rest();
        }
        busy
    }

    /// Sends what was posted since, without receiving: the end of a turn.
    pub fn flush(&mut self, now: Time) -> bool {
        self.now = now;
        let mut busy = false;
        // Connections which cannot send all come back into the list.
        std::mem::swap(&mut self.dirty, &mut self.flushing);
        while let Some(qp) = self.flushing.pop() {
            self.connections.listed(qp).dirty = false;
            if self.connections.find(qp).is_some() {
                busy |= self.send(qp);
            }
        }
        busy
    }

    fn receive_hot(&mut self) -> bool {
        let (mut busy, mut index) = (false, 0);
        while let Some(&qp) = self.hot.get(index) {
            let moved = self.connections.find(qp).is_some() && self.advance(qp);
            busy |= moved;
            match self.connections.find(qp).filter(|connection| connection.is_receiving()) {
                Some(connection) => {
                    connection.idle_turns = if moved { 0 } else { connection.idle_turns.saturating_add(1) };
                    index += 1;
                }
                None => self.unlist_hot(index),
            }
        }
        busy
    }

    /// Between arming and sleeping: what came before the descriptors were polled is found here.
    fn look_once_more(&mut self) -> bool {
        let mut busy = false;
        while let Some(qp) = self.cooled.pop() {
            let cold = self.connections.find(qp).is_some() && !self.connections.listed(qp).hot;
            if cold && self.advance(qp) {
                busy = true;
                if self.connections.find(qp).is_some() {
                    self.heat(qp);
                }
            }
        }
        busy
    }

    /// Takes what the wire has; says whether it had anything.
    fn advance(&mut self, qp: QpHandle) -> bool {
        let connection = self.connections.get_mut(qp);
        if !matches!(connection.phase, Phase::Full(_)) {
            return self.advance_startup(qp);
        }
        let (Phase::Full(full), Some(wire)) = (&mut connection.phase, &mut connection.wire) else {
            return false;
        };
        let (before, answers) = (self.events.len(), full.stream.answers());
        let received = receive(wire, full, &self.memory, (&mut self.staging, &mut self.spares));
        let moved = !matches!(received, Ok(0));
        if moved {
            full.nudge_at = None;
            full.rest_at = Some(self.now + REST_AFTER);
            drain(qp, full, &mut self.events);
        }
        if full.stream.answers() != answers {
            full.answered_at = self.now;
        }
        if full.stream.has_output() {
            self.soil(qp);
        }
        match received {
            Ok(_) => {}
            Err(End::Peer) => self.end(qp, "the peer closed the connection".into(), true),
            Err(End::Error(error)) => self.end(qp, error.to_string(), true),
            Err(End::Fault(fault)) => self.end(qp, fault.to_string(), false),
        }
        moved || self.events.len() > before
    }

    /// Sends what a connection has; says whether anything moved.
    pub(super) fn send(&mut self, qp: QpHandle) -> bool {
        let connection = self.connections.get_mut(qp);
        let (Phase::Full(full), Some(wire)) = (&mut connection.phase, &mut connection.wire) else {
            return false;
        };
        let (mut moved, messages) = (0, full.stream.messages());
        if full.stream.outgoing().is_empty() {
            full.sent_at = self.now;
        }
        if !full.stream.awaits_response() {
            full.answered_at = self.now;
        }
        while moved < BYTES_IN_A_TURN {
            self.spares.lend_to(&mut full.stream);
            let outgoing = full.stream.transmit(&*self.memory);
            if outgoing.is_empty() {
                break;
            }
            match wire.send(&self.memory, outgoing) {
                Ok(sent) => {
                    full.stream.sent(sent);
                    moved += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.end(qp, error.to_string(), true);
                    return true;
                }
            }
        }
        if full.stream.messages() != messages {
            full.sent_at = self.now;
        }
        self.spares.take_back(&mut full.stream);
        // Work which needs no byte on the wire completes here too.
        let completed = drain(qp, full, &mut self.events);
        if full.stream.has_output() {
            self.soil(qp);
            self.heat(qp);
        }
        moved > 0 || completed
    }

    fn advance_lingering(&mut self) -> bool {
        self.lingering.advance(self.now, &self.memory, self.staging.room())
    }

    /// Sends a little more to who has accepted and says nothing.
    fn nudge(&mut self) -> bool {
        let due = |connection: &Connection<W>| connection.nudge_at().is_some_and(|due| due <= self.now);
        let silent = self.connections.iter().filter(|(_, connection)| due(connection));
        // Rarely any, and it has to be known before they are touched.
        let silent: Vec<_> = silent.map(|(qp, _)| qp).collect();
        for &qp in &silent {
            if let Phase::Full(full) = &mut self.connections.get_mut(qp).phase {
                full.nudge_at = Some(self.now + NUDGE_INTERVAL);
                full.stream.nudge();
            }
            self.soil(qp);
        }
        !silent.is_empty()
    }

    /// Has connections give back what they took while more went on.
    fn rest(&mut self) {
        let now = self.now;
        let due = |connection: &&mut Connection<W>| connection.rest_at().is_some_and(|due| due <= now);
        for connection in self.connections.connections_mut().filter(due) {
            if let Phase::Full(full) = &mut connection.phase {
                // If a message is with the consumer, once more then.
                full.rest_at = (!full.rest()).then_some(now + REST_AFTER);
            }
        }
    }

    /// Ends what has waited for too long.
    fn expire(&mut self) -> bool {
        let patience = self.settings.patience;
        let due = |deadline: Option<(Time, Overdue)>| deadline.filter(|&(deadline, _)| deadline <= self.now);
        let overdue = self.connections.iter().filter_map(|(qp, connection)| {
            due(connection.deadline(patience)).map(|(_, overdue)| (qp, overdue))
        });
        // Rarely any, and it has to be known before the table changes.
        let overdue: Vec<_> = overdue.collect();
        for &(qp, overdue) in &overdue {
            match self.connections.get(qp).phase {
                Phase::Dialing(_) | Phase::Requesting { .. } => self.refuse(qp, RejectReason::TimedOut),
                Phase::Awaiting { .. } => self.forget(qp, &overdue),
                Phase::Asked(_) => {}
                Phase::Full(_) => self.end(qp, overdue.to_string(), false),
            }
        }
        !overdue.is_empty()
    }

    /// The connect of ours has failed.
    pub(super) fn refuse(&mut self, qp: QpHandle, reason: RejectReason) {
        drop(self.connections.remove(qp));
        self.tell(CmEvent::Refused { qp, reason });
    }

    /// A connection nobody was told of goes as it came.
    pub(super) fn forget(&mut self, qp: QpHandle, reason: &dyn std::fmt::Display) {
        let connection = self.connections.remove(qp);
        tracing::debug!(peer = %connection.peer, %reason, "no connection came of it");
    }
}

/// Receives until the wire has no more, and says how many bytes there were.
fn receive<W: Wire>(
    wire: &mut W,
    full: &mut Full,
    memory: &crate::memory::Memory,
    (staging, spares): (&mut Staging, &mut Spares),
) -> Result<usize, End> {
    let direct_from = wire.direct_from().unwrap_or(LARGE_PAYLOAD);
    let mut moved = 0;
    while moved < BYTES_IN_A_TURN {
        let direct = full.stream.direct();
        // Amid large payloads little is staged, so that most of the next one goes to its place directly.
        let large = full.stream.recent_payload() >= direct_from;
        let room = staging.room();
        let room = if large { &mut room[..STAGED_BETWEEN] } else { room };
        let offered = direct.map_or(0, |direct| direct.length as usize) + room.len();
        let received = match wire.receive(memory, direct, room) {
            Ok(0) => return Err(End::Peer),
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                full.behind = None;
                break;
            }
            Err(error) => return Err(End::Error(error)),
        };
        moved += received;
        full.behind = full.behind.and_then(|left| left.checked_sub(received));
        let placed =
            direct.map_or(0, |direct| direct.length.min(u32::try_from(received).unwrap_or(u32::MAX)));
        full.stream.received_direct(placed);
        let input = staging.join(&full.leftover, received - placed as usize);
        let used = full.stream.receive(input, memory).map_err(End::Fault)?;
        spares.keep(&mut full.leftover, &input[used..]);
        if received < offered {
            break;
        }
    }
    Ok(moved)
}

/// Hands on what the stream has to say.
pub(super) fn drain(qp: QpHandle, full: &mut Full, events: &mut VecDeque<Event>) -> bool {
    let mut any = false;
    while let Some(event) = full.stream.poll() {
        any = true;
        events.push_back(match event {
            StreamEvent::Received { id, length, invalidated } => {
                full.receives.lent += 1;
                Event::Received(Received { qp, buffer: id, length, invalidated })
            }
            StreamEvent::Completed { token, status } => Event::Completed(Wc { qp, token, status }),
        });
    }
    any
}
