//! Our host while it connects: what it sends, what it insists on, and what it says when it cannot have it.
use std::time::Duration;

use ironside_common::verbs::RejectReason;
use ironside_initiator::host::{ConnectError, Doing, HostEvent, Incompatible};

use crate::initiator::{Answer, CNTLID, Initiator, Script, reply};
use crate::queue::{HOST, HOST_ID};
use crate::target::OPEN;
use crate::wire::{CRC, ENHANCED, MARKERS, READ_REQUEST, REJECT, WRITE, connect_data, le, mpa_frame};
use crate::{Requirement, row};

const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";
const DNR: u16 = 1 << 15;

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "host-1",
        "RFC 6581, 6 and 9",
        "the MPA Request is of revision 2: key, S, length, A and both forms of ready to receive, IRD, ORD",
        mpa_request,
    ),
    row(
        "host-2",
        "NVMe RDMA 1.0, 3.1, figure 5",
        "an admin queue asks for RECFMT 0, QID 0, HRQSIZE 32, HSQSIZE 31, CNTLID 0, and the rest is 0",
        private_data_of_the_admin_queue,
    ),
    row(
        "host-3",
        "NVMe RDMA 1.0, 3.1, figure 5",
        "an I/O queue asks for its QID, HRQSIZE a count, HSQSIZE 0's based, and names its controller",
        private_data_of_an_io_queue,
    ),
    row(
        "host-4",
        "NVMe Base 2.2, 6.3, figure 546",
        "Connect of the admin queue has each field in its place, KATO in milliseconds, and a keyed data block",
        connect_of_the_admin_queue,
    ),
    row(
        "host-5",
        "NVMe Base 2.2, 6.3, figure 547",
        "Connect's data is host identifier, CNTLID FFFFh, subsystem and host name; the rest is 0",
        data_of_connect,
    ),
    row(
        "host-6",
        "NVMe Base 2.2, 6.3",
        "an I/O queue's Connect names its controller, has no KATO, and brings its data in the capsule",
        connect_of_an_io_queue,
    ),
    row(
        "host-7",
        "NVMe Base 2.2, 3.5.2",
        "CAP is read, CC written twice, CSTS read until ready, then VS and Identify, then the number of queues",
        order_of_initialization,
    ),
    row(
        "host-8",
        "NVMe Base 2.2, 3.1.4, figure 41",
        "CC has entries of 64 and 16 bytes, and CSS 110b where CAP offers command sets but not the NVM one alone",
        configurations,
    ),
    row(
        "host-9",
        "NVMe Base 2.2, 3.1.4, figure 42",
        "a controller which reports CFS is given up at once; one which is never ready, after CAP.TO",
        controllers_which_do_not_start,
    ),
    row(
        "host-10",
        "NVMe Base 2.2, 3.1.4, figure 57",
        "with CRWMS the time of CRTO counts if it is longer than CAP.TO",
        ready_timeouts,
    ),
    row(
        "host-11",
        "RFC 6581, 9.2",
        "ready to receive is said first of all in the form of the Reply: an empty Write, Read, or nothing",
        ready_to_receive,
    ),
    row(
        "host-12",
        "RFC 6581, 10",
        "a Reply of revision 1, and one without depths, end the attempt",
        replies_without_depths,
    ),
    row(
        "host-13",
        "RFC 6581, 8 and 9",
        "a Reply which wants markers, or chooses a form which was not offered, is answered by a Terminate of MPA",
        replies_which_cannot_be,
    ),
    row("host-14", "RFC 5044, 7.1.1 and 7.1.2", "what is no Reply ends the attempt", no_reply),
    row("host-15", "RFC 5044, 7.1.1", "a Reply with C turns CRC on in both directions", crc_of_the_target),
    row(
        "host-16",
        "NVMe RDMA 1.0, 3.5, figure 11",
        "the status of a reject is told, of revision 2 and of revision 1",
        rejects,
    ),
    row(
        "host-17",
        "NVMe Base 2.2, 6.3",
        "a Connect which is refused ends the attempt, and what it objects to is told",
        refused_connects,
    ),
    row(
        "host-18",
        "NVMe Base 2.2, 6.3, figure 549 (AUTHREQ)",
        "a controller which wants authentication is not used if there is no secret for it",
        authentication,
    ),
    row(
        "host-19",
        "Linux, drivers/nvme/host/core.c nvme_check_ctrl_fabric_info",
        "a controller with another CNTLID, without keep alive, or with capsules too small is not used",
        incompatible_controllers,
    ),
    row(
        "host-20",
        "Linux, drivers/nvme/host/rdma.c nvme_rdma_setup_ctrl",
        "a controller without keyed SGLs, or with an ICDOFF, is not used",
        incompatible_data_pointers,
    ),
    row(
        "host-21",
        "Linux, drivers/nvme/host/rdma.c nvme_rdma_setup_ctrl",
        "queues have no more entries than MQES and MAXCMD allow; a MAXCMD of 0 says nothing",
        queue_sizes,
    ),
    row(
        "host-22",
        "NVMe Base 2.2, 5.1.25.2.1",
        "the number of queues is asked for 0's based; no more are made than were granted",
        number_of_queues,
    ),
    row(
        "host-23",
        "NVMe Base 2.2, 6.3, figure 546 (CATTR)",
        "flow control is disabled by bit 2 of CATTR only when asked for",
        flow_control,
    ),
    row(
        "host-24",
        "NVMe Base 2.2, 5.1.25.1.5; 5.1.2",
        "events are asked for as OAES offers them, and one request is left with the controller",
        events,
    ),
    row(
        "host-25",
        "NVMe Base 2.2, 3.9",
        "Keep Alive comes twice in its timeout; a controller which does not answer is lost",
        keep_alive,
    ),
    row(
        "host-26",
        "NVMe Base 2.2, 3.6.2",
        "closing sets SHN 01b and nothing else in CC, waits for SHST 10b, and ends the connections",
        shutdown,
    ),
    row(
        "host-27",
        "RFC 5044, 7.1.2",
        "a target which takes connections and never answers is given up after 5 seconds",
        silence,
    ),
];

