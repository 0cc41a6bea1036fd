//! Our host at work: its commands, the memory it lets the target reach, and what it makes of a target which gets
//! something wrong.
use ironside_common::verbs::Registration;
use ironside_initiator::host::{Fault, HostEvent};
use ironside_initiator::volume::{IoError, Operation};

use crate::initiator::{Answer, Command, Initiator, Script, response};
use crate::wire::{At, READ_RESPONSE, capsule_sgl, le, read_request};
use crate::{Requirement, row};

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "host-io-1",
        "NVM Command Set 1.2, 3.3.4",
        "a Read names SLBA, NLB 0's based and a keyed data block to be invalidated",
        read,
    ),
    row(
        "host-io-2",
        "NVMe RDMA 1.0, 3.3",
        "a Write which fits a capsule brings its data there at offset 0",
        small_write,
    ),
    row(
        "host-io-3",
        "NVMe RDMA 1.0, 3.3",
        "a Write which does not is fetched from where it says, and is what was to be written",
        large_write,
    ),
    row(
        "host-io-4",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313 (SGLS, IOCCSZ)",
        "nothing is put in a capsule without SGLS bit 20, nor beyond IOCCSZ",
        in_capsule_as_offered,
    ),
    row(
        "host-io-5",
        "NVM Command Set 1.2, 3.3.6",
        "FUA is bit 30 of dword 12 of a Write, and only of one which is to be durable",
        fua,
    ),
    row("host-io-6", "NVMe Base 2.2, 7.2", "Flush names its namespace and brings no data", flush),
    row(
        "host-io-7",
        "NVM Command Set 1.2, 3.3.8",
        "Write Zeroes brings no data; DEAC only where deallocated blocks read as zeroes",
        write_zeroes,
    ),
    row(
        "host-io-8",
        "NVM Command Set 1.2, 3.3.3",
        "a discard is one range (NR 0) of attributes, a count and SLBA, with the deallocate attribute",
        discard,
    ),
    row(
        "host-io-9",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313 (MDTS)",
        "a request longer than MDTS becomes several commands",
        long_requests,
    ),
    row(
        "host-io-10",
        "NVMe Base 2.2, 4.1.1, figure 91; 3.3.2.6",
        "commands outstanding have different identifiers, and a queue of n entries n - 1 of them",
        identifiers_and_queue_depth,
    ),
    row(
        "host-io-11",
        "NVMe RDMA 1.0, 3.6",
        "after a response which invalidated it, a key opens nothing",
        keys_die_with_their_response,
    ),
    row(
        "host-io-12",
        "NVMe RDMA 1.0, 3.6",
        "a response without the invalidation is fine, and the key is invalidated by the host",
        local_invalidation,
    ),
    row(
        "host-io-13",
        "NVMe RDMA 1.0, 3.6",
        "a response which invalidates another key is the end of the connection",
        wrong_key,
    ),
    row(
        "host-io-14",
        "RFC 5040, 4.8 and 7.2",
        "a Read's buffer can be written, not read: that is Terminate, remote protection, access rights",
        rights_of_a_read,
    ),
    row(
        "host-io-15",
        "RFC 5041, 7.1 and 7.2",
        "a Write's buffer can be read, not written: that is Terminate, tagged buffer, invalid STag",
        rights_of_a_write,
    ),
    row(
        "host-io-16",
        "RFC 5041, 7.1 and 7.2",
        "a Write beyond what was exposed, or whose offset wraps, is Terminate, and no byte of it is placed",
        bounds_of_a_buffer,
    ),
    row(
        "host-io-17",
        "NVMe Base 2.2, 4.2.1, figure 98",
        "a response to a command which is not outstanding is the end of the connection",
        unknown_command,
    ),
    row(
        "host-io-18",
        "NVMe RDMA 1.0, 3.3, figure 9",
        "a response of fewer than 16 bytes is the end of the connection",
        short_response,
    ),
    row(
        "host-io-19",
        "NVMe Base 2.2, 3.3.2.5 and 3.3.2.6",
        "an SQHD beyond the queue is the end of the connection; after disabling, SQHD is not looked at",
        queue_head,
    ),
    row(
        "host-io-20",
        "NVMe Base 2.2, 4.2.3",
        "a status is told as what it means: medium, space, protection, range",
        statuses,
    ),
    row(
        "host-io-21",
        "NVMe Base 2.2, 5.1.2, figure 152",
        "on a namespace event the changed list is read, the namespaces anew, and another request is left",
        namespace_event,
    ),
    row(
        "host-io-22",
        "RFC 5040, 5.5",
        "as many RDMA Reads as the host said are answered at once, in their order",
        reads_are_answered_in_order,
    ),
    row(
        "host-io-23",
        "NVMe RDMA 1.0, 3.6",
        "where a key is not the target's to end, no invalidation is asked for, and one is Terminate: code 9",
        keys_of_others_stay,
    ),
    row(
        "host-io-24",
        "RFC 5040, 7.2",
        "a key made for one command alone has its right and bounds, and opens nothing after the response",
        keys_made_for_a_command,
    ),
    row(
        "host-io-25",
        "RFC 5040, 7.2",
        "the key of the pool goes both ways and lasts, within the pool",
        keys_of_the_pool,
    ),
    row(
        "host-io-26",
        "RFC 5040, 7.2",
        "memory of a program's own is lent for single commands, also where buffers are lent for good",
        keys_of_memory_in_place,
    ),
    row(
        "host-io-27",
        "RFC 5040, 7.2",
        "a Read beyond what was exposed is remote protection, code 1, one which wraps code 4, and gets not a byte",
        bounds_of_a_read,
    ),
    row(
        "host-io-28",
        "NVMe Base 2.2, 3.3.2.1.2; NVM Command Set 1.2, 3.3.4",
        "success of a Read whose data was not written, or not to the end, is an error, never data",
        data_not_written,
    ),
];

