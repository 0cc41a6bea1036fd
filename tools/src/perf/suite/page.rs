//! All of a suite on one page, which needs nothing from elsewhere: charts, then each figure with what repeats it.
use std::fmt::Write as _;

use super::Document;
use super::chart::{COLOURS, Chart, Series};
use super::summary::Summary;

const STYLE: &str = "
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 25%, transparent); }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1340px; margin: 2rem auto; padding: 0 1rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 1.5rem; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 6px; padding: .6rem; }
figure svg { width: 100%; height: auto; }
svg text { fill: currentColor; }
figcaption { font-weight: 600; }
.names { font-weight: 400; }
.names i { display: inline-block; width: 1.1em; height: .25em; margin: 0 .35em 0 .9em; vertical-align: middle; }
.table { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; vertical-align: top; }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left; }
small { opacity: .75; }
pre { white-space: pre-wrap; margin: .3rem 0; text-align: left; }
";

/// Shares of all requests which a latency is told for.
const SHARES: [&str; 3] = ["50 %", "99 %", "99.9 %"];

/// The page.
///
/// # Errors
/// If a chart cannot be drawn.
pub(super) fn html(document: &Document) -> anyhow::Result<String> {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width\"><title>Ironside measured</title>");
    write!(page, "<style>{STYLE}</style></head><body><h1>Ironside measured</h1>")?;
    let Document { machine, rounds, seconds, idle, baseline, .. } = document;
    write!(
        page,
        "<p>{}. Rounds: {rounds}, of {seconds} s for each load, all setups in turns; medians, and the least and the most of \
         the rounds. Host and target on a core each, over loopback, a volume in memory.</p><p>Raw TCP: {:.0} ping-pongs a \
         second of 64 bytes out and 4 KiB back; a stream of {:.0} MB/s from cache, of {:.0} MB/s out of a gigabyte. {}.</p>",
        escaped(machine),
        baseline.ping_pongs_per_second,
        baseline.stream_bytes_per_second / 1e6,
        baseline.memory_stream_bytes_per_second / 1e6,
        escaped(idle),
    )?;
    page.push_str("<div class=\"charts\">");
    for chart in charts(&document.summaries) {
        write!(page, "<figure><figcaption>{}<div class=\"names\">", escaped(chart.title))?;
        for series in &chart.series {
            let colour = COLOURS[series.colour % COLOURS.len()];
            write!(page, "<i style=\"background:{colour}\"></i>{}", escaped(&series.name))?;
        }
        write!(page, "</div></figcaption>{}</figure>", chart.svg()?)?;
    }
    page.push_str("</div>");
    table(&mut page, &document.summaries)?;
    page.push_str("</body></html>\n");
    Ok(page)
}

fn table(page: &mut String, summaries: &[Summary]) -> std::fmt::Result {
    page.push_str("<div class=\"table\"><table><thead><tr>");
    for name in [
        "load",
        "setup",
        "IOPS",
        "MB/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU µs: host",
        "target",
        "against raw TCP",
    ] {
        write!(page, "<th>{name}</th>")?;
    }
    page.push_str("</tr></thead><tbody>");
    for summary in summaries {
        let [serve, perf] = summary.commands.each_ref().map(|command| escaped(command));
        write!(
            page,
            "<tr><td>{}<details><summary><small>repeat</small></summary><pre>{serve}\n{perf}</pre></details></td><td>{}</td>\
             <td>{:.0}<br><small>{:.0} to {:.0}</small></td><td>{:.0}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td>\
             <td>{:.2}</td><td>{:.2}</td><td>{}</td></tr>",
            escaped(&summary.load),
            escaped(summary.setup),
            summary.iops.median,
            summary.iops.least,
            summary.iops.most,
            summary.bytes_per_second.median / 1e6,
            summary.p50_us.median,
            summary.p99_us.median,
            summary.p999_us.median,
            summary.host_cpu_us.median,
            summary.target_cpu_us.median,
            escaped(&summary.ratio()),
        )?;
    }
    page.push_str("</tbody></table></div>");
    Ok(())
}

