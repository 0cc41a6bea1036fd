//! Our initiator authenticates, to a target of bytes which gets it right or wrong.
use std::sync::Arc;

use ironside_common::auth::{Explanation, HostError, Keys};
use ironside_initiator::host::{ConnectError, Fault, HostEvent, HostOptions};
use ironside_initiator::volume::Operation;

use crate::initiator::{Answer, CNTLID, Command, Initiator, Script};
use crate::prover::{OTHER_SECRET, SECRET, hmac, key, other_key};
use crate::queue::HOST;
use crate::target::OPEN;
use crate::{Requirement, row};

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "host-auth-1",
        "NVMe Base 2.2, 8.3.4.4.1 and 8.3.4.5.2, figures 732 and 740",
        "Negotiate offers DH-HMAC-CHAP alone, without a secure channel, with every hash and group, padded by zeros",
        layout_of_a_negotiate,
    ),
    row(
        "host-auth-2",
        "NVMe Base 2.2, 8.3.4.2.2; 6.1 and 6.2, figures 542 and 544",
        "the commands have SECP E9h, both SPSP 01h, and the length of their data; there is room for any message",
        layout_of_the_commands,
    ),
    row(
        "host-auth-3",
        "NVMe Base 2.2, 8.3.4.5.4, figure 744",
        "Reply has R1 for each hash, without a challenge of its own, S2 0; after Success1 the host goes on",
        one_way,
    ),
    row(
        "host-auth-4",
        "NVMe Base 2.2, 8.3.4.5.4 to 8.3.4.5.6",
        "with a controller secret Reply challenges, by a C2 which is not C1 and an S2 not 0; R2 is answered by Success2",
        both_ways,
    ),
    row(
        "host-auth-5",
        "NVMe Base 2.2, 8.3.4.5.5; 8.3.4.4.2, figure 735",
        "a wrong R2, and none, is Failure2: F0h, reason 01h, explanation 01h; and the controller is not used",
        wrong_controller,
    ),
    row(
        "host-auth-6",
        "NVMe Base 2.2, 8.3.4.5.3",
        "a Challenge with S1 0, another hash's length or no value of the group is Failure2 with explanation 06h",
        malformed_challenges,
    ),
    row(
        "host-auth-7",
        "NVMe Base 2.2, 8.3.4.5.1",
        "a message which is not the next expected, or of another transaction, is Failure2 with explanation 07h",
        out_of_order,
    ),
    row(
        "host-auth-8",
        "NVMe Base 2.2, 8.3.4.4.2, figures 736 and 737",
        "Failure1 ends it, and its explanation is told",
        failure_of_the_controller,
    ),
    row(
        "host-auth-9",
        "ours",
        "with a controller secret a controller which asks for no authentication is not used",
        controller_which_does_not_ask,
    ),
    row(
        "host-auth-10",
        "NVMe Base 2.2, 8.3.4.2",
        "each queue authenticates before any other command is sent on it, by a transaction of its own",
        each_queue,
    ),
    row(
        "host-auth-11",
        "NVMe Base 2.2, 8.3.4.2",
        "by another secret each queue authenticates again while commands go on, by transactions not used before",
        again_while_connected,
    ),
    row(
        "host-auth-12",
        "NVMe Base 2.2, 8.3.4.5.5; ours",
        "a controller which does not prove itself the second time is left; one that refuses us says itself what follows",
        again_without_success,
    ),
    row(
        "host-auth-13",
        "NVMe Base 2.2, 3.3.3.2.1; ours",
        "a command refused for want of authentication has its queue's host authenticate, and is sent again",
        asked_for_again,
    ),
];

const SEQUENCE: [u8; 4] = [0x11, 0x22, 0x33, 0x44];

/// What a controller says to a host which has said this so far.
type Says = fn(&[&Command]) -> Vec<u8>;

fn start(says: Says, change: fn(&mut HostOptions)) -> Initiator {
    let answer: fn(&Command) -> Option<Answer> = |command| {
        (command.sqe[0] == 0x7F && command.sqe[4] == 1).then(|| Answer::result(2 << 16 | u64::from(CNTLID)))
    };
    Initiator::start(Script { answer, says, ..Script::default() }, change)
}

fn with_secret(options: &mut HostOptions) {
    options.keys = Some(Arc::new(Keys { host: SECRET.parse().expect("a secret"), controller: None }));
}

fn with_both(options: &mut HostOptions) {
    let [host, controller] = [SECRET, OTHER_SECRET].map(|secret| secret.parse().expect("a secret"));
    options.keys = Some(Arc::new(Keys { host, controller: Some(controller) }));
}

