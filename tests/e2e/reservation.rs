//! Hosts which share a namespace by `ironside resv-*`, and one which has it attached meanwhile.
use serde_json::Value;

use ironside_tests::support::programs::{Initiator, Target};

use super::bench::{eventually, namespace};

/// Two hosts, by identifier.
const HOSTS: [&str; 2] = ["11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"];

struct Host<'a> {
    initiator: &'a Initiator,
    target: &'a Target,
    id: &'static str,
}

impl Host<'_> {
    fn words(&self, command: &str, more: &[&str]) -> Vec<String> {
        let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{}", self.id);
        let port = self.target.port.to_string();
        let whom = ["-a", "127.0.0.1", "-s", &port, "-n", &self.target.nqn, "-q", &nqn, "-I", self.id];
        [command].iter().chain(&whom).chain(more).map(|&word| word.to_owned()).collect()
    }

    fn asks(&self, command: &str, more: &[&str]) -> String {
        self.initiator.succeed(&self.words(command, more))
    }

    fn is_refused(&self, command: &str, more: &[&str]) -> String {
        self.initiator.fail(4, &self.words(command, more))
    }
}

#[test]
fn two_hosts_agree_by_reservations() {
    let place = tempfile::tempdir().unwrap();
    let target = Target::serve(place.path(), &[&namespace(place.path())]);
    let initiator = Initiator::new(place.path());
    let [first, second] = HOSTS.map(|id| Host { initiator: &initiator, target: &target, id });

    assert_eq!(first.asks("resv-register", &["--nrkey=0x11"]), "NVME Reservation  success\n");
    assert_eq!(second.asks("resv-register", &["-k", "34", "--cptpl", "3"]), "NVME Reservation  success\n");
    let acquired = first.asks("resv-acquire", &["--crkey=0x11", "--rtype=1"]);
    assert_eq!(acquired, "NVME Reservation Acquire success\n");
    let said = second.is_refused("resv-acquire", &["--crkey=34", "--rtype=1", "--nsid=1"]);
    assert!(said.contains("Reservation Conflict") && said.contains("resv-report"), "{said}");

    let report: Value = serde_json::from_str(&second.asks("resv-report", &["-o", "json"])).unwrap();
    assert_eq!((&report["rtype"], &report["regctl"], &report["ptpls"]), (&1.into(), &2.into(), &1.into()));
    let registrants = report["regctlext"].as_array().unwrap();
    for (registrant, (id, key, status)) in registrants.iter().zip([(HOSTS[0], 0x11, 1), (HOSTS[1], 34, 0)]) {
        assert_eq!(registrant["hostid"], id.replace('-', ""));
        assert_eq!((&registrant["rkey"], &registrant["rcsts"]), (&key.into(), &status.into()));
    }

    // Preempted, the first is not registered any more.
    second.asks("resv-acquire", &["-c", "34", "-p", "0x11", "--rtype=2", "--racqa=1"]);
    let said = first.is_refused("resv-release", &["--crkey=0x11", "--rtype=1"]);
    assert!(said.contains("Reservation Conflict"), "{said}");
    let text = first.asks("resv-report", &["--eds"]);
    assert!(
        text.contains("rtype     : 2\nregctl    : 1\n") && text.contains("  rkey       : 22\n"),
        "{text}"
    );
    assert_eq!(second.asks("resv-release", &["-c", "34", "--rtype=2"]), "NVME Reservation Release success\n");
    second.asks("resv-release", &["-c", "34", "--rrela=1"]);
    assert!(first.asks("resv-report", &[]).contains("rtype     : 0\nregctl    : 0\n"));
    assert!(first.initiator.fail(2, &first.words("resv-acquire", &["--rtype=7"])).contains("1..=6"));
}

#[test]
fn an_attachment_keeps_what_it_was_told_of_reservations() {
    let place = tempfile::tempdir().unwrap();
    let target = Target::serve(place.path(), &[&namespace(place.path())]);
    let initiator = Initiator::new(place.path());
    let [first, second] = HOSTS.map(|id| Host { initiator: &initiator, target: &target, id });
    let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{}", first.id);
    let attached = initiator.connect(&target, &["--via", "nbd", "-q", &nqn, "-I", first.id]);
    let device = attached["DevicePath"].as_str().unwrap().to_owned();
    let log = || -> Vec<(u64, u64)> {
        let said = initiator.succeed(&["resv-notif-log", &device, "-o", "json"]);
        let said: Value = serde_json::from_str(&said).unwrap();
        let notices = said.as_array().unwrap().iter();
        notices.map(|one| (one["rn_log_type"].as_u64().unwrap(), one["nsid"].as_u64().unwrap())).collect()
    };
    assert_eq!(log(), []);
    first.asks("resv-register", &["--nrkey=0x11"]);
    second.asks("resv-register", &["--nrkey=0x22"]);
    second.asks("resv-acquire", &["--crkey=0x22", "--rtype=1"]);
    second.asks("resv-acquire", &["--crkey=0x22", "--prkey=0x11", "--rtype=1", "--racqa=1"]);
    eventually("the host hears that its registration is preempted", || log() == [(1, 1)]);
    first.asks("resv-register", &["--nrkey=0x11"]);
    second.asks("resv-release", &["--crkey=0x22", "--rrela=1"]);
    eventually("and that the reservation is", || log() == [(1, 1), (3, 1)]);
    let text = initiator.succeed(&["resv-notif-log", &device]);
    assert!(
        text.contains("1 (Registration Preempted)") && text.contains("3 (Reservation Preempted)"),
        "{text}"
    );
    initiator.fail(7, &["resv-notif-log", "nothing"]);
}
