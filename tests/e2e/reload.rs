//! What is served changes while it is used: the target's file is edited and the target told, and what clients, the
//! files below and the log say is compared with what was asked for.
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use ironside_tests::support::programs::{Initiator, Target, free_port, run, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::bench::eventually;

const SIZE: u64 = 16 << 20;

/// A target which serves a file of configuration, and an initiator.
struct Reloading {
    initiator: Initiator,
    target: Target,
    place: PathBuf,
    _directory: tempfile::TempDir,
}

impl Reloading {
    /// Serves these files, made for it, as namespaces from 1 on.
    fn new(volumes: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_owned();
        let port = free_port();
        let nqn = format!("nqn.2014-08.org.example:reload-{port}");
        write(&place, port, &nqn, "", volumes);
        let target = Target::serve_file(port, nqn, &place);
        Self { initiator: Initiator::new(&place), target, place, _directory: directory }
    }

    fn connect(&self, nsid: u32) -> Value {
        self.initiator.connect(&self.target, &["--via", "nbd", "--nsid", &nsid.to_string(), "-D"])
    }

    /// Writes another file, says so, and waits for the answer in the log.
    fn change(&self, keys: &str, volumes: &[&str]) -> String {
        write(&self.place, self.target.port, &self.target.nqn, keys, volumes);
        self.hang_up()
    }

    /// Tells the target; gives what it says to that.
    fn hang_up(&self) -> String {
        let before = self.log().len();
        kill(Pid::from_raw(self.target.id().cast_signed()), Signal::SIGHUP).unwrap();
        eventually("the target answers", || self.log()[before..].contains("reloaded"));
        self.log()[before..].to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.join("target.log")).unwrap()
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.target.id())).unwrap().count()
    }

    fn is_locked(&self, volume: &str) -> bool {
        File::open(self.place.join(volume)).unwrap().try_lock_shared().is_err()
    }
}

fn write(place: &Path, port: u16, nqn: &str, keys: &str, volumes: &[&str]) {
    let mut text = format!(
        "listen = [\"127.0.0.1:{port}\"]\nreactors = 2\n[[subsystem]]\nnqn = {nqn:?}\n{}\n",
        if keys.is_empty() { "allow-any-host = true" } else { keys }
    );
    for volume in volumes {
        let path = place.join(volume);
        if !path.exists() {
            fs::write(&path, vec![volume.as_bytes()[0]; SIZE as usize]).unwrap();
        }
        text.push_str(&format!("[[subsystem.namespace]]\npath = {path:?}\n"));
    }
    fs::write(place.join("target.toml"), text).unwrap();
}

fn address(attached: &Value) -> String {
    format!("nbd+unix:///?socket={}", attached["DevicePath"].as_str().unwrap())
}

/// Whether the whole volume can be read.
fn reads(attached: &Value) -> bool {
    let copy = Command::new("nbdcopy").args([&address(attached), "null:"]).stderr(Stdio::null()).status();
    copy.unwrap().success()
}

#[test]
fn growth_is_seen_without_a_word() {
    let bench = Reloading::new(&["a"]);
    let attached = bench.connect(1);
    File::options().write(true).open(bench.place.join("a")).unwrap().set_len(2 * SIZE).unwrap();
    let larger = (2 * SIZE).to_string();
    eventually("the export grows", || run("nbdinfo", &["--size", &address(&attached)]).trim() == larger);
    assert!(bench.log().contains(&format!("grown from {SIZE} to {larger} bytes")));
    assert!(reads(&attached));
}

#[test]
fn a_namespace_goes_under_load_and_comes_back() {
    let bench = Reloading::new(&["a", "b"]);
    let (stays, goes) = (bench.connect(1), bench.connect(2));
    let descriptors = bench.descriptors();
    thread::scope(|scope| {
        let load = scope.spawn(|| while reads(&goes) {});
        let others = scope.spawn(|| (0..20).all(|_| reads(&stays)));
        let said = bench.change("", &["a"]);
        assert!(said.contains("reloaded: -1 namespace 2"), "{said}");
        load.join().unwrap();
        assert!(others.join().unwrap(), "another namespace suffered");
    });
    eventually("its file is free", || !bench.is_locked("b") && bench.descriptors() == descriptors - 1);
    for _ in 0..3 {
        let said = bench.change("", &["a", "b"]);
        assert!(said.contains("reloaded: +1 namespace 2"), "{said}");
        assert!(bench.is_locked("b"));
        eventually("the initiator takes it up again", || reads(&goes));
        bench.change("", &["a"]);
        bench.change("", &["a", "b"]);
        eventually("it is the same again", || reads(&goes));
        bench.change("", &["a"]);
    }
    eventually("nothing is left open", || bench.descriptors() == descriptors - 1);
    assert!(reads(&stays));
}

