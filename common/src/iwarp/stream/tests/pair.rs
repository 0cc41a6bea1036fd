//! What two well-behaved streams do with each other, one thing at a time.
use super::*;
use crate::iwarp::Part;

struct Pair {
    host: Stream,
    target: Stream,
    host_memory: TestMemory,
    target_memory: TestMemory,
}

impl Pair {
    fn new(crc: bool, rtr: Option<Rtr>) -> Self {
        let with_rtr = |role| {
            let config = config(role, crc);
            Config { terms: Terms { rtr, ..config.terms }, ..config }
        };
        Self {
            host: Stream::new(with_rtr(Role::Initiator)),
            target: Stream::new(with_rtr(Role::Responder)),
            host_memory: TestMemory::new(65536),
            target_memory: TestMemory::new(65536),
        }
    }

    /// Moves everything there is to move.
    fn run(&mut self) {
        loop {
            let to_target = take(&mut self.host, &self.host_memory, usize::MAX);
            let to_host = take(&mut self.target, &self.target_memory, usize::MAX);
            if to_target.is_empty() && to_host.is_empty() {
                return;
            }
            assert_eq!(self.target.receive(&to_target, &self.target_memory), Ok(to_target.len()));
            assert_eq!(self.host.receive(&to_host, &self.host_memory), Ok(to_host.len()));
        }
    }

    fn expose(&mut self, memory: Sge, access: Access) -> (StagSlot, Remote) {
        let slot = self.host.allocate();
        let remote = self.host.prepare(slot, memory);
        self.host.post(Work::Register { slot, remote, memory, access });
        (slot, remote)
    }
}

#[test]
fn a_write_is_placed_before_its_send_is_delivered_and_the_key_is_gone() {
    for crc in [false, true] {
        let mut pair = Pair::new(crc, None);
        let (source, sink) = (sge(100, 5000), sge(300, 5000));
        pair.target_memory.fill(source, 1);
        let (_, remote) = pair.expose(sink, Access::RemoteWrite);
        pair.host.post_receive(7, sge(0, 16));
        pair.target.post_receive(1, sge(0, 64));
        pair.host.post(send(1, b"read, please"));
        pair.run();
        assert_eq!(events(&mut pair.host), [done(1)]);
        let received = StreamEvent::Received { id: 1, length: 12, invalidated: None };
        assert_eq!(events(&mut pair.target), [received]);
        assert_eq!(pair.target_memory.bytes(sge(0, 12)), b"read, please");

        pair.target.post(Work::Write { from: source, to: remote });
        let Work::Send { token, head, data, solicited, .. } = send(2, b"here you are") else {
            unreachable!()
        };
        pair.target.post(Work::Send { token, head, data, invalidate: Some(remote.rkey), solicited });
        pair.run();
        assert_eq!(events(&mut pair.target), [done(2)]);
        let received = StreamEvent::Received { id: 7, length: 12, invalidated: Some(remote.rkey) };
        assert_eq!(events(&mut pair.host), [received]);
        assert_eq!(pair.host_memory.bytes(sink), pair.target_memory.bytes(source));
        pair.target.post(Work::Write { from: source, to: remote });
        let bytes = take(&mut pair.target, &pair.target_memory, usize::MAX);
        let refused = pair.host.receive(&bytes, &pair.host_memory);
        assert_eq!(refused, Err(Fault::Tagged(crate::iwarp::StagError::Invalid)));
    }
}

