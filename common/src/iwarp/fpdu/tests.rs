//! Known FPDUs byte by byte, in both directions, and bytes which are none.
use proptest::prelude::*;

use super::*;
use crate::iwarp::terminate::{self, Offending, Reason};

fn bytes(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn check(text: &str, segment: Segment, payload: &[u8]) {
    let wire = bytes(text);
    assert_eq!(segment.fpdu(payload, true), wire, "{segment:?}");
    let fpdu = Fpdu::parse(&wire).unwrap().unwrap();
    assert_eq!(fpdu.segment, segment);
    assert_eq!((fpdu.length(), fpdu.payload_length() as usize), (wire.len(), payload.len()));
    let header = fpdu.header_length();
    assert_eq!(&wire[header..header + payload.len()], payload);
    assert_eq!(wire.len() - header - payload.len(), fpdu.trailer_length());
    for there in 0..header {
        assert_eq!(Fpdu::parse(&wire[..there]), Ok(None), "{there} bytes of {segment:?}");
    }
    let plain = segment.fpdu(payload, false);
    assert_eq!(&plain[..wire.len() - 4], &wire[..wire.len() - 4]);
    assert_eq!(&plain[wire.len() - 4..], [0; 4]);
}

fn send(sequence: u32, invalidate: Option<u32>) -> Segment {
    Segment::Send(SendSegment { sequence, offset: 0, invalidate, solicited: false, last: true })
}

fn at(rkey: u32, address: u64) -> Remote {
    Remote { address, rkey }
}

#[test]
fn sends() {
    let zeroes = "00".repeat(24);
    check(
        &format!("002a4143 00000000 00000000 00000001 00000000 {zeroes} b7243ec3"),
        send(1, None),
        &[0; 24],
    );
    check("00174143 00000000 00000000 00000001 00000000 68656c6c6f 000000 b990b10c", send(1, None), b"hello");
    check(
        "00224144 12345601 00000000 00000001 00000000 0000000000000000 0100 0000 0510 0000 51f4295f",
        send(1, Some(0x1234_5601)),
        &bytes("0000000000000000 0100 0000 0510 0000"),
    );
}

#[test]
fn tagged_segments() {
    check(
        "0016c140 00abcd01 0000000000001000 0001020304050607 404b5e3b",
        Segment::Write { to: at(0x00ab_cd01, 0x1000), last: true },
        &[0, 1, 2, 3, 4, 5, 6, 7],
    );
    check("000ec140 00000001 0000000000000000 ebd34c5f", Segment::Write { to: at(1, 0), last: true }, &[]);
    check(
        "000ec142 00000000 0000000000000000 6975d6ca",
        Segment::ReadResponse { to: at(0, 0), last: true },
        &[],
    );
    check(
        "0011c142 00112201 0000000000002000 616263 00 56163a06",
        Segment::ReadResponse { to: at(0x0011_2201, 0x2000), last: true },
        b"abc",
    );
}

#[test]
fn read_requests() {
    let request =
        |sink, length, source| Segment::ReadRequest(ReadRequest { sequence: 1, sink, length, source });
    check(
        "002e4141 00000000 00000001 00000001 00000000 00112201 0000000000002000 00001000 00abcd01
         00007f0000001000 4a04d239",
        request(at(0x0011_2201, 0x2000), 4096, at(0x00ab_cd01, 0x7F00_0000_1000)),
        &[],
    );
    check(
        "002e4141 00000000 00000001 00000001 00000000 00000000 0000000000000000 00000000 00000001
         0000000000000000 ba10e3c9",
        request(at(0, 0), 0, at(1, 0)),
        &[],
    );
}

#[test]
fn terminates_in_both_orders() {
    let header = bytes("c14000abcd010000000000001000");
    let offending = Offending { segment_length: 0x16, header: header.iter().copied().collect() };
    let payload = terminate::payload(Reason::TAGGED_INVALID_STAG, Some(&offending));
    let text =
        "00264147 00000000 00000002 00000001 00000000 1100c000 0016 c14000abcd010000000000001000 630d3db7";
    check(text, Segment::Terminate { sequence: 1 }, &payload);
    let swapped = bytes(
        "00264147 00000000 00000002 00000001 00000000 11000300 0008 c14000abcd010000000000001000 40a2f9dd",
    );
    let fpdu = Fpdu::parse(&swapped).unwrap().unwrap();
    assert_eq!(fpdu.segment, Segment::Terminate { sequence: 1 });
    assert_eq!(Reason::decode(&swapped[fpdu.header_length()..]), Some(Reason::TAGGED_INVALID_STAG));
    assert_eq!(crc32c(&swapped[..swapped.len() - 4]), swapped[swapped.len() - 4..]);
}

#[test]
fn an_fpdu_ends_on_a_multiple_of_four() {
    assert_eq!((padding(23), fpdu_length(23)), (3, 32));
    assert_eq!((padding(22), fpdu_length(22)), (0, 28));
    assert_eq!(FPDU_MAX, 65544);
}

#[test]
fn what_may_not_stand_there_is_named() {
    let refused = |text: &str| Fpdu::parse(&bytes(text)).unwrap_err();
    assert_eq!(refused("000e c240"), Fault::DdpVersion { tagged: true });
    assert_eq!(refused("0012 4043"), Fault::DdpVersion { tagged: false });
    assert_eq!(refused("0012 4103"), Fault::RdmapVersion);
    assert_eq!(refused("0012 414b"), Fault::UnexpectedOpcode(11));
    assert_eq!(refused("0012 4140"), Fault::UnexpectedOpcode(0));
    assert_eq!(refused("0012 c143"), Fault::UnexpectedOpcode(3));
    assert_eq!(refused("000d c140"), Fault::UlpduLength(13));
    assert_eq!(refused("0011 4143"), Fault::UlpduLength(17));
    assert_eq!(refused("002f 4141"), Fault::UlpduLength(47));
    assert_eq!(refused("0061 4147"), Fault::UlpduLength(97));
    assert_eq!(refused("0012 4143 00000000 00000001 00000001 00000000"), Fault::Queue(1));
    assert_eq!(refused("002e 4141 00000000 00000000 00000001 00000000"), Fault::Queue(0));
    let offset = Fault::MessageOffset { expected: 0, got: 4 };
    assert_eq!(refused("002e 4141 00000000 00000001 00000001 00000004"), offset);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(Some(fpdu)) = Fpdu::parse(&bytes) {
            prop_assert!(fpdu.length() >= fpdu.header_length() + fpdu.trailer_length());
        }
    }
}
