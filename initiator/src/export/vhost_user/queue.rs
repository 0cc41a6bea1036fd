//! One queue of a machine: what the front-end has told of it, its ring while it is served, and what is under way.
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tracing::warn;

use super::device::feature;
use super::inflight::{Inflight, Part};
use super::memory::GuestMemory;
use super::message::VringAddresses;
use super::ring::{Ring, SIZE_MAX};

/// See the module's description.
#[derive(Default)]
pub(super) struct Queue {
    size: u16,
    addresses: Option<VringAddresses>,
    base: u16,
    enabled: bool,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    ring: Option<Ring>,
    part: Option<Part>,
    /// What was under way when another process served it.
    again: VecDeque<u16>,
    under_way: usize,
    /// The driver has broken it; only a new start mends it.
    broken: bool,
    /// It is to be stopped once nothing is under way.
    draining: bool,
    /// The driver may not have heard of all that was used: whoever served it before may have died between the two.
    owes_interrupt: bool,
    /// Tells one kick descriptor from the one before it.
    generation: u16,
    watched: bool,
    /// A watch that is to end.
    ended_watch: Option<u16>,
}

impl Queue {
    /// False if there is no queue of this size.
    pub(super) fn set_size(&mut self, size: u32) -> bool {
        match u16::try_from(size) {
            Ok(size) if size.is_power_of_two() && size <= SIZE_MAX && self.ring.is_none() => {
                self.size = size;
                true
            }
            _ => false,
        }
    }

    pub(super) fn set_addresses(&mut self, addresses: VringAddresses, memory: &GuestMemory) {
        self.addresses = Some(addresses);
        self.move_to(memory);
    }

    /// The guest's memory is laid out anew. A ring that lies nowhere any more stays where it was.
    pub(super) fn move_to(&mut self, memory: &GuestMemory) {
        if let (Some(ring), Some(addresses)) = (&mut self.ring, self.addresses)
            && !ring.moved(addresses, memory)
        {
            warn!("a queue of the machine is outside its memory");
        }
    }

    pub(super) const fn set_base(&mut self, base: u16) {
        self.base = base;
    }

    pub(super) const fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    pub(super) fn set_kick(&mut self, kick: OwnedFd) {
        self.end_watch();
        self.generation = self.generation.wrapping_add(1);
        self.kick = Some(kick);
    }

    pub(super) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        self.owes_interrupt = true;
    }

    pub(super) fn set_error(&mut self, error: Option<OwnedFd>) {
        self.error = error;
    }

    /// Begins to serve it, if all is told. True if it was begun.
    pub(super) fn start(
        &mut self,
        index: usize,
        memory: &GuestMemory,
        features: u64,
        inflight: Option<&Inflight>,
    ) -> bool {
        let (Some(addresses), Some(_), None, true) = (self.addresses, &self.kick, &self.ring, self.size > 0)
        else {
            return false;
        };
        if !self.enabled && features & feature::PROTOCOL != 0 {
            return false;
        }
        let event_index = features & feature::EVENT_INDEX != 0;
        let Some(mut ring) = Ring::new(self.size, addresses, memory, event_index, self.base) else {
            return false;
        };
        self.part = inflight.and_then(|inflight| inflight.part(index, self.size));
        if let Some(part) = &mut self.part {
            self.again = part.recover(ring.next_used()).into();
            // What was taken from the driver is either used or under way, whatever the front-end knows of it.
            ring.skip_to(u16::try_from(self.again.len()).expect("no more than the queue has"));
        }
        (self.broken, self.enabled, self.owes_interrupt) = (false, true, true);
        self.ring = Some(ring);
        true
    }

    /// Takes nothing new: it is to be stopped.
    pub(super) const fn drain(&mut self) {
        self.draining = true;
    }

    /// Serves it no more. Says where another device goes on. Nothing of it may be under way.
    pub(super) fn stop(&mut self) -> u16 {
        assert_eq!(self.under_way, 0, "a queue is drained before it is stopped");
        self.end_watch();
        if let Some(ring) = self.ring.take() {
            self.base = ring.next_available();
        }
        (self.kick, self.part) = (None, None);
        (self.broken, self.draining) = (false, false);
        self.again.clear();
        self.base
    }

    /// The head of the next chain to be carried out.
    pub(super) fn next(&mut self) -> Option<u16> {
        if !self.is_served() {
            return None;
        }
        if let Some(head) = self.again.pop_front() {
            self.under_way += 1;
            return Some(head);
        }
        let ring = self.ring.as_mut()?;
        match ring.pop() {
            Ok(None) => None,
            Ok(Some(head)) if head < ring.size() => {
                if let Some(part) = &mut self.part {
                    part.begin(head);
                }
                self.under_way += 1;
                Some(head)
            }
            Ok(Some(head)) => {
                self.fail(&format_args!("there is no descriptor {head}"));
                None
            }
            Err(error) => {
                self.fail(&error);
                None
            }
        }
    }

    /// The ring that is served.
    pub(super) const fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref()
    }

    /// A chain is done, with so many bytes written to it.
    pub(super) fn end(&mut self, head: u16, written: u32) {
        self.under_way -= 1;
        let Some(ring) = &mut self.ring else { return };
        if let Some(part) = &mut self.part {
            part.ending(head);
        }
        ring.push(head, written);
        if let Some(part) = &mut self.part {
            part.ended(head, ring.next_used());
        }
    }

    /// The driver has broken a chain which was taken from it: it stays taken, and nothing more is.
    pub(super) fn abort(&mut self, why: &dyn std::fmt::Display) {
        self.under_way -= 1;
        self.fail(why);
    }

    fn fail(&mut self, why: &dyn std::fmt::Display) {
        warn!("a queue of the machine is broken, and rests until its driver begins anew: {why}");
        self.broken = true;
        if let Some(error) = &self.error {
            ring_bell(error.as_fd());
        }
    }

    pub(super) const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Tells the driver of what was used, if it wants to hear of it.
    pub(super) fn tell(&mut self) {
        if let (Some(ring), Some(call)) = (&mut self.ring, &self.call)
            && ring.wants_interrupt() | std::mem::take(&mut self.owes_interrupt)
        {
            ring_bell(call.as_fd());
        }
    }

    /// Asks for notifications. What has to be watched for them, if it is not yet.
    pub(super) fn listen(&mut self) -> Option<(BorrowedFd<'_>, u16)> {
        if !self.is_served() {
            return None;
        }
        self.ring.as_mut()?.listen();
        let kick = self.kick.as_ref()?;
        (!std::mem::replace(&mut self.watched, true)).then(|| (kick.as_fd(), self.generation))
    }

    /// The driver has notified, by the kick of this generation.
    pub(super) fn kicked(&mut self, generation: u16) {
        if generation == self.generation
            && let Some(kick) = &self.kick
        {
            self.watched = false;
            // Empty already is as good.
            let _ = nix::unistd::read(kick, &mut [0; 8]);
        }
    }

    /// A watch that is to end.
    pub(super) const fn take_ended_watch(&mut self) -> Option<u16> {
        self.ended_watch.take()
    }

    pub(super) fn end_watch(&mut self) {
        if std::mem::take(&mut self.watched) {
            self.ended_watch = Some(self.generation);
        }
    }

    const fn is_served(&self) -> bool {
        self.ring.is_some() && self.enabled && !self.broken && !self.draining
    }
}

/// It does not block: who gave the descriptor has it so.
fn ring_bell(bell: BorrowedFd<'_>) {
    // It can only fail when it has rung already, or nobody is there to hear.
    let _ = nix::unistd::write(bell, &1_u64.to_ne_bytes());
}