fn plain() -> Script {
    Script::default()
}

fn start(script: Script) -> Initiator {
    Initiator::start(script, |_| {})
}

fn mpa_request() {
    let initiator = Initiator::connected();
    let request = &initiator.queues[0].request;
    assert_eq!(request[..20], *b"MPA ID Req Frame\x10\x02\x00\x24");
    let (first, second) =
        (u16::from_be_bytes([request[20], request[21]]), u16::from_be_bytes([request[22], request[23]]));
    assert_eq!((first >> 14, first & 0x3FFF), (0b10, 128), "A, and the Reads it takes");
    assert_eq!((second >> 14, second & 0x3FFF), (0b11, 1), "C and D, and one Read for D");
}

fn private_data_of_the_admin_queue() {
    let mut expected = [0; 32];
    (expected[4], expected[6]) = (32, 31);
    assert_eq!(Initiator::connected().queues[0].request[24..], expected);
}

fn private_data_of_an_io_queue() {
    let mut expected = [0; 32];
    (expected[2], expected[4], expected[6], expected[8]) = (1, 128, 127, CNTLID as u8);
    assert_eq!(Initiator::connected().queues[1].request[24..], expected);
}

fn connect_of_the_admin_queue() {
    let initiator = Initiator::connected();
    let connect = &initiator.sent(0, 0x7F)[0];
    let sqe = &connect.sqe;
    assert_eq!((&sqe[..2], sqe[4], &sqe[5..24]), (&[0x7F, 0x40][..], 1, &[0; 19][..]));
    let (at, length) = connect.keyed();
    assert_ne!(at.0, 0);
    assert_eq!((length, sqe[39]), (1024, 0x4F));
    assert_eq!(sqe[40..48], [0, 0, 0, 0, 31, 0, 0, 0]);
    assert_eq!((le(sqe, 48, 4), &sqe[52..]), (5000, &[0; 12][..]));
}

fn data_of_connect() {
    let initiator = Initiator::connected();
    assert_eq!(initiator.sent(0, 0x7F)[0].data, connect_data(HOST_ID, 0xFFFF, OPEN, HOST));
}

fn connect_of_an_io_queue() {
    let initiator = Initiator::connected();
    let connect = &initiator.sent(1, 0x7F)[0];
    assert_eq!(connect.sqe[40..48], [0, 0, 1, 0, 127, 0, 0, 0]);
    assert_eq!(connect.sqe[48..], [0; 16]);
    assert_eq!(connect.data, connect_data(HOST_ID, CNTLID, OPEN, HOST));
    let mut sgl = [0; 16];
    (sgl[9], sgl[15]) = (4, 0x01);
    assert_eq!(connect.sqe[24..40], sgl);
}

