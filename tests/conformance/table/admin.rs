//! Admin commands other than Identify: log pages, features, events, aborts.
use std::time::Duration;

use crate::queue::{Queue, Status};
use crate::target::{IO_QUEUES, Target};
use crate::wire::{Sqe, connect_data, keyed_sgl, le};
use crate::{Requirement, fabrics, row};

const INVALID_OPCODE: Status = (0, 0x01, true);
const INVALID_FIELD: Status = (0, 0x02, true);
const COMMAND_SEQUENCE: Status = (0, 0x0C, true);
const INVALID_LOG_PAGE: Status = (1, 0x09, true);

const NUMBER_OF_QUEUES: u8 = 0x07;
const EVENTS: u8 = 0x0B;
const KEEP_ALIVE_TIMER: u8 = 0x0F;
const HOST_IDENTIFIER: u8 = 0x81;
const TIMESTAMP: u8 = 0x0E;

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "admin-1",
        "NVMe Base 2.2, 5.1.12",
        "NUMD is 0's based and 32 bits, offsets are in bytes, and behind the end of a page are zeros",
        parts_of_log_pages,
    ),
    row(
        "admin-2",
        "NVMe Base 2.2, 5.1.12",
        "an offset which is no multiple of 4 or beyond the page is Invalid Field",
        offsets_of_log_pages,
    ),
    row(
        "admin-3",
        "NVMe Base 2.2, 5.1.12",
        "a page which is not there is Invalid Log Page, of the command specific type, Do Not Retry",
        unknown_log_pages,
    ),
    row(
        "admin-4",
        "NVMe Base 2.2, 5.1.12.1.1",
        "the list of pages names those which can be read, and no other",
        supported_log_pages,
    ),
    row(
        "admin-5",
        "NVMe Base 2.2, 5.1.12.1.2",
        "the error log has the newest first: count, queue, command, status field, namespace",
        error_log,
    ),
    row(
        "admin-6",
        "NVMe Base 2.2, 6.3",
        "a Connect which failed is not in the error log",
        connects_are_not_logged,
    ),
    row(
        "admin-7",
        "NVMe Base 2.2, 5.1.12.1.3",
        "the health log of the controller has 512 bytes, no warning, and counts the errors logged",
        health_log,
    ),
    row(
        "admin-8",
        "NVMe Base 2.2, 5.1.12.1.4",
        "the firmware log has slot 1 active, and in it what Identify says",
        firmware_log,
    ),
    row(
        "admin-9",
        "NVMe Base 2.2, 5.1.12.1.5",
        "the changed namespaces are listed until the list is read without RAE",
        changed_namespaces,
    ),
    row(
        "admin-10",
        "NVMe Base 2.2, 5.1.2, figures 148 and 152",
        "a namespace which changed is a notice (2h), information 00h, log page 04h: result 00040002h",
        namespace_event,
    ),
    row(
        "admin-11",
        "NVMe Base 2.2, 5.1.2",
        "an event is told once, until its log page is read; with RAE set it is not told again",
        events_are_masked,
    ),
    row(
        "admin-12",
        "NVMe Base 2.2, 5.1.25.1.5",
        "an event which the host did not ask for is not told",
        unwanted_events,
    ),
    row(
        "admin-13",
        "NVMe Base 2.2, 5.1.2",
        "AERL at byte 259 is 0's based; one request more is Asynchronous Event Request Limit Exceeded",
        event_requests_have_a_limit,
    ),
    row(
        "admin-14",
        "NVMe Base 2.2, 5.1.25.2.1, figures 444 and 445",
        "counts are 0's based: submission queues in bits 15:0, completion queues in 31:16, the grant likewise",
        number_of_queues,
    ),
    row(
        "admin-15",
        "NVMe Base 2.2, 5.1.25.2.1, figure 444",
        "65,536 queues are Invalid Field",
        too_many_queues,
    ),
    row(
        "admin-16",
        "NVMe Base 2.2, 5.1.25.2.1",
        "once there are I/O queues, their number cannot be set: Command Sequence Error",
        number_of_queues_is_set_first,
    ),
    row(
        "admin-17",
        "NVMe Base 2.2, 5.1.25.1.8",
        "the keep alive timeout is in milliseconds, as Connect set it and as Set Features does",
        keep_alive_feature,
    ),
    row(
        "admin-18",
        "NVMe Base 2.2, 5.1.25.1.28",
        "the host identifier is Connect's 16 bytes; in fabrics it cannot be set: Command Sequence Error",
        host_identifier,
    ),
    row("admin-19", "NVMe Base 2.2, 5.1.25.1.4", "the write cache is on, and stays on", write_cache_feature),
    row(
        "admin-20",
        "NVMe Base 2.2, 5.1.11 and 5.1.25",
        "unknown features are Invalid Field, Do Not Retry, to get and to set",
        unknown_features,
    ),
    row(
        "admin-21",
        "NVMe Base 2.2, 4.4",
        "nothing can be saved over a reset: Feature Identifier Not Saveable",
        features_are_not_saved,
    ),
    row(
        "admin-22",
        "NVMe Base 2.2, 5.1.1, figure 145",
        "Abort of a command which is not there succeeds, bit 0 of the result saying that nothing was aborted",
        abort_of_nothing,
    ),
    row(
        "admin-23",
        "NVMe Base 2.2, 5.1.1",
        "a command which waits is aborted: it gets Command Abort Requested, and Abort bit 0 clear",
        abort,
    ),
    row(
        "admin-28",
        "NVMe Base 2.2, 5.1.1",
        "a command whose data is being fetched is aborted once it has come; one at the medium, if the medium lets go of it",
        abort_under_way,
    ),
    row(
        "admin-29",
        "NVMe Base 2.2, 5.1.1, figure 145",
        "Abort of what the medium does not let go of succeeds within two seconds, bit 0 saying that it was not aborted",
        abort_of_what_does_not_end,
    ),
    row(
        "admin-30",
        "NVMe Base 2.2, 3.4.2.1",
        "with one of two fused commands the other is aborted, due to Failed Fused Command, and nothing is written",
        abort_of_a_pair,
    ),
    row("admin-24", "NVMe Base 2.2, 5.1.14", "Keep Alive succeeds", keep_alive),
    row(
        "admin-25",
        "NVMe Base 2.2, 3.1.3, figure 28",
        "queues are not made by admin commands, and unknown ones are Invalid Command Opcode, Do Not Retry",
        unknown_commands,
    ),
    row(
        "admin-26",
        "NVMe Base 2.2, 4.1.1, figure 91",
        "a fused admin command is Invalid Field",
        fused_admin_commands,
    ),
    row(
        "admin-31",
        "NVMe Base 2.2, 5.1.25.1.7",
        "a timestamp of 48 bits counts milliseconds, from the Connect on or from what a host has set, as bits 3:1 of byte 6 say",
        timestamp,
    ),
    row(
        "admin-27",
        "NVMe Base 2.2, 5.1.12.1.18",
        "the features log names the features there are, as the controller's, and no other",
        features_log,
    ),
];

