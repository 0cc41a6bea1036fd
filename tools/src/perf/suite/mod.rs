//! The figures of docs/performance.md: targets of our own, each with one reactor and a volume in memory, measured over
//! loopback in turns, several rounds, with a raw TCP connection measured between them. Only neighbours in time can be
//! compared, so what is to be compared is measured one right after the other, and again in each round.
mod chart;
mod page;
mod summary;
mod target;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use self::summary::Summary;
use self::target::Target;
use super::baseline::{self, Baseline};
use super::load::Order;
use super::report::{self, Cpu, Report};
use super::{Format, OnOff, PerfArgs, attach, measure};

const HOST_CORE: usize = 0;
/// How long each load is measured in each round, unless said otherwise.
const SECONDS: f64 = 2.0;
/// How long raw TCP is measured between two loads, each way.
const BESIDE: Duration = Duration::from_millis(500);
/// How long filling the volume may take.
const FILL_MAX: Duration = Duration::from_secs(60);
const FILL: Line = Line { block_size: 1 << 20, depth: 16, queues: 1, reads: 0, order: Order::Sequential };

/// One way from the host to the target.
struct Setup {
    name: &'static str,
    crc: OnOff,
    /// By a socket of this machine and memory which both share, instead of TCP.
    by_socket: bool,
}

const SETUPS: [Setup; 3] = [
    Setup { name: "iWARP", crc: OnOff::Off, by_socket: false },
    Setup { name: "iWARP with CRC32C", crc: OnOff::On, by_socket: false },
    Setup { name: "shared memory", crc: OnOff::Off, by_socket: true },
];

/// One load.
#[derive(Clone, Copy)]
struct Line {
    block_size: u64,
    /// Requests outstanding, over all queues.
    depth: u16,
    queues: u16,
    reads: u8,
    order: Order,
}

const fn small(depth: u16, reads: u8) -> Line {
    Line { block_size: 4096, depth, queues: 1, reads, order: Order::Random }
}

/// At a constant depth for each of them.
const fn connections(queues: u16) -> Line {
    Line { queues, ..small(8 * queues, 100) }
}

const fn large(reads: u8) -> Line {
    Line { block_size: 128 << 10, depth: 16, queues: 1, reads, order: Order::Sequential }
}

const LINES: [Line; 16] = [
    small(1, 100),
    small(4, 100),
    small(16, 100),
    small(32, 100),
    small(64, 100),
    small(128, 100),
    small(1, 0),
    small(32, 0),
    small(128, 0),
    small(32, 70),
    large(100),
    large(0),
    connections(1),
    connections(4),
    connections(16),
    connections(64),
];

/// All that the suite says.
#[derive(Serialize)]
struct Document {
    machine: String,
    rounds: u16,
    seconds: f64,
    idle: String,
    summaries: Vec<Summary>,
    runs: Vec<Report>,
    baseline: Baseline,
}

pub(super) fn run(args: &PerfArgs) -> anyhow::Result<()> {
    let seconds = args.seconds.unwrap_or(SECONDS);
    let args = PerfArgs { core: Some(HOST_CORE), seconds: Some(seconds), ..args.clone() };
    let memory = baseline::Memory::new();
    let baseline = baseline::measure(&memory, 4096, Duration::from_secs_f64(seconds))?;
    let mut targets = Vec::new();
    for setup in &SETUPS {
        let target = Target::start(setup)?;
        // Memory nobody has written is one page of zeroes, which no cache would ever let go.
        let fill = PerfArgs { once: true, seconds: Some(FILL_MAX.as_secs_f64()), ..args.clone() };
        measure_line((setup, &target), &fill, &FILL)?;
        targets.push((setup, target));
    }
    let runs = measure_in_turns(&targets, &args, (&memory, &baseline))?;
    let (setup, target) = targets.first().context("there is a setup")?;
    let idle = target.watch_idle(&PerfArgs { crc: setup.crc, ..args.clone() })?;
    for (_, target) in targets {
        target.stop()?;
    }
    let summaries = summary::of(&runs, seconds);
    let document =
        Document { machine: machine(), rounds: args.rounds, seconds, idle, summaries, runs, baseline };
    tell(&document, &args)
}

/// Every load by every setup, round after round.
fn measure_in_turns(
    targets: &[(&Setup, Target)],
    args: &PerfArgs,
    (memory, baseline): (&baseline::Memory, &Baseline),
) -> anyhow::Result<Vec<Report>> {
    let beside = BESIDE.min(Duration::from_secs_f64(args.seconds()));
    let mut runs = Vec::new();
    for round in 1..=args.rounds {
        let mut before = baseline::measure_again(memory, baseline, beside)?;
        for (number, line) in (1..).zip(&LINES) {
            let mut reports = Vec::new();
            for (setup, target) in targets {
                let report = measure_line((setup, target), args, line)?;
                let (rounds, lines, iops) = (args.rounds, LINES.len(), report.iops);
                let (load, setup) = (report.load(), setup.name);
                eprintln!(
                    "round {round}/{rounds}, load {number}/{lines}: {load}, {setup}: {iops:.0} a second"
                );
                reports.push(report);
            }
            let after = baseline::measure_again(memory, baseline, beside)?;
            let between = before.between(&after);
            runs.extend(reports.into_iter().map(|report| Report { baseline: Some(between), ..report }));
            before = after;
        }
    }
    Ok(runs)
}

fn measure_line((setup, target): (&Setup, &Target), args: &PerfArgs, line: &Line) -> anyhow::Result<Report> {
    let Line { block_size, depth, queues, reads, order } = *line;
    let args =
        PerfArgs { block_size, depth, reads, order, nr_io_queues: queues, crc: setup.crc, ..args.clone() };
    let attached = attach(&args, target.address, target.nqn)?;
    let own = std::process::id();
    let before = (target::cpu_seconds(own)?, target.cpu_seconds()?);
    let report = measure(&attached, &args)?;
    let after = (target::cpu_seconds(own)?, target.cpu_seconds()?);
    attached.close();
    let each = |before: f64, after: f64| 1e6 * (after - before) / (report.iops * report.seconds);
    let cpu = Cpu { host_us: each(before.0, after.0), target_us: each(before.1, after.1) };
    Ok(Report { setup: Some(setup.name), cpu: Some(cpu), ..report })
}

/// To whoever reads it: on the terminal, and in files where that was asked for.
fn tell(document: &Document, args: &PerfArgs) -> anyhow::Result<()> {
    if args.output_format == Format::Json {
        println!("{}", serde_json::to_string_pretty(document)?);
    } else {
        println!("{}", summary::table(&document.summaries));
        report::print(&[], Some(&document.baseline), false)?;
        println!("{}", document.idle);
    }
    if let Some(path) = &args.html {
        write(path, &page::html(document)?)?;
    }
    if let Some(path) = &args.json {
        write(path, &serde_json::to_string_pretty(document)?)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// What the figures were measured on, in a line.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split(':').nth(1).map_or_else(|| "unknown".into(), |value| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = value(&read("/proc/meminfo"), "MemTotal");
    let memory =
        memory.trim_end_matches(" kB").parse::<u64>().map_or(0.0, |kib| kib as f64 / f64::from(1 << 20));
    format!(
        "{}, {cores} cores, {memory:.0} GiB of memory, Linux {}, Ironside {}",
        value(&read("/proc/cpuinfo"), "model name"),
        read("/proc/sys/kernel/osrelease").trim(),
        env!("CARGO_PKG_VERSION"),
    )
}
