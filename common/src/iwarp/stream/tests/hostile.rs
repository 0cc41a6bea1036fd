//! What a peer can do wrong, and what it is told.
use proptest::prelude::*;

use super::*;
use crate::iwarp::StagError;
use crate::iwarp::fpdu::{Fpdu, ReadRequest, Segment, SendSegment};
use crate::iwarp::terminate::Reason;

/// A host with one buffer exposed for reading, one for writing, one receive of 16 bytes, and a Read of its
/// own outstanding.
struct Victim {
    stream: Stream,
    memory: TestMemory,
    readable: Remote,
    writable: Remote,
    sink: Remote,
}

const EXPOSED: u32 = 1000;

impl Victim {
    fn new(crc: bool) -> Self {
        let mut stream = Stream::new(config(Role::Initiator, crc));
        let memory = TestMemory::new(8192);
        let mut expose = |address, access| {
            let (slot, memory) = (stream.allocate(), sge(address, EXPOSED));
            let remote = stream.prepare(slot, memory);
            stream.post(Work::Register { slot, remote, memory, access });
            remote
        };
        let readable = expose(0, Access::RemoteRead);
        let writable = expose(2000, Access::RemoteWrite);
        stream.post_receive(0, sge(4000, 16));
        let elsewhere = Remote { address: 0, rkey: 0xABCD };
        stream.post(Work::Read { token: token(1), from: elsewhere, into: sge(5000, 100) });
        let request = take(&mut stream, &memory, usize::MAX);
        let Ok(Some(Fpdu { segment: Segment::ReadRequest(request), .. })) = Fpdu::parse(&request) else {
            unreachable!("the Read leaves first");
        };
        Self { stream, memory, readable, writable, sink: request.sink }
    }

    fn receive(&mut self, segment: Segment, payload: &[u8]) -> Result<usize, Fault> {
        let bytes = segment.fpdu(payload, self.stream.terms().crc);
        self.stream.receive(&bytes, &self.memory)
    }

    /// It breaks by this, says so in one Terminate, and flushes.
    fn breaks(mut self, segment: Segment, payload: &[u8], fault: Fault, reason: Reason) {
        assert_eq!(self.receive(segment, payload), Err(fault));
        let bytes = take(&mut self.stream, &self.memory, usize::MAX);
        let fpdu = Fpdu::parse(&bytes).unwrap().unwrap();
        assert_eq!(fpdu.segment, Segment::Terminate { sequence: 1 });
        assert_eq!(fpdu.length(), bytes.len());
        let payload = &bytes[fpdu.header_length()..];
        assert_eq!(Reason::decode(payload), Some(reason));
        let header = segment.header_length();
        let mut expected = vec![0; header];
        segment.write_header(&mut expected);
        // Of a Read Request DDP's part comes back, and all where its source was wrong.
        let is_whole = !matches!(segment, Segment::ReadRequest(_)) || matches!(fault, Fault::ReadSource(_));
        let brought = if is_whole { header } else { header - 28 };
        assert_eq!(payload[6..6 + brought], expected[..brought], "the offending header comes back");
        assert_eq!(events(&mut self.stream), [completed(1, WcStatus::Flushed)]);
        assert_eq!(self.stream.receive(&[1, 2, 3], &self.memory), Ok(3));
        assert!(take(&mut self.stream, &self.memory, usize::MAX).is_empty());
    }
}

fn moved(remote: Remote, offset: u64) -> Remote {
    Remote { address: remote.address.wrapping_add(offset), ..remote }
}

fn message(sequence: u32, offset: u32, last: bool) -> Segment {
    Segment::Send(SendSegment { sequence, offset, invalidate: None, solicited: false, last })
}

fn each(test: impl Fn(Victim)) {
    test(Victim::new(false));
    test(Victim::new(true));
}

#[test]
fn writes_are_kept_to_their_window() {
    let write = |to| Segment::Write { to, last: true };
    let tagged = Fault::Tagged;
    each(|it| {
        let to = moved(it.writable, u64::from(EXPOSED) - 3);
        it.breaks(write(to), &[1; 4], tagged(StagError::Bounds), Reason::TAGGED_BOUNDS);
    });
    each(|it| {
        let to = Remote { rkey: it.writable.rkey ^ 1, ..it.writable };
        it.breaks(write(to), &[1; 4], tagged(StagError::Invalid), Reason::TAGGED_INVALID_STAG);
    });
    each(|it| {
        let to = it.readable;
        it.breaks(write(to), &[1; 4], tagged(StagError::Rights), Reason::TAGGED_INVALID_STAG);
    });
    each(|it| {
        let to = it.sink;
        it.breaks(write(to), &[1; 4], tagged(StagError::Rights), Reason::TAGGED_INVALID_STAG);
    });
    each(|it| {
        let to = Remote { address: u64::MAX - 1, ..it.writable };
        it.breaks(write(to), &[1; 4], tagged(StagError::Wrap), Reason::TAGGED_WRAP);
    });
    each(|mut it| {
        let to = moved(it.writable, u64::from(EXPOSED) - 4);
        assert!(it.receive(write(to), &[9; 4]).is_ok());
        assert_eq!(it.memory.bytes(sge(2996, 5)), [9, 9, 9, 9, 0]);
        let nowhere = Remote { address: 77, rkey: 0xDEAD };
        assert!(it.receive(write(nowhere), &[]).is_ok(), "a Write of nothing names nothing");
        assert!(events(&mut it.stream).is_empty());
    });
}

