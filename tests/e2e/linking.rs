//! That the programs start on machines which have no RDMA libraries, and say so when asked.
use std::process::Command;

use ironside_tests::support::programs::{program, run};

#[test]
fn no_program_needs_the_rdma_libraries_to_start() {
    for name in ["ironside-target", "ironside"] {
        let path = program(name);
        let path = path.to_str().unwrap();
        let needed = run("readelf", &["--wide", "--dynamic", path]);
        assert!(needed.contains("NEEDED"), "{name}: readelf shows no library at all:\n{needed}");
        let rdma: Vec<_> =
            needed.lines().filter(|line| line.contains("ibverbs") || line.contains("rdmacm")).collect();
        assert!(
            rdma.is_empty(),
            "{name} calls an RDMA library directly instead of through its table: {rdma:?}"
        );
    }
}

#[test]
fn the_target_says_which_adapters_there_are_or_why_none() {
    let answer = Command::new(program("ironside-target")).args(["devices", "-o", "json"]).output().unwrap();
    assert!(answer.status.success(), "{answer:?}");
    let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let devices = report["devices"].as_array().unwrap();
    assert_eq!(devices.is_empty(), report["why_none"].is_string(), "{report}");
}
