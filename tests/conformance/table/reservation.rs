//! Reservations: the commands, what each type keeps whom from, the report, and what hosts are told.
use crate::queue::{HOST, Queue, Response, SUCCESS, Status};
use crate::target::{OPEN, Target};
use crate::wire::{Sqe, connect, connect_data, le, property_set};
use crate::{Requirement, row};

const INVALID_FIELD: Status = (0, 0x02, true);
const HOST_ID_INCONSISTENT: Status = (0, 0x18, true);
const CONFLICT: Status = (0, 0x83, true);

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "reservation-1",
        "NVMe Base 2.2, 8.1.22.3",
        "a host registers one key; another is Reservation Conflict, and 0 Invalid Field",
        registering,
    ),
    row(
        "reservation-2",
        "NVMe Base 2.2, 8.1.22.3 and 8.1.22.4",
        "a key is replaced and removed by who brings it, or who ignores it (IEKEY)",
        replacing,
    ),
    row(
        "reservation-3",
        "NVMe Base 2.2, 7.5 to 7.7",
        "an action, type or CPTPL that there is not is Invalid Field",
        unknown_values,
    ),
    row(
        "reservation-4",
        "NVMe Base 2.2, 8.1.22.5",
        "a registrant acquires with its key; who is none, has another key or comes second gets a conflict",
        acquiring,
    ),
    row(
        "reservation-5",
        "NVMe Base 2.2, 8.1.22.1, figures 646 and 647",
        "each of the six types keeps registrants and strangers from writing (Write, Write Zeroes, Dataset \
         Management, Flush) and reading (Read, Compare, Verify) as the table has it",
        conflicts,
    ),
    row(
        "reservation-6",
        "NVMe Base 2.2, 8.1.22.6",
        "the holder releases with key and type; another type is Invalid Field, and no holder changes nothing",
        releasing,
    ),
    row("reservation-7", "NVMe Base 2.2, 8.1.22.8", "Clear ends reservation and registrations", clearing),
    row(
        "reservation-8",
        "NVMe Base 2.2, 8.1.22.7",
        "Preempt of the holder's key takes its place; of another key it removes registrations; of none it is a \
         conflict",
        preempting,
    ),
    row(
        "reservation-9",
        "NVMe Base 2.2, 8.1.22.7",
        "Preempt is answered only once writes of the preempted host which had reached the medium have ended",
        preempting_waits,
    ),
    row(
        "reservation-10",
        "NVMe Base 2.2, 8.1.22.7; 4.2.3, figure 102",
        "Preempt and Abort ends what waits of the preempted host with Command Aborted due to Preempt and Abort",
        aborting,
    ),
    row(
        "reservation-11",
        "NVMe Base 2.2, 7.8, figures 580 and 582 to 585",
        "the extended report has GEN, RTYPE, REGSTRNT, PTPLS, and 64 bytes a registrant; a short one is cut",
        reporting,
    ),
    row(
        "reservation-12",
        "NVMe Base 2.2, 7.8",
        "a report which is not extended has no room for identifiers of 16 bytes: Host Identifier Inconsistent",
        short_identifiers,
    ),
    row(
        "reservation-13",
        "NVMe Base 2.2, 8.1.22.2; 5.1.12.1.32; 5.1.2, figure 153",
        "a preempted host has an event of type 6, and reads log page 80h once for each notification",
        notifications,
    ),
    row(
        "reservation-14",
        "NVMe Base 2.2, 5.1.25.1.29",
        "a Reservation Notification Mask keeps notifications away; bits there are not are Invalid Field",
        masks,
    ),
    row(
        "reservation-15",
        "NVMe Base 2.2, 5.1.25.1.30; 7.6, figure 574",
        "Reservation Persistence is what CPTPL or Set Features made it, and is reported as PTPLS",
        persistence,
    ),
    row(
        "reservation-16",
        "NVMe Base 2.2, 8.1.22; 5.1.13.2.1, figure 313 (ONCS)",
        "ONCS and RESCAP, in both structures of a namespace, offer reservations of all types",
        advertised,
    ),
    row(
        "reservation-17",
        "NVMe Base 2.2, 8.1.22",
        "reservation commands of a host without an identifier are Host Identifier Not Initialized",
        host_without_identifier,
    ),
    row(
        "reservation-18",
        "NVMe Base 2.2, 8.1.22.7",
        "Preempt with key 0 takes an all registrants reservation and removes all others; another key removes its own",
        preempting_all_registrants,
    ),
    row(
        "reservation-19",
        "NVMe Base 2.2, 8.1.22.7",
        "a holder which preempts itself has another type and stays registered; who is left hears Released",
        preempting_oneself,
    ),
    row(
        "reservation-20",
        "NVMe Base 2.2, 7.8, figure 582 (GEN)",
        "GEN counts registrations, clears and preempts which succeed, and neither acquires, releases nor failures",
        generation,
    ),
    row(
        "reservation-21",
        "NVMe Base 2.2, 8.1.22.4",
        "a holder which unregisters releases; of an all registrants reservation only the last",
        unregistering,
    ),
];