#[test]
fn reads_are_kept_to_their_window_and_number() {
    let read = |sequence, source, length| {
        let sink = Remote { address: 1, rkey: 2 };
        Segment::ReadRequest(ReadRequest { sequence, sink, length, source })
    };
    each(|it| {
        let source = it.readable;
        let error = Fault::ReadSource(StagError::Bounds);
        it.breaks(read(1, source, EXPOSED + 1), &[], error, Reason::SOURCE_BOUNDS);
    });
    each(|it| {
        let source = it.writable;
        let error = Fault::ReadSource(StagError::Rights);
        it.breaks(read(1, source, 1), &[], error, Reason::SOURCE_RIGHTS);
    });
    each(|it| {
        let source = Remote { rkey: 5, ..it.readable };
        let error = Fault::ReadSource(StagError::Invalid);
        it.breaks(read(1, source, 1), &[], error, Reason::SOURCE_INVALID_STAG);
    });
    each(|it| {
        let source = it.readable;
        let error = Fault::MessageSequence { expected: 1, got: 2 };
        it.breaks(read(2, source, 1), &[], error, Reason::MESSAGE_SEQUENCE);
    });
    each(|mut it| {
        for sequence in 1..=4 {
            assert!(it.receive(read(sequence, it.readable, 1), &[]).is_ok());
        }
        let source = it.readable;
        it.breaks(read(5, source, 1), &[], Fault::TooManyReads, Reason::CATASTROPHIC);
    });
}

#[test]
fn read_responses_fit_their_request_exactly() {
    let response = |to, last| Segment::ReadResponse { to, last };
    let wrong = Fault::ReadResponse;
    each(|it| {
        let to = it.sink;
        it.breaks(response(to, false), &[0; 100], wrong(StagError::Bounds), Reason::TAGGED_BOUNDS);
    });
    each(|it| {
        let to = it.sink;
        it.breaks(response(to, true), &[0; 99], wrong(StagError::Bounds), Reason::TAGGED_BOUNDS);
    });
    each(|it| {
        let to = it.sink;
        it.breaks(response(to, true), &[0; 101], wrong(StagError::Bounds), Reason::TAGGED_BOUNDS);
    });
    each(|it| {
        let to = moved(it.sink, 1);
        it.breaks(response(to, true), &[0; 100], wrong(StagError::Bounds), Reason::TAGGED_BOUNDS);
    });
    each(|it| {
        let to = it.writable;
        it.breaks(response(to, true), &[0; 100], wrong(StagError::Invalid), Reason::TAGGED_INVALID_STAG);
    });
    each(|mut it| {
        assert!(it.receive(response(it.sink, false), &[7; 60]).is_ok());
        assert!(it.receive(response(moved(it.sink, 60), true), &[8; 40]).is_ok());
        assert_eq!(events(&mut it.stream), [done(1)]);
        let bytes = response(it.sink, true).fpdu(&[0; 100], it.stream.terms().crc);
        assert_eq!(it.stream.receive(&bytes, &it.memory), Err(Fault::UnexpectedOpcode(2)));
    });
}

#[test]
fn sends_come_in_order_and_fit_their_buffer() {
    each(|it| {
        let fault = Fault::MessageSequence { expected: 1, got: 2 };
        it.breaks(message(2, 0, true), b"x", fault, Reason::MESSAGE_SEQUENCE);
    });
    each(|it| {
        let fault = Fault::MessageOffset { expected: 0, got: 1 };
        it.breaks(message(1, 1, true), b"x", fault, Reason::MESSAGE_OFFSET);
    });
    each(|it| it.breaks(message(1, 0, true), &[0; 17], Fault::MessageTooLong, Reason::MESSAGE_TOO_LONG));
    each(|mut it| {
        assert!(it.receive(message(1, 0, false), &[5; 10]).is_ok());
        it.breaks(message(1, 10, true), &[5; 7], Fault::MessageTooLong, Reason::MESSAGE_TOO_LONG);
    });
    each(|mut it| {
        assert!(it.receive(message(1, 0, false), &[5; 10]).is_ok());
        let changed = SendSegment { sequence: 1, offset: 10, invalidate: None, solicited: true, last: true };
        let fault = Fault::UnexpectedOpcode(3);
        it.breaks(Segment::Send(changed), &[5; 6], fault, Reason::UNEXPECTED_OPCODE);
    });
    each(|mut it| {
        assert!(it.receive(message(1, 0, true), &[5; 16]).is_ok());
        assert_eq!(events(&mut it.stream), [StreamEvent::Received { id: 0, length: 16, invalidated: None }]);
        it.breaks(message(2, 0, true), &[], Fault::NoBuffer, Reason::NO_BUFFER);
    });
}

