//! **A late write must not land after a newer one.** A write whose answer never came may still be executed by the target
//! that had it. If it were sent again at once, acknowledged, and its blocks written anew, the first one could end up on
//! top. So it waits until it cannot happen behind our back any more: until the target has to have given the old
//! association up, because no keep alive came; or, from a target which promises to end the writes of a host before it
//! lets that connect again, until then.
//!
//! Whoever is told that a write has failed may write the same blocks again. A host by itself then holds what is new until
//! the old one cannot happen any more. One of several hosts which share a volume, each on a core of its own, cannot hold
//! what the others send; so there it is the error that waits.
use std::time::Duration;

use super::Host;
use super::options::HostOptions;

/// What a target may take, beyond two keep alive timeouts, to end an association whose host has fallen silent. Two: with
/// traffic based keep alive a command at the beginning of one counts for the next.
const RESERVE: Duration = Duration::from_secs(2);

impl HostOptions {
    /// How long after the loss of its connection a write may be executed; nothing if nobody knows, for want of keep alive.
    #[must_use]
    pub fn fence(&self) -> Option<Duration> {
        let silence = self.keep_alive_tmo;
        (!silence.is_zero()).then(|| silence * 2 + RESERVE)
    }
}

impl Host {
    /// Whether the target, once it lets this host connect again, has ended all writes it still had of it.
    #[must_use]
    pub fn target_ends_writes(&self) -> bool {
        self.controller().is_some_and(|controller| controller.ends_writes)
    }
}
