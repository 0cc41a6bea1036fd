//! `ironside connect`: starts the process behind an attachment and waits until the volume can be used.
use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use clap::Args;
use ironside_common::nvme::Nqn;
use ironside_common::reactor::Poll;
use ironside_common::size::Size;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::arguments::{Format, Output, Target};
use super::attachment::{Attachment, Directory, Entry, Order, Report, Specification, Via};
use super::error::CliError;
use super::secrets::{Secrets, Source};
use super::table;
use crate::attach::{Cores, Registration};
use crate::paths::Policy;

/// Attach a volume as a local device
///
/// Connects to a subsystem and offers one of its namespaces to this machine. The connection is held by a
/// process in the background, which reconnects by itself when it is lost; list knows it and disconnect ends
/// it. With several addresses (-a), each is a path of its own: requests take those which the target says are good, and
/// another one when a path is lost.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The subsystem
    #[arg(short = 'n', long, value_name = "NQN")]
    nqn: Nqn,
    /// The namespace; the only one there is unless given
    #[arg(long, value_name = "NSID")]
    nsid: Option<u32>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    output: Output,
}

/// How something is attached, whatever it is.
#[derive(Args, Debug)]
pub(super) struct How {
    /// How the volume is offered to this machine
    #[arg(long, value_name = "WAY", default_value = "auto")]
    via: Via,
    /// Refuse writes
    #[arg(long, visible_alias = "readonly")]
    read_only: bool,
    /// I/O queues, of each core
    #[arg(short = 'i', long, value_name = "NUMBER", default_value_t = 1)]
    nr_io_queues: u16,
    /// The cores which serve it, each by connections of its own: how many (4), or which (0,2-3; one alone as 3-3)
    #[arg(long, value_name = "CORES", default_value = "1")]
    cores: Cores,
    /// So many of these cores never sleep, so that no request waits for one to wake; each takes a whole processor
    #[arg(short = 'P', long, value_name = "NUMBER", default_value_t = 0)]
    nr_poll_queues: usize,
    /// Entries of each I/O queue
    #[arg(short = 'Q', long, value_name = "NUMBER", default_value_t = 128)]
    queue_size: u16,
    /// Keep-alive timeout in seconds; 0 for none
    #[arg(short = 'k', long, value_name = "SECONDS", default_value_t = 5)]
    keep_alive_tmo: u32,
    /// Seconds between two attempts to reconnect
    #[arg(short = 'c', long, value_name = "SECONDS", default_value_t = 10)]
    reconnect_delay: u32,
    /// Seconds from the loss of the connection until requests fail; -1 for never
    #[arg(short = 'l', long, value_name = "SECONDS", default_value_t = 600, allow_negative_numbers = true)]
    ctrl_loss_tmo: i64,
    /// Seconds from the loss of the connection until requests fail for as long as there is none; -1 to hold them
    #[arg(short = 'F', long, visible_alias = "fast_io_fail_tmo", value_name = "SECONDS", default_value_t = -1)]
    #[arg(allow_negative_numbers = true)]
    fast_io_fail_tmo: i64,
    /// Which of several paths a request takes
    #[arg(long, value_name = "POLICY", default_value = "queue-depth")]
    iopolicy: Policy,
    /// How to wait for work: always looking, adaptive (looking while that pays, then asleep), or never looking
    #[arg(long, value_name = "always|adaptive|never", default_value_t)]
    poll: Poll,
    /// Attach it even if it is attached already
    #[arg(short = 'D', long)]
    duplicate_connect: bool,
    /// Ask the target to do without submission queue flow control
    #[arg(short = 'd', long)]
    disable_sqflow: bool,
    /// How buffers are lent to the target
    #[arg(long, value_name = "WAY", default_value = "auto")]
    registration: Registration,
    #[command(flatten)]
    pub(super) secrets: Secrets,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let Arguments { target, nqn, nsid, how, output } = arguments;
    print(&attach(target, *nqn, *nsid, how)?, output.output_format);
    Ok(())
}

/// Attaches a namespace of the subsystem of this name: the one named, or the only one.
pub(super) fn attach(
    target: &Target,
    nqn: Nqn,
    nsid: Option<u32>,
    how: &How,
) -> Result<Attachment, CliError> {
    let mut specification = specification(target, nqn, nsid, how)?;
    let given = how.secrets.given(&specification.options())?;
    specification.secrets = given.source();
    // What is wrong with them is said here rather than by a process in the background.
    given.source().keys(&given)?;
    let take_over = match how.duplicate_connect {
        false => look_for_the_same(&mut specification)?,
        true => None,
    };
    if let Err(wanted) = super::log::filter() {
        eprintln!(
            "ironside: IRONSIDE_LOG is ignored: {wanted:?} is no filter; write for instance ironside_initiator=debug"
        );
    }
    start(&Order { specification, given, take_over })
}

/// Says what is attached now.
pub(super) fn print(attachment: &Attachment, format: Format) {
    Target::remark(&attachment.carried);
    match format {
        Format::Normal => {
            let Attachment { name, device, reason, nsid, volume, .. } = attachment;
            println!("{}", device.display());
            let (nqn, size) = (attachment.specification.nqn, Size(volume.size));
            eprintln!("{name}: {nqn} namespace {nsid}, {size}, via {reason}");
            if attachment.via == Via::Nbd {
                eprintln!("{name}: clients call it nbd+unix:///?socket={}", device.display());
            }
            if attachment.via == Via::VhostUserBlk {
                eprintln!(
                    "{name}: QEMU takes it by -chardev socket,id={name},path={},reconnect=1 \
                     -device vhost-user-blk-pci,chardev={name}, and memory which is shared",
                    device.display()
                );
            }
        }
        Format::Json => table::print_json(&json_of(attachment)),
    }
}

