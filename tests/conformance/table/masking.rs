//! Who may see what: namespaces which are for some hosts alone, and hosts which are not admitted any more.
use crate::queue::{HOST, Queue, SUCCESS, Status};
use crate::target::{FRIEND, OPEN, Target};
use crate::wire::{Sqe, connect, connect_data, le, property_set};
use crate::{Requirement, row};

const INVALID_NAMESPACE: Status = (0, 0x0B, true);
const PATH_ERROR: Status = (3, 0x00, false);
const INACTIVE: &str = "NVMe Base 2.2, 3.2.1.4 (inactive NSIDs)";

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "masking-1",
        INACTIVE,
        "a namespace which a host may not see is in no list, its structures are of zeros, it has no descriptors",
        identify_shows_nothing,
    ),
    row(
        "masking-2",
        INACTIVE,
        "I/O commands and features of it are Invalid Namespace or Format, whatever they are",
        commands_find_nothing,
    ),
    row("masking-3", INACTIVE, "neither the access log nor the health log knows it", logs_name_nothing),
    row(
        "masking-4",
        "NVMe Base 2.2, 5.1.2 (Namespace Attribute Changed)",
        "hosts which begin to see it, or cease to, are told and read its number; others are not",
        only_who_is_concerned_is_told,
    ),
    row(
        "masking-5",
        "ours",
        "a command at its medium when the namespace goes from its host's sight is finished; what waits is refused",
        what_is_under_way,
    ),
    row(
        "masking-6",
        "ours",
        "once a host is removed and all is settled, its queues are gone and nothing of it is at a medium",
        a_host_is_removed,
    ),
];

/// The admin queue and an I/O queue of a host.
fn host(target: &Target, nqn: &str, host_id: [u8; 16]) -> (Queue, Queue) {
    let mut admin = Queue::dial_admin(target);
    let data = connect_data(host_id, 0xFFFF, OPEN, nqn);
    let cntlid = admin.write(connect(0, 31, 0), &data).succeeded().result() as u16;
    admin.command(property_set(0x14, 0x0046_0001)).succeeded();
    let mut io = Queue::dial_io(target, cntlid, 1);
    io.write(connect(1, 15, 0), &connect_data(host_id, cntlid, OPEN, nqn)).succeeded();
    (admin, io)
}

/// One host which does not see namespace 2, and one which does.
fn both(target: &Target) -> [(Queue, Queue); 2] {
    target.show_to(2, 2, FRIEND);
    [host(target, HOST, [1; 16]), host(target, FRIEND, [2; 16])]
}

fn identify(admin: &mut Queue, cns: u32, nsid: u32) -> Vec<u8> {
    admin.fetch(Sqe::new(0x06).nsid(nsid).dword(40, cns), 4096)
}

fn listed(admin: &mut Queue, cns: u32) -> Vec<u64> {
    let list = identify(admin, cns, 0);
    list.chunks(4).map(|nsid| le(nsid, 0, 4)).take_while(|&nsid| nsid != 0).collect()
}

fn identify_shows_nothing() {
    let target = Target::new();
    let [(mut admin, _io), (mut friend, _friends_io)] = both(&target);
    for cns in [0x02, 0x07] {
        assert_eq!((listed(&mut admin, cns), listed(&mut friend, cns)), (vec![1, 3], vec![1, 2, 3]));
    }
    for cns in [0x00, 0x05, 0x08] {
        assert_eq!(identify(&mut admin, cns, 2), [0; 4096], "{cns:#x}");
    }
    assert_ne!(identify(&mut friend, 0x00, 2), [0; 4096]);
    let descriptors = Sqe::new(0x06).nsid(2).dword(40, 3);
    assert_eq!(admin.read(descriptors, 4096).0.status(), INVALID_NAMESPACE);
    assert_eq!(friend.read(descriptors, 4096).0.status(), SUCCESS);
}

fn commands_find_nothing() {
    let target = Target::new();
    let [(mut admin, mut io), (_friend, mut friends_io)] = both(&target);
    assert_eq!(io.read(Sqe::new(0x02).nsid(2), 4096).0.status(), INVALID_NAMESPACE);
    assert_eq!(io.write(Sqe::new(0x01).nsid(2), &[7; 4096]).status(), INVALID_NAMESPACE);
    assert_eq!(io.write(Sqe::new(0x0D).nsid(2), &[0; 16]).status(), INVALID_NAMESPACE);
    assert_eq!(io.read(Sqe::new(0x0E).nsid(2).dword(40, 15).dword(44, 1), 64).0.status(), INVALID_NAMESPACE);
    for opcode in [0x00, 0x08, 0x0C, 0x7E] {
        assert_eq!(io.command(Sqe::new(opcode).nsid(2)).status(), INVALID_NAMESPACE, "{opcode:#x}");
    }
    for feature in [0x82, 0x83] {
        for opcode in [0x09, 0x0A] {
            let command = Sqe::new(opcode).nsid(2).dword(40, feature);
            assert_eq!(admin.command(command).status(), INVALID_NAMESPACE, "{opcode:#x} of {feature:#x}");
        }
    }
    assert_eq!(friends_io.fetch(Sqe::new(0x02).nsid(2), 4096), [0; 4096], "nothing was written");
    assert_eq!(io.read(Sqe::new(0x02).nsid(1), 512).0.status(), SUCCESS, "others are as they were");
}

