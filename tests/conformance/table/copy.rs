//! The Copy command.
use ironside_target::backend::BlockError;

use crate::io::{blocks, io, read, submit_write};
use crate::queue::{Queue, Response, SUCCESS, Status};
use crate::target::{BLOCKS, Target};
use crate::wire::{Sqe, capsule_sgl, le};
use crate::{Requirement, row};

const INVALID_FIELD: Status = (0, 0x02, true);
const SIZE_LIMIT: Status = (1, 0x83, true);
const LBA_OUT_OF_RANGE: Status = (0, 0x80, true);

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "copy-1",
        "NVM Command Set 1.1, Copy",
        "source ranges of 32 bytes, SLBA at byte 8 and NLB at 16, 0's based, follow each other from SDLBA on",
        ranges_follow_each_other,
    ),
    row(
        "copy-2",
        "NVM Command Set 1.1, Copy",
        "a source which overlaps its destination is read before anything is written",
        overlapping,
    ),
    row(
        "copy-3",
        "NVM Command Set 1.1, Copy, figure 'Identify Namespace'",
        "MSSRL and MCL are 128 KiB in blocks, MSRC 127, ONCS bit 8 and OCFS bit 0 are set; what is beyond is Command Size \
         Limit Exceeded",
        limits,
    ),
    row(
        "copy-4",
        "NVM Command Set 1.1, Copy",
        "a source or a destination beyond the namespace is LBA Out of Range, and nothing is written",
        bounds,
    ),
    row(
        "copy-5",
        "NVM Command Set 1.1, Copy",
        "descriptor formats other than 0h are Invalid Field, fewer bytes than ranges Data SGL Length Invalid",
        formats,
    ),
    row(
        "copy-6",
        "NVM Command Set 1.1, Copy",
        "one that fails while it reads has written nothing, and says 0 in dword 0; a protected namespace takes none",
        failures,
    ),
    row(
        "copy-7",
        "NVM Command Set 1.1, Copy, 'Command Completion'",
        "dword 0 of one that fails is the first source range which has not been copied",
        first_not_copied,
    ),
    row(
        "copy-8",
        "NVM Command Set 1.1, Copy",
        "what a medium cannot copy by itself is read and written; with FUA all is durable when it is answered",
        rest_is_gathered,
    ),
];

/// A target whose media have no copy of their own, and one whose media have.
fn both() -> [(Target, Queue, Queue); 2] {
    let with = io();
    with.0.copies_itself(usize::MAX, BlockError::Unsupported);
    [io(), with]
}

/// A Copy to `lba` from these ranges of LBA and count.
fn copy(io: &mut Queue, lba: u64, ranges: &[(u64, u32)]) -> Response {
    let list = list(ranges);
    io.write(sqe(lba, ranges.len()), &list)
}

fn sqe(lba: u64, ranges: usize) -> Sqe {
    let (low, high) = (lba as u32, (lba >> 32) as u32);
    Sqe::new(0x19).nsid(1).dword(40, low).dword(44, high).dword(48, ranges as u32 - 1)
}

fn list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let range = |&(lba, count): &(u64, u32)| {
        let mut range = [0; 32];
        range[8..16].copy_from_slice(&lba.to_le_bytes());
        range[16..18].copy_from_slice(&((count - 1) as u16).to_le_bytes());
        range
    };
    ranges.iter().flat_map(range).collect()
}

/// Fills each of the first blocks with its number, from 1 on.
fn numbered(io: &mut Queue, count: u8) {
    for block in 0..count {
        let cid = submit_write(io, block.into(), &[block + 1; 512]);
        io.response_to(cid).succeeded();
    }
}

/// What each of these blocks is filled with.
fn contents(io: &mut Queue, lba: u64, count: u32) -> Vec<u8> {
    let bytes = read(io, lba, count).1;
    let block = |block: &[u8]| {
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    };
    bytes.chunks(512).map(block).collect()
}

fn ranges_follow_each_other() {
    for (_, _admin, mut io) in both() {
        numbered(&mut io, 6);
        copy(&mut io, 0x123, &[(4, 2), (0, 1), (1, 3)]).succeeded();
        assert_eq!(contents(&mut io, 0x122, 8), [0, 5, 6, 1, 2, 3, 4, 0]);
        // The list in the capsule.
        let ranges = list(&[(5, 1)]);
        let cid = io.submit(sqe(0x200, 1).sgl(capsule_sgl(0, 32)), &ranges);
        io.response_to(cid).succeeded();
        assert_eq!(contents(&mut io, 0x200, 1), [6]);
    }
}

fn overlapping() {
    for (_, _admin, mut io) in both() {
        numbered(&mut io, 6);
        copy(&mut io, 2, &[(0, 4)]).succeeded();
        assert_eq!(contents(&mut io, 0, 6), [1, 2, 1, 2, 3, 4]);
        copy(&mut io, 0, &[(2, 4)]).succeeded();
        assert_eq!(contents(&mut io, 0, 6), [1, 2, 3, 4, 3, 4]);
    }
}

