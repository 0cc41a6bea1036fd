//! Two targets serve one file, and one attachment has a path to each: states change, a target dies and returns, and
//! whoever reads and writes sees nothing of it.
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ironside_tests::support::programs::{Initiator, Target, free_port};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::bench::{Bench, eventually, finish, fio};

const NQN: &str = "nqn.2014-08.org.example:e2e-paths";

/// One of two targets.
struct Side {
    place: PathBuf,
    port: u16,
    number: u16,
    target: Option<Target>,
}

impl Side {
    fn new(place: &Path, number: u16) -> Self {
        let directory = place.join(number.to_string());
        fs::create_dir(&directory).unwrap();
        let mut side = Self { place: directory, port: free_port(), number, target: None };
        side.write("optimized");
        side.start();
        side
    }

    fn write(&self, state: &str) {
        let Self { place, port, number, .. } = self;
        let volume = place.parent().unwrap().join("shared");
        let text = format!(
            "listen = [\"127.0.0.1:{port}\"]\nreactors = 1\n[[subsystem]]\nnqn = \"{NQN}\"\nserial = \"SHARED\"\n\
             allow-any-host = true\ncntlid-min = {}\ncntlid-max = {}\nana = [{{ state = \"{state}\" }}]\n\
             [[subsystem.namespace]]\npath = {volume:?}\nlba = 4096\nuuid = \"7be1f3a4-1111-4c3b-9a55-0123456789ab\"\n",
            1 + 1000 * number,
            1000 + 1000 * number,
        );
        fs::write(place.join("target.toml"), text).unwrap();
    }

    fn start(&mut self) {
        self.target = Some(Target::serve_file(self.port, NQN.into(), &self.place));
    }

    /// Tells the target of another state, and waits until it is in force.
    fn turn(&self, state: &str) {
        self.write(state);
        let log = || fs::read_to_string(self.place.join("target.log")).unwrap();
        let before = log().len();
        kill(Pid::from_raw(self.target.as_ref().unwrap().id().cast_signed()), Signal::SIGHUP).unwrap();
        eventually("the target reloads", || log()[before..].contains("reloaded:"));
        assert!(log()[before..].contains(&state.replace('-', " ")) || log()[before..].contains(state));
    }
}

/// State and access of each path, and how it is said.
fn paths(initiator: &Initiator) -> Vec<String> {
    let listed = initiator.list();
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let path = |path: &Value| format!("{} {}", word(&path["State"]), word(&path["ANAState"]));
    listed[0]["Paths"].as_array().unwrap().iter().map(path).collect()
}

#[test]
fn two_paths_change_and_one_dies_and_returns_under_load() {
    let Some(bench) = Bench::with_devices() else { return };
    File::create(bench.place.join("shared")).unwrap().set_len(64 << 20).unwrap();
    let (mut a, b) = (Side::new(&bench.place, 0), Side::new(&bench.place, 1));
    let (first, second) = (a.port.to_string(), b.port.to_string());
    let initiator = &bench.initiator;
    let line = [
        "connect",
        "-t",
        "rdma",
        "-a",
        "127.0.0.1",
        "-a",
        "127.0.0.1",
        "-s",
        &first,
        "-s",
        &second,
        "-n",
        NQN,
        "--via",
        "fuse",
        "--iopolicy",
        "round-robin",
        "-k",
        "1",
        "-c",
        "1",
        "-o",
        "json",
    ];
    let attached: Value = serde_json::from_str(&initiator.succeed(&line)).unwrap();
    let device = attached["DevicePath"].as_str().unwrap();
    eventually("both paths stand", || paths(initiator) == ["live optimized", "live optimized"]);
    let load = ["--rw=randwrite", "--bs=4k", "--size=40m", "--iodepth=16", "--rate=3m"];
    let load = fio(device, &load).spawn().unwrap();

    a.turn("inaccessible");
    eventually("the event is followed", || paths(initiator) == ["live inaccessible", "live optimized"]);
    b.turn("non-optimized");
    a.turn("optimized");
    eventually("it is followed back", || paths(initiator) == ["live optimized", "live non-optimized"]);
    b.turn("optimized");
    a.target.take().unwrap().crash();
    eventually("the loss is listed", || paths(initiator)[0].starts_with("connecting"));
    assert!(
        initiator.succeed(&["list"]).contains(&format!("path traddr=127.0.0.1,trsvcid={first} connecting: "))
    );
    a.start();
    eventually("it is back", || paths(initiator) == ["live optimized", "live optimized"]);
    finish(load);
    initiator.succeed(&["disconnect", "-n", NQN]);
    bench.assert_clean();
}

