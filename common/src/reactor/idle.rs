//! When a loop with nothing to do keeps looking, and when it sleeps.
//!
//! Waking from a sleep takes far longer than a request, so a loop looks on for a while (spins) before it
//! sleeps. How long adapts: a sleep that ended soon should rather have been a spin, so the budget doubles;
//! one that lasted shows that spinning was in vain, so it halves. The budget is bounded, because a core
//! may be shared with the very process whose request is awaited.
use std::fmt;
use std::str::FromStr;
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

/// How a loop waits for work.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Poll {
    /// It never sleeps, but looks on for as long as it lives: no request waits for it to wake, at the price of a whole core.
    Always,
    /// It looks for as long as that pays, and then sleeps.
    #[default]
    Adaptive,
    /// It sleeps as soon as there is nothing to do.
    Never,
}

/// A text is none of the names of [`Poll`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is none of always, adaptive and never")]
pub struct PollError(String);

impl FromStr for Poll {
    type Err = PollError;

    fn from_str(text: &str) -> Result<Self, PollError> {
        let named =
            [Self::Always, Self::Adaptive, Self::Never].into_iter().find(|poll| poll.to_string() == text);
        named.ok_or_else(|| PollError(text.into()))
    }
}

impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Always => "always",
            Self::Adaptive => "adaptive",
            Self::Never => "never",
        })
    }
}

/// What to do after a turn without work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    Spin,
    Sleep,
}

/// The policy of one loop. A pure value: it is told the time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Idle {
    poll: Poll,
    budget: Duration,
    since: Option<Time>,
}

impl Idle {
    #[must_use]
    pub const fn new(poll: Poll) -> Self {
        Self { poll, budget: Duration::from_micros(50), since: None }
    }

    /// There was work in this turn.
    pub const fn worked(&mut self) {
        self.since = None;
    }

    /// There was no work in this turn.
    pub fn idled(&mut self, now: Time) -> Next {
        let since = *self.since.get_or_insert(now);
        let spins = match self.poll {
            Poll::Always => true,
            Poll::Adaptive => now - since < self.budget,
            Poll::Never => false,
        };
        if spins { Next::Spin } else { Next::Sleep }
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
        let mut idle = Idle::new(Poll::Adaptive);
        assert_eq!(spin(&mut idle, micros(0)), Duration::from_micros(50));
        idle.worked();
        assert_eq!(spin(&mut idle, micros(1000)), Duration::from_micros(50));
    }

    #[test]
    fn the_budget_grows_with_short_sleeps_and_shrinks_with_long_ones() {
        let mut idle = Idle::new(Poll::Adaptive);
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
        let mut idle = Idle::new(Poll::Adaptive);
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

    #[test]
    fn who_insists_gets_a_loop_that_never_sleeps_or_never_spins() {
        let (mut always, mut never) = (Idle::new(Poll::Always), Idle::new(Poll::Never));
        for now in [0, 1, 1_000_000_000] {
            assert_eq!((always.idled(micros(now)), never.idled(micros(now))), (Next::Spin, Next::Sleep));
        }
        for poll in [Poll::Always, Poll::Adaptive, Poll::Never] {
            assert_eq!(poll.to_string().parse(), Ok(poll));
        }
        let told = "often".parse::<Poll>().unwrap_err().to_string();
        assert_eq!(told, "`often` is none of always, adaptive and never");
    }
}
