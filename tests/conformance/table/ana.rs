//! Asymmetric namespace access: what is offered, the log page, the event, and what happens to commands whose way ends.
use crate::queue::{HOST, HOST_ID, Queue, SUCCESS, Status};
use crate::target::{OPEN, Target};
use crate::wire::{Sqe, connect, connect_data, le};
use crate::{Requirement, row};

const PERSISTENT_LOSS: Status = (3, 0x01, false);
const INACCESSIBLE: Status = (3, 0x02, false);
const TRANSITION: Status = (3, 0x03, false);
const INVALID_OPCODE: Status = (0, 0x01, true);
const INVALID_FIELD: Status = (0, 0x02, true);
const SECTION: &str = "NVMe Base 2.2, Asymmetric Namespace Access Reporting";
const LOG: &str = "NVMe Base 2.2, Get Log Page, Asymmetric Namespace Access";

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "ana-1",
        "NVMe Base 2.2, Identify Controller",
        "CMIC bit 3, ANACAP of all five states, ANATT, ANAGRPMAX and NANAGRPID offer the reporting; OAES bit 11 the event",
        offered,
    ),
    row(
        "ana-2",
        "NVMe Base 2.2, Identify Namespace",
        "ANAGRPID is in both structures of a namespace; NUSE is 0 where its group is not accessible",
        groups_of_namespaces,
    ),
    row(
        "ana-3",
        LOG,
        "the log has CHGCNT and NGRPS, then of each group with namespaces its number, NSIDs and state, ascending",
        log_page,
    ),
    row("ana-4", LOG, "with RGO set groups have no NSIDs, and say that there are none", groups_only),
    row(
        "ana-5",
        LOG,
        "the log says the new state, and CHGCNT another count, as soon as the event tells of it",
        log_after_change,
    ),
    row(
        "ana-6",
        "NVMe Base 2.2, Asynchronous Event Request",
        "a change is a notice (2h), information 03h, log page 0Ch: once, until the log is read without RAE",
        event,
    ),
    row(
        "ana-7",
        "NVMe Base 2.2, Set Features, Asynchronous Event Configuration",
        "a host which did not ask for the event is not told",
        masked_event,
    ),
    row(
        "ana-8",
        SECTION,
        "I/O commands of a group inaccessible, lost or in change get the path related status of that, to be tried again",
        refused,
    ),
    row("ana-9", SECTION, "other groups are served meanwhile, non-optimized ones too", others_are_served),
    row(
        "ana-10",
        SECTION,
        "a command at its medium when its way ends is finished whole; one which waits for its data is refused whole",
        whole_or_not_at_all,
    ),
    row(
        "ana-11",
        "NVMe Base 2.2, Identify Controller, CNTLID",
        "controllers of a subsystem which another target serves too have identifiers of the part given to this one",
        identifiers,
    ),
    row(
        "ana-12",
        "NVMe Base 2.2, Identify Controller, ONCS and FUSES",
        "such a subsystem has no reservations and no fused commands, and does not offer them",
        what_is_not_shared,
    ),
];

fn identify(admin: &mut Queue, cns: u32, nsid: u32) -> Vec<u8> {
    admin.fetch(Sqe::new(0x06).nsid(nsid).dword(40, cns), 4096)
}

/// The access log; `specific` is LSP.
fn log(admin: &mut Queue, specific: u32, retain: bool) -> Vec<u8> {
    let dwords = 256 / 4 - 1;
    let sqe = Sqe::new(0x02).nsid(u32::MAX);
    admin.fetch(sqe.dword(40, 0x0C | specific << 8 | u32::from(retain) << 15 | dwords << 16), 256)
}

fn read_one(io: &mut Queue, nsid: u32) -> Status {
    let length = if nsid == 2 { 4096 } else { 512 };
    io.read(Sqe::new(0x02).nsid(nsid), length).0.status()
}

fn offered() {
    let (mut admin, _) = Queue::admin(&Target::new());
    let data = identify(&mut admin, 1, 0);
    assert_eq!((data[76] & 8, data[343] & 0x1F), (8, 0x1F));
    assert!(data[342] > 0 && le(&data, 92, 4) & 1 << 11 != 0);
    let (most, count) = (le(&data, 344, 4), le(&data, 348, 4));
    assert!(count >= 2 && most >= count);
    // A Linux host reads the whole log at once.
    assert!(16 + count * 32 + le(&data, 540, 4) * 4 <= 4096 << data[77]);
}

