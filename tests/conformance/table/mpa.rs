//! MPA: how a stream starts, and the frames around DDP segments.
use std::time::Duration;

use crate::pipe::Peer;
use crate::queue::Queue;
use crate::target::{IN_CAPSULE, Target};
use crate::wire::{
    CRC, ENHANCED, MARKERS, REJECT, Sqe, TAGGED_LAST, WRITE, capsule_sgl, cm_request, connect, crc32c, fpdu,
    keyed_sgl, mpa_frame, mpa_request, read_request, send, tagged, take_fpdu,
};
use crate::{Requirement, fabrics, row};

const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "mpa-1",
        "RFC 6581, 6 and 9",
        "a Request of revision 2 gets this Reply: key, S, revision 2, length with the depths, depths, data",
        reply_of_revision_2,
    ),
    row(
        "mpa-2",
        "RFC 6581, 6 and 10",
        "a Request of revision 1 gets a Reply of revision 1 without depths, and the connection works",
        reply_of_revision_1,
    ),
    row(
        "mpa-3",
        "RFC 5044, 4.4 and 7.1.1",
        "a Request which wants CRC gets a Reply with C, and FPDUs have one in both directions",
        crc_for_the_host,
    ),
    row(
        "mpa-4",
        "RFC 5044, 4.4 and 7.1.1",
        "a target which wants CRC says so by C whatever the Request says, and both use it",
        crc_for_the_target,
    ),
    row("mpa-5", "RFC 5044, 4.1", "without CRC its field is there, sent as zero and not looked at", no_crc),
    row(
        "mpa-6",
        "RFC 5044, 4.4 and 8",
        "an FPDU with a wrong CRC ends the stream with Terminate MPA, code 2, whichever bit it is",
        wrong_crc,
    ),
    row(
        "mpa-7",
        "RFC 5044, 4.4",
        "the CRC is CRC32C over length, segment and padding, its low byte first",
        known_crc,
    ),
    row(
        "mpa-8",
        "RFC 5044, 7.1.1",
        "a Request which wants markers is rejected by a Reply with R and without M",
        markers,
    ),
    row(
        "mpa-9",
        "RFC 5044, 7.1.1",
        "what does not begin with the key of a Request is closed without a word",
        wrong_key,
    ),
    row(
        "mpa-10",
        "RFC 5044, 7.1.1",
        "an unknown revision, and more than 512 bytes of private data, are closed without a word",
        impossible_frames,
    ),
    row(
        "mpa-11",
        "RFC 5044, 7.1.2; RFC 6581, 9",
        "an enhanced Request too short for its depths is closed without a word",
        depths_missing,
    ),
    row(
        "mpa-12",
        "RFC 5044, 7.1.1",
        "reserved bits of a Request's flags are not looked at, and sent as zero",
        reserved_flags,
    ),
    row(
        "mpa-13",
        "RFC 5044, 7.1.2; RFC 6581, 10",
        "a reject of revision 1 carries the consumer's 4 bytes alone",
        reject_of_revision_1,
    ),
    row(
        "mpa-14",
        "RFC 6581, 9.2",
        "a peer-to-peer Request gets a Reply with A and exactly one of the forms it offered",
        ready_to_receive_is_chosen,
    ),
    row(
        "mpa-15",
        "RFC 6581, 9.2; RFC 5041, 5.2",
        "the zero-length Write is taken as ready to receive, whatever its STag",
        ready_by_write,
    ),
    row(
        "mpa-16",
        "RFC 6581, 9.2; RFC 5040, 5.2.1",
        "the zero-length Read is taken too, uses number 1 of its queue, and gets its empty Response",
        ready_by_read,
    ),
    row(
        "mpa-17",
        "RFC 6581, 9.2; RFC 5040, 5.3",
        "the zero-length Send is taken too, uses number 1 of its queue, and nobody hears of it",
        ready_by_send,
    ),
    row(
        "mpa-18",
        "RFC 5044, 7.1.2",
        "the passive side sends no FPDU before it has received one",
        passive_side_waits,
    ),
    row("mpa-19", "RFC 5044, 6", "FPDUs may come in any pieces, byte by byte or several at once", any_pieces),
    row(
        "mpa-20",
        "RFC 5044, 4.1",
        "an FPDU is padded to a multiple of four; what the padding holds is not looked at",
        padding,
    ),
    row(
        "mpa-21",
        "RFC 5044, 4.5",
        "no FPDU is longer than one TCP segment takes: EMSS - 6 - EMSS mod 4 bytes of ULPDU at most",
        segments_of_tcp,
    ),
    row(
        "mpa-22",
        "RFC 5044, 7.1.2",
        "a peer which does not finish its Request within 5 seconds is closed",
        half_a_request,
    ),
    row(
        "mpa-23",
        "RFC 6581, 9.1",
        "a depth which the Request leaves open, 3FFFh, is 3FFFh in the Reply, and the connection works",
        depths_left_open,
    ),
    row(
        "mpa-24",
        "RFC 6581, 9.1 and 9.2",
        "a peer-to-peer Request gets A and a form although it names none, and room for the Read it may send",
        peer_to_peer_without_forms,
    ),
    row(
        "mpa-25",
        "RFC 6581, 9.2",
        "without A the forms of a Request are not looked at, and not said in the Reply",
        forms_without_a,
    ),
    row(
        "mpa-26",
        "RFC 6581, 6 and 10",
        "a Request of revision 2 without S gets a Reply without S and without depths",
        unenhanced_revision_2,
    ),
    row("mpa-27", "RFC 5044, 7.1.1", "R in a Request is not looked at", reject_in_a_request),
    row(
        "mpa-28",
        "RFC 5044, 3 and 4.5",
        "no ULPDU is longer than 64768 bytes, nor kept under 128 by however small segments",
        bounds_of_a_ulpdu,
    ),
    row(
        "mpa-29",
        "RFC 5044, 8; RFC 5040, 4.8, figure 10",
        "after a wrong CRC nothing that follows is heard, and the Terminate brings no header",
        nothing_after_a_wrong_crc,
    ),
];