fn log_page(page: u8, length: usize, offset: u64) -> Sqe {
    let dwords = (length / 4 - 1) as u32;
    let sqe = Sqe::new(0x02).nsid(u32::MAX).dword(40, u32::from(page) | dwords << 16);
    sqe.dword(44, dwords >> 16).qword(48, offset)
}

fn set_feature(feature: u8, value: u32) -> Sqe {
    Sqe::new(0x09).byte(40, feature).dword(44, value)
}

fn get_feature(feature: u8) -> Sqe {
    Sqe::new(0x0A).byte(40, feature)
}

fn admin() -> Queue {
    Queue::admin(&Target::new()).0
}

fn parts_of_log_pages() {
    let mut admin = admin();
    let whole = admin.fetch(log_page(0x05, 4096, 0), 4096);
    for (offset, length) in [(0, 4), (1024, 4), (4, 4092), (2048, 256)] {
        let part = admin.fetch(log_page(0x05, length, offset as u64), length);
        assert_eq!(part, whole[offset..offset + length]);
    }
    // More than 65,536 dwords take the upper half of NUMD.
    let long = admin.fetch(log_page(0x05, 0x5_0000, 1024), 0x5_0000);
    assert_eq!(long[..3072], whole[1024..]);
    assert!(long[3072..].iter().all(|&byte| byte == 0));
}

