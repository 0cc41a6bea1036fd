//! Limits as an operator writes them.
use std::num::NonZeroU64;
use std::str::FromStr;

use ironside_common::nvme::Nqn;
use ironside_common::size::Size;

use super::ValueError;
use crate::throttle::Limit;

/// The keys of a limit.
pub(super) const KEYS: [&str; 5] = ["iops", "bandwidth", "read-bandwidth", "write-bandwidth", "burst"];

/// The limits of the hosts of a subsystem.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostLimits {
    /// Of each host which is not named.
    pub each: Limit,
    /// `None`: the host this machine is.
    pub named: Vec<(Option<Nqn>, Limit)>,
}

/// Sets one value of a limit by its key.
///
/// # Errors
/// If it is none, or out of its range.
pub(super) fn set(limit: &mut Limit, key: &str, text: &str) -> Result<(), ValueError> {
    let bandwidth = || bytes_per_second(text).map(Some);
    match key {
        "iops" => limit.iops = Some(rate(text, text.parse().ok(), 1, Limit::IOPS_MAX)?),
        "bandwidth" => limit.bandwidth = bandwidth()?,
        "read-bandwidth" => limit.read_bandwidth = bandwidth()?,
        "write-bandwidth" => limit.write_bandwidth = bandwidth()?,
        "burst" => limit.burst_ms = burst_ms(text)?,
        _ => return Err(ValueError::LimitOption(key.into())),
    }
    Ok(())
}

fn bytes_per_second(text: &str) -> Result<NonZeroU64, ValueError> {
    let bytes = text.parse::<Size>()?.0;
    rate(text, Some(bytes), Limit::BANDWIDTH_MIN, Limit::BANDWIDTH_MAX)
}

fn rate(text: &str, value: Option<u64>, min: u64, max: u64) -> Result<NonZeroU64, ValueError> {
    let value = value.filter(|value| (min..=max).contains(value)).and_then(NonZeroU64::new);
    value.ok_or_else(|| ValueError::Rate { min, max, found: text.into() })
}

/// A number of milliseconds or seconds: `100ms`, `2s`.
fn burst_ms(text: &str) -> Result<u32, ValueError> {
    let (number, factor) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or_default(), 1000),
    };
    let burst_ms = number.trim_end().parse().ok().and_then(|number: u32| number.checked_mul(factor));
    burst_ms.filter(|&one| one <= Limit::BURST_MS_MAX).ok_or_else(|| ValueError::Burst(text.into()))
}

/// `iops=1000,bandwidth=100MiB`, as flags have it.
impl FromStr for Limit {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut limit = Self::default();
        for option in text.split(',') {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            set(&mut limit, key, value)?;
        }
        if limit.is_any() { Ok(limit) } else { Err(ValueError::EmptyLimit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_people_write_them() {
        let limit: Limit = "iops=5000,read-bandwidth=200MiB,burst=2s".parse().unwrap();
        assert_eq!(limit.iops, NonZeroU64::new(5000));
        assert_eq!((limit.read_bandwidth, limit.bandwidth), (NonZeroU64::new(200 << 20), None));
        assert_eq!(limit.burst_ms, 2000);
        assert_eq!(limit.to_string(), "5000 commands/s, 200 MiB/s read, burst 2000 ms");
        assert_eq!("bandwidth=1G,burst=5ms".parse::<Limit>().unwrap().burst_ms, 5);
        let wrong = ["", "iops=0", "iops=x", "bandwidth=100", "bandwidth=2TiB", "speed=1", "burst=1s"];
        for text in wrong.into_iter().chain(["iops=1,burst=1", "iops=1,burst=61s", "iops=1,burst=ms"]) {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }
}
