//! When to try to connect again after a loss, and when to give up.
use std::time::Duration;

use ironside_common::time::Time;

/// A target which was restarted is back soon, so the first attempts follow each other quickly. None is made
/// later than the delay asked for.
const FIRST_DELAYS_MS: [u64; 6] = [50, 100, 250, 500, 1000, 2000];

/// What the user asked for, in nvme-cli's terms.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ReconnectPolicy {
    /// Between two attempts, once the first ones have failed.
    pub reconnect_delay: Duration,
    /// From the loss until requests fail; `None` never gives up.
    pub ctrl_loss_tmo: Option<Duration>,
    /// From the loss until requests fail for as long as it is not made good; `None` for never.
    pub fast_io_fail_tmo: Option<Duration>,
}

/// Where we are between a loss and the next connection.
#[derive(Debug)]
pub(super) struct Reconnect {
    policy: ReconnectPolicy,
    lost_at: Option<Time>,
    attempts: usize,
}

impl Reconnect {
    pub(super) const fn new(policy: ReconnectPolicy) -> Self {
        Self { policy, lost_at: None, attempts: 0 }
    }

    /// The connection is lost, or one more attempt has failed: when to try next.
    pub(super) fn next_attempt(&mut self, now: Time) -> Time {
        self.lost_at.get_or_insert(now);
        let first = FIRST_DELAYS_MS.get(self.attempts).map(|&delay| Duration::from_millis(delay));
        self.attempts += 1;
        now + first.unwrap_or(self.policy.reconnect_delay).min(self.policy.reconnect_delay)
    }

    /// There is a connection again.
    pub(super) fn succeeded(&mut self) {
        self.lost_at = None;
        self.attempts = 0;
    }

    /// Attempts since the loss.
    pub(super) const fn attempts(&self) -> usize {
        self.attempts
    }

    /// When requests begin to fail, though it is not over.
    pub(super) fn fails_fast_at(&self) -> Option<Time> {
        Some(self.lost_at? + self.policy.fast_io_fail_tmo?)
    }

    /// When it is over for good.
    pub(super) fn gives_up_at(&self) -> Option<Time> {
        Some(self.lost_at? + self.policy.ctrl_loss_tmo?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(0);
    const DELAY: Duration = Duration::from_secs(1);

    fn reconnect(ctrl_loss_tmo: Option<Duration>) -> Reconnect {
        Reconnect::new(ReconnectPolicy {
            reconnect_delay: DELAY,
            ctrl_loss_tmo,
            fast_io_fail_tmo: Some(DELAY * 3),
        })
    }

    #[test]
    fn attempts_become_rarer_up_to_the_delay() {
        let mut reconnect = reconnect(None);
        let mut now = START;
        let delays: Vec<_> = (0..8)
            .map(|_| {
                let next = reconnect.next_attempt(now);
                let delay = next.since(now);
                now = next;
                delay
            })
            .collect();
        assert!(delays.is_sorted());
        assert_eq!(delays[0], Duration::from_millis(50));
        assert_eq!(&delays[4..], [DELAY; 4]);
        assert_eq!(reconnect.gives_up_at(), None);
    }

    #[test]
    fn it_gives_up_once_the_controller_was_lost_too_long() {
        let mut reconnect = reconnect(Some(DELAY * 10));
        assert_eq!(reconnect.gives_up_at(), None);
        reconnect.next_attempt(START + DELAY);
        reconnect.next_attempt(START + DELAY * 2);
        assert_eq!(reconnect.gives_up_at(), Some(START + DELAY * 11));
        assert_eq!(reconnect.fails_fast_at(), Some(START + DELAY * 4));
        reconnect.succeeded();
        assert_eq!((reconnect.gives_up_at(), reconnect.attempts()), (None, 0));
    }
}