const A: [u8; 16] = [0xA1; 16];
const B: [u8; 16] = [0xB2; 16];
const C: [u8; 16] = [0xC3; 16];

/// A host with a controller and one I/O queue.
struct Party {
    admin: Queue,
    io: Queue,
}

impl Party {
    fn new(target: &Target, id: [u8; 16]) -> Self {
        let mut admin = Queue::dial_admin(target);
        let response = admin.write(connect(0, 31, 0), &connect_data(id, 0xFFFF, OPEN, HOST)).succeeded();
        admin.command(property_set(0x14, 0x0046_0001)).succeeded();
        let cntlid = response.result() as u16;
        let mut io = Queue::dial_io(target, cntlid, 1);
        // Its controller knows the identifier: the queue need not repeat it.
        io.write(connect(1, 15, 0), &connect_data([0; 16], cntlid, OPEN, HOST)).succeeded();
        Self { admin, io }
    }

    fn ask(&mut self, opcode: u8, dword_10: u32, keys: [u64; 2]) -> Status {
        let sqe = Sqe::new(opcode).nsid(1).dword(40, dword_10);
        self.io.write(sqe, &keys.map(u64::to_le_bytes).concat()).status()
    }

    fn register(&mut self, key: u64) -> Status {
        self.ask(0x0D, 0, [0, key])
    }

    fn acquire(&mut self, kind: u32, key: u64) -> Status {
        self.ask(0x11, kind << 8, [key, 0])
    }

    fn preempt(&mut self, kind: u32, key: u64, preempted: u64) -> Status {
        self.ask(0x11, kind << 8 | 1, [key, preempted])
    }

    fn release(&mut self, kind: u32, key: u64) -> Status {
        // A Release brings eight bytes.
        self.io.write(Sqe::new(0x15).nsid(1).dword(40, kind << 8), &key.to_le_bytes()).status()
    }

    fn report(&mut self, length: u32) -> (Response, Vec<u8>) {
        self.io.read(Sqe::new(0x0E).nsid(1).dword(40, length / 4 - 1).dword(44, 1), length as usize)
    }

    /// RTYPE and the number of registrants.
    fn held(&mut self) -> (u8, u64) {
        let (response, data) = self.report(64);
        response.succeeded();
        (data[4], le(&data, 5, 2))
    }

    fn command(&mut self, opcode: u8) -> Status {
        let sqe = Sqe::new(opcode).nsid(1);
        match opcode {
            0x02 => self.io.read(sqe, 512).0.status(),
            0x01 => self.io.write(sqe, &[0; 512]).status(),
            0x05 => self.io.write(sqe, &[0; 512]).status(),
            0x09 => self.io.write(sqe.dword(44, 4), &[0; 16]).status(),
            0x19 => self.io.write(sqe, &[0; 32]).status(),
            _ => self.io.command(sqe).status(),
        }
    }

    fn written(&mut self) -> Status {
        self.command(0x01)
    }
}

/// A and B are registered with keys 10 and 20, C is not.
fn parties(target: &Target) -> [Party; 3] {
    let mut parties = [A, B, C].map(|id| Party::new(target, id));
    assert_eq!(parties[0].register(10), SUCCESS);
    assert_eq!(parties[1].register(20), SUCCESS);
    parties
}

