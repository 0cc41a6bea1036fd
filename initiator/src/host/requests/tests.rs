//! What becomes of requests, part by part.
use super::*;

const NOW: Time = Time::from_nanos(5);
const BLOCK: u32 = 512;
const LIMITS: PartLimits = PartLimits { transfer: 4096, write_zeroes: 65_536, discard: 1 << 30 };

fn geometry() -> Geometry {
    Geometry {
        size: 1 << 20,
        block_size: BLOCK,
        max_transfer: 4096,
        preferred_write: BLOCK,
        read_only: false,
        write_zeroes: true,
        discard: true,
        volatile_cache: true,
    }
}

fn requests() -> Requests {
    Requests::new(4, 16, false, false)
}

fn request(tag: u64, operation: Operation, offset: u64, length: u32) -> Request {
    let transfers = matches!(operation, Operation::Read | Operation::Write { .. });
    let buffer = transfers.then_some(Sge { address: 0x10_0000, length, lkey: 0 });
    Request { tag, operation, offset, length: length.into(), buffer }
}

fn submit(requests: &mut Requests, request: Request) {
    requests.submit(0, request, &geometry(), &LIMITS).unwrap();
}

fn outcome(requests: &mut Requests) -> Option<(u64, Result<(), IoError>)> {
    requests.next_completed().map(|(_, completed)| (completed.tag, completed.result))
}

#[test]
fn a_large_read_is_cut_and_ends_once() {
    let mut requests = requests();
    submit(&mut requests, request(7, Operation::Read, 1024, 10_240));
    let parts: Vec<_> = std::iter::from_fn(|| requests.next_part(NOW)).collect();
    let seen: Vec<_> = parts
        .iter()
        .map(|part| requests.work(part))
        .map(|work| (work.offset, work.length, work.buffer.unwrap().address, work.buffer.unwrap().length))
        .collect();
    assert_eq!(
        seen,
        [(1024, 4096, 0x10_0000, 4096), (5120, 4096, 0x10_1000, 4096), (9216, 2048, 0x10_2000, 2048)]
    );
    for (index, part) in parts.into_iter().rev().enumerate() {
        assert_eq!(outcome(&mut requests), None, "after {index} parts");
        requests.answered(part, Ok(()), NOW);
    }
    assert_eq!(outcome(&mut requests), Some((7, Ok(()))));
    assert_eq!(outcome(&mut requests), None);
    assert_eq!(requests.outstanding(), 0);
}

#[test]
fn the_first_error_counts_and_stops_the_rest() {
    let mut requests = requests();
    submit(&mut requests, request(7, Operation::Write { fua: false }, 0, 16_384));
    let first = requests.next_part(NOW).unwrap();
    let second = requests.next_part(NOW).unwrap();
    requests.answered(second, Err(Status::CAPACITY_EXCEEDED), NOW);
    assert_eq!(requests.next_part(NOW), None);
    assert_eq!(outcome(&mut requests), None, "a part may still touch the buffer");
    requests.answered(first, Err(Status::WRITE_FAULT), NOW);
    assert_eq!(outcome(&mut requests), Some((7, Err(IoError::NoSpace))));
}

#[test]
fn lost_parts_come_first_and_again() {
    let mut requests = requests();
    submit(&mut requests, request(1, Operation::Read, 0, 4096));
    submit(&mut requests, request(2, Operation::Flush, 0, 0));
    let part = requests.next_part(NOW).unwrap();
    requests.lost(part, None, false);
    assert_eq!(requests.next_part(NOW), Some(part));
    let flush = requests.next_part(NOW).unwrap();
    assert_eq!(requests.work(&flush).operation, Operation::Flush);
    assert_eq!(requests.next_part(NOW), None);
}

#[test]
fn a_status_that_may_pass_is_tried_again_a_few_times() {
    let mut requests = requests();
    submit(&mut requests, request(1, Operation::Read, 0, 512));
    let mut now = NOW;
    for _ in 0..RETRIES_MAX {
        let part = requests.next_part(now).unwrap();
        requests.answered(part, Err(Status::NAMESPACE_NOT_READY), now);
        assert_eq!(requests.next_part(now), None, "not at once");
        now = requests.deadline().unwrap();
    }
    let part = requests.next_part(now).unwrap();
    requests.answered(part, Err(Status::NAMESPACE_NOT_READY), now);
    assert_eq!(outcome(&mut requests), Some((1, Err(IoError::Refused(Status::NAMESPACE_NOT_READY)))));
}