fn offsets_of_log_pages() {
    let mut admin = admin();
    for offset in [1, 2, 3, 516, 1 << 32, u64::MAX - 3] {
        let (response, _) = admin.read(log_page(0x02, 64, offset), 64);
        assert_eq!(response.status(), INVALID_FIELD, "offset {offset:#x}");
    }
}

fn unknown_log_pages() {
    let mut admin = admin();
    // Among them the discovery log.
    for page in [0x06, 0x0D, 0x70, 0xC0, 0xFF] {
        assert_eq!(admin.read(log_page(page, 64, 0), 64).0.status(), INVALID_LOG_PAGE, "page {page:#04x}");
    }
}

fn supported_log_pages() {
    let mut admin = admin();
    let list = admin.fetch(log_page(0x00, 1024, 0), 1024);
    for page in 0..=255u8 {
        let listed = le(&list, usize::from(page) * 4, 4) & 1 == 1;
        let (response, _) = admin.read(log_page(page, 4, 0), 4);
        assert_eq!(response.status() == (0, 0, false), listed, "page {page:#04x}");
    }
}

/// An Identify which the controller refuses.
fn unknown_structure() -> Sqe {
    Sqe::new(0x06).byte(40, 0xEE)
}

fn error_log() {
    let mut admin = admin();
    assert_eq!(admin.fetch(log_page(0x01, 64, 0), 64), [0; 64]);
    let cids = [7, 8].map(|nsid| {
        let (response, _) = admin.read(unknown_structure().nsid(nsid), 4096);
        assert_eq!(response.status(), INVALID_FIELD);
        response.cid()
    });
    let log = admin.fetch(log_page(0x01, 192, 0), 192);
    for (entry, count, cid, nsid) in [(0, 2, cids[1], 8), (64, 1, cids[0], 7)] {
        assert_eq!(le(&log, entry, 8), count);
        assert_eq!(le(&log, entry + 8, 2), 0, "SQID");
        assert_eq!(le(&log, entry + 10, 2), u64::from(cid));
        assert_eq!(le(&log, entry + 12, 2) >> 1 & 0x7FF, 0x02, "status");
        assert_eq!(le(&log, entry + 24, 4), nsid);
    }
    assert_eq!(log[128..], [0; 64]);
}

fn connects_are_not_logged() {
    let target = Target::new();
    let (mut admin, cntlid) = Queue::admin(&target);
    let other = connect_data([9; 16], cntlid, crate::target::OPEN, crate::queue::HOST);
    let response = Queue::dial_io(&target, cntlid, 1).write(crate::wire::connect(1, 15, 0), &other);
    assert_ne!(response.status(), (0, 0, false));
    let again = admin.write(crate::wire::connect(0, 31, 0), &fabrics::admin_data());
    assert_ne!(again.status(), (0, 0, false));
    assert_eq!(admin.fetch(log_page(0x01, 64, 0), 64), [0; 64]);
}

fn health_log() {
    let mut admin = admin();
    admin.read(unknown_structure(), 4096);
    let log = admin.fetch(log_page(0x02, 512, 0), 512);
    assert_eq!((log[0], log[3], log[5]), (0, 100, 0), "no warning, all spares, nothing worn");
    assert_eq!(le(&log, 176, 8), 1, "entries of the error log");
    let (response, _) = admin.read(log_page(0x02, 512, 0).nsid(99), 512);
    assert_ne!(response.status(), (0, 0, false), "of a namespace which is not there");
    admin.fetch(log_page(0x02, 512, 0).nsid(0), 512);
}

fn firmware_log() {
    let mut admin = admin();
    let log = admin.fetch(log_page(0x03, 512, 0), 512);
    let identify = admin.fetch(Sqe::new(6).byte(40, 1), 4096);
    assert_eq!(log[0], 1);
    assert_eq!(log[8..16], identify[64..72]);
}

