//! The keep alive timer. Every command counts as a sign of life (TBKAS), on whichever queue.
use std::time::Duration;

use ironside_common::time::Time;

/// KAS: how finely the timer is kept, and how late it may be because of it.
pub(super) const GRANULARITY: Duration = Duration::from_secs(1);

/// What a discovery controller uses if its host asked for no timeout: nobody stays connected to one for ever.
const DISCOVERY_DEFAULT_MS: u32 = 120_000;

#[derive(Debug)]
pub(super) struct KeepAlive {
    /// Zero for none.
    timeout_ms: u32,
    default_ms: u32,
    last: Time,
    expired: bool,
}

impl KeepAlive {
    pub(super) fn new(now: Time, timeout_ms: u32, is_discovery: bool) -> Self {
        let default_ms = if is_discovery { DISCOVERY_DEFAULT_MS } else { 0 };
        let mut keep_alive = Self { timeout_ms: 0, default_ms, last: now, expired: false };
        keep_alive.set_timeout_ms(timeout_ms);
        keep_alive
    }

    pub(super) const fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    pub(super) const fn set_timeout_ms(&mut self, timeout_ms: u32) {
        self.timeout_ms = if timeout_ms == 0 { self.default_ms } else { timeout_ms };
    }

    pub(super) fn note_activity(&mut self, at: Time) {
        self.last = self.last.max(at);
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        if self.timeout_ms == 0 || self.expired {
            return None;
        }
        Some(self.last + Duration::from_millis(self.timeout_ms.into()) + GRANULARITY)
    }

    /// Whether the timeout has passed, which is said once.
    pub(super) fn expire(&mut self, now: Time) -> bool {
        let expired = self.deadline().is_some_and(|deadline| now >= deadline);
        self.expired |= expired;
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn silence_expires_once() {
        let mut timer = KeepAlive::new(at_ms(0), 5000, false);
        assert_eq!(timer.deadline(), Some(at_ms(6000)));
        timer.note_activity(at_ms(2000));
        timer.note_activity(at_ms(1000));
        assert_eq!(timer.deadline(), Some(at_ms(8000)));
        assert!(!timer.expire(at_ms(7999)));
        assert!(timer.expire(at_ms(8000)));
        assert!(!timer.expire(at_ms(9000)));
        assert_eq!(timer.deadline(), None);
    }

    #[test]
    fn no_timeout_means_none_except_for_discovery() {
        assert_eq!(KeepAlive::new(at_ms(0), 0, false).deadline(), None);
        assert_eq!(KeepAlive::new(at_ms(0), 0, true).deadline(), Some(at_ms(121_000)));
        let longest = KeepAlive::new(at_ms(0), u32::MAX, false);
        assert_eq!(longest.deadline(), Some(at_ms(u64::from(u32::MAX) + 1000)));
    }
}