fn order_of_initialization() {
    let initiator = Initiator::connected();
    let steps: Vec<(u8, u64)> = initiator
        .commands
        .iter()
        .filter(|command| command.qid == 0)
        .map(|command| {
            let sqe = &command.sqe;
            match (sqe[0], sqe[4]) {
                (0x7F, 0x00) => (0, le(sqe, 48, 8)),
                (0x7F, kind) => (kind, le(sqe, 44, 4)),
                (opcode, _) => (opcode, sqe[40].into()),
            }
        })
        .collect();
    let expected =
        [(4, 0), (0, 0x0046_0000), (4, 0), (0, 0x0046_0001), (4, 0x1C), (4, 8), (6, 1), (9, 7), (9, 0x0B)];
    assert_eq!(steps[1..10], expected);
    assert_eq!(steps[10..], [(6, 6), (6, 2), (6, 0), (6, 3), (0x0C, 0)]);
}

/// The values which were written to CC.
fn written(initiator: &Initiator) -> Vec<u64> {
    let sets =
        initiator.sent(0, 0x7F).into_iter().filter(|command| command.sqe[4] == 0 && command.sqe[44] == 0x14);
    sets.map(|command| le(&command.sqe, 48, 8)).collect()
}

const SEVERAL_COMMAND_SETS: u64 = 0x0000_0800_0F01_007F;

fn configurations() {
    assert_eq!(written(&Initiator::connected()), [0x0046_0000, 0x0046_0001]);
    let initiator = start(Script { cap: SEVERAL_COMMAND_SETS, ..plain() });
    assert_eq!(written(&initiator), [0x0046_0060, 0x0046_0061]);
    let none = start(Script { cap: 0x0000_0000_0F01_007F, ..plain() });
    assert_eq!(*none.failure(), ConnectError::Incompatible(Incompatible::CommandSet));
}

fn controllers_which_do_not_start() {
    let fatal: fn(&_) -> _ = |command| csts_of(command, 0b10);
    let gone: fn(&_) -> _ = |command| csts_of(command, 0xFFFF_FFFF);
    for answer in [fatal, gone] {
        assert_eq!(*start(Script { answer, ..plain() }).failure(), ConnectError::Fatal);
    }
    let mut never =
        start(Script { answer: |command| csts_of(command, 0), cap: 0x0000_0020_0201_007F, ..plain() });
    never.wait(Duration::from_millis(900));
    assert!(never.events.is_empty());
    never.wait(Duration::from_millis(200));
    assert_eq!(*never.failure(), ConnectError::NotReady(1000));
}

/// The answer of a controller whose CSTS never changes.
fn csts_of(command: &crate::initiator::Command, value: u64) -> Option<Answer> {
    let get = command.sqe[0] == 0x7F && command.sqe[4] == 4 && command.sqe[44] == 0x1C;
    get.then(|| Answer::result(value))
}

fn ready_timeouts() {
    let answer: fn(&_) -> _ = |command: &crate::initiator::Command| {
        let crto = command.sqe[0] == 0x7F && command.sqe[4] == 4 && command.sqe[44] == 0x68;
        if crto { Some(Answer::result(4)) } else { csts_of(command, 0) }
    };
    let mut initiator = start(Script { answer, cap: 0x0800_0020_0201_007F, ..plain() });
    initiator.wait(Duration::from_millis(1900));
    assert!(initiator.events.is_empty());
    initiator.wait(Duration::from_millis(200));
    assert_eq!(*initiator.failure(), ConnectError::NotReady(2000));
}

fn ready_to_receive() {
    let by_write = start(Script { reply: |_| reply(0, 0x8000, 0x8010), ..plain() });
    let by_read = start(Script { reply: |_| reply(0, 0x8001, 0x4010), ..plain() });
    let without = Initiator::connected();
    assert_eq!(without.queues[0].others, []);
    let write = &by_write.queues[0].others[0];
    assert_eq!((write.control(), write.opcode(), write.payload().len()), (0xC1, WRITE, 0));
    let read = &by_read.queues[0].others[0];
    assert_eq!((read.opcode(), read.read().1, read.place()), (READ_REQUEST, 0, [1, 1, 0]));
}

