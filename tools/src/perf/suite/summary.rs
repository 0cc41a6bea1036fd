//! Rounds taken together: the median of each figure, and how far apart the rounds were.
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

use super::SETUPS;
use super::target::VOLUME;
use crate::perf::report::Report;

/// One load by one setup, over all rounds.
#[derive(Serialize)]
pub(super) struct Summary {
    pub setup: &'static str,
    /// The load in words.
    pub load: String,
    pub block_size: u32,
    pub depth: u16,
    pub queues: u16,
    pub reads_percent: u8,
    pub iops: Spread,
    pub bytes_per_second: Spread,
    pub p50_us: Spread,
    pub p99_us: Spread,
    pub p999_us: Spread,
    /// Processor time a request took, on either side.
    pub host_cpu_us: Spread,
    pub target_cpu_us: Spread,
    /// The rate in proportion to that of a raw TCP ping-pong, measured just before and after.
    pub of_ping_pong: Spread,
    /// The rate in bytes in proportion to that of a raw stream out of as much memory.
    pub of_stream: Spread,
    /// What repeats it.
    pub commands: [String; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => f64::NAN,
            count if count % 2 == 0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        let end = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        Self { median, least: end(values.first()), most: end(values.last()) }
    }

    fn words(&self, digits: usize) -> String {
        let Self { median, least, most } = self;
        format!("{median:.digits$} ({least:.digits$} to {most:.digits$})")
    }
}

/// The summaries of what was measured, in the order of its first round.
pub(super) fn of(runs: &[Report], seconds: f64) -> Vec<Summary> {
    let mut groups: Vec<Vec<&Report>> = Vec::new();
    for run in runs {
        match groups.iter_mut().find(|group| group[0].is_like(run)) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups.iter().map(|group| summary(group, seconds)).collect()
}

fn summary(group: &[&Report], seconds: f64) -> Summary {
    let first = group[0];
    let spread = |figure: &dyn Fn(&Report) -> f64| Spread::of(group.iter().map(|report| figure(report)));
    let beside =
        |ratio: &dyn Fn(&Report) -> Option<f64>| Spread::of(group.iter().filter_map(|report| ratio(report)));
    Summary {
        setup: first.setup.unwrap_or_default(),
        load: first.load(),
        block_size: first.block_size,
        depth: first.depth,
        queues: first.queues,
        reads_percent: first.reads_percent,
        iops: spread(&|report| report.iops),
        bytes_per_second: spread(&|report| report.bytes_per_second),
        p50_us: spread(&|report| report.latency.p50_us),
        p99_us: spread(&|report| report.latency.p99_us),
        p999_us: spread(&|report| report.latency.p999_us),
        host_cpu_us: beside(&|report| Some(report.cpu?.host_us)),
        target_cpu_us: beside(&|report| Some(report.cpu?.target_us)),
        of_ping_pong: beside(&|report| Some(report.iops / report.baseline?.ping_pongs_per_second)),
        of_stream: beside(&|report| {
            Some(report.bytes_per_second / report.baseline?.memory_stream_bytes_per_second)
        }),
        commands: commands(first, seconds),
    }
}

/// A target, and the load on it.
fn commands(report: &Report, seconds: f64) -> [String; 2] {
    const NQN: &str = "nqn.2014-08.org.example:bench";
    let crc = if report.crc { "on" } else { "off" };
    let &Report { block_size, depth, queues, reads_percent, order, .. } = report;
    let overwrite = if reads_percent < 100 { " --yes-overwrite" } else { "" };
    let by_socket = SETUPS.iter().any(|setup| Some(setup.name) == report.setup && setup.by_socket);
    let (listen, address) =
        if by_socket { (" --listen /tmp/ironside.sock", "/tmp/ironside.sock") } else { ("", "127.0.0.1") };
    [
        format!(
            "taskset -c 1 ironside-target serve --nqn {NQN} --namespace {VOLUME} --reactors 1 --queue-depth 256 \
             --crc {crc} --allow-any-host{listen}"
        ),
        format!(
            "ironside-tools perf -a {address} -n {NQN} --core 0 --crc {crc} -i {queues} -b {block_size} -d {depth} \
             -r {reads_percent} --order {order} -t {seconds}{overwrite}"
        ),
    ]
}

/// All summaries in a table.
pub(super) fn table(summaries: &[Summary]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "load",
        "setup",
        "IOPS, median (least to most)",
        "MB/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU µs, host and target",
        "against raw TCP",
    ]);
    for summary in summaries {
        let row = [
            summary.load.clone(),
            summary.setup.into(),
            summary.iops.words(0),
            format!("{:.0}", summary.bytes_per_second.median / 1e6),
            format!("{:.1}", summary.p50_us.median),
            format!("{:.1}", summary.p99_us.median),
            format!("{:.1}", summary.p999_us.median),
            format!("{:.2}, {:.2}", summary.host_cpu_us.median, summary.target_cpu_us.median),
            summary.ratio(),
        ];
        let aligned = |(column, text): (usize, String)| {
            let side = if column < 2 { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(side)
        };
        table.add_row(row.into_iter().enumerate().map(aligned));
    }
    table
}

impl Summary {
    /// What it is in proportion to raw TCP, in words.
    pub(super) fn ratio(&self) -> String {
        if self.block_size > 4096 {
            format!("{} × the stream", self.of_stream.words(2))
        } else {
            format!("{} × the ping-pong's rate", self.of_ping_pong.words(2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_both_ends() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Spread { median: 2.0, least: 1.0, most: 3.0 });
        assert_eq!(spread(&[4.0, 1.0]), Spread { median: 2.5, least: 1.0, most: 4.0 });
        assert!(spread(&[]).median.is_nan());
        assert_eq!(spread(&[3.0, 1.0, 2.0]).words(1), "2.0 (1.0 to 3.0)");
    }
}
