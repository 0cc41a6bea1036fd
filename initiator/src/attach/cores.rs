//! The cores of an attachment: which there are, whether what they are connected to goes together, and how all of them are.
use std::fmt;
use std::str::FromStr;

use ironside_common::nvme::identify;
use ironside_common::reactor::Poll;

use super::{Description, Running, Status};
use crate::host::Namespace;
use crate::paths::PathStatus;
use crate::volume::State;

/// Cores of one attachment at most.
pub const CORES_MAX: usize = 64;

/// A core to run on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Core {
    /// Its number; any core will do, if not given.
    pub number: Option<usize>,
    /// How it waits for work.
    pub poll: Poll,
}

/// Whether the controller of another core is one of the same subsystem as the first one's, by an identifier of its own, with
/// the same namespaces.
pub(super) fn go_together(first: &Description, Running { description: other, .. }: &Running) -> bool {
    let identity = |description: &Description| {
        let wire: &identify::Controller = zerocopy::transmute_ref!(&*description.controller.identify);
        (wire.serial, wire.model)
    };
    let is_the_same = |namespace: &Namespace| {
        let theirs = other.namespaces.iter().find(|one| one.nsid == namespace.nsid);
        theirs.is_none_or(|theirs| theirs.identity == namespace.identity)
    };
    identity(first) == identity(other)
        && first.cntlid != other.cntlid
        && first.namespaces.iter().all(is_the_same)
}

impl Status {
    /// How two cores are together: as bad as the worse of them.
    pub(super) fn and(self, other: Self) -> Self {
        let counters = self.counters.plus(other.counters);
        let io_queues = self.io_queues + other.io_queues;
        let cntlid = self.cntlid.or(other.cntlid);
        let namespaces =
            both(&self.namespaces, &other.namespaces, |one, other| if one.available { other } else { one });
        let paths = both(&self.paths, &other.paths, PathStatus::and);
        let worse = if badness(other.state) > badness(self.state) { other } else { self };
        Self { counters, io_queues, cntlid, namespaces, paths, ..worse }
    }
}

impl PathStatus {
    fn and(self, other: Self) -> Self {
        let requests = self.requests + other.requests;
        let cntlid = self.cntlid.or(other.cntlid);
        let is_worse = badness(other.state) > badness(self.state)
            || self.reason.is_none() && badness(other.state) == badness(self.state);
        let worse = if is_worse { other } else { self };
        Self { requests, cntlid, ..worse }
    }
}

/// Element by element, as far as both know of them.
fn both<T: Clone>(these: &[T], those: &[T], join: impl Fn(T, T) -> T) -> Vec<T> {
    these.iter().cloned().zip(those.iter().cloned()).map(|(one, other)| join(one, other)).collect()
}

const fn badness(state: State) -> u8 {
    match state {
        State::Connected => 0,
        State::Connecting => 1,
        State::Reconnecting => 2,
        State::Failed => 3,
    }
}

/// Cores as people write them: so many, or which (`0,2-3`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cores(pub Vec<Core>);

/// Why what was written means no cores.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CoresError {
    #[error("write how many cores (4), or which (0,2-3; one alone as 3-3)")]
    Form,
    #[error("between 1 and {CORES_MAX} cores")]
    Count,
    #[error("core {0} is named twice")]
    Twice(usize),
}

impl Cores {
    /// So many of them, none by its number.
    ///
    /// # Errors
    /// If there are none or too many.
    pub fn any(count: usize) -> Result<Self, CoresError> {
        (1..=CORES_MAX).contains(&count).then(|| Self(vec![Core::default(); count])).ok_or(CoresError::Count)
    }
}

impl FromStr for Cores {
    type Err = CoresError;

    fn from_str(text: &str) -> Result<Self, CoresError> {
        let number = |text: &str| text.parse::<usize>().map_err(|_| CoresError::Form);
        if !text.contains([',', '-']) {
            return Self::any(number(text)?);
        }
        let mut cores: Vec<Core> = Vec::new();
        for range in text.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(CoresError::Form);
            }
            if last - first >= CORES_MAX || cores.len() + last - first >= CORES_MAX {
                return Err(CoresError::Count);
            }
            for number in first..=last {
                if cores.iter().any(|core| core.number == Some(number)) {
                    return Err(CoresError::Twice(number));
                }
                cores.push(Core { number: Some(number), ..Core::default() });
            }
        }
        Ok(Self(cores))
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pinned: Option<Vec<_>> = self.0.iter().map(|core| Some(core.number?.to_string())).collect();
        match pinned {
            Some(alone) if alone.len() == 1 => write!(out, "{0}-{0}", alone[0]),
            Some(numbers) => out.write_str(&numbers.join(",")),
            None => write!(out, "{}", self.0.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::Counters;

    #[test]
    fn cores_are_counted_or_named() {
        let numbers =
            |text: &str| Cores::from_str(text).map(|cores| cores.0.iter().map(|core| core.number).collect());
        assert_eq!(numbers("3"), Ok(vec![None; 3]));
        assert_eq!(numbers("0,2-3"), Ok(vec![Some(0), Some(2), Some(3)]));
        assert_eq!(numbers("7-7"), Ok(vec![Some(7)]));
        for text in ["3", "0,2,3", "7-7", "64"] {
            assert_eq!(Cores::from_str(text).unwrap().to_string(), text);
        }
        for text in ["", "two", "1,", "3-2", "-1", "1-2-3", "99999999999999999999"] {
            assert_eq!(numbers(text), Err(CoresError::Form), "{text:?}");
        }
        for text in ["0", "65", "0-64", "0-40,41-80", "0-18446744073709551615"] {
            assert_eq!(numbers(text), Err(CoresError::Count), "{text:?}");
        }
        assert_eq!(numbers("1,0-2"), Err(CoresError::Twice(1)));
    }

    fn status(state: State, seconds: u64, reason: Option<&str>) -> Status {
        let path = PathStatus {
            address: "192.0.2.1:4420".parse().unwrap(),
            state,
            cntlid: Some(7),
            access: Vec::new(),
            reason: reason.map(str::to_owned),
            requests: 3,
        };
        Status {
            state,
            since: Duration::from_secs(seconds),
            counters: Counters::default(),
            cntlid: Some(u16::try_from(seconds).unwrap()),
            io_queues: 2,
            controller: None,
            namespaces: Vec::new(),
            last_error: reason.map(str::to_owned),
            failed_attempts: 0,
            gives_up_in: None,
            paths: vec![path],
        }
    }

    #[test]
    fn an_attachment_is_as_well_as_the_core_that_fares_worst() {
        let live = || status(State::Connected, 1, None);
        let lost = || status(State::Reconnecting, 2, Some("nobody listens there"));
        for all in [[live(), lost(), live()], [lost(), live(), live()], [live(), live(), lost()]] {
            let first = all[0].cntlid;
            let all = all.into_iter().reduce(Status::and).unwrap();
            assert_eq!(
                (all.state, all.since, all.io_queues),
                (State::Reconnecting, Duration::from_secs(2), 6)
            );
            assert_eq!((all.cntlid, all.last_error.as_deref()), (first, Some("nobody listens there")));
            assert_eq!((all.paths[0].state, all.paths[0].requests), (State::Reconnecting, 9));
            assert_eq!(all.paths[0].reason.as_deref(), Some("nobody listens there"));
        }
        let dead = status(State::Failed, 3, None).and(lost());
        assert_eq!(dead.state, State::Failed);
    }
}