fn replies_without_depths() {
    for revision in [1, 2] {
        let initiator = if revision == 1 {
            start(Script { reply: |_| mpa_frame(REPLY_KEY, 0, 1, &[0; 32]), ..plain() })
        } else {
            start(Script { reply: |_| mpa_frame(REPLY_KEY, 0, 2, &[0; 32]), ..plain() })
        };
        assert!(matches!(initiator.failure(), ConnectError::Refused { doing: Doing::Dial(0), .. }));
        assert!(initiator.queues[0].peer.is_over());
    }
}

fn replies_which_cannot_be() {
    let markers = start(Script { reply: |_| reply(MARKERS, 0, 16), ..plain() });
    assert_eq!(markers.queues[0].terminate().expect("a Terminate")[..2], [0x20, 5]);
    // A, and none of the forms.
    let neither = start(Script { reply: |_| reply(0, 0x8000, 16), ..plain() });
    assert_eq!(neither.queues[0].terminate().expect("a Terminate")[..2], [0x20, 7]);
    // More Reads than we said we take.
    let greedy = start(Script { reply: |_| reply(0, 0, 129), ..plain() });
    assert_eq!(greedy.queues[0].terminate().expect("a Terminate")[..2], [0x20, 6]);
    for initiator in [markers, neither, greedy] {
        assert!(matches!(initiator.failure(), ConnectError::Refused { .. }));
    }
}

fn no_reply() {
    for reply in [
        |_| b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
        |_| mpa_frame(b"MPA ID Req Frame", ENHANCED, 2, &[0; 36]),
    ] {
        let initiator = start(Script { reply, ..plain() });
        let ConnectError::Refused { reason, .. } = initiator.failure() else {
            panic!("{:?}", initiator.events)
        };
        assert!(matches!(**reason, RejectReason::Protocol(_)));
    }
}

fn crc_of_the_target() {
    let initiator = start(Script { reply: |_| reply(CRC, 0, 16), ..plain() });
    // The other end checks each one.
    assert_eq!(initiator.events.last(), Some(&HostEvent::Connected));
    assert_eq!(initiator.queues[0].request[16] & CRC, 0);
}