#[test]
fn reads_come_back_in_order_and_wait_for_their_turn() {
    for crc in [false, true] {
        let mut pair = Pair::new(crc, None);
        let source = sge(1000, 3000);
        pair.host_memory.fill(source, 9);
        let (_, remote) = pair.expose(source, Access::RemoteRead);
        pair.target.post_receive(0, sge(0, 64));
        pair.host.post(send(0, b"fetch it"));
        pair.run();
        events(&mut pair.target);
        // Ten Reads, though only four may be outstanding.
        for slot in 0..10u16 {
            let into = sge(10_000 + u64::from(slot) * 3000, 3000 - u32::from(slot));
            pair.target.post(Work::Read { token: token(slot), from: remote, into });
        }
        let first = take(&mut pair.target, &pair.target_memory, usize::MAX);
        assert_eq!(first.len(), 4 * 52);
        assert!(pair.target.awaits_response());
        pair.host.receive(&first, &pair.host_memory).unwrap();
        pair.run();
        assert_eq!(events(&mut pair.target), (0..10).map(done).collect::<Vec<_>>());
        for slot in 0..10u16 {
            let into = sge(10_000 + u64::from(slot) * 3000, 3000 - u32::from(slot));
            let expected = pair.host_memory.bytes(source.slice(0, into.length));
            assert_eq!(pair.target_memory.bytes(into), expected);
        }
        assert!(!pair.target.awaits_response());
    }
}

#[test]
fn every_indication_opens_the_responders_mouth_and_nobody_sees_it() {
    for rtr in [Rtr::Send, Rtr::Write, Rtr::Read] {
        let mut pair = Pair::new(true, Some(rtr));
        pair.host.post_receive(3, sge(0, 16));
        pair.target.post_receive(4, sge(0, 16));
        pair.target.post(send(1, b"at last"));
        assert!(!pair.target.has_output());
        pair.run();
        assert_eq!(events(&mut pair.target), [done(1)], "{rtr:?}");
        assert_eq!(events(&mut pair.host), [StreamEvent::Received { id: 3, length: 7, invalidated: None }]);
        pair.host.post(send(2, b"and I"));
        pair.run();
        assert_eq!(events(&mut pair.target), [StreamEvent::Received { id: 4, length: 5, invalidated: None }]);
    }
}

#[test]
fn the_responder_waits_for_the_first_word() {
    let mut pair = Pair::new(false, None);
    pair.host.post_receive(0, sge(0, 16));
    pair.target.post_receive(0, sge(0, 16));
    pair.target.post(send(1, b"hush"));
    assert!(take(&mut pair.target, &pair.target_memory, usize::MAX).is_empty());
    pair.host.post(send(2, b"speak"));
    pair.run();
    assert_eq!(events(&mut pair.target).len(), 2);
}

#[test]
fn a_local_invalidation_waits_for_the_bytes_that_still_leave() {
    let mut pair = Pair::new(false, None);
    let source = sge(1000, 20_000);
    pair.host_memory.fill(source, 3);
    let (_, remote) = pair.expose(source, Access::RemoteRead);
    pair.target.post_receive(0, sge(0, 64));
    pair.host.post(send(0, b"fetch it"));
    pair.run();
    let into = sge(20_000, 20_000);
    pair.target.post(Work::Read { token: token(5), from: remote, into });
    let request = take(&mut pair.target, &pair.target_memory, usize::MAX);
    pair.host.receive(&request, &pair.host_memory).unwrap();
    events(&mut pair.host);

    pair.host.post(Work::Invalidate { token: token(6), key: remote.rkey });
    let first = take(&mut pair.host, &pair.host_memory, 10_000);
    assert_eq!(first.len(), 10_000);
    assert!(events(&mut pair.host).is_empty());
    let rest = take(&mut pair.host, &pair.host_memory, usize::MAX);
    assert_eq!(events(&mut pair.host), [done(6)]);
    let response = [first, rest].concat();
    pair.target.receive(&response, &pair.target_memory).unwrap();
    assert_eq!(pair.target_memory.bytes(into), pair.host_memory.bytes(source));
}

