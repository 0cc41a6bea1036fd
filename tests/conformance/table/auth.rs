//! Authentication: the gate, and every message of DH-HMAC-CHAP, by a host of bytes.
use std::time::Duration;

use ironside_common::auth::{Group, Hash, Policy};

use crate::mpa::bytes_of;
use crate::prover::{
    Challenged, GROUPS, LENGTHS, OTHER_SECRET, SECRET, admin, authenticate, challenged, command, fails,
    fails_after, hmac, key, negotiate, other_key, policy, receive, response, send, success2, target,
    target_with,
};
use crate::queue::{HOST, HOST_ID, Queue, Response, Status};
use crate::target::{OPEN, Target};
use crate::wire::{Sqe, connect, connect_data, le, property_get, property_set};
use crate::{Requirement, row};

const INVALID_FIELD: Status = (0, 0x02, true);
const REQUIRED: Status = (1, 0x91, true);

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "auth-1",
        "NVMe Base 2.2, 6.3, figure 549 (AUTHREQ)",
        "Connect of a host which has to authenticate succeeds, and says so by ATR, bit 17 of the result, alone",
        connect_asks_for_it,
    ),
    row(
        "auth-2",
        "NVMe Base 2.2, 3.3.2.3 and 8.3.4.2",
        "until a host has authenticated every other command on its admin queue is Authentication Required",
        nothing_else_on_an_admin_queue,
    ),
    row(
        "auth-3",
        "NVMe Base 2.2, 3.3.2.3 and 8.3.4.2",
        "each I/O queue authenticates by itself: until then no command is served, and no block read or written",
        nothing_else_on_an_io_queue,
    ),
    row(
        "auth-4",
        "NVMe Base 2.2, 8.3.4.2.2, figures 729 and 730",
        "SECP is E9h and both SPSP are 01h; any other is Invalid Field, and the authentication goes on",
        protocol_of_the_commands,
    ),
    row(
        "auth-5",
        "NVMe Base 2.2, 8.3.4.5.3, figures 741 to 743",
        "a Challenge has each field in its place: T_ID of the host, lengths, hash and group, S1 not 0, C1 and g^x",
        layout_of_a_challenge,
    ),
    row(
        "auth-6",
        "NVMe Base 2.2, 8.3.4.5.4 and 8.3.4.5.5, figures 744 and 745",
        "the host whose response is right hears Success1 without a response, and its queue works, with every hash",
        success_one_way,
    ),
    row(
        "auth-7",
        "NVMe Base 2.2, 8.3.4.5.4",
        "with a group the challenge is augmented by the hash of what both computed",
        success_with_a_group,
    ),
    row(
        "auth-8",
        "NVMe Base 2.2, 8.3.4.5.5 and 8.3.4.5.6",
        "a host which challenges gets the right R2, and its queue works from Success2 on, not before",
        success_both_ways,
    ),
    row(
        "auth-9",
        "NVMe Base 2.2, 8.3.4.5.4 (SEQNUM)",
        "with S2 0 a challenge is not for the subsystem to answer",
        challenge_for_a_secure_channel,
    ),
    row(
        "auth-10",
        "NVMe Base 2.2, 8.3.4.5.7 and 8.3.4.5.8",
        "a secret of hash 01 is made the key of one name by HMAC with that name and NVMe-over-Fabrics",
        transformed_secret,
    ),
    row(
        "auth-11",
        "NVMe Base 2.2, 8.3.4.5.4; 8.3.4.4.2, figures 735 to 737",
        "a wrong response is Failure1: F1h, T_ID, reason 01h, explanation 01h; then the connection ends",
        wrong_response,
    ),
    row(
        "auth-12",
        "NVMe Base 2.2, 8.3.4.5.2",
        "no hash in common is explanation 04h, no group in common 05h",
        nothing_in_common,
    ),
    row(
        "auth-13",
        "NVMe Base 2.2, 8.3.4.4.1",
        "a secure channel, which RDMA has none of, is explanation 03h; no usable protocol 02h",
        other_protocols,
    ),
    row(
        "auth-14",
        "NVMe Base 2.2, 8.3.4.4.1 and 8.3.4.5.2, figures 732 and 740",
        "a Negotiate shorter than its descriptors, or with more identifiers than fit, is explanation 06h",
        malformed_negotiate,
    ),
    row(
        "auth-15",
        "NVMe Base 2.2, 8.3.4.5.4",
        "a Reply with another hash's length, without the group's value, or with 0, 1 or p - 1 for it, is 06h",
        malformed_reply,
    ),
    row(
        "auth-16",
        "NVMe Base 2.2, 8.3.4.5.4",
        "a Reply which challenges by the challenge it answers is explanation 01h, be the response right",
        reflected_challenge,
    ),
    row(
        "auth-17",
        "NVMe Base 2.2, 8.3.4.5.1",
        "a message which is not the next expected is explanation 07h, and ends it",
        out_of_order,
    ),
    row(
        "auth-18",
        "Linux, drivers/nvme/target/fabrics-cmd-auth.c nvmet_execute_auth_send",
        "a Reply of another transaction is explanation 06h",
        other_transaction,
    ),
    row(
        "auth-19",
        "NVMe Base 2.2, 8.3.4.4.2",
        "after a host's Failure2 the connection ends",
        failure_of_the_host,
    ),
    row(
        "auth-20",
        "NVMe Base 2.2, 8.3.4.2",
        "a host which does not go on is disconnected, within the two minutes of a default keep alive",
        silent_host,
    ),
    row(
        "auth-21",
        "NVMe Base 2.2, 8.3.4.2",
        "a host may authenticate again: its commands are served meanwhile, and it is disconnected if it fails",
        again,
    ),
    row(
        "auth-22",
        "ours",
        "an Authentication Receive with less room than the message is Invalid Field, and may be repeated with more",
        little_room,
    ),
    row(
        "auth-23",
        "NVMe Base 2.2, 6.3",
        "a host which has the subsystem's own name is Connect Invalid Host where names are to be proven",
        host_named_like_the_subsystem,
    ),
    row(
        "auth-24",
        "NVMe Base 2.2, 8.3.4.2",
        "who was not asked to authenticate never hears Authentication Required; the discovery controller asks nobody",
        nobody_else_is_asked,
    ),
    row(
        "auth-25",
        "ours",
        "the key which holds when a host negotiates is the one it is asked for",
        another_key,
    ),
    row(
        "auth-26",
        "ours",
        "who is connected stays when its key is another, or is disconnected where that was asked for",
        another_key_of_who_is_connected,
    ),
];

