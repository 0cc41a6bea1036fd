//! DDP and RDMAP: the headers of what we send, the checks of what we receive, and the Terminate which says what
//! was wrong.
use crate::mpa::bytes_of;
use crate::queue::{Did, Queue};
use crate::target::Target;
use crate::wire::{
    At, ENHANCED, READ_RESPONSE, SEND, SEND_INVALIDATE, SEND_SOLICITED, SEND_SOLICITED_INVALIDATE, Sqe,
    TAGGED, TAGGED_LAST, TERMINATE, UNTAGGED, UNTAGGED_LAST, WRITE, capsule_sgl, cm_request, connect, fpdu,
    keyed_sgl, mpa_frame, mpa_request, read_request, send, send_invalidate, tagged, take_fpdu, untagged,
};
use crate::{Requirement, fabrics, row};

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "rdmap-1",
        "RFC 5041, 4.3; RFC 5040, 4.1 and 4.6",
        "a response is a Send: 41h 43h, reserved 0, queue 0, messages numbered from 1, offset 0",
        header_of_a_send,
    ),
    row(
        "rdmap-2",
        "RFC 5040, 4.1 and 4.7",
        "a Send with Invalidate is 41h 44h, the STag in the four bytes behind",
        header_of_a_send_with_invalidate,
    ),
    row(
        "rdmap-3",
        "RFC 5040, 4.4",
        "a Read Request is 41h 41h on queue 1, numbered from 1: sink, length, source",
        header_of_a_read_request,
    ),
    row(
        "rdmap-4",
        "RFC 5041, 4.2; RFC 5040, 4.3",
        "a Write is C1h 40h, STag, offset; all but the last segment have L clear and go on where the last ended",
        headers_of_a_write,
    ),
    row(
        "rdmap-5",
        "RFC 5041, 5.2",
        "a message may come in segments, each with its offset and the same number",
        segmented_message,
    ),
    row("rdmap-6", "RFC 5040, 5.3", "a Send with Solicited Event is a Send", solicited_event),
    row(
        "rdmap-7",
        "RFC 5041, 4.1; RFC 5040, 4.1",
        "reserved bits of both control bytes and the reserved word of a Send are not looked at",
        reserved_bits,
    ),
    row(
        "rdmap-8",
        "RFC 5041, 7.2",
        "another DDP version is Terminate: tagged buffer, code 4, or untagged buffer, code 6",
        ddp_version,
    ),
    row(
        "rdmap-9",
        "RFC 5040, 4.8",
        "another RDMAP version is Terminate: remote operation, code 5",
        rdmap_version,
    ),
    row(
        "rdmap-10",
        "RFC 5040, 4.8; RFC 7306, 4.1",
        "operations we did not agree on, atomics and immediate data among them, are unexpected: code 6",
        unexpected_operations,
    ),
    row(
        "rdmap-11",
        "RFC 5041, 7.1 and 7.2; RFC 5040, 4.1",
        "a queue which does not exist, or not for the operation, is Terminate: untagged buffer, code 1",
        wrong_queue,
    ),
    row(
        "rdmap-12",
        "RFC 5041, 7.1 and 7.2",
        "a number other than the next is Terminate: untagged buffer, code 3",
        wrong_number,
    ),
    row(
        "rdmap-13",
        "RFC 5041, 7.1 and 7.2",
        "an offset other than where the message stands is Terminate: untagged buffer, code 4",
        wrong_offset,
    ),
    row(
        "rdmap-14",
        "RFC 5041, 7.1 and 7.2",
        "a message without a receive is Terminate: untagged buffer, code 2",
        no_receive,
    ),
    row(
        "rdmap-15",
        "RFC 5041, 6.2.2; RFC 5044, 8",
        "a segment too short for its header is Terminate: MPA, code 3, and nothing is placed",
        too_short_for_a_header,
    ),
    row(
        "rdmap-16",
        "RFC 5041, 7.1 and 7.2",
        "a Write to an STag which is not there is Terminate: tagged buffer, code 0",
        write_to_nowhere,
    ),
    row(
        "rdmap-17",
        "RFC 5041, 7.1 and 7.2",
        "a Write to the sink of a Read, which only that Read may fill, is Terminate: tagged buffer, code 0",
        write_to_a_sink,
    ),
    row(
        "rdmap-18",
        "RFC 5041, 5.2; RFC 5040, 5.2.1",
        "a Write and a Read of no bytes name no memory: any STag will do",
        nothing_needs_no_stag,
    ),
    row(
        "rdmap-19",
        "RFC 5040, 4.8 and 7.2",
        "a Read of an STag which is not there is Terminate: remote protection, code 0, with both headers",
        read_from_nowhere,
    ),
    row(
        "rdmap-20",
        "RFC 5040, 4.8 and 6.1; RFC 6581, 9.1",
        "a Read Request although the Reply said IRD 0 is Terminate: remote operation, code 7",
        reads_which_were_not_agreed_on,
    ),
    row(
        "rdmap-21",
        "RFC 5040, 5.2.2",
        "a Read Response with another STag, offset or length than asked for ends the stream, and is not used",
        wrong_read_response,
    ),
    row(
        "rdmap-22",
        "RFC 5040, 4.8 and 5.2",
        "a Read Response which nobody asked for is an unexpected operation",
        unasked_read_response,
    ),
    row(
        "rdmap-23",
        "RFC 5040, 5.2.2",
        "a Read Response may come in segments of any size",
        segmented_read_response,
    ),
    row(
        "rdmap-24",
        "RFC 5040, 4.8",
        "Terminate is 41h 47h on queue 2, number 1: layer and type, code, M D R, the segment's length and header",
        layout_of_a_terminate,
    ),
    row(
        "rdmap-25",
        "RFC 5040, 5.4",
        "who receives a Terminate ends the stream and sends nothing more",
        received_terminate,
    ),
    row(
        "rdmap-26",
        "RFC 5040, 6.2; RFC 5044, 8",
        "the end of the byte stream, also within an FPDU, is the end of the connection",
        end_of_the_stream,
    ),
    row(
        "rdmap-27",
        "RFC 5040, 5.3 and 7.2",
        "an invalidation of an STag which is not there is Terminate: code 9",
        invalidation_of_nothing,
    ),
    row(
        "rdmap-28",
        "RFC 5041, 4.1 and 5.2",
        "a message which begins before the last has ended is Terminate, not two messages",
        interleaved_messages,
    ),
    row(
        "rdmap-29",
        "RFC 5040, 5.5",
        "Reads are answered in any number of segments while Sends and Writes go on: no order but each queue's",
        reads_and_sends_together,
    ),
    row(
        "rdmap-30",
        "RFC 5040, 4.8, figure 10",
        "a Terminate has the header of a Read Request where its source was wrong, and otherwise none but DDP's",
        headers_of_a_terminate,
    ),
    row(
        "rdmap-31",
        "RFC 5040, 5.4; RFC 5041, 7.1",
        "after a Terminate nothing more is sent, and what still comes is dropped",
        nothing_after_a_terminate,
    ),
    row(
        "rdmap-32",
        "RFC 5041, 7.1",
        "a Read Response behind the length that was asked for, or across the end of it, is not placed",
        more_than_was_asked_for,
    ),
    row(
        "rdmap-33",
        "RFC 5041, 7.1",
        "the numbers of Sends and of Read Requests are counted apart, each from 1",
        numbers_of_each_queue,
    ),
];