fn groups_of_namespaces() {
    let target = Target::new();
    let (mut admin, _) = Queue::admin(&target);
    for (nsid, group) in [(1, 1), (2, 1), (3, 2)] {
        let data = identify(&mut admin, 0, nsid);
        assert_eq!((le(&data, 92, 4), le(&data, 16, 8)), (group, le(&data, 0, 8)));
        assert_eq!(le(&identify(&mut admin, 8, nsid), 4, 4), group);
    }
    target.set_access(2, &[(2, 3)]);
    assert_eq!(le(&identify(&mut admin, 0, 3), 16, 8), 0);
    assert_ne!(le(&identify(&mut admin, 0, 3), 0, 8), 0, "NSZE stays");
}

fn log_page() {
    let target = Target::new();
    target.set_access(2, &[(2, 2)]);
    let (mut admin, _) = Queue::admin(&target);
    let page = log(&mut admin, 0, false);
    assert_eq!((le(&page, 0, 8), le(&page, 8, 2)), (0, 2));
    let group = |at: usize| [0, 4].map(|field| le(&page, at + field, 4));
    assert_eq!((group(16), page[32]), ([1, 2], 1));
    assert_eq!([48, 52].map(|at| le(&page, at, 4)), [1, 2]);
    assert_eq!((group(56), page[72], le(&page, 88, 4)), ([2, 1], 2, 3));
    assert!(page[92..].iter().all(|&byte| byte == 0));
}

fn groups_only() {
    let (mut admin, _) = Queue::admin(&Target::new());
    let page = log(&mut admin, 1, false);
    assert_eq!(le(&page, 8, 2), 2);
    assert_eq!([16, 20, 48, 52].map(|at| le(&page, at, 4)), [1, 0, 2, 0]);
    assert_eq!((page[32], page[64]), (1, 1));
    assert!(page[80..].iter().all(|&byte| byte == 0));
}

fn want_events(admin: &mut Queue, mask: u32) {
    admin.command(Sqe::new(0x09).dword(40, 0x0B).dword(44, mask)).succeeded();
}

fn log_after_change() {
    let target = Target::new();
    let (mut admin, _) = Queue::admin(&target);
    let before = le(&log(&mut admin, 0, false), 0, 8);
    target.set_access(2, &[(1, 4)]);
    let page = log(&mut admin, 0, false);
    assert_ne!(le(&page, 0, 8), before);
    assert_eq!((page[32], page[72]), (4, 1));
}

fn event() {
    let target = Target::new();
    let (mut admin, _) = Queue::admin(&target);
    want_events(&mut admin, 1 << 11);
    let request = admin.submit(Sqe::new(0x0C), &[]);
    target.set_access(2, &[(1, 2)]);
    assert_eq!(admin.response_to(request).succeeded().result(), 0x000C_0302);
    let request = admin.submit(Sqe::new(0x0C), &[]);
    log(&mut admin, 0, true);
    target.set_access(3, &[(1, 3)]);
    assert!(admin.poll(request).is_none(), "told already");
    log(&mut admin, 0, false);
    target.set_access(4, &[(1, 3)]);
    assert!(admin.poll(request).is_none(), "nothing has changed");
    target.set_access(5, &[]);
    assert_eq!(admin.response_to(request).succeeded().result(), 0x000C_0302);
}

fn masked_event() {
    let target = Target::new();
    let (mut admin, _) = Queue::admin(&target);
    want_events(&mut admin, 1 << 8);
    let request = admin.submit(Sqe::new(0x0C), &[]);
    target.set_access(2, &[(1, 3)]);
    assert!(admin.poll(request).is_none());
}

fn refused() {
    let target = Target::new();
    let (_admin, mut io) = Queue::both(&target);
    for (version, state, status) in [(2, 3, INACCESSIBLE), (3, 4, PERSISTENT_LOSS), (4, 15, TRANSITION)] {
        target.set_access(version, &[(1, state)]);
        assert_eq!(read_one(&mut io, 1), status);
        assert_eq!(io.write(Sqe::new(0x01).nsid(1), &[7; 512]).status(), status);
        assert_eq!(io.write_in_capsule(Sqe::new(0x01).nsid(1), &[7; 512]).status(), status);
        for opcode in [0x00, 0x08, 0x0C] {
            assert_eq!(io.command(Sqe::new(opcode).nsid(1)).status(), status, "{opcode:#x}");
        }
    }
    target.set_access(5, &[]);
    assert_eq!(io.fetch(Sqe::new(0x02).nsid(1), 512), [0; 512], "nothing was written");
}

