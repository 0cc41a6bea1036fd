//! Where hosts ask for connections by an adapter; and what becomes of that when the adapter is taken away and comes back.
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rdma_sys::{ibv_async_event, ibv_event_type, rdma_cm_event, rdma_cm_event_type};

use super::cm::{CmId, EventChannel, Incoming, private_data};
use super::in_use::InUse;
use super::library::{Library, text};

/// Connect requests that wait for the acceptor.
const BACKLOG: i32 = 1024;

/// A listener at an address which an adapter owns.
pub struct Listener {
    library: &'static Library,
    at: SocketAddr,
    /// Nothing while the adapter is away.
    bound: Option<Bound>,
}

/// The identifier goes before the channel.
struct Bound {
    in_use: InUse,
    id: CmId,
    channel: Arc<EventChannel>,
}

impl Bound {
    fn new(library: &'static Library, at: SocketAddr) -> io::Result<Self> {
        let channel = EventChannel::new(library)?;
        let id = CmId::new(library, &channel)?;
        id.bind(at)?;
        if id.verbs().is_null() {
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no RDMA adapter owns the address"));
        }
        // SAFETY: the identifier keeps the adapter open, and goes after.
        let in_use = unsafe { InUse::new(id.verbs()) };
        let bound = Self { in_use, id, channel: Arc::new(channel) };
        fcntl(bound.news(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(bound)
    }

    /// Readable when the adapter has something to say of itself.
    fn news(&self) -> BorrowedFd<'_> {
        // SAFETY: the identifier keeps the adapter open.
        let descriptor = unsafe { (*self.id.verbs()).async_fd };
        // SAFETY: the descriptor is the adapter's, and open as long.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl Listener {
    /// Takes an address which an adapter owns; it is listened at from [`Self::listen`] on.
    ///
    /// # Errors
    /// What librdmacm says, the address being in use for example.
    pub fn bind(at: SocketAddr) -> io::Result<Self> {
        let library = Library::get().map_err(io::Error::other)?;
        Ok(Self { library, at, bound: Some(Bound::new(library, at)?) })
    }

    /// From now on connect requests come.
    ///
    /// # Errors
    /// What librdmacm says.
    pub fn listen(&self) -> io::Result<()> {
        self.bound.as_ref().map_or(Ok(()), |bound| bound.id.listen(BACKLOG))
    }

    /// Whether its adapter is away: nothing comes until it is bound again.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        self.bound.is_none()
    }

    /// Takes the address again, once an adapter owns it.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_again(&mut self) -> io::Result<()> {
        self.bound = Some(Bound::new(self.library, self.at)?);
        Ok(())
    }

    /// Readable when a connect request has come, or the adapter has something to say.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.bound.iter().flat_map(|bound| [bound.channel.as_fd(), bound.news()])
    }

    /// The next connect request, if one waits.
    pub fn accept(&mut self) -> Option<Incoming> {
        loop {
            let Bound { channel, in_use, .. } = self.bound.as_ref()?;
            let event = channel.take()?;
            // SAFETY: an event that was not acknowledged yet.
            let kind = unsafe { (*event).event };
            let incoming = match kind {
                rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST => {
                    Some(incoming(self.library, channel, event))
                }
                // Of a connection which its peer gave up before a reactor had it.
                _ => None,
            };
            channel.acknowledge(event);
            if kind == rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL {
                tracing::error!(at = %self.at, "the adapter is taken away; it is listened at again once it is back");
                in_use.is_removed();
                self.bound = None;
            }
            if incoming.is_some() {
                return incoming;
            }
        }
    }

    /// Takes what the adapter has to say of itself, and says it in the log. Connections learn of what concerns them by
    /// their completions.
    pub fn log_adapter_news(&self) {
        let Some(Bound { id, .. }) = &self.bound else { return };
        let mut event = MaybeUninit::<ibv_async_event>::uninit();
        // SAFETY: the identifier keeps the adapter open, and there is a place for the event.
        while unsafe { (self.library.get_async_event)(id.verbs(), event.as_mut_ptr()) } == 0 {
            let kind = kind_of(&event);
            // SAFETY: it takes any number.
            let said = unsafe { (self.library.event_type_str)(kind) };
            // SAFETY: a constant string of the library.
            let said = text(unsafe { CStr::from_ptr(said) });
            let at = self.at;
            if kind == ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32 {
                tracing::error!(%at, said, "the adapter fails");
            } else if kind == ibv_event_type::IBV_EVENT_PORT_ERR as u32 {
                tracing::warn!(%at, said, "the adapter's link is down");
            } else if kind == ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32 {
                tracing::info!(%at, said, "the adapter's link is up");
            } else {
                tracing::debug!(%at, said, "the adapter says");
            }
            // SAFETY: just taken, and acknowledged once.
            unsafe { (self.library.ack_async_event)(event.as_mut_ptr()) };
        }
    }
}

/// Which kind of event was filled in. As a number, since it may be one that the headers do not know.
fn kind_of(event: &MaybeUninit<ibv_async_event>) -> u32 {
    // SAFETY: the place of a member lies within.
    let kind = unsafe { &raw const (*event.as_ptr()).event_type };
    // SAFETY: filled in by the caller, and as large as a number.
    unsafe { kind.cast::<u32>().read() }
}

/// `event` is a connect request which was not acknowledged yet.
fn incoming(library: &'static Library, channel: &Arc<EventChannel>, event: *mut rdma_cm_event) -> Incoming {
    // SAFETY: an event that was not acknowledged yet.
    let id = unsafe { (*event).id };
    // SAFETY: as above.
    let said = unsafe { &(*event).param };
    // SAFETY: of a connect request this is the member that counts.
    let asked = unsafe { said.conn };
    // SAFETY: it was not acknowledged yet.
    let private_data = unsafe { private_data(&asked) };
    // SAFETY: the identifier of a request is ours from now on.
    let id = unsafe { CmId::of_request(library, id) };
    let (peer, local) = (id.peer(), id.local());
    // What the peer answers at once is what we may have outstanding.
    Incoming { id, channel: Arc::clone(channel), peer, local, private_data, reads: asked.initiator_depth }
}
