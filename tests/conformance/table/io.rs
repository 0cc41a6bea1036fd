//! Commands of the NVM command set.
use ironside_target::backend::BlockError;

use crate::queue::{Queue, Response, SUCCESS, Status};
use crate::target::{BLOCKS, Target};
use crate::wire::{Sqe, keyed_sgl};
use crate::{Requirement, row};

const INVALID_OPCODE: Status = (0, 0x01, true);
const INVALID_NAMESPACE: Status = (0, 0x0B, true);
const WRITE_PROTECTED: Status = (0, 0x20, true);
const LBA_OUT_OF_RANGE: Status = (0, 0x80, true);

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "io-1",
        "NVM Command Set 1.2, 3.3.4 and 3.3.6",
        "SLBA is 64 bits from byte 40, NLB is 0's based in bits 15:0 of dword 12",
        addresses_and_counts,
    ),
    row(
        "io-2",
        "NVM Command Set 1.2, 3.3.4 and 3.3.6",
        "the last block can be read and written, the one behind it is LBA Out of Range",
        the_last_block,
    ),
    row(
        "io-3",
        "NVM Command Set 1.2, 3.3.4 and 3.3.6",
        "SLBA plus NLB may not wrap: that is LBA Out of Range",
        addresses_do_not_wrap,
    ),
    row(
        "io-4",
        "NVMe Base 2.2, 4.2.3, figure 102",
        "a namespace which is not there, 0 or FFFFFFFFh is Invalid Namespace or Format, Do Not Retry",
        unknown_namespaces,
    ),
    row("io-5", "NVMe Base 2.2, 7.2", "Flush succeeds and reaches the medium", flush),
    row(
        "io-6",
        "NVMe Base 2.2, 7.2",
        "Flush of all namespaces, which VWC does not offer, is Invalid Namespace or Format",
        flush_of_all,
    ),
    row(
        "io-7",
        "NVM Command Set 1.2, 3.3.8",
        "Write Zeroes takes no data, zeroes its blocks, and is not bound by MDTS",
        write_zeroes,
    ),
    row(
        "io-8",
        "NVM Command Set 1.2, 3.3.3",
        "NR is 0's based, a range is attributes, a count of blocks and SLBA; deallocated blocks read as zeroes",
        deallocate,
    ),
    row(
        "io-9",
        "Linux, drivers/nvme/host/core.c nvme_setup_discard",
        "a Dataset Management of one range may bring 4096 bytes, keyed or in the capsule",
        long_range_lists,
    ),
    row(
        "io-10",
        "NVM Command Set 1.2, 3.3.3",
        "a range beyond the namespace is LBA Out of Range and leaves the others alone; an empty one is nothing",
        ranges_have_bounds,
    ),
    row(
        "io-11",
        "NVMe Base 2.2, 4.3.2",
        "a Dataset Management with less data than its ranges is Data SGL Length Invalid",
        short_range_lists,
    ),
    row(
        "io-12",
        "NVM Command Set 1.2, 3.3.1",
        "Compare of equal data succeeds; of other data it is Compare Failure, of the media type",
        compare,
    ),
    row("io-13", "NVM Command Set 1.2, 3.3.5", "Verify reads without a transfer", verify),
    row(
        "io-14",
        "NVMe Base 2.2, 8.1.16",
        "what changes a write-protected namespace is Namespace is Write Protected; the rest succeeds",
        write_protection,
    ),
    row(
        "io-15",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313 (ONCS)",
        "commands which ONCS does not offer, and unknown ones, are Invalid Command Opcode, Do Not Retry",
        absent_commands,
    ),
    row(
        "io-16",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313 (FUSES)",
        "FUSES offers Compare and Write: of equal data both succeed and the blocks are written",
        crate::fused::fused_commands,
    ),
    row(
        "io-17",
        "NVMe Base 2.2, 4.2.3, figure 106",
        "a medium which fails to read is Unrecovered Read Error, to write Write Fault; both may be retried",
        media_errors,
    ),
    row(
        "io-18",
        "NVM Command Set 1.2, 3.3.6",
        "a medium which is full is Capacity Exceeded, Do Not Retry",
        a_full_medium,
    ),
    row(
        "io-19",
        "NVM Command Set 1.2, 3.3.4 and 3.3.6",
        "FUA, LR and hints in dwords 12 and 13 change nothing about the data",
        flags_are_taken,
    ),
    row(
        "io-20",
        "NVM Command Set 1.2, 4.1.5.1",
        "blocks have the size the format says: 512 bytes here, 4096 there",
        block_sizes,
    ),
    row(
        "io-21",
        "NVMe Base 2.2, 3.4.1",
        "commands are not held up by one which takes long, and may be answered in any order",
        order_of_responses,
    ),
    row(
        "io-22",
        "NVMe Base 2.2, 3.4.2",
        "a Compare which fails is Compare Failure, and its Write Aborted due to Failed Fused Command",
        crate::fused::a_failed_compare,
    ),
    row(
        "io-23",
        "NVMe Base 2.2, 3.4.2",
        "one of two fused commands without the other is Aborted due to Missing Fused Command",
        crate::fused::missing_fused_commands,
    ),
    row(
        "io-24",
        "NVM Command Set 1.2, 2.1.3",
        "fused commands on different blocks, or which are no Compare and Write, are Invalid Field",
        crate::fused::unlike_fused_commands,
    ),
    row(
        "io-25",
        "NVM Command Set 1.2, 4.1.5.2 (ACWU)",
        "a Compare and Write of more than the controller does at once is Atomic Write Unit Exceeded",
        crate::fused::long_fused_commands,
    ),
    row(
        "io-26",
        "NVMe Base 2.2, 3.4.2",
        "no command of another queue comes between a fused Compare and its Write",
        crate::fused::fused_commands_are_one,
    ),
];