const CID: u16 = 0x0777;

fn keep_alive() -> [u8; 64] {
    Sqe::new(0x18).word(2, CID).0
}

/// An admin queue pair on which nothing was sent.
fn fresh() -> Queue {
    Queue::dial_admin(&Target::new())
}

/// The same for a host which may send Reads.
fn fresh_with_reads() -> Queue {
    let target = Target::new();
    let data = [&[0, 16, 0, 4], &cm_request(0, 32, 31, 0)[..]].concat();
    Queue::start(&target, target.dial(), &mpa_frame(b"MPA ID Req Frame", ENHANCED, 2, &data)).0
}

/// The beginning of the Terminate which a segment, sent first, leads to: layer and type, code.
fn terminate_after(segment: &[u8]) -> [u8; 2] {
    let mut queue = fresh();
    queue.send_segment(segment);
    let payload = queue.terminated();
    [payload[0], payload[1]]
}

/// Sends a segment and gives the bytes which come back.
fn bytes_after(queue: &Queue, segment: &[u8]) -> Vec<u8> {
    queue.peer.send(&fpdu(segment, false));
    queue.target.run();
    queue.peer.take()
}

fn header_of_a_send() {
    let queue = fresh();
    for (number, header) in
        [(1, "0022414300000000000000000000000100000000"), (2, "0022414300000000000000000000000200000000")]
    {
        let bytes = bytes_after(&queue, &send(number, &keep_alive()));
        assert_eq!(bytes[..20], bytes_of(header));
        assert_eq!(bytes.len(), 2 + 18 + 16 + 4);
    }
}

