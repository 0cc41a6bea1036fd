//! Capsules: what a message holds, and in which order things happen around it.
use crate::io::{read, submit_read, write};
use crate::queue::{Did, Queue, SUCCESS};
use crate::target::{IN_CAPSULE, Target};
use crate::wire::{Sqe, capsule_sgl, connect, keyed_sgl, property_get};
use crate::{Requirement, row};

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "capsule-1",
        "NVMe RDMA 1.0, 3.3, figure 9",
        "a response capsule has exactly 16 bytes, its phase bit 0",
        response_capsules,
    ),
    row(
        "capsule-2",
        "NVMe Base 2.2, 4.2.1, figure 98; 4.2.2, figure 99",
        "a response names the command by the 16 bits it came with, whatever they are",
        identifiers_are_echoed,
    ),
    row(
        "capsule-3",
        "NVMe RDMA 1.0, 3.3, figure 9",
        "a message shorter than the 64 bytes of a command ends the connection",
        short_capsules,
    ),
    row(
        "capsule-4",
        "NVMe Base 2.2, 3.3.2.1",
        "bytes behind the command which no data pointer names are ignored",
        unnamed_bytes,
    ),
    row(
        "capsule-5",
        "NVMe RDMA 1.0, 3.3",
        "a read's data is written before its response is sent",
        data_before_the_response,
    ),
    row("capsule-6", "ours", "of a command which failed no data is written", no_data_of_a_failure),
    row(
        "capsule-7",
        "NVMe RDMA 1.0, 3.3, figure 8",
        "a write's data is fetched by RDMA Read, whole, from the address and key named",
        writes_are_fetched,
    ),
    row(
        "capsule-8",
        "NVMe RDMA 1.0, 3.6",
        "a response invalidates the key of a descriptor with subtype Fh, which may also have failed",
        invalidation_when_asked,
    ),
    row(
        "capsule-9",
        "NVMe RDMA 1.0, 3.6",
        "a response never invalidates the key of a descriptor with subtype 0",
        no_invalidation_unasked,
    ),
    row(
        "capsule-10",
        "NVMe RDMA 1.0, 3.6",
        "a key is invalidated also when the command is refused before any data moved",
        invalidation_of_a_refused_command,
    ),
    row(
        "capsule-11",
        "NVMe Base 2.2, 3.3.2.6",
        "with flow control SQHD counts commands modulo the queue size, from Connect on",
        queue_head,
    ),
    row(
        "capsule-12",
        "NVMe Base 2.2, 6.3, figure 548; 3.3.2.5",
        "a Connect which asks to disable flow control is answered with SQHD FFFFh, all behind it with 0; any other is not",
        flow_control_disabled,
    ),
    row(
        "capsule-13",
        "NVMe RDMA 1.0, 3.1, figure 6 (CRQSIZE)",
        "the receive is there again before the response which frees the host's slot",
        receives_come_back_first,
    ),
    row(
        "capsule-14",
        "NVMe RDMA 1.0, 3.3",
        "in-capsule data is not required on an admin queue, and refused nowhere it makes sense",
        in_capsule_data_on_an_admin_queue,
    ),
    row(
        "capsule-15",
        "NVMe RDMA 1.0, 3.3, figure 9",
        "a capsule with as much data as IOCCSZ allows is taken, one byte more has no receive buffer",
        the_largest_capsule,
    ),
];

fn identify() -> Sqe {
    Sqe::new(0x06).byte(40, 1)
}

fn response_capsules() {
    let (mut admin, _) = Queue::admin(&Target::new());
    let response = admin.command(Sqe::new(0x18)).succeeded();
    // The driver takes nothing that has another length.
    assert_eq!(response.entry[14] & 1, 0);
    assert_eq!(response.result(), 0);
}

fn identifiers_are_echoed() {
    let (mut admin, _) = Queue::admin(&Target::new());
    for cid in [0, 0x1F, 0xF01F, 0xFFFF] {
        admin.send_message(&Sqe::new(0x18).word(2, cid).0);
        admin.response_to(cid).succeeded();
    }
}

fn short_capsules() {
    for length in [0, 1, 63] {
        let (mut admin, _) = Queue::admin(&Target::new());
        admin.send_message(&Sqe::new(0x18).0[..length]);
        assert!(admin.peer.is_over(), "{length} bytes");
        assert!(!matches!(admin.did.last(), Some(Did::Terminated(_))), "nothing is wrong with the stream");
    }
}

fn unnamed_bytes() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    let keep_alive = admin.submit(Sqe::new(0x18), &[0xAA; 512]);
    admin.response_to(keep_alive).succeeded();
    let flush = io.submit(Sqe::new(0).nsid(1), &[0xAA; 512]);
    io.response_to(flush).succeeded();
}

fn data_before_the_response() {
    let (_admin, mut io) = Queue::both(&Target::new());
    let cid = submit_read(&mut io, 0, 8);
    io.response_to(cid).succeeded();
    let [.., Did::Wrote { bytes: 4096, .. }, Did::Responded { cid: last }] = io.did[..] else {
        panic!("{:?}", io.did)
    };
    assert_eq!(last, cid);
}

