//! The regions of one reactor by number, so that plain numbers can be turned into memory, checked.
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use slab::Slab;

use super::Region;
use crate::verbs::{Registration, Sge};

/// Which region each `lkey` names. A provider that registers memory with an adapter keeps its own keys
/// beside these numbers.
#[derive(Debug, Default)]
pub struct Memory {
    regions: RefCell<Slab<Arc<Region>>>,
    /// Numbers taken away, since the beginning.
    unregistered: Cell<u64>,
}

impl Memory {
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::default()
    }

    /// Gives a region its number. It stays alive until [`Self::unregister`], or as long as this table.
    ///
    /// # Panics
    /// After four billion regions.
    pub fn register(&self, region: Arc<Region>) -> u32 {
        u32::try_from(self.regions.borrow_mut().insert(region)).expect("regions are few")
    }

    /// Takes a region's number away; another region may get it. Nothing in flight may name it any more.
    ///
    /// # Panics
    /// If there is no region of this number.
    pub fn unregister(&self, lkey: u32) -> Arc<Region> {
        self.unregistered.set(self.unregistered.get() + 1);
        self.regions.borrow_mut().remove(index(lkey))
    }

    /// A number which grows with each region that loses its own: whoever keeps something of regions looks then whether they
    /// are still there.
    #[must_use]
    pub fn unregistered(&self) -> u64 {
        self.unregistered.get()
    }

    /// How a piece of a region may be lent where buffers are lent in this way: see [`Registration::for_memory`].
    ///
    /// # Panics
    /// If there is no such region.
    #[must_use]
    pub fn lends(&self, lkey: u32, registration: Registration) -> Registration {
        registration.for_memory(self.regions.borrow()[index(lkey)].is_passing())
    }

    /// Whether this number is still the one of this region.
    #[must_use]
    pub fn is_registered(&self, lkey: u32, region: &Arc<Region>) -> bool {
        self.regions.borrow().get(index(lkey)).is_some_and(|one| Arc::ptr_eq(one, region))
    }

    /// The region of this number.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn region(&self, lkey: u32) -> Arc<Region> {
        Arc::clone(&self.regions.borrow()[index(lkey)])
    }

    /// All of `region`'s memory from `offset` on, `length` bytes, under its number.
    #[must_use]
    pub fn sge(&self, lkey: u32, offset: u64, length: u32) -> Sge {
        let address = self.regions.borrow()[index(lkey)].address() + offset;
        Sge { address, length, lkey }
    }

    /// A whole region under its number, or as much of it as one element names.
    #[must_use]
    pub fn whole(&self, lkey: u32) -> Sge {
        let length = self.regions.borrow()[index(lkey)].len();
        self.sge(lkey, 0, u32::try_from(length).unwrap_or(u32::MAX))
    }

    /// The memory itself, for the kernel. Whoever passes it on holds what keeps it (a lease, a message).
    ///
    /// # Panics
    /// If the element does not lie in the region it names: a bug of ours, never a peer's doing.
    #[must_use]
    pub fn pointer(&self, sge: Sge) -> NonNull<u8> {
        let regions = self.regions.borrow();
        let region = &regions[index(sge.lkey)];
        region.pointer(offset_in(region, sge), sge.length as usize)
    }

    /// Copies `bytes` to the start of `to`.
    ///
    /// # Panics
    /// If they do not fit, or the element is not in its region.
    pub fn write(&self, to: Sge, bytes: &[u8]) {
        assert!(bytes.len() <= to.length as usize, "more bytes than room");
        let regions = self.regions.borrow();
        let region = &regions[index(to.lkey)];
        region.write(offset_in(region, to), bytes);
    }

    /// Copies from the start of `from` until `into` is full.
    ///
    /// # Panics
    /// If `from` is shorter, or the element is not in its region.
    pub fn read(&self, from: Sge, into: &mut [u8]) {
        assert!(into.len() <= from.length as usize, "less bytes than wanted");
        let regions = self.regions.borrow();
        let region = &regions[index(from.lkey)];
        region.read(offset_in(region, from), into);
    }

    /// Copies all of `from` to the start of `to`.
    ///
    /// # Panics
    /// If it does not fit, or an element is not in its region.
    pub fn copy(&self, from: Sge, to: Sge) {
        assert!(from.length <= to.length, "more bytes than room");
        let regions = self.regions.borrow();
        let (source, sink) = (&regions[index(from.lkey)], &regions[index(to.lkey)]);
        sink.copy_from(offset_in(sink, to), source, offset_in(source, from), from.length as usize);
    }

    /// Copies what lies at `offset` of a region which has no number here to `to`, and fills it.
    ///
    /// # Panics
    /// If the region ends before, or the element is not in its own.
    pub fn fill(&self, to: Sge, from: &Region, offset: usize) {
        let regions = self.regions.borrow();
        let sink = &regions[index(to.lkey)];
        sink.copy_from(offset_in(sink, to), from, offset, to.length as usize);
    }

    /// Copies all of `from` to `offset` of a region which has no number here.
    ///
    /// # Panics
    /// If the region ends before, or the element is not in its own.
    pub fn pour(&self, from: Sge, to: &Region, offset: usize) {
        let regions = self.regions.borrow();
        let source = &regions[index(from.lkey)];
        to.copy_from(offset, source, offset_in(source, from), from.length as usize);
    }

    /// Sets all of `at` to zero.
    ///
    /// # Panics
    /// If the element is not in its region.
    pub fn zero(&self, at: Sge) {
        let regions = self.regions.borrow();
        let region = &regions[index(at.lkey)];
        region.zero(offset_in(region, at), at.length as usize);
    }
}

fn index(lkey: u32) -> usize {
    lkey as usize
}

/// `wrapping_sub` turns an address before the region into an offset far beyond it, which the region refuses.
fn offset_in(region: &Region, sge: Sge) -> usize {
    usize::try_from(sge.address.wrapping_sub(region.address())).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_reach_their_bytes() {
        let memory = Memory::new();
        memory.register(Region::new(4096).unwrap());
        let lkey = memory.register(Region::new(8192).unwrap());
        let element = memory.sge(lkey, 100, 5);
        memory.write(element, b"hello");
        let elsewhere = memory.sge(0, 0, 8);
        memory.copy(element, elsewhere);
        let mut back = [0; 5];
        memory.read(elsewhere, &mut back);
        assert_eq!(&back, b"hello");
    }

    #[test]
    #[should_panic(expected = "beyond the region")]
    fn an_element_under_a_wrong_key_is_caught() {
        let memory = Memory::new();
        memory.register(Region::new(4096).unwrap());
        memory.register(Region::new(4096).unwrap());
        let element = memory.sge(1, 0, 16);
        memory.write(Sge { lkey: 0, address: element.address.wrapping_sub(1 << 40), ..element }, &[1]);
    }
}