/// An attachment as programs are told of it.
pub(super) fn json_of(attachment: &Attachment) -> Value {
    json!({
        "DevicePath": attachment.device,
        "Name": attachment.name,
        "NameSpace": attachment.nsid,
        "SubsystemNQN": attachment.specification.nqn.as_str(),
        "PhysicalSize": attachment.volume.size,
        "SectorSize": attachment.volume.block_size,
        "Via": attachment.via,
        "Reason": attachment.reason,
        "Carrier": attachment.carried,
        "Process": attachment.pid,
    })
}

fn specification(target: &Target, nqn: Nqn, nsid: Option<u32>, how: &How) -> Result<Specification, CliError> {
    let mut addresses = target.addresses()?;
    let options = target.options_at(addresses.remove(0), nqn)?;
    let specification = Specification {
        address: options.address,
        more_addresses: addresses,
        iopolicy: how.iopolicy,
        nqn: options.nqn,
        host_nqn: options.host_nqn,
        host_id: options.host_id,
        crc: target.crc,
        poll: how.poll,
        provider: target.provider,
        registration: how.registration,
        nsid,
        via: how.via,
        read_only: how.read_only,
        nr_io_queues: how.nr_io_queues,
        queue_size: how.queue_size,
        keep_alive_tmo: Duration::from_secs(how.keep_alive_tmo.into()),
        reconnect_delay: Duration::from_secs(how.reconnect_delay.into()),
        ctrl_loss_tmo: u64::try_from(how.ctrl_loss_tmo).ok().map(Duration::from_secs),
        fast_io_fail_tmo: u64::try_from(how.fast_io_fail_tmo).ok().map(Duration::from_secs),
        disable_sqflow: how.disable_sqflow,
        cores: Some(how.cores.to_string()),
        nr_poll_queues: how.nr_poll_queues,
        secrets: Source::default(),
    };
    // What makes no sense is said here rather than by a process in the background.
    specification.options().check()?;
    check_cores(how)?;
    Ok(specification)
}

fn check_cores(how: &How) -> Result<(), CliError> {
    let cores = how.cores.0.len();
    let there = thread::available_parallelism().map_or(usize::MAX, NonZeroUsize::get);
    if cores > there {
        return Err(CliError::TooManyCores { cores, there });
    }
    if how.nr_poll_queues > cores {
        return Err(CliError::PollQueues { wanted: how.nr_poll_queues, cores });
    }
    Ok(())
}

/// What is attached already is not attached again. What a process that died has left, and waits for another, is to be
/// taken over, as it was offered.
fn look_for_the_same(wanted: &mut Specification) -> Result<Option<String>, CliError> {
    let is_the_same = |attachment: &Attachment| {
        attachment.specification.addresses().any(|one| wanted.addresses().any(|other| one == other))
            && attachment.specification.nqn == wanted.nqn
            && wanted.nsid.is_none_or(|nsid| attachment.nsid == nsid)
    };
    let entries = Directory::open()?.entries()?;
    let mut same: Vec<_> =
        entries.into_iter().filter(|entry| entry.attachment.as_ref().is_some_and(is_the_same)).collect();
    same.iter_mut().for_each(Entry::settle);
    if let Some(alive) = same.iter().find(|entry| entry.is_alive()) {
        return Err(CliError::AttachedAlready { name: alive.name() });
    }
    let left = same.iter().find(|entry| entry.is_recoverable());
    if let Some(before) = left.and_then(|entry| entry.attachment.as_ref()) {
        (wanted.via, wanted.read_only) = (before.specification.via, before.specification.read_only);
        // A device has as many queues as it was made with.
        wanted.cores.clone_from(&before.specification.cores);
        wanted.nr_poll_queues = before.specification.nr_poll_queues;
    }
    // The lock on it goes with what was found, for the process that takes it over.
    Ok(left.map(Entry::name))
}

/// Starts this very program again as the process behind the attachment, and waits for its report. A process
/// that has threads already cannot simply be forked.
pub(super) fn start(order: &Order) -> Result<Attachment, CliError> {
    let system = |doing| move |source| CliError::System { doing, source };
    let mut child = Command::new("/proc/self/exe")
        .arg("attach-daemon")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(system("starting the attach process"))?;
    let text = Zeroizing::new(serde_json::to_vec(order).expect("this is plain data"));
    let mut stdin = child.stdin.take().expect("it was piped");
    stdin.write_all(&text).map_err(system("talking to the attach process"))?;
    drop(stdin);
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("it was piped"));
    stdout.read_line(&mut line).map_err(system("listening to the attach process"))?;
    match serde_json::from_str(&line) {
        Ok(Report::Ready(attachment)) => Ok(*attachment),
        Ok(Report::Failed { message, remedy, class }) => Err(CliError::Reported { message, remedy, class }),
        Err(_) => {
            let status = child.wait().map_err(system("waiting for the attach process"))?;
            Err(CliError::Silent { status })
        }
    }
}
