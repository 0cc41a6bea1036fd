//! Two rings of bytes in the memory which both ends of a connection have mapped, one for each direction.
//!
//! Each end writes three numbers, each in cache lines of its own, and reads those of the other end:
//!
//! - *produced*: bytes it has put into its ring. It is stored (release) after the bytes were copied in, and loaded
//!   (acquire) before they are copied out, so whoever sees the number sees the bytes.
//! - *consumed*: bytes it has taken out of the other's ring. It is stored (release) after they were copied out, and loaded
//!   (acquire) before their place is written again, so nobody overwrites what is still being read.
//! - *sleep*: zero in its low bits while it looks by itself, else what it wants to be woken for, below the number of its sleep.
//!
//! Who goes to sleep stores *sleep*, then looks at the rings for the last time; who has moved bytes stores *produced* or
//! *consumed*, then looks at *sleep*. Between the two stands a sequentially consistent fence on either side, so at least one
//! of them sees the other, and nobody sleeps upon bytes.
//!
//! **The other end is not trusted.** Of its numbers each is read once into a value of our own, which is checked against what
//! is possible before it is used; no place is ever taken from what it wrote. Our own numbers are never read back.
//! The bytes are copied out before anybody looks at them.
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::memory::{Memory, Region};
use crate::verbs::Sge;

/// Bytes of one ring: some large transfers, and little enough to stay in a processor's cache.
pub(super) const RING: u64 = 256 << 10;
/// The rings begin after the page with the numbers.
const NUMBERS: usize = 4096;
/// All of the memory.
pub(super) const LENGTH: usize = NUMBERS + 2 * RING as usize;
/// Two cache lines, since processors fetch a line's neighbour too.
const APART: usize = 128;

/// What somebody who sleeps is to be woken for: bytes to take, and room for bytes.
pub(super) const BYTES: u64 = 1;
pub(super) const ROOM: u64 = 2;
const WANTS: u64 = BYTES | ROOM;
/// One more sleep.
const SLEEP: u64 = 4;

/// Whose numbers, and whose ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    Target,
    Host,
}

impl End {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Target => Self::Host,
            Self::Host => Self::Target,
        }
    }

    const fn number(self) -> usize {
        self as usize
    }

    pub(super) const fn produced(self) -> usize {
        3 * APART * self.number()
    }

    pub(super) const fn consumed(self) -> usize {
        self.produced() + APART
    }

    pub(super) const fn sleep(self) -> usize {
        self.produced() + 2 * APART
    }

    const fn ring(self) -> usize {
        NUMBERS + RING as usize * self.number()
    }
}

/// What an honest peer never writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Broken {
    #[error("the peer claims to have written {0} bytes into a ring of {RING}")]
    Produced(u64),
    #[error("the peer claims to have read bytes which it was not given, or to have given some back")]
    Consumed,
}

/// One end's view of both.
#[derive(Debug)]
pub(super) struct Rings {
    shared: Arc<Region>,
    us: End,
    them: End,
    /// Bytes put into our ring; and published.
    produced: u64,
    published: u64,
    /// How many of them the peer had taken when we looked last.
    taken: u64,
    /// Bytes taken out of its ring, and how many there were when we looked last.
    consumed: u64,
    there: u64,
    /// What we said of our sleep.
    sleep: u64,
    /// The sleep of the peer's which was ended by us last.
    woken: u64,
}

impl Rings {
    /// # Panics
    /// If the region is not of [`LENGTH`] bytes.
    pub(super) fn new(shared: Arc<Region>, us: End) -> Self {
        assert_eq!(shared.len(), LENGTH, "the memory of one connection");
        let (produced, published, taken, consumed, there, sleep, woken) = (0, 0, 0, 0, 0, 0, 0);
        let them = us.other();
        Self { shared, us, them, produced, published, taken, consumed, there, sleep, woken }
    }

    /// The memory itself, for tests which do as a bad peer does.
    #[cfg(test)]
    pub(super) fn shared(&self) -> Arc<Region> {
        Arc::clone(&self.shared)
    }