/// A connected host which has sent the command for this request, and the command.
fn asked(operation: Operation, offset: u64, length: u64) -> (Initiator, Command) {
    asked_of(Script::default(), operation, offset, length)
}

fn asked_of(script: Script, operation: Operation, offset: u64, length: u64) -> (Initiator, Command) {
    let mut initiator = Initiator::start(script, |_| {});
    assert_eq!(initiator.events.last(), Some(&HostEvent::Connected));
    initiator.fill(&[0xA5; 1 << 16]);
    initiator.submit(operation, offset, length);
    let command = initiator.commands.last().expect("it was sent").clone();
    assert_eq!(command.qid, 1);
    (initiator, command)
}

/// The same, the command not being answered.
fn unanswered(operation: Operation, length: u64) -> (Initiator, Command) {
    unanswered_of(Script::default(), operation, length)
}

fn unanswered_of(script: Script, operation: Operation, length: u64) -> (Initiator, Command) {
    let answer: fn(&Command) -> _ = |command| {
        (command.qid == 1 && command.sqe[0] != 0x7F).then(|| Answer { never: true, ..Answer::default() })
    };
    asked_of(Script { answer, ..script }, operation, 0, length)
}

fn lending(registration: Registration) -> Script {
    Script { registration, ..Script::default() }
}

fn read() {
    let (initiator, command) = asked(Operation::Read, 0x1000, 8192);
    let sqe = &command.sqe;
    assert_eq!((sqe[0], sqe[1], le(sqe, 4, 4)), (2, 0x40, 1));
    assert_eq!((le(sqe, 40, 8), le(sqe, 48, 2)), (8, 15));
    assert_eq!((sqe[39], command.keyed().1, &sqe[50..]), (0x4F, 8192, &[0; 14][..]));
    assert_eq!(initiator.bytes(8193)[8191..], [0x5A, 0xA5]);
    assert_eq!(initiator.completed[0].result, Ok(()));
}

