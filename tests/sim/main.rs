//! The whole system under many seeds, in both worlds. `IRONSIDE_SEEDS` says how many.
use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ironside_tools::world::{self, Report};

const SEEDS: u64 = 20_000;

/// Of so many seeds, one is spent on iWARP streams, whose worlds take longer.
const STREAMS_EVERY: u64 = 3;

#[test]
fn every_seed_keeps_every_promise() {
    let seeds = std::env::var("IRONSIDE_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number"));
    let next = AtomicU64::new(1);
    let total = Mutex::new(Report::default());
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed > seeds {
            return;
        }
        let (name, run): (_, fn(u64) -> Report) = if seed.is_multiple_of(STREAMS_EVERY) {
            ("streams", world::run_streams)
        } else {
            ("fabric", world::run)
        };
        let report = panic::catch_unwind(|| run(seed));
        let report = report.unwrap_or_else(|_| {
            panic!("repeat it with: cargo run -p ironside-tools -- sim --seed {seed} --world {name}")
        });
        *total.lock().unwrap() += report;
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let total = total.into_inner().unwrap();
    println!("{seeds} worlds: {total}");
    // Worlds in which nothing goes wrong, or nothing gets done, would prove nothing.
    assert!(total.succeeded > 10 * seeds && total.failed > 0, "{total}");
    assert!(total.taken > seeds / 8 && total.reserved > seeds / 8 && total.conflicts > seeds / 16, "{total}");
    assert!(total.breaks > seeds && total.kills > seeds / 10 && total.power_losses > seeds / 20, "{total}");
}
