//! Namespace write protection, and the controllers which lists and reports name.
use crate::queue::{HOST, Queue, SUCCESS, Status};
use crate::target::{OPEN, Target};
use crate::wire::{Sqe, capsule_sgl, connect, connect_data, keyed_sgl, le, property_set};
use crate::{Requirement, row};

const INVALID_FIELD: Status = (0, 0x02, true);
const INVALID_NAMESPACE: Status = (0, 0x0B, true);
const PROTECTED: Status = (0, 0x20, true);
const NOT_CHANGEABLE: Status = (1, 0x0E, true);
const NOT_SAVEABLE: Status = (1, 0x0D, true);
const SECTION: &str = "NVMe Base 2.2, 8.1.16.2, figure 624";

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "protection-1",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313 (NWPC)",
        "NWPC at byte 531 offers the first two states; the log of features has 84h",
        offered,
    ),
    row(
        "protection-2",
        SECTION,
        "a protected namespace takes no Write, Write Zeroes, Dataset Management, Copy or pair: Namespace is Write Protected",
        writes_are_refused,
    ),
    row(
        "protection-3",
        SECTION,
        "Read, Compare, Verify, Flush and reservation commands of it go on, and other namespaces too",
        the_rest_goes_on,
    ),
    row(
        "protection-4",
        "NVMe Base 2.2, 5.1.25.1.31",
        "Get Features tells the state; NSATTR bit 0 of both structures says so, until it is no more",
        told_and_taken_back,
    ),
    row(
        "protection-5",
        "NVMe Base 2.2, 5.1.25.1.31",
        "to protect until the next power cycle or for ever, which an RPMB would have to allow, is Feature Not Changeable",
        final_states,
    ),
    row(
        "protection-6",
        "NVMe Base 2.2, 5.1.25.1.31",
        "a reserved state is Invalid Field, a namespace which is none or all is Invalid Namespace, SV not saveable",
        wrong_commands,
    ),
    row(
        "protection-7",
        "NVMe Base 2.2, 5.1.2 (Namespace Attribute Changed)",
        "every host with the namespace is told of the change, and reads its number",
        hosts_are_told,
    ),
    row(
        "protection-8",
        SECTION,
        "it is answered once writes at the medium have ended and the medium was flushed; what waits is refused whole",
        waits_for_writes_and_a_flush,
    ),
    row(
        "protection-9",
        "NVMe Base 2.2, 5.1.13, CNS 12h and 13h",
        "lists of controllers have all from CNTID on: of the subsystem, or of those which see a namespace",
        controllers_are_listed,
    ),
    row(
        "protection-10",
        "NVMe Base 2.2, 5.1.13, CNS 10h, 11h, 1Ah and 1Bh",
        "allocated namespaces are those which are active",
        allocated_namespaces,
    ),
    row(
        "protection-11",
        "NVMe Base 2.2, 7.8, figure 583 (CNTLID)",
        "a report of reservations names a controller of each registrant, and FFFFh for one without",
        controllers_are_reported,
    ),
];

fn host(target: &Target, name: &str, id: u8) -> (Queue, Queue, u16) {
    let mut admin = Queue::dial_admin(target);
    let data = connect_data([id; 16], 0xFFFF, OPEN, name);
    let cntlid = admin.write(connect(0, 31, 0), &data).succeeded().result() as u16;
    admin.command(property_set(0x14, 0x0046_0001)).succeeded();
    let mut io = Queue::dial_io(target, cntlid, 1);
    io.write(connect(1, 15, 0), &connect_data([id; 16], cntlid, OPEN, name)).succeeded();
    (admin, io, cntlid)
}

fn set(nsid: u32, state: u32) -> Sqe {
    Sqe::new(0x09).nsid(nsid).dword(40, 0x84).dword(44, state)
}

fn get(admin: &mut Queue, nsid: u32) -> u64 {
    admin.command(Sqe::new(0x0A).nsid(nsid).dword(40, 0x84)).succeeded().result()
}

fn identify(admin: &mut Queue, cns: u32, nsid: u32) -> Vec<u8> {
    admin.fetch(Sqe::new(0x06).nsid(nsid).dword(40, cns), 4096)
}

/// NSATTR of both structures.
fn attributes(admin: &mut Queue, nsid: u32) -> (u8, u8) {
    (identify(admin, 0, nsid)[99], identify(admin, 8, nsid)[8])
}

fn write(io: &mut Queue) -> Status {
    io.write(Sqe::new(0x01).nsid(1), &[7; 512]).status()
}

fn offered() {
    let target = Target::new();
    let (mut admin, _) = Queue::admin(&target);
    assert_eq!(identify(&mut admin, 1, 0)[531], 1);
    let features = |admin: &mut Queue| admin.fetch(Sqe::new(0x02).dword(40, 0x12 | 255 << 16), 1024);
    assert_eq!(le(&features(&mut admin), 4 * 0x84, 4) & 1, 1);
    target.share(2, 0x200..=0x2FF);
    assert_eq!((identify(&mut admin, 1, 0)[531], le(&features(&mut admin), 4 * 0x84, 4)), (0, 0));
    assert_eq!(admin.command(set(1, 1)).status(), INVALID_FIELD, "another target would not know");
}