/// A command on blocks of namespace 1.
pub(crate) fn blocks(opcode: u8, lba: u64, count: u32) -> Sqe {
    Sqe::new(opcode).nsid(1).qword(40, lba).word(48, (count - 1) as u16)
}

pub(crate) fn read(io: &mut Queue, lba: u64, count: u32) -> (Response, Vec<u8>) {
    io.read(blocks(2, lba, count), count as usize * 512)
}

pub(crate) fn write(io: &mut Queue, lba: u64, data: &[u8]) -> Response {
    io.write(blocks(1, lba, data.len() as u32 / 512), data)
}

/// Sends a Read without waiting for its response.
pub(crate) fn submit_read(io: &mut Queue, lba: u64, count: u32) -> u16 {
    let at = io.expose(vec![0; count as usize * 512]);
    io.submit(blocks(2, lba, count).sgl(keyed_sgl(at, count * 512, 0x4F)), &[])
}

/// The same with a Write.
pub(crate) fn submit_write(io: &mut Queue, lba: u64, data: &[u8]) -> u16 {
    let (at, length) = (io.expose(data.to_vec()), data.len() as u32);
    io.submit(blocks(1, lba, length / 512).sgl(keyed_sgl(at, length, 0x4F)), &[])
}

pub(crate) fn io() -> (Target, Queue, Queue) {
    let target = Target::new();
    let (admin, io) = Queue::both(&target);
    (target, admin, io)
}

/// One range of a Dataset Management.
fn range(lba: u64, count: u32) -> [u8; 16] {
    let mut range = [0; 16];
    range[4..8].copy_from_slice(&count.to_le_bytes());
    range[8..].copy_from_slice(&lba.to_le_bytes());
    range
}

/// Dataset Management, deallocate, of so many ranges.
fn deallocation(ranges: u32) -> Sqe {
    Sqe::new(9).nsid(1).dword(40, ranges - 1).dword(44, 0b100)
}

fn addresses_and_counts() {
    let (_, _admin, mut io) = io();
    let data: Vec<u8> = (0..8 * 512).map(|at| (at / 512 + 1) as u8).collect();
    write(&mut io, 0x234, &data).succeeded();
    for block in 0..8 {
        let read = read(&mut io, 0x234 + block, 1).1;
        assert_eq!(read, [block as u8 + 1; 512]);
    }
    assert_eq!(read(&mut io, 0x233, 10).1[512..9 * 512], data);
}

