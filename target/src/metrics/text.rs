//! The numbers in the text format of Prometheus.
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use super::adapters;
use crate::catalog::{Catalog, Hosts};
use crate::poll_group::{NamespaceUse, Survey, Tally, TallyKey};
use crate::qpair::{CommandKind, Counts, Used};

/// A label's value, in quotes.
pub(super) fn label(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

struct Page(String);

impl Page {
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP ironside_{name} {help}\n# TYPE ironside_{name} {kind}\n");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.0, "ironside_{name} {value}"),
            _ => writeln!(self.0, "ironside_{name}{{{labels}}} {value}"),
        };
    }
}

pub(super) fn render(surveys: &[Survey]) -> String {
    let mut page = Page(String::with_capacity(16 << 10));
    page.metric("build_info", "gauge", "The version which runs; always 1.");
    page.value("build_info", concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""), 1);
    if let Some(catalog) = surveys.iter().find_map(|survey| survey.catalog.as_deref()) {
        served(&mut page, catalog);
    }
    connected(&mut page, surveys);
    reactors(&mut page, surveys);
    tallies(&mut page, surveys);
    used(&mut page, surveys);
    latencies(&mut page, surveys);
    adapters::write(&mut page.0);
    page.0
}

fn served(page: &mut Page, catalog: &Catalog) {
    page.metric("catalog_version", "gauge", "Grows with every change of what is served.");
    page.value("catalog_version", "", catalog.version());
    let subsystems =
        || catalog.subsystems().iter().map(|one| (one, format!("subsystem={}", label(one.nqn().as_str()))));
    page.metric("subsystem_namespace_count", "gauge", "Namespaces of a subsystem.");
    for (one, labels) in subsystems() {
        page.value("subsystem_namespace_count", &labels, one.namespaces().len());
    }
    page.metric("subsystem_listener_count", "gauge", "Addresses a subsystem is reached at.");
    for (one, labels) in subsystems() {
        page.value("subsystem_listener_count", &labels, one.listen().len());
    }
    page.metric(
        "subsystem_host_count",
        "gauge",
        "Hosts on the list of a subsystem; none where any is admitted.",
    );
    for (one, labels) in subsystems() {
        let count = if let Hosts::Listed(hosts) = one.hosts() { hosts.len() } else { 0 };
        page.value("subsystem_host_count", &labels, count);
    }
    page.metric("namespace_capacity_bytes", "gauge", "The size of a namespace.");
    for (one, labels) in subsystems() {
        for namespace in one.namespaces() {
            let labels = format!("{labels},nsid=\"{}\",uuid=\"{}\"", namespace.nsid, namespace.uuid);
            page.value("namespace_capacity_bytes", &labels, namespace.blocks << namespace.block_shift);
        }
    }
    page.metric("namespace_read_only", "gauge", "Whether the target takes no write of a namespace.");
    for (one, labels) in subsystems() {
        for namespace in one.namespaces() {
            let labels = format!("{labels},nsid=\"{}\",uuid=\"{}\"", namespace.nsid, namespace.uuid);
            page.value("namespace_read_only", &labels, u8::from(namespace.read_only));
        }
    }
}

fn connected(page: &mut Page, surveys: &[Survey]) {
    let mut controllers = BTreeMap::<String, usize>::new();
    for one in surveys.iter().flat_map(|survey| &survey.controllers) {
        let labels = format!("subsystem={},host={}", label(one.subsystem.as_str()), label(one.host.as_str()));
        *controllers.entry(labels).or_default() += 1;
    }
    page.metric("controllers", "gauge", "Controllers of a host at a subsystem, those of discovery included.");
    for (labels, count) in &controllers {
        page.value("controllers", labels, count);
    }
}

/// A number of a [`Survey`] with its name and what it is.
type Surveyed = (&'static str, &'static str, fn(&Survey) -> usize);

const SURVEYED: [Surveyed; 3] = [
    ("reactor_queues", "Queues of controllers which a reactor has.", |survey| survey.queues.len()),
    ("reactor_unassociated_connections", "Connections which belong to no controller yet.", |survey| {
        survey.unassociated
    }),
    ("reactor_queues_waiting_for_buffer", "Queues a command of which waits for a buffer.", |survey| {
        survey.waiting
    }),
];

fn reactors(page: &mut Page, surveys: &[Survey]) {
    let labels = |survey: &Survey| format!("reactor=\"{}\"", survey.reactor);
    for (name, help, number) in SURVEYED {
        page.metric(name, "gauge", help);
        for survey in surveys {
            page.value(name, &labels(survey), number(survey));
        }
    }
    page.metric("queues_total", "counter", "Queues there have been, by whether they are admin queues.");
    for survey in surveys {
        for (kind, count) in [("admin", survey.total.admin_queues), ("io", survey.total.io_queues)] {
            page.value("queues_total", &format!("{},kind=\"{kind}\"", labels(survey)), count);
        }
    }
}

