//! Captured streams of the Linux software provider, decoded frame by frame and FPDU by FPDU without a
//! complaint, and written again to the same bytes.
use ironside_common::iwarp::crc::crc32c;
use ironside_common::iwarp::fpdu::{Fpdu, Segment};
use ironside_common::iwarp::mpa::{Frame, FrameKind, Parsed, Responder};
use ironside_common::iwarp::terminate::Reason;
use ironside_tests::support::pcap::{Connection, connections, vector};

const CAPTURES: [&str; 4] = [
    "nvme-siw-crc-pair.pcap",
    "nvme-siw-loopback.pcap",
    "siw-crc-pair-with-terminate.pcap",
    "siw-user-net-host.pcap",
];

/// What was seen, so that a capture which decodes to nothing does not pass.
#[derive(Debug, Default)]
struct Seen {
    fpdus: usize,
    verified: usize,
    writes: usize,
    read_requests: usize,
    read_responses: usize,
    sends: usize,
    invalidating_sends: usize,
    terminates: Vec<Reason>,
}

#[test]
fn captured_streams_are_understood_and_written_again() {
    let mut seen = Seen::default();
    for capture in CAPTURES {
        let connections = connections(&vector(capture));
        assert!(!connections.is_empty(), "{capture}");
        for connection in &connections {
            check_connection(connection, &mut seen);
        }
    }
    assert_eq!((seen.fpdus, seen.verified), (450, 344), "{seen:?}");
    assert_eq!((seen.writes, seen.read_requests, seen.read_responses), (157, 10, 32), "{seen:?}");
    assert_eq!((seen.sends, seen.invalidating_sends), (250, 68), "{seen:?}");
    assert_eq!(seen.terminates, [Reason::TAGGED_BOUNDS]);
}

fn check_connection(connection: &Connection, seen: &mut Seen) {
    let (request, from_initiator) = frame(FrameKind::Request, &connection.from_initiator);
    let (reply, from_responder) = frame(FrameKind::Reply, &connection.from_responder);
    assert!(!reply.reject && !reply.markers && !request.markers);
    let responder = Responder::new(request.clone()).expect("no markers");
    assert_eq!(responder.private_data(), &request.private_data);
    check_stream(from_initiator, reply.crc, seen);
    check_stream(from_responder, reply.crc, seen);
}

/// The frame a stream begins with, and the rest.
fn frame(kind: FrameKind, stream: &[u8]) -> (Frame, &[u8]) {
    let mut there = 0;
    let frame = loop {
        match Frame::parse(kind, &stream[..there]).expect("an MPA frame") {
            Parsed::Whole(frame) => break frame,
            Parsed::Needs(length) => there = length,
        }
    };
    assert_eq!(&frame.to_bytes()[..], &stream[..there]);
    (*frame, &stream[there..])
}

fn check_stream(mut stream: &[u8], crc: bool, seen: &mut Seen) {
    let (mut send_sequence, mut read_sequence) = (1, 1);
    while let Some(fpdu) = Fpdu::parse(stream).expect("an FPDU") {
        // A capture may end within one.
        let Some((bytes, behind)) = stream.split_at_checked(fpdu.length()) else { return };
        stream = behind;
        let (covered, sum) = bytes.split_at(bytes.len() - 4);
        if crc {
            assert_eq!(crc32c(covered), sum);
            seen.verified += 1;
        } else {
            assert_eq!(sum, [0; 4]);
        }
        let header = fpdu.header_length();
        let payload = &bytes[header..bytes.len() - fpdu.trailer_length()];
        assert_eq!(fpdu.segment.fpdu(payload, crc), bytes, "{fpdu:?}");
        seen.fpdus += 1;
        match fpdu.segment {
            Segment::Write { .. } => seen.writes += 1,
            Segment::ReadResponse { .. } => seen.read_responses += 1,
            Segment::ReadRequest(request) => {
                assert_eq!(request.sequence, read_sequence);
                read_sequence += 1;
                seen.read_requests += 1;
            }
            Segment::Send(send) => {
                assert_eq!(send.sequence, send_sequence);
                send_sequence += u32::from(send.last);
                seen.sends += 1;
                seen.invalidating_sends += usize::from(send.invalidate.is_some());
            }
            Segment::Terminate { sequence } => {
                assert_eq!(sequence, 1);
                seen.terminates.push(Reason::decode(payload).expect("a reason"));
            }
        }
    }
}