#[test]
fn posting_never_fails_it_completes() {
    let mut pair = Pair::new(true, None);
    let memory = sge(0, 64);
    let (slot, remote) = pair.expose(memory, Access::RemoteRead);
    pair.host.post(send(1, b"unsent"));
    pair.host.post(Work::Read { token: token(2), from: remote, into: memory });
    pair.host.close(&pair.host_memory);
    let flushed = |slot| completed(slot, WcStatus::Flushed);
    assert_eq!(events(&mut pair.host), [flushed(1), flushed(2)]);
    assert_eq!(pair.host.fault(), Some(Fault::Closed));
    pair.host.post(send(3, b"too late"));
    let remote = pair.host.prepare(slot, memory);
    pair.host.post(Work::Register { slot, remote, memory, access: Access::RemoteRead });
    pair.host.post(Work::Invalidate { token: token(4), key: remote.rkey });
    pair.host.post_receive(0, memory);
    assert_eq!(events(&mut pair.host), [flushed(3), flushed(4)]);
    assert!(take(&mut pair.host, &pair.host_memory, usize::MAX).is_empty());
}

#[test]
fn a_break_in_mid_segment_sends_the_segment_whole_and_names_nobodys_memory() {
    let mut pair = Pair::new(false, None);
    let source = sge(1000, 2000);
    pair.host_memory.fill(source, 8);
    let mut sent = Vec::new();
    for slot in 0..2 {
        let Work::Send { token, head, invalidate, solicited, .. } = send(slot, b"head") else {
            unreachable!()
        };
        pair.host.post(Work::Send { token, head, data: Some(source), invalidate, solicited });
    }
    sent.extend(take(&mut pair.host, &pair.host_memory, 500));
    let broken = pair.host.receive(&[0, 0x12, 0x41, 0x4F], &pair.host_memory);
    assert_eq!(broken, Err(Fault::UnexpectedOpcode(15)));
    assert!(pair.host.outgoing().parts().all(|part| matches!(part, Part::Staged(_))));
    sent.extend(take(&mut pair.host, &pair.host_memory, usize::MAX));
    pair.target.post_receive(0, sge(0, 4096));
    let told = pair.target.receive(&sent, &pair.target_memory).unwrap_err();
    assert_eq!(told, Fault::Terminated(crate::iwarp::terminate::Reason::UNEXPECTED_OPCODE));
    assert_eq!(pair.target_memory.bytes(sge(4, 900)), pair.host_memory.bytes(source.slice(0, 900)));
}

#[test]
fn a_large_payload_may_be_received_straight_into_its_place() {
    let mut pair = Pair::new(false, None);
    pair.host = Stream::new(Config { ulpdu_max: u16::MAX, ..config(Role::Initiator, false) });
    let (source, sink) = (sge(0, 30_000), sge(100, 30_000));
    pair.host_memory.fill(source, 77);
    pair.target.post_receive(0, sink);
    let Work::Send { token, invalidate, solicited, .. } = send(0, b"") else { unreachable!() };
    let head = ArrayVec::new();
    pair.host.post(Work::Send { token, head, data: Some(source), invalidate, solicited });
    let bytes = take(&mut pair.host, &pair.host_memory, usize::MAX);
    assert_eq!(pair.target.direct(), None);
    assert_eq!(pair.target.receive(&bytes[..120], &pair.target_memory), Ok(120));
    assert_eq!(pair.target.direct(), Some(sge(200, 29_900)));
    pair.target_memory.write(sge(200, 20_000), &bytes[120..20_120]);
    pair.target.received_direct(20_000);
    assert_eq!(pair.target.direct(), Some(sge(20_200, 9_900)));
    pair.target_memory.write(sge(20_200, 9_900), &bytes[20_120..30_020]);
    pair.target.received_direct(9_900);
    assert_eq!(pair.target.direct(), None);
    assert_eq!(pair.target.receive(&bytes[30_020..], &pair.target_memory), Ok(4));
    assert_eq!(
        events(&mut pair.target),
        [StreamEvent::Received { id: 0, length: 30_000, invalidated: None }]
    );
    assert_eq!(pair.target_memory.bytes(sink), pair.host_memory.bytes(source));
}
