//! Whole connections over an adapter of our own making: what both ends ask of it, and what becomes of it when they end.
use std::mem::zeroed;
use std::rc::Rc;
use std::sync::Arc;

use rdma_sys::{ibv_qp_attr_mask, ibv_wc, ibv_wc_status};

use super::mock;
use super::provider::Ibv;
use super::registration::mock::REGISTERED;
use crate::memory::{Memory, Region};
use crate::time::Time;
use crate::verbs::{
    CmEvent, ConnectParameters, Connections, Event, HostVerbs, Kind, QpHandle, Registration, Remote,
    TargetVerbs, Token, Verbs, Wc, WcStatus,
};

/// How often a peer without a receive is tried again: for ever, which is what 7 means (InfiniBand Architecture).
const FOR_EVER: u8 = 7;
const AT: &str = "192.0.2.1:4420";
const DEPTH: u16 = 128;

fn parameters() -> ConnectParameters {
    ConnectParameters { receives: DEPTH, receive_size: 64 + 4096, send_queue: 256, reads: 16 }
}

const fn token(kind: Kind) -> Token {
    Token { kind, generation: 3, qpair: 5, slot: 1 }
}

fn target() -> (Rc<Memory>, Ibv) {
    let memory = Memory::new();
    let ibv = Ibv::new(mock::library(), Rc::clone(&memory)).unwrap();
    (memory, ibv)
}

/// A host's connect request is taken.
fn accept(ibv: &mut Ibv) -> QpHandle {
    ibv.adopt(mock::request(mock::library(), 16));
    let Some(Event::Connection(event)) = ibv.poll() else { panic!("nobody asks") };
    let CmEvent::Request(request) = *event else { panic!("{event:?}") };
    let qp = request.qp;
    ibv.accept(request, parameters(), b"yes");
    qp
}

/// A host's connection which stands.
fn connect(ibv: &mut Ibv) -> QpHandle {
    let qp = ibv.connect(AT.parse().unwrap(), parameters(), b"please");
    // Something has come on the channel of connection management.
    ibv.on_ready(0);
    ibv.pump(Time::ZERO);
    let Some(Event::Connection(event)) = ibv.poll() else { panic!("nothing has come of it") };
    assert!(matches!(*event, CmEvent::Established { qp: of, .. } if of == qp), "{event:?}");
    qp
}

fn report(name: u64, status: u32) -> ibv_wc {
    // SAFETY: numbers, for which zeroes are valid.
    let mut report: ibv_wc = unsafe { zeroed() };
    (report.wr_id, report.status) = (name, status);
    report
}

/// Where memory is registered.
fn registered() -> Vec<usize> {
    REGISTERED.with_borrow(|all| all.iter().map(|(base, ..)| *base).collect())
}

fn base(region: &Region) -> usize {
    region.pointer(0, 1).as_ptr().addr()
}

#[test]
fn both_ends_have_their_peers_tried_for_ever_while_those_have_no_receive() {
    let (_, mut target) = target();
    accept(&mut target);
    let library = mock::library();
    let mut host = Ibv::for_host(library, Memory::new(), Some(Registration::Pool)).unwrap();
    connect(&mut host);
    mock::with(|seen| {
        assert_eq!((seen.accepted.len(), seen.connected.len()), (1, 1));
        for said in seen.accepted.iter().chain(&seen.connected) {
            assert_eq!((said.rnr_retry_count, said.retry_count), (FOR_EVER, 7));
        }
        // RDMA Reads flow from target to host alone.
        assert_eq!(seen.accepted[0].initiator_depth, 16);
        assert_eq!(seen.connected[0].responder_resources, 16);
    });
}

#[test]
fn hosts_that_find_no_receive_try_again_soon_and_find_one_that_was_given_back() {
    let (_, mut target) = target();
    let qp = accept(&mut target);
    let (number, all) = mock::with(|seen| {
        let [(what, timer)] = seen.changed[..] else { panic!("it is changed once") };
        assert_eq!(what, ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0.cast_signed());
        assert_eq!(timer, 12, "0.64 ms, where nothing said means 655 ms");
        let wish = seen.queue_pairs[0];
        assert!(!wish.srq.is_null());
        assert_eq!(wish.cap.max_recv_wr, 0, "it has no receives of its own");
        (u32::try_from(seen.queue_pairs.len()).unwrap(), std::mem::take(&mut seen.shared))
    });
    assert_eq!(all.len(), usize::from(DEPTH));
    // All are in use. One more message finds none, and the adapter says so to its peer, not to us.
    mock::with(|seen| {
        seen.completions = all.iter().map(|&name| ibv_wc { qp_num: number, ..report(name, 0) }).collect();
    });
    while target.pump(Time::ZERO) {}
    let messages: Vec<_> = std::iter::from_fn(|| target.poll()).collect();
    assert_eq!(messages.len(), all.len());
    assert_eq!(mock::with(|seen| seen.shared.len()), 0);
    for message in messages {
        let Event::Received(received) = message else { panic!("{message:?}") };
        assert_eq!(received.qp, qp);
        target.repost(received);
    }
    let mut again = mock::with(|seen| std::mem::take(&mut seen.shared));
    again.sort_unstable();
    assert_eq!(again, all, "each waits for a message again, once");
}

