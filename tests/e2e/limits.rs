//! What the target takes on, by the real programs: who is one too many is refused, which the log and the host are told, and
//! other sizes of transfers, capsules and buffers carry the same bytes.
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ironside_common::memory::Pages;
use ironside_initiator::attach::{AttachOptions, Attached};
use ironside_initiator::host::HostOptions;
use ironside_tests::support::programs::{Target, free_port, program, run, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use uuid::Uuid;

use super::bench::eventually;
use super::qos::{figures, load};

fn write(place: &Path, port: u16, nqn: &str, limits: &str) {
    let text = format!(
        "listen = [\"127.0.0.1:{port}\"]\nreactors = 2\n[limits]\n{limits}\n[[subsystem]]\nnqn = {nqn:?}\n\
         allow-any-host = true\n[[subsystem.namespace]]\nnull = \"1GiB\"\n"
    );
    fs::write(place.join("target.toml"), text).unwrap();
}

/// A short load over so many I/O queues.
fn try_load(target: &Target, queues: &str) -> Output {
    let port = target.port.to_string();
    let mut perf = Command::new(program("ironside-tools"));
    perf.args(["perf", "-a", "127.0.0.1", "-s", &port, "-n", &target.nqn, "-t", "1", "-i", queues]);
    perf.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn one_too_many_is_refused_until_the_limit_is_another() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let port = free_port();
    let nqn = format!("nqn.2014-08.org.example:limits-{port}");
    write(place, port, &nqn, "connections = 4\nbuffers = \"16MiB\"");
    let checked = run(
        program("ironside-target").to_str().unwrap(),
        &["check", place.join("target.toml").to_str().unwrap()],
    );
    assert!(checked.contains("buffers                   16 MiB"), "{checked}");
    let target = Target::serve_file(port, nqn.clone(), place);
    let log = || fs::read_to_string(place.join("target.log")).unwrap();
    let told = "taken on at most: buffers 16 MiB, connections 4, connections-per-address 2048";
    eventually("it says what it takes on", || log().contains(told));
    let reload = |limits, told| {
        write(place, port, &nqn, limits);
        kill(Pid::from_raw(target.id().cast_signed()), Signal::SIGHUP).unwrap();
        eventually("it is reloaded", || log().contains(told));
    };

    let within = try_load(&target, "3");
    assert!(within.status.success(), "{}", text(&within.stderr));
    let beyond = try_load(&target, "4");
    assert!(!beyond.status.success());
    assert!(log().contains("limit=connections most=4"), "{}", log());

    reload("connections = 5\ncontrollers = 1\nbuffers = \"32MiB\"", "connections limited to 5");
    assert!(log().contains("`limits.buffers` cannot be changed while it is served"), "{}", log());
    let held = attach(&target);
    let second = try_load(&target, "1");
    assert!(!second.status.success());
    assert!(log().contains("limit=controllers most=1"), "{}", log());
    drop(held);
    reload("buffers = \"16MiB\"", "connections limited to 8192, controllers limited to 2048");
    let beyond = try_load(&target, "4");
    assert!(beyond.status.success(), "{}", text(&beyond.stderr));
}

#[test]
fn bytes_arrive_whatever_the_sizes() {
    for limits in [
        "in-capsule=0,transfer-size=128KiB,buffers=16MiB,rdma-reads=1",
        "in-capsule=16KiB,transfer-size=256KiB,connections-per-address=9",
    ] {
        let place = tempfile::tempdir().unwrap();
        let nqn = "nqn.2014-08.org.example:sizes";
        let options = ["--allow-any-host", "--namespace", "ram:16MiB,lba=512", "--limits", limits];
        let target = Target::serve_as(nqn, free_port(), place.path(), &options);
        let attached = attach(&target);
        let volume = attached.open(1).unwrap();
        for (seed, length) in
            [4096_usize, 8192, 12 << 10, 20 << 10, 128 << 10, 3 << 20].into_iter().enumerate()
        {
            let bytes: Vec<u8> = (0..length).map(|at| (at >> 9) as u8 ^ at as u8 ^ seed as u8).collect();
            let mut pages = volume.register(Pages::zeroed(length)).unwrap();
            pages.copy_from_slice(&bytes);
            let (mut pages, written) = volume.write(4 << 20, pages, false).wait();
            assert_eq!(written, Ok(()), "{length} bytes with {limits}");
            pages.fill(0);
            let (pages, read) = volume.read(4 << 20, pages).wait();
            assert_eq!(read, Ok(()), "{length} bytes with {limits}");
            assert!(pages[..] == bytes[..], "{length} bytes with {limits}");
        }
    }
}

#[test]
fn a_greedy_host_leaves_others_their_connects_reads_and_keep_alives() {
    let place = tempfile::tempdir().unwrap();
    let nqn = "nqn.2014-08.org.example:shared";
    // Nine buffers of a megabyte, which a thousand writes of one host would like to have.
    let options =
        ["--allow-any-host", "--namespace", "null:1GiB", "--limits", "buffers=16MiB", "--queue-depth", "256"];
    let target = Target::serve_as(nqn, free_port(), place.path(), &options);
    let host = |number| {
        format!("-q nqn.2014-08.org.example:host-{number} -I 00000000-0000-4000-8000-00000000000{number}")
    };
    let flood = format!("{} -t 8 -b 256k -r 0 --yes-overwrite -d 1000 -Q 256", host(1));
    let greedy = load(&target, &flood);
    // Connects one after another, and reads of both kinds of buffers which the writes use and do not.
    for (number, reads) in [(2, "-t 1 -b 4k -d 4"), (3, "-t 1 -b 512k -d 4"), (4, "-t 2 -b 1M -d 2")] {
        let figures = figures(load(&target, &format!("{} {reads}", host(number))));
        let done = figures["iops"].as_f64().unwrap() * figures["seconds"].as_f64().unwrap();
        assert!(done >= 4.0 && figures["errors"] == 0, "{reads}: {figures}");
    }
    let figures = figures(greedy);
    let done = figures["iops"].as_f64().unwrap() * figures["seconds"].as_f64().unwrap();
    assert!(done > 100.0 && figures["errors"] == 0, "{figures}");
    let log = fs::read_to_string(place.path().join("target.log")).unwrap();
    assert!(!log.contains("keep alive did not come"), "{log}");
}

fn attach(target: &Target) -> Attached {
    let address = SocketAddr::from(([127, 0, 0, 1], target.port));
    let host_nqn = "nqn.2014-08.org.example:limited".parse().unwrap();
    let host = HostOptions::new(address.into(), target.nqn.parse().unwrap(), host_nqn, Uuid::from_u128(7));
    Attached::attach(AttachOptions::new(host)).unwrap()
}