/// Depths: word 0 has A (15), B (14) and IRD, word 1 has C (15), D (14) and ORD.
fn with_depths(ird: u16, ord: u16, data: &[u8]) -> Vec<u8> {
    [&ird.to_be_bytes()[..], &ord.to_be_bytes(), data].concat()
}

fn admin_cm() -> Vec<u8> {
    cm_request(0, 32, 31, 0)
}

/// What comes of these bytes on a new connection.
fn answer(bytes: &[u8]) -> (Target, Peer, Vec<u8>) {
    let target = Target::new();
    let peer = target.dial();
    peer.send(bytes);
    target.run();
    let answer = peer.take();
    (target, peer, answer)
}

/// The connection ends, and not a byte comes.
fn closed_silently(bytes: &[u8]) {
    let (_target, peer, answer) = answer(bytes);
    assert_eq!(answer, [0; 0]);
    assert!(peer.is_over(), "{bytes:02x?}");
}

fn check_connect(queue: &mut Queue) {
    queue.write(connect(0, 31, 0), &fabrics::admin_data()).succeeded();
    queue.command(crate::wire::property_get(0, 1)).succeeded();
}

fn reply_of_revision_2() {
    let (_, _, reply) = answer(&mpa_request(0, &admin_cm()));
    let mut expected = b"MPA ID Rep Frame\x10\x02\x00\x24".to_vec();
    // IRD 0, ORD 8; then RECFMT 0 and CRQSIZE 32.
    expected.extend([0, 0, 0, 8, 0, 0, 32, 0]);
    expected.resize(56, 0);
    assert_eq!(reply, expected);
}

fn reply_of_revision_1() {
    let target = Target::new();
    let request = mpa_frame(REQUEST_KEY, 0, 1, &admin_cm());
    let (mut queue, reply) = Queue::start(&target, target.dial(), &request);
    let mut expected = b"MPA ID Rep Frame\x00\x01\x00\x20\x00\x00\x20\x00".to_vec();
    expected.resize(52, 0);
    assert_eq!(reply, expected);
    check_connect(&mut queue);
}

fn crc_for_the_host() {
    let (mut queue, reply) = Queue::open_with(&Target::new(), CRC, &admin_cm());
    assert_eq!(reply[16], CRC | ENHANCED);
    check_connect(&mut queue);
}

fn crc_for_the_target() {
    let (mut queue, reply) = Queue::open_with(&Target::with_crc(true), 0, &admin_cm());
    assert_eq!(reply[16], CRC | ENHANCED);
    check_connect(&mut queue);
}