#[test]
fn a_peer_which_gives_up_waiting_for_a_receive_ends_the_connection_in_words() {
    let memory = Memory::new();
    let mut host = Ibv::for_host(mock::library(), Rc::clone(&memory), Some(Registration::Pool)).unwrap();
    let qp = connect(&mut host);
    let command = token(Kind::Command);
    host.post_command(qp, command, &[0; 64], None, None);
    mock::with(|seen| {
        let failed = report(seen.sends[0], ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
        seen.completions.push_back(ibv_wc { vendor_err: 0x87, ..failed });
    });
    host.pump(Time::ZERO);
    let Some(Event::Completed(completed)) = host.poll() else { panic!("the command does not complete") };
    let status = WcStatus::Failed(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert_eq!(completed, Wc { qp, token: command, status });
    let Some(Event::Connection(event)) = host.poll() else { panic!("the connection does not end") };
    let CmEvent::Disconnected { reason, .. } = *event else { panic!("{event:?}") };
    assert!(reason.contains("RNR") && reason.contains("vendor code 0x87"), "{reason}");
}

#[test]
fn what_every_connection_names_is_registered_before_one_comes_and_never_by_a_command() {
    let (memory, mut target) = target();
    let regions = [0; 3].map(|_| Region::new(4096).unwrap());
    let bases = regions.each_ref().map(|region| base(region));
    let lkeys = regions.map(|region| memory.register(region));
    target.share(vec![lkeys[0]]).unwrap();
    assert_eq!(registered(), [], "no adapter is open");
    target.open(AT.parse().unwrap()).unwrap();
    assert_eq!(registered(), bases[..1]);
    // A namespace comes while the adapter is in use.
    target.share(vec![lkeys[0], lkeys[1]]).unwrap();
    assert_eq!(registered(), bases[..2]);
    let qp = accept(&mut target);
    let before = registered();
    let data = (memory.sge(lkeys[1], 512, 512), Remote { address: 0x1000, rkey: 7 });
    target.post_respond(qp, token(Kind::Respond), Some(data), &[0; 16], None);
    assert_eq!(registered(), before);
    // It goes, and another takes its number.
    drop(memory.unregister(lkeys[1]));
    target.share(vec![lkeys[0]]).unwrap();
    let other = Region::new(4096).unwrap();
    let other_base = base(&other);
    assert_eq!(memory.register(Arc::clone(&other)), lkeys[1]);
    target.share(vec![lkeys[0], lkeys[1]]).unwrap();
    assert!(registered().contains(&other_base));
    // What the adapter does not take is said at once, and leaves the rest as it is.
    let large = memory.register(Region::new(2 << 30).unwrap());
    let refused = target.share(vec![lkeys[0], lkeys[1], large]).unwrap_err().to_string();
    assert!(refused.contains("2147483648") && refused.contains("1073741824"), "{refused}");
    assert!(registered().contains(&bases[0]) && registered().contains(&other_base));
}

#[test]
fn a_channel_is_read_once_for_each_queue_that_was_armed() {
    let (_, mut target) = target();
    accept(&mut target);
    let reads = || mock::with(|seen| std::mem::take(&mut seen.channel_reads));
    for _ in 0..2 {
        let mut polled = Vec::new();
        target.arm(|interest| polled.push(interest.slot));
        assert_eq!((polled.len(), mock::with(|seen| seen.armed.len())), (1, 1));
        target.on_ready(polled[0]);
        assert_eq!(reads(), 1);
    }
    // Nothing is armed, so there is nothing to be read.
    target.on_ready(1);
    assert_eq!(reads(), 0);
    // It was woken though the queue has said nothing yet: it stays armed.
    target.arm(|_| {});
    let armed = mock::with(|seen| std::mem::take(&mut seen.armed));
    target.on_ready(1);
    assert_eq!(reads(), 1);
    mock::with(|seen| seen.armed = armed);
    target.arm(|_| {});
    target.on_ready(1);
    assert_eq!((reads(), mock::with(|seen| seen.armed.len())), (1, 0));
}