    /// How many bytes can be put into our ring; looks anew if that is known of fewer than `wanted`.
    pub(super) fn room(&mut self, wanted: u64) -> Result<u64, Broken> {
        let full = self.produced - self.taken;
        if RING - full >= wanted {
            return Ok(RING - full);
        }
        let taken = self.shared.load_u64(self.them.consumed());
        let left = self.published.wrapping_sub(taken);
        if left > self.published - self.taken {
            return Err(Broken::Consumed);
        }
        self.taken = taken;
        Ok(RING - (self.produced - taken))
    }

    /// Puts bytes into our ring, where there is room for them.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let (first, second) = bytes.split_at(bytes.len().min(to_end(self.produced)));
        self.shared.write(place(self.us, self.produced), first);
        if !second.is_empty() {
            self.shared.write(self.us.ring(), second);
        }
        self.produced += bytes.len() as u64;
    }

    /// As [`Self::put`], of memory of ours.
    pub(super) fn put_memory(&mut self, memory: &Memory, from: Sge) {
        let whole = to_end(self.produced).min(from.length as usize);
        let first = u32::try_from(whole).expect("less than a ring");
        memory.pour(from.slice(0, first), &self.shared, place(self.us, self.produced));
        if first < from.length {
            memory.pour(from.slice(first, from.length - first), &self.shared, self.us.ring());
        }
        self.produced += u64::from(from.length);
    }

    /// The peer may take what was put.
    pub(super) fn publish(&mut self) {
        self.published = self.produced;
        self.shared.store_u64(self.us.produced(), self.produced);
    }

    /// How many bytes can be taken; looks anew if that is known of fewer than `wanted`.
    pub(super) fn there(&mut self, wanted: u64) -> Result<u64, Broken> {
        let known = self.there - self.consumed;
        if known >= wanted {
            return Ok(known);
        }
        let there = self.shared.load_u64(self.them.produced());
        let all = there.wrapping_sub(self.consumed);
        if all > RING || all < known {
            return Err(Broken::Produced(all));
        }
        self.there = there;
        Ok(all)
    }

    /// Takes bytes of which it is known that they are there.
    pub(super) fn take(&mut self, into: &mut [u8]) {
        let length = into.len();
        let (first, second) = into.split_at_mut(length.min(to_end(self.consumed)));
        self.shared.read(place(self.them, self.consumed), first);
        if !second.is_empty() {
            self.shared.read(self.them.ring(), second);
        }
        self.consumed += length as u64;
    }

    /// As [`Self::take`], into memory of ours.
    pub(super) fn take_memory(&mut self, memory: &Memory, into: Sge) {
        let whole = to_end(self.consumed).min(into.length as usize);
        let first = u32::try_from(whole).expect("less than a ring");
        memory.fill(into.slice(0, first), &self.shared, place(self.them, self.consumed));
        if first < into.length {
            memory.fill(into.slice(first, into.length - first), &self.shared, self.them.ring());
        }
        self.consumed += u64::from(into.length);
    }

    /// The peer may write where was what we took.
    pub(super) fn release(&self) {
        self.shared.store_u64(self.us.consumed(), self.consumed);
    }

    /// From now on the peer wakes us. Whoever called this looks once more before sleeping.
    pub(super) fn lie_down(&mut self, wants: u64) {
        if self.sleep & WANTS != wants {
            self.sleep = ((self.sleep & !WANTS) + SLEEP) | wants;
            self.shared.store_u64(self.us.sleep(), self.sleep);
        }
        fence(Ordering::SeqCst);
    }

    /// We look by ourselves again.
    pub(super) fn get_up(&mut self) {
        if self.sleep & WANTS != 0 {
            self.sleep &= !WANTS;
            self.shared.store_u64(self.us.sleep(), self.sleep);
        }
    }

    /// Whether the peer sleeps, wants what there is now, and was not woken yet.
    pub(super) fn is_to_wake(&mut self, by: u64) -> bool {
        fence(Ordering::SeqCst);
        let sleep = self.shared.load_u64(self.them.sleep());
        if sleep & by == 0 || sleep == self.woken {
            return false;
        }
        self.woken = sleep;
        true
    }
}

/// Where in an end's ring a byte lies, and how many there are from there to its end.
const fn place(of: End, byte: u64) -> usize {
    of.ring() + (byte % RING) as usize
}

const fn to_end(byte: u64) -> usize {
    (RING - byte % RING) as usize
}

#[cfg(test)]
mod tests;
