//! How a connection's buffers are lent to the peer, by what the adapter has: memory windows bound for one command, the
//! region's own key, or a region registered for one command.
use std::io;

use rdma_sys::{
    ibv_access_flags, ibv_alloc_mw, ibv_dealloc_mw, ibv_device_attr, ibv_device_cap_flags, ibv_mw,
    ibv_mw_type, ibv_pd,
};

use super::adapter::{Adapter, LOCAL};
use super::queue_pair::Binding;
use super::registration::Registration as Registered;
use crate::verbs::{Access, Exposure, MrHandle, Registration, Remote, Sge};

/// Which end of connections this is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    /// It reads and writes what others lend.
    Target,
    /// It lends, as asked or in the safest way there is.
    Host(Option<Registration>),
}

/// What is lent by a connection; it goes before the queue pair, since an adapter may not let go of one to which a window
/// is bound (Linux's rxe waits for it in vain).
pub(super) enum Lending {
    /// Nothing: this end serves, or it has ended.
    Nothing,
    Windows(Vec<Window>),
    /// The key of the region, which is registered for the peer's use; but of others' memory the piece, as below.
    Pool(Vec<Option<Registered>>),
    /// For each buffer that may be lent, the registration while it is.
    Dynamic(Vec<Option<Registered>>),
}

impl Lending {
    pub(super) const fn new(registration: Registration) -> Self {
        match registration {
            Registration::Window => Self::Windows(Vec::new()),
            Registration::Pool => Self::Pool(Vec::new()),
            Registration::Dynamic => Self::Dynamic(Vec::new()),
        }
    }

    /// One more buffer may be lent.
    pub(super) fn allocate(&mut self, adapter: &Adapter) -> io::Result<MrHandle> {
        let number = match self {
            Self::Nothing => 0,
            Self::Windows(windows) => {
                windows.push(adapter.window()?);
                windows.len() - 1
            }
            Self::Pool(places) | Self::Dynamic(places) => {
                places.push(None);
                places.len() - 1
            }
        };
        u16::try_from(number).map(MrHandle).map_err(io::Error::other)
    }

    /// As what the peer will know a buffer. A window is not bound yet; the others are in force at once.
    pub(super) fn prepare(
        &mut self,
        adapter: &mut Adapter,
        mr: MrHandle,
        sge: Sge,
        access: Access,
    ) -> io::Result<Remote> {
        let rkey = match self {
            Self::Nothing => return Err(io::Error::other("nothing can be lent any more")),
            Self::Windows(windows) => windows[usize::from(mr.0)].next_key(),
            Self::Pool(_) if !adapter.is_passing(sge) => adapter.key(sge)?,
            Self::Pool(places) | Self::Dynamic(places) => {
                let registered = adapter.register_for_peer(sge, rights(access))?;
                places[usize::from(mr.0)].insert(registered).rkey()
            }
        };
        Ok(Remote { address: sge.address, rkey })
    }

    /// The work which puts a key in force, if it takes any.
    pub(super) fn binding(&self, adapter: &mut Adapter, exposure: &Exposure) -> io::Result<Option<Binding>> {
        let Self::Windows(windows) = self else { return Ok(None) };
        let window = &windows[usize::from(exposure.mr.0)];
        let (region, sge) = (adapter.region(exposure.sge)?, exposure.sge);
        Ok(Some(Binding {
            window: window.mw,
            region,
            sge,
            key: exposure.remote.rkey,
            access: rights(exposure.access),
        }))
    }

    /// The work which binds a window was posted: the library does not write its key down by itself.
    pub(super) fn bound(&mut self, exposure: &Exposure) {
        if let Self::Windows(windows) = self {
            windows[usize::from(exposure.mr.0)].set_key(exposure.remote.rkey);
        }
    }

    /// Ends a key which no work is needed to end. False if work is.
    pub(super) fn end(&mut self, key: u32) -> bool {
        match self {
            Self::Windows(_) => false,
            Self::Pool(places) | Self::Dynamic(places) => {
                let of_key =
                    |place: &&mut Option<Registered>| place.as_ref().is_some_and(|one| one.rkey() == key);
                places.iter_mut().find(of_key).and_then(Option::take);
                true
            }
            Self::Nothing => true,
        }
    }

    pub(super) const fn registration(&self) -> Registration {
        match self {
            Self::Nothing | Self::Windows(_) => Registration::Window,
            Self::Pool(_) => Registration::Pool,
            Self::Dynamic(_) => Registration::Dynamic,
        }
    }
}

