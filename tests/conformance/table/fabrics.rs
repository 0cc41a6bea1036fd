//! Fabrics commands: Connect, who may have a controller and which queues may join one; and commands beside it.
use std::time::Duration;

use ironside_target::limits::Resource;

use crate::queue::{HOST, HOST_ID, Queue, Response, Status};
use crate::target::{FRIEND, IO_QUEUES, OPEN, PRIVATE, Target};
use crate::wire::{Sqe, connect, connect_data, name, property_get, property_set};
use crate::{Requirement, row};

const INVALID_OPCODE: Status = (0, 0x01, true);
const INVALID_FIELD: Status = (0, 0x02, true);
const COMMAND_SEQUENCE: Status = (0, 0x0C, true);
const INVALID_PARAMETERS: Status = (1, 0x82, true);

/// Where the offset of an invalid parameter counts from: the data rather than the command.
const IN_DATA: u64 = 1 << 16;

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "fabrics-1",
        "NVMe Base 2.2, 6.3, figure 549",
        "Connect gives a controller identifier of 1 to FFEFh, asks for no authentication, and leaves the rest 0",
        connect_gives_a_controller,
    ),
    row(
        "fabrics-2",
        "NVMe Base 2.2, 6.3",
        "each admin queue gets a controller of its own",
        controllers_are_dynamic,
    ),
    row(
        "fabrics-3",
        "NVMe Base 2.2, 6.3, figure 549",
        "an unknown SUBNQN is an invalid parameter at byte 256 of the data, Do Not Retry",
        unknown_subsystem,
    ),
    row(
        "fabrics-4",
        "NVMe Base 2.2, 6.3",
        "a host which may not have the subsystem is refused with Connect Invalid Host, Do Not Retry",
        host_not_allowed,
    ),
    row(
        "fabrics-5",
        "NVMe Base 2.2, 6.3",
        "an admin queue which asks for a certain controller, or any static one, is refused at byte 16 of the data",
        no_static_controllers,
    ),
    row(
        "fabrics-6",
        "NVMe Base 2.2, 6.3, figure 546 (RECFMT)",
        "a record format other than 0 is Connect Incompatible Format, Do Not Retry",
        unknown_record_format,
    ),
    row(
        "fabrics-7",
        "NVMe Base 2.2, 6.3, figure 546 (SQSIZE)",
        "an SQSIZE of 0 is an invalid parameter at byte 44 of the command",
        queue_of_one,
    ),
    row(
        "fabrics-8",
        "NVMe Base 2.2, 6.3, figure 547",
        "data of any length but 1024 bytes is Data SGL Length Invalid",
        length_of_the_data,
    ),
    row(
        "fabrics-9",
        "NVMe Base 2.2, 6.3",
        "names which are none, and such without a NUL, are invalid parameters at byte 256 or 512 of the data",
        names_have_a_syntax,
    ),
    row(
        "fabrics-10",
        "NVMe Base 2.2, 3.3.2.2",
        "any command before Connect is Command Sequence Error, and Connect is still possible",
        connect_comes_first,
    ),
    row(
        "fabrics-11",
        "NVMe Base 2.2, 6.3",
        "a second Connect on a queue is Command Sequence Error",
        connect_comes_once,
    ),
    row(
        "fabrics-12",
        "NVMe Base 2.2, 6.3, figure 549",
        "an I/O queue of a controller which is not there is refused at byte 16 of the data",
        io_queue_of_nobody,
    ),
    row(
        "fabrics-13",
        "NVMe Base 2.2, 6.3",
        "an I/O queue whose HOSTNQN, SUBNQN or HOSTID is not its controller's is refused",
        io_queue_of_another_host,
    ),
    row(
        "fabrics-14",
        "NVMe Base 2.2, 6.3, figure 547 (HOSTID)",
        "a HOSTID of 0 in an I/O queue's Connect is ignored",
        io_queue_without_host_identifier,
    ),
    row(
        "fabrics-15",
        "NVMe Base 2.2, 3.3.2.3",
        "an I/O queue which exists already is refused with Command Sequence Error; the first one stays",
        io_queue_twice,
    ),
    row(
        "fabrics-16",
        "NVMe Base 2.2, 6.3, figure 549",
        "an I/O queue beyond the granted number is an invalid parameter at byte 42 of the command",
        io_queue_beyond_the_grant,
    ),
    row(
        "fabrics-17",
        "NVMe Base 2.2, 6.3",
        "an I/O queue before the controller is enabled is Connect Invalid Parameters",
        io_queue_before_enable,
    ),
    row(
        "fabrics-18",
        "NVMe Base 2.2, 3.1.3.3",
        "a discovery controller has no I/O queues",
        discovery_has_no_io_queues,
    ),
    row(
        "fabrics-19",
        "NVMe Base 2.2, 3.1.2",
        "when the admin queue is lost, its I/O queues end; another controller stays",
        admin_queue_takes_all_along,
    ),
    row(
        "fabrics-20",
        "Linux, drivers/nvme/target/core.c nvmet_sq_destroy",
        "when an I/O queue is lost, its controller stays, and it may be connected again",
        io_queue_again,
    ),
    row(
        "fabrics-21",
        "NVMe Base 2.2, 4.1.2, figure 95",
        "PSDT of a Fabrics command may be 00b or 10b as specified, or 01b as Linux has it, but not 11b",
        data_pointer_flags,
    ),
    row(
        "fabrics-22",
        "NVMe Base 2.2, 4.1.2, figure 94",
        "SGL1 of a Fabrics command without data is reserved: zeros are fine",
        reserved_data_pointers,
    ),
    row(
        "fabrics-23",
        "NVMe Base 2.2, 4.1.2, figure 95",
        "a fused Fabrics command is Invalid Field",
        fused_fabrics_commands,
    ),
    row(
        "fabrics-24",
        "NVMe Base 2.2, 4.2.3, figure 102",
        "unknown Fabrics commands are Invalid Command Opcode, Do Not Retry",
        unknown_fabrics_commands,
    ),
    row(
        "fabrics-25",
        "NVMe Base 2.2, 6.4; 5.1.13.2.1, figure 313 (OFCS)",
        "Disconnect, which OFCS does not offer, is Invalid Command Opcode on either kind of queue",
        no_disconnect,
    ),
    row(
        "fabrics-26",
        "NVMe Base 2.2, 3.1.3, figure 29",
        "authentication, which Connect did not ask for, is Invalid Command Opcode",
        no_authentication,
    ),
    row(
        "fabrics-27",
        "NVMe Base 2.2, 6, figure 541",
        "properties are the admin queue's: on an I/O queue they are Invalid Field",
        no_properties_on_io_queues,
    ),
    row(
        "fabrics-28",
        "NVMe Base 2.2, 3.9.5",
        "a host which is silent for KATO milliseconds loses its controller and queues; one which is not, does not",
        keep_alive,
    ),
    row("fabrics-29", "NVMe Base 2.2, 3.9.2", "KATO 0 switches the timer off", no_keep_alive),
    row(
        "fabrics-30",
        "NVMe Base 2.2, 6.3",
        "a controller beyond the operator's limit is refused with Connect Controller Busy, to be tried again",
        one_controller_too_many,
    ),
];