fn small_write() {
    for length in [512, 4096] {
        let (_, command) = asked(Operation::Write { fua: false }, 0, length);
        assert_eq!((command.sqe[0], le(&command.sqe, 48, 2)), (1, length / 512 - 1));
        assert_eq!(command.sqe[24..40], capsule_sgl(0, length as u32));
        assert_eq!(command.data, vec![0xA5; length as usize]);
    }
}

fn large_write() {
    let (_, command) = asked(Operation::Write { fua: false }, 0, 8192);
    assert_eq!((command.sqe[39], command.keyed().1), (0x4F, 8192));
    assert_eq!(command.data, [0xA5; 8192]);
}

fn in_capsule_as_offered() {
    let keyed = |identify| {
        let script = Script { identify, ..Script::default() };
        asked_of(script, Operation::Write { fua: false }, 0, 1024).1.sqe[39] >> 4 == 4
    };
    assert!(!keyed(|_| {}));
    assert!(keyed(|page| page[538] = 0));
    assert!(keyed(|page| page[1792..1794].copy_from_slice(&[36, 0])));
}

fn fua() {
    for durable in [false, true] {
        let (_, command) = asked(Operation::Write { fua: durable }, 0, 512);
        assert_eq!(le(&command.sqe, 48, 4), u64::from(durable) << 30);
    }
}

fn flush() {
    let (_, command) = asked(Operation::Flush, 0, 0);
    assert_eq!((command.sqe[0], le(&command.sqe, 4, 4)), (0, 1));
    let mut sgl = [0; 16];
    sgl[15] = 0x40;
    assert_eq!((&command.sqe[24..40], &command.sqe[40..]), (&sgl[..], &[0; 24][..]));
}

fn write_zeroes() {
    let (_, command) = asked(Operation::WriteZeroes { unmap: true, fua: false }, 512, 1024);
    let sqe = &command.sqe;
    assert_eq!((sqe[0], le(sqe, 40, 8), le(sqe, 48, 4)), (8, 1, 1));
    assert_eq!((command.keyed().1, command.data.len()), (0, 0));
}

fn discard() {
    let (_, command) = asked(Operation::Discard, 1024, 4096);
    let sqe = &command.sqe;
    assert_eq!((sqe[0], le(sqe, 40, 4), le(sqe, 44, 4)), (9, 0, 0b100));
    let mut range = [0; 16];
    (range[4], range[8]) = (8, 2);
    assert_eq!(command.data, range);
}

fn long_requests() {
    let script = Script { identify: |page| page[77] = 1, ..Script::default() };
    let (initiator, _) = asked_of(script, Operation::Read, 0, 20 * 1024);
    let lengths: Vec<u32> = initiator.sent(1, 2).iter().map(|command| command.keyed().1).collect();
    assert_eq!(lengths, [8192, 8192, 4096]);
    assert_eq!(initiator.completed.len(), 1);
}

fn identifiers_and_queue_depth() {
    let answer: fn(&Command) -> _ = |command| {
        (command.sqe[0] == 2 && command.qid == 1).then(|| Answer { never: true, ..Answer::default() })
    };
    let mut initiator =
        Initiator::start(Script { answer, ..Script::default() }, |options| options.queue_size = 16);
    for block in 0..20 {
        initiator.submit(Operation::Read, block * 512, 512);
    }
    let mut cids: Vec<u16> = initiator.sent(1, 2).iter().map(|command| command.cid()).collect();
    assert_eq!(cids.len(), 15);
    cids.sort_unstable();
    cids.dedup();
    assert_eq!(cids.len(), 15);
}

/// Lets the target write to the buffer of an answered command, and gives the Terminate that follows.
fn write_after(mut initiator: Initiator, at: At) -> [u8; 2] {
    initiator.queues[1].write(at, &[0; 8]);
    initiator.run();
    terminate(&initiator)
}