fn connect_asks_for_it() {
    let target = target();
    let (_, response) = Queue::connect_admin(&target, OPEN, 0);
    assert_eq!(response.result() >> 16, 0b10);
    assert!((1..0xFFF0).contains(&(response.result() & 0xFFFF)));
}

fn nothing_else_on_an_admin_queue() {
    let mut queue = admin(&target());
    for sqe in [property_get(0, 1), property_set(0x14, 0x0046_0001), Sqe::new(0x18), Sqe::new(0x0C)] {
        assert_eq!(queue.command(sqe).status(), REQUIRED);
    }
    assert_eq!(queue.read(Sqe::new(6).byte(40, 1), 4096).0.status(), REQUIRED);
    let data = connect_data(HOST_ID, 0xFFFF, OPEN, HOST);
    let again: Response = queue.write(connect(0, 31, 0), &data);
    assert_ne!(again.status(), (0, 0, false), "nor is it connected twice");
    authenticate(&mut queue, &key());
    queue.command(property_set(0x14, 0x0046_0001)).succeeded();
    queue.fetch(Sqe::new(6).byte(40, 1), 4096);
}

fn enabled(target: &Target) -> (Queue, u16) {
    let (mut queue, response) = Queue::connect_admin(target, OPEN, 0);
    authenticate(&mut queue, &key());
    queue.command(property_set(0x14, 0x0046_0001)).succeeded();
    (queue, response.result() as u16)
}

