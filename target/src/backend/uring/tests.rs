//! The file machine, answered by hand: what the ring is asked, and what follows from each answer.
use super::*;

const ZEROES: Sge = Sge { address: 1 << 20, length: 8192, lkey: 9 };
const BUFFER: Sge = Sge { address: 4096, length: 4096, lkey: 1 };
const SIZE: u64 = 1 << 40;
const KEEP: FallocateFlags = FallocateFlags::FALLOC_FL_KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::FALLOC_FL_PUNCH_HOLE;
const ZERO: FallocateFlags = FallocateFlags::FALLOC_FL_ZERO_RANGE;

fn direct() -> File {
    File::new(Some(Alignment { memory: 512, offset: 512 }), ZEROES, true)
}

/// Answers each ask in turn, and returns what was asked and how it ended.
fn play(file: &mut File, operation: Operation, answers: &[i32]) -> (Vec<Ask>, Result<(), BlockError>) {
    let Some(mut progress) = file.begin(operation) else { return (Vec::new(), Ok(())) };
    let mut asks = Vec::new();
    for answer in answers {
        asks.push(file.ask(&progress));
        let next = file.advance(&mut progress, *answer);
        // The file stays as large as it was.
        let measures = next == Next::Ask && file.ask(&progress) == Ask::Measure;
        let next = if measures { file.measured(&mut progress, Ok(SIZE)) } else { next };
        if let Next::Done(result) = next {
            assert_eq!(asks.len(), answers.len(), "it ended before the last answer");
            return (asks, result);
        }
    }
    panic!("it has not ended after {asks:?}");
}

const READ: Operation = Operation::Read { offset: 8192, into: BUFFER };

const fn write(fua: bool) -> Operation {
    Operation::Write { offset: 8192, from: BUFFER, fua }
}

const fn zero(length: u64, deallocate: bool, fua: bool) -> Operation {
    Operation::WriteZeroes { offset: 512, length, deallocate, fua }
}

const fn allocate(mode: FallocateFlags, length: u64) -> Ask {
    Ask::Allocate { mode: mode.union(KEEP), offset: 512, length }
}

#[test]
fn a_short_read_is_continued_where_it_stopped() {
    let (asks, result) = play(&mut direct(), READ, &[1024, 512, 2560]);
    let read =
        |done: u32, length| Ask::Read { offset: 8192 + u64::from(done), into: BUFFER.slice(done, length) };
    assert_eq!(asks, [read(0, 4096), read(1024, 3072), read(1536, 2560)]);
    assert_eq!(result, Ok(()));
}

#[test]
fn a_read_beyond_the_end_of_the_file_is_an_error_and_not_zeroes() {
    assert_eq!(play(&mut direct(), READ, &[0]).1, Err(BlockError::EndOfFile));
    assert_eq!(play(&mut direct(), READ, &[512, 0]).1, Err(BlockError::EndOfFile));
    assert_eq!(play(&mut direct(), READ, &[100]).1, Err(BlockError::EndOfFile));
    let mut buffered = File::new(None, ZEROES, true);
    assert_eq!(play(&mut buffered, READ, &[100, 0]).1, Err(BlockError::EndOfFile));
}

#[test]
fn a_short_write_is_finished_with_the_same_flags() {
    for (fua, flags) in [(false, Flags::None), (true, Flags::Durable)] {
        let (asks, result) = play(&mut direct(), write(fua), &[3584, 512]);
        let rest = Ask::Write { offset: 8192 + 3584, from: BUFFER.slice(3584, 512), flags };
        assert_eq!(asks, [Ask::Write { offset: 8192, from: BUFFER, flags }, rest]);
        assert_eq!(result, Ok(()));
    }
    let (asks, result) = play(&mut direct(), write(false), &[700, 3584]);
    let from_the_sector = Ask::Write { offset: 8704, from: BUFFER.slice(512, 3584), flags: Flags::None };
    assert_eq!((asks[1], result), (from_the_sector, Ok(())));
    assert_eq!(play(&mut direct(), write(false), &[0]).1, Err(BlockError::Write(0)));
}

#[test]
fn an_interrupted_operation_is_repeated_but_not_for_ever() {
    let (asks, result) = play(&mut direct(), READ, &[-libc::EINTR, -libc::EAGAIN, 4096]);
    assert!(asks.iter().all(|ask| *ask == asks[0]));
    assert_eq!(result, Ok(()));
    let always = vec![-libc::EAGAIN; usize::from(MOST_REPEATS) + 1];
    assert_eq!(play(&mut direct(), READ, &always).1, Err(BlockError::Busy(libc::EAGAIN)));
    assert_eq!(play(&mut direct(), Operation::Flush, &[-libc::EINTR, 0]).0, [Ask::Sync, Ask::Sync]);
}

