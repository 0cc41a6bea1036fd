//! Compare and Write, fused.
use ironside_target::backend::BlockError;

use crate::io::{blocks, io, read, submit_write};
use crate::queue::{Queue, SUCCESS, Status};
use crate::target::{BLOCKS, Target};
use crate::wire::{Sqe, capsule_sgl, keyed_sgl};

const INVALID_FIELD: Status = (0, 0x02, true);
const FAILED_FUSED: (u8, u8) = (0, 0x09);
const MISSING_FUSED: (u8, u8) = (0, 0x0A);

/// A first (1) or second (2) command, sent without waiting for its response.
fn submit_fused(io: &mut Queue, fuse: u8, sqe: Sqe, data: &[u8]) -> u16 {
    let at = io.expose(data.to_vec());
    io.submit(sqe.byte(1, 0x40 | fuse).sgl(keyed_sgl(at, data.len() as u32, 0x4F)), &[])
}

/// A Compare and a Write of the same blocks; the statuses of both.
fn compare_and_write(io: &mut Queue, lba: u64, [compared, written]: [&[u8]; 2]) -> [Status; 2] {
    let count = compared.len() as u32 / 512;
    let first = submit_fused(io, 1, blocks(5, lba, count), compared);
    let second = submit_fused(io, 2, blocks(1, lba, count), written);
    [first, second].map(|cid| io.response_to(cid).status())
}

/// Type and code.
fn code((kind, code, _): Status) -> (u8, u8) {
    (kind, code)
}

pub(crate) fn fused_commands() {
    let (_, _admin, mut io) = io();
    assert_eq!(compare_and_write(&mut io, 3, [&[0; 1024], &[7; 1024]]), [SUCCESS; 2]);
    assert_eq!(read(&mut io, 3, 2).1, [7; 1024]);
    // One in the capsule, the other to be fetched; then the other way round.
    for in_capsule in [1, 2] {
        let mut send = |fuse: u8, sqe: Sqe, data: &[u8]| {
            if fuse != in_capsule {
                return submit_fused(&mut io, fuse, sqe, data);
            }
            io.submit(sqe.byte(1, 0x40 | fuse).sgl(capsule_sgl(0, data.len() as u32)), data)
        };
        let (old, new) = ([6 + in_capsule; 512], [7 + in_capsule; 512]);
        let cids = [send(1, blocks(5, 3, 1), &old), send(2, blocks(1, 3, 1), &new)];
        assert_eq!(cids.map(|cid| io.response_to(cid).status()), [SUCCESS; 2]);
        assert_eq!(read(&mut io, 3, 1).1, new);
    }
}

pub(crate) fn a_failed_compare() {
    let (target, _admin, mut io) = io();
    let statuses = compare_and_write(&mut io, 3, [&[1; 512], &[7; 512]]).map(code);
    assert_eq!(statuses, [(2, 0x85), FAILED_FUSED]);
    target.fail_with(Some(BlockError::Read(5)));
    let statuses = compare_and_write(&mut io, 3, [&[0; 512], &[7; 512]]).map(code);
    assert_eq!(statuses, [(2, 0x81), FAILED_FUSED]);
    target.fail_with(None);
    // Refused before its second has come.
    let cid = submit_fused(&mut io, 1, blocks(5, BLOCKS, 1), &[0; 512]);
    assert_eq!(code(io.response_to(cid).status()), (0, 0x80));
    let cid = submit_fused(&mut io, 2, blocks(1, 3, 1), &[7; 512]);
    assert_eq!(code(io.response_to(cid).status()), FAILED_FUSED);
    assert_eq!(read(&mut io, 3, 1).1, [0; 512]);
}

pub(crate) fn missing_fused_commands() {
    let (_, _admin, mut io) = io();
    let second = submit_fused(&mut io, 2, blocks(1, 3, 1), &[7; 512]);
    assert_eq!(code(io.response_to(second).status()), MISSING_FUSED);
    for next in [0, 1] {
        let first = submit_fused(&mut io, 1, blocks(5, 3, 1), &[0; 512]);
        assert!(io.poll(first).is_none(), "its second may still come");
        let other = submit_fused(&mut io, next, blocks(5, 3, 1), &[0; 512]);
        assert_eq!(code(io.response_to(first).status()), MISSING_FUSED);
        if next == 1 {
            let second = submit_fused(&mut io, 2, blocks(1, 3, 1), &[7; 512]);
            io.response_to(second).succeeded();
        }
        io.response_to(other).succeeded();
    }
    // 11b is reserved.
    assert_eq!(io.command(Sqe::new(0).nsid(1).byte(1, 0x43)).status(), INVALID_FIELD);
}

pub(crate) fn unlike_fused_commands() {
    let (_, _admin, mut io) = io();
    let unlike = [
        (blocks(5, 3, 1), blocks(1, 4, 1)),
        (blocks(5, 3, 1), blocks(1, 3, 1).nsid(2)),
        (blocks(1, 3, 1), blocks(1, 3, 1)),
        (blocks(5, 3, 1), blocks(5, 3, 1)),
    ];
    for (first, second) in unlike {
        let length = if second.0[4] == 2 { 4096 } else { 512 };
        let first = submit_fused(&mut io, 1, first, &[0; 512]);
        let second = submit_fused(&mut io, 2, second, &vec![0; length]);
        assert_eq!([first, second].map(|cid| io.response_to(cid).status()), [INVALID_FIELD; 2]);
    }
}

pub(crate) fn long_fused_commands() {
    let (_, _admin, mut io) = io();
    assert_eq!(compare_and_write(&mut io, 0, [&[0; 16384], &[7; 16384]]), [SUCCESS; 2]);
    let statuses = compare_and_write(&mut io, 0, [&[7; 16896], &[8; 16896]]).map(code);
    assert_eq!(statuses, [(0, 0x14); 2]);
    assert_eq!(read(&mut io, 0, 1).1, [7; 512]);
}

pub(crate) fn fused_commands_are_one() {
    let target = Target::new();
    let (_admin, cntlid) = Queue::admin(&target);
    let (mut one, mut other) = (Queue::io(&target, cntlid, 1), Queue::io(&target, cntlid, 2));
    target.stall(true);
    // What is under way when the pair comes is waited for, what comes later waits for the pair.
    let before = submit_write(&mut other, 3, &[1; 512]);
    let first = submit_fused(&mut one, 1, blocks(5, 3, 1), &[1; 512]);
    let second = submit_fused(&mut one, 2, blocks(1, 3, 1), &[2; 512]);
    let after = submit_write(&mut other, 3, &[3; 512]);
    let beside = submit_write(&mut other, 4, &[4; 512]);
    target.stall(false);
    one.turn();
    for cid in [before, after, beside] {
        other.response_to(cid).succeeded();
    }
    for cid in [first, second] {
        one.response_to(cid).succeeded();
    }
    assert_eq!(read(&mut one, 3, 2).1, [[3; 512], [4; 512]].concat());
}
