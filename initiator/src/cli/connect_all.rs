//! `ironside connect-all`: attaches whatever discovery controllers offer to this host.
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use clap::{Args, Parser};
use ironside_common::nvme::Nqn;
use ironside_common::nvme::discovery::{Entry, SubsystemType, TransportType};
use serde_json::json;

use super::arguments::{Format, Output, Target};
use super::connect::{self, How};
use super::disconnect::first_of;
use super::discover;
use super::error::CliError;
use super::secrets::Secrets;
use super::table;
use crate::attach::{self, AttachOptions};
use crate::paths::PATHS_MAX;

/// Attach everything a target offers
///
/// Asks the discovery controller at the address given or, without one, those in /etc/nvme/discovery.conf, and attaches each
/// namespace of each subsystem which is offered over RDMA. What is attached already stays as it is. A subsystem that is
/// offered at several addresses gets a path by each.
#[derive(Args, Debug)]
#[command(mut_arg("traddr", |traddr| traddr.required(false)))]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    output: Output,
}

/// Where nvme-cli has its discovery controllers: a line of arguments for each.
const CONFIGURATION: &str = "/etc/nvme/discovery.conf";

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let Arguments { target, how, output } = arguments;
    let targets = match target.traddr.is_empty() {
        true => configured(Path::new(CONFIGURATION))?.into_iter().map(|one| as_told(one, target)).collect(),
        false => vec![target.clone()],
    };
    let (mut attached, mut failures) = (Vec::new(), Vec::new());
    for target in &targets {
        let offers = match discover::read(target) {
            Ok(log) => offers(target, &log.entries),
            Err(error) => {
                failures.push(error);
                continue;
            }
        };
        for (nqn, target) in offers {
            for outcome in attach_all(&target, nqn, how) {
                match outcome {
                    Ok(attachment) => attached.push(attachment),
                    Err(CliError::AttachedAlready { .. }) => {}
                    Err(error) => failures.push(error),
                }
            }
        }
    }
    match output.output_format {
        Format::Normal => attached.iter().for_each(|one| connect::print(one, Format::Normal)),
        Format::Json => table::print_json(&json!(attached.iter().map(connect::json_of).collect::<Vec<_>>())),
    }
    first_of(failures)
}

/// What the command line says of host and carrier holds where the configuration has no word of its own on the host.
fn as_told(configured: Target, told: &Target) -> Target {
    Target {
        hostnqn: configured.hostnqn.or(told.hostnqn),
        hostid: configured.hostid.or(told.hostid),
        crc: told.crc,
        provider: told.provider,
        ..configured
    }
}

/// Attaches each namespace of a subsystem.
fn attach_all(target: &Target, nqn: Nqn, how: &How) -> Vec<Result<super::attachment::Attachment, CliError>> {
    match namespaces(target, nqn, &how.secrets) {
        Ok(nsids) => nsids.into_iter().map(|nsid| connect::attach(target, nqn, Some(nsid), how)).collect(),
        Err(error) => vec![Err(error)],
    }
}

/// The namespaces of a subsystem, by the first of its addresses at which it answers.
fn namespaces(target: &Target, nqn: Nqn, secrets: &Secrets) -> Result<Vec<u32>, CliError> {
    let mut failed = None;
    for address in target.addresses()? {
        let mut options = target.options_at(address, nqn)?;
        let given = secrets.given(&options)?;
        options.keys = given.source().keys(&given)?;
        let asked = AttachOptions {
            crc: target.crc,
            provider: target.provider,
            ..AttachOptions::new(options.clone())
        };
        match attach::inquire(asked) {
            Ok(found) => return Ok(found.namespaces.iter().map(|namespace| namespace.nsid).collect()),
            Err(source) => failed = failed.or(Some(CliError::Attach { options: Box::new(options), source })),
        }
    }
    failed.map_or_else(|| Ok(Vec::new()), Err)
}

/// The subsystems there are over RDMA, and where each is, in the order of the log.
fn offers(asked: &Target, entries: &[Entry]) -> Vec<(Nqn, Target)> {
    let mut offers: Vec<(Nqn, Target)> = Vec::new();
    let offered = entries.iter().filter(|entry| {
        entry.transport_type() == TransportType::RDMA && entry.subsystem_type() == SubsystemType::NVM
    });
    for entry in offered {
        let (Ok(nqn), Ok(port)) = (entry.subnqn().parse::<Nqn>(), entry.service().parse::<u16>()) else {
            eprintln!("ironside: left alone, since its name or its port is none: {}", entry.subnqn());
            continue;
        };
        let known = offers.iter().position(|(known, _)| *known == nqn).unwrap_or_else(|| {
            offers.push((nqn, Target { traddr: Vec::new(), trsvcid: Vec::new(), ..asked.clone() }));
            offers.len() - 1
        });
        let target = &mut offers[known].1;
        let place = (entry.address().clone(), port);
        let is_known = target.traddr.iter().zip(&target.trsvcid).any(|(a, s)| (a, *s) == (&place.0, place.1));
        if !is_known && target.traddr.len() < PATHS_MAX {
            target.traddr.push(place.0);
            target.trsvcid.push(place.1);
        }
    }
    offers
}

/// A line of the configuration.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    target: Target,
}

/// The discovery controllers over RDMA of which nvme-cli's configuration knows.
fn configured(path: &Path) -> Result<Vec<Target>, CliError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(CliError::NowhereToDiscover),
        Err(source) => return Err(CliError::System { doing: "reading /etc/nvme/discovery.conf", source }),
    };
    let mut targets = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<_> = line.split_whitespace().flat_map(|word| word.split('=')).collect();
        let transport = words.iter().position(|word| matches!(*word, "-t" | "--transport"));
        let transport = transport.and_then(|at| words.get(at + 1));
        if words.is_empty() || line.trim_start().starts_with('#') || transport.is_some_and(|&is| is != "rdma")
        {
            continue;
        }
        let parsed = Line::try_parse_from(words);
        let parsed = parsed.map_err(|error| CliError::DiscoveryLine {
            number,
            message: error.to_string().lines().next().unwrap_or_default().to_owned(),
        })?;
        targets.push(parsed.target);
    }
    if targets.is_empty() { Err(CliError::NowhereToDiscover) } else { Ok(targets) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvme_cli_s_discovery_controllers_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("discovery.conf");
        assert!(matches!(configured(&path), Err(CliError::NowhereToDiscover)));
        let text = "# --transport=rdma\n\n-t rdma -a 192.0.2.1 -s 4421\n--transport=tcp --traddr=192.0.2.2\n\
                    --transport=rdma --traddr=192.0.2.3 --hostnqn=nqn.2014-08.org.example:me\n";
        fs::write(&path, text).unwrap();
        let targets = configured(&path).unwrap();
        let places: Vec<_> = targets.iter().map(|one| (one.traddr[0].as_str(), one.trsvcid[0])).collect();
        assert_eq!(places, [("192.0.2.1", 4421), ("192.0.2.3", 4420)]);
        assert_eq!(targets[1].hostnqn.unwrap().as_str(), "nqn.2014-08.org.example:me");
        fs::write(&path, "-t rdma\n").unwrap();
        assert!(matches!(configured(&path), Err(CliError::DiscoveryLine { number: 1, .. })));
    }
}