fn terminate(initiator: &Initiator) -> [u8; 2] {
    let payload = initiator.queues[1].terminate().expect("a Terminate");
    [payload[0], payload[1]]
}

fn keys_die_with_their_response() {
    let (initiator, command) = asked(Operation::Read, 0, 4096);
    assert_eq!(write_after(initiator, command.keyed().0), [0x11, 0]);
}

fn local_invalidation() {
    let answer: fn(&Command) -> _ = |command| {
        (command.sqe[0] == 2 && command.qid == 1).then(|| Answer {
            data: vec![1; 4096],
            plain: true,
            ..Answer::default()
        })
    };
    let (initiator, command) = asked_of(Script { answer, ..Script::default() }, Operation::Read, 0, 4096);
    assert_eq!(initiator.completed[0].result, Ok(()));
    assert_eq!(write_after(initiator, command.keyed().0), [0x11, 0]);
}

fn wrong_key() {
    let (mut initiator, command) = unanswered(Operation::Read, 4096);
    let (at, _) = command.keyed();
    // The key of another command, which is in force.
    initiator.submit(Operation::Read, 0, 512);
    let other = initiator.commands.last().expect("it was sent").keyed().0.0;
    initiator.queues[1].respond(&response(&command, &Answer::default()), Some(other));
    initiator.run();
    assert_eq!(*initiator.lost(), Fault::WrongKey { named: other, exposed: Some(at.0) });
}

fn data_not_written() {
    fn told<const WRITTEN: usize>() -> (Initiator, Command) {
        let answer: fn(&Command) -> _ = |command| {
            (command.sqe[0] == 2 && command.qid == 1)
                .then(|| Answer { data: vec![0xA5; WRITTEN], ..Answer::default() })
        };
        asked_of(Script { answer, ..Script::default() }, Operation::Read, 0, 16_384)
    }
    assert_eq!(told::<16_384>().0.completed[0].result, Ok(()));
    for (mut initiator, _) in [told::<0>(), told::<4096>(), told::<12_288>(), told::<16_368>()] {
        assert_eq!(initiator.completed[0].result, Err(IoError::NoData));
        initiator.submit(Operation::Flush, 0, 0);
        assert_eq!(initiator.completed[1].result, Ok(()), "the connection stands");
    }
}

fn rights_of_a_read() {
    let (mut initiator, command) = unanswered(Operation::Read, 4096);
    initiator.queues[1].send_segment(&read_request(1, (9, 0), 512, command.keyed().0));
    initiator.run();
    assert_eq!(terminate(&initiator), [0x01, 2]);
}

fn rights_of_a_write() {
    let (initiator, command) = unanswered(Operation::Write { fua: false }, 8192);
    assert_eq!(write_after(initiator, command.keyed().0), [0x11, 0]);
}

fn bounds_of_a_buffer() {
    for (offset, length, reason) in [(4096, 1, [0x11, 1]), (4095, 2, [0x11, 1]), (-1, 1, [0x11, 1])] {
        let (mut initiator, command) = unanswered(Operation::Read, 4096);
        let (stag, base) = command.keyed().0;
        let before = initiator.bytes(8192);
        initiator.queues[1].write((stag, base.wrapping_add_signed(offset)), &vec![0; length]);
        initiator.run();
        assert_eq!(terminate(&initiator), reason, "offset {offset}");
        assert_eq!(initiator.bytes(8192), before);
    }
    let (mut initiator, command) = unanswered(Operation::Read, 4096);
    initiator.queues[1].write((command.keyed().0.0, u64::MAX - 3), &[0; 8]);
    initiator.run();
    assert_eq!(terminate(&initiator), [0x11, 3], "wraps");
}

fn unknown_command() {
    let (mut initiator, mut command) = unanswered(Operation::Read, 4096);
    command.sqe[2] ^= 1;
    initiator.queues[1].respond(&response(&command, &Answer::default()), None);
    initiator.run();
    assert_eq!(*initiator.lost(), Fault::UnknownCommand(command.cid()));
}