/// The last message of the host.
fn last<'a>(said: &[&'a Command]) -> &'a [u8] {
    &said.last().expect("it said something").data
}

fn header(id: u8, said: &[&Command]) -> Vec<u8> {
    let mut message = vec![0; 16];
    message[..2].copy_from_slice(&[1, id]);
    message[4..6].copy_from_slice(&said[0].data[4..6]);
    message
}

const LENGTHS: [usize; 4] = [0, 32, 48, 64];

fn challenge_of(hash: u8, said: &[&Command]) -> Vec<u8> {
    let mut message = header(1, said);
    message[6] = LENGTHS[usize::from(hash)] as u8;
    message[8] = hash;
    message[12..].copy_from_slice(&SEQUENCE);
    message.extend(c1(hash));
    message
}

fn c1(hash: u8) -> Vec<u8> {
    (0x40..).take(LENGTHS[usize::from(hash)]).collect()
}

fn success1(said: &[&Command], response: Option<&[u8]>) -> Vec<u8> {
    let length = last(said)[6];
    let mut message = header(3, said);
    message[6] = length;
    message[8] = response.is_some().into();
    message.extend(response.unwrap_or(&vec![0; usize::from(length)]));
    message
}

/// Challenge by SHA-256 and no group, then Success1 to whatever comes.
fn says_yes(said: &[&Command]) -> Vec<u8> {
    if said.len() == 1 { challenge_of(1, said) } else { success1(said, None) }
}

/// R2 under this key.
fn r2(said: &[&Command], key: &[u8]) -> Vec<u8> {
    let reply = last(said);
    let (sequence, challenge) = (&reply[12..16], &reply[48..80]);
    let words: [&[u8]; 5] = [&[0], b"Controller", OPEN.as_bytes(), &[0], HOST.as_bytes()];
    hmac(1, key, &[&[challenge, sequence, &reply[4..6]][..], &words].concat())
}

fn proves_itself(said: &[&Command]) -> Vec<u8> {
    if said.len() == 1 { challenge_of(1, said) } else { success1(said, Some(&r2(said, &other_key()))) }
}

/// What the host said on its admin queue.
fn said(initiator: &Initiator) -> Vec<&Command> {
    initiator.sent(0, 0x7F).into_iter().filter(|command| command.sqe[4] == 5).collect()
}

fn is_connected(initiator: &Initiator) -> bool {
    initiator.events.last() == Some(&HostEvent::Connected)
}

/// It gave up, and said why by this explanation.
#[track_caller]
fn fails(says: Says, change: fn(&mut HostOptions), explanation: u8, why: HostError) {
    let initiator = start(says, change);
    let said = said(&initiator);
    let message = last(&said);
    assert_eq!(
        (&message[..2], &message[4..8]),
        (&[0, 0xF0][..], &[said[0].data[4], said[0].data[5], 1, explanation][..])
    );
    let ConnectError::Authentication { error, .. } = initiator.failure() else {
        panic!("{:?}", initiator.events)
    };
    assert_eq!(*error, why);
}

fn layout_of_a_negotiate() {
    let initiator = start(says_yes, with_secret);
    let message = &said(&initiator)[0].data;
    let mut expected = vec![0; 72];
    expected[4..6].copy_from_slice(&message[4..6]);
    (expected[7], expected[8], expected[10], expected[11]) = (1, 1, 3, 6);
    expected[12..15].copy_from_slice(&[1, 2, 3]);
    expected[42..48].copy_from_slice(&[0, 1, 2, 3, 4, 5]);
    assert_eq!(*message, expected);
}

fn layout_of_the_commands() {
    let initiator = start(says_yes, with_secret);
    let all = initiator.sent(0, 0x7F);
    let commands: Vec<_> = all.iter().filter(|command| matches!(command.sqe[4], 5 | 6)).collect();
    assert_eq!(commands.iter().map(|command| command.sqe[4]).collect::<Vec<_>>(), [5, 6, 5, 6]);
    for command in commands {
        assert_eq!(command.sqe[41..44], [1, 1, 0xE9]);
        let length = u32::from_le_bytes(command.sqe[44..48].try_into().expect("four"));
        assert_eq!(length, command.keyed().1);
        // A Challenge by SHA-512 and the largest group.
        assert!(command.sqe[4] == 5 || length >= 16 + 64 + 1024);
    }
}