fn nothing_else_on_an_io_queue() {
    let target = target();
    let (_admin, cntlid) = enabled(&target);
    let mut io = Queue::dial_io(&target, cntlid, 1);
    let response = io.write(connect(1, 15, 0), &connect_data(HOST_ID, cntlid, OPEN, HOST)).succeeded();
    assert_eq!(response.result() >> 16, 0b10);
    let (response, data) = io.read(Sqe::new(2).nsid(1), 512);
    assert_eq!((response.status(), data), (REQUIRED, vec![0xEE; 512]));
    assert_eq!(io.write_in_capsule(Sqe::new(1).nsid(1), &[0x77; 512]).status(), REQUIRED);
    assert_eq!(io.command(Sqe::new(0).nsid(1)).status(), REQUIRED);
    assert_eq!(target.flushes(), 0);
    authenticate(&mut io, &key());
    assert_eq!(io.fetch(Sqe::new(2).nsid(1), 512), [0; 512], "what was refused was not written");
}

fn protocol_of_the_commands() {
    let mut queue = admin(&target());
    let message = negotiate(0, &[1], &[0]);
    for (at, value) in [(41, 0), (41, 2), (42, 0), (43, 0), (43, 0xEA)] {
        let sqe = command(5, 72).byte(at, value);
        assert_eq!(queue.write(sqe, &message).status(), INVALID_FIELD, "byte {at}");
        assert_eq!(queue.read(command(6, 2048).byte(at, value), 2048).0.status(), INVALID_FIELD);
    }
    authenticate(&mut queue, &key());
}

fn layout_of_a_challenge() {
    let target = target_with(|_| {});
    for (hash, length) in LENGTHS {
        for (group, public) in GROUPS {
            let mut queue = admin(&target);
            send(&mut queue, &negotiate(0, &[hash], &[group]));
            let message = receive(&mut queue);
            let mut header = vec![1, 1, 0, 0, 0xEF, 0xBE, length as u8, 0, hash, group];
            header.extend((public as u16).to_le_bytes());
            assert_eq!(message[..12], header);
            assert_ne!(le(&message, 12, 4), 0);
            let (challenge, behind) = message[16..].split_at(length);
            assert_ne!(challenge, vec![0; length]);
            // Behind it lies what was in the buffer before.
            assert!(behind[public..].iter().all(|&byte| byte == 0xEE));
            assert_eq!(behind[..public].iter().any(|&byte| byte != 0), public > 0);
        }
    }
}

fn success_one_way() {
    for (hash, length) in LENGTHS {
        let mut queue = admin(&target());
        let challenged = challenged(&mut queue, hash, 0);
        send(&mut queue, &challenged.reply(&key()));
        let message = receive(&mut queue);
        assert_eq!(message[..9], [1, 3, 0, 0, 0xEF, 0xBE, length as u8, 0, 0]);
        queue.command(property_get(0, 1)).succeeded();
    }
}

fn success_with_a_group() {
    let target = target_with(|policy| policy.groups = vec![Group::from_id(1).expect("there is one")]);
    for (hash, _) in LENGTHS {
        let mut queue = admin(&target);
        let challenged = challenged(&mut queue, hash, 1);
        send(&mut queue, &challenged.reply(&key()));
        assert_eq!(receive(&mut queue)[..2], [1, 3]);
        queue.command(property_get(0, 1)).succeeded();
    }
    // Not augmented it is not right.
    let mut queue = admin(&target);
    let challenged = challenged(&mut queue, 1, 1);
    let plain = response(1, &key(), &challenged.challenge, challenged.sequence, ["HostHost", HOST, OPEN]);
    send(&mut queue, &challenged.reply_of(&plain, None, [0; 4]));
    fails(&mut queue, 1);
}

