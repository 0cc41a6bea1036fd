//! Making an NVMe/RDMA connection: the private data of the connection manager, and what comes of it.
use std::time::Duration;

use ironside_target::limits::Resource;

use crate::queue::{HOST, HOST_ID, Queue};
use crate::target::{OPEN, QUEUE_DEPTH, READS, Target};
use crate::wire::{
    CRC, ENHANCED, REJECT, cm_request, connect, connect_data, fpdu, mpa_frame, mpa_request, send, take_fpdu,
};
use crate::{Requirement, row};

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "connection-1",
        "NVMe RDMA 1.0, 3.1, figure 6",
        "an accepted admin queue gets 32 bytes: RECFMT 0, CRQSIZE as many receives as it may send commands",
        an_admin_queue_is_accepted,
    ),
    row(
        "connection-2",
        "NVMe RDMA 1.0, 3.1, figure 6",
        "an accepted I/O queue gets the CRQSIZE of its own HSQSIZE, which is 0's based",
        an_io_queue_is_accepted,
    ),
    row(
        "connection-3",
        "NVMe RDMA 1.0, 3.5, figure 11",
        "private data shorter than 32 bytes is rejected with status 1",
        short_private_data,
    ),
    row(
        "connection-4",
        "NVMe RDMA 1.0, 3.5, figure 11",
        "no private data at all is rejected with status 1",
        no_private_data,
    ),
    row(
        "connection-5",
        "NVMe RDMA 1.0, 3.5, figure 11",
        "a RECFMT other than 0 is rejected with status 2",
        unknown_record_format,
    ),
    row(
        "connection-6",
        "NVMe RDMA 1.0, 3.5, figure 11",
        "an HSQSIZE larger than a queue may be is rejected with status 4",
        host_send_queue_too_large,
    ),
    row(
        "connection-7",
        "NVMe RDMA 1.0, 3.5, figure 11",
        "an HRQSIZE of 0, into which no response fits, is rejected with status 5",
        no_host_receives,
    ),
    row(
        "connection-8",
        "NVMe RDMA 1.0, 3.5, figure 11",
        "a host which takes no RDMA Reads (IRD 0) is rejected with status 7",
        no_reads,
    ),
    row(
        "connection-9",
        "NVMe RDMA 1.0, 3.1, figure 7",
        "a reject carries 4 bytes: RECFMT 0 and the status, and the connection ends",
        layout_of_a_reject,
    ),
    row(
        "connection-10",
        "NVMe RDMA 1.0, 3.1, figure 5",
        "private data may come longer than it was sent, and reserved bytes are not looked at",
        padded_private_data,
    ),
    row(
        "connection-11",
        "NVMe RDMA 1.0, 3.1",
        "the reply's IRD is 0 for a host which sends no Reads, its ORD no more than the host's IRD",
        read_depths,
    ),
    row(
        "connection-12",
        "NVMe RDMA 1.0, 3.1",
        "no more RDMA Reads are outstanding than the host's IRD, and all data comes in the end",
        reads_stay_within_the_ird,
    ),
    row(
        "connection-13",
        "NVMe RDMA 1.0, 3.1, figure 6",
        "as many commands as HSQSIZE allows are taken at once",
        a_full_queue_is_taken,
    ),
    row(
        "connection-14",
        "NVMe Base 2.2, 6.3, figure 546 (SQSIZE)",
        "a Connect whose SQSIZE is larger than the queue pair's HSQSIZE is an invalid parameter at byte 44",
        connect_larger_than_the_queue_pair,
    ),
    row(
        "connection-15",
        "RFC 5044, 7.1.2",
        "a connection on which no Connect comes is ended after 5 seconds, not before",
        connect_has_to_come,
    ),
    row(
        "connection-16",
        "RFC 5044, 7.1.2",
        "the first capsule may come together with the last byte of the Request's answer, before any other event",
        a_capsule_right_behind_the_request,
    ),
    row(
        "connection-17",
        "NVMe RDMA 1.0, 3.5, figure 11",
        "a connection beyond the operator's limit is rejected with status 6, and taken once another has ended",
        one_connection_too_many,
    ),
];

/// The private data of an MPA Reply of revision 2, behind its depths.
fn private_data(reply: &[u8]) -> &[u8] {
    let length = usize::from(u16::from_be_bytes([reply[18], reply[19]]));
    assert_eq!(reply.len(), 20 + length, "PD_Length counts what follows");
    &reply[24..]
}

/// The status of the reject which a request with this IRD and private data gets.
fn rejected(ird: u8, data: &[u8]) -> u16 {
    rejected_by(&Target::new(), ird, data)
}

fn rejected_by(target: &Target, ird: u8, data: &[u8]) -> u16 {
    let peer = target.dial();
    let data = [&[0, ird, 0, 0], data].concat();
    peer.send(&mpa_frame(b"MPA ID Req Frame", ENHANCED, 2, &data));
    target.run();
    let reply = peer.take();
    assert_eq!(reply[16] & REJECT, REJECT, "accepted: {reply:02x?}");
    let data = private_data(&reply);
    assert_eq!((data.len(), &data[..2]), (4, &[0, 0][..]));
    u16::from_le_bytes([data[2], data[3]])
}

fn an_admin_queue_is_accepted() {
    let (_, reply) = Queue::open_with(&Target::new(), 0, &cm_request(0, 32, 31, 0));
    let mut expected = [0; 32];
    expected[2] = 32;
    assert_eq!(private_data(&reply), expected);
}

