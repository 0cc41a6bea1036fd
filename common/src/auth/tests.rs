//! Vectors computed by another implementation, both roles against each other, and every way to lie.
use std::sync::Arc;

use super::hash::Transcript;
use super::message::{ControllerMessage, HostMessage};
use super::*;
use crate::nvme::Nqn;

/// Not by chance at all, so that what goes wrong goes wrong again.
struct Counting(u8);

impl Randomness for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(5).wrapping_add(3);
            *byte = self.0;
        }
    }
}

fn host() -> Nqn {
    "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001".parse().unwrap()
}

fn subsystem() -> Nqn {
    "nqn.2014-08.org.example:sub1".parse().unwrap()
}

const PLAIN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const LONGER: &str = "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

fn secret(seed: u8) -> Secret {
    Secret::generate(Some(Hash::Sha256), 32, &mut Counting(seed))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Each by Python's `hmac` and `hashlib`, of the key 00h to 1Fh transformed by the hash: the host's response to the
/// challenge 40h, 41h and so on, with sequence number 1, transaction 2 and (where there is one) the shared value 64
/// times 5Ah; and the controller's with sequence number 5.
const RESPONSES: [(Hash, bool, &str, &str); 6] = [
    (Hash::Sha256, false, "fa96f8db069a56e320aa0d3c942eef52", "a9a7f20a4cdb8e82d1d40c77a86e878b"),
    (Hash::Sha256, true, "6f692f5e2d02033e1389c1becc61e5bd", "15f24c7b642467c81a9bb11fa1809339"),
    (Hash::Sha384, false, "f601dd86b218895cd11a0bcc9e0f36a2", "5fa01a72f334eab1cfb05cd28adef218"),
    (Hash::Sha384, true, "b1402a945f52edaee41251f1ec4f802d", "bd316e1fe3b7ae01d0f7a69a8e3a8490"),
    (Hash::Sha512, false, "72f28c8f2d15dd9af7ea756290a05fc3", "dd3aeca205bc1105536137263450e75c"),
    (Hash::Sha512, true, "9e90c3600d6ed3fe5a40f0883e13da6e", "81952b0e9f7beddd8605a265360ddb8d"),
];

#[test]
fn responses_are_those_of_another_implementation() {
    let key: Vec<u8> = (0..32).collect();
    let shared = [0x5A; 64];
    for (hash, is_shared, of_host, of_controller) in RESPONSES {
        let challenge: Vec<u8> = (0x40..).take(hash.length()).collect();
        let (host, subsystem) = (host(), subsystem());
        let transcript = Transcript {
            hash,
            challenge: &challenge,
            shared: is_shared.then_some(&shared),
            sequence: 1,
            t_id: 2,
            host: &host,
            subsystem: &subsystem,
        };
        let transformed = |owner: &Nqn| hash.hmac(&key, &[owner.as_str().as_bytes(), b"NVMe-over-Fabrics"]);
        assert_eq!(hex(&transcript.of_host(&transformed(&host))[..16]), of_host);
        let transcript = Transcript { sequence: 5, ..transcript };
        assert_eq!(hex(&transcript.of_controller(&transformed(&subsystem))[..16]), of_controller);
    }
}

#[test]
fn a_secret_is_read_and_written_as_elsewhere() {
    let plain: Secret = PLAIN.parse().unwrap();
    assert_eq!((plain.transformation(), plain.length()), (None, 32));
    assert_eq!(*plain.key_of(&host()), (0..32).collect::<Vec<u8>>());
    let longer: Secret = LONGER.parse().unwrap();
    assert_eq!((longer.transformation(), longer.length()), (Some(Hash::Sha384), 48));
    assert_eq!(longer.key_of(&host()).len(), 48);
    assert_eq!((plain.to_text().as_str(), longer.to_text().as_str()), (PLAIN, LONGER));
    let transformed: Secret = PLAIN.replace(":00:", ":01:").parse().unwrap();
    let expected = "6c7b81cb2a746f74454b1d7140f3153b51ca99459fcef7a86a17f27695b87cd8";
    assert_eq!(hex(&transformed.key_of(&host())), expected);
    assert_ne!(plain, transformed);
    assert!(!format!("{plain:?}").contains("AAEC"));
    for hash in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
        let generated = Secret::generate(hash, hash.map_or(64, Hash::length), &mut SystemRandomness);
        assert_eq!(generated.to_text().parse(), Ok(generated));
    }
}