#[test]
fn an_error_is_named_by_what_failed() {
    let fails = |operation, errno: i32| play(&mut direct(), operation, &[-errno]).1.unwrap_err();
    assert_eq!(fails(READ, libc::EIO), BlockError::Read(libc::EIO));
    assert_eq!(fails(write(false), libc::EIO), BlockError::Write(libc::EIO));
    assert_eq!(fails(write(false), libc::ENOSPC), BlockError::NoSpace);
    assert_eq!(fails(Operation::Flush, libc::EIO), BlockError::Write(libc::EIO));
    assert_eq!(fails(zero(512, true, false), libc::ENOSPC), BlockError::NoSpace);
    assert_eq!(
        fails(Operation::Deallocate { offset: 0, length: 512 }, libc::EIO),
        BlockError::Write(libc::EIO)
    );
}

#[test]
fn zeroes_keep_or_give_back_the_space_as_asked() {
    let (asks, result) = play(&mut direct(), zero(1 << 30, true, false), &[0]);
    assert_eq!((asks, result), (vec![allocate(PUNCH, 1 << 30)], Ok(())));
    let (asks, _) = play(&mut direct(), zero(1 << 30, false, false), &[0]);
    assert_eq!(asks, [allocate(ZERO, 1 << 30)]);
    let (asks, _) = play(&mut direct(), zero(4096, true, true), &[0, 0]);
    assert_eq!(asks, [allocate(PUNCH, 4096), Ask::Sync], "forced unit access covers the metadata");
}

#[test]
fn a_hole_beyond_the_end_of_the_file_is_an_error() {
    let deallocate = Operation::Deallocate { offset: 512, length: 4096 };
    for operation in [zero(4096, true, true), zero(4096, false, false), deallocate] {
        let mut file = direct();
        let begun = file.begin(operation).unwrap();
        for (size, expected) in [(4608, true), (4607, false), (0, false)] {
            let mut progress = begun;
            assert_eq!(file.advance(&mut progress, 0), Next::Ask);
            assert_eq!(file.ask(&progress), Ask::Measure);
            let next = file.measured(&mut progress, Ok(size));
            assert_eq!(
                next != Next::Done(Err(BlockError::Truncated)),
                expected,
                "{operation:?}, {size} bytes"
            );
        }
        let mut progress = begun;
        assert_eq!(file.advance(&mut progress, 0), Next::Ask);
        let unknown = file.measured(&mut progress, Err(io::Error::from_raw_os_error(libc::ESTALE)));
        assert_eq!(unknown, Next::Done(Err(BlockError::Gone)));
    }
}

#[test]
fn zeroes_are_written_where_there_is_no_other_way() {
    let mut file = direct();
    let not_supported = -libc::EOPNOTSUPP;
    let answers = [not_supported, not_supported, 8192, 8192, 512];
    let (asks, result) = play(&mut file, zero(16896, true, true), &answers);
    let fill = |offset: u64, length| Ask::Write {
        offset: 512 + offset,
        from: ZEROES.slice(0, length),
        flags: Flags::Durable,
    };
    let expected =
        [allocate(PUNCH, 16896), allocate(ZERO, 16896), fill(0, 8192), fill(8192, 8192), fill(16384, 512)];
    assert_eq!(asks, expected);
    assert_eq!(result, Ok(()));
    let (asks, _) = play(&mut file, zero(512, true, true), &[512]);
    assert_eq!(asks, [fill(0, 512)], "what is not supported is not tried again");
    let deallocate = Operation::Deallocate { offset: 0, length: 512 };
    assert_eq!(play(&mut file, deallocate, &[]), (vec![], Ok(())));
}

#[test]
fn a_refused_range_says_nothing_about_the_next() {
    let mut file = direct();
    let (asks, result) = play(&mut file, zero(512, false, false), &[-libc::EINVAL, 512]);
    assert_eq!((asks.len(), result), (2, Ok(())));
    assert_eq!(play(&mut file, zero(512, false, false), &[0]).0, [allocate(ZERO, 512)]);
    let deallocate = Operation::Deallocate { offset: 512, length: 512 };
    assert_eq!(play(&mut file, deallocate, &[-libc::EINVAL]).1, Ok(()));
    assert_eq!(play(&mut file, deallocate, &[0]).0, [allocate(PUNCH, 512)]);
}

#[test]
fn nothing_is_asked_for_nothing() {
    assert_eq!(play(&mut direct(), zero(0, true, false), &[]), (vec![], Ok(())));
}

#[test]
fn a_file_system_that_shares_no_blocks_is_asked_once() {
    const COPY: Operation = Operation::Copy { source: 0, offset: 8192, length: 4096 };
    let mut file = direct();
    let share = Ask::Share { source: 0, offset: 8192, length: 4096 };
    assert_eq!(play(&mut file, COPY, &[0]), (vec![share], Ok(())));
    assert_eq!(play(&mut file, COPY, &[-libc::EINTR, 0]), (vec![share; 2], Ok(())));
    // This once: it is not aligned, or there is no room for what says who shares.
    for errno in [libc::EINVAL, libc::ENOSPC, libc::EIO] {
        assert_eq!(play(&mut file, COPY, &[-errno]), (vec![share], Err(BlockError::Unsupported)));
        assert!(file.copies());
    }
    assert_eq!(play(&mut file, COPY, &[-libc::EOPNOTSUPP]), (vec![share], Err(BlockError::Unsupported)));
    assert!(!file.copies());
}
