//! `ironside-tools sim`: worlds under seed after seed, on all cores, until time is up or a promise is broken.
use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use ironside_tools::world::{self, Report};

/// Run simulated worlds, one for each seed; a broken promise prints the command which repeats it.
#[derive(Args)]
pub(crate) struct Sim {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds to try; without it and without --seconds, one.
    #[arg(long)]
    seeds: Option<u64>,
    /// How long to try seeds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Which world: the simulated fabric, iWARP streams over byte pipes, both in turn, or paths to two targets.
    #[arg(long, value_enum, default_value = "both")]
    world: Which,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Which {
    Fabric,
    Streams,
    Paths,
    Both,
}

impl Which {
    fn run(self, seed: u64) -> Report {
        match self {
            Self::Fabric => world::run(seed),
            Self::Streams => world::run_streams(seed),
            Self::Paths => world::run_paths(seed),
            Self::Both if seed.is_multiple_of(2) => world::run(seed),
            Self::Both => world::run_streams(seed),
        }
    }
}

impl Sim {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let end = self.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let seeds = self.seeds.unwrap_or(if end.is_some() { u64::MAX } else { 1 });
        let next = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let total = Mutex::new((0_u64, Report::default()));
        let broken = Mutex::new(None);
        let work = || {
            while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= seeds {
                    return;
                }
                let seed = self.seed.wrapping_add(index);
                match panic::catch_unwind(|| self.world.run(seed)) {
                    Ok(report) => {
                        let mut total = total.lock().expect("nobody panics with it");
                        total.0 += 1;
                        total.1 += report;
                        if total.0.is_multiple_of(5000) {
                            eprintln!("{} worlds", total.0);
                        }
                    }
                    Err(_) => {
                        *broken.lock().expect("nobody panics with it") = Some(seed);
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(work);
            }
        });
        let (worlds, report) = *total.lock().expect("the threads have ended");
        if let Some(seed) = *broken.lock().expect("the threads have ended") {
            let name =
                self.world.to_possible_value().map_or_else(String::new, |one| one.get_name().to_owned());
            bail!(
                "seed {seed} breaks a promise; repeat it with: ironside-tools sim --seed {seed} --world {name}"
            );
        }
        println!("{worlds} worlds kept every promise: {report}");
        Ok(())
    }
}
