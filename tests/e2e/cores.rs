//! An attachment on several cores: clients are spread over them and see each other's writes, a target that dies and returns
//! is noticed by nobody, and what cannot be is refused.
use std::fs;
use std::process::Command;

use ironside_tests::support::programs::{Target, run};
use serde_json::Value;

use super::bench::{Bench, eventually, namespace, pid};

fn uri(attached: &Value) -> String {
    format!("nbd+unix:///?socket={}", attached["DevicePath"].as_str().unwrap())
}

/// The names of the threads behind an attachment which are reactors.
fn reactors(bench: &Bench) -> Vec<String> {
    let tasks = format!("/proc/{}/task", pid(&bench.initiator.list()[0]));
    let names =
        fs::read_dir(tasks).unwrap().flatten().map(|task| fs::read_to_string(task.path().join("comm")));
    let mut names: Vec<_> = names.map_while(Result::ok).map(|name| name.trim().to_owned()).collect();
    names.retain(|name| name.starts_with("reactor"));
    names.sort();
    names
}

/// Controllers which the target says have come so far.
fn controllers(bench: &Bench) -> usize {
    fs::read_to_string(bench.place.join("target.log")).unwrap().matches("controller connected").count()
}

#[test]
fn clients_of_two_cores_share_a_volume_and_notice_nothing_of_a_target_that_dies() {
    let mut bench = Bench::new();
    let attached = bench
        .connect(&["--via", "nbd", "--cores", "2", "-P", "1", "-i", "2", "-k", "1", "-c", "1", "-l", "60"]);
    assert_eq!((reactors(&bench), controllers(&bench)), (vec!["reactor".into(), "reactor-1".into()], 2));
    let (source, back) = (bench.place.join("source"), bench.place.join("back"));
    let (from, to) = (source.to_str().unwrap(), back.to_str().unwrap());
    let copy = |round: u8| {
        let bytes: Vec<u8> = (0..64_u32 << 20).map(|at| (at >> 12) as u8 ^ round).collect();
        fs::write(&source, &bytes).unwrap();
        run("nbdcopy", &["--connections=4", "--flush", from, &uri(&attached)]);
        // What was written by all connections, and thus by both cores, is on the medium.
        assert!(fs::read(bench.place.join("volume")).unwrap() == bytes, "round {round}");
        run("nbdcopy", &["--connections=4", &uri(&attached), to]);
        assert!(fs::read(&back).unwrap() == bytes, "round {round}");
    };
    copy(1);
    assert_eq!(bench.initiator.list()[0]["State"].as_str(), Some("live"));

    let port = bench.crash_target();
    eventually("the loss is listed", || bench.initiator.list()[0]["State"] == "connecting");
    let mut writing =
        Command::new("nbdcopy").args(["--connections=4", "--flush", from, &uri(&attached)]).spawn().unwrap();
    bench.target = Some(Target::serve_at(port, &bench.place, &[&namespace(&bench.place)]));
    assert!(writing.wait().unwrap().success(), "requests wait for the target");
    eventually("both cores are back", || bench.initiator.list()[0]["State"] == "live");
    assert_eq!(controllers(&bench), 4);
    let said = bench.initiator.list();
    assert_eq!(
        said[0]["Paths"].as_array().unwrap().len(),
        1,
        "one address is one path, on however many cores"
    );
    bench.initiator.succeed(&["disconnect", "vol0"]);
    bench.assert_clean();
}

#[test]
fn what_several_cores_cannot_do_is_refused() {
    let bench = Bench::new();
    let port = bench.target().port.to_string();
    let start = ["connect", "-t", "rdma", "-a", "127.0.0.1", "-s", &port, "-n", &bench.target().nqn];
    let refused = |status, more: &[&str]| bench.initiator.fail(status, &[&start[..], more].concat());
    for via in ["fuse-file", "vhost-user-blk"] {
        let said = refused(6, &["--via", via, "--cores", "2"]);
        assert!(said.contains("served by one core alone") && said.contains("--cores 1"), "{said}");
    }
    let said = refused(2, &["--via", "nbd", "--cores", "2", "-k", "0"]);
    assert!(said.contains("keep_alive_tmo"), "{said}");
    let said = refused(2, &["--via", "nbd", "--cores", "1", "-P", "2"]);
    assert!(said.contains("poll queues"), "{said}");
    for (cores, why) in [
        ("0", "between 1 and 64"),
        ("two", "how many cores"),
        ("0,0", "named twice"),
        ("64", "more than there are"),
    ] {
        // Where there are as many, it is no mistake.
        if cores == "64" && std::thread::available_parallelism().unwrap().get() >= 64 {
            continue;
        }
        let said = refused(2, &["--via", "nbd", "--cores", cores]);
        assert!(said.contains(why), "{said}");
    }
    let said = refused(6, &["--via", "nbd", "--cores", "4000-4000"]);
    assert!(said.contains("core 4000 cannot be used"), "{said}");
    bench.assert_clean();
}
