//! What Linux put on the wire, between its own host and its own target: every capsule decodes without a
//! complaint, and what we make of its meaning is the same bytes again.
#[cfg(test)]
mod queue;

use ironside_tests::support::pcap::vector;
use ironside_tests::support::rdma::{QueuePair, iwarp, roce};

use self::queue::{Queue, Seen, is_nvme};

const FULL_SESSION: [(&str, usize); 12] = [
    ("Asynchronous Event Request", 1),
    ("Connect", 2),
    ("Dataset Management", 1),
    ("Flush", 1),
    ("Get Log Page", 4),
    ("Identify", 11),
    ("Property Get", 5),
    ("Property Set", 3),
    ("Read", 5),
    ("Set Features", 2),
    ("Write", 2),
    ("Write Zeroes", 1),
];

#[test]
fn siw_over_loopback() {
    let mut expected = FULL_SESSION;
    // One more of each than between two machines.
    for (name, count) in &mut expected {
        *count += usize::from(["Flush", "Identify", "Read"].contains(name));
    }
    check(iwarp(&vector("nvme-siw-loopback.pcap")), &expected);
}

#[test]
fn siw_with_crc_between_two_machines() {
    check(iwarp(&vector("nvme-siw-crc-pair.pcap")), &FULL_SESSION);
}

#[test]
fn siw_with_a_terminate() {
    check(iwarp(&vector("siw-crc-pair-with-terminate.pcap")), &FULL_SESSION);
}

#[test]
fn siw_against_a_program() {
    check(iwarp(&vector("siw-user-net-host.pcap")), &[("Connect", 1)]);
}

#[test]
fn rxe_over_roce() {
    let expected = [
        ("Asynchronous Event Request", 1),
        ("Connect", 2),
        ("Get Log Page", 4),
        ("Identify", 6),
        ("Property Get", 4),
        ("Property Set", 2),
        ("Read", 4),
        ("Set Features", 2),
        ("Write", 2),
    ];
    check(roce(&vector("nvme-rxe-roce.pcap")), &expected);
}

fn check(pairs: Vec<QueuePair>, expected: &[(&str, usize)]) {
    let mut seen = Seen::new();
    for pair in pairs.into_iter().filter(is_nvme) {
        Queue::new(&pair).check(pair, &mut seen);
    }
    let seen: Vec<_> = seen.iter().map(|(name, &count)| (name.as_str(), count)).collect();
    assert_eq!(seen, expected);
}