fn one_way() {
    let hashes: [Says; 3] = [
        |said| if said.len() == 1 { challenge_of(1, said) } else { success1(said, None) },
        |said| if said.len() == 1 { challenge_of(2, said) } else { success1(said, None) },
        |said| if said.len() == 1 { challenge_of(3, said) } else { success1(said, None) },
    ];
    for (hash, says) in (1..).zip(hashes) {
        let initiator = start(says, with_secret);
        assert!(is_connected(&initiator), "{:?}", initiator.events);
        let said = said(&initiator);
        assert_eq!(said.len(), 2);
        let (t_id, length) = (&said[0].data[4..6], LENGTHS[usize::from(hash)]);
        let r1 = r1(hash, t_id, &key());
        let mut expected = vec![1, 2, 0, 0, t_id[0], t_id[1], length as u8];
        expected.resize(16, 0);
        expected.extend(r1);
        expected.resize(16 + 2 * length, 0);
        assert_eq!(*said[1].data, expected);
    }
}

/// R1 under this key.
fn r1(hash: u8, t_id: &[u8], key: &[u8]) -> Vec<u8> {
    let words: [&[u8]; 5] = [&[0], b"HostHost", HOST.as_bytes(), &[0], OPEN.as_bytes()];
    hmac(hash, key, &[&[&c1(hash)[..], &SEQUENCE, t_id][..], &words].concat())
}

fn both_ways() {
    let initiator = start(proves_itself, with_both);
    assert!(is_connected(&initiator), "{:?}", initiator.events);
    let said = said(&initiator);
    let reply = &said[1].data;
    assert_eq!(reply[8], 1);
    assert_ne!(reply[12..16], [0; 4]);
    assert!(reply[48..80] != c1(1)[..] && reply[48..80] != [0; 32]);
    let t_id = &said[0].data[4..6];
    let mut success2 = vec![1, 4, 0, 0, t_id[0], t_id[1]];
    success2.resize(16, 0);
    assert_eq!(*said[2].data, success2);
}

fn wrong_controller() {
    let wrong: Says =
        |said| if said.len() == 1 { challenge_of(1, said) } else { success1(said, Some(&r2(said, &key()))) };
    fails(wrong, with_both, 1, HostError::WrongController);
    fails(says_yes, with_both, 1, HostError::WrongController);
}

fn malformed_challenges() {
    let changed: [Says; 6] = [
        |said| with(said, |message| message[12..16].fill(0)),
        |said| with(said, |message| message[6] = 48),
        |said| with(said, |message| message[6] = 31),
        |said| with(said, |message| message[9] = 1),
        |said| with(said, |message| (message[9], message[11]) = (1, 1)),
        |said| with(said, |message| message[10] = 4),
    ];
    for says in changed {
        fails(says, with_secret, 6, HostError::Malformed);
    }
    let unknown: Says = |said| with(said, |message| message[8] = 0xE0);
    fails(unknown, with_secret, 4, HostError::Hash);
    let unknown: Says = |said| with(said, |message| message[9] = 6);
    fails(unknown, with_secret, 5, HostError::Group);
}

fn with(said: &[&Command], change: fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = challenge_of(1, said);
    change(&mut message);
    message
}

fn out_of_order() {
    let early: Says = |said| {
        let mut message = header(3, said);
        message[6] = 32;
        message.resize(48, 0);
        message
    };
    fails(early, with_secret, 7, HostError::Message);
    fails(|said| challenge_of(1, said), with_secret, 7, HostError::Message);
    fails(|said| with(said, |message| message[4] ^= 1), with_secret, 7, HostError::Message);
    fails(|said| with(said, |message| message[1] = 9), with_secret, 7, HostError::Message);
}

fn failure_of_the_controller() {
    for says in [failure as Says, |said| if said.len() == 1 { challenge_of(1, said) } else { failure(said) }]
    {
        let initiator = start(says, with_secret);
        let ConnectError::Authentication { error, .. } = initiator.failure() else {
            panic!("{:?}", initiator.events)
        };
        assert_eq!(*error, HostError::Refused(Explanation(1)));
    }
}

fn failure(said: &[&Command]) -> Vec<u8> {
    let mut message = header(0xF1, said);
    (message[0], message[6], message[7]) = (0, 1, 1);
    message
}

fn controller_which_does_not_ask() {
    let initiator = Initiator::start(Script::default(), with_both);
    assert!(matches!(initiator.failure(), ConnectError::NotAuthenticated));
    let initiator = Initiator::start(Script::default(), with_secret);
    assert!(is_connected(&initiator), "but by its own secret alone it need not know whom it talks to");
}