pub(crate) fn admin_data() -> Vec<u8> {
    connect_data(HOST_ID, 0xFFFF, OPEN, HOST)
}

pub(crate) fn io_data(cntlid: u16) -> Vec<u8> {
    connect_data(HOST_ID, cntlid, OPEN, HOST)
}

fn one_controller_too_many() {
    let target = Target::new();
    target.limit(2, Resource::ControllersPerHost, 2);
    let (first, _) = Queue::admin(&target);
    let _second = Queue::admin(&target);
    let another = |host| {
        let data = connect_data(HOST_ID, 0xFFFF, OPEN, host);
        let mut queue = Queue::dial_admin(&target);
        let status = queue.write(connect(0, 31, 0), &data).status();
        (queue, status)
    };
    let busy = (1, 0x81, false);
    assert_eq!(another(HOST).1, busy);
    assert_eq!(another(FRIEND).1, (0, 0, false), "each host has its share");
    first.peer.end();
    target.run();
    let (_again, status) = another(HOST);
    assert_eq!(status, (0, 0, false));
    target.limit(3, Resource::Controllers, 2);
    assert_eq!(another(FRIEND).1, busy, "of whomever");
}

/// The answer to a Connect of an admin queue.
fn admin_connect(sqe: Sqe, data: &[u8]) -> Response {
    Queue::dial_admin(&Target::new()).write(sqe, data)
}

