//! The discovery controller and its log page.
use crate::queue::{HOST_ID, Queue, Status};
use crate::target::{FRIEND, OPEN, PRIVATE, Target};
use crate::wire::{Sqe, connect, connect_data, le, name, property_set};
use crate::{Requirement, row};

const INVALID_FIELD: Status = (0, 0x02, true);
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "discovery-1",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313",
        "a discovery controller says so by CNTRLTYPE 2 and by its name, and has keyed SGLs",
        identify_controller,
    ),
    row(
        "discovery-2",
        "NVMe Base 2.2, 5.1.12.3.1",
        "the header of 1024 bytes is GENCTR, NUMREC and RECFMT 0, and nothing else",
        header,
    ),
    row(
        "discovery-3",
        "NVMe Base 2.2, 5.1.12.3.1, figure 295",
        "an entry of 1024 bytes has each field in its place, unused ones zero",
        entry,
    ),
    row(
        "discovery-4",
        "NVMe Base 2.2, 5.1.12.3.1",
        "the current discovery subsystem comes first, by subtype 3",
        itself,
    ),
    row(
        "discovery-5",
        "NVMe RDMA 1.0, 3.1, figure 3",
        "TSAS is a reliable connection, the provider iWARP, by RDMA_CM",
        transport_specific_address,
    ),
    row(
        "discovery-6",
        "NVMe RDMA 1.0, 3.1",
        "TRSVCID is the port in decimal without leading zeros, TRADDR an address, both filled with zeros",
        address,
    ),
    row(
        "discovery-7",
        "NVMe Base 2.2, 5.1.12.3.1",
        "a host sees the subsystems it may have, and no other",
        only_what_is_allowed,
    ),
    row(
        "discovery-8",
        "NVMe Base 2.2, 5.1.12.3.1 (GENCTR)",
        "GENCTR grows when what is served changes, and not by reading",
        generation_counter,
    ),
    row(
        "discovery-9",
        "NVMe Base 2.2, 5.1.12",
        "the log can be read in any parts, as libnvme does: 20 bytes, then pieces of 4096",
        parts,
    ),
    row(
        "discovery-10",
        "NVMe Base 2.2, 5.1.2, figure 152",
        "a change is a notice (2h), information F0h, log page 70h: result 0070F002h, to who asked for it",
        event,
    ),
    row(
        "discovery-11",
        "NVMe Base 2.2, 3.1.3.3",
        "other structures, features and pages are refused",
        nothing_else,
    ),
    row("discovery-12", "NVMe Base 2.2, 3.1.3", "Keep Alive and its timeout are there", keep_alive),
    row(
        "discovery-13",
        "NVMe Base 2.2, 3.1.3, figure 31",
        "the pages which revision 2.0 asks for are there: supported pages, effects, features",
        mandatory_log_pages,
    ),
];

fn discovery(target: &Target, host: &str) -> Queue {
    let mut queue = Queue::dial_admin(target);
    queue.write(connect(0, 31, 0), &connect_data(HOST_ID, 0xFFFF, DISCOVERY, host)).succeeded();
    queue.command(property_set(0x14, 0x0046_0001)).succeeded();
    queue
}

fn log_page(length: usize, offset: u64) -> Sqe {
    Sqe::new(0x02).byte(40, 0x70).word(42, (length / 4 - 1) as u16).qword(48, offset)
}

/// The header and the entries.
fn log(queue: &mut Queue) -> (Vec<u8>, Vec<Vec<u8>>) {
    let header = queue.fetch(log_page(1024, 0), 1024);
    let count = le(&header, 8, 8);
    let entries = (1..=count).map(|index| queue.fetch(log_page(1024, index * 1024), 1024)).collect();
    (header, entries)
}

fn of_stranger() -> Vec<Vec<u8>> {
    log(&mut discovery(&Target::new(), crate::queue::HOST)).1
}

fn identify_controller() {
    let mut queue = discovery(&Target::new(), FRIEND);
    let data = queue.fetch(Sqe::new(6).byte(40, 1), 4096);
    assert_eq!(data[111], 2);
    assert_eq!(data[768..1024], name(DISCOVERY));
    assert_eq!(le(&data, 536, 4) >> 2 & 1, 1);
    assert_eq!(le(&data, 92, 4), 1 << 31, "OAES");
    assert_eq!((data[261] >> 2 & 1, data[512], data[513]), (1, 0x66, 0x44), "LPA: offsets");
}

fn header() {
    let (header, entries) = log(&mut discovery(&Target::new(), FRIEND));
    assert_eq!((le(&header, 0, 8), le(&header, 8, 8), le(&header, 16, 2)), (1, 3, 0));
    assert_eq!((header[18..].iter().all(|&byte| byte == 0), entries.len()), (true, 3));
}