fn header_of_a_send_with_invalidate() {
    let (_admin, mut io) = Queue::both(&Target::new());
    let at = io.expose(vec![0; 512]);
    io.post(Sqe::new(2).nsid(1).sgl(keyed_sgl(at, 512, 0x4F)), &[]);
    io.target.run();
    let mut stream = io.peer.take();
    take_fpdu(&mut stream, false).expect("the data");
    let response = take_fpdu(&mut stream, false).expect("the response");
    assert_eq!(response.0[..6], [&[0x41, 0x44][..], &at.0.to_be_bytes()].concat());
    // The second message: Connect was answered by the first.
    assert_eq!(response.place(), [0, 2, 0]);
}

fn header_of_a_read_request() {
    let queue = fresh();
    let sqe = connect(0, 31, 0).sgl(keyed_sgl((0x00AB_CD02, 0x7F00_0000_2000), 1024, 0x4F));
    let bytes = bytes_after(&queue, &send(1, &sqe.0));
    assert_eq!(bytes[..20], bytes_of("002e414100000000000000010000000100000000"));
    assert_eq!(bytes[32..48], bytes_of("0000040000abcd0200007f0000002000"));
    assert_eq!(bytes.len(), 52);
}

fn headers_of_a_write() {
    let target = Target::new();
    let (_admin, cntlid) = Queue::admin(&target);
    let request = mpa_request(0, &cm_request(1, 16, 15, cntlid));
    let (mut io, _) = Queue::start(&target, target.dial_over(Some(1460)), &request);
    io.write(connect(1, 15, 0), &fabrics::io_data(cntlid)).succeeded();
    let at = io.expose(vec![0; 4096]);
    io.post(Sqe::new(2).nsid(1).word(48, 7).sgl(keyed_sgl(at, 4096, 0x40)), &[]);
    target.run();
    let mut stream = io.peer.take();
    let mut next = at.1;
    while next < at.1 + 4096 {
        let segment = take_fpdu(&mut stream, false).expect("a piece of the data");
        assert_eq!((segment.opcode(), segment.at()), (WRITE, (at.0, next)));
        next += segment.payload().len() as u64;
        let last = next == at.1 + 4096;
        assert_eq!(segment.control(), if last { TAGGED_LAST } else { TAGGED });
    }
    assert_eq!(take_fpdu(&mut stream, false).expect("the response").opcode(), SEND);
}

fn segmented_message() {
    let mut queue = fresh();
    let capsule = keep_alive();
    for (at, end, control) in [(0, 1, UNTAGGED), (1, 40, UNTAGGED), (40, 64, UNTAGGED_LAST)] {
        queue.send_segment(&untagged(control, SEND, 0, [0, 1, at], &capsule[at as usize..end]));
    }
    assert_eq!(queue.response_to(CID).status(), (0, 0x0C, true));
}

fn solicited_event() {
    let mut queue = fresh();
    queue.send_segment(&untagged(UNTAGGED_LAST, SEND_SOLICITED, 0, [0, 1, 0], &keep_alive()));
    assert_eq!(queue.response_to(CID).status(), (0, 0x0C, true));
}

fn reserved_bits() {
    let mut queue = fresh();
    queue.send_segment(&untagged(0x3C | UNTAGGED_LAST, 0x30 | SEND, 0xFFFF_FFFF, [0, 1, 0], &keep_alive()));
    assert_eq!(queue.response_to(CID).status(), (0, 0x0C, true));
}

