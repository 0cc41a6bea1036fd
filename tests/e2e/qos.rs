//! Limits of namespaces and hosts, by the real programs: what a measured load gets, before and after the limit changes,
//! and who gets how much of it.
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ironside_tests::support::programs::{Target, free_port, program, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::bench::eventually;

fn write(place: &Path, port: u16, nqn: &str, host_limit: &str, limit: &str) {
    let text = format!(
        "listen = [\"127.0.0.1:{port}\"]\nreactors = 2\n[[subsystem]]\nnqn = {nqn:?}\nallow-any-host = true\n\
         {host_limit}\n[[subsystem.namespace]]\nnull = \"1GiB\"\n{limit}\n[[subsystem.namespace]]\nnull = \"1GiB\"\n"
    );
    fs::write(place.join("target.toml"), text).unwrap();
}

/// Starts a load of some seconds on namespace 1, over four queues.
pub(super) fn load(target: &Target, more: &str) -> Child {
    let port = target.port.to_string();
    let mut perf = Command::new(program("ironside-tools"));
    perf.args(["perf", "-a", "127.0.0.1", "-s", &port, "-n", &target.nqn, "-i", "4", "-o", "json"]);
    perf.args(more.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// What it measured.
pub(super) fn figures(load: Child) -> Value {
    let output = load.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    printed["runs"][0].take()
}

/// Commands a second, and for how long.
fn measure(target: &Target, more: &str) -> (f64, f64) {
    let figures = figures(load(target, more));
    (figures["iops"].as_f64().unwrap(), figures["seconds"].as_f64().unwrap())
}

#[test]
fn a_limit_holds_over_all_queues_and_changes_under_load() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let port = free_port();
    let nqn = format!("nqn.2014-08.org.example:qos-{port}");
    write(place, port, &nqn, "", "limit = { iops = 200 }");
    let target = Target::serve_file(port, nqn.clone(), place);
    let (iops, seconds) = measure(&target, "-t 2");
    // The burst is 20, and 32 were sent when time was up.
    assert!(iops * seconds <= 200.0 * (seconds + 0.5) + 60.0, "{iops} for {seconds} s");
    assert!(iops > 100.0, "{iops}");
    let (other, _) = measure(&target, "-t 1 --nsid 2");
    assert!(other > 400.0, "namespace 2 is not limited: {other}");

    // A load which is under way has more once the file says so, and what it waits for is let in.
    let running = load(&target, "-t 4 -d 256 -Q 64");
    write(place, port, &nqn, "", "limit = { iops = 5000000 }");
    kill(Pid::from_raw(target.id().cast_signed()), Signal::SIGHUP).unwrap();
    let log = || fs::read_to_string(place.join("target.log")).unwrap();
    eventually("it is reloaded", || log().contains("limited: 5000000 commands/s"));
    let iops = figures(running)["iops"].as_f64().unwrap();
    assert!(iops > 400.0, "{iops}");

    write(place, port, &nqn, "host-limit = { write-bandwidth = \"4MiB\", burst = \"0s\" }", "");
    kill(Pid::from_raw(target.id().cast_signed()), Signal::SIGHUP).unwrap();
    eventually("it is reloaded", || log().contains("other limits for hosts"));
    let writes = "-t 2 -b 64k -r 0 --yes-overwrite -d 8";
    let (iops, seconds) = measure(&target, writes);
    assert!(iops * seconds <= 64.0 * (seconds + 0.5) + 20.0, "{iops} for {seconds} s");
    let (reads, _) = measure(&target, "-t 1");
    assert!(reads > 400.0, "reads are not limited: {reads}");
}

#[test]
fn a_host_with_many_large_writes_leaves_another_its_share_and_its_keep_alive() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let port = free_port();
    let nqn = format!("nqn.2014-08.org.example:qos-{port}");
    write(place, port, &nqn, "", "limit = { bandwidth = \"32MiB\" }");
    let target = Target::serve_file(port, nqn, place);
    let host = |number| {
        format!("-q nqn.2014-08.org.example:host-{number} -I 00000000-0000-4000-8000-00000000000{number}")
    };
    let flood = format!("{} -t 6 -b 1M -r 0 --yes-overwrite -d 100 -Q 64", host(1));
    let greedy = load(&target, &flood);
    // It connects, reads and leaves while all of that waits: its half are 4096 blocks a second; behind those writes, one
    // after the other, it would get 32.
    let (iops, _) = measure(&target, &format!("{} -t 3 -d 16", host(2)));
    assert!(iops > 200.0, "{iops}");
    let figures = figures(greedy);
    assert_eq!(figures["errors"], 0);
    let moved = figures["iops"].as_f64().unwrap() * figures["seconds"].as_f64().unwrap();
    assert!(moved > 30.0, "{moved} MiB: what another leaves is its");
}