fn logs_name_nothing() {
    let target = Target::new();
    let [(mut admin, _io), (mut friend, _friends_io)] = both(&target);
    let access = |admin: &mut Queue| {
        let page = admin.fetch(Sqe::new(0x02).nsid(u32::MAX).dword(40, 0x0C | 63 << 16), 256);
        [20, 48, 52].map(|at| le(&page, at, 4))
    };
    assert_eq!((access(&mut admin), access(&mut friend)), ([1, 1, 2], [2, 1, 2]));
    let page = admin.fetch(Sqe::new(0x02).nsid(u32::MAX).dword(40, 0x0C | 63 << 16), 256);
    assert_eq!((le(&page, 20, 4), le(&page, 48, 4), le(&page, 52, 4)), (1, 1, 2), "behind it comes group 2");
    let health = Sqe::new(0x02).nsid(2).dword(40, 0x02 | 127 << 16);
    assert_eq!(admin.read(health, 512).0.status(), INVALID_NAMESPACE);
    assert_eq!(friend.read(health, 512).0.status(), SUCCESS);
}

fn changed(admin: &mut Queue) -> Vec<u64> {
    let page = admin.fetch(Sqe::new(0x02).nsid(u32::MAX).dword(40, 0x04 | 1023 << 16), 4096);
    page.chunks(4).map(|nsid| le(nsid, 0, 4)).take_while(|&nsid| nsid != 0).collect()
}

fn only_who_is_concerned_is_told() {
    const STRANGER: &str = "nqn.2014-08.org.example:stranger";
    let target = Target::new();
    let [(mut admin, mut io), (mut friend, mut friends_io)] = both(&target);
    let (mut stranger, _strangers_io) = host(&target, STRANGER, [3; 16]);
    let requests = [&mut admin, &mut friend, &mut stranger].map(|queue| {
        queue.command(Sqe::new(0x09).dword(40, 0x0B).dword(44, 1 << 8)).succeeded();
        queue.submit(Sqe::new(0x0C), &[])
    });
    target.show_to(3, 2, HOST);
    assert_eq!(admin.response_to(requests[0]).succeeded().result(), 0x0004_0002);
    assert_eq!(friend.response_to(requests[1]).succeeded().result(), 0x0004_0002);
    assert!(stranger.poll(requests[2]).is_none(), "it never saw it");
    assert_eq!(
        (changed(&mut admin), changed(&mut friend), changed(&mut stranger)),
        (vec![2], vec![2], vec![])
    );
    assert_eq!(io.read(Sqe::new(0x02).nsid(2), 4096).0.status(), SUCCESS);
    assert_eq!(friends_io.read(Sqe::new(0x02).nsid(2), 4096).0.status(), INVALID_NAMESPACE);
}

/// A write which has reached the medium of namespace 2, and one which waits for its data.
fn begin(io: &mut Queue) -> [u16; 2] {
    let begun = io.submit(Sqe::new(0x01).nsid(2).sgl(crate::wire::capsule_sgl(0, 4096)), &[7; 4096]);
    io.holds_reads = true;
    let at = io.expose(vec![7; 8192]);
    let sqe = Sqe::new(0x01).nsid(2).qword(40, 64).dword(48, 1);
    [begun, io.submit(sqe.sgl(crate::wire::keyed_sgl(at, 8192, 0x4F)), &[])]
}

fn deliver(io: &mut Queue) {
    io.holds_reads = false;
    for segment in std::mem::take(&mut io.held_reads) {
        io.answer_read(&segment);
    }
}

fn what_is_under_way() {
    let target = Target::new();
    let [(_admin, mut io), (_friend, mut friends_io)] = both(&target);
    target.stall(true);
    let [begun, waiting] = begin(&mut friends_io);
    target.show_to(3, 2, HOST);
    assert!(!target.is_settled(), "the first is at its medium");
    deliver(&mut friends_io);
    assert_eq!(friends_io.response_to(waiting).status(), INVALID_NAMESPACE);
    target.stall(false);
    assert_eq!(friends_io.response_to(begun).status(), SUCCESS);
    assert!(target.is_settled());
    assert_eq!(io.fetch(Sqe::new(0x02).nsid(2), 4096), [7; 4096], "it was written whole");
    assert_eq!(io.fetch(Sqe::new(0x02).nsid(2).qword(40, 64).dword(48, 1), 8192), [0; 8192]);
}

fn a_host_is_removed() {
    let target = Target::new();
    let (admin, mut io) = host(&target, HOST, [1; 16]);
    let (_friend, mut friends_io) = host(&target, FRIEND, [2; 16]);
    target.stall(true);
    let [_, waiting] = begin(&mut io);
    target.admit(2, FRIEND);
    assert!(!target.is_settled());
    deliver(&mut io);
    assert!(
        io.poll(waiting).is_none_or(|response| response.status() == PATH_ERROR),
        "there may be another way"
    );
    target.run();
    assert!(!target.is_settled(), "a write of it is at its medium");
    target.stall(false);
    for queue in [&admin, &io] {
        queue.peer.end();
    }
    target.run();
    assert!(target.is_settled());
    assert_eq!(friends_io.fetch(Sqe::new(0x02).nsid(2).qword(40, 64).dword(48, 1), 8192), [0; 8192]);
    let mut again = Queue::dial_admin(&target);
    let refused = again.write(connect(0, 31, 0), &connect_data([1; 16], 0xFFFF, OPEN, HOST));
    assert_eq!(refused.status(), (1, 0x84, true));
}