#[test]
fn what_is_no_secret_is_told_why_and_not_repeated() {
    for (text, error) in [
        ("", SecretError::Form),
        ("DHHC-1:00:AAEC", SecretError::Form),
        ("DHHC-1:00AAEC:", SecretError::Form),
        ("DHHC-1:04:AAEC:", SecretError::Transformation),
        ("DHHC-1:0:AAEC:", SecretError::Transformation),
        ("DHHC-1:00:A*EC:", SecretError::Base64),
        ("DHHC-1:00:AAEC:", SecretError::Length(3)),
        (&PLAIN.replace("AAEC", "AAED"), SecretError::Checksum),
    ] {
        assert_eq!(text.parse::<Secret>(), Err(error), "{text}");
        assert!(!error.to_string().contains("AAEC"));
    }
}

#[test]
fn a_key_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let with_mode = |text: &str, mode| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Secret::read(&path)
    };
    assert_eq!(with_mode(&format!("{PLAIN}\n"), 0o600).unwrap(), PLAIN.parse().unwrap());
    assert!(with_mode(PLAIN, 0o400).is_ok());
    for mode in [0o640, 0o604, 0o644, 0o620] {
        let error = with_mode(PLAIN, mode).unwrap_err().to_string();
        assert!(error.contains("chmod 600") && error.contains(&format!("{mode:04o}")), "{error}");
    }
    let wrong = with_mode("DHHC-1:00:AAEC:", 0o600).unwrap_err().to_string();
    assert!(wrong.contains("key: ") && !wrong.contains("AAEC"), "{wrong}");
    assert!(matches!(Secret::read(directory.path()), Err(SecretFileError::NotAFile(_))));
    assert!(matches!(Secret::read(&directory.path().join("none")), Err(SecretFileError::Read(..))));
}

/// Both machines, with what lies between them open to change.
struct Pair {
    host: Host,
    controller: Controller,
    random: Counting,
    sent: Vec<Vec<u8>>,
}

#[derive(Debug, Eq, PartialEq)]
struct End {
    host: Next,
    controller: Progress,
}

fn policy(host: Secret, controller: Option<Secret>) -> Policy {
    Policy { host, controller, hashes: Hash::ALL.to_vec(), groups: vec![Group::Null] }
}

impl Pair {
    fn new(keys: Keys, policy: Policy) -> Self {
        Self {
            host: Host::new(host(), subsystem(), Arc::new(keys), 7),
            controller: Controller::new(host(), subsystem(), Arc::new(policy)),
            random: Counting(1),
            sent: Vec::new(),
        }
    }

    fn good(hash: Hash, group: Group, both: bool) -> Self {
        let (one, other) = (secret(1), both.then(|| secret(2)));
        let keys = Keys { host: one.clone(), controller: other.clone() };
        Self::new(keys, Policy { hashes: vec![hash], groups: vec![group], ..policy(one, other) })
    }

    fn send(&mut self, bytes: &[u8]) -> Progress {
        self.sent.push(bytes.to_vec());
        match self.controller.on_send(bytes) {
            Received::Answer(progress) => progress,
            Received::Compute(job) => self.controller.computed(job.run(&mut self.random)),
        }
    }

    /// Until both know; `tamper` sees each message with its number, from either side.
    fn run(&mut self, mut tamper: impl FnMut(usize, &mut Vec<u8>)) -> End {
        let (mut number, mut last) = (0, Progress::Continues);
        for _ in 0..20 {
            match self.host.next() {
                Next::Send(mut bytes) => {
                    tamper(number, &mut bytes);
                    last = self.send(&bytes);
                    self.host.sent();
                    number += 1;
                }
                Next::Receive(room) => {
                    let (mut bytes, progress) = self.controller.on_receive(room as usize).unwrap();
                    last = progress;
                    tamper(number, &mut bytes);
                    self.host.received(&bytes);
                    number += 1;
                }
                Next::Compute => {
                    let job = self.host.take_job().unwrap();
                    self.host.computed(job.run(&mut self.random));
                }
                end @ (Next::Authenticated | Next::Failed(_)) => return End { host: end, controller: last },
            }
        }
        panic!("it does not end");
    }
}

