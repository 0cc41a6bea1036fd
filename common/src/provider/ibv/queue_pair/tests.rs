//! The real posting and polling code of rdma-sys, over an adapter of our own making.
use std::ffi::c_int;

use rdma_sys::ibv_context;

use super::*;
use crate::verbs::Kind;

const OWNER: Owner = Owner { qp: QpHandle(0x1234), generation: 0xFEDC };

/// An adapter: what it took, how much more it takes, and what it is about to report.
#[derive(Default)]
struct Adapter {
    sends: Vec<(u64, u32, u32, u32)>,
    /// Calls, each with a chain.
    posts: usize,
    receives: Vec<u64>,
    /// Work requests it still takes.
    takes: usize,
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: made below.
    let adapter = unsafe { (*qp).qp_context }.cast::<Adapter>();
    // SAFETY: set below, and leaked.
    let adapter = unsafe { &mut *adapter };
    adapter.posts += 1;
    let mut next = first;
    while !next.is_null() {
        // SAFETY: a chain the caller made.
        let work = unsafe { &*next };
        if adapter.takes == 0 {
            // SAFETY: the caller gave a place for it.
            unsafe { bad.write(next) };
            return libc::EINVAL;
        }
        adapter.takes -= 1;
        // SAFETY: a number either way.
        let key = unsafe { work.imm_data_invalidated_rkey_union.invalidated_rkey };
        adapter.sends.push((work.wr_id, work.opcode, work.send_flags, key));
        next = work.next;
    }
    0
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, first: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: made below.
    let adapter = unsafe { (*qp).qp_context }.cast::<Adapter>();
    // SAFETY: set below, and leaked.
    let adapter = unsafe { &mut *adapter };
    // SAFETY: a request the caller made.
    adapter.receives.push(unsafe { (*first).wr_id });
    0
}

/// An adapter and a queue pair on it, made of leaked parts: they live as long as the test.
fn queue_pair(takes: usize) -> (&'static mut Adapter, QueuePair) {
    let adapter = Box::into_raw(Box::new(Adapter { takes, ..Adapter::default() }));
    // SAFETY: numbers, pointers and optional functions, for which zeroes are valid.
    let mut context: ibv_context = unsafe { zeroed() };
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    let context = Box::into_raw(Box::new(context));
    // SAFETY: as above.
    let mut qp: ibv_qp = unsafe { zeroed() };
    qp.context = context;
    qp.qp_context = adapter.cast();
    let qp = Box::into_raw(Box::new(qp));
    // SAFETY: just made, and leaked.
    let queue_pair = unsafe { QueuePair::new(qp, OWNER, true, 8) };
    // SAFETY: leaked; the callbacks run while this test does not look at it.
    (unsafe { &mut *adapter }, queue_pair)
}

const PIECE: ibv_sge = ibv_sge { addr: 0x1000, length: 16, lkey: 7 };
const REMOTE: Remote = Remote { address: 0x2000, rkey: 9 };
const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

fn token(kind: Kind, slot: u16) -> Token {
    Token { kind, generation: 3, qpair: 5, slot }
}

/// The completion of the work posted at a place.
fn report(name: u64, status: u32) -> ibv_wc {
    // SAFETY: numbers, for which zeroes are valid.
    let mut report: ibv_wc = unsafe { zeroed() };
    report.wr_id = name;
    report.status = status;
    report
}

fn outcomes(queue_pair: &mut QueuePair, report: &ibv_wc) -> Vec<Outcome> {
    assert!(Owner::of(report).is(OWNER));
    let mut all = Vec::new();
    queue_pair.on_completion(report, |outcome| all.push(outcome));
    all
}

const fn completed(token: Token, status: WcStatus) -> Outcome {
    Outcome::Completed { token, status }
}

#[test]
fn data_and_response_are_one_post_of_which_only_the_response_is_signaled() {
    let (adapter, mut queue_pair) = queue_pair(8);
    let (respond, fetch) = (token(Kind::Respond, 1), token(Kind::Fetch, 2));
    let posted = queue_pair.post_respond(respond, Some((PIECE, REMOTE)), PIECE, Some(0xABCD));
    assert_eq!((posted, adapter.posts), (Posted::Taken, 1));
    let (write, send) = (OWNER.name(0), OWNER.name(1));
    let flags = SIGNALED | INLINE;
    assert_eq!(
        adapter.sends,
        [
            (write, ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0, 0),
            (send, ibv_wr_opcode::IBV_WR_SEND_WITH_INV, flags, 0xABCD)
        ]
    );
    assert_eq!(queue_pair.post_respond(respond, None, PIECE, None), Posted::Taken);
    assert_eq!(adapter.sends[2], (OWNER.name(2), ibv_wr_opcode::IBV_WR_SEND, flags, 0));
    assert_eq!(queue_pair.post_fetch(fetch, REMOTE, PIECE), Posted::Taken);
    assert_eq!(adapter.sends[3], (OWNER.name(3), ibv_wr_opcode::IBV_WR_RDMA_READ, SIGNALED, 0));
    for (place, token) in [(1, respond), (2, respond), (3, fetch)] {
        let done = report(OWNER.name(place), ibv_wc_status::IBV_WC_SUCCESS);
        assert_eq!(outcomes(&mut queue_pair, &done), [completed(token, WcStatus::Success)]);
    }
}