fn writes_are_refused() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    admin.command(set(1, 1)).succeeded();
    assert_eq!(write(&mut io), PROTECTED);
    assert_eq!(io.write_in_capsule(Sqe::new(0x01).nsid(1), &[7; 512]).status(), PROTECTED);
    assert_eq!(io.command(Sqe::new(0x08).nsid(1)).status(), PROTECTED);
    let range = [&[0; 4][..], &1u32.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(io.write(Sqe::new(0x09).nsid(1).dword(44, 4), &range).status(), PROTECTED);
    assert_eq!(io.write(Sqe::new(0x09).nsid(1), &range).status(), SUCCESS, "a hint modifies nothing");
    let source = [0; 32];
    assert_eq!(io.write(Sqe::new(0x19).nsid(1).qword(40, 9), &source).status(), PROTECTED);
    let first = io.submit(Sqe::new(0x05).byte(1, 0x41).nsid(1).sgl(capsule_sgl(0, 512)), &[0; 512]);
    let second = io.submit(Sqe::new(0x01).byte(1, 0x42).nsid(1).sgl(capsule_sgl(0, 512)), &[7; 512]);
    assert!(io.response_to(first).status() != SUCCESS);
    assert_eq!(io.response_to(second).status(), PROTECTED);
    assert_eq!(io.fetch(Sqe::new(0x02).nsid(1), 512), [0; 512], "nothing was written");
}

fn the_rest_goes_on() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    admin.command(set(1, 1)).succeeded();
    assert_eq!(io.write(Sqe::new(0x05).nsid(1), &[0; 512]).status(), SUCCESS);
    for opcode in [0x00, 0x0C] {
        assert_eq!(io.command(Sqe::new(opcode).nsid(1)).status(), SUCCESS, "{opcode:#x}");
    }
    let keys = [[0; 8], 5u64.to_le_bytes()].concat();
    assert_eq!(io.write(Sqe::new(0x0D).nsid(1), &keys).status(), SUCCESS);
    assert_eq!(io.write(Sqe::new(0x01).nsid(2), &[7; 4096]).status(), SUCCESS);
}

fn told_and_taken_back() {
    let target = Target::new();
    let (mut admin, mut io) = Queue::both(&target);
    assert_eq!((get(&mut admin, 1), attributes(&mut admin, 1)), (0, (0, 0)));
    admin.command(set(1, 1)).succeeded();
    assert_eq!((get(&mut admin, 1), attributes(&mut admin, 1)), (1, (1, 1)));
    let (mut late, _) = Queue::admin(&target);
    assert_eq!((get(&mut late, 1), attributes(&mut late, 1)), (1, (1, 1)), "a controller which came later");
    admin.command(set(1, 0)).succeeded();
    assert_eq!((get(&mut late, 1), attributes(&mut late, 1)), (0, (0, 0)));
    assert_eq!(write(&mut io), SUCCESS);
    assert_eq!((get(&mut admin, 3), attributes(&mut admin, 3)), (0, (1, 1)), "read-only by its medium");
}

fn final_states() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    for state in [2, 3] {
        assert_eq!(admin.command(set(1, state)).status(), NOT_CHANGEABLE);
    }
    assert_eq!((get(&mut admin, 1), write(&mut io)), (0, SUCCESS));
}

fn wrong_commands() {
    let (mut admin, _) = Queue::admin(&Target::new());
    for state in 4..8 {
        assert_eq!(admin.command(set(1, state)).status(), INVALID_FIELD);
    }
    for nsid in [0, 9, 5000, u32::MAX] {
        assert_eq!(admin.command(set(nsid, 1)).status(), INVALID_NAMESPACE, "{nsid:#x}");
        let get = Sqe::new(0x0A).nsid(nsid).dword(40, 0x84);
        assert_eq!(admin.command(get).status(), INVALID_NAMESPACE, "{nsid:#x}");
    }
    let saved = Sqe::new(0x09).nsid(1).dword(40, 0x84 | 1 << 31).dword(44, 1);
    assert_eq!(admin.command(saved).status(), NOT_SAVEABLE);
    assert_eq!(get(&mut admin, 1), 0);
}

fn hosts_are_told() {
    let target = Target::new();
    let mut admins = [1, 2].map(|id| host(&target, HOST, id));
    let requests = admins.each_mut().map(|(admin, ..)| {
        admin.command(Sqe::new(0x09).dword(40, 0x0B).dword(44, 1 << 8)).succeeded();
        admin.submit(Sqe::new(0x0C), &[])
    });
    admins[0].0.command(set(1, 1)).succeeded();
    for ((admin, ..), request) in admins.iter_mut().zip(requests) {
        assert_eq!(admin.response_to(request).succeeded().result(), 0x0004_0002);
        let page = admin.fetch(Sqe::new(0x02).nsid(u32::MAX).dword(40, 0x04 | 1023 << 16), 4096);
        assert_eq!((le(&page, 0, 4), le(&page, 4, 4)), (1, 0));
        let request = admin.submit(Sqe::new(0x0C), &[]);
        admin.command(set(1, 1)).succeeded();
        assert!(admin.poll(request).is_none(), "nothing has changed");
    }
}