fn proven_target() -> Target {
    target_with(|policy| {
        policy.controller = Some(OTHER_SECRET.parse().expect("a secret"));
        policy.groups = vec![Group::Null, Group::from_id(1).expect("there is one")];
    })
}

fn success_both_ways() {
    for group in [0, 1] {
        let mut queue = admin(&proven_target());
        let challenged = challenged(&mut queue, 2, group);
        let (counter, sequence) = ([0x5C; 48], [4, 3, 2, 1]);
        send(&mut queue, &challenged.reply_of(&challenged.response(&key()), Some(&counter), sequence));
        let message = receive(&mut queue);
        assert_eq!(message[..9], [1, 3, 0, 0, 0xEF, 0xBE, 48, 0, 1]);
        let augmented = Challenged { challenge: counter.to_vec(), ..challenged }.augmented();
        let expected = response(2, &other_key(), &augmented, sequence, ["Controller", OPEN, HOST]);
        assert_eq!(message[16..64], expected);
        assert_eq!(queue.command(property_get(0, 1)).status(), REQUIRED);
        send(&mut queue, &success2());
        queue.command(property_get(0, 1)).succeeded();
    }
    // Without a key of its own a subsystem cannot.
    let mut queue = admin(&target());
    let challenged = challenged(&mut queue, 1, 0);
    send(&mut queue, &challenged.reply_of(&challenged.response(&key()), Some(&[1; 32]), [1, 0, 0, 0]));
    fails(&mut queue, 1);
}

fn challenge_for_a_secure_channel() {
    let mut queue = admin(&target());
    let challenged = challenged(&mut queue, 1, 0);
    send(&mut queue, &challenged.reply_of(&challenged.response(&key()), Some(&[0x5C; 32]), [0; 4]));
    assert_eq!(receive(&mut queue)[..9], [1, 3, 0, 0, 0xEF, 0xBE, 32, 0, 0]);
    queue.command(property_get(0, 1)).succeeded();
}

fn transformed_secret() {
    let target = target_with(|policy| {
        policy.host = SECRET.replace(":00:", ":01:").parse().expect("a secret");
        policy.groups = vec![Group::Null];
    });
    let mut queue = admin(&target);
    let transformed = hmac(1, &key(), &[HOST.as_bytes(), b"NVMe-over-Fabrics"]);
    let challenged = challenged(&mut queue, 3, 0);
    send(&mut queue, &challenged.reply(&transformed));
    assert_eq!(receive(&mut queue)[..2], [1, 3]);
}

fn wrong_response() {
    for hash in [1, 3] {
        let mut queue = admin(&target());
        let challenged = challenged(&mut queue, hash, 0);
        send(&mut queue, &challenged.reply(&other_key()));
        let message = receive(&mut queue);
        assert_eq!(message[..8], [0, 0xF1, 0, 0, 0xEF, 0xBE, 1, 1]);
        assert_eq!(queue.command(property_get(0, 1)).status(), REQUIRED);
        queue.target.wait(Duration::from_secs(2));
        assert!(queue.peer.is_over());
    }
    for at in [0, 31] {
        let mut queue = admin(&target());
        let challenged = challenged(&mut queue, 1, 0);
        let mut response = challenged.response(&key());
        response[at] ^= 1;
        send(&mut queue, &challenged.reply_of(&response, None, [0; 4]));
        fails(&mut queue, 1);
    }
}

fn nothing_in_common() {
    let target = target_with(|policy| {
        policy.hashes = vec![Hash::Sha384];
        policy.groups = vec![Group::from_id(2).expect("there is one")];
    });
    for (hashes, groups, explanation) in
        [(&[1, 3][..], &[2][..], 4), (&[0, 0xE0], &[2], 4), (&[2], &[0, 1], 5), (&[2], &[3, 4, 5, 0xE0], 5)]
    {
        let mut queue = admin(&target);
        send(&mut queue, &negotiate(0, hashes, groups));
        fails(&mut queue, explanation);
    }
}

