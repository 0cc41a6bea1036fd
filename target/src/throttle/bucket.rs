//! Token buckets, kept as the time at which everything asked for so far would have been earned (the virtual scheduling
//! form of the generic cell rate algorithm, ITU-T I.371): one number for each, and no clock that has to tick.
//!
//! Whoever comes is let in while that time is not further ahead than the burst, however much is asked for: so what is
//! large never waits behind what is small, and is paid for afterwards. In any span of time no more is let in than the
//! rate times the span and the burst, and one command.
use std::num::NonZeroU64;
use std::time::Duration;

use ironside_common::time::Time;

use super::{Cost, Limit};

const NANOS: u128 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    per_second: NonZeroU64,
    /// When what was let in so far will have been earned.
    earned: Time,
}

impl Bucket {
    /// How long so much takes to earn. Rounded up, so that the rate is never exceeded.
    fn span(&self, units: u64) -> Duration {
        let nanos = (u128::from(units) * NANOS).div_ceil(self.per_second.get().into());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The buckets of one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    limit: Limit,
    /// Of commands, bytes, bytes read and bytes written.
    buckets: [Option<Bucket>; 4],
}

impl Meter {
    /// From now on another limit holds. What is owed is owed at the new rate.
    pub(super) fn set(&mut self, now: Time, limit: Limit) {
        if limit == self.limit {
            return;
        }
        self.limit = limit;
        let rates = [limit.iops, limit.bandwidth, limit.read_bandwidth, limit.write_bandwidth];
        for (bucket, per_second) in self.buckets.iter_mut().zip(rates) {
            *bucket = per_second.map(|per_second| {
                let before = bucket.unwrap_or(Bucket { per_second, earned: Time::ZERO });
                let owed = before.earned.since(now).as_nanos() * u128::from(before.per_second.get());
                let owed = u64::try_from(owed / u128::from(per_second.get())).unwrap_or(u64::MAX);
                Bucket { per_second, earned: now + Duration::from_nanos(owed) }
            });
        }
    }

    /// From when on a command of this cost is let in.
    pub(super) fn opens_at(&self, cost: Cost) -> Time {
        let nanos = |(bucket, _): (&Bucket, u64)| bucket.earned.as_nanos();
        let latest = self.asked(cost).map(nanos).max().unwrap_or(0);
        let burst = u64::try_from(self.limit.burst().as_nanos()).unwrap_or(u64::MAX);
        Time::from_nanos(latest.saturating_sub(burst))
    }

    /// A command of this cost is let in.
    pub(super) fn take(&mut self, now: Time, cost: Cost) {
        for (bucket, units) in self.buckets.iter_mut().zip(units(cost)) {
            if let Some(bucket) = bucket.as_mut().filter(|_| units > 0) {
                bucket.earned = bucket.earned.max(now) + bucket.span(units);
            }
        }
    }

    /// A command which was let in has not been executed.
    pub(super) fn give_back(&mut self, cost: Cost) {
        for (bucket, units) in self.buckets.iter_mut().zip(units(cost)) {
            if let Some(bucket) = bucket {
                let span = u64::try_from(bucket.span(units).as_nanos()).unwrap_or(u64::MAX);
                bucket.earned = Time::from_nanos(bucket.earned.as_nanos().saturating_sub(span));
            }
        }
    }

    /// How long a command of this cost keeps the slowest of the buckets busy.
    pub(super) fn span(&self, cost: Cost) -> Duration {
        self.asked(cost).map(|(bucket, units)| bucket.span(units)).max().unwrap_or_default()
    }

    /// Whether nothing is owed any more: a new one would be the same.
    pub(super) fn is_rested(&self, now: Time) -> bool {
        self.buckets.iter().flatten().all(|bucket| bucket.earned <= now)
    }

    /// The buckets of which a command of this cost asks for something, and how much.
    fn asked(&self, cost: Cost) -> impl Iterator<Item = (&Bucket, u64)> {
        let asked = self.buckets.iter().zip(units(cost)).filter(|(_, units)| *units > 0);
        asked.filter_map(|(bucket, units)| Some((bucket.as_ref()?, units)))
    }
}

fn units(cost: Cost) -> [u64; 4] {
    let Cost { commands, read, write } = cost;
    [commands.into(), u64::from(read) + u64::from(write), read.into(), write.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1 << 40);

    fn at(millis: u64) -> Time {
        START + Duration::from_millis(millis)
    }

    fn limit(iops: u64, burst_ms: u32) -> Limit {
        Limit { iops: NonZeroU64::new(iops), burst_ms, ..Limit::default() }
    }

    fn meter(limit: Limit) -> Meter {
        let mut meter = Meter::default();
        meter.set(START, limit);
        meter
    }

    /// As many as are let in at this time.
    fn all(meter: &mut Meter, now: Time, cost: Cost) -> usize {
        let taken = std::iter::from_fn(|| (meter.opens_at(cost) <= now).then(|| meter.take(now, cost)));
        taken.take(10_000).count()
    }

    const ONE: Cost = Cost { commands: 1, read: 4096, write: 0 };

    #[test]
    fn a_burst_is_let_in_and_then_the_rate() {
        let mut meter = meter(limit(1000, 10));
        assert_eq!(all(&mut meter, at(0), ONE), 11, "the burst, and the one that is owed");
        assert_eq!(meter.opens_at(ONE), at(1));
        assert_eq!(all(&mut meter, at(5), ONE), 5);
        assert_eq!(all(&mut meter, at(1000), ONE), 11, "no more than a burst is saved");
        assert!(!meter.is_rested(at(1000)) && meter.is_rested(at(1011)));
    }

    #[test]
    fn what_is_larger_than_the_burst_is_let_in_and_paid_for() {
        let bandwidth = NonZeroU64::new(1 << 20);
        let mut meter = meter(Limit { write_bandwidth: bandwidth, burst_ms: 1, ..Limit::default() });
        let write = Cost { commands: 1, read: 0, write: 1 << 20 };
        assert_eq!(all(&mut meter, at(0), write), 1);
        assert_eq!(meter.opens_at(write), at(999));
        assert_eq!(meter.opens_at(ONE), Time::ZERO, "reads are not limited");
        meter.give_back(write);
        assert_eq!(all(&mut meter, at(0), write), 1);
    }

    #[test]
    fn what_is_owed_is_owed_at_the_new_rate() {
        let mut meter = meter(limit(10, 0));
        meter.take(at(0), Cost { commands: 100, ..Cost::default() });
        assert_eq!(meter.opens_at(ONE), at(10_000));
        meter.set(at(5000), limit(1000, 0));
        assert_eq!(meter.opens_at(ONE), at(5050));
        meter.set(at(5000), Limit::default());
        assert_eq!(meter.opens_at(ONE), Time::ZERO);
    }
}