#[test]
fn both_sides_agree_with_every_hash_and_group() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            for both in [false, true] {
                let end = Pair::good(hash, group, both).run(|_, _| {});
                let controller = Progress::Authenticated(hash, group);
                assert_eq!(end, End { host: Next::Authenticated, controller }, "{hash} {group} {both}");
            }
        }
    }
}

#[test]
fn a_wrong_key_is_refused_on_the_side_that_sees_it() {
    let keys = Keys { host: secret(3), controller: None };
    let end = Pair::new(keys, policy(secret(1), None)).run(|_, _| {});
    assert_eq!(end.host, Next::Failed(HostError::Refused(Explanation::FAILED)));
    assert_eq!(end.controller, Progress::Failed(Failure::Refused(Explanation::FAILED)));

    let keys = Keys { host: secret(1), controller: Some(secret(3)) };
    let end = Pair::new(keys.clone(), policy(secret(1), Some(secret(2)))).run(|_, _| {});
    assert_eq!(end.host, Next::Failed(HostError::WrongController));
    assert_eq!(end.controller, Progress::Failed(Failure::ByHost(Explanation::FAILED)));

    let end = Pair::new(keys, policy(secret(1), None)).run(|_, _| {});
    assert_eq!(end.controller, Progress::Failed(Failure::NoControllerKey));

    // The same secret under another name is another key, once it is transformed.
    let mut pair = Pair::good(Hash::Sha256, Group::Null, false);
    pair.controller = Controller::new(subsystem(), subsystem(), Arc::new(policy(secret(1), None)));
    assert_eq!(pair.run(|_, _| {}).controller, Progress::Failed(Failure::Refused(Explanation::FAILED)));
}

#[test]
fn who_has_nothing_in_common_hears_what() {
    let mut pair = Pair::good(Hash::Sha512, Group::Ffdhe2048, false);
    let end = pair.run(|number, bytes| {
        if number == 0 {
            bytes[10] = 2;
        }
    });
    assert_eq!(end.host, Next::Failed(HostError::Refused(Explanation::HASH_UNUSABLE)));
    let ends = |at: usize, value: u8| {
        let mut pair = Pair::good(Hash::Sha256, Group::Ffdhe2048, false);
        pair.run(|number, bytes| {
            if number == 0 {
                bytes[at] = value;
            }
        })
        .controller
    };
    for (at, value, explanation) in [
        (11, 1, Explanation::GROUP_UNUSABLE),
        (6, 1, Explanation::CONCATENATION_MISMATCH),
        (7, 0, Explanation::PROTOCOL_UNUSABLE),
        (8, 9, Explanation::PROTOCOL_UNUSABLE),
        (7, 2, Explanation::INCORRECT_PAYLOAD),
        (10, 31, Explanation::INCORRECT_PAYLOAD),
        (1, 9, Explanation::INCORRECT_MESSAGE),
    ] {
        assert_eq!(ends(at, value), Progress::Failed(Failure::Refused(explanation)), "byte {at}");
    }
}

#[test]
fn no_message_may_be_cut_or_changed() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let mut lengths = Vec::new();
        Pair::good(Hash::Sha256, group, true).run(|_, bytes| lengths.push(bytes.len()));
        assert_eq!(lengths.len(), 5);
        for (number, &length) in lengths.iter().enumerate() {
            let step = 1 + length / 40;
            for cut in (0..length).step_by(step) {
                let mut pair = Pair::good(Hash::Sha256, group, true);
                let end = pair.run(|at, bytes| {
                    if at == number {
                        bytes.truncate(cut);
                    }
                });
                assert!(!matches!(end.controller, Progress::Authenticated(..)), "{number} cut to {cut}");
            }
        }
        // Negotiate and the reserved bytes apart, whatever changes is noticed.
        for (number, from) in [(1, 8), (2, 10), (3, 16)] {
            for at in (from..lengths[number]).step_by(7).filter(|at| number != 1 || !(10..12).contains(at)) {
                let mut pair = Pair::good(Hash::Sha256, group, true);
                let end = pair.run(|one, bytes| {
                    if one == number {
                        bytes[at] ^= 0x40;
                    }
                });
                assert!(!matches!(end.controller, Progress::Authenticated(..)), "{number}, byte {at}");
            }
        }
    }
}

