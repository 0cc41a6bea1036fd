//! `ironside-tools perf`: load on a volume, measured, and beside it what a raw TCP connection of this machine
//! does, so that a figure means something.
mod baseline;
mod load;
mod pattern;
mod report;
mod suite;

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use ironside_common::identity::host_identity;
use ironside_common::memory::SizeClass;
use ironside_common::nvme::Nqn;
use ironside_common::reactor::Poll;
use ironside_common::size::{Size, SizeError};
use ironside_common::verbs::Address;
use ironside_initiator::attach::{AttachOptions, Attached, Core, Crc, Provider, Registration};
use ironside_initiator::host::HostOptions;
use uuid::Uuid;

use load::{Load, Order, Workload};
use report::Report;

/// How long after its end a run may take to hand over its figures.
const GRACE: Duration = Duration::from_secs(60);

/// How long a load is measured, unless said otherwise.
const SECONDS: f64 = 5.0;

/// Puts load on a volume and measures it.
#[derive(Args, Clone, Debug)]
pub(crate) struct PerfArgs {
    /// Address of the target, a name or a number, or the path of its Unix socket
    #[arg(short = 'a', long, value_name = "ADDRESS", required_unless_present_any = ["suite", "baseline"])]
    traddr: Option<String>,
    /// Port of the target
    #[arg(short = 's', long, default_value_t = 4420, value_name = "PORT")]
    trsvcid: u16,
    /// NQN of the subsystem
    #[arg(short = 'n', long, required_unless_present_any = ["suite", "baseline"])]
    nqn: Option<Nqn>,
    /// NQN of this host, instead of that in /etc/nvme/hostnqn
    #[arg(short = 'q', long, value_name = "NQN", requires = "hostid")]
    hostnqn: Option<Nqn>,
    /// Its identifier, instead of that in /etc/nvme/hostid
    #[arg(short = 'I', long, value_name = "UUID", requires = "hostnqn")]
    hostid: Option<Uuid>,
    /// The namespace; the first one if not given
    #[arg(long)]
    nsid: Option<u32>,
    /// I/O queues
    #[arg(short = 'i', long, default_value_t = 1, value_name = "N")]
    nr_io_queues: u16,
    /// Entries of each I/O queue
    #[arg(short = 'Q', long, default_value_t = 256, value_name = "N")]
    queue_size: u16,
    /// Bytes of each request
    #[arg(short, long, default_value = "4k", value_parser = parse_size)]
    block_size: u64,
    /// Requests outstanding at once, up to 1024
    #[arg(short, long, default_value_t = 32)]
    depth: u16,
    /// Reads among the requests, in percent; less than all takes --yes-overwrite
    #[arg(short, long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(..=100))]
    reads: u8,
    /// Where one request goes after the other
    #[arg(long, value_enum, default_value_t = Order::Random)]
    order: Order,
    /// Agree to lose what is on the volume: the rest of the requests write all over it
    #[arg(long)]
    yes_overwrite: bool,
    /// Use only so many bytes from the start of the volume
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Write a pattern with a checksum in each block, and check it in each block read
    #[arg(long)]
    verify: bool,
    /// How long to measure: 5 unless given, and 2 for each load of the suite
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Protect the stream by CRC32C; off refuses a target which asks for it
    #[arg(long, value_enum, default_value_t = OnOff::On)]
    crc: OnOff,
    /// What carries the connections
    #[arg(long, value_enum, default_value_t = Provider::Auto)]
    provider: Provider,
    /// How buffers are lent to the target
    #[arg(long, value_enum, value_name = "WAY", default_value_t = Registration::Auto)]
    registration: Registration,
    /// Use buffers of this program's own, registered where they lie, instead of the attachment's
    #[arg(long)]
    in_place: bool,
    /// How to wait for the target: always looking, adaptive, or never looking
    #[arg(long, value_name = "always|adaptive|never", default_value_t)]
    poll: Poll,
    /// Core to run on
    #[arg(long)]
    core: Option<usize>,
    /// Also measure a raw TCP ping-pong and stream over loopback, and print the ratios; alone, just that
    #[arg(long)]
    baseline: bool,
    /// Start targets of our own and measure the figures of docs/performance.md
    #[arg(long)]
    suite: bool,
    /// How often the suite measures each load
    #[arg(long, value_name = "N", default_value_t = 3, requires = "suite", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Also write what the suite says as a page with charts
    #[arg(long, value_name = "FILE", requires = "suite")]
    html: Option<PathBuf>,
    /// Also write all figures of the suite, of each round and taken together
    #[arg(long, value_name = "FILE", requires = "suite")]
    json: Option<PathBuf>,
    /// Stop when the whole volume was read or written once
    #[arg(long)]
    once: bool,
    /// How to print the figures
    #[arg(short = 'o', long, visible_short_alias = 'f', value_enum, default_value_t = Format::Normal)]
    output_format: Format,
}