#[test]
fn a_status_with_do_not_retry_is_final() {
    let mut requests = requests();
    submit(&mut requests, request(1, Operation::Read, 0, 512));
    let part = requests.next_part(NOW).unwrap();
    requests.answered(part, Err(Status::NAMESPACE_NOT_READY.with_dnr(true)), NOW);
    assert!(outcome(&mut requests).unwrap().1.is_err());
}

#[test]
fn refusing_ends_what_is_held_and_lets_the_rest_come_back() {
    let mut requests = requests();
    submit(&mut requests, request(1, Operation::Read, 0, 8192));
    submit(&mut requests, request(2, Operation::Read, 0, 512));
    let part = requests.next_part(NOW).unwrap();
    requests.refuse(IoError::Closing);
    assert_eq!(outcome(&mut requests), Some((2, Err(IoError::Closing))));
    assert_eq!(outcome(&mut requests), None);
    requests.lost(part, None, false);
    assert_eq!(outcome(&mut requests), Some((1, Err(IoError::Closing))));
    submit(&mut requests, request(3, Operation::Read, 0, 512));
    assert_eq!(outcome(&mut requests), Some((3, Err(IoError::Closing))));
    assert_eq!(requests.outstanding(), 0);
}

#[test]
fn what_is_wrong_with_a_request_is_its_completion() {
    let mut requests = requests();
    let read_only = Geometry { read_only: true, discard: false, ..geometry() };
    let write = Operation::Write { fua: true };
    let cases = [
        (request(1, Operation::Read, 100, 512), geometry(), IoError::Invalid),
        (request(1, Operation::Read, 0, 100), geometry(), IoError::Invalid),
        (Request { buffer: None, ..request(1, Operation::Read, 0, 512) }, geometry(), IoError::Invalid),
        (request(1, Operation::Read, 1 << 20, 512), geometry(), IoError::OutOfRange),
        (request(1, Operation::Read, u64::MAX - 511, 512), geometry(), IoError::OutOfRange),
        (request(1, write, 0, 512), read_only, IoError::ReadOnly),
        (
            request(1, Operation::Discard, 0, 512),
            Geometry { discard: false, ..geometry() },
            IoError::NotSupported,
        ),
    ];
    for (request, geometry, error) in cases {
        requests.submit(0, request, &geometry, &LIMITS).unwrap();
        assert_eq!(outcome(&mut requests), Some((1, Err(error))), "{request:?}");
    }
}

#[test]
fn what_needs_no_command_gets_none() {
    let mut requests = requests();
    let durable = Geometry { volatile_cache: false, ..geometry() };
    requests.submit(0, request(1, Operation::Flush, 0, 0), &durable, &LIMITS).unwrap();
    submit(&mut requests, request(2, Operation::Discard, 0, 0));
    assert_eq!(outcome(&mut requests), Some((1, Ok(()))));
    assert_eq!(outcome(&mut requests), Some((2, Ok(()))));
    assert_eq!(requests.next_part(NOW), None);
}

#[test]
fn a_full_table_gives_the_request_back() {
    let mut requests = requests();
    for tag in 0..4 {
        submit(&mut requests, request(tag, Operation::Read, 0, 512));
    }
    let extra = request(9, Operation::Read, 0, 512);
    assert_eq!(requests.submit(0, extra, &geometry(), &LIMITS), Err(extra));
    let part = requests.next_part(NOW).unwrap();
    requests.answered(part, Ok(()), NOW);
    assert!(!requests.has_room(), "its completion still takes the place");
    assert!(outcome(&mut requests).is_some() && requests.has_room());
}

