//! The one place which makes [`Time`] from a clock.
use nix::time::{ClockId, clock_gettime};

use crate::time::Time;

/// Nanoseconds of `CLOCK_MONOTONIC`.
///
/// # Panics
/// Never on Linux, which always has this clock.
#[must_use]
pub fn now() -> Time {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has a monotonic clock");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec()).unwrap_or(0);
    Time::from_nanos(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_does_not_run_backwards() {
        let (first, second) = (super::now(), super::now());
        assert!(first <= second);
        assert!(first > crate::time::Time::ZERO);
    }
}