impl PerfArgs {
    fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(SECONDS)
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum OnOff {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Format {
    Normal,
    Json,
}

/// Runs the subcommand.
///
/// # Errors
/// When there is no target to measure, or what was read is not what was written.
pub(crate) fn run(args: &PerfArgs) -> anyhow::Result<()> {
    if args.suite {
        return suite::run(args);
    }
    let mut reports = Vec::new();
    if let Some(address) = &args.traddr {
        ask_for_consent(args)?;
        let address = resolve(address, args.trsvcid)?;
        let nqn = args.nqn.context("which subsystem? Say so by --nqn")?;
        let attached = attach(args, address, nqn)?;
        reports.push(measure(&attached, args)?);
        attached.close();
    }
    let duration = Duration::from_secs_f64(args.seconds().min(5.0));
    let baseline = args
        .baseline
        .then(|| baseline::measure(&baseline::Memory::new(), args.block_size, duration))
        .transpose()?;
    report::print(&reports, baseline.as_ref(), args.output_format == Format::Json)?;
    if reports.iter().any(|report| report.errors > 0) {
        bail!("requests failed");
    }
    Ok(())
}

/// Whoever only wants figures of a volume must not lose it.
fn ask_for_consent(args: &PerfArgs) -> anyhow::Result<()> {
    if args.reads < 100 && !args.yes_overwrite {
        bail!(
            "writing would overwrite what is on the volume: leave out --reads to read only, or agree with --yes-overwrite"
        );
    }
    Ok(())
}

fn attach(args: &PerfArgs, address: Address, nqn: Nqn) -> anyhow::Result<Attached> {
    let (host_nqn, host_id) = match (args.hostnqn, args.hostid) {
        (Some(nqn), Some(id)) => (nqn, id),
        _ => host_identity().map(|identity| (identity.nqn, identity.id))?,
    };
    let host = HostOptions {
        nr_io_queues: args.nr_io_queues,
        queue_size: args.queue_size,
        ..HostOptions::new(address, nqn, host_nqn, host_id)
    };
    if u32::from(args.depth) > host.requests {
        bail!("a host has at most {} requests outstanding; --depth {} is more", host.requests, args.depth);
    }
    let crc = if args.crc == OnOff::On { Crc::On } else { Crc::Off };
    let mut options = AttachOptions {
        crc,
        provider: args.provider,
        registration: args.registration,
        cores: vec![Core { number: args.core, poll: args.poll }],
        ..AttachOptions::new(host)
    };
    if !args.in_place {
        make_room(&mut options.buffers, args);
    }
    let attached = Attached::attach(options).with_context(|| format!("attaching {address}"))?;
    if let Some(remark) = attached.description().carried.remark() {
        eprintln!("perf: {remark}");
    }
    Ok(attached)
}

/// One buffer for each request outstanding, of the smallest size that holds it.
fn make_room(buffers: &mut [SizeClass], args: &PerfArgs) {
    if let Some(class) = buffers.iter_mut().find(|class| u64::from(class.size) >= args.block_size) {
        class.count = class.count.max(args.depth.into());
    }
}

/// Runs one workload to its end.
fn measure(attached: &Attached, args: &PerfArgs) -> anyhow::Result<Report> {
    let namespaces = &attached.description().namespaces;
    let wanted = |nsid| namespaces.iter().find(|namespace| namespace.nsid == nsid);
    let namespace = args.nsid.map_or(namespaces.first(), wanted).context("there is no such namespace")?;
    let geometry = namespace.geometry;
    let block = u64::from(geometry.block_size);
    if args.block_size == 0 || !args.block_size.is_multiple_of(block) || args.block_size > 1 << 20 {
        bail!("the block size must be whole blocks of {block} bytes, at most 1 MiB");
    }
    let size = args.size.unwrap_or(u64::MAX).min(geometry.size);
    let places = size / args.block_size;
    if args.depth == 0 || places < u64::from(args.depth) * 2 {
        let (region, request) = (Size(size), Size(args.block_size));
        bail!("{region} are too few for {} requests of {request} at once", args.depth);
    }
    if geometry.read_only && args.reads < 100 {
        bail!("the volume is read-only");
    }
    let workload = Workload {
        request_size: u32::try_from(args.block_size)?,
        block_size: geometry.block_size,
        places,
        depth: args.depth,
        reads_percent: args.reads,
        order: args.order,
        verify: args.verify,
        in_place: args.in_place,
        duration: Duration::from_secs_f64(args.seconds()),
        requests: if args.once { places } else { u64::MAX },
    };
    let (sender, figures) = sync_channel(1);
    let make = move |site: ironside_initiator::attach::Site<'_>| {
        let load: Box<dyn ironside_initiator::attach::Export> = Box::new(Load::new(workload, &site, sender)?);
        Ok(load)
    };
    attached.export(namespace.nsid, Box::new(make))?;
    let figures = figures.recv_timeout(workload.duration + GRACE).context("the load did not end")?;
    if let Some(mismatch) = &figures.mismatch {
        bail!("what was read is not what was written: {mismatch}");
    }
    Ok(Report::new(&workload, args.crc == OnOff::On, args.nr_io_queues, &figures))
}

fn resolve(name: &str, port: u16) -> anyhow::Result<Address> {
    if name.starts_with('/') {
        return Ok(name.parse()?);
    }
    let mut addresses = (name, port).to_socket_addrs().with_context(|| format!("looking up {name}"))?;
    addresses.next().map(Address::Ip).with_context(|| format!("{name} has no address"))
}

/// Some time, and less than a day.
fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.01..86_400.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.01 to a day".into()) }
}

