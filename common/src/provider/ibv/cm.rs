//! Connection management by librdmacm: what it hands out belongs to a value here, which gives it back.
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::zeroed;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use rdma_sys::{
    ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, rdma_cm_event,
    rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
};

use super::library::{Library, text};
use crate::verbs::PrivateData;

/// Where the kernel offers connection management, if it does.
const MANAGEMENT: &str = "/dev/infiniband/rdma_cm";

/// Where events come; never waits.
pub(super) struct EventChannel {
    library: &'static Library,
    channel: *mut rdma_event_channel,
}

/// One event that was acknowledged already.
pub(super) struct Happened {
    /// What [`CmId::set_context`] was told.
    pub(super) context: usize,
    pub(super) event: rdma_cm_event_type::Type,
    /// Zero, an error of the system below it, or the reason of a rejection above.
    pub(super) status: i32,
    /// What came with it, of the peer that was connected to.
    pub(super) private_data: PrivateData,
    said: String,
}

impl Happened {
    /// Its status, if that is an error of the system.
    pub(super) fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.status.saturating_abs())
    }

    #[cfg(test)]
    pub(super) fn of(event: rdma_cm_event_type::Type, status: i32, private_data: PrivateData) -> Self {
        Self { context: 0, event, status, private_data, said: String::new() }
    }
}

impl fmt::Display for Happened {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.event {
            rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED => out.write_str("closed by the peer"),
            rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => out.write_str("the adapter was removed"),
            _ => write!(out, "connection management says {} ({})", self.said, self.status),
        }
    }
}

// SAFETY: librdmacm locks its own; a channel is used by one thread at a time, its owner's.
unsafe impl Send for EventChannel {}
// SAFETY: as above; other threads only keep one from being destroyed.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    pub(super) fn new(library: &'static Library) -> io::Result<Self> {
        // SAFETY: it takes nothing.
        let channel = unsafe { (library.create_event_channel)() };
        if channel.is_null() {
            return Err(io::Error::last_os_error());
        }
        let made = Self { library, channel };
        fcntl(made.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(made)
    }

    /// The next event, whatever it is about.
    pub(super) fn next(&self) -> Option<Happened> {
        let event = self.take()?;
        // SAFETY: an event that was not acknowledged yet.
        let rdma_cm_event { id, event: kind, status, param, .. } = unsafe { &*event };
        let private_data = match *kind {
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED | rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => {
                // SAFETY: of these this is the member that counts.
                let said = unsafe { &param.conn };
                // SAFETY: the event was not acknowledged yet.
                unsafe { private_data(said) }
            }
            _ => PrivateData::new(),
        };
        // SAFETY: an event's identifier lives until the event is acknowledged.
        let context = unsafe { (**id).context };
        let happened = Happened {
            context: context.addr(),
            event: *kind,
            status: *status,
            private_data,
            said: self.name(*kind),
        };
        self.acknowledge(event);
        Some(happened)
    }

    pub(super) fn take(&self) -> Option<*mut rdma_cm_event> {
        let mut event = null_mut();
        // SAFETY: the channel is ours, and there is a place for the event.
        let result = unsafe { (self.library.get_cm_event)(self.channel, &raw mut event) };
        (result == 0).then_some(event)
    }

    fn name(&self, kind: rdma_cm_event_type::Type) -> String {
        // SAFETY: it takes any number.
        let name = unsafe { (self.library.event_str)(kind) };
        // SAFETY: a constant string of the library.
        text(unsafe { CStr::from_ptr(name) })
    }

    pub(super) fn acknowledge(&self, event: *mut rdma_cm_event) {
        // SAFETY: taken from this channel, and acknowledged once.
        unsafe { (self.library.ack_cm_event)(event) };
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is ours until it is dropped.
        let descriptor = unsafe { (*self.channel).fd };
        // SAFETY: the descriptor is the channel's, and open as long.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once; whoever made identifiers on it has destroyed them.
        unsafe { (self.library.destroy_event_channel)(self.channel) };
    }
}

/// One end of a connection, or a listener.
pub(super) struct CmId {
    library: &'static Library,
    id: *mut rdma_cm_id,
    /// Whether a queue pair was made of it.
    has_queue_pair: bool,
}

// SAFETY: librdmacm locks its own; an identifier is used by one thread at a time, its owner's.
unsafe impl Send for CmId {}