fn ddp_version() {
    for version in [0, 2, 3] {
        let control = UNTAGGED_LAST & !3 | version;
        assert_eq!(terminate_after(&untagged(control, SEND, 0, [0, 1, 0], &keep_alive())), [0x12, 6]);
        assert_eq!(terminate_after(&tagged(control | 0x80, WRITE, 1, 0, &[0; 8])), [0x11, 4]);
    }
}

fn rdmap_version() {
    for version in [0x00, 0x80, 0xC0] {
        let segment = untagged(UNTAGGED_LAST, SEND & 0x3F | version, 0, [0, 1, 0], &keep_alive());
        assert_eq!(terminate_after(&segment), [0x02, 5]);
    }
}

fn unexpected_operations() {
    for opcode in 8..16 {
        let segment = untagged(UNTAGGED_LAST, 0x40 | opcode, 0, [0, 1, 0], &[0; 64]);
        assert_eq!(terminate_after(&segment), [0x02, 6], "opcode {opcode}");
    }
    // A Send is not tagged, and a Write is.
    assert_eq!(terminate_after(&tagged(TAGGED_LAST, SEND, 0, 0, &keep_alive())), [0x02, 6]);
    assert_eq!(terminate_after(&untagged(UNTAGGED_LAST, WRITE, 0, [0, 1, 0], &[0; 8])), [0x02, 6]);
}

fn wrong_queue() {
    for queue in [1, 2, 3, u32::MAX] {
        let segment = untagged(UNTAGGED_LAST, SEND, 0, [queue, 1, 0], &keep_alive());
        assert_eq!(terminate_after(&segment), [0x12, 1]);
    }
    let mut read = read_request(1, (1, 0), 4, (1, 0));
    read[9] = 0;
    assert_eq!(terminate_after(&read), [0x12, 1]);
}

fn wrong_number() {
    for number in [0, 2, u32::MAX] {
        let segment = untagged(UNTAGGED_LAST, SEND, 0, [0, number, 0], &keep_alive());
        assert_eq!(terminate_after(&segment), [0x12, 3]);
    }
}

fn wrong_offset() {
    assert_eq!(terminate_after(&untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 4], &keep_alive())), [0x12, 4]);
    for offset in [0, 31, 33] {
        let mut queue = fresh();
        queue.send_segment(&untagged(UNTAGGED, SEND, 0, [0, 1, 0], &keep_alive()[..32]));
        queue.send_segment(&untagged(UNTAGGED_LAST, SEND, 0, [0, 1, offset], &keep_alive()[32..]));
        assert_eq!(queue.terminated()[..2], [0x12, 4], "offset {offset}");
    }
}

fn no_receive() {
    let target = Target::new();
    let (_admin, mut io) = Queue::both(&target);
    target.stall(true);
    // Data in a capsule keeps its receive for as long as the command takes; there are 16.
    for _ in 0..17 {
        io.submit(Sqe::new(1).nsid(1).sgl(capsule_sgl(0, 512)), &[0; 512]);
    }
    assert_eq!(io.terminated()[..2], [0x12, 2]);
    target.stall(false);
    target.run();
}

fn too_short_for_a_header() {
    assert_eq!(terminate_after(&send(1, &[])[..17]), [0x20, 3]);
    assert_eq!(terminate_after(&tagged(TAGGED_LAST, WRITE, 0, 0, &[])[..13]), [0x20, 3]);
    assert_eq!(terminate_after(&read_request(1, (1, 0), 4, (1, 0))[..45]), [0x20, 3]);
    assert_eq!(terminate_after(&[&read_request(1, (1, 0), 4, (1, 0))[..], &[0]].concat()), [0x20, 3]);
}

fn write_to_nowhere() {
    for stag in [0, 1, 0x1234_5678, u32::MAX] {
        assert_eq!(terminate_after(&tagged(TAGGED_LAST, WRITE, stag, 0, &[0; 8])), [0x11, 0]);
    }
}

/// A queue on which the target has asked for Connect's data, and where it wants it.
fn with_a_read(crc: u8) -> (Queue, At) {
    let (mut queue, _) = Queue::open_with(&Target::new(), crc, &cm_request(0, 32, 31, 0));
    queue.holds_reads = true;
    let at = queue.expose(fabrics::admin_data());
    queue.submit(connect(0, 31, 0).sgl(keyed_sgl(at, 1024, 0x40)), &[]);
    let (sink, length, source) = queue.held_reads[0].read();
    assert_eq!((length, source), (1024, at));
    (queue, sink)
}