/// As everywhere: a number, and a power of 1024.
fn parse_size(text: &str) -> Result<u64, SizeError> {
    text.parse::<Size>().map(|size| size.0)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PerfArgs,
    }

    fn args(more: &str) -> PerfArgs {
        let line = format!("perf -a 127.0.0.1 -n nqn.2014-08.org.example:a {more}");
        Line::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{error}")).args
    }

    #[test]
    fn nothing_is_overwritten_without_consent() {
        assert!(ask_for_consent(&args("")).is_ok());
        assert!(ask_for_consent(&args("--verify")).is_ok());
        let refused = ask_for_consent(&args("--reads 70")).unwrap_err().to_string();
        assert!(refused.contains("--yes-overwrite"), "{refused}");
        assert!(ask_for_consent(&args("--reads 0 --yes-overwrite")).is_ok());
    }

    #[test]
    fn every_request_has_a_buffer() {
        let host = "nqn.2014-08.org.example:a".parse().unwrap();
        let options = HostOptions::new("127.0.0.1:1".parse().unwrap(), host, host, Uuid::nil());
        for (size, bytes) in [("512", 512), ("4k", 4096), ("64k", 65_536), ("1m", 1 << 20)] {
            let mut buffers = AttachOptions::new(options.clone()).buffers;
            make_room(&mut buffers, &args(&format!("--block-size {size} --depth 1000")));
            let room: u32 = buffers.iter().filter(|one| one.size >= bytes).map(|one| one.count).sum();
            assert!(room >= 1000, "{size}: {buffers:?}");
        }
    }

    #[test]
    fn more_than_a_host_may_have_outstanding_is_refused_by_number() {
        let nqn = "nqn.2014-08.org.example:a".parse().unwrap();
        let refused = attach(&args("--depth 2000"), "127.0.0.1:1".parse().unwrap(), nqn).unwrap_err();
        assert!(refused.to_string().contains("at most 1024 requests outstanding; --depth 2000"), "{refused}");
    }
}
