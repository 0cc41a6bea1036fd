//! Whether the target answers, and whether it reaches memory of ours: it reads the data of Connect by RDMA Read, and
//! writes what it says of itself by RDMA Write, which is a ping that no program of this machine takes part in.
use std::time::Duration;

use super::Finding;
use crate::attach::{self, AttachOptions, Carried, Description};
use crate::cli::error::CliError;

pub(super) fn check(options: AttachOptions, count: u16) -> Vec<Finding> {
    let (address, nqn) = (options.host.address, options.host.nqn);
    let asked = Box::new(options.host.clone());
    match attach::probe(options, count) {
        Ok(found) => {
            let carried = &found.carried;
            let reach = format!("{nqn} at {address} answers by {carried}; its RDMA Read of our memory works");
            vec![judge_reach(reach, carried), judge_ping(&found)]
        }
        Err(source) => {
            let error = CliError::Attach { options: asked, source };
            let remedy = error.remedy().unwrap_or_else(|| "the target's log says more".into());
            vec![Finding::fail("reach", error.to_string(), remedy)]
        }
    }
}

fn judge_reach(found: String, carried: &Carried) -> Finding {
    match carried {
        Carried::SoftwareInstead(_) => Finding::warn(
            "reach",
            found,
            "have the target serve by its adapter (ironside-target devices there says which it has), or take --provider iwarp here",
        ),
        Carried::Adapter | Carried::Software => Finding::ok("reach", found),
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

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_target_which_answers_by_software_only_though_an_adapter_leads_there_is_worth_a_warning() {
        assert_eq!(judge_reach(String::new(), &Carried::Adapter).verdict, Verdict::Ok);
        assert_eq!(judge_reach(String::new(), &Carried::Software).verdict, Verdict::Ok);
        let instead = Carried::SoftwareInstead("no RDMA listener".into());
        assert_eq!(judge_reach(String::new(), &instead).verdict, Verdict::Warn);
    }
}