fn no_data_of_a_failure() {
    let target = Target::new();
    let (_admin, mut io) = Queue::both(&target);
    let (response, data) = read(&mut io, 4095, 2);
    assert_eq!(response.status(), (0, 0x80, true));
    assert!(data.iter().all(|&byte| byte == 0xEE));
    assert!(!io.did.iter().any(|did| matches!(did, Did::Wrote { .. })));
}

fn writes_are_fetched() {
    let (_admin, mut io) = Queue::both(&Target::new());
    io.did.clear();
    write(&mut io, 0, &[0x5A; 128 * 1024]).succeeded();
    let [reads @ .., Did::Responded { .. }] = &io.did[..] else { panic!("{:?}", io.did) };
    let mut fetched = 0;
    for read in reads {
        let Did::Read { offset, length, .. } = read else { panic!("{read:?}") };
        assert_eq!(*offset, 0x7F00_0000_1234 + u64::from(fetched));
        fetched += length;
    }
    assert_eq!(fetched, 128 * 1024);
}

fn invalidation_when_asked() {
    let (_admin, mut io) = Queue::both(&Target::new());
    for (lba, status) in [(0, SUCCESS), (4096, (0, 0x80, true))] {
        let at = io.expose(vec![0; 512]);
        let sqe = Sqe::new(2).nsid(1).qword(40, lba).sgl(keyed_sgl(at, 512, 0x4F));
        let response = io.command(sqe);
        assert_eq!((response.status(), response.invalidated), (status, Some(at.0)));
    }
}

fn no_invalidation_unasked() {
    let (_admin, mut io) = Queue::both(&Target::new());
    for opcode in [1, 2] {
        let at = io.expose(vec![0; 512]);
        let response = io.command(Sqe::new(opcode).nsid(1).sgl(keyed_sgl(at, 512, 0x40)));
        assert_eq!((response.status(), response.invalidated), (SUCCESS, None));
    }
    assert_eq!(io.command(Sqe::new(0).nsid(1)).invalidated, None);
}

fn invalidation_of_a_refused_command() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    for (queue, sqe) in [(&mut admin, identify().byte(40, 0xEE)), (&mut io, Sqe::new(0x3C).nsid(1))] {
        let at = queue.expose(vec![0; 4096]);
        let response = queue.command(sqe.sgl(keyed_sgl(at, 4096, 0x4F)));
        assert_ne!(response.status(), SUCCESS);
        assert_eq!(response.invalidated, Some(at.0));
    }
}

fn queue_head() {
    let target = Target::new();
    let (_admin, cntlid) = Queue::admin(&target);
    let mut io = Queue::dial_io(&target, cntlid, 1);
    let data = crate::fabrics::io_data(cntlid);
    let mut heads = vec![io.write(connect(1, 15, 0), &data).succeeded().sqhd()];
    heads.extend((0..20).map(|_| io.command(Sqe::new(0).nsid(1)).succeeded().sqhd()));
    let expected: Vec<u16> = (1..=21).map(|head| head % 16).collect();
    assert_eq!(heads, expected);
}

fn flow_control_disabled() {
    let target = Target::new();
    let (_admin, cntlid) = Queue::admin(&target);
    for (qid, attributes, disabled) in [(1, 0b100, true), (2, 0b000, false), (3, 0b1000, false)] {
        let mut io = Queue::dial_io(&target, cntlid, qid);
        let sqe = connect(qid, 15, 0).byte(46, attributes);
        let response = io.write(sqe, &crate::fabrics::io_data(cntlid)).succeeded();
        assert_eq!(response.sqhd() == 0xFFFF, disabled, "CATTR {attributes:#b}");
        let heads = [(); 3].map(|()| io.command(Sqe::new(0).nsid(1)).succeeded().sqhd());
        assert_eq!(heads, if disabled { [0; 3] } else { [2, 3, 4] });
    }
}

fn receives_come_back_first() {
    let (_admin, mut io) = Queue::both(&Target::new());
    // As many as fit the queue, again and again: each round needs every receive of the one before.
    for _ in 0..10 {
        let cids: Vec<u16> = (0..15).map(|_| io.post(Sqe::new(0).nsid(1), &[])).collect();
        for cid in cids {
            io.response_to(cid).succeeded();
        }
    }
}

fn in_capsule_data_on_an_admin_queue() {
    let target = Target::new();
    let mut admin = Queue::dial_admin(&target);
    let data = crate::fabrics::admin_data();
    admin.write_in_capsule(connect(0, 31, 0), &data).succeeded();
    admin.command(property_get(0, 1)).succeeded();
}

fn the_largest_capsule() {
    let (_admin, mut io) = Queue::both(&Target::new());
    let data = [0x77; IN_CAPSULE];
    let sqe = Sqe::new(1).nsid(1).word(48, 7);
    io.write_in_capsule(sqe, &data).succeeded();
    let (response, read) = read(&mut io, 0, 8);
    response.succeeded();
    assert_eq!(read, data);
    io.submit(sqe.sgl(capsule_sgl(0, 4096)), &[0; IN_CAPSULE + 1]);
    assert_eq!(io.terminated()[..2], [0x12, 5], "DDP, untagged buffer, message too long");
}