fn other_protocols() {
    for secure_channel in [1, 2, 3, 0xFF] {
        fails_after(&[&negotiate(secure_channel, &[1], &[0])], 3);
    }
    let mut other = negotiate(0, &[1], &[0]);
    other[8] = 2;
    fails_after(&[&other], 2);
    // A protocol nobody knows in front of the one which both do is no matter.
    let mut queue = admin(&target());
    other[7] = 2;
    other.extend_from_within(8..72);
    other[72] = 1;
    send(&mut queue, &other);
    assert_eq!(receive(&mut queue)[..2], [1, 1]);
}

fn malformed_negotiate() {
    let good = negotiate(0, &[1], &[0]);
    let mut long = good.clone();
    long[7] = 2;
    let mut hashes = good.clone();
    hashes[10] = 31;
    let mut groups = good.clone();
    groups[11] = 31;
    for message in [&good[..71], &good[..8], &good[..4], &long, &hashes, &groups] {
        fails_after(&[message], 6);
    }
}

fn malformed_reply() {
    let of = |change: fn(&mut Vec<u8>)| {
        let mut queue = admin(&target());
        let challenged = challenged(&mut queue, 1, 0);
        let mut reply = challenged.reply(&key());
        change(&mut reply);
        send(&mut queue, &reply);
        fails(&mut queue, 6);
    };
    of(|reply| reply[6] = 31);
    of(|reply| reply[6] = 48);
    of(|reply| reply.truncate(79));
    of(|reply| reply.truncate(16));
    of(|reply| reply[8] = 2);
    of(|reply| reply[10] = 4);
    let p = "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE249B3EF9\
             7D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935\
             984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FB\
             B96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61\
             9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA\
             886B423861285C97FFFFFFFFFFFFFFFF";
    let mut below = bytes_of(p);
    below[255] -= 1;
    let small = |value| [&[0; 255][..], &[value]].concat();
    for public in [small(0), small(1), below, bytes_of(p), vec![0xFF; 256], Vec::new(), vec![2; 252]] {
        let target = target_with(|policy| policy.groups = vec![Group::from_id(1).expect("there is one")]);
        let mut queue = admin(&target);
        let challenged = challenged(&mut queue, 1, 1);
        let mut reply = challenged.reply(&key());
        reply.truncate(80);
        reply[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
        reply.extend(&public);
        send(&mut queue, &reply);
        fails(&mut queue, 6);
    }
}

fn reflected_challenge() {
    let mut queue = admin(&proven_target());
    let challenged = challenged(&mut queue, 1, 0);
    let reply =
        challenged.reply_of(&challenged.response(&key()), Some(&challenged.challenge), challenged.sequence);
    send(&mut queue, &reply);
    fails(&mut queue, 1);
}

fn out_of_order() {
    let good = negotiate(0, &[1], &[0]);
    let reply = [&[1, 2, 0, 0, 0xEF, 0xBE, 32, 0][..], &[0; 72]].concat();
    fails_after(&[&reply], 7);
    fails_after(&[&success2()], 7);
    // A message which only a controller sends, and one which nobody does.
    fails_after(&[&[&[1, 1, 0, 0, 0xEF, 0xBE][..], &[0; 74]].concat()], 7);
    fails_after(&[&[&[1, 9, 0, 0, 0xEF, 0xBE][..], &[0; 74]].concat()], 7);
    fails_after(&[&good, &good], 7);
    // A receive before there is anything to hear.
    fails_after(&[], 7);
    let mut queue = admin(&target());
    challenged(&mut queue, 1, 0);
    fails(&mut queue, 7);
    let mut queue = admin(&target());
    let challenged = challenged(&mut queue, 1, 0);
    send(&mut queue, &challenged.reply(&key()));
    // The verdict was not heard yet.
    send(&mut queue, &success2());
    fails(&mut queue, 7);
}

fn other_transaction() {
    let mut queue = admin(&target());
    let challenged = challenged(&mut queue, 1, 0);
    let mut reply = challenged.reply(&key());
    reply[4] ^= 1;
    send(&mut queue, &reply);
    fails(&mut queue, 6);
}

fn failure_of_the_host() {
    let mut queue = admin(&target());
    challenged(&mut queue, 1, 0);
    let mut message = vec![0; 16];
    message[..8].copy_from_slice(&[0, 0xF0, 0, 0, 0xEF, 0xBE, 1, 1]);
    send(&mut queue, &message);
    assert_eq!(queue.command(property_get(0, 1)).status(), REQUIRED);
    queue.target.wait(Duration::from_secs(2));
    assert!(queue.peer.is_over());
}

fn silent_host() {
    for steps in 0..2 {
        let target = target();
        let mut queue = admin(&target);
        if steps > 0 {
            challenged(&mut queue, 1, 0);
        }
        target.wait(Duration::from_secs(50));
        assert!(!queue.peer.is_over());
        target.wait(Duration::from_secs(70));
        assert!(queue.peer.is_over());
    }
}

fn again() {
    let target = target();
    let (mut admin, _) = enabled(&target);
    let challenged = challenged(&mut admin, 2, 0);
    admin.fetch(Sqe::new(6).byte(40, 1), 4096);
    send(&mut admin, &challenged.reply(&key()));
    admin.command(property_get(0x1C, 0)).succeeded();
    assert_eq!(receive(&mut admin)[..2], [1, 3]);
    admin.fetch(Sqe::new(6).byte(40, 1), 4096);
    let challenged = crate::prover::challenged(&mut admin, 2, 0);
    send(&mut admin, &challenged.reply(&other_key()));
    fails(&mut admin, 1);
}

fn little_room() {
    let mut queue = admin(&target());
    send(&mut queue, &negotiate(0, &[1], &[0]));
    let (response, data) = queue.read(command(6, 47), 47);
    assert_eq!((response.status(), data), (INVALID_FIELD, vec![0xEE; 47]));
    assert_eq!(queue.fetch(command(6, 48), 48)[..2], [1, 1]);
}

fn host_named_like_the_subsystem() {
    let mut queue = Queue::dial_admin(&target());
    let response = queue.write(connect(0, 31, 0), &connect_data(HOST_ID, 0xFFFF, OPEN, OPEN));
    assert_eq!(response.status(), (1, 0x84, true));
}

fn nobody_else_is_asked() {
    let target = target();
    let discovery = "nqn.2014-08.org.nvmexpress.discovery";
    let (mut queue, response) = Queue::connect_admin(&target, discovery, 0);
    assert_eq!(response.result() >> 16, 0);
    queue.command(property_get(0, 1)).succeeded();
    let mut queue = Queue::dial_admin(&target);
    let data = connect_data(HOST_ID, 0xFFFF, OPEN, crate::target::FRIEND);
    assert_eq!(queue.write(connect(0, 31, 0), &data).succeeded().result() >> 16, 0);
    queue.command(property_get(0, 1)).succeeded();
}

fn another_key() {
    let target = target();
    let mut waiting = admin(&target);
    let mut begun = admin(&target);
    let challenged = challenged(&mut begun, 1, 0);
    let next =
        Policy { host: OTHER_SECRET.parse().expect("a secret"), groups: vec![Group::Null], ..policy() };
    target.ask_for_a_key(3, next, false);
    authenticate(&mut waiting, &other_key());
    // What has begun ends as it began.
    send(&mut begun, &challenged.reply(&key()));
    assert_eq!(receive(&mut begun)[..2], [1, 3]);
}

fn another_key_of_who_is_connected() {
    for disconnect in [false, true] {
        let target = target();
        let (mut admin, _) = enabled(&target);
        let next = Policy { host: OTHER_SECRET.parse().expect("a secret"), ..policy() };
        target.ask_for_a_key(3, next, disconnect);
        target.wait(Duration::from_secs(1));
        assert_eq!(admin.peer.is_over(), disconnect);
        if !disconnect {
            admin.command(property_get(0, 1)).succeeded();
        }
    }
}