fn each_queue() {
    let initiator = start(says_yes, with_secret);
    assert!(initiator.queues.len() > 1 && is_connected(&initiator));
    let mut transactions = Vec::new();
    for qid in 0..initiator.queues.len() {
        let of_queue: Vec<_> = initiator.commands.iter().filter(|command| command.qid == qid).collect();
        let kinds: Vec<u8> = of_queue.iter().take(5).map(|command| command.sqe[4]).collect();
        assert_eq!((of_queue[0].sqe[0], kinds), (0x7F, vec![1, 5, 6, 5, 6]));
        transactions.push(of_queue[1].data[4..6].to_vec());
    }
    let count = transactions.len();
    transactions.sort_unstable();
    transactions.dedup();
    assert_eq!(transactions.len(), count);
}

/// The messages of the authentication under way: of two each, the first negotiates.
fn of_the_last<'a, 'b>(said: &'b [&'a Command]) -> &'b [&'a Command] {
    &said[(said.len() - 1) & !1..]
}

/// Yes, however often it is asked.
fn says_yes_again(said: &[&Command]) -> Vec<u8> {
    says_yes(of_the_last(said))
}

fn other_keys(has_controller: bool) -> Arc<Keys> {
    let [host, controller] = [OTHER_SECRET, SECRET].map(|secret| secret.parse().expect("a secret"));
    Arc::new(Keys { host, controller: has_controller.then_some(controller) })
}

fn again_while_connected() {
    let mut initiator = start(says_yes_again, with_secret);
    assert!(is_connected(&initiator));
    let (queues, before) = (initiator.queues.len(), initiator.commands.len());
    assert!(initiator.host.rekey(other_keys(false)));
    initiator.submit(Operation::Read, 0, 4096);
    let expected = HostEvent::Reauthenticated { queues: queues as u16 };
    assert_eq!(initiator.events.last(), Some(&expected));
    assert!(matches!(&initiator.completed[..], [one] if one.result.is_ok()), "{:?}", initiator.completed);
    let mut transactions = Vec::new();
    for qid in 0..queues {
        let sends = initiator.sent(qid, 0x7F).into_iter().filter(|command| command.sqe[4] == 5);
        let said: Vec<_> = sends.collect();
        assert_eq!(said.len(), 4);
        let t_id = &said[2].data[4..6];
        assert_eq!(said[3].data[16..48], r1(1, t_id, &other_key())[..]);
        transactions.extend([said[0].data[4..6].to_vec(), t_id.to_vec()]);
    }
    let is_connect = |command: &Command| (command.sqe[0], command.sqe[4]) == (0x7F, 1);
    assert!(!initiator.commands[before..].iter().any(is_connect), "nothing is connected anew");
    transactions.sort_unstable();
    transactions.dedup();
    assert_eq!(transactions.len(), 2 * queues);
}

fn again_without_success() {
    let mut initiator = start(says_yes_again, with_secret);
    assert!(initiator.host.rekey(other_keys(true)));
    initiator.run();
    assert_eq!(*initiator.lost(), Fault::Authentication(HostError::WrongController));

    let says: Says = |said| if said.len() > 2 { failure(&said[2..]) } else { says_yes(said) };
    let mut initiator = start(says, with_secret);
    assert!(initiator.host.rekey(other_keys(false)));
    initiator.submit(Operation::Read, 0, 4096);
    let Some(HostEvent::ReauthenticationFailed(ConnectError::Authentication { error, .. })) =
        initiator.events.last()
    else {
        panic!("{:?}", initiator.events)
    };
    assert_eq!(*error, HostError::Refused(Explanation(1)));
    assert!(matches!(&initiator.completed[..], [one] if one.result.is_ok()));
    // Whoever asks for no authentication is not bothered with one.
    let mut initiator = Initiator::start(Script::default(), with_secret);
    assert!(!initiator.host.rekey(other_keys(false)));
}

fn asked_for_again() {
    let answer: fn(&Command) -> Option<Answer> = |command| {
        let required = Answer { status: 0x191 << 1 | 0x8000, ..Answer::default() };
        match (command.sqe[0], command.sqe[4]) {
            (0x7F, 1) => Some(Answer::result(2 << 16 | u64::from(CNTLID))),
            (0x02, _) if command.qid > 0 => Some(required),
            _ => None,
        }
    };
    let script = Script { answer, says: says_yes_again, ..Script::default() };
    let mut initiator = Initiator::start(script, with_secret);
    initiator.submit(Operation::Read, 0, 4096);
    initiator.script.answer = |_| None;
    initiator.wait(std::time::Duration::from_millis(200));
    assert_eq!(initiator.sent(1, 0x02).len(), 2);
    assert!(matches!(&initiator.completed[..], [one] if one.result.is_ok()), "{:?}", initiator.completed);
    assert!(initiator.events.contains(&HostEvent::Reauthenticated { queues: 2 }), "{:?}", initiator.events);
}
