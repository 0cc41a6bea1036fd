//! Which of several usable paths the next request takes.
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// In the words of the kernel's `iopolicy`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The path with the fewest requests under way
    #[default]
    QueueDepth,
    /// Each path in turn
    RoundRobin,
    /// The first usable path, in the order given: one thread drives them all, so none is nearer than another
    Numa,
}

/// A path a request may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub path: usize,
    pub optimized: bool,
    pub in_flight: usize,
}

impl Policy {
    /// The one to take. Optimized paths go before others; `last` is the path taken before.
    pub(super) fn choose(self, candidates: impl Iterator<Item = Candidate>, last: usize) -> Option<usize> {
        // Behind the last one first, in their order.
        let turn = |path: usize| if path > last { path - last - 1 } else { path + (usize::MAX >> 1) };
        let rank = |candidate: &Candidate| {
            let Candidate { path, optimized, in_flight } = *candidate;
            match self {
                Self::QueueDepth => (!optimized, in_flight, turn(path)),
                Self::RoundRobin => (!optimized, 0, turn(path)),
                Self::Numa => (!optimized, 0, path),
            }
        };
        candidates.min_by_key(rank).map(|candidate| candidate.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(policy: Policy, candidates: &[(usize, bool, usize)], last: usize) -> Option<usize> {
        let candidate =
            |&(path, optimized, in_flight): &(usize, bool, usize)| Candidate { path, optimized, in_flight };
        policy.choose(candidates.iter().map(candidate), last)
    }

    #[test]
    fn each_policy_takes_another_path_and_all_prefer_optimized_ones() {
        let all = [(0, true, 3), (1, true, 2), (2, true, 2)];
        assert_eq!([0, 1, 2].map(|last| choose(Policy::RoundRobin, &all, last)), [1, 2, 0].map(Some));
        assert_eq!([0, 1, 2].map(|last| choose(Policy::QueueDepth, &all, last)), [1, 2, 1].map(Some));
        assert_eq!([0, 1, 2].map(|last| choose(Policy::Numa, &all, last)), [Some(0); 3]);
        for policy in [Policy::RoundRobin, Policy::QueueDepth, Policy::Numa] {
            assert_eq!(choose(policy, &[(0, false, 0), (1, true, 9), (2, false, 0)], 1), Some(1));
            assert_eq!(choose(policy, &[(2, false, 9)], 2), Some(2), "the only one there is");
            assert_eq!(choose(policy, &[], 0), None);
        }
    }
}