fn short_response() {
    let (mut initiator, command) = unanswered(Operation::Read, 4096);
    let entry = response(&command, &Answer::default());
    initiator.queues[1].respond(&entry[..15], None);
    initiator.run();
    assert_eq!(*initiator.lost(), Fault::ResponseLength(15));
}

fn queue_head() {
    let beyond: fn(&Command) -> _ = |command| {
        (command.sqe[0] == 0 && command.qid == 1).then(|| Answer { sqhd: Some(0xFFFE), ..Answer::default() })
    };
    let (initiator, _) = asked_of(Script { answer: beyond, ..Script::default() }, Operation::Flush, 0, 0);
    assert_eq!(*initiator.lost(), Fault::QueueHead { head: 0xFFFE, size: 128 });
    let disabled: fn(&Command) -> _ = |command| match (command.qid, command.sqe[0]) {
        (_, 0x7F) if command.sqe[4] == 1 => Some(Answer { sqhd: Some(0xFFFF), ..Answer::result(7) }),
        (1, 0) => Some(Answer { sqhd: Some(0xFFFE), ..Answer::default() }),
        _ => None,
    };
    let script = Script { answer: disabled, ..Script::default() };
    let mut initiator = Initiator::start(script, |options| options.disable_sqflow = true);
    initiator.submit(Operation::Flush, 0, 0);
    assert_eq!(initiator.completed[0].result, Ok(()));
}

fn statuses() {
    let told = |answer| {
        let script = Script { answer, ..Script::default() };
        asked_of(script, Operation::Write { fua: false }, 0, 512).0.completed[0].result
    };
    assert_eq!(told(|command| failed(command, 0x080)), Err(IoError::OutOfRange));
    assert_eq!(told(|command| failed(command, 0x081)), Err(IoError::NoSpace));
    assert_eq!(told(|command| failed(command, 0x020)), Err(IoError::ReadOnly));
    assert_eq!(told(|command| failed(command, 0x083)), Err(IoError::ReservationConflict));
    assert_eq!(told(|command| failed(command, 0x280)), Err(IoError::Medium));
}

/// A Write's answer: this type and code, Do Not Retry.
fn failed(command: &Command, status: u16) -> Option<Answer> {
    let write = command.qid == 1 && command.sqe[0] == 1;
    write.then(|| Answer { status: status << 1 | 1 << 15, ..Answer::default() })
}

fn namespace_event() {
    let mut initiator = Initiator::connected();
    let request = initiator.sent(0, 0x0C)[0].clone();
    let before = initiator.commands.len();
    initiator.answer(&request, &Answer::result(0x0004_0002));
    initiator.run();
    let after: Vec<(u8, u8)> =
        initiator.commands[before..].iter().map(|command| (command.sqe[0], command.sqe[40])).collect();
    assert_eq!(after[..2], [(0x0C, 0), (0x02, 0x04)]);
    assert!(after.contains(&(0x06, 2)) && after.contains(&(0x06, 0)));
    let log = initiator.sent(0, 0x02)[0].clone();
    assert_eq!((le(&log.sqe, 4, 4), le(&log.sqe, 42, 2), log.sqe[41]), (0xFFFF_FFFF, 1023, 0));
}

fn reads_are_answered_in_order() {
    let (mut initiator, command) = unanswered(Operation::Write { fua: false }, 1 << 16);
    // The scripted target has fetched all by number 1; now it asks again, piece by piece and at once.
    let (stag, base) = command.keyed().0;
    for piece in 0..16 {
        let at = (stag, base + u64::from(piece) * 4096);
        initiator.queues[1].send_segment(&read_request(2 + piece, (100 + piece, 0), 4096, at));
    }
    initiator.queues[1].collects_responses = true;
    initiator.run();
    let sinks: Vec<u32> = initiator.queues[1]
        .others
        .iter()
        .filter(|segment| segment.opcode() == READ_RESPONSE && segment.is_last())
        .map(|segment| segment.at().0)
        .collect();
    assert_eq!(sinks, (100..116).collect::<Vec<_>>());
}