fn the_last_block() {
    let (_, _admin, mut io) = io();
    write(&mut io, BLOCKS - 1, &[9; 512]).succeeded();
    assert_eq!(read(&mut io, BLOCKS - 1, 1).1, [9; 512]);
    assert_eq!(read(&mut io, BLOCKS - 1, 2).0.status(), LBA_OUT_OF_RANGE);
    assert_eq!(write(&mut io, BLOCKS, &[9; 512]).status(), LBA_OUT_OF_RANGE);
}

fn addresses_do_not_wrap() {
    let (_, _admin, mut io) = io();
    for lba in [u64::MAX, u64::MAX - 7, 1 << 63, 1 << 55, 1 << 32] {
        assert_eq!(read(&mut io, lba, 8).0.status(), LBA_OUT_OF_RANGE, "{lba:#x}");
        assert_eq!(io.command(blocks(8, lba, 8)).status(), LBA_OUT_OF_RANGE, "{lba:#x}");
    }
}

fn unknown_namespaces() {
    let (_, _admin, mut io) = io();
    for nsid in [0, 4, 1025, u32::MAX - 1, u32::MAX] {
        let (response, _) = io.read(blocks(2, 0, 1).nsid(nsid), 512);
        assert_eq!(response.status(), INVALID_NAMESPACE, "namespace {nsid:#x}");
    }
}

fn flush() {
    let (target, _admin, mut io) = io();
    io.command(Sqe::new(0).nsid(1)).succeeded();
    assert_eq!(target.flushes(), 1);
}

fn flush_of_all() {
    let (_, _admin, mut io) = io();
    assert_eq!(io.command(Sqe::new(0).nsid(u32::MAX)).status(), INVALID_NAMESPACE);
}

fn write_zeroes() {
    let (_, _admin, mut io) = io();
    write(&mut io, 0, &[5; 4096]).succeeded();
    io.command(blocks(8, 1, 2)).succeeded();
    let data = read(&mut io, 0, 4).1;
    assert_eq!(
        (&data[..512], &data[512..1536], &data[1536..]),
        (&[5; 512][..], &[0; 1024][..], &[5; 512][..])
    );
    // DEAC
    io.command(blocks(8, 0, BLOCKS as u32).byte(51, 0b10)).succeeded();
    assert_eq!(read(&mut io, 3, 1).1, [0; 512]);
}

fn deallocate() {
    let (_, _admin, mut io) = io();
    write(&mut io, 0, &[6; 4096]).succeeded();
    io.write(deallocation(2), &[range(1, 2), range(5, 1)].concat()).succeeded();
    let data = read(&mut io, 0, 8).1;
    let zeroed: Vec<usize> = (0..8).filter(|block| data[block * 512..][..512] == [0; 512]).collect();
    assert_eq!(zeroed, [1, 2, 5]);
}

fn long_range_lists() {
    let (_, _admin, mut io) = io();
    let mut list = vec![0xFF; 4096];
    list[..16].copy_from_slice(&range(0, 8));
    io.write(deallocation(1), &list).succeeded();
    io.write_in_capsule(deallocation(1), &list).succeeded();
}

fn ranges_have_bounds() {
    let (_, _admin, mut io) = io();
    write(&mut io, 0, &[6; 512]).succeeded();
    let list = [range(0, 1), range(BLOCKS - 1, 2)].concat();
    assert_eq!(io.write(deallocation(2), &list).status(), LBA_OUT_OF_RANGE);
    assert_eq!(io.write(deallocation(1), &range(u64::MAX, u32::MAX)).status(), LBA_OUT_OF_RANGE);
    io.write(deallocation(1), &range(0, 0)).succeeded();
    assert_eq!(read(&mut io, 0, 1).1, [6; 512]);
}