fn limits() {
    for (_, mut admin, mut io) in both() {
        for (nsid, count) in [(1, 256), (2, 32)] {
            let namespace = admin.fetch(Sqe::new(6).nsid(nsid), 4096);
            assert_eq!((le(&namespace, 74, 2), le(&namespace, 76, 4), namespace[80]), (count, count, 127));
        }
        let controller = admin.fetch(Sqe::new(6).byte(40, 1), 4096);
        assert_eq!((le(&controller, 520, 2) >> 8 & 1, le(&controller, 534, 2)), (1, 1));
        numbered(&mut io, 2);
        copy(&mut io, 1000, &[(0, 256)]).succeeded();
        copy(&mut io, 1000, &[(0, 2); 128]).succeeded();
        assert_eq!(contents(&mut io, 1000, 256), [1, 2].repeat(128));
        assert_eq!(copy(&mut io, 1000, &[(0, 257)]).status(), SIZE_LIMIT);
        assert_eq!(copy(&mut io, 1000, &[(0, 128), (0, 129)]).status(), SIZE_LIMIT);
        assert_eq!(copy(&mut io, 1000, &[(0, 1); 129]).status(), SIZE_LIMIT);
    }
}

fn bounds() {
    for (_, _admin, mut io) in both() {
        numbered(&mut io, 2);
        for (to, range) in [(9, (BLOCKS, 1)), (9, (u64::MAX, 2)), (BLOCKS - 1, (0, 2)), (u64::MAX, (0, 1))] {
            assert_eq!(copy(&mut io, to, &[(0, 1), range]).status(), LBA_OUT_OF_RANGE, "{to} {range:?}");
        }
        assert_eq!(contents(&mut io, 9, 1), [0]);
        copy(&mut io, BLOCKS - 2, &[(0, 2)]).succeeded();
        assert_eq!(contents(&mut io, BLOCKS - 2, 2), [1, 2]);
    }
}

fn formats() {
    let (_, _admin, mut io) = io();
    for format in [1, 2, 3, 15] {
        let sqe = sqe(9, 1).dword(48, format << 8);
        assert_eq!(io.write(sqe, &[0; 64]).status(), INVALID_FIELD, "format {format}");
    }
    assert_eq!(io.write(sqe(9, 2), &list(&[(0, 1)])).status(), (0, 0x0F, true));
}

fn failures() {
    let (target, _admin, mut io) = io();
    numbered(&mut io, 2);
    target.fail_with(Some(BlockError::Read(5)));
    let response = copy(&mut io, 9, &[(0, 1), (1, 1)]);
    assert_eq!((response.status(), response.result()), ((2, 0x81, false), 0));
    target.fail_with(None);
    assert_eq!(contents(&mut io, 9, 1), [0]);
    let protected = io.write(sqe(9, 1).nsid(3), &list(&[(0, 1)]));
    assert_eq!(protected.status(), (0, 0x20, true));
    assert_eq!(io.command(blocks(8, 0, 1)).status(), SUCCESS);
}

fn first_not_copied() {
    let (target, _admin, mut io) = io();
    numbered(&mut io, 6);
    target.copies_itself(2, BlockError::Write(5));
    let response = copy(&mut io, 100, &[(4, 2), (0, 1), (1, 3)]);
    assert_eq!((response.status(), response.result()), ((2, 0x80, false), 2));
    assert_eq!(contents(&mut io, 100, 6), [5, 6, 1, 0, 0, 0]);
    // The rest is read, which fails.
    target.copies_itself(1, BlockError::Unsupported);
    target.fail_at_read(Some(BlockError::Read(5)));
    let response = copy(&mut io, 200, &[(4, 2), (0, 1), (1, 3)]);
    assert_eq!((response.status(), response.result()), ((2, 0x81, false), 1));
    target.fail_at_read(None);
    assert_eq!(contents(&mut io, 200, 6), [5, 6, 0, 0, 0, 0]);
}

fn rest_is_gathered() {
    let (target, _admin, mut io) = io();
    numbered(&mut io, 6);
    for (made, flushes) in [(0, 0), (1, 1), (2, 1), (3, 1)] {
        target.copies_itself(made, BlockError::Unsupported);
        let before = target.flushes();
        io.write(sqe(100, 3).dword(48, 1 << 30 | 2), &list(&[(4, 2), (0, 1), (1, 3)])).succeeded();
        assert_eq!((target.copies(), target.flushes() - before), (made, flushes));
        assert_eq!(contents(&mut io, 99, 8), [0, 5, 6, 1, 2, 3, 4, 0]);
        copy(&mut io, 100, &[(200, 6)]).succeeded();
        assert_eq!(target.flushes() - before, flushes);
    }
    // What overlaps is not left to the medium.
    target.copies_itself(usize::MAX, BlockError::Unsupported);
    copy(&mut io, 1, &[(4, 2), (0, 3)]).succeeded();
    assert_eq!((target.copies(), contents(&mut io, 0, 6)), (0, vec![1, 5, 6, 1, 2, 3]));
}
