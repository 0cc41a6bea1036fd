//! Wires of connections that have ended: what is left is sent, the end is said, and what still comes is
//! read and dropped, since to close with bytes unread would destroy those we sent.
//!
//! Anybody can cause thousands of them, so each is looked at a few times in its life and not at each turn.
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use super::Wire;
use crate::iwarp::Outgoing;
use crate::memory::Memory;
use crate::time::Time;

/// How long the peer has to say its own end.
const PATIENCE: Duration = Duration::from_secs(1);
/// When such a wire is looked at for the second time; each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
/// Receives at each look, so that a peer which sends on and on gets no more than its share.
const ROUNDS: usize = 4;
/// Wires kept at most: one more is looked at once and closed.
const MOST: usize = 1024;

/// All of them, by the time of their next look, and in the order in which they came.
pub(super) struct Lingering<W> {
    wires: BTreeMap<(Time, u64), Linger<W>>,
    next: u64,
}

struct Linger<W> {
    wire: W,
    outgoing: Outgoing,
    finished: bool,
    deadline: Time,
    pause: Duration,
}

impl<W: Wire> Lingering<W> {
    pub(super) const fn new() -> Self {
        Self { wires: BTreeMap::new(), next: 0 }
    }

    /// Takes a wire with what is left to send on it.
    pub(super) fn add(
        &mut self,
        wire: W,
        outgoing: Outgoing,
        now: Time,
        memory: &Memory,
        staging: &mut [u8],
    ) {
        let linger = Linger { wire, outgoing, finished: false, deadline: now + PATIENCE, pause: FIRST_PAUSE };
        self.look(linger, now, memory, staging);
    }

    /// Looks at those whose time has come; says whether one of them is gone.
    pub(super) fn advance(&mut self, now: Time, memory: &Memory, staging: &mut [u8]) -> bool {
        let before = self.wires.len();
        while self.deadline().is_some_and(|due| due <= now)
            && let Some((_, linger)) = self.wires.pop_first()
        {
            self.look(linger, now, memory, staging);
        }
        self.wires.len() < before
    }

    /// When [`Self::advance`] is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.wires.first_key_value().map(|(&(due, _), _)| due)
    }

    fn look(&mut self, mut linger: Linger<W>, now: Time, memory: &Memory, staging: &mut [u8]) {
        let ended = linger.step(memory, staging).is_err();
        if ended || now >= linger.deadline || self.wires.len() >= MOST {
            return;
        }
        let due = linger.deadline.min(now + linger.pause);
        linger.pause *= 2;
        self.wires.insert((due, self.next), linger);
        self.next += 1;
    }
}

impl<W: Wire> Linger<W> {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::BorrowedFd;
    use std::rc::Rc;

    use super::*;
    use crate::verbs::Sge;

    /// A peer which takes everything and never says its end.
    struct Mute {
        looks: Rc<Cell<u32>>,
        open: Rc<Cell<u32>>,
    }

    impl Wire for Mute {
        fn established(&mut self) -> io::Result<bool> {
            Ok(true)
        }

        fn receive(&mut self, _: &Memory, _: Option<Sge>, _: &mut [u8]) -> io::Result<usize> {
            self.looks.set(self.looks.get() + 1);
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn send(&mut self, _: &Memory, outgoing: &Outgoing) -> io::Result<usize> {
            Ok(outgoing.len())
        }

        fn finish(&mut self) {}

        fn segment_size(&self) -> Option<u32> {
            None
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    impl Drop for Mute {
        fn drop(&mut self) {
            self.open.set(self.open.get() - 1);
        }
    }

    #[test]
    fn thousands_of_mute_peers_cost_a_few_looks_each_and_are_given_up() {
        let (looks, open) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (memory, mut staging) = (Memory::new(), [0; 64]);
        let mut lingering = Lingering::new();
        let mut now = Time::from_nanos(1 << 50);
        for _ in 0..5000 {
            open.set(open.get() + 1);
            let wire = Mute { looks: Rc::clone(&looks), open: Rc::clone(&open) };
            lingering.add(wire, Outgoing::of_frame(b"no"), now, &memory, &mut staging);
        }
        assert_eq!((looks.get(), open.get() as usize), (5000, MOST));
        // A busy loop turns many times before anything is due.
        for _ in 0..1000 {
            assert!(!lingering.advance(now, &memory, &mut staging));
        }
        assert_eq!(looks.get(), 5000);
        while let Some(due) = lingering.deadline() {
            assert!(due > now, "a loop which sleeps until then does not spin");
            now = due;
            lingering.advance(now, &memory, &mut staging);
        }
        assert_eq!(open.get(), 0);
        assert_eq!(now, Time::from_nanos(1 << 50) + PATIENCE);
        assert!(looks.get() <= 5000 + 15 * MOST as u32, "{} looks", looks.get());
    }
}
