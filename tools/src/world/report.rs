//! What worlds went through, added up over seeds.
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// What a world went through, to see that the seeds reach everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub succeeded: u64,
    pub failed: u64,
    pub breaks: u64,
    pub kills: u64,
    pub power_losses: u64,
    /// Times a block was taken by fused commands.
    pub taken: u64,
    /// Commands which reserved, and commands which reservations kept from their medium.
    pub reserved: u64,
    pub conflicts: u64,
    /// Times a command waited for its turn, as often as that was looked at.
    pub waited: u64,
    /// Hosts which were removed.
    pub removed: u64,
    /// Times somebody came to others who took what they could.
    pub feasts: u64,
    /// Simulated time.
    pub elapsed: Duration,
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.breaks += other.breaks;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.taken += other.taken;
        self.reserved += other.reserved;
        self.conflicts += other.conflicts;
        self.waited += other.waited;
        self.removed += other.removed;
        self.feasts += other.feasts;
        self.elapsed += other.elapsed;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { succeeded, failed, breaks, kills, power_losses, .. } = self;
        let Self { taken, reserved, conflicts, waited, removed, feasts, elapsed, .. } = self;
        write!(f, "{succeeded} requests succeeded and {failed} failed, {breaks} links broke, ")?;
        write!(f, "the target was killed {kills} times, {power_losses} of them by a loss of power, ")?;
        write!(f, "a block was taken {taken} times, {reserved} commands reserved, ")?;
        write!(
            f,
            "{conflicts} were in conflict, limits held {waited} times, {removed} hosts were removed, {feasts} feasts were held, in {} simulated seconds",
            elapsed.as_secs()
        )
    }
}
