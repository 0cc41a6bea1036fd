//! Deadlines as tenants keep them: plain values, looked at once a turn.
use crate::time::Time;

/// Something that falls due once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Timer {
    at: Option<Time>,
}

impl Timer {
    /// A timer which is not set.
    #[must_use]
    pub const fn unset() -> Self {
        Self { at: None }
    }

    /// Falls due at `at`, instead of when it was set for before.
    pub const fn set(&mut self, at: Time) {
        self.at = Some(at);
    }

    pub const fn clear(&mut self) {
        self.at = None;
    }

    /// When it falls due, if it is set.
    #[must_use]
    pub const fn deadline(&self) -> Option<Time> {
        self.at
    }

    /// Whether it has fallen due; if so it is unset, so that each setting is reported once.
    #[must_use]
    pub fn expired(&mut self, now: Time) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }
}

/// The earlier of two deadlines, either of which may not exist.
#[must_use]
pub fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_falls_due_once_for_each_setting() {
        let mut timer = Timer::unset();
        assert!(!timer.expired(Time::from_nanos(u64::MAX)));
        timer.set(Time::from_nanos(10));
        assert!(!timer.expired(Time::from_nanos(9)));
        assert_eq!(timer.deadline(), Some(Time::from_nanos(10)));
        assert!(timer.expired(Time::from_nanos(10)));
        assert!(!timer.expired(Time::from_nanos(11)));
    }

    #[test]
    fn the_earliest_of_deadlines_that_may_be_missing() {
        let (one, two) = (Some(Time::from_nanos(1)), Some(Time::from_nanos(2)));
        assert_eq!(earliest(two, one), one);
        assert_eq!(earliest(None, two), two);
        assert_eq!(earliest(None, None), None);
    }
}
