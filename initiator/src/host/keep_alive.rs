//! Keep-alive: the controller hears of us twice in its timeout, and if it does not answer within one, the
//! connection is as good as lost.
use std::time::Duration;

use ironside_common::time::Time;

/// The timer of one association.
#[derive(Debug)]
pub(super) struct KeepAlive {
    timeout: Duration,
    /// When the next one is to be sent.
    next: Time,
    /// When the one not answered yet was sent.
    unanswered: Option<Time>,
}

impl KeepAlive {
    /// Starts now. A `timeout` of zero switches it off.
    pub(super) fn new(timeout: Duration, now: Time) -> Self {
        Self { timeout, next: now + timeout / 2, unanswered: None }
    }

    /// Whether one is to be sent now; it counts as sent.
    pub(super) fn poll(&mut self, now: Time) -> bool {
        let due = !self.timeout.is_zero() && self.unanswered.is_none() && now >= self.next;
        if due {
            self.unanswered = Some(now);
            self.next = now + self.timeout / 2;
        }
        due
    }

    pub(super) fn answered(&mut self) {
        self.unanswered = None;
    }

    /// Whether the controller has been silent for too long.
    pub(super) fn is_expired(&self, now: Time) -> bool {
        self.unanswered.is_some_and(|sent| now.since(sent) >= self.timeout)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self.unanswered {
            _ if self.timeout.is_zero() => None,
            Some(sent) => Some(sent + self.timeout),
            None => Some(self.next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1_000);
    const TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn one_is_due_every_half_timeout() {
        let mut timer = KeepAlive::new(TIMEOUT, START);
        assert!(!timer.poll(START));
        let first = timer.deadline().unwrap();
        assert_eq!(first.since(START), TIMEOUT / 2);
        assert!(timer.poll(first));
        timer.answered();
        assert!(!timer.poll(first));
        assert!(timer.poll(timer.deadline().unwrap()));
    }

    #[test]
    fn silence_expires_it() {
        let mut timer = KeepAlive::new(TIMEOUT, START);
        let sent = timer.deadline().unwrap();
        assert!(timer.poll(sent));
        assert!(!timer.poll(sent + TIMEOUT), "one at a time");
        assert!(!timer.is_expired(sent + TIMEOUT / 2));
        assert_eq!(timer.deadline(), Some(sent + TIMEOUT));
        assert!(timer.is_expired(sent + TIMEOUT));
    }

    #[test]
    fn no_timeout_switches_it_off() {
        let mut timer = KeepAlive::new(Duration::ZERO, START);
        assert!(!timer.poll(START + TIMEOUT) && !timer.is_expired(START + TIMEOUT));
        assert_eq!(timer.deadline(), None);
    }
}