#[test]
fn nothing_is_of_use_twice() {
    let mut first = Pair::good(Hash::Sha256, Group::Null, false);
    first.run(|_, _| {});
    let [negotiate, reply] = &first.sent[..] else { panic!() };
    // Another challenge, another answer.
    let mut second = Pair::good(Hash::Sha256, Group::Null, false);
    second.random = Counting(99);
    assert_eq!(second.send(negotiate), Progress::Continues);
    second.controller.on_receive(2048).unwrap();
    second.send(reply);
    let (_, progress) = second.controller.on_receive(2048).unwrap();
    assert_eq!(progress, Progress::Failed(Failure::Refused(Explanation::FAILED)));
    // And no second try on this one.
    for message in [negotiate, reply] {
        assert!(matches!(second.send(message), Progress::Failed(_)));
    }
}

#[test]
fn a_host_authenticates_again_with_another_key() {
    let mut pair = Pair::good(Hash::Sha256, Group::Null, true);
    pair.run(|_, _| {});
    pair.controller.set_policy(Arc::new(policy(secret(8), Some(secret(9)))));
    let keys = Arc::new(Keys { host: secret(8), controller: Some(secret(9)) });
    pair.host = Host::new(host(), subsystem(), keys, 8);
    let end = pair.run(|_, _| {});
    assert_eq!(end.host, Next::Authenticated);
    assert_eq!(end.controller, Progress::Authenticated(Hash::Sha256, Group::Null));
}

#[test]
fn messages_out_of_turn_end_it() {
    let success2 = HostMessage::Success2 { t_id: 7 }.to_bytes();
    for message in [success2.clone(), vec![1, 2, 0, 0, 7, 0, 0, 0], vec![0xFF; 64], vec![]] {
        let mut pair = Pair::good(Hash::Sha256, Group::Null, true);
        assert_eq!(pair.send(&message), Progress::Continues);
        let (bytes, progress) = pair.controller.on_receive(2048).unwrap();
        assert!(matches!(progress, Progress::Failed(_)));
        assert!(matches!(ControllerMessage::parse(&bytes), Ok(ControllerMessage::Failure1 { .. })));
        assert!(matches!(pair.send(&success2), Progress::Failed(_)));
    }
    let mut pair = Pair::good(Hash::Sha256, Group::Null, true);
    assert!(matches!(pair.controller.on_receive(2048), Ok((_, Progress::Failed(_)))), "before any Send");
    let mut pair = Pair::good(Hash::Sha256, Group::Null, true);
    let Next::Send(negotiate) = pair.host.next() else { panic!() };
    pair.send(&negotiate);
    assert_eq!(pair.controller.on_receive(47), Err(NoRoom));
    assert!(matches!(pair.controller.on_receive(48), Ok((_, Progress::Continues))), "it may ask again");
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(0_u8.., 0..200), head in 0_usize..8) {
        const HEADS: [[u8; 2]; 8] = [[0, 0], [1, 1], [1, 2], [1, 3], [1, 4], [0, 0xF0], [0, 0xF1], [9, 9]];
        let bytes = [&HEADS[head][..], &bytes].concat();
        let mut pair = Pair::good(Hash::Sha256, Group::Null, true);
        pair.send(&bytes);
        let mut pair = Pair::good(Hash::Sha256, Group::Null, true);
        pair.host.sent();
        pair.host.received(&bytes);
        let _ = (HostMessage::parse(&bytes), ControllerMessage::parse(&bytes));
    }
}