fn rejects() {
    let told = |reply: fn(u16) -> Vec<u8>| match start(Script { reply, ..plain() }).failure() {
        ConnectError::Rejected { doing: Doing::Dial(0), status } => status.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(told(|_| mpa_frame(REPLY_KEY, ENHANCED | REJECT, 2, &[0, 0, 0, 16, 0, 0, 6, 0])), 6);
    assert_eq!(told(|_| mpa_frame(REPLY_KEY, REJECT, 1, &[0, 0, 4, 0])), 4);
}

fn refused_connects() {
    let refused: fn(&_) -> _ = |command: &crate::initiator::Command| {
        let status = 0x182 << 1 | DNR;
        (command.sqe[0] == 0x7F && command.sqe[4] == 1).then(|| Answer {
            result: 0x0001_0100,
            status,
            ..Answer::default()
        })
    };
    let initiator = start(Script { answer: refused, ..plain() });
    let ConnectError::InvalidParameter { doing: Doing::Connect(0), parameter, .. } = initiator.failure()
    else {
        panic!("{:?}", initiator.events)
    };
    assert_eq!((parameter.in_data, parameter.offset), (true, 256));
    let host: fn(&_) -> _ = |command: &crate::initiator::Command| {
        (command.sqe[0] == 0x7F).then(|| Answer { status: 0x184 << 1 | DNR, ..Answer::default() })
    };
    assert!(matches!(
        start(Script { answer: host, ..plain() }).failure(),
        ConnectError::HostNotAllowed { .. }
    ));
}

fn authentication() {
    for (bit, answer) in [
        (17, (|command| connect_result(command, 1 << 17 | 7)) as fn(&_) -> _),
        (18, |command| connect_result(command, 1 << 18 | 7)),
    ] {
        let initiator = start(Script { answer, ..plain() });
        assert_eq!(*initiator.failure(), ConnectError::AuthenticationRequired, "bit {bit}");
    }
}

fn connect_result(command: &crate::initiator::Command, result: u64) -> Option<Answer> {
    (command.sqe[0] == 0x7F && command.sqe[4] == 1).then(|| Answer::result(result))
}

fn incompatible(identify: fn(&mut [u8])) -> ConnectError {
    start(Script { identify, ..plain() }).failure().clone()
}

fn incompatible_controllers() {
    let other = Incompatible::OtherController { connected: CNTLID, identified: 8 };
    assert_eq!(incompatible(|page| page[78] = 8), other.into());
    assert_eq!(incompatible(|page| page[320] = 0), Incompatible::KeepAlive.into());
    assert_eq!(
        incompatible(|page| page[1792..1794].copy_from_slice(&[3, 0])),
        Incompatible::CommandCapsule(48).into()
    );
    assert_eq!(incompatible(|page| page[1796] = 0), Incompatible::ResponseCapsule(0).into());
    assert_eq!(incompatible(|page| page[111] = 2), Incompatible::Discovery.into());
}

fn incompatible_data_pointers() {
    assert_eq!(incompatible(|page| page[536] &= !0b100), Incompatible::KeyedSgl.into());
    assert_eq!(incompatible(|page| page[1800] = 1), Incompatible::InCapsuleOffset(16).into());
}

fn queue_sizes() {
    let sqsize = |script| le(&start(script).sent(1, 0x7F)[0].sqe, 44, 2);
    assert_eq!(sqsize(Script { cap: 0x0000_0020_0F01_003F, ..plain() }), 63);
    assert_eq!(sqsize(Script { identify: |page| page[514] = 32, ..plain() }), 31);
    assert_eq!(sqsize(Script { identify: |page| page[514] = 0, ..plain() }), 127);
}

fn number_of_queues() {
    let initiator = Initiator::start(plain(), |options| options.nr_io_queues = 3);
    assert_eq!(le(&initiator.sent(0, 0x09)[0].sqe, 44, 4), 0x0002_0002);
    assert_eq!(initiator.queues.len(), 4);
    let answer: fn(&_) -> _ = |command: &crate::initiator::Command| {
        (command.sqe[0] == 9 && command.sqe[40] == 7).then(|| Answer::result(0x0001_0005))
    };
    let fewer = Initiator::start(Script { answer, ..plain() }, |options| options.nr_io_queues = 3);
    assert_eq!(fewer.queues.len(), 3, "two, as completion queues were granted");
}

fn flow_control() {
    let attributes = |initiator: &Initiator| initiator.sent(1, 0x7F)[0].sqe[46];
    assert_eq!(attributes(&Initiator::connected()), 0);
    let without = Initiator::start(plain(), |options| options.disable_sqflow = true);
    assert_eq!(attributes(&without), 0b100);
}

fn events() {
    let initiator = Initiator::connected();
    let configured =
        initiator.sent(0, 9).into_iter().find(|command| command.sqe[40] == 0x0B).expect("it was asked");
    assert_eq!(le(&configured.sqe, 44, 4), 0x100);
    let requests = initiator.sent(0, 0x0C);
    assert_eq!((requests.len(), requests[0].keyed().1), (1, 0));
    let without = start(Script { identify: |page| page[93] = 0, ..plain() });
    assert!(without.sent(0, 0x0C).is_empty());
}

fn keep_alive() {
    let mut initiator = Initiator::connected();
    initiator.wait(Duration::from_millis(10_100));
    assert_eq!(initiator.sent(0, 0x18).len(), 4);
    initiator.script.answer =
        |command| (command.sqe[0] == 0x18).then(|| Answer { never: true, ..Answer::default() });
    initiator.wait(Duration::from_secs(8));
    assert_eq!(*initiator.lost(), ironside_initiator::host::Fault::KeepAlive(5000));
}

fn shutdown() {
    for (cap, value) in [(0x0000_0020_0F01_007F, 0x0046_4001), (SEVERAL_COMMAND_SETS, 0x0046_4061)] {
        let mut initiator = start(Script { cap, ..plain() });
        initiator.close();
        initiator.wait(Duration::from_millis(100));
        assert_eq!(written(&initiator)[2..], [value]);
        assert_eq!(initiator.events.last(), Some(&HostEvent::Closed));
        assert!(initiator.queues.iter().all(|queue| queue.peer.is_over()));
    }
}

fn silence() {
    let mut initiator = start(Script { reply: |_| Vec::new(), ..plain() });
    initiator.wait(Duration::from_millis(4900));
    assert!(initiator.events.is_empty());
    initiator.wait(Duration::from_millis(300));
    let gave_up = ConnectError::TimedOut { doing: Doing::Dial(0), seconds: 5 };
    assert_eq!(*initiator.failure(), gave_up);
}
