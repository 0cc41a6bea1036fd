//! Whether the target answers, and whether it reaches memory of ours: it reads the data of Connect by RDMA Read, and
//! writes what it says of itself by RDMA Write, which is a ping that no program of this machine takes part in.
use std::time::Duration;

use super::Finding;
use crate::attach::{self, AttachOptions, Description};
use crate::cli::error::CliError;

pub(super) fn check(options: AttachOptions, count: u16) -> Vec<Finding> {
    let (address, nqn) = (options.host.address, options.host.nqn);
    let carrier = match options.provider.by_adapter(address) {
        Ok(true) => "an RDMA adapter",
        _ => "software RDMA",
    };
    let asked = Box::new(options.host.clone());
    match attach::probe(options, count) {
        Ok(found) => {
            let reach = format!("{nqn} at {address} answers by {carrier}; its RDMA Read of our memory works");
            vec![Finding::ok("reach", reach), judge_ping(&found)]
        }
        Err(source) => {
            let error = CliError::Attach { options: asked, source };
            let remedy = error.remedy().unwrap_or_else(|| "the target's log says more".into());
            vec![Finding::fail("reach", error.to_string(), remedy)]
        }
    }
}

fn judge_ping(found: &Description) -> Finding {
    let mut times = found.round_trips.clone();
    times.sort_unstable();
    let us = |time: Option<&Duration>| time.map_or(0, Duration::as_micros);
    let (least, median, most) = (us(times.first()), us(times.get(times.len() / 2)), us(times.last()));
    let found = format!(
        "{} RDMA Writes of 4096 bytes into our memory, each with its command and response in {least} µs at least, {median} µs in the middle, {most} µs at most",
        times.len()
    );
    Finding::ok("ping", found)
}