fn changed_namespaces() {
    let target = Target::new();
    let (mut admin, _) = Queue::admin(&target);
    target.serve(2, &[1, 3]);
    target.serve(3, &[1, 3, 4]);
    let mut expected = [0; 4096];
    (expected[0], expected[4]) = (2, 4);
    let retained = admin.fetch(log_page(0x04, 4096, 0).byte(41, 0x80), 4096);
    assert_eq!(retained, expected);
    assert_eq!(admin.fetch(log_page(0x04, 4096, 0), 4096), expected);
    assert_eq!(admin.fetch(log_page(0x04, 4096, 0), 4096), [0; 4096]);
}

/// A controller whose host wants to know of namespaces, and has left a request.
fn with_events(target: &Target) -> (Queue, u16) {
    let (mut admin, _) = Queue::admin(target);
    admin.command(set_feature(EVENTS, 0x100)).succeeded();
    assert_eq!(admin.command(get_feature(EVENTS)).succeeded().result(), 0x100);
    let cid = admin.submit(Sqe::new(0x0C), &[]);
    (admin, cid)
}

fn namespace_event() {
    let target = Target::new();
    let (mut admin, cid) = with_events(&target);
    assert!(admin.poll(cid).is_none());
    target.serve(2, &[1, 2]);
    let response = admin.response_to(cid).succeeded();
    assert_eq!(response.result(), 0x0004_0002);
    assert_eq!(response.invalidated, None);
}

fn events_are_masked() {
    let target = Target::new();
    let (mut admin, cid) = with_events(&target);
    target.serve(2, &[1, 2]);
    admin.response_to(cid).succeeded();
    let cid = admin.submit(Sqe::new(0x0C), &[]);
    target.serve(3, &[1]);
    assert!(admin.poll(cid).is_none(), "not read yet");
    admin.fetch(log_page(0x04, 4096, 0).byte(41, 0x80), 4096);
    target.serve(4, &[1, 2]);
    assert!(admin.poll(cid).is_none(), "read, but retained");
    admin.fetch(log_page(0x04, 4096, 0), 4096);
    target.serve(5, &[1]);
    assert_eq!(admin.response_to(cid).succeeded().result(), 0x0004_0002);
}

fn unwanted_events() {
    let target = Target::new();
    let (mut admin, cid) = with_events(&target);
    admin.command(set_feature(EVENTS, 0)).succeeded();
    target.serve(2, &[1]);
    assert!(admin.poll(cid).is_none());
}

fn event_requests_have_a_limit() {
    let mut admin = admin();
    let limit = admin.fetch(Sqe::new(6).byte(40, 1), 4096)[259];
    for _ in 0..=limit {
        let cid = admin.submit(Sqe::new(0x0C), &[]);
        assert!(admin.poll(cid).is_none());
    }
    assert_eq!(admin.command(Sqe::new(0x0C)).status(), (1, 0x05, true));
}

fn number_of_queues() {
    let mut admin = admin();
    let most = u64::from(IO_QUEUES) - 1;
    for (asked, granted) in [(0x0000_0000, 0), (0x0001_0001, 1), (0x0002_0001, 1), (0x00FF_00FF, most)] {
        let response = admin.command(set_feature(NUMBER_OF_QUEUES, asked)).succeeded();
        assert_eq!(response.result(), granted | granted << 16, "{asked:#x}");
        assert_eq!(
            admin.command(get_feature(NUMBER_OF_QUEUES)).succeeded().result(),
            granted | granted << 16
        );
    }
}

fn too_many_queues() {
    let mut admin = admin();
    for asked in [0xFFFF, 0xFFFF_0000, u32::MAX] {
        assert_eq!(admin.command(set_feature(NUMBER_OF_QUEUES, asked)).status(), INVALID_FIELD);
    }
}

fn number_of_queues_is_set_first() {
    let (mut admin, _io) = Queue::both(&Target::new());
    assert_eq!(admin.command(set_feature(NUMBER_OF_QUEUES, 0)).status(), COMMAND_SEQUENCE);
}

