//! A split virtqueue (virtio 1.2, 2.7) as the device sees it: what the driver has made available, and what was used.
//!
//! While the reactor turns it looks at the queue by itself and asks the driver for no notifications; before it sleeps it
//! asks for them. Whatever the guest has written into its rings, the ring here loses no more than its own meaning.
use std::sync::atomic::{Ordering, fence};

use zerocopy::{FromBytes, IntoBytes};

use super::chain::{DESCRIPTOR_LENGTH, Descriptor};
use super::memory::{GuestMemory, Place};
use super::message::VringAddresses;

/// Descriptors of the largest queue.
pub(super) const SIZE_MAX: u16 = 1024;

/// The driver wants no interrupts; the device wants no notifications.
const QUIET: u16 = 1;
/// In both rings: flags, index, and then the entries.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
const AVAILABLE_ENTRY: usize = 2;
const USED_ENTRY: usize = 8;

/// The driver has made more available than there is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the driver says that {0} descriptors are available, of {1}")]
pub(super) struct TooMany(u16, u16);

/// See the module's description.
pub(super) struct Ring {
    size: u16,
    descriptors: Place,
    available: Place,
    used: Place,
    next_available: u16,
    next_used: u16,
    /// Whether notifications are asked for by index, on both sides.
    event_index: bool,
    /// What was used when the driver was last thought of.
    told: u16,
    /// Whether the driver was told that no notifications are wanted.
    quiet: bool,
}

impl Ring {
    /// The ring at these addresses, from this available entry on; nothing if they are not whole, or not aligned as they
    /// have to be. `size` is a power of two, [`SIZE_MAX`] at most.
    pub(super) fn new(
        size: u16,
        addresses: VringAddresses,
        memory: &GuestMemory,
        event_index: bool,
        next_available: u16,
    ) -> Option<Self> {
        let (descriptors, available, used) = places(size, addresses, memory)?;
        let next_used = u16::from_le(used.memory.load_u16(used.offset + INDEX));
        let (told, quiet) = (next_used, false);
        Some(Self { size, descriptors, available, used, next_available, next_used, event_index, told, quiet })
    }

    /// The guest's memory is laid out anew. False if the ring lies nowhere any more.
    pub(super) fn moved(&mut self, addresses: VringAddresses, memory: &GuestMemory) -> bool {
        let places = places(self.size, addresses, memory);
        if let Some((descriptors, available, used)) = places {
            (self.descriptors, self.available, self.used) = (descriptors, available, used);
            return true;
        }
        false
    }

    pub(super) const fn size(&self) -> u16 {
        self.size
    }

    /// Number of the next available entry, which is where another device would go on.
    pub(super) const fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Number of the next used entry.
    pub(super) const fn next_used(&self) -> u16 {
        self.next_used
    }

    /// As many entries from the used ones on are under way already.
    pub(super) fn skip_to(&mut self, under_way: u16) {
        self.next_available = self.next_used.wrapping_add(under_way);
    }

