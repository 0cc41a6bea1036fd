//! The benchmark as people run it, in short: every load by every way is measured in each round, and all of it is told.
use std::fs;

use ironside_tests::support::programs::{program, run};
use serde_json::Value;

#[test]
fn the_suite_measures_every_load_by_every_way_and_draws_it() {
    let directory = tempfile::tempdir().unwrap();
    let (page, figures) = (directory.path().join("report.html"), directory.path().join("report.json"));
    let tools = program("ironside-tools");
    let [tools, html, json] = [&tools, &page, &figures].map(|path| path.to_str().unwrap());
    let briefly = ["perf", "--suite", "--rounds", "1", "-t", "0.02", "-o", "json"];
    let told = run(tools, &[&briefly[..], &["--html", html, "--json", json]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told, serde_json::from_str::<Value>(&fs::read_to_string(figures).unwrap()).unwrap());

    let (summaries, runs) = (told["summaries"].as_array().unwrap(), told["runs"].as_array().unwrap());
    assert_eq!(runs.len(), summaries.len());
    let setups: Vec<_> = summaries.iter().take_while(|one| one["load"] == summaries[0]["load"]).collect();
    assert!(setups.len() > 1 && summaries.len().is_multiple_of(setups.len()), "{told}");
    for summary in summaries {
        let iops = ["least", "median", "most"].map(|which| summary["iops"][which].as_f64().unwrap());
        assert!(iops[0] > 0.0 && iops.is_sorted(), "{summary}");
        let [serve, perf] = [0, 1].map(|index| summary["commands"][index].as_str().unwrap());
        assert!(serve.contains("ironside-target serve") && perf.contains("ironside-tools perf"), "{summary}");
    }

    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 5);
    for setup in setups {
        assert!(page.contains(setup["setup"].as_str().unwrap()), "{setup}");
    }
    assert!(!page.contains("src=") && !page.contains("href="), "it needs something from elsewhere");
}