fn registering() {
    let mut a = Party::new(&Target::new(), A);
    assert_eq!(a.register(0), INVALID_FIELD);
    assert_eq!(a.register(10), SUCCESS);
    assert_eq!(a.register(10), SUCCESS);
    assert_eq!(a.register(11), CONFLICT);
    assert_eq!(a.held(), (0, 1));
}

fn replacing() {
    let [mut a, _, mut c] = parties(&Target::new());
    assert_eq!(a.ask(0x0D, 2, [9, 11]), CONFLICT);
    assert_eq!(a.ask(0x0D, 2, [10, 11]), SUCCESS);
    assert_eq!(a.ask(0x0D, 2 | 1 << 3, [0, 12]), SUCCESS);
    assert_eq!(c.ask(0x0D, 2, [0, 30]), CONFLICT);
    assert_eq!(c.ask(0x0D, 2 | 1 << 3, [0, 30]), SUCCESS);
    assert_eq!(a.ask(0x0D, 1, [10, 0]), CONFLICT);
    assert_eq!(a.ask(0x0D, 1, [12, 0]), SUCCESS);
    assert_eq!(a.ask(0x0D, 1, [12, 0]), CONFLICT);
    assert_eq!(a.held(), (0, 2));
}

fn unknown_values() {
    let [mut a, ..] = parties(&Target::new());
    for (opcode, dword_10) in [
        (0x0D, 3),
        (0x0D, 1 << 30),
        (0x11, 0),
        (0x11, 7 << 8),
        (0x11, 1 << 8 | 3),
        (0x11, 1 << 8 | 1 << 3),
        (0x15, 1 << 8 | 2),
        (0x15, 1 << 8 | 1 << 3),
    ] {
        assert_eq!(a.ask(opcode, dword_10, [10, 11]), INVALID_FIELD, "{opcode:#x} {dword_10:#x}");
    }
    assert_eq!(a.held(), (0, 2));
}

fn acquiring() {
    let [mut a, mut b, mut c] = parties(&Target::new());
    assert_eq!(c.acquire(1, 0), CONFLICT);
    assert_eq!(a.acquire(1, 11), CONFLICT);
    assert_eq!(a.acquire(1, 10), SUCCESS);
    assert_eq!(a.acquire(1, 10), SUCCESS, "it has it already");
    assert_eq!(a.acquire(2, 10), CONFLICT);
    assert_eq!(b.acquire(1, 20), CONFLICT);
    assert_eq!(a.held(), (1, 2));
}

fn conflicts() {
    for (kind, [registrant_reads, registrant_writes], [stranger_reads, stranger_writes]) in [
        (1, [true, false], [true, false]),
        (2, [false, false], [false, false]),
        (3, [true, true], [true, false]),
        (4, [true, true], [false, false]),
        (5, [true, true], [true, false]),
        (6, [true, true], [false, false]),
    ] {
        let [mut a, mut b, mut c] = parties(&Target::new());
        assert_eq!(a.acquire(kind, 10), SUCCESS);
        let status = |may| if may { SUCCESS } else { CONFLICT };
        for opcode in [0x00, 0x01, 0x08, 0x09, 0x19] {
            assert_eq!(a.command(opcode), SUCCESS, "type {kind}, the holder's {opcode:#x}");
            assert_eq!(
                b.command(opcode),
                status(registrant_writes),
                "type {kind}, a registrant's {opcode:#x}"
            );
            assert_eq!(c.command(opcode), status(stranger_writes), "type {kind}, a stranger's {opcode:#x}");
        }
        for opcode in [0x02, 0x05, 0x0C] {
            assert_eq!(a.command(opcode), SUCCESS, "type {kind}, the holder's {opcode:#x}");
            assert_eq!(
                b.command(opcode),
                status(registrant_reads),
                "type {kind}, a registrant's {opcode:#x}"
            );
            assert_eq!(c.command(opcode), status(stranger_reads), "type {kind}, a stranger's {opcode:#x}");
        }
        assert_eq!(c.held(), (kind as u8, 2), "everybody may ask");
        let (second, other) = (Sqe::new(0x01).nsid(2), vec![0; 4096]);
        assert_eq!(c.io.write(second, &other).status(), SUCCESS, "another namespace is free");
    }
}