fn refused(response: &Response) -> (Status, u64) {
    (response.status(), response.result())
}

fn connect_gives_a_controller() {
    let (_, response) = Queue::connect_admin(&Target::new(), OPEN, 0);
    let result = response.result();
    assert!((1..=0xFFEF).contains(&result), "{result:#x}");
    assert_eq!(response.entry[10..12], [0, 0]);
}

fn controllers_are_dynamic() {
    let target = Target::new();
    let (_one, first) = Queue::admin(&target);
    let (_two, second) = Queue::admin(&target);
    assert_ne!(first, second);
}

fn unknown_subsystem() {
    let data = connect_data(HOST_ID, 0xFFFF, "nqn.2014-08.org.example:absent", HOST);
    assert_eq!(refused(&admin_connect(connect(0, 31, 0), &data)), (INVALID_PARAMETERS, 256 | IN_DATA));
}

fn host_not_allowed() {
    let target = Target::new();
    let response =
        Queue::dial_admin(&target).write(connect(0, 31, 0), &connect_data(HOST_ID, 0xFFFF, PRIVATE, HOST));
    assert_eq!(response.status(), (1, 0x84, true));
    Queue::dial_admin(&target)
        .write(connect(0, 31, 0), &connect_data(HOST_ID, 0xFFFF, PRIVATE, FRIEND))
        .succeeded();
}

fn no_static_controllers() {
    for cntlid in [0, 1, 0xFFEF, 0xFFFD, 0xFFFE] {
        let response = admin_connect(connect(0, 31, 0), &io_data(cntlid));
        assert_eq!(refused(&response), (INVALID_PARAMETERS, 16 | IN_DATA), "CNTLID {cntlid:#x}");
    }
}

fn unknown_record_format() {
    let response = admin_connect(connect(0, 31, 0).word(40, 1), &admin_data());
    assert_eq!(response.status(), (1, 0x80, true));
}

fn queue_of_one() {
    assert_eq!(refused(&admin_connect(connect(0, 0, 0), &admin_data())), (INVALID_PARAMETERS, 44));
}

fn length_of_the_data() {
    for length in [0, 512, 1023] {
        let response = admin_connect(connect(0, 31, 0), &admin_data()[..length]);
        assert_eq!(response.status(), (0, 0x0F, true), "{length} bytes");
    }
    let longer = [admin_data(), vec![0; 4]].concat();
    assert_eq!(admin_connect(connect(0, 31, 0), &longer).status(), (0, 0x0F, true));
}

fn names_have_a_syntax() {
    let endless = [b'n'; 256];
    for field in [name(""), name("example"), name("iqn.2014-08.org.example:open"), endless] {
        for at in [256, 512] {
            let mut data = admin_data();
            data[at..at + 256].copy_from_slice(&field);
            let response = admin_connect(connect(0, 31, 0), &data);
            assert_eq!(refused(&response), (INVALID_PARAMETERS, at as u64 | IN_DATA));
        }
    }
}

