//! The whole system under many seeds, in all worlds. `IRONSIDE_SEEDS` says how many.
use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ironside_tools::world::{self, Report};

const SEEDS: u64 = 20_000;

/// Of so many seeds, one is spent on iWARP streams, whose worlds take longer.
const STREAMS_EVERY: u64 = 3;

/// Of so many worlds of one target there is one of two.
const PATHS_EVERY: u64 = 4;

#[test]
fn every_seed_keeps_every_promise() {
    let seeds = seeds();
    let total = run(seeds, |seed| match seed.is_multiple_of(STREAMS_EVERY) {
        true => ("streams", world::run_streams),
        false => ("fabric", world::run),
    });
    // Worlds in which nothing goes wrong, or nothing gets done, would prove nothing.
    assert!(total.succeeded > 10 * seeds && total.failed > 0, "{total}");
    assert!(total.taken > seeds / 8 && total.reserved > seeds / 8 && total.conflicts > seeds / 16, "{total}");
    assert!(total.breaks > seeds && total.kills > seeds / 10 && total.power_losses > seeds / 20, "{total}");
}

#[test]
fn no_old_write_lands_after_a_newer_one_by_another_path() {
    let seeds = seeds() / PATHS_EVERY;
    let total = run(seeds, |_| ("paths", world::run_paths));
    assert!(total.succeeded > 5 * seeds && total.breaks > seeds && total.kills > seeds / 10, "{total}");
}

/// What it is called, and what runs it.
type World = (&'static str, fn(u64) -> Report);

fn seeds() -> u64 {
    std::env::var("IRONSIDE_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number"))
}

/// Runs so many worlds, each as `which` says of its seed.
fn run(seeds: u64, which: fn(u64) -> World) -> Report {
    let next = AtomicU64::new(1);
    let total = Mutex::new(Report::default());
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed > seeds {
            return;
        }
        let (name, run) = which(seed);
        let report = panic::catch_unwind(|| run(seed));
        let report = report.unwrap_or_else(|_| {
            panic!("repeat it with: cargo run -p ironside-tools -- sim --seed {seed} --world {name}")
        });
        *total.lock().expect("nobody panics with it") += report;
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let total = total.into_inner().expect("the threads have ended");
    println!("{seeds} worlds: {total}");
    total
}