fn no_crc() {
    let (mut queue, reply) = Queue::open_with(&Target::new(), 0, &admin_cm());
    assert_eq!(reply[16], ENHANCED);
    // The queue checks that what comes is zero.
    let mut bytes = fpdu(&send(1, &Sqe::new(0x18).word(2, 5).0), false);
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&[0xDE, 0xAD, 0xBE, 0xEF]);
    queue.peer.send(&bytes);
    assert_eq!(queue.response_to(5).status(), (0, 0x0C, true));
}

fn wrong_crc() {
    let good = fpdu(&send(1, &Sqe::new(0x18).0), true);
    for at in [4, 30, good.len() - 4, good.len() - 1] {
        let (mut queue, _) = Queue::open_with(&Target::new(), CRC, &admin_cm());
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        queue.peer.send(&bytes);
        assert_eq!(queue.terminated(), [0x20, 2, 0, 0], "byte {at}");
    }
}

fn known_crc() {
    assert_eq!(crc32c(b"123456789"), 0xE306_9283_u32.to_le_bytes());
    let target = Target::new();
    // A zero-length Read, and the one answer there can be.
    let data = with_depths(16, 1, &admin_cm());
    let (queue, _) = Queue::start(&target, target.dial(), &mpa_frame(REQUEST_KEY, CRC | ENHANCED, 2, &data));
    let request = "002e4141000000000000000100000001000000000000000000000000000000000000000000000001\
                   0000000000000000ba10e3c9";
    queue.peer.send(&bytes_of(request));
    target.run();
    assert_eq!(queue.peer.take(), bytes_of("000ec1420000000000000000000000006975d6ca"));
}

