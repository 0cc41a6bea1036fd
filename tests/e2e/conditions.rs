//! What `list` says of an attachment whose target is in trouble, and what a refusal says.
use std::fs::File;

use ironside_tests::support::programs::{Initiator, Target};
use serde_json::Value;

use crate::bench::{Bench, eventually, namespace};

/// Ends a target, and starts one at its place by `again`.
fn replace(bench: &mut Bench, again: impl FnOnce(u16, &Bench) -> Target) {
    let port = bench.crash_target();
    bench.target = Some(again(port, bench));
}

fn only(initiator: &Initiator) -> Value {
    initiator.list().pop().expect("one is attached")
}

fn end(bench: &Bench) {
    bench.initiator.succeed(&["disconnect", "vol0"]);
    bench.assert_clean();
}

#[test]
fn a_lost_connection_is_explained() {
    let mut bench = Bench::new();
    bench.connect(&["--via", "nbd", "-k", "2", "-c", "1"]);
    let port = bench.crash_target();
    eventually("the loss is explained", || {
        let listed = only(&bench.initiator);
        let reason = listed["Reason"].as_str().unwrap_or_default();
        listed["State"] == "connecting"
            && reason.contains("Connection refused")
            && listed["FailedAttempts"].as_u64() > Some(1)
            && listed["GivesUpInSeconds"].as_u64() > Some(500)
    });
    let text = bench.initiator.succeed(&["list"]);
    assert!(text.contains("\nvol0: connecting") && text.contains("requests wait"), "{text}");
    let other_blocks = format!("{},lba=512", bench.place.join("volume").display());
    bench.target = Some(Target::serve_at(port, &bench.place, &[&other_blocks]));
    eventually("other blocks are not taken for the same", || {
        let listed = only(&bench.initiator);
        listed["State"] == "gone"
            && listed["Reason"].as_str().is_some_and(|why| why.contains("blocks of another"))
    });
    replace(&mut bench, |port, bench| Target::serve_at(port, &bench.place, &[&namespace(&bench.place)]));
    eventually("it is live again", || {
        let listed = only(&bench.initiator);
        listed["State"] == "live" && listed["Reason"].is_null() && listed["FailedAttempts"] == 0
    });
    end(&bench);
}

#[test]
fn a_volume_which_grew_is_listed_with_its_new_size() {
    let mut bench = Bench::new();
    bench.connect(&["--via", "nbd", "-k", "2", "-c", "1"]);
    replace(&mut bench, |port, bench| {
        let volume = bench.place.join("volume");
        File::options().write(true).open(&volume).unwrap().set_len(128 << 20).unwrap();
        Target::serve_at(port, &bench.place, &[&format!("{},lba=4096", volume.display())])
    });
    eventually("the new size is listed", || {
        let listed = only(&bench.initiator);
        listed["State"] == "live" && listed["PhysicalSize"].as_u64() == Some(128 << 20)
    });
    assert!(bench.initiator.succeed(&["list"]).contains("128 MiB"));
    end(&bench);
}

#[test]
fn another_namespace_in_its_place_is_not_passed_off_as_it() {
    let mut bench = Bench::new();
    bench.connect(&["--via", "nbd", "-k", "2", "-c", "1"]);
    replace(&mut bench, |port, bench| Target::serve_at(port, &bench.place, &["ram:64MiB"]));
    eventually("the replacement is listed", || {
        let listed = only(&bench.initiator);
        listed["State"] == "gone" && listed["Reason"].as_str().is_some_and(|why| why.contains("UUID"))
    });
    let text = bench.initiator.succeed(&["list"]);
    assert!(text.contains("\nvol0: gone") && text.contains("disconnect it, and connect again"), "{text}");
    end(&bench);
}

#[test]
fn a_target_which_refuses_for_good_is_named() {
    let mut bench = Bench::new();
    let attached = bench.connect(&["--via", "nbd", "-k", "2", "-c", "1"]);
    replace(&mut bench, |port, bench| {
        let options = ["--allow-any-host", "--namespace", "ram:1MiB"];
        Target::serve_as("nqn.2014-08.org.example:another", port, &bench.place, &options)
    });
    eventually("the refusal is listed", || {
        let listed = only(&bench.initiator);
        listed["State"] == "dead"
            && listed["Reason"].as_str().is_some_and(|why| why.contains("refuses for good"))
    });
    let directory = bench.initiator.place.join(attached["Name"].as_str().unwrap());
    let log = std::fs::read_to_string(directory.join("log")).unwrap();
    assert_eq!(log.matches("says not to try again").count(), 1, "{log}");
    assert_eq!(log.matches("connection lost").count(), 1, "{log}");
    end(&bench);
}

#[test]
fn a_host_which_is_not_admitted_is_told_what_it_is_called() {
    let bench = Bench::new();
    let port = ironside_tests::support::programs::free_port();
    let (nqn, friend, stranger) =
        ["disk", "friend", "stranger"].map(|name| format!("nqn.2014-08.org.example:{name}")).into();
    let options = ["--allow-host", &friend, "--namespace", "ram:1MiB"];
    let target = Target::serve_as(&nqn, port, &bench.place, &options);
    let port = target.port.to_string();
    let connect = |host: &str| {
        ["connect", "-a", "127.0.0.1", "-s", &port, "-n", &nqn, "-q", host, "--via", "nbd"].map(str::to_owned)
    };
    let said = bench.initiator.fail(4, &connect(&stranger));
    assert!(
        said.contains(&format!("{nqn} at 127.0.0.1:{port} does not admit this host, {stranger}")),
        "{said}"
    );
    assert!(said.contains(&format!("--allow-host {stranger}")), "{said}");
    bench.initiator.succeed(&connect(&friend));
    end(&bench);
}

#[test]
fn crc_is_as_asked_or_there_is_no_connection() {
    let bench = Bench::new();
    let port = bench.target().port.to_string();
    let connect =
        ["connect", "-a", "127.0.0.1", "-s", &port, "-n", &bench.target().nqn, "--via", "nbd", "--crc"];
    let said = bench.initiator.fail(4, &[&connect[..], &["off"]].concat());
    assert!(said.contains("insists on CRC32C") && said.contains("--crc peer"), "{said}");
    bench.initiator.succeed(&[&connect[..], &["peer"]].concat());
    end(&bench);
}

#[test]
fn disconnecting_a_subsystem_which_is_not_attached_is_done() {
    let bench = Bench::new();
    let said = bench.initiator.succeed(&["disconnect", "-n", &bench.target().nqn]);
    assert!(said.contains("disconnected 0 controller(s)"), "{said}");
    bench.initiator.fail(7, &["disconnect", "-d", "/dev/no-such-device"]);
}
