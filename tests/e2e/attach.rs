//! The life of an attachment, with the real programs, sockets, files and devices.
//!
//! Block devices take root, `/dev/fuse` and the loop driver; without them those tests say so and do nothing.
#[cfg(test)]
mod bench;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod conditions;
#[cfg(test)]
mod copies;
#[cfg(test)]
mod cores;
#[cfg(test)]
mod cycles;
#[cfg(test)]
mod files;
#[cfg(test)]
mod library;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod linking;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod media;
#[cfg(test)]
mod multipath;
#[cfg(test)]
mod qos;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod reservation;
#[cfg(test)]
mod same_host;
mod suite;
#[cfg(test)]
mod vhost_user;

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ironside_tests::support::programs::{Target, free_port, run};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use self::bench::{Bench, eventually, finish, fio, is_bound, namespace, pid};

#[test]
fn an_attachment_is_listed_described_guarded_and_ended() {
    let bench = Bench::new();
    let nqn = bench.target().nqn.clone();
    let attached = bench.connect(&["--via", "nbd"]);
    assert_eq!(
        (attached["NameSpace"].as_u64(), attached["PhysicalSize"].as_u64()),
        (Some(1), Some(64 << 20))
    );
    let socket = attached["DevicePath"].as_str().unwrap();
    let name = attached["Name"].as_str().unwrap();

    let listed = bench.initiator.list();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["DevicePath"].as_str(), Some(socket));
    assert_eq!(listed[0]["SectorSize"].as_u64(), Some(4096));
    assert_eq!(listed[0]["State"].as_str(), Some("live"));
    assert!(bench.initiator.succeed(&["list"]).contains("4 KiB +  0 B"));

    let controller: Value =
        serde_json::from_str(&bench.initiator.succeed(&["id-ctrl", name, "-o", "json"])).unwrap();
    assert_eq!(controller["subnqn"].as_str(), Some(nqn.as_str()));
    assert!(bench.initiator.succeed(&["id-ns", socket]).contains("nsze    : 0x4000"));
    let namespace: Value =
        serde_json::from_str(&bench.initiator.succeed(&["id-ns", name, "-o", "json"])).unwrap();
    let used = namespace["lbafs"].as_array().unwrap().iter().find(|format| format["in_use"] == 1);
    assert_eq!(used.unwrap()["ds"], 12);
    assert!(controller["psds"].is_array() && controller["dctype"].is_number());

    let port = bench.target().port.to_string();
    let again = ["connect", "-a", "127.0.0.1", "-s", &port, "-n", &nqn, "--via", "nbd"];
    assert!(bench.initiator.fail(5, &again).contains("attached already"));

    let client = UnixStream::connect(socket).unwrap();
    eventually("the client counts", || {
        let output = bench.initiator.run(&["disconnect", name]);
        output.status.code() == Some(5) && String::from_utf8_lossy(&output.stderr).contains("NBD client")
    });
    drop(client);
    eventually("the client goes", || bench.initiator.run(&["disconnect", "-n", &nqn]).status.success());
    bench.assert_clean();
    assert!(bench.initiator.fail(7, &["disconnect", name]).contains(name));
}

#[test]
fn data_goes_both_ways_however_its_buffers_are_lent() {
    let bench = Bench::new();
    let source = bench.place.join("source");
    let bytes: Vec<u8> = (0..64_u32 << 20).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    for (index, registration) in ["window", "pool", "dynamic"].into_iter().enumerate() {
        let attached = bench.connect(&["--via", "nbd", "--registration", registration]);
        let address = format!("nbd+unix:///?socket={}", attached["DevicePath"].as_str().unwrap());
        let bytes: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_add(index as u8)).collect();
        fs::write(&source, &bytes).unwrap();
        let back = bench.place.join("back");
        run("nbdcopy", &[source.to_str().unwrap(), &address]);
        run("nbdcopy", &[&address, back.to_str().unwrap()]);
        assert!(fs::read(&back).unwrap() == bytes, "{registration}");
        bench.initiator.succeed(&["disconnect", "-n", &bench.target().nqn]);
    }
}