/// Bytes from hex digits.
pub(crate) fn bytes_of(hex: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hex digit") as u8;
    hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn markers() {
    let (_target, peer, reply) = answer(&mpa_request(MARKERS, &admin_cm()));
    assert_eq!(reply[..16], *b"MPA ID Rep Frame");
    assert_eq!(reply[16] & (MARKERS | REJECT), REJECT);
    assert!(peer.is_over());
}

fn wrong_key() {
    for at in [0, 9, 15] {
        let mut frame = mpa_request(0, &admin_cm());
        frame[at] ^= 0x01;
        closed_silently(&frame);
    }
    closed_silently(b"MPA ID Rep Frame\x10\x02\x00\x00");
    closed_silently(b"GET / HTTP/1.1\r\n");
}

fn impossible_frames() {
    for revision in [3, 0x80, 0xFF] {
        closed_silently(&mpa_frame(REQUEST_KEY, ENHANCED, revision, &with_depths(16, 0, &admin_cm())));
    }
    closed_silently(&mpa_frame(REQUEST_KEY, ENHANCED, 2, &with_depths(16, 0, &[0; 509])));
    let longest = with_depths(16, 0, &[&admin_cm()[..], &[0; 476]].concat());
    let (_, _, reply) = answer(&mpa_frame(REQUEST_KEY, ENHANCED, 2, &longest));
    assert_eq!(reply[16] & REJECT, 0, "512 bytes are fine");
}

fn depths_missing() {
    for length in [0, 3] {
        closed_silently(&mpa_frame(REQUEST_KEY, ENHANCED, 2, &[0; 3][..length]));
    }
}

fn reserved_flags() {
    let (_, _, reply) = answer(&mpa_request(0x0F, &admin_cm()));
    assert_eq!(reply[16], ENHANCED);
}

fn reject_of_revision_1() {
    let (_, peer, reply) = answer(&mpa_frame(REQUEST_KEY, 0, 1, &cm_request(0, 32, 0xFFFF, 0)));
    assert_eq!(reply, b"MPA ID Rep Frame\x20\x01\x00\x04\x00\x00\x04\x00");
    assert!(peer.is_over());
}

const A: u16 = 1 << 15;
const B: u16 = 1 << 14;
const C: u16 = 1 << 15;
const D: u16 = 1 << 14;

fn peer_to_peer(ird: u16, ord: u16) -> (Queue, [bool; 4]) {
    let target = Target::new();
    let data = with_depths(ird, ord, &admin_cm());
    let (queue, reply) = Queue::start(&target, target.dial(), &mpa_frame(REQUEST_KEY, ENHANCED, 2, &data));
    (queue, [reply[20] & 0x80 != 0, reply[20] & 0x40 != 0, reply[22] & 0x80 != 0, reply[22] & 0x40 != 0])
}

fn ready_to_receive_is_chosen() {
    // A, B, C, D of the Reply.
    for (ird, ord, chosen) in [
        (A | 16, C | 1, [true, false, true, false]),
        (A | 16, D | 1, [true, false, false, true]),
        (A | B | 16, 0, [true, true, false, false]),
        (16, C | D, [false, false, false, false]),
    ] {
        assert_eq!(peer_to_peer(ird, ord).1, chosen);
    }
    let (_, all) = peer_to_peer(A | B | 16, C | D | 1);
    assert_eq!((all[0], all[1..].iter().filter(|&&form| form).count()), (true, 1));
}

fn ready_by_write() {
    for stag in [0, 1, 0xFFFF_FFFF] {
        let (mut queue, _) = peer_to_peer(A | 16, C | 1);
        queue.send_segment(&tagged(TAGGED_LAST, WRITE, stag, u64::MAX, &[]));
        check_connect(&mut queue);
    }
}

fn ready_by_read() {
    let (mut queue, _) = peer_to_peer(A | 16, D | 1);
    queue.peer.send(&fpdu(&read_request(1, (7, 9), 0, (1, u64::MAX)), false));
    queue.target.run();
    assert_eq!(
        queue.peer.take(),
        bytes_of("000ec142000000070000000000000009").into_iter().chain([0; 4]).collect::<Vec<_>>()
    );
    check_connect(&mut queue);
}

fn ready_by_send() {
    let (mut queue, _) = peer_to_peer(A | B | 16, 0);
    queue.send_message(&[]);
    check_connect(&mut queue);
    assert_eq!(queue.next_sequence(), 4);
}

fn passive_side_waits() {
    for ird in [16, A | 16] {
        let (queue, _) = peer_to_peer(ird, C | 1);
        queue.target.wait(Duration::from_secs(4));
        assert_eq!(queue.peer.take(), [0; 0]);
    }
}

fn any_pieces() {
    let (_admin, mut io) = Queue::both(&Target::new());
    let write = Sqe::new(1).nsid(1).word(48, 7).sgl(capsule_sgl(0, 4096));
    let capsule = [&write.word(2, 1).0[..], &[0x42; IN_CAPSULE]].concat();
    let first = io.next_sequence();
    for byte in fpdu(&send(first, &capsule), io.crc) {
        io.peer.send(&[byte]);
        io.target.run();
    }
    io.response_to(1).succeeded();
    let flush = |number| fpdu(&send(first + number, &Sqe::new(0).nsid(1).word(2, number as u16).0), false);
    io.peer.send(&[flush(1), flush(2), flush(3)].concat());
    for cid in 1..=3 {
        io.response_to(cid).succeeded();
    }
}

fn padding() {
    let (_admin, mut io) = Queue::both(&Target::new());
    // 64 and 1 bytes: three bytes of padding.
    let cid = io.submit(Sqe::new(0).nsid(1), &[0xAA]);
    io.response_to(cid).succeeded();
    let mut bytes =
        fpdu(&send(io.next_sequence(), &[&Sqe::new(0).nsid(1).word(2, 7).0[..], &[1]].concat()), false);
    let end = bytes.len() - 4;
    bytes[end - 3..end].fill(0xFF);
    io.peer.send(&bytes);
    io.response_to(7).succeeded();
}

fn segments_of_tcp() {
    for (segment, ulpdu) in [(1460, 1454), (1448, 1442), (8961, 8954)] {
        let target = Target::new();
        let (_admin, cntlid) = Queue::admin(&target);
        let request = mpa_request(0, &cm_request(1, 16, 15, cntlid));
        let (mut io, _) = Queue::start(&target, target.dial_over(Some(segment)), &request);
        io.write(connect(1, 15, 0), &fabrics::io_data(cntlid)).succeeded();
        let at = io.expose(vec![0; 65536]);
        io.post(Sqe::new(2).nsid(1).word(48, 127).sgl(keyed_sgl(at, 65536, 0x40)), &[]);
        target.run();
        let mut stream = io.peer.take();
        let (mut longest, mut total) = (0, 0);
        while let Some(segment) = take_fpdu(&mut stream, false) {
            longest = longest.max(segment.0.len());
            total += if segment.opcode() == WRITE { segment.payload().len() } else { 0 };
        }
        assert_eq!((total, stream.len()), (65536, 0));
        assert!((ulpdu - 8..=ulpdu).contains(&longest), "{longest} bytes, {ulpdu} fit");
    }
}

fn half_a_request() {
    let (target, peer, _) = answer(&mpa_request(0, &admin_cm())[..30]);
    target.wait(Duration::from_millis(4800));
    assert!(!peer.is_over());
    target.wait(Duration::from_millis(500));
    assert!(peer.is_over());
}

fn depths_left_open() {
    let target = Target::new();
    let data = with_depths(0x3FFF, 0x3FFF, &admin_cm());
    let (mut queue, reply) =
        Queue::start(&target, target.dial(), &mpa_frame(REQUEST_KEY, ENHANCED, 2, &data));
    assert_eq!(reply[20..24], [0x3F, 0xFF, 0x3F, 0xFF]);
    check_connect(&mut queue);
}

fn peer_to_peer_without_forms() {
    let (mut queue, [a, b, c, d]) = peer_to_peer(A | 16, 0);
    assert!(a && (b || c || d));
    check_connect(&mut queue);
    let target = Target::new();
    let (mut queue, reply) = Queue::start(
        &target,
        target.dial(),
        &mpa_frame(REQUEST_KEY, ENHANCED, 2, &with_depths(A | 16, D, &admin_cm())),
    );
    assert_eq!(reply[20..24], [0x80, 1, 0x40, 8]);
    queue.peer.send(&fpdu(&read_request(1, (7, 9), 0, (1, 0)), false));
    target.run();
    assert_eq!(queue.peer.take()[..16], bytes_of("000ec142000000070000000000000009"));
    check_connect(&mut queue);
}

fn forms_without_a() {
    for (ird, ord) in [(B | 16, 0), (16, C | D), (B | 16, C | D)] {
        let (mut queue, said) = peer_to_peer(ird, ord);
        assert_eq!(said, [false; 4]);
        check_connect(&mut queue);
    }
}

fn unenhanced_revision_2() {
    let target = Target::new();
    let request = mpa_frame(REQUEST_KEY, 0, 2, &admin_cm());
    let (mut queue, reply) = Queue::start(&target, target.dial(), &request);
    let mut expected = b"MPA ID Rep Frame\x00\x02\x00\x20\x00\x00\x20\x00".to_vec();
    expected.resize(52, 0);
    assert_eq!(reply, expected);
    check_connect(&mut queue);
}

fn reject_in_a_request() {
    let (_, _, reply) = answer(&mpa_request(REJECT, &admin_cm()));
    assert_eq!(reply[16], ENHANCED);
}

fn bounds_of_a_ulpdu() {
    for (segment, longest) in [(None, 60_000..=64_768), (Some(60), 120..=128), (Some(133), 120..=128)] {
        let target = Target::new();
        let (_admin, cntlid) = Queue::admin(&target);
        let request = mpa_request(0, &cm_request(1, 16, 15, cntlid));
        let (mut io, _) = Queue::start(&target, target.dial_over(segment), &request);
        io.write(connect(1, 15, 0), &fabrics::io_data(cntlid)).succeeded();
        let at = io.expose(vec![0; 1 << 18]);
        io.post(Sqe::new(2).nsid(1).word(48, 511).sgl(keyed_sgl(at, 1 << 18, 0x40)), &[]);
        target.run();
        let mut stream = io.peer.take();
        let lengths = std::iter::from_fn(|| take_fpdu(&mut stream, false)).map(|segment| segment.0.len());
        let found = lengths.max().expect("the data");
        assert!(longest.contains(&found), "{found} bytes in segments of {segment:?}");
    }
}

fn nothing_after_a_wrong_crc() {
    let (mut queue, _) = Queue::open_with(&Target::new(), CRC, &admin_cm());
    let mut wrong = fpdu(&send(1, &Sqe::new(0x18).0), true);
    wrong[30] ^= 1;
    queue.peer.send(&[wrong, fpdu(&send(1, &Sqe::new(0x18).word(2, 5).0), true)].concat());
    assert_eq!(queue.terminated(), [0x20, 2, 0, 0]);
    assert_eq!(queue.did.len(), 1, "{:?}", queue.did);
}