fn short_range_lists() {
    let (_, _admin, mut io) = io();
    assert_eq!(io.write(deallocation(2), &range(0, 1)).status(), (0, 0x0F, true));
    assert_eq!(io.write_in_capsule(deallocation(256), &[0; 4080]).status(), (0, 0x0F, true));
    io.write(deallocation(256), &[0; 4096]).succeeded();
}

fn compare() {
    let (_, _admin, mut io) = io();
    write(&mut io, 7, &[8; 1024]).succeeded();
    io.write(blocks(5, 7, 2), &[8; 1024]).succeeded();
    io.write_in_capsule(blocks(5, 7, 2), &[8; 1024]).succeeded();
    let mut other = [8; 1024];
    other[1023] = 9;
    let (kind, code, _) = io.write(blocks(5, 7, 2), &other).status();
    assert_eq!((kind, code), (2, 0x85));
}

fn verify() {
    let (target, _admin, mut io) = io();
    io.command(blocks(0x0C, 0, 8)).succeeded();
    target.fail_with(Some(BlockError::Read(5)));
    let (kind, code, _) = io.command(blocks(0x0C, 0, 8)).status();
    assert_eq!((kind, code), (2, 0x81));
}

fn write_protection() {
    let (_, _admin, mut io) = io();
    let write = blocks(1, 0, 1).nsid(3);
    assert_eq!(io.write(write, &[1; 512]).status(), WRITE_PROTECTED);
    assert_eq!(io.command(blocks(8, 0, 1).nsid(3)).status(), WRITE_PROTECTED);
    assert_eq!(io.write(deallocation(1).nsid(3), &range(0, 1)).status(), WRITE_PROTECTED);
    io.read(blocks(2, 0, 1).nsid(3), 512).0.succeeded();
    io.command(Sqe::new(0).nsid(3)).succeeded();
}

fn absent_commands() {
    let (_, _admin, mut io) = io();
    // Write Uncorrectable, and numbers without a meaning.
    for opcode in [0x04, 0x3C, 0x7D, 0x80, 0xFC] {
        assert_eq!(io.command(Sqe::new(opcode).nsid(1)).status(), INVALID_OPCODE, "{opcode:#x}");
    }
}

fn media_errors() {
    let (target, _admin, mut io) = io();
    target.fail_with(Some(BlockError::Read(5)));
    assert_eq!(read(&mut io, 0, 1).0.status(), (2, 0x81, false));
    target.fail_with(Some(BlockError::Write(5)));
    assert_eq!(write(&mut io, 0, &[0; 512]).status(), (2, 0x80, false));
    target.fail_with(None);
    assert_eq!(read(&mut io, 0, 1).0.status(), SUCCESS);
}

fn a_full_medium() {
    let (target, _admin, mut io) = io();
    target.fail_with(Some(BlockError::NoSpace));
    assert_eq!(write(&mut io, 0, &[0; 512]).status(), (0, 0x81, true));
}

fn flags_are_taken() {
    let (_, _admin, mut io) = io();
    // LR and FUA; then every hint there is.
    let flags = |sqe: Sqe| sqe.byte(51, 0xC0).byte(52, 0xFF);
    io.write(flags(blocks(1, 2, 1)), &[4; 512]).succeeded();
    assert_eq!(io.fetch(flags(blocks(2, 2, 1)), 512), [4; 512]);
}

fn block_sizes() {
    let (_, _admin, mut io) = io();
    let second = |opcode| blocks(opcode, 1, 1).nsid(2);
    io.write(second(1), &[2; 4096]).succeeded();
    assert_eq!(io.fetch(second(2), 4096), [2; 4096]);
    assert_eq!(io.write(second(1), &[2; 512]).status(), (0, 0x0F, true));
}

fn order_of_responses() {
    let (target, _admin, mut io) = io();
    target.stall(true);
    let slow = submit_read(&mut io, 0, 1);
    // An answer which needs no medium overtakes.
    assert_eq!(read(&mut io, BLOCKS, 1).0.status(), LBA_OUT_OF_RANGE);
    assert!(io.poll(slow).is_none());
    target.stall(false);
    io.response_to(slow).succeeded();
}