#[test]
fn the_doctor_finds_a_target_well_and_nobody_unwell() {
    let bench = Bench::new();
    let port = bench.target().port.to_string();
    let json =
        bench.initiator.succeed(&["doctor", "-a", "127.0.0.1", "-s", &port, "--count", "7", "-o", "json"]);
    let said: Value = serde_json::from_str(&json).unwrap();
    let finding = |said: &Value, check: &str| {
        let findings = said["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == check).unwrap().clone()
    };
    assert_eq!(finding(&said, "reach")["verdict"], "ok");
    assert!(finding(&said, "ping")["found"].as_str().unwrap().starts_with("7 RDMA Writes"));
    assert!(finding(&said, "link")["found"].as_str().unwrap().starts_with("lo is up"));
    assert!(
        bench
            .initiator
            .succeed(&["doctor", "-a", "127.0.0.1", "-s", &port, "-n", &bench.target().nqn])
            .contains("ping")
    );

    let nobody = free_port().to_string();
    let output = bench.initiator.run(&["doctor", "-a", "127.0.0.1", "-s", &nobody, "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["verdict"], &finding(&said, "reach")["verdict"]), (&"fail".into(), &"fail".into()));
    assert!(finding(&said, "reach")["remedy"].as_str().unwrap().contains("firewall"));
}

#[test]
fn what_a_target_offers_is_discovered() {
    let bench = Bench::new();
    let port = bench.target().port.to_string();
    let json = bench.initiator.succeed(&["discover", "-a", "127.0.0.1", "-s", &port, "-o", "json"]);
    let found: Value = serde_json::from_str(&json).unwrap();
    assert!(found["genctr"].is_u64());
    let record =
        found["records"].as_array().unwrap().iter().find(|r| r["subtype"] == "nvme subsystem").unwrap();
    assert_eq!(record["subnqn"].as_str(), Some(bench.target().nqn.as_str()));
    assert_eq!(record["trsvcid"].as_str(), Some(port.as_str()));
    let text = bench.initiator.succeed(&["discover", "-t", "rdma", "-a", "127.0.0.1", "-s", &port]);
    assert!(text.contains("Generation counter "), "{text}");
    assert!(text.contains("trtype:  rdma\nadrfam:  ipv4\n"), "{text}");
}

#[test]
fn failures_say_what_and_what_to_do() {
    let bench = Bench::new();
    let port = bench.target().port.to_string();
    let nobody = free_port().to_string();
    let nqn = bench.target().nqn.as_str();
    let connect =
        |port: &str, more: &[&str]| [&["connect", "-a", "127.0.0.1", "-s", port], more].concat().join(" ");
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let unreachable = bench.initiator.fail(3, &words(&connect(&nobody, &["-n", nqn])));
    assert!(unreachable.contains("Connection refused") && unreachable.contains("check that the target runs"));
    let unknown = bench.initiator.fail(4, &words(&connect(&port, &["-n", "nqn.2014-08.org.example:other"])));
    assert!(unknown.contains("ironside discover"), "{unknown}");
    let missing = bench.initiator.fail(4, &words(&connect(&port, &["-n", nqn, "--nsid", "7"])));
    assert!(missing.contains("no namespace 7; it has 1"), "{missing}");
    bench.initiator.fail(2, &words(&connect(&port, &["-n", nqn, "-Q", "1"])));
    bench.initiator.fail(2, &["connect", "-n", "hello"]);
    bench.assert_clean();
}

#[test]
fn the_best_way_is_chosen_and_named() {
    let Some(bench) = Bench::with_devices() else { return };
    let attached = bench.connect(&[]);
    assert_eq!(attached["Via"].as_str(), Some("fuse"));
    assert!(attached["Reason"].as_str().unwrap().contains("block device"));
    let device = attached["DevicePath"].as_str().unwrap();
    assert!(device.starts_with("/dev/loop"));
    bench.initiator.succeed(&["disconnect", "-d", device]);
    assert!(!is_bound(device));
    bench.assert_clean();
}

#[test]
fn a_file_system_lives_on_it_and_guards_it() {
    let Some(bench) = Bench::with_devices() else { return };
    let device = bench.device(&[]);
    run("mkfs.ext4", &["-q", &device]);
    let at = bench.mount_point();
    run("mount", &[&device, &at]);
    let content: Vec<u8> = (0..8 << 20).map(|i: u32| (i * 7 / 5) as u8).collect();
    fs::write(Path::new(&at).join("file"), &content).unwrap();
    let refused = bench.initiator.fail(5, &["disconnect", &device]);
    assert!(refused.contains("mounted at") && refused.contains("--force"), "{refused}");
    run("umount", &[&at]);
    run("fsck.ext4", &["-f", "-n", &device]);
    run("mount", &["-o", "ro", &device, &at]);
    assert!(fs::read(Path::new(&at).join("file")).unwrap() == content, "another content");
    run("umount", &[&at]);
    bench.initiator.succeed(&["disconnect", "-d", &device]);
    bench.assert_clean();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let Some(bench) = Bench::with_devices() else { return };
    let device = bench.device(&[]);
    let size = ["--rw=randrw", "--bs=4k", "--size=32m", "--iodepth=32"];
    finish(fio(&device, &size).spawn().unwrap());
    finish(fio(&device, &["--rw=write", "--bs=1m", "--size=64m", "--iodepth=4"]).spawn().unwrap());
    finish(fio(&device, &["--rw=randtrimwrite", "--bs=64k", "--size=32m", "--iodepth=4"]).spawn().unwrap());
    run("blkdiscard", &["-z", "-o", "4096", "-l", "8192", &device]);
    let first = fs::read(bench.place.join("volume")).unwrap();
    assert!(first[4096..12288].iter().all(|&byte| byte == 0), "zeroes reach the file behind the target");
    bench.initiator.succeed(&["disconnect", "-d", &device]);
    bench.assert_clean();
}

#[test]
fn a_read_only_attachment_refuses_writes() {
    let Some(bench) = Bench::with_devices() else { return };
    let device = bench.device(&["--read-only"]);
    let file = fs::OpenOptions::new().write(true).open(&device);
    let refused = file.and_then(|file| file.write_all_at(&[1; 4096], 0).and_then(|()| file.sync_all()));
    assert!(refused.is_err(), "a write went through");
    assert_eq!(run("blockdev", &["--getro", &device]).trim(), "1");
    bench.initiator.succeed(&["disconnect", "-d", &device]);
    let socket = bench.connect(&["--via", "nbd", "--readonly"]);
    let info = run(
        "nbdinfo",
        &["--json", &format!("nbd+unix:///?socket={}", socket["DevicePath"].as_str().unwrap())],
    );
    assert!(info.contains("\"is_read_only\": true"));
    bench.initiator.succeed(&["disconnect", socket["Name"].as_str().unwrap()]);
    bench.assert_clean();
}

#[test]
fn force_takes_a_mounted_device_away() {
    let Some(bench) = Bench::with_devices() else { return };
    let device = bench.device(&[]);
    run("mkfs.ext4", &["-q", &device]);
    let at = bench.mount_point();
    run("mount", &[&device, &at]);
    bench.initiator.succeed(&["disconnect", "--force", "-d", &device]);
    run("umount", &[&at]);
    eventually("the loop device goes with its last user", || !is_bound(&device));
    bench.assert_clean();
}

#[test]
fn a_dead_target_holds_nobody_up() {
    let Some(mut bench) = Bench::with_devices() else { return };
    let device = bench.device(&["-k", "2"]);
    let socket = bench.connect(&["--via", "nbd", "-D"]);
    bench.crash_target();
    // A reader that waits for the target would keep waiting; disconnecting makes it fail.
    let reader = Command::new("dd")
        .args([&format!("if={device}"), "of=/dev/null", "bs=4k", "count=1", "iflag=direct"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the loss is noticed", || {
        bench.initiator.list().iter().all(|one| one["State"] == "connecting")
    });
    // A writer that has written all it wants and closed the device waits too, without having it open.
    let mut writer = Command::new("dd")
        .args(["if=/dev/zero", &format!("of={device}"), "bs=64k", "count=2"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the writer's data waits", || {
        let output = bench.initiator.run(&["disconnect", &device]);
        assert_eq!(output.status.code(), Some(5));
        String::from_utf8_lossy(&output.stderr).contains("busy with")
    });
    bench.initiator.succeed(&["disconnect", "--force", &device]);
    writer.wait().unwrap();
    assert!(!reader.wait_with_output().unwrap().status.success(), "a read without a target");
    bench.initiator.succeed(&["disconnect", socket["Name"].as_str().unwrap()]);
    eventually("the loop device goes", || !is_bound(&device));
    bench.assert_clean();
}

#[test]
fn a_killed_process_leaves_nothing_that_is_not_cleaned_up() {
    let Some(bench) = Bench::with_devices() else { return };
    for command in [&["list"][..], &["disconnect", "vol0"]] {
        let device = bench.device(&[]);
        let listed = bench.initiator.list();
        kill(pid(&listed[0]), Signal::SIGKILL).unwrap();
        let process = PathBuf::from(format!("/proc/{}", pid(&listed[0])));
        eventually("the process ends", || !process.exists());
        bench.initiator.succeed(command);
        eventually("the loop device goes", || !is_bound(&device));
        bench.assert_clean();
    }
}

#[test]
fn a_signal_detaches_in_good_order() {
    let Some(bench) = Bench::with_devices() else { return };
    let device = bench.device(&[]);
    fs::write(&device, vec![0x5A; 1 << 20]).unwrap();
    let listed = bench.initiator.list();
    kill(pid(&listed[0]), Signal::SIGTERM).unwrap();
    eventually("it is detached", || fs::read_dir(&bench.initiator.place).unwrap().count() == 0);
    assert!(!is_bound(&device));
    bench.assert_clean();
    assert!(fs::read(bench.place.join("volume")).unwrap()[..1 << 20].iter().all(|&byte| byte == 0x5A));
}

#[test]
fn a_target_killed_under_load_costs_no_acknowledged_write() {
    let Some(mut bench) = Bench::with_devices() else { return };
    let device = bench.device(&["-c", "1", "-k", "2"]);
    let load = ["--rw=randwrite", "--bs=4k", "--size=48m", "--iodepth=16", "--rate=12m", "--do_verify=1"];
    let writing = fio(&device, &load).spawn().unwrap();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(700));
        let port = bench.crash_target();
        bench.target = Some(Target::serve_at(port, &bench.place, &[&namespace(&bench.place)]));
    }
    finish(writing);
    assert_eq!(bench.initiator.list()[0]["State"].as_str(), Some("live"));
    bench.initiator.succeed(&["disconnect", "-d", &device]);
    bench.assert_clean();
}