fn charts(summaries: &[Summary]) -> Vec<Chart> {
    let reads = |summary: &&Summary| summary.reads_percent == 100 && summary.block_size == 4096;
    let mut by_depth: Vec<_> = summaries.iter().filter(reads).filter(|summary| summary.queues == 1).collect();
    by_depth.sort_by_key(|summary| summary.depth);
    let per_connection = |summary: &&Summary| summary.depth == 8 * summary.queues;
    let by_connections: Vec<_> = summaries.iter().filter(reads).filter(per_connection).collect();
    let depth = |summary: &Summary| summary.depth.to_string();
    let thousands = |summary: &Summary| summary.iops.median / 1e3;
    vec![
        latency_by_rate(&by_depth),
        in_places(
            "Random reads of 4 KiB by depth",
            "requests outstanding",
            "thousand a second",
            &by_depth,
            depth,
            &[("", &thousands)],
        ),
        shares(&by_depth),
        in_places(
            "Processor time of a random read of 4 KiB",
            "requests outstanding",
            "µs a read",
            &by_depth,
            depth,
            &[
                ("host", &|summary| summary.host_cpu_us.median),
                ("target", &|summary| summary.target_cpu_us.median),
            ],
        ),
        in_places(
            "Random reads of 4 KiB by connections, 8 outstanding on each",
            "connections",
            "thousand a second",
            &by_connections,
            |summary| summary.queues.to_string(),
            &[("", &thousands)],
        ),
    ]
}

/// Setups in the order of their first appearance.
fn setups(summaries: &[&Summary]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for summary in summaries {
        if !names.contains(&summary.setup) {
            names.push(summary.setup);
        }
    }
    names
}

type Figure<'a> = (&'a str, &'a dyn Fn(&Summary) -> f64);

/// A curve for each setup and figure, over places which are named by what `place` says.
fn in_places(
    title: &'static str,
    across: &'static str,
    up: &'static str,
    summaries: &[&Summary],
    place: impl Fn(&Summary) -> String,
    figures: &[Figure<'_>],
) -> Chart {
    let mut places = Vec::new();
    for summary in summaries {
        let name = place(summary);
        if !places.contains(&name) {
            places.push(name);
        }
    }
    let mut series = Vec::new();
    for setup in setups(summaries) {
        for (what, figure) in figures {
            let point = |summary: &&Summary| {
                let at = places.iter().position(|name| *name == place(summary))?;
                (summary.setup == setup).then(|| (at as f64, figure(summary)))
            };
            let points = summaries.iter().filter_map(point).collect();
            let name = if what.is_empty() { setup.into() } else { format!("{setup}, {what}") };
            series.push(Series { name, colour: series.len(), points });
        }
    }
    Chart { title, across, up, places, series }
}

fn latency_by_rate(summaries: &[&Summary]) -> Chart {
    let mut series = Vec::new();
    for setup in setups(summaries) {
        let of_setup = || summaries.iter().filter(move |summary| summary.setup == setup);
        let figures: [Figure<'_>; 2] =
            [("p50", &|summary| summary.p50_us.median), ("p99", &|summary| summary.p99_us.median)];
        for (what, figure) in figures {
            let points = of_setup().map(|summary| (summary.iops.median / 1e3, figure(summary))).collect();
            series.push(Series { name: format!("{setup}, {what}"), colour: series.len(), points });
        }
    }
    let title = "Latency of random reads of 4 KiB against throughput, by depth";
    Chart { title, across: "thousand a second", up: "µs", places: Vec::new(), series }
}

/// Latency by share of all requests, at the depth where a core is busy.
fn shares(summaries: &[&Summary]) -> Chart {
    let mut series = Vec::new();
    for summary in summaries.iter().filter(|summary| summary.depth == 32) {
        let latencies = [summary.p50_us.median, summary.p99_us.median, summary.p999_us.median];
        let points = latencies.iter().enumerate().map(|(at, latency)| (at as f64, *latency)).collect();
        series.push(Series { name: summary.setup.into(), colour: series.len(), points });
    }
    let places = SHARES.map(String::from).into();
    let title = "Latency of random reads of 4 KiB at depth 32, by share of requests";
    Chart { title, across: "share of requests which were as fast", up: "µs", places, series }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