fn connect_comes_first() {
    let mut queue = Queue::dial_admin(&Target::new());
    for sqe in [property_get(0, 1), property_set(0x14, 0x0046_0001), Sqe::new(0x18)] {
        assert_eq!(queue.command(sqe).status(), COMMAND_SEQUENCE);
    }
    assert_eq!(queue.read(Sqe::new(6).byte(40, 1), 4096).0.status(), COMMAND_SEQUENCE);
    queue.write(connect(0, 31, 0), &admin_data()).succeeded();
}

fn connect_comes_once() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    assert_eq!(admin.write(connect(0, 31, 0), &admin_data()).status(), COMMAND_SEQUENCE);
    assert_eq!(io.write(connect(1, 15, 0), &io_data(1)).status(), COMMAND_SEQUENCE);
    admin.command(Sqe::new(0x18)).succeeded();
    io.command(Sqe::new(0).nsid(1)).succeeded();
}

/// The answer to the Connect of I/O queue 1 with this data.
fn io_connect(target: &Target, data: &[u8]) -> Response {
    Queue::dial_io(target, 1, 1).write(connect(1, 15, 0), data)
}

fn io_queue_of_nobody() {
    let target = Target::new();
    let (_admin, cntlid) = Queue::admin(&target);
    for absent in [0, cntlid + 1, 0xFFEF, 0xFFF0, 0xFFFE, 0xFFFF] {
        let response = io_connect(&target, &io_data(absent));
        assert_eq!(refused(&response), (INVALID_PARAMETERS, 16 | IN_DATA), "CNTLID {absent:#x}");
    }
}

fn io_queue_of_another_host() {
    let target = Target::new();
    let (_admin, cntlid) = Queue::admin(&target);
    for data in [
        connect_data(HOST_ID, cntlid, OPEN, FRIEND),
        connect_data(HOST_ID, cntlid, PRIVATE, HOST),
        connect_data([1; 16], cntlid, OPEN, HOST),
    ] {
        assert_eq!(io_connect(&target, &data).status(), INVALID_PARAMETERS);
    }
    io_connect(&target, &io_data(cntlid)).succeeded();
}

fn io_queue_without_host_identifier() {
    let target = Target::new();
    let (_admin, cntlid) = Queue::admin(&target);
    io_connect(&target, &connect_data([0; 16], cntlid, OPEN, HOST)).succeeded();
}

fn io_queue_twice() {
    let target = Target::new();
    let (_admin, cntlid) = Queue::admin(&target);
    let mut first = Queue::io(&target, cntlid, 1);
    assert_eq!(io_connect(&target, &io_data(cntlid)).status(), COMMAND_SEQUENCE);
    first.command(Sqe::new(0).nsid(1)).succeeded();
}

fn io_queue_beyond_the_grant() {
    let target = Target::new();
    let (mut admin, cntlid) = Queue::admin(&target);
    // Two queues asked for: Number of Queues, 0's based.
    admin.command(Sqe::new(9).byte(40, 7).dword(44, 0x0001_0001)).succeeded();
    for qid in [3, IO_QUEUES + 1, 0xFFFF] {
        let response = Queue::dial_io(&target, cntlid, qid).write(connect(qid, 15, 0), &io_data(cntlid));
        assert_eq!(refused(&response), (INVALID_PARAMETERS, 42), "queue {qid}");
    }
    Queue::io(&target, cntlid, 2);
}

fn io_queue_before_enable() {
    let target = Target::new();
    let (_admin, response) = Queue::connect_admin(&target, OPEN, 0);
    let cntlid = response.result() as u16;
    assert_eq!(io_connect(&target, &io_data(cntlid)).status(), INVALID_PARAMETERS);
}

fn discovery_has_no_io_queues() {
    let target = Target::new();
    let discovery = "nqn.2014-08.org.nvmexpress.discovery";
    let (_admin, cntlid) = Queue::admin_of(&target, discovery);
    let response = io_connect(&target, &connect_data(HOST_ID, cntlid, discovery, HOST));
    assert_eq!(response.status(), INVALID_PARAMETERS);
}