#[test]
fn one_path_of_many_gives_back_what_it_cannot_end() {
    let mut requests = Requests::new(4, 16, true, false);
    submit(&mut requests, request(1, Operation::Write { fua: false }, 0, 12_288));
    submit(&mut requests, request(2, Operation::Read, 0, 4096));
    submit(&mut requests, request(3, Operation::Flush, 0, 0));
    let parts: Vec<_> = (0..4).filter_map(|_| requests.next_part(NOW)).collect();
    requests.answered(parts[3], Err(Status::ANA_INACCESSIBLE), NOW);
    let refused = PathError::Refused(Status::ANA_INACCESSIBLE);
    assert_eq!(outcome(&mut requests), Some((2, Err(IoError::Path(refused)))));
    requests.answered(parts[0], Err(Status::WRITE_FAULT), NOW);
    requests.answered(parts[1], Ok(()), NOW);
    requests.lost(parts[2], None, false);
    let unanswered = IoError::Path(PathError::Unanswered);
    assert_eq!(outcome(&mut requests), Some((1, Err(unanswered))), "that it may happen yet is what counts");
    requests.withdraw();
    assert_eq!(outcome(&mut requests), Some((3, Err(IoError::Path(PathError::NotSent)))));
    assert_eq!((requests.outstanding(), requests.has_room()), (0, true));
}

#[test]
fn the_only_path_is_waited_for_until_it_leads_there_again() {
    let mut requests = requests();
    submit(&mut requests, request(1, Operation::Read, 0, 4096));
    let mut now = NOW;
    for _ in 0..20 {
        let part = requests.next_part(now).unwrap();
        requests.answered(part, Err(Status::ANA_INACCESSIBLE), now);
        assert_eq!((outcome(&mut requests), requests.next_part(now)), (None, None));
        now = requests.deadline().unwrap();
    }
    let part = requests.next_part(now).unwrap();
    requests.answered(part, Err(Status::ANA_PERSISTENT_LOSS), now);
    let lost = IoError::Refused(Status::ANA_PERSISTENT_LOSS);
    assert_eq!(outcome(&mut requests), Some((1, Err(lost))));
}

#[test]
fn one_core_of_many_tells_of_a_failure_once_it_cannot_happen_any_more() {
    const SAFE: Time = Time::from_nanos(1_000);
    let write = Operation::Write { fua: false };
    for ends_with_return in [false, true] {
        let mut requests = Requests::new(4, 16, false, true);
        submit(&mut requests, request(1, write, 0, 512));
        submit(&mut requests, request(2, Operation::Read, 0, 512));
        submit(&mut requests, request(3, write, 0, 512));
        let parts: Vec<_> = (0..2).map(|_| requests.next_part(NOW).unwrap()).collect();
        parts.into_iter().for_each(|part| requests.lost(part, Some(SAFE), ends_with_return));
        requests.refuse(IoError::ConnectionLost);
        let mut told: Vec<_> = std::iter::from_fn(|| outcome(&mut requests)).map(|(tag, _)| tag).collect();
        told.sort_unstable();
        assert_eq!(told, [2, 3], "a read, and a write that was never sent");
        assert_eq!(requests.next_late(), Some(SAFE));
        requests.tell_late(NOW);
        assert_eq!(outcome(&mut requests), None);
        requests.tell_late(SAFE);
        assert_eq!(outcome(&mut requests), Some((1, Err(IoError::ConnectionLost))));
        assert_eq!((requests.next_late(), requests.outstanding()), (None, 0));
    }
}

#[test]
fn what_nobody_was_told_of_goes_on_with_the_connection() {
    const SAFE: Time = Time::from_nanos(1_000);
    let mut requests = Requests::new(4, 16, false, true);
    submit(&mut requests, request(1, Operation::Write { fua: false }, 0, 512));
    let part = requests.next_part(NOW).unwrap();
    requests.lost(part, Some(SAFE), false);
    requests.refuse(IoError::ConnectionLost);
    requests.accept();
    assert_eq!((requests.next_part(NOW), requests.next_late()), (None, None));
    let part = requests.next_part(SAFE).expect("it is sent again");
    requests.answered(part, Ok(()), SAFE);
    assert_eq!(outcome(&mut requests), Some((1, Ok(()))));
}
