//! Volumes attached and detached over and over leave nothing, on either end.
use std::fs;

use super::bench::{Bench, eventually};

const CYCLES: usize = 100;

#[test]
fn a_hundred_cycles_of_attach_and_detach_leave_nothing() {
    let with_devices = Bench::with_devices();
    let ways: &[&str] = match with_devices {
        Some(_) => &["nbd", "fuse", "vhost-user-blk", "fuse-file"],
        None => &["nbd", "vhost-user-blk"],
    };
    let bench = with_devices.unwrap_or_else(Bench::new);
    let of_target = || fs::read_dir(format!("/proc/{}/fd", bench.target().id())).unwrap().count();
    let mut before = None;
    for (cycle, via) in (1..=CYCLES).zip(ways.iter().cycle()) {
        let attached = bench.connect(&["--via", via]);
        assert!(fs::metadata(attached["DevicePath"].as_str().unwrap()).is_ok(), "cycle {cycle}, by {via}");
        bench.initiator.succeed(&["disconnect", "-n", &bench.target().nqn]);
        bench.assert_clean();
        // What the target opens for good it has opened in the first cycle.
        let before = *before.get_or_insert_with(of_target);
        eventually("the target lets go", || of_target() <= before);
    }
}