    /// The head of the next chain, if there is one. It is the driver's number, and may be anything.
    ///
    /// # Errors
    /// When the driver has said what cannot be.
    pub(super) fn pop(&mut self) -> Result<Option<u16>, TooMany> {
        let at = &self.available;
        let there = u16::from_le(at.memory.load_u16(at.offset + INDEX)).wrapping_sub(self.next_available);
        if there == 0 {
            return Ok(None);
        }
        if there > self.size {
            return Err(TooMany(there, self.size));
        }
        if !self.event_index && !self.quiet {
            self.ask(QUIET);
            self.quiet = true;
        }
        let entry = ENTRIES + AVAILABLE_ENTRY * usize::from(self.next_available % self.size);
        let head = u16::from_le(at.memory.load_u16(at.offset + entry));
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// A descriptor of the table, copied once.
    ///
    /// # Panics
    /// If it is beyond the table.
    pub(super) fn descriptor(&self, index: u16) -> Descriptor {
        assert!(index < self.size, "a descriptor of the table");
        let mut bytes = [0; DESCRIPTOR_LENGTH as usize];
        let at = &self.descriptors;
        at.memory.read(at.offset + usize::from(index) * bytes.len(), &mut bytes);
        Descriptor::read_from_bytes(&bytes).expect("as long as one")
    }

    /// A chain was used, with so many bytes written to it.
    pub(super) fn push(&mut self, head: u16, written: u32) {
        let entry = ENTRIES + USED_ENTRY * usize::from(self.next_used % self.size);
        let at = &self.used;
        at.memory.write(at.offset + entry, [u32::from(head).to_le(), written.to_le()].as_bytes());
        self.next_used = self.next_used.wrapping_add(1);
        at.memory.store_u16(at.offset + INDEX, self.next_used.to_le());
    }

    /// Whether the driver wants to hear of what was used since it was last asked.
    pub(super) fn wants_interrupt(&mut self) -> bool {
        let before = std::mem::replace(&mut self.told, self.next_used);
        if before == self.next_used {
            return false;
        }
        // What was used has to be seen before the driver's wish is looked at (2.7.7.2).
        fence(Ordering::SeqCst);
        let at = &self.available;
        if !self.event_index {
            return u16::from_le(at.memory.load_u16(at.offset + FLAGS)) & QUIET == 0;
        }
        let event = ENTRIES + AVAILABLE_ENTRY * usize::from(self.size);
        let event = u16::from_le(at.memory.load_u16(at.offset + event));
        let since = self.next_used.wrapping_sub(before);
        self.next_used.wrapping_sub(event).wrapping_sub(1) < since
    }

    /// Asks the driver to notify of the next chain. One more look has to follow.
    pub(super) fn listen(&mut self) {
        if self.event_index {
            let event = ENTRIES + USED_ENTRY * usize::from(self.size);
            self.used.memory.store_u16(self.used.offset + event, self.next_available.to_le());
        } else {
            self.ask(0);
            self.quiet = false;
        }
        fence(Ordering::SeqCst);
    }

    fn ask(&self, flags: u16) {
        self.used.memory.store_u16(self.used.offset + FLAGS, flags.to_le());
    }
}

/// Where the three parts of a queue lie.
fn places(size: u16, addresses: VringAddresses, memory: &GuestMemory) -> Option<(Place, Place, Place)> {
    let place = |address: u64, length: usize, alignment: usize| {
        memory.place(address, length).filter(|place| place.offset.is_multiple_of(alignment))
    };
    let count = usize::from(size);
    let descriptors = place(addresses.descriptors, count * DESCRIPTOR_LENGTH as usize, 16)?;
    // Behind the entries each side has the number at which it wants to be notified.
    let available = place(addresses.available, ENTRIES + count * AVAILABLE_ENTRY + 2, 2)?;
    let used = place(addresses.used, ENTRIES + count * USED_ENTRY + 2, 4)?;
    Some((descriptors, available, used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::vhost_user::tests::{AVAILABLE_AT, Driver, QUEUE_SIZE};

    #[test]
    fn chains_come_once_in_order_and_go_back_used() {
        let mut driver = Driver::new();
        let mut ring = driver.ring(true);
        assert_eq!(ring.pop(), Ok(None));
        driver.offer(5);
        driver.offer(2);
        assert_eq!((ring.pop(), ring.pop(), ring.pop()), (Ok(Some(5)), Ok(Some(2)), Ok(None)));
        ring.push(2, 1);
        ring.push(5, 513);
        assert_eq!((driver.used(), driver.used(), driver.used()), (Some((2, 1)), Some((5, 513)), None));
        assert_eq!((ring.next_available(), ring.next_used()), (2, 2));
    }

    #[test]
    fn indices_wrap() {
        let mut driver = Driver::new();
        let mut ring = driver.ring(true);
        for round in 0..70_000_u32 {
            let head = (round % u32::from(QUEUE_SIZE)) as u16;
            driver.offer(head);
            assert_eq!(ring.pop(), Ok(Some(head)));
            ring.push(head, round);
            assert!(ring.wants_interrupt() || round % 65536 != 0);
            assert_eq!(driver.used(), Some((head.into(), round)));
        }
    }

    #[test]
    fn interrupts_and_notifications_are_asked_for_and_spared() {
        let mut driver = Driver::new();
        let mut ring = driver.ring(true);
        let mut use_one = |driver: &mut Driver| {
            driver.offer(0);
            assert_eq!(ring.pop(), Ok(Some(0)));
            ring.push(0, 0);
            ring.wants_interrupt()
        };
        assert!(use_one(&mut driver), "at the first, as nothing else is asked for");
        assert!(!use_one(&mut driver));
        driver.interrupt_after(2);
        assert!(use_one(&mut driver));
        assert!(!ring.wants_interrupt(), "nothing was used since");
        ring.listen();
        assert_eq!(driver.notify_after(), 3);

        let mut plain = Driver::new();
        let mut ring = plain.ring(false);
        plain.offer(0);
        assert_eq!((ring.pop(), plain.wants_no_notification()), (Ok(Some(0)), true));
        ring.push(0, 0);
        assert!(ring.wants_interrupt());
        ring.listen();
        assert!(!plain.wants_no_notification());
        plain.write(AVAILABLE_AT, &QUIET.to_le_bytes());
        ring.push(0, 0);
        assert!(!ring.wants_interrupt());
    }

    #[test]
    fn more_than_there_is_cannot_be_available() {
        let driver = Driver::new();
        let mut ring = driver.ring(true);
        driver.write(AVAILABLE_AT + 2, &(QUEUE_SIZE + 1).to_le_bytes());
        assert_eq!(ring.pop(), Err(TooMany(QUEUE_SIZE + 1, QUEUE_SIZE)));
    }

    #[test]
    fn a_ring_that_is_not_whole_or_not_aligned_is_none() {
        let driver = Driver::new();
        let with = |change: fn(&mut VringAddresses)| {
            let mut addresses = driver.addresses();
            change(&mut addresses);
            Ring::new(QUEUE_SIZE, addresses, &driver.memory, true, 0).is_some()
        };
        assert!(with(|_| {}));
        assert!(!with(|at| at.descriptors += 8) && !with(|at| at.available += 1) && !with(|at| at.used += 2));
        assert!(!with(|at| at.descriptors = 0) && !with(|at| at.used = u64::MAX - 3));
    }
}
