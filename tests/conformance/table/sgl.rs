//! Data pointers: which are taken, and what is said of the others.
use crate::io::read;
use crate::queue::{Queue, SUCCESS, Status};
use crate::target::{IN_CAPSULE, Target};
use crate::wire::{Sqe, capsule_sgl, keyed_sgl, le};
use crate::{Requirement, row};

const INVALID_FIELD: Status = (0, 0x02, true);
const LENGTH_INVALID: Status = (0, 0x0F, true);
const TYPE_INVALID: Status = (0, 0x11, true);
const OFFSET_INVALID: Status = (0, 0x16, true);

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "sgl-1",
        "NVMe Base 2.2, 4.3.2, figure 122",
        "a keyed data block is an address of 64, a length of 24 and a key of 32 bits, wherever they point",
        keyed_data_blocks,
    ),
    row(
        "sgl-2",
        "NVMe Base 2.2, 4.1.1, figure 91",
        "an I/O or admin command whose PSDT is not 01b is refused with Invalid Field",
        data_pointers_have_to_be_sgls,
    ),
    row(
        "sgl-3",
        "NVMe Base 2.2, 4.3.2, figure 113",
        "a descriptor type which the transport has no use for is SGL Descriptor Type Invalid",
        unknown_types,
    ),
    row(
        "sgl-4",
        "NVMe Base 2.2, 4.3.2, figure 113",
        "an impossible subtype of a possible type is SGL Descriptor Type Invalid too",
        unknown_subtypes,
    ),
    row(
        "sgl-5",
        "NVMe Base 2.2, 3.3.2.1.3; 4.2.3, figure 102",
        "a list of more descriptors than MSDBD's 1 is Invalid Number of SGL Descriptors, of part of one no segment",
        lists_are_not_taken,
    ),
    row(
        "sgl-6",
        "NVMe Base 2.2, 4.3.2",
        "a data pointer shorter or longer than the transfer is Data SGL Length Invalid, SGLS bit 18 being 0",
        lengths_have_to_fit,
    ),
    row(
        "sgl-7",
        "NVMe Base 2.2, 4.3.2",
        "data for a command which has none is Data SGL Length Invalid",
        data_for_nothing,
    ),
    row(
        "sgl-8",
        "NVMe Base 2.2, 3.3.2.1.3 (ICDOFF)",
        "in-capsule data lies at its offset from byte 64 of the capsule",
        in_capsule_offsets,
    ),
    row(
        "sgl-9",
        "NVMe Base 2.2, 3.3.2.1.3",
        "in-capsule data beyond the bytes received is SGL Offset Invalid, also where offset and length wrap",
        in_capsule_bounds,
    ),
    row(
        "sgl-10",
        "NVMe RDMA 1.0, 3.3",
        "in-capsule data of a command which reads is refused with Invalid Field",
        in_capsule_reads,
    ),
    row(
        "sgl-11",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313 (MDTS)",
        "a transfer of MDTS is taken, one beyond it is Invalid Field",
        the_longest_transfer,
    ),
    row(
        "sgl-12",
        "NVMe Base 2.2, 4.3.2, figure 122",
        "a keyed data block of length 0 names nothing, and no key is used or invalidated",
        keyed_nothing,
    ),
    row(
        "sgl-13",
        "NVMe Base 2.2, 5.1.12.1.2",
        "a command with a wrong data pointer is in the error log, of the admin queue and of others",
        wrong_pointers_are_logged,
    ),
];

fn write_of(blocks: u16) -> Sqe {
    Sqe::new(1).nsid(1).word(48, blocks - 1)
}

fn keyed_data_blocks() {
    let (_admin, mut io) = Queue::both(&Target::new());
    let (response, data) = read(&mut io, 0, 2048);
    assert_eq!((response.status(), data.len()), (SUCCESS, 1 << 20));
}

fn data_pointers_have_to_be_sgls() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    for flags in [0x00, 0xC0] {
        assert_eq!(io.command(Sqe::new(0).nsid(1).byte(1, flags)).status(), INVALID_FIELD);
        assert_eq!(admin.command(Sqe::new(0x18).byte(1, flags)).status(), INVALID_FIELD);
    }
    io.command(Sqe::new(0).nsid(1)).succeeded();
}

fn status_of(identifier: u8) -> Status {
    let (_admin, mut io) = Queue::both(&Target::new());
    let cid = io.submit(write_of(1).sgl(keyed_sgl((7, 0), 512, identifier)), &[0; 512]);
    io.response_to(cid).status()
}

fn unknown_types() {
    for kind in [0x1, 0x5, 0x6, 0xE, 0xF] {
        assert_eq!(status_of(kind << 4), TYPE_INVALID, "type {kind:x}h");
    }
    assert_eq!(status_of(0x5A), TYPE_INVALID, "the descriptor of other transports");
}

