//! `ironside doctor`: is everything between this machine and a target as it should be, and if not, what to do.
mod adapter;
mod counters;
mod network;
mod system;
mod target;

use clap::Args;
use ironside_common::nvme::Nqn;
use serde::Serialize;
use serde_json::json;

use self::adapter::Adapter;
use self::counters::Counters;
use self::system::Machine;
use super::arguments::{Format, Output, Target};
use super::error::CliError;
use super::table;
use crate::attach::{AttachOptions, Registration, Route};

/// Check the way to a target, and say what to do about what is wrong
///
/// Looks at the route, its link and MTU, the RDMA adapter if there is one, what memory may be locked, and the counters of drops,
/// pauses and congestion; then connects, and has the target write into memory of this machine by RDMA. Ends with
/// status 0 unless a check failed.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The subsystem to connect to; the discovery controller unless given
    #[arg(short = 'n', long, value_name = "NQN")]
    nqn: Option<Nqn>,
    /// How buffers are lent to the target
    #[arg(long, value_name = "WAY", default_value = "auto")]
    registration: Registration,
    /// How often the target is asked to write
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    count: u16,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// What one check has found.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fail, found: found.into(), remedy: Some(remedy.into()) }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let options = arguments.target.options(arguments.nqn.unwrap_or_else(Nqn::discovery))?;
    let machine = Machine::this();
    let mut findings = Vec::new();
    // To a socket of this machine there is no route.
    let route = options.address.socket().map(|to| (to, Route::find(to)));
    findings.extend(route.as_ref().map(|(to, route)| network::check_route(*to, route)));
    let route = route.and_then(|(_, route)| route.ok());
    let interface = route.as_ref().map(|route| route.interface.as_str());
    let adapter = interface.and_then(|interface| adapter::look(interface, &mut findings));
    if let Some(interface) = interface {
        findings.extend(network::check_link(&machine, interface, adapter.as_ref()));
    }
    findings.push(system::check_memlock(adapter.is_some()));
    findings.push(system::check_huge_pages(&machine, adapter.is_some()));
    findings.push(system::check_ways());
    let before = Counters::read(&machine, interface, adapter.as_ref().map(Adapter::place));
    let Arguments { registration, count, target: Target { crc, provider, .. }, .. } = *arguments;
    let attach = AttachOptions { crc, provider, registration, ..AttachOptions::new(options) };
    findings.extend(target::check(attach, count));
    let after = Counters::read(&machine, interface, adapter.as_ref().map(Adapter::place));
    findings.extend(counters::check(&before, &after, adapter.is_some()));
    print(&findings, arguments.output.output_format);
    match findings.iter().filter(|finding| finding.verdict == Verdict::Fail).count() {
        0 => Ok(()),
        failed => Err(CliError::Unwell(failed)),
    }
}

fn print(findings: &[Finding], format: Format) {
    let worst = [Verdict::Fail, Verdict::Warn]
        .into_iter()
        .find(|verdict| findings.iter().any(|finding| finding.verdict == *verdict));
    match format {
        Format::Json => {
            table::print_json(&json!({ "verdict": worst.unwrap_or(Verdict::Ok), "findings": findings }));
        }
        Format::Normal => findings.iter().for_each(|finding| print!("{}", in_words(finding))),
    }
}

fn in_words(finding: &Finding) -> String {
    let Finding { check, verdict, found, remedy } = finding;
    let verdict = match verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    };
    let remedy =
        remedy.as_ref().map_or_else(String::new, |remedy| format!("{:20}what to do: {remedy}\n", ""));
    format!("{verdict:<5} {check:<13} {found}\n{remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_and_its_remedy_another() {
        assert_eq!(in_words(&Finding::ok("link", "eth0 is up")), "ok    link          eth0 is up\n");
        let said = in_words(&Finding::fail("route", "there is none", "make one"));
        assert_eq!(said, "FAIL  route         there is none\n                    what to do: make one\n");
        let json = serde_json::to_value(Finding::warn("mtu", "1500", "more")).unwrap();
        assert_eq!(json, json!({"check": "mtu", "verdict": "warn", "found": "1500", "remedy": "more"}));
    }
}