fn releasing() {
    let [mut a, mut b, mut c] = parties(&Target::new());
    assert_eq!(a.acquire(3, 10), SUCCESS);
    assert_eq!(a.release(3, 11), CONFLICT);
    assert_eq!(c.release(3, 0), CONFLICT);
    assert_eq!(a.release(1, 10), INVALID_FIELD);
    assert_eq!(b.release(3, 20), SUCCESS);
    assert_eq!(a.held(), (3, 2));
    assert_eq!(a.release(3, 10), SUCCESS);
    assert_eq!(a.release(3, 10), SUCCESS, "there is none");
    assert_eq!((a.held(), c.written()), ((0, 2), SUCCESS));
}

fn clearing() {
    let [mut a, mut b, mut c] = parties(&Target::new());
    assert_eq!(a.acquire(2, 10), SUCCESS);
    assert_eq!(c.ask(0x15, 1, [0, 0]), CONFLICT);
    assert_eq!(b.ask(0x15, 1, [20, 0]), SUCCESS);
    assert_eq!((a.held(), c.written()), ((0, 0), SUCCESS));
}

fn preempting() {
    let [mut a, mut b, mut c] = parties(&Target::new());
    assert_eq!(c.register(30), SUCCESS);
    assert_eq!(a.acquire(1, 10), SUCCESS);
    assert_eq!(b.preempt(1, 21, 10), CONFLICT);
    assert_eq!(b.preempt(1, 20, 99), CONFLICT);
    assert_eq!(b.preempt(1, 20, 0), INVALID_FIELD);
    assert_eq!(b.preempt(2, 20, 30), SUCCESS);
    assert_eq!((b.held(), a.written()), ((1, 2), SUCCESS), "it is still A's");
    assert_eq!(b.preempt(2, 20, 10), SUCCESS);
    assert_eq!((b.held(), a.written(), b.written()), ((2, 1), CONFLICT, SUCCESS));
}

fn preempting_waits() {
    let target = Target::new();
    let [mut a, mut b, _] = parties(&target);
    assert_eq!(a.acquire(1, 10), SUCCESS);
    target.stall(true);
    let write = crate::io::submit_write(&mut a.io, 0, &[7; 512]);
    let at = b.io.expose([20u64, 10].map(u64::to_le_bytes).concat());
    let sgl = crate::wire::keyed_sgl(at, 16, 0x4F);
    let preempt = b.io.submit(Sqe::new(0x11).nsid(1).dword(40, 1 << 8 | 1).sgl(sgl), &[]);
    assert!(b.io.poll(preempt).is_none(), "a write of A is at the medium");
    assert_eq!(a.written(), CONFLICT, "and no other gets there");
    target.stall(false);
    assert_eq!(b.io.response_to(preempt).status(), SUCCESS);
    assert_eq!(a.io.response_to(write).status(), SUCCESS, "it was before");
}

fn aborting() {
    let target = Target::new();
    let [mut a, mut b, _] = parties(&target);
    a.io.holds_reads = true;
    let write = crate::io::submit_write(&mut a.io, 0, &[7; 512]);
    assert_eq!(b.ask(0x11, 1 << 8 | 2, [20, 10]), SUCCESS, "without a reservation, too");
    a.io.holds_reads = false;
    for held in std::mem::take(&mut a.io.held_reads) {
        a.io.answer_read(&held);
    }
    assert_eq!(a.io.response_to(write).status(), (0, 0x1B, false));
    assert_eq!((a.written(), b.held()), (SUCCESS, (0, 1)), "what comes later is not concerned");
}