#[test]
fn another_file_under_a_number_is_never_taken_for_the_first() {
    let bench = Reloading::new(&["a"]);
    let attached = bench.connect(1);
    let said = bench.change("", &["b"]);
    assert!(said.contains("replaced by another"), "{said}");
    eventually("the old one is gone", || !reads(&attached));
    let head = |file: &str| fs::read(bench.place.join(file)).unwrap()[0];
    let written = Command::new("nbdcopy").args(["-", &address(&attached)]).stdin(Stdio::null()).status();
    assert!(head("b") == b'b' && head("a") == b'a', "a write went astray: {written:?}");
}

#[test]
fn a_bad_file_changes_nothing() {
    let bench = Reloading::new(&["a"]);
    let attached = bench.connect(1);
    let said = bench.change("allow-any-host = true\nallow-hots = []", &["a"]);
    assert!(said.contains("not reloaded") && said.contains("target.toml:6:1"), "{said}");
    assert!(said.contains("did you mean `allow-hosts`?"), "{said}");
    fs::create_dir(bench.place.join("folder")).unwrap();
    let said = bench.change("", &["a", "folder"]);
    assert!(said.contains("not reloaded") && said.contains("neither a regular file"), "{said}");
    assert!(reads(&attached));
    let said = bench.change("", &["a"]);
    assert!(said.contains("reloaded: nothing has changed"), "{said}");
}

#[test]
fn a_host_no_longer_listed_is_sent_away() {
    let bench = Reloading::new(&["a"]);
    bench.connect(1);
    assert_eq!(bench.initiator.list()[0]["State"].as_str(), Some("live"));
    let said = bench.change("allow-hosts = [\"nqn.2014-08.org.example:friend\"]", &["a"]);
    assert!(said.contains("other hosts admitted"), "{said}");
    eventually("it is sent away", || bench.initiator.list()[0]["State"].as_str() != Some("live"));
}

#[test]
fn a_namespace_is_for_some_hosts_alone() {
    const HOSTS: [&str; 2] = ["nqn.2014-08.org.example:first", "nqn.2014-08.org.example:second"];
    let bench = Reloading::new(&["a", "b"]);
    // The last table of the file is that of the last namespace.
    let show_to = |host: &str| {
        write(&bench.place, bench.target.port, &bench.target.nqn, "", &["a", "b"]);
        let file = bench.place.join("target.toml");
        let text = fs::read_to_string(&file).unwrap() + &format!("allow-hosts = [{host:?}]\n");
        fs::write(file, text).unwrap();
        bench.hang_up()
    };
    let port = bench.target.port.to_string();
    let sees = |host: &str| {
        let whom = ["id-ns", "-a", "127.0.0.1", "-s", &port, "-n", &bench.target.nqn, "-q", host];
        bench.initiator.run(&[&whom[..], &["--namespace-id", "2"]].concat()).status.success()
    };
    let said = show_to(HOSTS[0]);
    assert!(
        said.contains(&format!("reloaded: namespace 2 of {} is for other hosts", bench.target.nqn)),
        "{said}"
    );
    assert_eq!(HOSTS.map(sees), [true, false]);
    let more = ["--via", "nbd", "--nsid", "2", "-D", "-q", HOSTS[0]];
    let attached = bench.initiator.connect(&bench.target, &more);
    let other =
        bench.initiator.connect(&bench.target, &["--via", "nbd", "--nsid", "1", "-D", "-q", HOSTS[1]]);
    assert!(reads(&attached) && reads(&other));
    show_to(HOSTS[1]);
    assert_eq!(HOSTS.map(sees), [false, true]);
    eventually("it is gone for the first", || !reads(&attached));
    assert!(reads(&other), "another namespace suffered");
    show_to(HOSTS[0]);
    eventually("it is there for it again", || reads(&attached));
}

#[test]
fn listeners_come_and_go() {
    let bench = Reloading::new(&["a"]);
    let other = free_port().to_string();
    let discover = |port: &str| bench.initiator.run(&["discover", "-a", "127.0.0.1", "-s", port]).status;
    assert!(!discover(&other).success());
    let port = bench.target.port;
    let both = format!("allow-any-host = true\nlisten = [\"127.0.0.1:{port}\", \"127.0.0.1:{other}\"]");
    assert!(bench.change(&both, &["a"]).contains(&format!("+1 listener 127.0.0.1:{other}")));
    assert!(discover(&other).success());
    let wildcard = format!("allow-any-host = true\nlisten = [\"0.0.0.0:{port}\"]");
    let said = bench.change(&wildcard, &["a"]);
    assert!(said.contains(&format!("-1 listener 127.0.0.1:{other}")), "{said}");
    assert!(!discover(&other).success() && discover(&port.to_string()).success());
}