fn unknown_subtypes() {
    for identifier in [0x00, 0x02, 0x0A, 0x0F, 0x41, 0x4A, 0x4E] {
        assert_eq!(status_of(identifier), TYPE_INVALID, "{identifier:#04x}");
    }
}

fn lists_are_not_taken() {
    for identifier in [0x20, 0x21, 0x30] {
        assert_eq!(status_of(identifier), TYPE_INVALID, "{identifier:#04x}");
    }
    let (_admin, mut io) = Queue::both(&Target::new());
    for (length, status) in [(32, 0x0E), (4096, 0x0E), (0, 0x0D), (15, 0x0D), (24, 0x0D)] {
        let mut sgl = capsule_sgl(0, length);
        sgl[15] = 0x31;
        let cid = io.submit(write_of(1).sgl(sgl), &[0; 512]);
        assert_eq!(io.response_to(cid).status(), (0, status, true), "{length} bytes");
    }
}

fn lengths_have_to_fit() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    for length in [511, 513, 1024] {
        let at = io.expose(vec![0; 2048]);
        for opcode in [1, 2] {
            let sqe = Sqe::new(opcode).nsid(1).sgl(keyed_sgl(at, length, 0x40));
            assert_eq!(io.command(sqe).status(), LENGTH_INVALID, "{length} bytes");
        }
    }
    assert_eq!(io.write_in_capsule(write_of(2), &[0; 512]).status(), LENGTH_INVALID);
    for length in [4095, 4100] {
        assert_eq!(admin.read(Sqe::new(6).byte(40, 1), length).0.status(), LENGTH_INVALID);
    }
}

fn data_for_nothing() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    assert_eq!(io.read(Sqe::new(0).nsid(1), 512).0.status(), LENGTH_INVALID, "Flush");
    assert_eq!(io.read(Sqe::new(8).nsid(1), 512).0.status(), LENGTH_INVALID, "Write Zeroes");
    assert_eq!(admin.read(Sqe::new(0x18), 512).0.status(), LENGTH_INVALID, "Keep Alive");
}

fn in_capsule_offsets() {
    let (_admin, mut io) = Queue::both(&Target::new());
    let mut bytes = vec![0x11; 1024];
    bytes.extend([0x22; 512]);
    let cid = io.submit(write_of(1).sgl(capsule_sgl(1024, 512)), &bytes);
    io.response_to(cid).succeeded();
    assert_eq!(read(&mut io, 0, 1).1, [0x22; 512]);
}

fn in_capsule_bounds() {
    let (_admin, mut io) = Queue::both(&Target::new());
    for offset in [0, 1, 511, 512, 1 << 32, u64::MAX - 511, u64::MAX] {
        let cid = io.submit(write_of(1).sgl(capsule_sgl(offset, 512)), &[0; 511]);
        assert_eq!(io.response_to(cid).status(), OFFSET_INVALID, "offset {offset:#x}");
    }
}

fn in_capsule_reads() {
    let (_admin, mut io) = Queue::both(&Target::new());
    let cid = io.submit(Sqe::new(2).nsid(1).sgl(capsule_sgl(0, 512)), &[0; 512]);
    assert_eq!(io.response_to(cid).status(), INVALID_FIELD);
}

fn the_longest_transfer() {
    let (_admin, mut io) = Queue::both(&Target::new());
    io.write(write_of(2048), &vec![3; 1 << 20]).succeeded();
    let at = io.expose(vec![3; 2049 * 512]);
    let sqe = write_of(2049).sgl(keyed_sgl(at, 2049 * 512, 0x40));
    assert_eq!(io.command(sqe).status(), INVALID_FIELD);
    assert_eq!(IN_CAPSULE, 4096);
}

fn keyed_nothing() {
    let (_admin, mut io) = Queue::both(&Target::new());
    let response = io.command(Sqe::new(0).nsid(1).sgl(keyed_sgl((0xDEAD_BEEF, 0), 0, 0x4F)));
    assert_eq!((response.status(), response.invalidated), (SUCCESS, None));
}

fn wrong_pointers_are_logged() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    let of_io = io.command(Sqe::new(0x02).nsid(1).sgl(keyed_sgl((0xDEAD_BEEF, 0), 511, 0x40)));
    let of_admin = admin.command(Sqe::new(0x06).dword(40, 1).sgl(keyed_sgl((0xDEAD_BEEF, 0), 512, 0x40)));
    let log = admin.fetch(Sqe::new(0x02).dword(40, 0x01 | 47 << 16), 192);
    let entry = |at: usize| {
        (le(&log, at + 8, 2) as u16, le(&log, at + 10, 2) as u16, le(&log, at + 12, 2) >> 1 & 0xFF)
    };
    let mut entries = [0, 64].map(entry);
    entries.sort_unstable();
    let status = |response: &crate::queue::Response| u64::from(response.status().1);
    assert_eq!(entries, [(0, of_admin.cid(), status(&of_admin)), (1, of_io.cid(), status(&of_io))]);
    assert_eq!(log[128..], [0; 64]);
}