#[test]
fn what_a_broken_queue_pair_does_not_take_is_refused() {
    let (_, mut queue_pair) = queue_pair(0);
    let (fetch, respond) = (token(Kind::Fetch, 1), token(Kind::Respond, 2));
    assert_eq!(queue_pair.post_fetch(fetch, REMOTE, PIECE), Posted::Refused);
    assert_eq!(queue_pair.post_respond(respond, Some((PIECE, REMOTE)), PIECE, None), Posted::Refused);
    assert_eq!(queue_pair.abandon().count(), 0);
}

#[test]
fn a_response_refused_behind_its_write_completes_with_the_write() {
    let (_, mut queue_pair) = queue_pair(1);
    let respond = token(Kind::Respond, 1);
    assert_eq!(queue_pair.post_respond(respond, Some((PIECE, REMOTE)), PIECE, None), Posted::Partly);
    let flushed = report(OWNER.name(0), ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    let expected = [Outcome::Flushed, completed(respond, WcStatus::Flushed)];
    assert_eq!(outcomes(&mut queue_pair, &flushed), expected);
}

#[test]
fn a_failed_write_breaks_and_its_response_completes_once() {
    let (_, mut queue_pair) = queue_pair(8);
    let respond = token(Kind::Respond, 1);
    assert_eq!(queue_pair.post_respond(respond, Some((PIECE, REMOTE)), PIECE, None), Posted::Taken);
    let mut failed = report(OWNER.name(0), ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    failed.vendor_err = 0x42;
    let broken = Outcome::Failed { status: ibv_wc_status::IBV_WC_REM_ACCESS_ERR, vendor: 0x42 };
    assert_eq!(outcomes(&mut queue_pair, &failed), [broken]);
    let flushed = report(OWNER.name(1), ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    let expected = [Outcome::Flushed, completed(respond, WcStatus::Flushed)];
    assert_eq!(outcomes(&mut queue_pair, &flushed), expected);
}

#[test]
fn work_an_adapter_never_tells_of_is_known_in_order() {
    let (_, mut queue_pair) = queue_pair(8);
    queue_pair.next = u32::MAX;
    let tokens = [token(Kind::Respond, 1), token(Kind::Fetch, 2), token(Kind::Respond, 3)];
    assert_eq!(queue_pair.post_respond(tokens[0], Some((PIECE, REMOTE)), PIECE, None), Posted::Taken);
    assert_eq!(queue_pair.post_fetch(tokens[1], REMOTE, PIECE), Posted::Taken);
    assert_eq!(queue_pair.post_respond(tokens[2], None, PIECE, None), Posted::Taken);
    let done = report(OWNER.name(0), ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(outcomes(&mut queue_pair, &done), [completed(tokens[0], WcStatus::Success)]);
    assert_eq!(queue_pair.abandon().collect::<Vec<_>>(), tokens[1..]);
}

#[test]
fn a_read_is_not_done_when_a_response_behind_it_is() {
    let (_, mut queue_pair) = queue_pair(8);
    let (fetch, respond) = (token(Kind::Fetch, 1), token(Kind::Respond, 2));
    assert_eq!(queue_pair.post_fetch(fetch, REMOTE, PIECE), Posted::Taken);
    assert_eq!(queue_pair.post_respond(respond, Some((PIECE, REMOTE)), PIECE, None), Posted::Taken);
    for (place, token) in [(2, respond), (0, fetch)] {
        let done = report(OWNER.name(place), ibv_wc_status::IBV_WC_SUCCESS);
        assert_eq!(outcomes(&mut queue_pair, &done), [completed(token, WcStatus::Success)]);
    }
    assert_eq!(queue_pair.abandon().count(), 0);
}

#[test]
fn receives_are_told_with_their_length_and_flushed_ones_break() {
    let (adapter, mut queue_pair) = queue_pair(8);
    queue_pair.post_receive(41, PIECE).unwrap();
    let name = RECEIVE | OWNER.name(41);
    assert_eq!(adapter.receives, [name]);
    let mut message = report(name, ibv_wc_status::IBV_WC_SUCCESS);
    message.byte_len = 64;
    message.wc_flags = ibv_wc_flags::IBV_WC_WITH_INV.0;
    message.imm_data_invalidated_rkey_union.invalidated_rkey = 0xBEEF;
    let received = Outcome::Received { buffer: 41, length: 64, invalidated: Some(0xBEEF) };
    assert_eq!(outcomes(&mut queue_pair, &message), [received]);
    let flushed = report(name, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    assert_eq!(outcomes(&mut queue_pair, &flushed), [Outcome::Flushed]);
}

#[test]
fn a_completion_names_one_use_of_its_handle() {
    let late = report(OWNER.name(7), ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    assert!(Owner::of(&late).is(OWNER));
    assert!(!Owner::of(&late).is(Owner { generation: OWNER.generation + 1, ..OWNER }));
    assert!(!Owner::of(&late).is(Owner { qp: QpHandle(1), ..OWNER }));
}

const BINDING: Binding = Binding {
    window: std::ptr::without_provenance_mut(0x10),
    region: std::ptr::without_provenance_mut(0x20),
    sge: Sge { address: 0x3000, length: 512, lkey: 1 },
    key: 0xABC,
    access: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
};

#[test]
fn what_lends_a_buffer_and_the_command_are_one_post_of_which_only_the_command_is_signaled() {
    let (adapter, mut queue_pair) = queue_pair(8);
    let command = token(Kind::Command, 1);
    assert_eq!(queue_pair.post_command(command, Some(BINDING), PIECE, None, true), Posted::Taken);
    assert_eq!(adapter.posts, 1);
    let opcodes: Vec<_> = adapter.sends.iter().map(|send| (send.1, send.2)).collect();
    let bind = (ibv_wr_opcode::IBV_WR_BIND_MW, 0);
    assert_eq!(opcodes, [bind, (ibv_wr_opcode::IBV_WR_SEND, SIGNALED | INLINE)]);
    // With data behind it a command is not copied.
    assert_eq!(queue_pair.post_command(command, None, PIECE, Some(PIECE), false), Posted::Taken);
    assert_eq!((adapter.sends[2].1, adapter.sends[2].2), (ibv_wr_opcode::IBV_WR_SEND, SIGNALED));
}

#[test]
fn a_key_is_ended_by_signaled_work_which_names_it() {
    let (adapter, mut queue_pair) = queue_pair(1);
    let invalidate = token(Kind::Invalidate, 4);
    assert_eq!(queue_pair.post_invalidate(invalidate, 0xABC), Posted::Taken);
    let (_, opcode, flags, key) = adapter.sends[0];
    assert_eq!((opcode, flags, key), (ibv_wr_opcode::IBV_WR_LOCAL_INV, SIGNALED, 0xABC));
    assert_eq!(queue_pair.post_invalidate(invalidate, 0xABC), Posted::Refused);
}

#[test]
fn a_bind_that_is_taken_without_its_command_completes_for_it() {
    let (_, mut queue_pair) = queue_pair(1);
    let command = token(Kind::Command, 1);
    assert_eq!(queue_pair.post_command(command, Some(BINDING), PIECE, None, true), Posted::Partly);
    assert_eq!(queue_pair.abandon().collect::<Vec<_>>(), [command]);
}

#[test]
fn work_that_binds_names_window_region_range_key_and_right() {
    let work = bind(BINDING);
    // SAFETY: of this opcode it is the member that counts.
    let said = unsafe { work.bind_mw_tso_union.bind_mw };
    assert_eq!((said.mw.addr(), said.rkey, said.bind_info.mr.addr()), (0x10, 0xABC, 0x20));
    let range = (said.bind_info.addr, said.bind_info.length);
    assert_eq!(range, (0x3000, 512));
    assert_eq!(said.bind_info.mw_access_flags, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0);
    assert_eq!((work.num_sge, work.send_flags), (0, 0));
}

#[test]
fn an_invalidation_is_known_by_either_flag() {
    for flag in [ibv_wc_flags::IBV_WC_WITH_INV, KERNELS_WITH_INVALIDATE] {
        // SAFETY: numbers, for which zeroes are valid.
        let mut message: ibv_wc = unsafe { zeroed() };
        message.wc_flags = flag.0;
        message.imm_data_invalidated_rkey_union.invalidated_rkey = 0xBEEF;
        assert!(matches!(
            received(&message, 3),
            Outcome::Received { invalidated: Some(0xBEEF), buffer: 3, .. }
        ));
    }
}
