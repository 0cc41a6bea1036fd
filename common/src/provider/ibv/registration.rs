//! Memory registered with an adapter, as long as the value lives.
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd, ibv_sge};

use super::library::Library;
use crate::memory::Region;
use crate::provider::receives::Receives;
use crate::verbs::Sge;

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
