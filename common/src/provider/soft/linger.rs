//! Wires of connections that have ended: what is left is sent, the end is said, and what still comes is
//! read and dropped, since to close with bytes unread would destroy those we sent.
use std::io;
use std::time::Duration;

use super::Wire;
use crate::iwarp::Outgoing;
use crate::memory::Memory;
use crate::time::Time;

/// How long the peer has to say its own end.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often such a wire is looked at while nothing else happens.
pub(super) const INTERVAL: Duration = Duration::from_millis(5);
/// Receives at each look, so that a peer which sends on and on gets no more than its share.
const ROUNDS: usize = 4;

pub(super) struct Linger<W> {
    wire: W,
    outgoing: Outgoing,
    finished: bool,
    /// Known from the first turn on.
    deadline: Option<Time>,
}

impl<W: Wire> Linger<W> {
    pub(super) const fn new(wire: W, outgoing: Outgoing) -> Self {
        Self { wire, outgoing, finished: false, deadline: None }
    }

    /// Goes on; says whether the wire has to be kept.
    pub(super) fn advance(&mut self, memory: &Memory, staging: &mut [u8], now: Time) -> bool {
        now < *self.deadline.get_or_insert(now + PATIENCE) && self.step(memory, staging).is_ok()
    }

    /// An error is the end, as good as any other.
    fn step(&mut self, memory: &Memory, staging: &mut [u8]) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.wire.send(memory, &self.outgoing) {
                Ok(sent) => self.outgoing.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.outgoing.is_empty() && !self.finished {
            self.wire.finish();
            self.finished = true;
        }
        for _ in 0..ROUNDS {
            match self.wire.receive(memory, None, staging) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