fn an_io_queue_is_accepted() {
    let (_, reply) = Queue::open_with(&Target::new(), 0, &cm_request(1, 128, 127, 1));
    let mut expected = [0; 32];
    expected[2] = 128;
    assert_eq!(private_data(&reply), expected);
}

fn short_private_data() {
    assert_eq!(rejected(16, &cm_request(0, 32, 31, 0)[..31]), 1);
    assert_eq!(rejected(16, &[0]), 1);
}

fn no_private_data() {
    assert_eq!(rejected(16, &[]), 1);
}

fn unknown_record_format() {
    for format in [1, 0x80] {
        let mut data = cm_request(0, 32, 31, 0);
        data[0] = format;
        assert_eq!(rejected(16, &data), 2);
    }
}

fn host_send_queue_too_large() {
    assert_eq!(rejected(16, &cm_request(1, 128, QUEUE_DEPTH, 1)), 4);
    assert_eq!(rejected(16, &cm_request(0, 32, 0xFFFF, 0)), 4);
}

fn no_host_receives() {
    assert_eq!(rejected(16, &cm_request(0, 0, 31, 0)), 5);
}

fn no_reads() {
    assert_eq!(rejected(0, &cm_request(0, 32, 31, 0)), 7);
}

fn layout_of_a_reject() {
    let target = Target::new();
    let peer = target.dial();
    peer.send(&mpa_request(0, &cm_request(0, 32, 0xFFFF, 0)));
    target.run();
    let mut expected = b"MPA ID Rep Frame\x30\x02\x00\x08".to_vec();
    expected.extend([0, 0, 0, 16, 0, 0, 4, 0]);
    assert_eq!(peer.take(), expected);
    assert!(peer.is_over());
}

fn padded_private_data() {
    let mut data = cm_request(0, 32, 31, 0);
    data[10..].fill(0xFF);
    data.resize(196, 0xFF);
    Queue::open(&Target::new(), &data);
}

fn read_depths() {
    for (ird, ord) in [(1, 1), (4, 4), (255, READS)] {
        let target = Target::new();
        let data = [&[0, ird, 0, 0], &cm_request(0, 32, 31, 0)[..]].concat();
        let request = mpa_frame(b"MPA ID Req Frame", ENHANCED, 2, &data);
        let (_, reply) = Queue::start(&target, target.dial(), &request);
        assert_eq!(reply[20..24], [[0, 0], ord.to_be_bytes()].concat());
    }
}

fn reads_stay_within_the_ird() {
    let target = Target::new();
    let (_admin, cntlid) = Queue::admin(&target);
    let data = [&[0, 3, 0, 0], &cm_request(1, 16, 15, cntlid)[..]].concat();
    let (mut io, _) =
        Queue::start(&target, target.dial(), &mpa_frame(b"MPA ID Req Frame", ENHANCED, 2, &data));
    io.write(connect(1, 15, 0), &connect_data(HOST_ID, cntlid, OPEN, HOST)).succeeded();
    io.holds_reads = true;
    let cids: Vec<u16> = (0..8).map(|block| crate::io::submit_write(&mut io, block, &[7; 8192])).collect();
    let mut answered = 0;
    while answered < 8 {
        let held = std::mem::take(&mut io.held_reads);
        assert!((1..=3).contains(&held.len()), "{} Reads at once", held.len());
        answered += held.len();
        for read in held {
            io.answer_read(&read);
        }
        io.turn();
    }
    for cid in cids {
        io.response_to(cid).succeeded();
    }
}

fn a_full_queue_is_taken() {
    let target = Target::new();
    let (_admin, mut io) = Queue::both(&target);
    target.stall(true);
    let cids: Vec<u16> = (0..15).map(|_| crate::io::submit_read(&mut io, 0, 8)).collect();
    assert!(cids.iter().all(|&cid| io.poll(cid).is_none()));
    target.stall(false);
    for cid in cids {
        io.response_to(cid).succeeded();
    }
}

fn connect_larger_than_the_queue_pair() {
    let target = Target::new();
    let mut queue = Queue::open(&target, &cm_request(0, 16, 15, 0));
    let data = connect_data(HOST_ID, 0xFFFF, OPEN, HOST);
    let response = queue.write(connect(0, 16, 0), &data);
    assert_eq!((response.status(), response.result()), ((1, 0x82, true), 44));
    queue.write(connect(0, 15, 0), &data).succeeded();
}

fn one_connection_too_many() {
    for resource in [Resource::Connections, Resource::ConnectionsPerAddress] {
        let target = Target::new();
        target.limit(2, resource, 2);
        let first = Queue::dial_admin(&target);
        let _second = Queue::dial_admin(&target);
        assert_eq!(rejected_by(&target, 16, &cm_request(0, 32, 31, 0)), 6);
        first.peer.end();
        target.run();
        Queue::dial_admin(&target);
    }
}

fn connect_has_to_come() {
    let target = Target::new();
    let queue = Queue::dial_admin(&target);
    target.wait(Duration::from_millis(4900));
    assert!(!queue.peer.is_over());
    target.wait(Duration::from_millis(300));
    assert!(queue.peer.is_over());
}

fn a_capsule_right_behind_the_request() {
    let target = Target::new();
    let peer = target.dial();
    peer.send(&mpa_request(CRC, &cm_request(0, 32, 31, 0)));
    let connect = connect(0, 31, 0);
    peer.send(&fpdu(&send(1, &connect.0), true));
    target.run();
    let mut bytes = peer.take();
    bytes.drain(..56);
    // Its data pointer names nothing, which is said in the response.
    let response = take_fpdu(&mut bytes, true).expect("an answer");
    assert_eq!(response.payload()[14..], [0x1E, 0x80]);
}