fn reporting() {
    let [mut a, ..] = parties(&Target::new());
    assert_eq!(a.acquire(4, 10), SUCCESS);
    let (response, data) = a.report(256);
    response.succeeded();
    assert_eq!((le(&data, 0, 4), data[4], le(&data, 5, 2), data[9]), (2, 4, 2, 0));
    for (at, id, holds, key) in [(64, A, 1, 10), (128, B, 0, 20)] {
        assert!(le(&data, at, 2) < 0xFFF0, "both are connected");
        assert_eq!(data[at + 2], holds);
        assert_eq!((le(&data, at + 8, 8), &data[at + 16..at + 32]), (key, &id[..]));
    }
    assert!(data[192..].iter().all(|&byte| byte == 0));
    let (response, cut) = a.report(72);
    response.succeeded();
    assert_eq!(cut, data[..72]);
}

fn short_identifiers() {
    let mut a = Party::new(&Target::new(), A);
    let sqe = Sqe::new(0x0E).nsid(1).dword(40, 63);
    assert_eq!(a.io.read(sqe, 256).0.status(), HOST_ID_INCONSISTENT);
}

fn log(party: &mut Party) -> (u64, u8, u8, u64) {
    let data = party.admin.fetch(Sqe::new(0x02).byte(40, 0x80).word(42, 15), 64);
    (le(&data, 0, 8), data[8], data[9], le(&data, 12, 4))
}

fn notifications() {
    let [mut a, mut b, _] = parties(&Target::new());
    assert_eq!(log(&mut a), (0, 0, 0, 0));
    let event = a.admin.submit(Sqe::new(0x0C), &[]);
    assert_eq!(a.acquire(3, 10), SUCCESS);
    assert_eq!(b.preempt(3, 20, 10), SUCCESS);
    assert_eq!(a.admin.response_to(event).succeeded().result(), 0x0080_0006);
    assert_eq!(a.register(10), SUCCESS);
    assert_eq!(b.release(3, 20), SUCCESS);
    assert_eq!(log(&mut a), (1, 1, 1, 1), "its registration was preempted, and there is more");
    let event = a.admin.submit(Sqe::new(0x0C), &[]);
    assert_eq!(a.admin.response_to(event).succeeded().result(), 0x0080_0006);
    assert_eq!(log(&mut a), (2, 2, 0, 1), "a reservation was released");
    assert_eq!(b.ask(0x15, 1, [20, 0]), SUCCESS);
    assert_eq!(log(&mut a), (3, 3, 0, 1), "all was cleared");
    assert_eq!(log(&mut b), (0, 0, 0, 0), "who does it is not told");
}

fn masks() {
    let [mut a, mut b, _] = parties(&Target::new());
    let set = |nsid, value| Sqe::new(0x09).nsid(nsid).byte(40, 0x82).dword(44, value);
    assert_eq!(a.admin.command(set(1, 1)).status(), INVALID_FIELD);
    a.admin.command(set(u32::MAX, 0b1110)).succeeded();
    a.admin.command(set(2, 0b0010)).succeeded();
    let get = |nsid| Sqe::new(0x0A).nsid(nsid).byte(40, 0x82);
    assert_eq!(a.admin.command(get(1)).succeeded().result(), 0b1110);
    assert_eq!(a.admin.command(get(2)).succeeded().result(), 0b0010);
    assert_eq!(b.ask(0x15, 1, [20, 0]), SUCCESS);
    assert_eq!(log(&mut a), (0, 0, 0, 0));
}

fn persistence() {
    let [mut a, ..] = parties(&Target::new());
    let is = |a: &mut Party, expected: u64| {
        let get = Sqe::new(0x0A).nsid(1).byte(40, 0x83);
        assert_eq!(a.admin.command(get).succeeded().result(), expected);
        assert_eq!(u64::from(a.report(64).1[9]), expected);
    };
    is(&mut a, 0);
    assert_eq!(a.ask(0x0D, 3 << 30, [0, 10]), SUCCESS);
    is(&mut a, 1);
    a.admin.command(Sqe::new(0x09).nsid(1).byte(40, 0x83).dword(44, 0)).succeeded();
    is(&mut a, 0);
    assert_eq!(a.ask(0x0D, 3 << 30, [0, 10]), SUCCESS);
    assert_eq!(a.ask(0x0D, 2 << 30, [0, 10]), SUCCESS);
    is(&mut a, 0);
}