fn write_to_a_sink() {
    let (mut queue, sink) = with_a_read(0);
    queue.send_segment(&tagged(TAGGED_LAST, WRITE, sink.0, sink.1, &[0; 1024]));
    assert_eq!(queue.terminated()[..2], [0x11, 0]);
}

fn nothing_needs_no_stag() {
    let mut queue = fresh_with_reads();
    queue.send_segment(&tagged(TAGGED_LAST, WRITE, 0xDEAD_BEEF, u64::MAX, &[]));
    let answer = bytes_after(&queue, &read_request(1, (5, 6), 0, (0xDEAD_BEEF, u64::MAX)));
    assert_eq!(answer[..16], bytes_of("000ec142000000050000000000000006"));
}

fn read_from_nowhere() {
    let mut queue = fresh_with_reads();
    let read = read_request(1, (5, 6), 8, (0xDEAD_BEEF, 0));
    queue.send_segment(&read);
    let expected = [&bytes_of("0100e000002e")[..], &read].concat();
    assert_eq!(queue.terminated(), expected);
}

fn reads_which_were_not_agreed_on() {
    assert_eq!(terminate_after(&read_request(1, (5, 6), 0, (1, 0))), [0x02, 7]);
}

fn wrong_read_response() {
    let data = fabrics::admin_data();
    for change in 0..6 {
        let (mut queue, (stag, offset)) = with_a_read(0);
        let response = |stag, offset, data: &[u8]| tagged(TAGGED_LAST, READ_RESPONSE, stag, offset, data);
        let segment = match change {
            0 => response(stag ^ 0x100, offset, &data),
            1 => response(stag ^ 1, offset, &data),
            2 => response(stag, offset + 1, &data),
            3 => response(stag, offset, &data[..1023]),
            4 => response(stag, offset, &[&data[..], &[0]].concat()),
            _ => tagged(TAGGED, READ_RESPONSE, stag, offset, &data),
        };
        queue.send_segment(&segment);
        assert_eq!(queue.terminated()[0] & 0xF0, 0x10, "change {change}");
        assert!(!queue.did.iter().any(|did| matches!(did, Did::Responded { .. })));
    }
}

fn unasked_read_response() {
    for segment in [
        tagged(TAGGED_LAST, READ_RESPONSE, 1, 0, &[0; 8]),
        tagged(TAGGED_LAST, READ_RESPONSE, 0, 0, &[]),
        tagged(TAGGED, READ_RESPONSE, 1, 0, &[0; 8]),
    ] {
        assert_eq!(terminate_after(&segment), [0x02, 6]);
    }
}

fn segmented_read_response() {
    let (mut queue, (stag, offset)) = with_a_read(0);
    let data = fabrics::admin_data();
    for (begin, end) in [(0, 1), (1, 500), (500, 500), (500, 1024)] {
        let control = if end == 1024 { TAGGED_LAST } else { TAGGED };
        let at = offset + begin as u64;
        queue.send_segment(&tagged(control, READ_RESPONSE, stag, at, &data[begin..end]));
    }
    queue.response_to(0x1001).succeeded();
}

fn layout_of_a_terminate() {
    let queue = fresh();
    let bytes = bytes_after(&queue, &tagged(TAGGED_LAST, WRITE, 0x00AB_CD01, 0x1000, &[0; 8]));
    let mut expected =
        bytes_of("00264147000000000000000200000001000000001100c0000016c14000abcd010000000000001000");
    expected.extend([0; 4]);
    assert_eq!(bytes, expected);
    assert!(queue.peer.is_over());
}

fn received_terminate() {
    let queue = fresh();
    let segment = untagged(UNTAGGED_LAST, TERMINATE, 0, [2, 1, 0], &[0x11, 0, 0, 0]);
    assert_eq!(bytes_after(&queue, &segment), [0; 0]);
    assert!(queue.peer.is_over());
}

