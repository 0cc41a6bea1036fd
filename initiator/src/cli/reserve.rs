//! `ironside resv-register`, `resv-acquire` and `resv-release`: what a host does about the reservation of a namespace it
//! shares with others. Each connects, asks and leaves: a reservation belongs to the host, not to its connection.
use clap::Args;
use ironside_common::nvme::QueueKind;
use ironside_common::nvme::reservation::{AcquireAction, Keys, Kind, RegisterAction, Request};
use zerocopy::IntoBytes;

use super::arguments::number;
use super::error::CliError;
use super::inquiry::{Subject, pass};
use crate::host::{Answer, Passed, PassedData};

/// Whose namespace.
#[derive(Args, Debug)]
pub(super) struct Place {
    #[command(flatten)]
    subject: Subject,
    /// The namespace; that of the device, or the only one, unless given
    #[arg(long, visible_alias = "nsid", value_name = "NSID")]
    namespace_id: Option<u32>,
}

/// Register this host with a namespace, change its key, or take the registration back
///
/// Of an attached device or, with -a and -n, of a subsystem that is not attached. A registered host may reserve the
/// namespace, and share it with others which are registered.
#[derive(Args, Debug)]
pub(super) struct Register {
    #[command(flatten)]
    place: Place,
    /// The key this host is registered with
    #[arg(short = 'c', long, value_name = "KEY", value_parser = number::<u64>, default_value = "0")]
    crkey: u64,
    /// The key to register with
    #[arg(short = 'k', long, value_name = "KEY", value_parser = number::<u64>, default_value = "0")]
    nrkey: u64,
    /// What to do: 0 registers, 1 takes the registration back, 2 replaces the key
    #[arg(short = 'r', long, value_name = "ACTION", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=2))]
    rrega: u8,
    /// Change whether reservations outlast a loss of power: 2 does not, 3 does, 0 leaves it
    #[arg(short = 'p', long, value_name = "CHANGE", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=3))]
    cptpl: u8,
    /// Whatever the key of this host is
    #[arg(short = 'i', long)]
    iekey: bool,
}

/// Reserve a namespace, or take it from another host
///
/// Types: 1 write exclusive, 2 exclusive access, 3 and 4 the same for all who are registered, 5 and 6 the same, and held
/// by all who are registered.
#[derive(Args, Debug)]
pub(super) struct Acquire {
    #[command(flatten)]
    place: Place,
    /// The key this host is registered with
    #[arg(short = 'c', long, value_name = "KEY", value_parser = number::<u64>, default_value = "0")]
    crkey: u64,
    /// The key of whom to take it from
    #[arg(short = 'p', long, value_name = "KEY", value_parser = number::<u64>, default_value = "0")]
    prkey: u64,
    /// The type of reservation
    #[arg(long, value_name = "TYPE", value_parser = clap::value_parser!(u8).range(1..=6))]
    rtype: u8,
    /// What to do: 0 acquires, 1 preempts, 2 preempts and aborts what the other host has under way
    #[arg(long, value_name = "ACTION", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=2))]
    racqa: u8,
}

/// Release a namespace, or clear all its reservations and registrations
#[derive(Args, Debug)]
pub(super) struct Release {
    #[command(flatten)]
    place: Place,
    /// The key this host is registered with
    #[arg(short = 'c', long, value_name = "KEY", value_parser = number::<u64>, default_value = "0")]
    crkey: u64,
    /// The type of reservation to release
    #[arg(long, value_name = "TYPE", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=6))]
    rtype: u8,
    /// What to do: 0 releases, 1 clears
    #[arg(long, value_name = "ACTION", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=1))]
    rrela: u8,
}

pub(super) fn register(arguments: &Register) -> Result<(), CliError> {
    let &Register { ref place, crkey, nrkey, rrega, cptpl, iekey: ignore_key } = arguments;
    let action = [RegisterAction::Register, RegisterAction::Unregister, RegisterAction::Replace];
    let action = action[usize::from(rrega)];
    let persist = (cptpl > 1).then_some(cptpl == 3);
    ask(place, Request::Register { action, ignore_key, persist }, &Keys::new(crkey, nrkey))?;
    println!("NVME Reservation  success");
    Ok(())
}

pub(super) fn acquire(arguments: &Acquire) -> Result<(), CliError> {
    let &Acquire { ref place, crkey, prkey, rtype, racqa } = arguments;
    let action = [AcquireAction::Acquire, AcquireAction::Preempt, AcquireAction::PreemptAndAbort];
    let action = action[usize::from(racqa)];
    let kind = Kind::from_number(rtype).expect("the range was checked");
    ask(place, Request::Acquire { action, kind }, &Keys::new(crkey, prkey))?;
    println!("NVME Reservation Acquire success");
    Ok(())
}

pub(super) fn release(arguments: &Release) -> Result<(), CliError> {
    let &Release { ref place, crkey, rtype, rrela } = arguments;
    let kind = Kind::from_number(rtype);
    let request = if rrela == 1 { Request::Clear } else { Request::Release { kind } };
    ask(place, request, &Keys::new(crkey, 0))?;
    println!("NVME Reservation Release success");
    Ok(())
}

fn ask(place: &Place, request: Request, keys: &Keys) -> Result<(), CliError> {
    let mut bytes = [0; PassedData::OUT_MAX];
    bytes.copy_from_slice(keys.as_bytes());
    let length = request.transfer().length() as usize;
    place.send(request, PassedData::Out { bytes, length }).map(drop)
}

impl Place {
    /// Sends one command for the namespace meant.
    pub(super) fn send(&self, request: Request, data: PassedData) -> Result<Answer, CliError> {
        let nsid = self.subject.nsid(self.namespace_id)?;
        pass(
            self.subject.resolve()?,
            Passed { queue: QueueKind::Io, command: request.to_command(0, nsid), data },
        )
    }
}
