//! An adapter of the tests' own making, behind the function tables and objects which libibverbs and librdmacm hand out:
//! connections by it are made, used and ended without any hardware. Each thread has one of its own.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::zeroed;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;
use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_srq_init_attr, ibv_transport_type, ibv_wc,
    rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
};

use super::cm::{CmId, EventChannel, Incoming};
use super::library::Library;
use super::registration;
use crate::verbs::PrivateData;

/// What the adapter was told, and what it is about to report.
#[derive(Default)]
pub(super) struct Seen {
    /// What connection management was told when a peer was answered, and asked.
    pub(super) accepted: Vec<rdma_conn_param>,
    pub(super) connected: Vec<rdma_conn_param>,
    /// How each queue pair was wished for.
    pub(super) queue_pairs: Vec<ibv_qp_init_attr>,
    /// What of them was changed, and the timer that was set.
    pub(super) changed: Vec<(c_int, u8)>,
    /// Names of work, of receives of a queue pair's own, and of those that are shared.
    pub(super) sends: Vec<u64>,
    pub(super) receives: Vec<u64>,
    pub(super) shared: Vec<u64>,
    /// What the next poll finds.
    pub(super) completions: VecDeque<ibv_wc>,
    /// Completion queues which were armed and have not said anything since, and how often the channel was read.
    pub(super) armed: VecDeque<*mut ibv_cq>,
    pub(super) channel_reads: u32,
    events: VecDeque<(*mut rdma_cm_id, rdma_cm_event_type::Type)>,
}

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
}

/// Looks at the adapter of this thread, or changes it.
pub(super) fn with<T>(act: impl FnOnce(&mut Seen) -> T) -> T {
    SEEN.with_borrow_mut(act)
}

/// The libraries as they would be with such an adapter.
pub(super) fn library() -> &'static Library {
    Box::leak(Box::new(Library {
        get_device_name,
        query_device,
        alloc_pd,
        dealloc_pd,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        create_srq,
        destroy_srq,
        get_cq_event,
        ack_cq_events,
        modify_qp,
        create_event_channel,
        destroy_event_channel,
        get_cm_event,
        ack_cm_event,
        create_id,
        destroy_id,
        migrate_id,
        bind_addr,
        resolve_addr,
        resolve_route,
        connect,
        accept,
        disconnect,
        create_qp,
        destroy_qp,
        ..registration::mock::library()
    }))
}

/// A connect request as a listener gets it.
pub(super) fn request(library: &'static Library, reads: u8) -> Incoming {
    let channel = Arc::new(EventChannel::new(library).unwrap());
    let id = CmId::new(library, &channel).unwrap();
    let peer = "192.0.2.2:1".parse().unwrap();
    let local = "192.0.2.1:4420".parse().unwrap();
    id.bind(local).unwrap();
    Incoming { id, channel, peer, local, private_data: PrivateData::new(), reads }
}

/// Something with nothing but zeroes in it, which lives as long as the test.
fn leaked<T>() -> *mut T {
    // SAFETY: numbers, pointers and optional functions, for which zeroes are valid.
    Box::into_raw(Box::new(unsafe { zeroed::<T>() }))
}

/// A descriptor with nothing to say.
fn quiet() -> c_int {
    OwnedFd::from(EventFd::new().unwrap()).into_raw_fd()
}

fn context() -> *mut ibv_context {
    thread_local! {
        static CONTEXT: *mut ibv_context = {
            let device = leaked::<ibv_device>();
            // SAFETY: just made.
            unsafe { (*device).transport_type = ibv_transport_type::IBV_TRANSPORT_IB };
            let context = leaked::<ibv_context>();
            // SAFETY: just made.
            let made = unsafe { &mut *context };
            made.device = device;
            (made.cmd_fd, made.async_fd) = (quiet(), quiet());
            made.ops.post_send = Some(post_send);
            made.ops.post_recv = Some(post_recv);
            made.ops.post_srq_recv = Some(post_srq_recv);
            made.ops.poll_cq = Some(poll_cq);
            made.ops.req_notify_cq = Some(req_notify_cq);
            context
        };
    }
    CONTEXT.with(|context| *context)
}

unsafe extern "C" fn get_device_name(_: *mut ibv_device) -> *const c_char {
    const NAME: &CStr = c"mock0";
    NAME.as_ptr()
}

unsafe extern "C" fn query_device(_: *mut ibv_context, limits: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller gave a whole one.
    let limits = unsafe { &mut *limits };
    (limits.max_qp, limits.max_qp_wr, limits.max_sge, limits.max_cqe) = (64, 4096, 4, 1 << 16);
    (limits.max_mr, limits.max_mr_size) = (1 << 16, 1 << 30);
    (limits.max_qp_rd_atom, limits.max_qp_init_rd_atom) = (16, 16);
    (limits.max_srq, limits.max_srq_wr) = (1, 4096);
    0
}

unsafe extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
    leaked()
}

unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    0
}

unsafe extern "C" fn create_comp_channel(_: *mut ibv_context) -> *mut ibv_comp_channel {
    let channel = leaked::<ibv_comp_channel>();
    // SAFETY: just made.
    unsafe { (*channel).fd = quiet() };
    channel
}

unsafe extern "C" fn destroy_comp_channel(_: *mut ibv_comp_channel) -> c_int {
    0
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    _: c_int,
    _: *mut c_void,
    _: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    let cq = leaked::<ibv_cq>();
    // SAFETY: just made.
    unsafe { (*cq).context = context };
    cq
}