fn end_of_the_stream() {
    for length in [0, 1, 20, 80] {
        let queue = fresh();
        queue.peer.send(&fpdu(&send(1, &keep_alive()), false)[..length]);
        queue.target.run();
        queue.peer.end();
        queue.target.run();
        assert!(queue.peer.is_over(), "after {length} bytes");
        assert_eq!(queue.peer.take(), [0; 0]);
    }
}

fn invalidation_of_nothing() {
    let solicited = untagged(UNTAGGED_LAST, SEND_SOLICITED_INVALIDATE, 0x1234, [0, 1, 0], &keep_alive());
    for segment in [send_invalidate(1, 0x1234, &keep_alive()), solicited] {
        assert_eq!(segment[1] & 0x0D, SEND_INVALIDATE & 0x0D);
        let [kind, code] = terminate_after(&segment);
        assert_eq!((kind >> 4, code), (0, 9));
    }
}

fn interleaved_messages() {
    let mut queue = fresh();
    queue.send_segment(&untagged(UNTAGGED, SEND, 0, [0, 1, 0], &keep_alive()[..32]));
    queue.send_segment(&send(2, &keep_alive()));
    assert_eq!(queue.terminated()[..2], [0x12, 3]);
}

fn reads_and_sends_together() {
    let (_admin, mut io) = Queue::both(&Target::new());
    io.holds_reads = true;
    let write = crate::io::submit_write(&mut io, 0, &[0x33; 1024]);
    // Other commands are served while the host takes its time.
    crate::io::read(&mut io, 8, 1).0.succeeded();
    io.command(Sqe::new(0).nsid(1)).succeeded();
    assert!(io.poll(write).is_none());
    let read = io.held_reads.remove(0);
    io.answer_read(&read);
    io.response_to(write).succeeded();
}

fn headers_of_a_terminate() {
    let read = read_request(1, (5, 6), 8, (0xDEAD_BEEF, 0));
    // Neither its number nor the agreed depth is the source's matter.
    let mut late = read.clone();
    late[13] = 2;
    let mut queue = fresh_with_reads();
    queue.send_segment(&late);
    assert_eq!(queue.terminated(), [&bytes_of("1203c000002e")[..], &late[..18]].concat());
    let mut queue = fresh();
    queue.send_segment(&read);
    assert_eq!(queue.terminated(), [&bytes_of("0207c000002e")[..], &read[..18]].concat());
}

fn nothing_after_a_terminate() {
    let (mut queue, (stag, offset)) = with_a_read(0);
    let wrong = fpdu(&untagged(UNTAGGED_LAST, SEND, 0, [0, 9, 0], &keep_alive()), false);
    let data = fpdu(&tagged(TAGGED_LAST, READ_RESPONSE, stag, offset, &fabrics::admin_data()), false);
    queue.peer.send(&[wrong, data, fpdu(&send(2, &keep_alive()), false)].concat());
    assert_eq!(queue.terminated()[..2], [0x12, 3]);
    // The Terminate is the last it did: neither Connect nor Keep Alive was answered.
    assert!(!queue.did.iter().any(|did| matches!(did, Did::Responded { .. })));
}

fn more_than_was_asked_for() {
    for (first, second) in [(1024, 1), (1000, 25), (0, 1025)] {
        let (mut queue, (stag, offset)) = with_a_read(0);
        queue.send_segment(&tagged(TAGGED, READ_RESPONSE, stag, offset, &vec![0; first]));
        if !queue.peer.is_over() {
            let at = offset + first as u64;
            queue.send_segment(&tagged(TAGGED_LAST, READ_RESPONSE, stag, at, &vec![0; second]));
        }
        assert_eq!(queue.terminated()[..2], [0x11, 1], "{first} and {second}");
    }
}

fn numbers_of_each_queue() {
    let mut queue = fresh_with_reads();
    for number in 1..4 {
        queue.send_segment(&send(number, &Sqe::new(0x18).word(2, number as u16).0));
        let answer = bytes_after(&queue, &read_request(number, (5, 6), 0, (1, 0)));
        assert_eq!(answer[..16], bytes_of("000ec142000000050000000000000006"));
        assert_eq!(queue.response_to(number as u16).status(), (0, 0x0C, true));
    }
}