fn others_are_served() {
    let target = Target::new();
    target.set_access(2, &[(1, 3), (2, 2)]);
    let (_admin, mut io) = Queue::both(&target);
    assert_eq!([1, 2, 3].map(|nsid| read_one(&mut io, nsid)), [INACCESSIBLE, INACCESSIBLE, SUCCESS]);
}

fn whole_or_not_at_all() {
    let target = Target::new();
    let (_admin, mut io) = Queue::both(&target);
    target.stall(true);
    // Four ranges: as many operations of the medium.
    let ranges: Vec<u8> = (0..4u64)
        .flat_map(|range| [&[0; 4][..], &1u32.to_le_bytes(), &(range * 9).to_le_bytes()].concat())
        .collect();
    let begun = io.submit(
        Sqe::new(0x09)
            .nsid(1)
            .dword(40, 3)
            .dword(44, 4)
            .sgl(crate::wire::capsule_sgl(0, u32::try_from(ranges.len()).expect("64"))),
        &ranges,
    );
    io.holds_reads = true;
    let at = io.expose(vec![7; 8192]);
    let sqe = Sqe::new(0x01).nsid(1).qword(40, 64).dword(48, 15);
    let waiting = io.submit(sqe.sgl(crate::wire::keyed_sgl(at, 8192, 0x4F)), &[]);
    target.set_access(2, &[(1, 3)]);
    assert!(!target.is_settled(), "the first is at its medium");
    assert!(io.poll(begun).is_none() && io.poll(waiting).is_none());
    io.holds_reads = false;
    for segment in std::mem::take(&mut io.held_reads) {
        io.answer_read(&segment);
    }
    assert_eq!(io.response_to(waiting).status(), INACCESSIBLE);
    target.stall(false);
    assert_eq!(io.response_to(begun).status(), SUCCESS);
    assert!(target.is_settled());
    target.set_access(3, &[]);
    let data = io.fetch(Sqe::new(0x02).nsid(1).qword(40, 64).dword(48, 15), 8192);
    assert!(data.iter().all(|&byte| byte == 0), "a part of it was written");
}

fn identifiers() {
    let target = Target::new();
    target.share(2, 0x200..=0x2FF);
    let cntlids: Vec<u16> = (0..3)
        .map(|_| {
            let mut queue = Queue::dial_admin(&target);
            let data = connect_data(HOST_ID, 0xFFFF, OPEN, HOST);
            queue.write(connect(0, 31, 0), &data).succeeded().result() as u16
        })
        .collect();
    assert!(cntlids.iter().all(|cntlid| (0x200..=0x2FF).contains(cntlid)), "{cntlids:x?}");
    assert!(cntlids[0] != cntlids[1] && cntlids[1] != cntlids[2]);
}

fn what_is_not_shared() {
    let target = Target::new();
    target.share(2, 0x200..=0x2FF);
    let (mut admin, mut io) = Queue::both(&target);
    let data = identify(&mut admin, 1, 0);
    assert_eq!((le(&data, 520, 2) & 1 << 5, le(&data, 522, 2), le(&data, 532, 2)), (0, 0, 0));
    assert_eq!((identify(&mut admin, 0, 1)[31], identify(&mut admin, 8, 1)[2]), (0, 0), "RESCAP");
    let effects = admin.fetch(Sqe::new(0x02).dword(40, 0x05 | 1023 << 16), 4096);
    assert_eq!((le(&effects, 1024 + 4 * 0x0D, 4), le(&effects, 1024 + 4 * 0x02, 4)), (0, 1));
    assert_eq!(io.write(Sqe::new(0x0D).nsid(1), &[0; 16]).status(), INVALID_OPCODE);
    for persistence in [Sqe::new(0x09), Sqe::new(0x0A)] {
        assert_eq!(admin.command(persistence.nsid(1).dword(40, 0x83)).status(), INVALID_FIELD);
    }
    let first =
        io.submit(Sqe::new(0x05).byte(1, 0x41).nsid(1).sgl(crate::wire::capsule_sgl(0, 512)), &[0; 512]);
    let second = Sqe::new(0x01).byte(1, 0x42).nsid(1).sgl(crate::wire::capsule_sgl(0, 512));
    let second = io.submit(second, &[7; 512]);
    assert_eq!(io.response_to(first).status(), INVALID_FIELD);
    assert!(io.response_to(second).status() != SUCCESS);
    assert_eq!(io.fetch(Sqe::new(0x02).nsid(1), 512), [0; 512]);
}
