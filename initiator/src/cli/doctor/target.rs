//! Whether the target answers, and whether it reaches memory of ours: it reads the data of Connect by RDMA Read, and
//! writes what it says of itself by RDMA Write, which is a ping that no program of this machine takes part in.
use std::time::Duration;

use super::Finding;
use crate::attach::{self, AttachOptions, Crc, Description};
use crate::cli::error::CliError;
use crate::host::HostOptions;

pub(super) fn check(options: HostOptions, crc: Crc, count: u16) -> Vec<Finding> {
    let (address, nqn) = (options.address, options.nqn);
    let asked = Box::new(options.clone());
    match attach::probe(AttachOptions { crc, ..AttachOptions::new(options) }, count) {
        Ok(found) => {
            let reach = format!("{nqn} at {address} answers; its RDMA Read of our memory works");
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