#[test]
fn only_an_exposed_key_can_be_invalidated() {
    let invalidate = |key| {
        let (sequence, offset, solicited, last) = (1, 0, false, true);
        Segment::Send(SendSegment { sequence, offset, invalidate: Some(key), solicited, last })
    };
    each(|it| {
        let key = it.sink.rkey;
        it.breaks(invalidate(key), &[], Fault::CannotInvalidate(key), Reason::CANNOT_INVALIDATE);
    });
    each(|it| it.breaks(invalidate(0), &[], Fault::CannotInvalidate(0), Reason::CANNOT_INVALIDATE));
    each(|mut it| {
        // Not while a Read of it is owed: its owner would get the memory back too early.
        let (sink, source) = (Remote { address: 0, rkey: 1 }, it.readable);
        let read = Segment::ReadRequest(ReadRequest { sequence: 1, sink, length: 10, source });
        assert!(it.receive(read, &[]).is_ok());
        let key = source.rkey;
        it.breaks(invalidate(key), &[], Fault::CannotInvalidate(key), Reason::CANNOT_INVALIDATE);
    });
}

#[test]
fn a_flipped_bit_is_caught_before_it_is_believed() {
    let mut it = Victim::new(true);
    let mut bytes = Segment::Write { to: it.writable, last: true }.fpdu(&[1; 40], true);
    bytes[30] ^= 4;
    assert_eq!(it.stream.receive(&bytes, &it.memory), Err(Fault::Crc));
    assert_eq!(it.memory.bytes(sge(2000, 40)), [0; 40]);
    let bytes = take(&mut it.stream, &it.memory, usize::MAX);
    let fpdu = Fpdu::parse(&bytes).unwrap().unwrap();
    assert_eq!(Reason::decode(&bytes[fpdu.header_length()..]), Some(Reason::MPA_CRC));
}

#[test]
fn a_terminate_is_not_answered() {
    each(|mut it| {
        let bytes = Reason::NO_BUFFER.fpdu(None, it.stream.terms().crc);
        assert_eq!(it.stream.receive(&bytes, &it.memory), Err(Fault::Terminated(Reason::NO_BUFFER)));
        assert!(take(&mut it.stream, &it.memory, usize::MAX).is_empty());
        assert_eq!(events(&mut it.stream), [completed(1, WcStatus::Flushed)]);
    });
}

/// A segment which is nearly right.
fn plausible() -> impl Strategy<Value = (Segment, Vec<u8>)> {
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    let numbers = (0..8u8, 0..4u32, 0..3u32, any::<bool>(), any::<bool>(), 0..2000u64);
    (numbers, payload).prop_map(|((kind, key, sequence, last, flag, offset), mut payload)| {
        let rkeys = [0, 9 << 8 | 1, 10 << 8 | 1, 11 << 8 | 1];
        let to = Remote { address: 0x1_0000 + offset, rkey: rkeys[key as usize] };
        let invalidate = flag.then_some(to.rkey);
        let segment = match kind {
            0 | 1 => Segment::Write { to, last },
            2 => Segment::ReadResponse { to, last },
            3 => Segment::ReadRequest(ReadRequest { sequence, sink: to, length: 9, source: to }),
            4 => Segment::Terminate { sequence },
            _ => Segment::Send(SendSegment { sequence, offset: 0, invalidate, solicited: last, last }),
        };
        match kind {
            3 => payload.clear(),
            4 => payload.truncate(70),
            _ => {}
        }
        (segment, payload)
    })
}

proptest! {
    #[test]
    fn nothing_a_peer_sends_panics_or_reaches_beyond_a_window(
        crc in any::<bool>(),
        segments in prop::collection::vec(plausible(), 0..12),
        noise in prop::collection::vec(any::<u8>(), 0..200),
        split in 1..400usize,
    ) {
        let mut it = Victim::new(crc);
        let mut input: Vec<u8> =
            segments.iter().flat_map(|(segment, payload)| segment.fpdu(payload, crc)).collect();
        input.extend(noise);
        let mut pending = Vec::new();
        for piece in input.chunks(split) {
            pending.extend_from_slice(piece);
            let Ok(used) = it.stream.receive(&pending, &it.memory) else { break };
            pending.drain(..used);
            take(&mut it.stream, &it.memory, split);
        }
        // Readable memory, the gaps between windows, and what lies behind the last one.
        for (address, length) in [(0, 2000), (3000, 1000), (4016, 984), (5100, 3092)] {
            prop_assert!(it.memory.bytes(sge(address, length)).iter().all(|&byte| byte == 0));
        }
    }
}
