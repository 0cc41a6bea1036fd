//! How long a reactor's commands took: a histogram of each kind, with a bucket for each power of two. Only the thread which
//! answers them counts, and only it reads.
use std::cell::Cell;

use super::usage::CommandKind;

/// The first bucket takes what took up to so many nanoseconds, as a binary logarithm.
const FIRST_SHIFT: u32 = 10;
/// Buckets: the last takes all that the others do not, what took more than 17 s.
const BUCKETS: usize = 26;

/// Times of commands which succeeded.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    /// All of them together.
    pub nanos: u64,
}

impl Histogram {
    /// How many took at most so many nanoseconds, bucket after bucket, the last apart: that has no end.
    pub fn up_to(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts[..BUCKETS - 1].iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        (FIRST_SHIFT..).map(|shift| 1 << shift).zip(counts)
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A histogram of each kind of command.
#[derive(Debug, Default)]
pub struct Latencies([Times; CommandKind::ALL.len()]);

#[derive(Debug, Default)]
struct Times {
    counts: [Cell<u64>; BUCKETS],
    nanos: Cell<u64>,
}

impl Latencies {
    /// A command took so long.
    pub(super) fn note(&self, kind: CommandKind, nanos: u64) {
        let Times { counts, nanos: sum } = &self.0[kind as usize];
        let bits = u64::BITS - nanos.saturating_sub(1).leading_zeros();
        let bucket = bits.saturating_sub(FIRST_SHIFT) as usize;
        let count = &counts[bucket.min(BUCKETS - 1)];
        count.set(count.get() + 1);
        sum.set(sum.get() + nanos);
    }

    /// Of each kind, in the order of [`CommandKind::ALL`].
    pub fn read(&self) -> [Histogram; CommandKind::ALL.len()] {
        self.0.each_ref().map(|times| Histogram {
            counts: times.counts.each_ref().map(Cell::get),
            nanos: times.nanos.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_for_every_bound_that_it_does_not_exceed() {
        let latencies = Latencies::default();
        for nanos in [0, 1024, 1025, 2048, 5000, 1 << 34, (1 << 34) + 1, 1 << 60] {
            latencies.note(CommandKind::Write, nanos);
        }
        let [read, write, ..] = latencies.read();
        assert_eq!((read.count(), read.nanos), (0, 0));
        assert_eq!((write.count(), write.nanos), (8, 9097 + (1 << 35) + 1 + (1 << 60)));
        let up_to: Vec<_> = write.up_to().collect();
        assert_eq!(up_to[..4], [(1024, 2), (2048, 4), (4096, 4), (8192, 5)]);
        assert_eq!(up_to[up_to.len() - 2..], [(1 << 33, 5), (1 << 34, 6)]);
    }
}