/// A number of [`Counts`] with its name and what it is.
type Counted = (&'static str, &'static str, fn(&Counts) -> u64);

const COUNTED: [Counted; 7] = [
    ("commands_total", "Commands received.", |counts| counts.commands),
    ("reads_completed_total", "Read and Compare commands which succeeded.", |counts| counts.reads),
    ("writes_completed_total", "Write commands which succeeded.", |counts| counts.writes),
    ("read_bytes_total", "Bytes read by Read, Compare and Verify.", |counts| counts.units_read << 9),
    ("written_bytes_total", "Bytes written by Write.", |counts| counts.units_written << 9),
    ("media_errors_total", "Commands which the medium failed.", |counts| counts.media_errors),
    ("failed_commands_total", "Commands of queues which failed.", |counts| counts.failures),
];

fn tallies(page: &mut Page, surveys: &[Survey]) {
    let all =
        || surveys.iter().flat_map(|survey| survey.tallies.iter().map(move |tally| (survey.reactor, tally)));
    let labels = |reactor: usize, key: &TallyKey| {
        format!(
            "subsystem={},host={},listener={},reactor=\"{reactor}\",kind=\"{}\"",
            label(&key.subsystem),
            label(&key.host),
            label(&key.listener.to_string()),
            if key.is_admin { "admin" } else { "io" },
        )
    };
    for (name, help, count) in COUNTED {
        page.metric(name, "counter", help);
        for (reactor, Tally { key, counts, .. }) in all() {
            page.value(name, &labels(reactor, key), count(counts));
        }
    }
    page.metric(
        "errors_total",
        "counter",
        "Commands which failed, by NVMe status; type and code are hexadecimal.",
    );
    for (reactor, Tally { key, errors, .. }) in all() {
        for (status, count) in errors.iter() {
            let (kind, words) = match status.map(|status| status.with_dnr(false)) {
                Some(status) => {
                    (format!("{:x}/{:02x}", status.to_field() >> 9 & 7, status.code()), status.to_string())
                }
                None => ("other".into(), "others than these".into()),
            };
            let labels = format!("{},status=\"{kind}\",meaning={}", labels(reactor, key), label(&words));
            page.value("errors_total", &labels, count);
        }
    }
}

/// A number of [`Used`] with its name and what it is.
type UsedNumber = (&'static str, &'static str, fn(&Used) -> u64);

const USED: [UsedNumber; 3] = [
    ("namespace_commands_total", "Commands of a namespace which were answered.", |used| {
        used.succeeded + used.failed
    }),
    ("namespace_failed_commands_total", "Those of them which were refused or failed.", |used| used.failed),
    ("namespace_bytes_total", "Bytes of a namespace read, written, deallocated or copied.", |used| {
        used.bytes
    }),
];

/// All reactors together.
fn used(page: &mut Page, surveys: &[Survey]) {
    let mut namespaces = BTreeMap::<_, [Used; CommandKind::ALL.len()]>::new();
    for NamespaceUse { subsystem, nsid, uuid, used } in surveys.iter().flat_map(|survey| &survey.namespaces) {
        let sum = namespaces.entry((subsystem, nsid, uuid)).or_default();
        *sum = std::array::from_fn(|kind| sum[kind].plus(used[kind]));
    }
    for (name, help, number) in USED {
        page.metric(name, "counter", help);
        for ((subsystem, nsid, uuid), used) in &namespaces {
            for kind in CommandKind::ALL {
                let labels = format!(
                    "subsystem={},nsid=\"{nsid}\",uuid=\"{uuid}\",operation=\"{}\"",
                    label(subsystem.as_str()),
                    kind.name(),
                );
                page.value(name, &labels, number(&used[kind as usize]));
            }
        }
    }
}

fn latencies(page: &mut Page, surveys: &[Survey]) {
    const NAME: &str = "command_duration_seconds";
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    page.metric(NAME, "histogram", "From the capsule of an I/O command which succeeds to its response.");
    for survey in surveys {
        for (kind, times) in CommandKind::ALL.into_iter().zip(&survey.latencies) {
            let labels = format!("reactor=\"{}\",operation=\"{}\"", survey.reactor, kind.name());
            let buckets = times.up_to().map(|(nanos, count)| (seconds(nanos).to_string(), count));
            for (bound, count) in buckets.chain([("+Inf".into(), times.count())]) {
                page.value(&format!("{NAME}_bucket"), &format!("{labels},le=\"{bound}\""), count);
            }
            page.value(&format!("{NAME}_sum"), &labels, seconds(times.nanos));
            page.value(&format!("{NAME}_count"), &labels, times.count());
        }
    }
}