fn admin_queue_takes_all_along() {
    let target = Target::new();
    let (admin, io) = Queue::both(&target);
    let (_other, mut stays) = Queue::both(&target);
    admin.peer.end();
    target.run();
    assert!(admin.peer.is_over() && io.peer.is_over());
    stays.command(Sqe::new(0).nsid(1)).succeeded();
}

fn io_queue_again() {
    let target = Target::new();
    let (mut admin, cntlid) = Queue::admin(&target);
    for _ in 0..3 {
        let io = Queue::io(&target, cntlid, 1);
        io.peer.end();
        target.run();
    }
    admin.command(Sqe::new(0x18)).succeeded();
}

fn data_pointer_flags() {
    for (flags, taken) in [(0x00, true), (0x40, true), (0x80, true), (0xC0, false)] {
        let mut queue = Queue::dial_admin(&Target::new());
        let response = queue.write(connect(0, 31, 0).byte(1, flags), &admin_data());
        assert_eq!(response.status() == (0, 0, false), taken, "Connect, flags {flags:#04x}");
        if taken {
            queue.command(property_get(0, 1).byte(1, flags)).succeeded();
            queue.command(property_set(0x14, 0x0046_0001).byte(1, flags)).succeeded();
        }
    }
}

fn reserved_data_pointers() {
    let (mut admin, _) = Queue::connect_admin(&Target::new(), OPEN, 0);
    for sqe in [property_get(0, 1), property_set(0x14, 0x0046_0001)] {
        admin.command(sqe.byte(1, 0).sgl([0; 16])).succeeded();
    }
}

fn fused_fabrics_commands() {
    let (mut admin, _) = Queue::admin(&Target::new());
    assert_eq!(admin.command(property_get(0, 1).byte(1, 0x41)).status(), INVALID_FIELD);
}

fn unknown_fabrics_commands() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    for kind in [0x02, 0x03, 0x07, 0x10, 0xC0, 0xFF] {
        for queue in [&mut admin, &mut io] {
            assert_eq!(queue.command(Sqe::fabrics(kind)).status(), INVALID_OPCODE, "type {kind:#04x}");
        }
    }
}

fn no_disconnect() {
    let (mut admin, mut io) = Queue::both(&Target::new());
    assert_eq!(admin.command(Sqe::fabrics(0x08)).status(), INVALID_OPCODE);
    assert_eq!(io.command(Sqe::fabrics(0x08)).status(), INVALID_OPCODE);
}

fn no_authentication() {
    let (mut admin, _) = Queue::admin(&Target::new());
    let security = |kind| Sqe::fabrics(kind).dword(40, 0xE901_0100).dword(44, 64);
    assert_eq!(admin.write(security(0x05), &[0; 64]).status(), INVALID_OPCODE);
    assert_eq!(admin.read(security(0x06), 64).0.status(), INVALID_OPCODE);
}

fn no_properties_on_io_queues() {
    let (_admin, mut io) = Queue::both(&Target::new());
    assert_eq!(io.command(property_get(0, 1)).status(), INVALID_FIELD);
    assert_eq!(io.command(property_set(0x14, 0)).status(), INVALID_FIELD);
}

fn keep_alive() {
    let target = Target::new();
    let (mut admin, response) = Queue::connect_admin(&target, OPEN, 2000);
    admin.command(property_set(0x14, 0x0046_0001)).succeeded();
    let io = Queue::io(&target, response.result() as u16, 1);
    for _ in 0..5 {
        target.wait(Duration::from_millis(1500));
        admin.command(Sqe::new(0x18)).succeeded();
    }
    target.wait(Duration::from_millis(1900));
    assert!(!admin.peer.is_over(), "too early");
    target.wait(Duration::from_millis(1300));
    assert!(admin.peer.is_over() && io.peer.is_over());
}

fn no_keep_alive() {
    let target = Target::new();
    let (admin, io) = Queue::both(&target);
    target.wait(Duration::from_secs(200));
    assert!(!admin.peer.is_over() && !io.peer.is_over());
}