/// A connect request on its way from the listener to a reactor. Its identifier goes before the channel.
pub struct Incoming {
    pub(super) id: CmId,
    /// The listener's, to which the identifier belongs until a reactor takes it over.
    pub(super) channel: Arc<EventChannel>,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) private_data: PrivateData,
    pub(super) reads: u8,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Incoming({} to {})", self.peer, self.local)
    }
}

impl CmId {
    pub(super) fn new(library: &'static Library, channel: &EventChannel) -> io::Result<Self> {
        let mut id = null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is valid, and there is a place for the identifier.
        let result = unsafe { (library.create_id)(channel.channel, &raw mut id, null_mut(), space) };
        checked(result)?;
        Ok(Self { library, id, has_queue_pair: false })
    }

    pub(super) fn migrate(&self, to: &EventChannel) -> io::Result<()> {
        // SAFETY: both are valid, and no event of this identifier is unacknowledged.
        checked(unsafe { (self.library.migrate_id)(self.id, to.channel) })
    }

    /// The identifier of a connect request.
    ///
    /// # Safety
    /// It is valid, and nobody else's.
    pub(super) const unsafe fn of_request(library: &'static Library, id: *mut rdma_cm_id) -> Self {
        Self { library, id, has_queue_pair: false }
    }

    /// Listens at the address that it is bound to.
    pub(super) fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the identifier is valid and bound.
        checked(unsafe { (self.library.listen)(self.id, backlog) })
    }

    /// The address of the peer.
    pub(super) fn peer(&self) -> SocketAddr {
        // SAFETY: the identifier is valid.
        let addresses = unsafe { &(*self.id).route.addr };
        address((&raw const addresses.dst_addr_union).cast())
    }

    /// What its events are to name.
    pub(super) fn set_context(&self, context: usize) {
        // SAFETY: the identifier is valid; the field is the consumer's.
        unsafe { (*self.id).context = std::ptr::without_provenance_mut(context) };
    }

    /// Binds to an address, which chooses the adapter that owns it.
    pub(super) fn bind(&self, at: SocketAddr) -> io::Result<()> {
        let address = SockaddrStorage::from(at);
        // SAFETY: the identifier is valid, and the address is only read, through a pointer the C type has unconst.
        checked(unsafe { (self.library.bind_addr)(self.id, address.as_ptr().cast_mut().cast()) })
    }

    /// Asks which adapter has a way to an address. An event tells.
    pub(super) fn resolve_address(&self, to: SocketAddr, timeout_ms: i32) -> io::Result<()> {
        let to = SockaddrStorage::from(to);
        let to = to.as_ptr().cast_mut().cast();
        // SAFETY: the identifier is valid, and the address is only read, through a pointer the C type has unconst.
        checked(unsafe { (self.library.resolve_addr)(self.id, null_mut(), to, timeout_ms) })
    }

    /// Asks for the route to the address that was resolved. An event tells.
    pub(super) fn resolve_route(&self, timeout_ms: i32) -> io::Result<()> {
        // SAFETY: the identifier is valid.
        checked(unsafe { (self.library.resolve_route)(self.id, timeout_ms) })
    }

    /// Asks the peer. An event tells.
    pub(super) fn connect(&self, request: &mut rdma_conn_param) -> io::Result<()> {
        // SAFETY: the identifier is valid, and the private data lives until it returns.
        checked(unsafe { (self.library.connect)(self.id, request) })
    }

    /// The address of ours that it is bound to.
    pub(super) fn local(&self) -> SocketAddr {
        // SAFETY: the identifier is valid.
        let addresses = unsafe { &(*self.id).route.addr };
        address((&raw const addresses.src_addr_union).cast())
    }

    /// The adapter, which librdmacm keeps open as long as this is there; null before an address is bound to one.
    pub(super) fn verbs(&self) -> *mut ibv_context {
        // SAFETY: the identifier is valid.
        unsafe { (*self.id).verbs }
    }

    /// Makes a queue pair which belongs to this.
    pub(super) fn create_queue_pair(
        &mut self,
        pd: *mut ibv_pd,
        wish: &mut ibv_qp_init_attr,
    ) -> io::Result<*mut ibv_qp> {
        // SAFETY: the identifier and the domain are valid, and of the same adapter.
        checked(unsafe { (self.library.create_qp)(self.id, pd, wish) })?;
        self.has_queue_pair = true;
        // SAFETY: the identifier is valid.
        Ok(unsafe { (*self.id).qp })
    }

    /// How long the peer is to wait before it sends again what has found no receive, by its number in the InfiniBand
    /// Architecture's table of RNR NAK timers. Its queue pair is ready to send.
    pub(super) fn set_retry_pause(&self, number: u8) -> io::Result<()> {
        // SAFETY: numbers, for which zeroes are valid.
        let mut wish: ibv_qp_attr = unsafe { zeroed() };
        wish.min_rnr_timer = number;
        let what = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0.cast_signed();
        // SAFETY: the identifier is valid.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: made of this identifier, and not destroyed yet.
        match unsafe { (self.library.modify_qp)(qp, &raw mut wish, what) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// The number of the queue pair, if it has one.
    pub(super) fn queue_pair_number(&self) -> Option<u32> {
        // SAFETY: the identifier is valid.
        let qp = self.has_queue_pair.then(|| unsafe { (*self.id).qp })?;
        // SAFETY: made of this identifier, and not destroyed yet.
        Some(unsafe { (*qp).qp_num })
    }

    pub(super) fn destroy_queue_pair(&mut self) {
        if std::mem::take(&mut self.has_queue_pair) {
            // SAFETY: made of this identifier; nothing posts to it any more.
            unsafe { (self.library.destroy_qp)(self.id) };
        }
    }

    pub(super) fn accept(&self, answer: &mut rdma_conn_param) -> io::Result<()> {
        // SAFETY: the identifier is valid, and the private data lives until it returns.
        checked(unsafe { (self.library.accept)(self.id, answer) })
    }

    pub(super) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let length = u8::try_from(private_data.len()).map_err(io::Error::other)?;
        // SAFETY: the identifier is valid, and the bytes are as many.
        checked(unsafe { (self.library.reject)(self.id, private_data.as_ptr().cast(), length) })
    }

    pub(super) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the identifier is valid.
        checked(unsafe { (self.library.disconnect)(self.id) })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_queue_pair();
        // SAFETY: ours, destroyed once; its events are acknowledged as they are taken.
        unsafe { (self.library.destroy_id)(self.id) };
    }
}