fn keep_alive_feature() {
    let target = Target::new();
    let (mut admin, _) = Queue::connect_admin(&target, crate::target::OPEN, 15_000);
    admin.command(crate::wire::property_set(0x14, 0x0046_0001)).succeeded();
    assert_eq!(admin.command(get_feature(KEEP_ALIVE_TIMER)).succeeded().result(), 15_000);
    admin.command(set_feature(KEEP_ALIVE_TIMER, 60_000)).succeeded();
    assert_eq!(admin.command(get_feature(KEEP_ALIVE_TIMER)).succeeded().result(), 60_000);
}

fn host_identifier() {
    let mut admin = admin();
    assert_eq!(admin.fetch(get_feature(HOST_IDENTIFIER).dword(44, 1), 16), crate::queue::HOST_ID);
    let response = admin.command(set_feature(HOST_IDENTIFIER, 1));
    assert_eq!(response.status(), COMMAND_SEQUENCE);
}

fn timestamp() {
    let target = Target::new();
    let (mut admin, _) = Queue::admin(&target);
    target.wait(Duration::from_millis(300));
    let read = admin.fetch(get_feature(TIMESTAMP), 8);
    assert_eq!((le(&read, 0, 6), read[6], read[7]), (300, 0, 0));
    admin.write(set_feature(TIMESTAMP, 0), &0xFF12_3456_789A_BCDEu64.to_le_bytes()).succeeded();
    target.wait(Duration::from_millis(200));
    let read = admin.fetch(get_feature(TIMESTAMP), 8);
    assert_eq!((le(&read, 0, 6), read[6], read[7]), (0x3456_789A_BCDE + 200, 0b010, 0));
}

fn write_cache_feature() {
    let mut admin = admin();
    assert_eq!(admin.command(get_feature(0x06)).succeeded().result(), 1);
    admin.command(set_feature(0x06, 1)).succeeded();
    assert_eq!(admin.command(set_feature(0x06, 0)).status(), (1, 0x0E, true));
    assert_eq!(admin.command(get_feature(0x06)).succeeded().result(), 1);
}

fn unknown_features() {
    let mut admin = admin();
    for feature in [0x00, 0x03, 0x0C, 0x1F, 0x78, 0xC0, 0xFF] {
        for sqe in [set_feature(feature, 0), get_feature(feature)] {
            assert_eq!(admin.command(sqe).status(), INVALID_FIELD, "feature {feature:#04x}");
        }
    }
}

fn features_are_not_saved() {
    let sqe = set_feature(EVENTS, 0x100).byte(43, 0x80);
    assert_eq!(admin().command(sqe).status(), (1, 0x0D, true));
}

fn abort_of_nothing() {
    let (mut admin, _io) = Queue::both(&Target::new());
    for (sqid, cid) in [(0, 0x1234), (1, 0x1234), (77, 1)] {
        let sqe = Sqe::new(0x08).word(40, sqid).word(42, cid);
        assert_eq!(admin.command(sqe).succeeded().result(), 1);
    }
}

fn abort() {
    let target = Target::new();
    let (mut admin, mut io) = Queue::both(&target);
    // With this many outstanding Reads a further write can only wait.
    io.holds_reads = true;
    let writes = [(); 12].map(|()| {
        let at = io.expose(vec![0; 512]);
        io.submit(Sqe::new(1).nsid(1).sgl(keyed_sgl(at, 512, 0x4F)), &[])
    });
    let waiting = writes[11];
    let response = admin.command(Sqe::new(0x08).word(40, 1).word(42, waiting)).succeeded();
    assert_eq!(response.result(), 0);
    let (kind, code, _) = io.response_to(waiting).status();
    assert_eq!((kind, code), (0, 0x07));
}

fn abort_of(sqid: u16, cid: u16) -> Sqe {
    Sqe::new(0x08).word(40, sqid).word(42, cid)
}