fn entry() {
    let entries = of_stranger();
    let entry = &entries[1];
    assert_eq!(entry[..12], [1, 1, 2, 0b100, 1, 0, 0xFF, 0xFF, 32, 0, 0, 0]);
    assert_eq!((&entry[12..32], &entry[64..256]), (&[0; 20][..], &[0; 192][..]));
    assert_eq!(entry[256..512], name(OPEN));
    assert!(entry[778..].iter().all(|&byte| byte == 0));
}

fn itself() {
    let first = &of_stranger()[0];
    assert_eq!((first[0], first[2]), (1, 3));
    assert_eq!(first[256..512], name(DISCOVERY));
}

fn transport_specific_address() {
    for entry in of_stranger() {
        assert_eq!(entry[768..778], [1, 5, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}

fn address() {
    let mut service = [0; 32];
    service[..4].copy_from_slice(b"4420");
    for entry in of_stranger() {
        assert_eq!(entry[32..64], service);
        assert_eq!(entry[512..768], name("192.0.2.1"));
    }
}

fn only_what_is_allowed() {
    let names = |host| -> Vec<[u8; 256]> {
        let entries = log(&mut discovery(&Target::new(), host)).1;
        entries.iter().map(|entry| entry[256..512].try_into().expect("a field")).collect()
    };
    assert_eq!(names(crate::queue::HOST), [name(DISCOVERY), name(OPEN)]);
    assert_eq!(names(FRIEND), [name(DISCOVERY), name(OPEN), name(PRIVATE)]);
}

fn generation_counter() {
    let target = Target::new();
    let mut queue = discovery(&target, FRIEND);
    let generation = |queue: &mut Queue| le(&queue.fetch(log_page(20, 0), 20), 0, 8);
    let first = generation(&mut queue);
    assert_eq!(generation(&mut queue), first);
    target.serve(2, &[1]);
    assert!(generation(&mut queue) > first);
}

fn parts() {
    let mut queue = discovery(&Target::new(), FRIEND);
    let (header, entries) = log(&mut queue);
    assert_eq!(queue.fetch(log_page(20, 0), 20), header[..20]);
    let mut piece = entries.concat();
    piece.resize(4096, 0);
    assert_eq!(queue.fetch(log_page(4096, 1024), 4096), piece);
    assert_eq!(queue.fetch(log_page(16, 0), 16), header[..16]);
    let (response, _) = queue.read(log_page(4, 4100), 4);
    assert_eq!(response.status(), INVALID_FIELD, "behind the end");
}

fn event() {
    let target = Target::new();
    for (wanted, told) in [(1 << 31, true), (0, false)] {
        let mut queue = discovery(&target, FRIEND);
        queue.command(Sqe::new(9).byte(40, 0x0B).dword(44, wanted)).succeeded();
        let cid = queue.submit(Sqe::new(0x0C), &[]);
        target.serve_open_alone();
        assert_eq!(
            queue.poll(cid).map(|response| response.succeeded().result()),
            told.then_some(0x0070_F002)
        );
        target.serve(1, &[1, 2, 3]);
    }
}

fn nothing_else() {
    let mut queue = discovery(&Target::new(), FRIEND);
    for cns in [0, 2, 3, 6, 8, 0x1C] {
        assert_eq!(queue.read(Sqe::new(6).nsid(1).byte(40, cns), 4096).0.status(), INVALID_FIELD);
    }
    for feature in [0x06, 0x07, 0x81] {
        assert_eq!(queue.command(Sqe::new(9).byte(40, feature)).status(), INVALID_FIELD);
    }
    for page in [0x01, 0x02, 0x03, 0x04] {
        let (response, _) = queue.read(log_page(64, 0).byte(40, page), 64);
        assert_ne!(response.status(), (0, 0, false));
    }
}

fn keep_alive() {
    let mut queue = discovery(&Target::new(), FRIEND);
    queue.command(Sqe::new(0x18)).succeeded();
    queue.command(Sqe::new(9).byte(40, 0x0F).dword(44, 30_000)).succeeded();
    assert_eq!(queue.command(Sqe::new(0x0A).byte(40, 0x0F)).succeeded().result(), 30_000);
}

fn mandatory_log_pages() {
    let mut queue = discovery(&Target::new(), FRIEND);
    let page = |queue: &mut Queue, page| queue.fetch(log_page(1024, 0).byte(40, page), 1024);
    let listed =
        |list: &[u8]| (0..256).filter(|index| le(list, index * 4, 4) & 1 == 1).collect::<Vec<usize>>();
    assert_eq!(listed(&page(&mut queue, 0x00)), [0x00, 0x05, 0x12, 0x70]);
    assert_eq!(listed(&page(&mut queue, 0x12)), [0x0B, 0x0F]);
    let admin = listed(&page(&mut queue, 0x05));
    assert!([0x02, 0x06, 0x09, 0x0A, 0x0C, 0x18].iter().all(|opcode| admin.contains(opcode)));
    assert_eq!(queue.fetch(log_page(1024, 1024).byte(40, 0x05), 1024), [0; 1024], "no I/O commands");
}