/// How an adapter is to lend: as asked, or the safest way that it has.
///
/// # Errors
/// If it has not what was asked for.
pub(super) fn choose(limits: &ibv_device_attr, asked: Option<Registration>) -> io::Result<Registration> {
    let kinds = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A
        | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    let windows = limits.max_mw > 0 && limits.device_cap_flags & kinds.0 != 0;
    match asked {
        Some(Registration::Window) if !windows => Err(io::Error::other(
            "the adapter has no type-2 memory windows: take --registration pool, if the target is trusted, or dynamic, which is slower",
        )),
        Some(asked) => Ok(asked),
        None if windows => Ok(Registration::Window),
        None => Ok(Registration::Pool),
    }
}

/// What an adapter may do itself with regions that are lent in this way, and lend.
pub(super) fn region_access(registration: Registration) -> ibv_access_flags {
    match registration {
        Registration::Window => LOCAL | ibv_access_flags::IBV_ACCESS_MW_BIND,
        Registration::Pool => {
            LOCAL | ibv_access_flags::IBV_ACCESS_REMOTE_READ | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        }
        Registration::Dynamic => LOCAL,
    }
}

fn rights(access: Access) -> ibv_access_flags {
    match access {
        Access::RemoteRead => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        Access::RemoteWrite => ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
    }
}

/// A type-2 memory window.
pub(super) struct Window {
    mw: *mut ibv_mw,
}

impl Window {
    /// # Safety
    /// The domain is valid, and outlives this.
    pub(super) unsafe fn new(pd: *mut ibv_pd) -> io::Result<Self> {
        // SAFETY: the caller's promise.
        let mw = unsafe { ibv_alloc_mw(pd, ibv_mw_type::IBV_MW_TYPE_2) };
        match mw.filter(|mw| !mw.is_null()) {
            Some(mw) => Ok(Self { mw }),
            None => {
                let error = io::Error::last_os_error();
                let text = format!(
                    "the adapter has no memory window left ({error}): a smaller --queue-size or fewer --nr-io-queues need fewer, --registration pool none"
                );
                Err(io::Error::new(error.kind(), text))
            }
        }
    }

    /// The key after the one it has: the last eight bits are the consumer's, and go round.
    fn next_key(&self) -> u32 {
        // SAFETY: allocated, and not given back yet.
        let key = unsafe { (*self.mw).rkey };
        key & !0xFF | key.wrapping_add(1) & 0xFF
    }

    fn set_key(&mut self, key: u32) {
        // SAFETY: as above; the field is the consumer's to keep where windows are bound by posted work.
        unsafe { (*self.mw).rkey = key };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: allocated by us, given back once; whoever drops it posts no work that names it any more.
        let result = unsafe { ibv_dealloc_mw(self.mw) };
        debug_assert!(super::adapter::is_gone(result), "a memory window stays: {result}");
    }
}

#[cfg(test)]
mod tests {
    use std::mem::zeroed;

    use super::*;

    fn limits(max_mw: i32, flags: u32) -> ibv_device_attr {
        // SAFETY: numbers, for which zeroes are valid.
        let mut limits: ibv_device_attr = unsafe { zeroed() };
        limits.max_mw = max_mw;
        limits.device_cap_flags = flags;
        limits
    }

    #[test]
    fn the_safest_way_there_is_is_taken_unless_another_is_asked_for() {
        let type_1 = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW.0;
        let type_2 = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        assert_eq!(choose(&limits(8, type_2), None).unwrap(), Registration::Window);
        for lacking in [limits(0, type_2), limits(8, type_1)] {
            assert_eq!(choose(&lacking, None).unwrap(), Registration::Pool);
            let refused = choose(&lacking, Some(Registration::Window)).unwrap_err().to_string();
            assert!(refused.contains("--registration pool"), "{refused}");
        }
        for asked in [Registration::Pool, Registration::Dynamic] {
            assert_eq!(choose(&limits(8, type_2), Some(asked)).unwrap(), asked);
        }
    }

    #[test]
    fn the_consumers_part_of_a_key_goes_round() {
        for (key, next) in [(0x1234_5600, 0x1234_5601), (0x1234_56FF, 0x1234_5600), (u32::MAX, 0xFFFF_FF00)] {
            // SAFETY: numbers and pointers, for which zeroes are valid.
            let mut mw: ibv_mw = unsafe { zeroed() };
            mw.rkey = key;
            let mut window = std::mem::ManuallyDrop::new(Window { mw: &raw mut mw });
            assert_eq!(window.next_key(), next);
            window.set_key(next);
            assert_ne!(window.next_key(), next);
        }
    }
}