fn abort_under_way() {
    let target = Target::new();
    let (mut admin, mut io) = Queue::both(&target);
    io.holds_reads = true;
    let at = io.expose(vec![7; 512]);
    let write = io.submit(Sqe::new(1).nsid(1).sgl(keyed_sgl(at, 512, 0x4F)), &[]);
    io.turn();
    let abort = admin.submit(abort_of(1, write), &[]);
    assert!(admin.poll(abort).is_none(), "nobody can say yet");
    for segment in std::mem::take(&mut io.held_reads) {
        io.answer_read(&segment);
    }
    let (kind, code, _) = io.response_to(write).status();
    assert_eq!((kind, code), (0, 0x07));
    assert_eq!(admin.response_to(abort).succeeded().result(), 0);

    target.stall(true);
    let flush = io.submit(Sqe::new(0).nsid(1), &[]);
    io.turn();
    assert_eq!(admin.command(abort_of(1, flush)).succeeded().result(), 0);
    let (kind, code, _) = io.response_to(flush).status();
    assert_eq!((kind, code), (0, 0x07));
    target.stall(false);
    assert_eq!(io.read(Sqe::new(2).nsid(1), 512).1, [0; 512], "nothing was written");
}

fn abort_of_what_does_not_end() {
    let target = Target::new();
    let (mut admin, mut io) = Queue::both(&target);
    target.cancels(false);
    target.stall(true);
    let flush = io.submit(Sqe::new(0).nsid(1), &[]);
    io.turn();
    let abort = admin.submit(abort_of(1, flush), &[]);
    assert!(admin.poll(abort).is_none());
    target.wait(Duration::from_secs(2));
    assert_eq!(admin.response_to(abort).succeeded().result(), 1);
    target.stall(false);
    io.response_to(flush).succeeded();
}

fn abort_of_a_pair() {
    let target = Target::new();
    let (mut admin, mut io) = Queue::both(&target);
    let mut send = |fuse: u8, opcode: u8, byte: u8| {
        let at = io.expose(vec![byte; 512]);
        io.submit(Sqe::new(opcode).nsid(1).byte(1, 0x40 | fuse).sgl(keyed_sgl(at, 512, 0x4F)), &[])
    };
    target.stall(true);
    let pair = [send(1, 5, 0), send(2, 1, 7)];
    // The second has come when the first is aborted; of another pair it has not.
    let single = send(1, 5, 0);
    io.turn();
    for (aborted, other) in [(pair[1], Some(pair[0])), (single, None)] {
        assert_eq!(admin.command(abort_of(1, aborted)).succeeded().result(), 0);
        let (kind, code, _) = io.response_to(aborted).status();
        assert_eq!((kind, code), (0, 0x07));
        if let Some(other) = other {
            let (kind, code, _) = io.response_to(other).status();
            assert_eq!((kind, code), (0, 0x09));
        }
    }
    target.stall(false);
    assert_eq!(io.read(Sqe::new(2).nsid(1), 512).1, [0; 512], "nothing was written");
}

fn keep_alive() {
    assert_eq!(admin().command(Sqe::new(0x18)).succeeded().result(), 0);
}

fn unknown_commands() {
    let mut admin = admin();
    // Create and delete queues, namespace management, firmware, format, security, sanitize, the vendor's.
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x0D, 0x10, 0x11, 0x15, 0x19, 0x1A, 0x80, 0x81, 0x82, 0x84, 0xC0] {
        assert_eq!(admin.command(Sqe::new(opcode)).status(), INVALID_OPCODE, "{opcode:#04x}");
    }
}

fn fused_admin_commands() {
    assert_eq!(admin().command(Sqe::new(0x18).byte(1, 0x41)).status(), INVALID_FIELD);
}

fn features_log() {
    let mut admin = admin();
    let log = admin.fetch(log_page(0x12, 1024, 0), 1024);
    for feature in 0..=255u8 {
        let word = le(&log, usize::from(feature) * 4, 4);
        let there = if feature == HOST_IDENTIFIER {
            admin.read(get_feature(feature).dword(44, 1), 16).0.status()
        } else if feature == TIMESTAMP {
            admin.read(get_feature(feature), 8).0.status()
        } else {
            admin.command(get_feature(feature).nsid(1)).status()
        } == (0, 0, false);
        let scope = if matches!(feature, 0x82..=0x84) { 1 << 20 } else { 1 << 21 };
        assert_eq!(word, if there { scope | 1 } else { 0 }, "feature {feature:#04x}");
    }
}