#[test]
fn with_both_targets_dead_requests_fail_after_the_time_and_go_on_with_the_first_that_returns() {
    let bench = Bench::new();
    let shared = bench.place.join("shared");
    File::create(&shared).unwrap().set_len(8 << 20).unwrap();
    let (mut a, mut b) = (Side::new(&bench.place, 0), Side::new(&bench.place, 1));
    let ports = [a.port.to_string(), b.port.to_string()];
    let more =
        ["-a", "127.0.0.1", "-s", &ports[0], "-s", &ports[1], "-k", "1", "-c", "1", "-F", "1", "-o", "json"];
    let attached: Value = serde_json::from_str(&bench.initiator.succeed(&connecting(NQN, &more))).unwrap();
    let uri = format!("nbd+unix:///?socket={}", attached["DevicePath"].as_str().unwrap());
    let source = bench.place.join("source");
    fs::write(&source, vec![0xA5; 8 << 20]).unwrap();
    let copies = |from: &str, to: &str| {
        Command::new("nbdcopy").args([from, to]).stderr(Stdio::null()).status().unwrap().success()
    };
    let writes = || copies(source.to_str().unwrap(), &uri);
    eventually("both paths stand", || paths(&bench.initiator) == ["live optimized", "live optimized"]);

    a.target.take().unwrap().crash();
    assert!(copies(&uri, "null:") && writes(), "one path is left, so nothing fails");
    b.target.take().unwrap().crash();
    eventually("the loss is listed", || bench.initiator.list()[0]["State"] == "connecting");
    assert!(!copies(&uri, "null:") && !writes(), "an error, long before all is given up");
    fs::write(&source, vec![0x5A; 8 << 20]).unwrap();
    b.start();
    eventually("it is back", || bench.initiator.list()[0]["State"] == "live");
    assert!(writes() && copies(&uri, "null:"));
    assert!(fs::read(&shared).unwrap().iter().all(|&byte| byte == 0x5A));
    bench.initiator.succeed(&["disconnect", "-n", NQN]);
    bench.assert_clean();
}

#[test]
fn paths_which_do_not_go_together_are_told_apart() {
    let bench = Bench::new();
    let [target, nobody, neither] =
        [bench.target().port, free_port(), free_port()].map(|port| port.to_string());
    let nqn = &bench.target().nqn;
    let twice = bench.initiator.fail(2, &connecting(nqn, &["-a", "127.0.0.1", "-s", &target]));
    assert!(twice.contains("given twice"), "{twice}");
    bench.initiator.fail(3, &connecting(nqn, &["-a", "127.0.0.1", "-s", &nobody, "-s", &neither]));
    // One path is enough to begin with; the other is tried on.
    bench.initiator.succeed(&connecting(nqn, &["-a", "127.0.0.1", "-s", &target, "-s", &nobody]));
    assert_eq!(paths(&bench.initiator), ["live optimized", "connecting -"]);
    bench.initiator.succeed(&["disconnect", "-n", nqn]);
    bench.assert_clean();
}

/// A command line with one address, and more.
fn connecting<'a>(nqn: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["connect", "-a", "127.0.0.1", "-n", nqn, "--via", "nbd"], more].concat()
}