unsafe extern "C" fn destroy_cq(_: *mut ibv_cq) -> c_int {
    0
}

unsafe extern "C" fn create_srq(_: *mut ibv_pd, _: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    let srq = leaked::<ibv_srq>();
    // SAFETY: just made.
    unsafe { (*srq).context = context() };
    srq
}

unsafe extern "C" fn destroy_srq(_: *mut ibv_srq) -> c_int {
    0
}

/// Each queue that was armed has something to say.
unsafe extern "C" fn get_cq_event(
    _: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    with(|seen| seen.channel_reads += 1);
    let Some(armed) = with(|seen| seen.armed.pop_front()) else { return -1 };
    // SAFETY: the caller gave room for it.
    unsafe { *cq = armed };
    0
}

unsafe extern "C" fn ack_cq_events(_: *mut ibv_cq, _: c_uint) {}

unsafe extern "C" fn modify_qp(_: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller gave a whole one.
    let timer = unsafe { (*attributes).min_rnr_timer };
    with(|seen| seen.changed.push((mask, timer)));
    0
}

unsafe extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    let channel = leaked::<rdma_event_channel>();
    // SAFETY: just made.
    unsafe { (*channel).fd = quiet() };
    channel
}

unsafe extern "C" fn destroy_event_channel(_: *mut rdma_event_channel) {}

unsafe extern "C" fn get_cm_event(_: *mut rdma_event_channel, place: *mut *mut rdma_cm_event) -> c_int {
    let Some((id, kind)) = with(|seen| seen.events.pop_front()) else { return -1 };
    let event = leaked::<rdma_cm_event>();
    // SAFETY: just made.
    let made = unsafe { &mut *event };
    (made.id, made.event) = (id, kind);
    // SAFETY: the caller gave a place for it.
    unsafe { place.write(event) };
    0
}

unsafe extern "C" fn ack_cm_event(_: *mut rdma_cm_event) -> c_int {
    0
}

unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    place: *mut *mut rdma_cm_id,
    _: *mut c_void,
    _: rdma_port_space::Type,
) -> c_int {
    let id = leaked::<rdma_cm_id>();
    // SAFETY: just made.
    unsafe { (*id).channel = channel };
    // SAFETY: the caller gave a place for it.
    unsafe { place.write(id) };
    0
}

unsafe extern "C" fn destroy_id(_: *mut rdma_cm_id) -> c_int {
    0
}

unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: made above.
    unsafe { (*id).channel = channel };
    0
}

unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, _: *mut libc::sockaddr) -> c_int {
    // SAFETY: made above.
    unsafe { (*id).verbs = context() };
    0
}

unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    _: *mut libc::sockaddr,
    _: *mut libc::sockaddr,
    _: c_int,
) -> c_int {
    // SAFETY: made above.
    unsafe { (*id).verbs = context() };
    say(id, rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED)
}

unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _: c_int) -> c_int {
    say(id, rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED)
}

unsafe extern "C" fn connect(id: *mut rdma_cm_id, request: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller gave a whole one.
    with(|seen| seen.connected.push(unsafe { *request }));
    say(id, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED)
}

unsafe extern "C" fn accept(id: *mut rdma_cm_id, answer: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller gave a whole one.
    with(|seen| seen.accepted.push(unsafe { *answer }));
    say(id, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED)
}

unsafe extern "C" fn disconnect(_: *mut rdma_cm_id) -> c_int {
    0
}

fn say(id: *mut rdma_cm_id, kind: rdma_cm_event_type::Type) -> c_int {
    with(|seen| seen.events.push_back((id, kind)));
    0
}

unsafe extern "C" fn create_qp(id: *mut rdma_cm_id, _: *mut ibv_pd, wish: *mut ibv_qp_init_attr) -> c_int {
    // SAFETY: the caller gave a whole one.
    let wish = unsafe { *wish };
    let number = with(|seen| {
        seen.queue_pairs.push(wish);
        seen.queue_pairs.len()
    });
    let qp = leaked::<ibv_qp>();
    // SAFETY: just made.
    let made = unsafe { &mut *qp };
    (made.context, made.qp_num) = (context(), u32::try_from(number).unwrap());
    // SAFETY: made above.
    unsafe { (*id).qp = qp };
    0
}

unsafe extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: made above.
    unsafe { (*id).qp = null_mut() };
}

unsafe extern "C" fn post_send(
    _: *mut ibv_qp,
    mut next: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    while !next.is_null() {
        // SAFETY: a chain the caller made.
        let work = unsafe { &*next };
        with(|seen| seen.sends.push(work.wr_id));
        next = work.next;
    }
    0
}

unsafe extern "C" fn post_recv(_: *mut ibv_qp, work: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: a request the caller made.
    with(|seen| seen.receives.push(unsafe { (*work).wr_id }));
    0
}

unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    work: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a request the caller made.
    with(|seen| seen.shared.push(unsafe { (*work).wr_id }));
    0
}

unsafe extern "C" fn poll_cq(_: *mut ibv_cq, room: c_int, into: *mut ibv_wc) -> c_int {
    let mut count = 0;
    while count < room
        && let Some(completion) = with(|seen| seen.completions.pop_front())
    {
        // SAFETY: there is room for as many.
        let place = unsafe { into.offset(count as isize) };
        // SAFETY: as above.
        unsafe { place.write(completion) };
        count += 1;
    }
    count
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    with(|seen| seen.armed.push_back(cq));
    0
}