fn waits_for_writes_and_a_flush() {
    let target = Target::new();
    let (mut admin, mut io) = Queue::both(&target);
    target.stall(true);
    let begun = io.submit(Sqe::new(0x01).nsid(1).sgl(capsule_sgl(0, 512)), &[7; 512]);
    io.holds_reads = true;
    let at = io.expose(vec![9; 8192]);
    let waiting =
        io.submit(Sqe::new(0x01).nsid(1).qword(40, 8).dword(48, 15).sgl(keyed_sgl(at, 8192, 0x4F)), &[]);
    io.turn();
    let flushes = target.flushes();
    let protect = admin.submit(set(1, 1), &[]);
    assert!(admin.poll(protect).is_none() && io.poll(begun).is_none(), "a write is at the medium");
    io.holds_reads = false;
    for segment in std::mem::take(&mut io.held_reads) {
        io.answer_read(&segment);
    }
    assert_eq!(io.response_to(waiting).status(), PROTECTED);
    assert_eq!(target.flushes(), flushes);
    target.stall(false);
    assert_eq!(admin.response_to(protect).status(), SUCCESS);
    assert_eq!((io.response_to(begun).status(), target.flushes()), (SUCCESS, flushes + 1));
    admin.command(set(1, 0)).succeeded();
    assert_eq!(target.flushes(), flushes + 1, "to take it back needs none");
    assert_eq!(io.fetch(Sqe::new(0x02).nsid(1).qword(40, 8).dword(48, 15), 8192), [0; 8192]);
}

fn controllers_are_listed() {
    const OTHER: &str = "nqn.2014-08.org.example:other";
    let target = Target::new();
    target.show_to(2, 2, OTHER);
    let (mut admin, _io, first) = host(&target, HOST, 1);
    let (mut other, _others_io, second) = host(&target, OTHER, 2);
    let list = |admin: &mut Queue, cns: u32, nsid: u32, from: u16| {
        let page = admin.fetch(Sqe::new(0x06).nsid(nsid).dword(40, cns | u32::from(from) << 16), 4096);
        let count = le(&page, 0, 2) as usize;
        assert!(page[2 + 2 * count..].iter().all(|&byte| byte == 0));
        (1..=count).map(|at| le(&page, 2 * at, 2) as u16).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut admin, 0x13, 0, 0), [first, second]);
    assert_eq!(list(&mut admin, 0x13, 0, second), [second]);
    assert_eq!(list(&mut admin, 0x13, 0, second + 1), [0u16; 0]);
    assert_eq!(list(&mut admin, 0x12, 1, 0), [first, second]);
    assert_eq!(list(&mut other, 0x12, 2, 0), [second], "it alone sees it");
    for (nsid, status) in [(2, INVALID_NAMESPACE), (0, INVALID_NAMESPACE), (u32::MAX, INVALID_FIELD)] {
        let of = Sqe::new(0x06).nsid(nsid).dword(40, 0x12);
        assert_eq!(admin.read(of, 4096).0.status(), status, "{nsid:#x}");
    }
    other.peer.end();
    target.run();
    assert_eq!(list(&mut admin, 0x13, 0, 0), [first]);
}

fn allocated_namespaces() {
    let (mut admin, _) = Queue::admin(&Target::new());
    for (allocated, active) in [(0x10, 0x02), (0x1A, 0x07), (0x11, 0x00), (0x1B, 0x05)] {
        let nsid = if [0x00, 0x05].contains(&active) { 1 } else { 0 };
        assert_eq!(
            identify(&mut admin, allocated, nsid),
            identify(&mut admin, active, nsid),
            "{allocated:#x}"
        );
    }
    assert_eq!(identify(&mut admin, 0x11, 9), [0; 4096]);
    assert_eq!(admin.read(Sqe::new(0x06).nsid(5000).dword(40, 0x11), 4096).0.status(), INVALID_NAMESPACE);
}

fn controllers_are_reported() {
    let target = Target::new();
    let [(_a, mut a_io, first), (_b, _b_io, _)] = [1, 1].map(|id| host(&target, HOST, id));
    let (gone, mut gone_io, _) = host(&target, HOST, 2);
    let keys = [[0; 8], 5u64.to_le_bytes()].concat();
    assert_eq!(a_io.write(Sqe::new(0x0D).nsid(1), &keys).status(), SUCCESS);
    assert_eq!(gone_io.write(Sqe::new(0x0D).nsid(1), &keys).status(), SUCCESS);
    for queue in [&gone, &gone_io] {
        queue.peer.end();
    }
    target.run();
    let report = a_io.fetch(Sqe::new(0x0E).nsid(1).dword(40, 63).dword(44, 1), 256);
    assert_eq!(le(&report, 5, 2), 2, "a host with two controllers is one registrant");
    let entry = |at: usize| (le(&report, at, 2) as u16, report[at + 16]);
    assert_eq!([64, 128].map(entry), [(first, 1), (0xFFFF, 2)]);
}