/// The name of the adapter which owns an address of this machine, if one does.
///
/// # Errors
/// If adapters cannot be asked.
pub fn adapter_at(at: SocketAddr) -> io::Result<Option<String>> {
    let library = Library::get().map_err(io::Error::other)?;
    // Without an adapter librdmacm complains on the terminal.
    if !Path::new(MANAGEMENT).exists() {
        return Ok(None);
    }
    let channel = EventChannel::new(library)?;
    let id = CmId::new(library, &channel)?;
    match id.bind(SocketAddr::new(at.ip(), 0)) {
        Ok(()) if id.verbs().is_null() => Ok(None),
        // SAFETY: the identifier keeps the adapter open.
        Ok(()) => Ok(Some(unsafe { library.name_of(id.verbs()) })),
        // What librdmacm says of an address which no adapter, or nothing at all, owns.
        Err(error) if [Some(libc::ENODEV), Some(libc::EADDRNOTAVAIL)].contains(&error.raw_os_error()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What came with an event.
///
/// # Safety
/// The event was not acknowledged yet.
pub(super) unsafe fn private_data(of: &rdma_conn_param) -> PrivateData {
    let length = if of.private_data.is_null() { 0 } else { of.private_data_len.into() };
    let mut private_data = PrivateData::new();
    if length > 0 {
        // SAFETY: as many bytes, until the event is acknowledged.
        let bytes = unsafe { std::slice::from_raw_parts(of.private_data.cast::<u8>(), length) };
        private_data.extend(bytes.iter().copied().take(private_data.capacity()));
    }
    private_data
}

/// An address of an identifier, which is as large as any.
fn address(at: *const libc::sockaddr) -> SocketAddr {
    let nowhere = SocketAddr::V4(SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0));
    // SAFETY: the caller's promise; the family says how much of it counts.
    let Some(storage) = (unsafe { SockaddrStorage::from_raw(at, None) }) else { return nowhere };
    let v4 = storage.as_sockaddr_in().map(|at| SocketAddr::V4(SocketAddrV4::from(*at)));
    v4.or_else(|| storage.as_sockaddr_in6().map(|at| SocketAddr::V6(SocketAddrV6::from(*at))))
        .unwrap_or(nowhere)
}

fn checked(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
