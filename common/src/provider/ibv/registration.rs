//! Memory registered with an adapter, as long as the value lives.
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd, ibv_sge};

use super::library::Library;
use crate::memory::Region;
use crate::provider::receives::Receives;
use crate::verbs::{Sge, Token};

/// A region registered with an adapter. It holds the region, so that its addresses are no other's meanwhile.
pub(super) struct Registration {
    library: &'static Library,
    mr: *mut ibv_mr,
    pub(super) region: Arc<Region>,
}

impl Registration {
    /// # Safety
    /// The domain is valid, and outlives this.
    pub(super) unsafe fn new(
        library: &'static Library,
        pd: *mut ibv_pd,
        region: Arc<Region>,
        access: ibv_access_flags,
    ) -> io::Result<Self> {
        let bytes = 0..region.len();
        // SAFETY: the caller's promise.
        unsafe { Self::part(library, pd, region, bytes, access) }
    }

    /// A part of a region.
    ///
    /// # Safety
    /// As [`Self::new`].
    pub(super) unsafe fn part(
        library: &'static Library,
        pd: *mut ibv_pd,
        region: Arc<Region>,
        bytes: Range<usize>,
        access: ibv_access_flags,
    ) -> io::Result<Self> {
        region.prefer_huge_pages();
        region.pin();
        let base = region.pointer(bytes.start, bytes.len()).as_ptr().cast();
        // SAFETY: the region is mapped, and is held until the registration is given back.
        let mr = unsafe { (library.reg_mr)(pd, base, bytes.len(), access.0.cast_signed()) };
        if mr.is_null() {
            let error = io::Error::last_os_error();
            let bytes = bytes.len();
            let text = format!(
                "{bytes} bytes of memory cannot be registered with the adapter ({error}); is `ulimit -l` too low?"
            );
            return Err(io::Error::new(error.kind(), text));
        }
        Ok(Self { library, mr, region })
    }

    /// A piece of the region as the adapter names it; nothing if it lies elsewhere.
    pub(super) fn piece(&self, sge: Sge) -> Option<ibv_sge> {
        let offset = sge.address.wrapping_sub(self.region.address());
        let length = self.region.len() as u64;
        let inside = offset <= length && u64::from(sge.length) <= length - offset;
        // SAFETY: registered, and not given back yet.
        let lkey = unsafe { (*self.mr).lkey };
        inside.then_some(ibv_sge { addr: sge.address, length: sge.length, lkey })
    }
}

impl Registration {
    /// The key under which the peer may reach it, if it was registered for that.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: registered, and not given back yet.
        unsafe { (*self.mr).rkey }
    }

    /// As work that binds a window to it names it.
    pub(super) const fn handle(&self) -> *mut ibv_mr {
        self.mr
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered by us, and given back once; whoever drops it has nothing posted that names it.
        let result = unsafe { (self.library.dereg_mr)(self.mr) };
        debug_assert!(super::adapter::is_gone(result), "a region stays registered: {result}");
    }
}

/// Buffers of one connection. The registration goes first.
pub(super) struct Buffers {
    pub(super) registration: Registration,
    pub(super) receives: Receives,
}

impl Buffers {
    /// A buffer as the adapter names it.
    pub(super) fn piece(&self, buffer: u32) -> ibv_sge {
        self.registration.piece(self.receives.buffer(buffer)).expect("a buffer lies within its region")
    }
}

/// What RDMA Reads under way write to, where an adapter wants that registered for its peer.
pub(super) struct Sinks(Vec<(Token, Registration)>);

impl Sinks {
    /// Of so many RDMA Reads at once.
    pub(super) fn new(reads: u32) -> Self {
        Self(Vec::with_capacity(reads as usize))
    }

    pub(super) fn lend(&mut self, token: Token, sink: Registration) {
        self.0.push((token, sink));
    }

    /// Work has completed: what its peer could write to for that is its no more.
    pub(super) fn end(&mut self, token: Token) {
        if let Some(index) = self.0.iter().position(|(of, _)| *of == token) {
            drop(self.0.swap_remove(index));
        }
    }
}

/// A libibverbs which registers memory with nobody.
#[cfg(test)]
pub(super) mod mock {
    use std::cell::RefCell;
    use std::ffi::{c_int, c_void};
    use std::mem::zeroed;

    use super::*;

    thread_local! {
        /// What is registered: where, how much, and what for.
        pub(in super::super) static REGISTERED: RefCell<Vec<(usize, usize, c_int)>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn reg_mr(
        _: *mut ibv_pd,
        base: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr {
        REGISTERED.with_borrow_mut(|all| all.push((base.addr(), length, access)));
        // SAFETY: numbers and pointers, for which zeroes are valid.
        let mut mr: ibv_mr = unsafe { zeroed() };
        mr.addr = base;
        Box::into_raw(Box::new(mr))
    }

    unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
        // SAFETY: made above.
        let mr = unsafe { Box::from_raw(mr) };
        REGISTERED.with_borrow_mut(|all| all.retain(|(base, ..)| *base != mr.addr.addr()));
        0
    }

    pub(in super::super) fn library() -> Library {
        let real = Library::get().expect("what building takes brings the libraries");
        Library { reg_mr, dereg_mr, ..real.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::mock::REGISTERED;
    use super::*;
    use crate::verbs::Kind;

    #[test]
    fn a_sink_is_its_peers_as_long_as_its_read_is_under_way_and_no_further_than_it_reaches() {
        let library = Box::leak(Box::new(mock::library()));
        let region = Region::new(3 * 4096).unwrap();
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let token = |slot| Token { kind: Kind::Fetch, generation: 1, qpair: 2, slot };
        let mut sinks = Sinks::new(2);
        for slot in 0..2_u16 {
            let bytes = usize::from(slot) * 8192..usize::from(slot) * 8192 + 512;
            // SAFETY: nothing looks at the domain.
            let sink = unsafe { Registration::part(library, null_mut(), Arc::clone(&region), bytes, access) };
            sinks.lend(token(slot), sink.unwrap());
        }
        let start = region.pointer(0, 1).as_ptr().addr();
        let flags = access.0.cast_signed();
        let both = [(start, 512, flags), (start + 8192, 512, flags)];
        assert_eq!(REGISTERED.with_borrow(Clone::clone), both);
        // A response of the same slot is other work.
        sinks.end(Token { kind: Kind::Respond, ..token(0) });
        assert_eq!(REGISTERED.with_borrow(Vec::len), 2);
        sinks.end(token(0));
        assert_eq!(REGISTERED.with_borrow(Clone::clone), both[1..]);
        drop(sinks);
        assert_eq!(REGISTERED.with_borrow(Vec::len), 0);
    }
}
