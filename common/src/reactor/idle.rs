//! When a loop with nothing to do keeps looking, and when it sleeps.
//!
//! Waking from a sleep takes far longer than a request, so a loop looks on for a while (spins) before it
//! sleeps. How long adapts: a sleep that ended soon should rather have been a spin, so the budget doubles;
//! one that lasted shows that spinning was in vain, so it halves. The budget is bounded, because a core
//! may be shared with the very process whose request is awaited.
use std::time::Duration;

use crate::time::Time;

/// The longest spin. About what a sleep and its wake-up cost.
const LONGEST: Duration = Duration::from_micros(200);
/// The shortest spin. A loop woken a hundred times a second spends less than a thousandth of a core on it.
const SHORTEST: Duration = Duration::from_micros(5);
/// A sleep shorter than this would better have been spent spinning.
const SHORT_SLEEP: Duration = LONGEST;
/// A sleep longer than this shows an idle time that no spin would have bridged.
const LONG_SLEEP: Duration = Duration::from_micros(800);

/// What to do after a turn without work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    Spin,
    Sleep,
}

/// The policy of one loop. A pure value: it is told the time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Idle {
    budget: Duration,
    since: Option<Time>,
}

impl Default for Idle {
    fn default() -> Self {
        Self { budget: Duration::from_micros(50), since: None }
    }
}

impl Idle {
    /// There was work in this turn.
    pub const fn worked(&mut self) {
        self.since = None;
    }

    /// There was no work in this turn.
    pub fn idled(&mut self, now: Time) -> Next {
        let since = *self.since.get_or_insert(now);
        if now - since < self.budget { Next::Spin } else { Next::Sleep }
    }

    /// A sleep is over.
    pub fn slept(&mut self, began: Time, ended: Time) {
        self.since = None;
        let lasted = ended - began;
        if lasted < SHORT_SLEEP {
            self.budget = (self.budget * 2).min(LONGEST);
        } else if lasted > LONG_SLEEP {
            self.budget = (self.budget / 2).max(SHORTEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    /// How long it spins from `from` on.
    fn spin(idle: &mut Idle, from: Time) -> Duration {
        let step = Duration::from_micros(1);
        let mut now = from;
        while idle.idled(now) == Next::Spin {
            now = now + step;
        }
        now - from
    }

    #[test]
    fn spinning_is_bounded_and_starts_anew_after_work() {
        let mut idle = Idle::default();
        assert_eq!(spin(&mut idle, micros(0)), Duration::from_micros(50));
        idle.worked();
        assert_eq!(spin(&mut idle, micros(1000)), Duration::from_micros(50));
    }

    #[test]
    fn the_budget_grows_with_short_sleeps_and_shrinks_with_long_ones() {
        let mut idle = Idle::default();
        for _ in 0..10 {
            idle.slept(micros(0), micros(100));
        }
        assert_eq!(spin(&mut idle, micros(0)), LONGEST);
        for _ in 0..10 {
            idle.slept(micros(0), micros(5000));
        }
        assert_eq!(spin(&mut idle, micros(0)), SHORTEST);
    }

    #[test]
    fn a_loop_with_rare_work_uses_less_than_a_hundredth_of_a_core() {
        let mut idle = Idle::default();
        let (mut now, mut busy) = (micros(0), Duration::ZERO);
        for _ in 0..1000 {
            let spun = spin(&mut idle, now);
            busy += spun;
            let (began, ended) = (now + spun, now + spun + Duration::from_millis(10));
            idle.slept(began, ended);
            now = ended;
        }
        assert!(busy * 1000 < now - micros(0), "{busy:?} of {:?}", now - micros(0));
    }
}
