//! Figures in words: a table for people, JSON for programs.
use comfy_table::{Cell, CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use ironside_common::size::Size;
use serde::Serialize;

use super::baseline::{Baseline, VOLUME};
use super::load::{Figures, Order, Workload};

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// By which way of the suite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup: Option<&'static str>,
    pub block_size: u32,
    pub depth: u16,
    pub queues: u16,
    pub reads_percent: u8,
    pub order: &'static str,
    pub crc: bool,
    pub verified: bool,
    pub seconds: f64,
    pub iops: f64,
    pub bytes_per_second: f64,
    pub errors: u64,
    pub latency: Latency,
    /// Processor time of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// What raw TCP did just before and after.
    pub baseline: Option<Baseline>,
}

/// Processor time which one request took, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Cpu {
    pub host_us: f64,
    pub target_us: f64,
}

/// Of all requests, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

impl Report {
    pub(super) fn new(workload: &Workload, crc: bool, queues: u16, figures: &Figures) -> Self {
        let mut all = figures.reads.clone();
        all.add(&figures.writes).expect("both were made alike");
        let seconds = figures.elapsed.as_secs_f64();
        let iops = all.len() as f64 / seconds;
        Self {
            setup: None,
            block_size: workload.request_size,
            depth: workload.depth,
            queues,
            reads_percent: workload.reads_percent,
            order: if workload.order == Order::Random { "random" } else { "sequential" },
            crc,
            verified: workload.verify,
            seconds,
            iops,
            bytes_per_second: iops * f64::from(workload.request_size),
            errors: figures.errors,
            latency: Latency::new(&all),
            cpu: None,
            baseline: None,
        }
    }

    fn what(&self) -> String {
        let kind = match self.reads_percent {
            100 => "read".into(),
            0 => "write".into(),
            percent => format!("{percent} % read"),
        };
        format!("{} {kind}", self.order)
    }

    /// The load in words.
    pub(super) fn load(&self) -> String {
        let Self { depth, queues, .. } = self;
        let connections = if *queues > 1 { format!(" over {queues} connections") } else { String::new() };
        format!("{} {}, depth {depth}{connections}", self.what(), Size(self.block_size.into()))
    }

    /// Whether it is the same load by the same way.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let load = |report: &Self| {
            (report.setup, report.block_size, report.depth, report.queues, report.reads_percent, report.order)
        };
        load(self) == load(other)
    }

    fn ratio(&self, baseline: &Baseline) -> String {
        if self.depth == 1 {
            format!("{:.2} × the ping-pong's time", self.latency.mean_us / baseline.ping_pong_us())
        } else if u64::from(self.block_size) == baseline.block_size {
            format!("{:.2} × the ping-pong's rate", self.iops / baseline.ping_pongs_per_second)
        } else {
            format!(
                "{:.2} × the stream, {:.2} × the stream out of {}",
                self.bytes_per_second / baseline.stream_bytes_per_second,
                self.bytes_per_second / baseline.memory_stream_bytes_per_second,
                Size(VOLUME as u64),
            )
        }
    }
}

impl Latency {
    fn new(histogram: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        Self {
            mean_us: histogram.mean() / 1e3,
            p50_us: us(histogram.value_at_quantile(0.5)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            p999_us: us(histogram.value_at_quantile(0.999)),
            max_us: us(histogram.max()),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    runs: &'a [Report],
    baseline: Option<&'a Baseline>,
}

/// Prints all there is.
pub(super) fn print(reports: &[Report], baseline: Option<&Baseline>, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(&Document { runs: reports, baseline })?);
        return Ok(());
    }
    if !reports.is_empty() {
        println!("{}", table(reports, baseline));
    }
    if let Some(baseline) = baseline {
        println!(
            "raw TCP over loopback: ping-pong of 64 B and {} {:.0}/s ({:.1} µs), stream {:.0} MB/s in chunks of {}, out of {} {:.0} MB/s",
            Size(baseline.block_size),
            baseline.ping_pongs_per_second,
            baseline.ping_pong_us(),
            baseline.stream_bytes_per_second / 1e6,
            Size(baseline.stream_chunk as u64),
            Size(VOLUME as u64),
            baseline.memory_stream_bytes_per_second / 1e6,
        );
    }
    Ok(())
}

fn table(reports: &[Report], baseline: Option<&Baseline>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let mut header = vec!["load", "bytes", "depth", "crc", "IOPS", "MB/s", "p50 µs", "p99 µs", "p99.9 µs"];
    header.extend(baseline.map(|_| "against raw TCP"));
    table.set_header(header);
    for report in reports {
        let mut row = vec![
            report.what(),
            report.block_size.to_string(),
            report.depth.to_string(),
            if report.crc { "on" } else { "off" }.into(),
            format!("{:.0}", report.iops),
            format!("{:.0}", report.bytes_per_second / 1e6),
            format!("{:.1}", report.latency.p50_us),
            format!("{:.1}", report.latency.p99_us),
            format!("{:.1}", report.latency.p999_us),
        ];
        let beside = report.baseline.as_ref().or(baseline);
        row.extend(beside.map(|baseline| report.ratio(baseline)));
        let aligned = |(column, text): (usize, String)| {
            let side = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(side)
        };
        table.add_row(row.into_iter().enumerate().map(aligned));
    }
    table
}
