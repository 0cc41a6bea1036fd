//! Drives whose completions are looked for instead of announced by interrupts: a ring of their own, for plain
//! reads and writes.
//!
//! The kernel says of a device's queue whether it can be polled; whether an operation was, only its completion says. A
//! drive which refuses one is not polled any more, by any reactor, and what it refused goes the common way.
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ironside_common::memory::Memory;
use ironside_common::reactor::{Ring, RingFile};
use ironside_common::verbs::Token;

use super::uring::{Ask, OpenFile};

/// Operations handed to the kernel at once; more wait.
const ENTRIES: u32 = 256;

/// Whether a drive is polled, as all reactors see it.
#[derive(Clone, Debug)]
pub(super) struct Polling(Arc<AtomicBool>);

impl Polling {
    pub(super) fn new(can_be: bool) -> Self {
        Self(Arc::new(AtomicBool::new(can_be)))
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Says whether it was on before.
    pub(super) fn end(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// A drive as the polled ring knows it.
#[derive(Debug)]
pub(super) struct PolledFile {
    file: RingFile,
    polling: Polling,
}

impl PolledFile {
    /// Takes note that the drive has refused an operation.
    pub(super) fn refused(&self) {
        if self.polling.end() {
            tracing::warn!("a drive which said it can be polled refuses it: its interrupts are used instead");
        }
    }
}

/// The polled ring of one reactor, once there is a drive for it.
pub(super) struct Polled {
    memory: Rc<Memory>,
    is_allowed: bool,
    ring: Option<Ring>,
    /// Completions so far which a drive was polled for.
    count: u64,
    has_failed: bool,
}

impl Polled {
    pub(super) const fn new(memory: Rc<Memory>) -> Self {
        Self { memory, is_allowed: false, ring: None, count: 0, has_failed: false }
    }

    pub(super) const fn allow(&mut self) {
        self.is_allowed = true;
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Makes a file known to the ring, if it is to be polled.
    pub(super) fn add(&mut self, open: &OpenFile) -> Option<PolledFile> {
        if !self.is_allowed || !open.polling.is_on() {
            return None;
        }
        if self.ring.is_none() {
            match Ring::polled(ENTRIES, Rc::clone(&self.memory)) {
                Ok(ring) => self.ring = Some(ring),
                Err(error) => {
                    self.is_allowed = false;
                    tracing::warn!(%error, "drives are not polled: their interrupts are used instead");
                }
            }
        }
        let file = self.ring.as_mut()?.add_file(Arc::clone(&open.fd));
        tracing::debug!(identity = ?open.identity, "plain reads and writes are polled");
        Some(PolledFile { file, polling: open.polling.clone() })
    }

    /// Forgets a file of which nothing is in flight.
    pub(super) fn remove(&mut self, file: &PolledFile) {
        tracing::debug!(completions = self.count, "a drive is polled no more");
        if let Some(Err(error)) = self.ring.as_mut().map(|ring| ring.remove_file(file.file)) {
            tracing::error!(%error, "a drive stays open");
        }
    }

    /// Queues what can be polled; says whether it was taken. A durable write may be a write and a flush to the
    /// kernel, which it makes one after the other as interrupts come.
    pub(super) fn take(&mut self, file: Option<&PolledFile>, ask: Ask, token: Token) -> bool {
        let (Some(ring), Some(file)) = (&mut self.ring, file) else { return false };
        let taken = ask.is_plain_transfer() && file.polling.is_on();
        if taken {
            ask.queue(ring, file.file, token);
        }
        taken
    }

    /// Hands over what is queued and looks once for completions. True while any is to come: whoever sleeps
    /// instead of looking never gets it.
    pub(super) fn look(&mut self) -> bool {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.in_flight() > 0) else { return false };
        if let Err(error) = ring.submit()
            && !std::mem::replace(&mut self.has_failed, true)
        {
            tracing::error!(%error, "drives cannot be polled: what was asked of them stays unanswered");
        }
        true
    }

    /// The next operation which was found completed, with what the ring says of it.
    pub(super) fn reap(&mut self) -> Option<(Token, i32)> {
        let (token, result) = self.ring.as_mut()?.reap()?;
        self.count += u64::from(!is_refusal(result));
        Some((token, result))
    }
}

/// Whether an operation was refused because it cannot be polled. It has not begun.
pub(super) const fn is_refusal(result: i32) -> bool {
    result == -libc::EOPNOTSUPP
}
