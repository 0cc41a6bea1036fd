//! RDMA adapters as a reactor of the daemon gets ready for them: before a host can come by one it is open, and all memory
//! that commands are served from is registered with it, so that none has to wait for that.
use std::io;
use std::net::SocketAddr;

use ironside_common::reactor::Ring;

use super::{Reactor, ReactorError};
use crate::catalog::{Catalog, Way};

impl Reactor {
    /// Gets ready for hosts at the listeners there are.
    pub(super) fn open_adapters(&mut self, ring: &mut Ring) -> Result<(), ReactorError> {
        let at: Vec<_> = adapters_of(self.group.catalog()).collect();
        self.share_memory().map_err(ReactorError::Attach)?;
        at.into_iter()
            .try_for_each(|at| self.open_adapter(ring, at).map_err(|error| ReactorError::Adapter(at, error)))
    }

    /// Gets ready for hosts at the listeners of a version which is to come.
    pub(super) fn open_new_adapters(&mut self, ring: &mut Ring, next: &Catalog) -> io::Result<()> {
        // One that was there before may be away; it is opened once it is back.
        let old: Vec<_> = adapters_of(self.group.catalog()).collect();
        let mut new = adapters_of(next).filter(|at| !old.contains(at));
        new.try_for_each(|at| {
            let unusable = |error: io::Error| {
                io::Error::new(error.kind(), format!("the RDMA adapter at {at} cannot be used: {error}"))
            };
            self.open_adapter(ring, at).map_err(unusable)
        })
    }

    pub(super) fn open_adapter(&mut self, ring: &mut Ring, at: SocketAddr) -> io::Result<()> {
        self.group.verbs().open_adapter(at)?;
        if !std::mem::replace(&mut self.buffers_are_locked, true) {
            // Where the ring does not take it, transfers are somewhat slower.
            ring.register_region(self.buffers);
        }
        Ok(())
    }

    /// Has adapters know the buffers, and what media are served from in place.
    pub(super) fn share_memory(&mut self) -> io::Result<()> {
        let media = self.group.storage().backends.regions();
        let regions = media.chain([self.buffers]).collect();
        self.group.verbs().share(regions)
    }
}

/// The addresses which adapters serve.
fn adapters_of(catalog: &Catalog) -> impl Iterator<Item = SocketAddr> {
    catalog.listeners().iter().filter(|one| one.by == Way::Adapter).filter_map(|one| one.address.socket())
}