fn advertised() {
    let mut a = Party::new(&Target::new(), A);
    let mut identify = |cns: u8| a.admin.fetch(Sqe::new(0x06).nsid(1).byte(40, cns), 4096);
    assert_eq!(le(&identify(1), 520, 2) & 1 << 5, 1 << 5);
    assert_eq!((identify(0)[31], identify(8)[2]), (0xFF, 0xFF));
}

fn host_without_identifier() {
    let target = Target::new();
    let [mut a, ..] = parties(&target);
    let mut nobody = Party::new(&target, [0; 16]);
    let uninitialized = (0, 0x27, true);
    assert_eq!(nobody.register(40), uninitialized);
    assert_eq!(nobody.acquire(1, 0), uninitialized);
    assert_eq!(nobody.release(1, 0), uninitialized);
    assert_eq!(nobody.report(64).0.status(), uninitialized);
    // What it may do goes by the reservations of others.
    assert_eq!((a.acquire(1, 10), nobody.command(0x02), nobody.written()), (SUCCESS, SUCCESS, CONFLICT));
}

fn preempting_all_registrants() {
    let [mut a, mut b, mut c] = parties(&Target::new());
    assert_eq!(c.register(30), SUCCESS);
    assert_eq!(a.acquire(5, 10), SUCCESS);
    assert_eq!(b.preempt(5, 20, 99), CONFLICT);
    assert_eq!(b.preempt(5, 20, 30), SUCCESS);
    assert_eq!((b.held(), a.written(), c.written()), ((5, 2), SUCCESS, CONFLICT));
    assert_eq!(b.preempt(1, 20, 0), SUCCESS);
    assert_eq!((b.held(), a.written(), b.written()), ((1, 1), CONFLICT, SUCCESS));
}

fn preempting_oneself() {
    let [mut a, mut b, _] = parties(&Target::new());
    assert_eq!(a.acquire(1, 10), SUCCESS);
    let held = b.admin.submit(Sqe::new(0x0C), &[]);
    assert_eq!(a.preempt(2, 10, 10), SUCCESS);
    assert_eq!((a.held(), a.written()), ((2, 2), SUCCESS));
    assert_eq!(b.admin.response_to(held).succeeded().result(), 0x0080_0006);
    // A registration is left, a reservation went: type 2.
    assert_eq!(log(&mut b), (1, 2, 0, 1));
}

fn generation() {
    let [mut a, mut b, _] = parties(&Target::new());
    let mut now = 2;
    let mut check = |a: &mut Party, status: Status, grows: bool| {
        assert!(status == SUCCESS || !grows, "{status:?}");
        now += u64::from(grows);
        assert_eq!(le(&a.report(64).1, 0, 4), now);
    };
    let status = a.acquire(1, 10);
    check(&mut a, status, false);
    let status = a.register(10);
    check(&mut a, status, true);
    let status = a.register(11);
    check(&mut a, status, false);
    let status = a.release(1, 10);
    check(&mut a, status, false);
    let status = b.preempt(1, 20, 99);
    check(&mut a, status, false);
    let status = b.preempt(1, 20, 10);
    check(&mut b, status, true);
    let status = b.ask(0x15, 1, [20, 0]);
    check(&mut b, status, true);
}

fn unregistering() {
    let [mut a, mut b, _] = parties(&Target::new());
    assert_eq!(a.acquire(1, 10), SUCCESS);
    assert_eq!(a.ask(0x0D, 1, [10, 0]), SUCCESS);
    assert_eq!((b.held(), a.written()), ((0, 1), SUCCESS));
    assert_eq!((a.register(10), b.acquire(6, 20)), (SUCCESS, SUCCESS));
    assert_eq!(b.ask(0x0D, 1, [20, 0]), SUCCESS);
    assert_eq!((a.held(), a.written(), b.written()), ((6, 1), SUCCESS, CONFLICT));
    assert_eq!(a.ask(0x0D, 1, [10, 0]), SUCCESS);
    assert_eq!((a.held(), b.written()), ((0, 0), SUCCESS));
}