#[test]
fn another_key_holds_from_the_signal_on() {
    const HOST: &str = "nqn.2014-08.org.example:keyed";
    let bench = Reloading::new(&["a"]);
    bench.connect(1);
    let path = |name: &str| bench.place.join(name).to_str().unwrap().to_owned();
    for name in ["first", "second"] {
        bench.initiator.succeed(&["gen-dhchap-key", "-f", &path(name)]);
    }
    fs::copy(path("first"), path("host.key")).unwrap();
    let table = |change: &str| {
        let file = path("host.key");
        format!("[[subsystem.host]]\nnqn = {HOST:?}\nkey-file = {file:?}\non-key-change = {change:?}")
    };
    let said = bench.change(&table("keep"), &["a"]);
    assert!(said.contains("other keys for hosts of"), "{said}");
    eventually("who is not listed is sent away", || {
        bench.initiator.list()[0]["State"].as_str() != Some("live")
    });
    let port = bench.target.port.to_string();
    let known =
        ["id-ctrl", "-t", "rdma", "-a", "127.0.0.1", "-s", &port, "-n", &bench.target.nqn, "-q", HOST];
    let with = |key: &str| bench.initiator.run(&[&known[..], &["--dhchap-secret-file", &path(key)]].concat());
    let without = bench.initiator.run(&known);
    assert!(!without.status.success() && text(&without.stderr).contains("wants this host to authenticate"));
    assert!(with("first").status.success());
    let wrong = with("second");
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("do not have the same key"));
    fs::copy(path("second"), path("host.key")).unwrap();
    assert!(with("first").status.success(), "nobody has said so yet");
    let said = bench.hang_up();
    assert!(said.contains("reloaded: other keys for hosts of"), "{said}");
    assert!(!with("first").status.success() && with("second").status.success());
    fs::write(path("host.key"), "no secret").unwrap();
    let said = bench.hang_up();
    assert!(said.contains("not reloaded") && said.contains("host.key"), "{said}");
    assert!(with("second").status.success(), "what was served before goes on");
}

/// Copies a file into the volume and back, over and over, and says after how many times `until` held. Whatever cannot be
/// read or written, or reads as something else, is a failure.
fn copying(attached: &Value, place: &Path, until: &AtomicBool, copies: &AtomicU32) {
    let (source, back) = (place.join("source"), place.join("back"));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    for round in 0_u8.. {
        if until.load(Ordering::Relaxed) {
            return;
        }
        let bytes: Vec<u8> = (0..SIZE as u32).map(|at| (at >> 12) as u8 ^ round).collect();
        fs::write(&source, &bytes).unwrap();
        run("nbdcopy", &[&path(&source), &address(attached)]);
        run("nbdcopy", &[&address(attached), &path(&back)]);
        assert!(fs::read(&back).unwrap() == bytes, "round {round}");
        copies.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn secrets_change_under_load_and_whoever_reads_and_writes_notices_nothing() {
    const HOST: &str = "nqn.2014-08.org.example:rekeyed";
    let bench = Reloading::new(&["a"]);
    let path = |name: &str| bench.place.join(name).to_str().unwrap().to_owned();
    // The ends have files of their own, as they do on two machines.
    let table = format!(
        "[[subsystem.host]]\nnqn = {HOST:?}\nkey-file = {:?}\ncontroller-key-file = {:?}",
        path("theirs.host"),
        path("theirs.controller")
    );
    let make = |side: &str| {
        for of in ["host", "controller"] {
            let _ = fs::remove_file(path(&format!("{side}.{of}")));
            bench.initiator.succeed(&["gen-dhchap-key", "-f", &path(&format!("{side}.{of}"))]);
        }
    };
    let hand_over = || {
        for of in ["host", "controller"] {
            fs::copy(path(&format!("theirs.{of}")), path(&format!("ours.{of}"))).unwrap();
        }
    };
    make("theirs");
    hand_over();
    assert!(bench.change(&table, &["a"]).contains("other keys for hosts of"));
    let (ours, controllers) = (path("ours.host"), path("ours.controller"));
    let secrets = ["--dhchap-secret-file", &ours, "--dhchap-ctrl-secret-file", &controllers];
    let more = ["--via", "nbd", "-q", HOST, "-i", "2", "-k", "2", "-c", "1"];
    let attached = bench.initiator.connect(&bench.target, &[&more[..], &secrets].concat());

    let (until, copies) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let copying = scope.spawn(|| copying(&attached, &bench.place, &until, &copies));
        let go_on = |what: &str| {
            let before = copies.load(Ordering::Relaxed);
            let goes_on = || copies.load(Ordering::Relaxed) > before + 1 || copying.is_finished();
            eventually(what, goes_on);
        };
        for _ in 0..3 {
            make("theirs");
            assert!(bench.hang_up().contains("other keys for hosts of"));
            hand_over();
            let said = bench.initiator.succeed(&["rekey", "vol0"]);
            assert!(said.contains("3 queues have authenticated again"), "{said}");
            go_on("reading and writing goes on");
        }
        // A secret which the target does not have: it is refused, and requests wait until both have the same.
        make("ours");
        let said = bench.initiator.fail(4, &["rekey"]);
        assert!(said.contains("vol0"), "{said}");
        eventually("the target ends the connection", || bench.initiator.list()[0]["State"] == "connecting");
        hand_over();
        go_on("all goes on once both ends have the same secrets");
        until.store(true, Ordering::Relaxed);
        copying.join().unwrap();
    });
    bench.initiator.succeed(&["disconnect", "vol0"]);
}
