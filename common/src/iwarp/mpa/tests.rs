//! Frames byte by byte, and every agreement the two sides can come to.
use proptest::prelude::*;

use super::*;
use crate::iwarp::terminate::Reason;
use crate::verbs::PrivateData;

fn bytes(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn private(text: &str, zeroes: usize) -> PrivateData {
    bytes(text).into_iter().chain(std::iter::repeat_n(0, zeroes)).collect()
}

const REQUEST: &str = "4d504120494420526571204672616d65";
const REPLY: &str = "4d504120494420526570204672616d65";

fn frame(kind: FrameKind, crc: bool, revision: u8, enhanced: Option<Enhanced>, data: PrivateData) -> Frame {
    Frame { kind, markers: false, crc, reject: false, revision, enhanced, private_data: data }
}

fn check(text: &str, zeroes: usize, expected: &Frame) {
    let mut wire = bytes(text);
    wire.resize(wire.len() + zeroes, 0);
    assert_eq!(Frame::parse(expected.kind, &wire), Ok(Parsed::Whole(Box::new(expected.clone()))));
    assert_eq!(&expected.to_bytes()[..], &wire[..]);
}

#[test]
fn known_frames() {
    let enhanced = |ird, ord| Some(Enhanced { ird, ord, ..Enhanced::default() });
    check(
        &format!("{REQUEST} 10 02 0024 0080 0000 0000 0000 2000 1f00 0000"),
        22,
        &frame(FrameKind::Request, false, 2, enhanced(128, 0), private("0000 0000 2000 1f00 0000", 22)),
    );
    check(
        &format!("{REPLY} 10 02 0024 0000 0080 0000 2000"),
        28,
        &frame(FrameKind::Reply, false, 2, enhanced(0, 128), private("0000 2000", 28)),
    );
    let rtr = RtrForms { send: false, write: false, read: true };
    check(
        &format!("{REQUEST} 50 02 0024 8010 4001 0000 0100 8000 7f00 0100"),
        22,
        &frame(
            FrameKind::Request,
            true,
            2,
            Some(Enhanced { peer_to_peer: true, rtr, ird: 16, ord: 1 }),
            private("0000 0100 8000 7f00 0100", 22),
        ),
    );
    check(
        &format!("{REQUEST} 40 01 0020 0000 0000 2000 1f00 0000"),
        22,
        &frame(FrameKind::Request, true, 1, None, private("0000 0000 2000 1f00 0000", 22)),
    );
    let reject = Frame {
        reject: true,
        ..frame(FrameKind::Reply, false, 2, enhanced(0, 128), private("0000 0400", 0))
    };
    check(&format!("{REPLY} 30 02 0008 0000 0080 0000 0400"), 0, &reject);
}

#[test]
fn what_is_no_frame_is_noticed_early() {
    assert_eq!(Frame::parse(FrameKind::Request, b"MPA ID Rep"), Err(FrameError::Key));
    assert_eq!(Frame::parse(FrameKind::Request, b"G"), Err(FrameError::Key));
    assert_eq!(Frame::parse(FrameKind::Request, b""), Ok(Parsed::Needs(20)));
    let parse = |text: &str| Frame::parse(FrameKind::Request, &bytes(&format!("{REQUEST} {text}")));
    assert_eq!(parse("00 03 0000"), Err(FrameError::Revision(3)));
    assert_eq!(parse("00 01 0201"), Err(FrameError::PrivateDataLength(513)));
    assert_eq!(parse("10 02 0002 0000"), Err(FrameError::EnhancedMissing));
    assert_eq!(parse("10 02 0024 0000"), Ok(Parsed::Needs(56)));
}

const HOST: Offer = Offer { crc: false, refuse_crc: false, ird: 128, ord: 0 };
const TARGET: Offer = Offer { crc: false, refuse_crc: false, ird: 16, ord: 32 };

fn negotiate(host: Offer, target: Offer) -> (Terms, Terms) {
    let initiator = Initiator::new(host);
    let request = initiator.request(PrivateData::new());
    let responder = Responder::new(request).unwrap();
    let (reply, theirs) = responder.accept(target, PrivateData::new());
    (initiator.agree(&reply).unwrap(), theirs)
}

#[test]
fn either_side_switches_crc_on_for_both() {
    for (host, target) in [(false, false), (false, true), (true, false), (true, true)] {
        let (ours, theirs) = negotiate(Offer { crc: host, ..HOST }, Offer { crc: target, ..TARGET });
        assert_eq!((ours.crc, theirs.crc), (host || target, host || target));
    }
}

#[test]
fn a_host_may_turn_away_from_crc() {
    let initiator = Initiator::new(Offer { refuse_crc: true, ..HOST });
    let request = initiator.request(PrivateData::new());
    assert!(!request.crc);
    for crc in [false, true] {
        let responder = Responder::new(request.clone()).unwrap();
        let (reply, _) = responder.accept(Offer { crc, ..TARGET }, PrivateData::new());
        assert_eq!(initiator.agree(&reply).err(), crc.then_some(Refusal::Crc));
    }
}

#[test]
fn each_side_reads_no_more_than_the_other_takes() {
    let (host, target) = negotiate(HOST, TARGET);
    assert_eq!((host.ird, host.ord, host.rtr), (32, 1, Some(Rtr::Write)));
    assert_eq!((target.ird, target.ord, target.rtr), (1, 32, Some(Rtr::Write)));
    let (host, target) = negotiate(Offer { ird: 4, ..HOST }, TARGET);
    assert_eq!((host.ird, target.ord), (4, 4));
}

fn request(revision: u8, enhanced: Option<Enhanced>) -> Frame {
    frame(FrameKind::Request, false, revision, enhanced, PrivateData::new())
}

#[test]
fn the_responder_takes_every_indication() {
    let rtr = |send, write, read| RtrForms { send, write, read };
    for (forms, chosen) in [
        (rtr(true, true, true), Some(Rtr::Write)),
        (rtr(true, false, true), Some(Rtr::Read)),
        (rtr(true, false, false), Some(Rtr::Send)),
        (rtr(false, false, false), Some(Rtr::Write)),
    ] {
        let enhanced = Enhanced { peer_to_peer: true, rtr: forms, ird: 8, ord: 1 };
        let (reply, terms) =
            Responder::new(request(2, Some(enhanced))).unwrap().accept(TARGET, PrivateData::new());
        assert_eq!(terms.rtr, chosen);
        let theirs = reply.enhanced.unwrap();
        assert!(theirs.peer_to_peer);
        assert_eq!(theirs.rtr, chosen.map_or_else(RtrForms::default, RtrForms::from));
    }
}

#[test]
fn a_read_which_indicates_is_taken_of_who_sends_no_others() {
    let rtr = RtrForms { send: false, write: false, read: true };
    let enhanced = Enhanced { peer_to_peer: true, rtr, ird: 8, ord: 0 };
    let (reply, terms) =
        Responder::new(request(2, Some(enhanced))).unwrap().accept(TARGET, PrivateData::new());
    assert_eq!((reply.enhanced.unwrap().ird, terms.ird), (1, 1));
}

#[test]
fn an_old_or_silent_peer_gets_careful_depths() {
    let (reply, terms) = Responder::new(request(1, None)).unwrap().accept(TARGET, PrivateData::new());
    assert_eq!((reply.revision, reply.enhanced), (1, None));
    assert_eq!((terms.ird, terms.ord, terms.rtr), (16, 16, None));
    let open = Enhanced { ird: Enhanced::UNSPECIFIED, ord: Enhanced::UNSPECIFIED, ..Enhanced::default() };
    let (reply, terms) = Responder::new(request(2, Some(open))).unwrap().accept(TARGET, PrivateData::new());
    assert_eq!((terms.ird, terms.ord), (16, 16));
    assert_eq!(reply.enhanced, Some(open));
}

#[test]
fn markers_are_refused_by_both() {
    let marked = Frame { markers: true, ..request(2, Some(Enhanced::default())) };
    let reply = Responder::new(marked).unwrap_err();
    assert!(reply.reject && !reply.markers && reply.enhanced.is_some());
    let reply = Frame { kind: FrameKind::Reply, markers: true, ..request(2, Some(Enhanced::default())) };
    let refusal = Initiator::new(HOST).agree(&reply).unwrap_err();
    assert_eq!((refusal.reason(), refusal), (Some(Reason::MPA_LOCAL_CATASTROPHIC), Refusal::Markers));
}

#[test]
fn the_initiator_refuses_what_it_cannot_live_with() {
    let reply = |enhanced| Frame { kind: FrameKind::Reply, ..request(2, enhanced) };
    let agree = |enhanced| Initiator::new(HOST).agree(&reply(Some(enhanced)));
    let base = Enhanced { peer_to_peer: true, ird: 1, ord: 128, ..Enhanced::default() };
    assert_eq!(agree(base).unwrap_err().reason(), Some(Reason::MPA_NO_MATCHING_RTR));
    let read = Enhanced { rtr: Rtr::Read.into(), ..base };
    assert_eq!(agree(read).unwrap().rtr, Some(Rtr::Read));
    assert_eq!(agree(Enhanced { ird: 0, ..read }), Err(Refusal::InsufficientIrd));
    assert_eq!(agree(Enhanced { ord: 129, ..read }), Err(Refusal::InsufficientIrd));
    assert_eq!(agree(Enhanced { peer_to_peer: false, ..base }).unwrap().rtr, None);
    assert_eq!(Initiator::new(HOST).agree(&reply(None)), Err(Refusal::Revision(2)));
    let rejected = Frame { reject: true, private_data: private("0000 0400", 0), ..reply(None) };
    assert_eq!(
        Initiator::new(HOST).agree(&rejected),
        Err(Refusal::Rejected(Box::new(private("0000 0400", 0))))
    );
}

proptest! {
    #[test]
    fn random_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..600), keyed in any::<bool>()) {
        let mut wire = if keyed { bytes(REQUEST) } else { Vec::new() };
        wire.extend(tail);
        for kind in [FrameKind::Request, FrameKind::Reply] {
            if let Ok(Parsed::Needs(length)) = Frame::parse(kind, &wire) {
                prop_assert!(length > wire.len() && length <= FRAME_MAX);
            }
        }
    }
}