fn keys_of_others_stay() {
    for registration in [Registration::Pool, Registration::Dynamic] {
        let (mut initiator, command) = unanswered_of(lending(registration), Operation::Read, 4096);
        assert_eq!(command.sqe[39], 0x40, "a key without invalidation");
        let key = command.keyed().0.0;
        initiator.queues[1].respond(&response(&command, &Answer::default()), Some(key));
        initiator.run();
        let [kind, code] = terminate(&initiator);
        assert_eq!((kind >> 4, code), (0, 9), "{registration:?}");
    }
}

fn keys_made_for_a_command() {
    exposed_for_one_command(|| lending(Registration::Dynamic));
}

fn keys_of_memory_in_place() {
    for registration in [Registration::Window, Registration::Pool, Registration::Dynamic] {
        exposed_for_one_command(|| Script { in_place: true, ..lending(registration) });
    }
}

/// Right, bounds and end of the key of one command.
fn exposed_for_one_command(script: impl Fn() -> Script) {
    let (initiator, command) = asked_of(script(), Operation::Read, 0, 4096);
    assert_eq!(initiator.completed[0].result, Ok(()));
    assert_eq!(initiator.bytes(4096), [0x5A; 4096]);
    assert_eq!(write_after(initiator, command.keyed().0), [0x11, 0], "its command is over");
    let (initiator, command) = unanswered_of(script(), Operation::Write { fua: false }, 8192);
    assert_eq!(write_after(initiator, command.keyed().0), [0x11, 0], "the other direction");
    let (initiator, command) = unanswered_of(script(), Operation::Read, 4096);
    let (stag, base) = command.keyed().0;
    assert_eq!(write_after(initiator, (stag, base + 4089)), [0x11, 1], "beyond its buffer");
}

fn keys_of_the_pool() {
    let (mut initiator, command) = asked_of(lending(Registration::Pool), Operation::Read, 0, 4096);
    assert_eq!(initiator.completed[0].result, Ok(()));
    let (stag, base) = command.keyed().0;
    initiator.queues[1].write((stag, base + 8192), &[1; 8]);
    initiator.queues[1].collects_responses = true;
    initiator.queues[1].send_segment(&read_request(1, (9, 0), 512, (stag, base)));
    initiator.run();
    assert_eq!(initiator.bytes(8200)[8192..], [1; 8], "another buffer's bytes");
    let answered = initiator.queues[1].others.iter().find(|segment| segment.opcode() == READ_RESPONSE);
    assert_eq!(answered.expect("it may be read too").payload(), [0x5A; 512]);
    assert_eq!(write_after(initiator, (stag, base + (1 << 20) - 7)), [0x11, 1], "beyond the pool");
}

fn bounds_of_a_read() {
    let wrap = u64::MAX - 3;
    for (offset, length, code) in [(8192, 1, 1), (8191, 2, 1), (u64::MAX, 1, 1), (0, 8193, 1), (wrap, 5, 4)] {
        // The first Read fetched what is to be written.
        let (mut initiator, command) = unanswered(Operation::Write { fua: false }, 8192);
        let (stag, base) = command.keyed().0;
        let address = if code == 4 { offset } else { base.wrapping_add(offset) };
        initiator.queues[1].collects_responses = true;
        initiator.queues[1].send_segment(&read_request(2, (9, 0), length, (stag, address)));
        initiator.run();
        assert_eq!(terminate(&initiator), [0x01, code], "{length} bytes at {offset:#x}");
        assert!(!initiator.queues[1].others.iter().any(|segment| segment.opcode() == READ_RESPONSE));
    }
}
