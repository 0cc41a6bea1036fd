//! The Timestamp feature: milliseconds which a host has set, or which have gone since the controller was made (NVM Express
//! base specification, Timestamp).
use ironside_common::time::Time;

/// Its 48 bits of milliseconds.
const MILLISECONDS: u64 = (1 << 48) - 1;
/// Timestamp Origin, in bits 3:1 of byte 6: set by Set Features.
const SET_BY_HOST: u8 = 0b001 << 1;

/// What it was set to, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timestamp {
    value_ms: u64,
    since: Time,
    is_set: bool,
}

impl Timestamp {
    /// That of a controller made now.
    pub(super) const fn new(now: Time) -> Self {
        Self { value_ms: 0, since: now, is_set: false }
    }

    /// What the host brought; it keeps only the milliseconds.
    pub(super) fn set(&mut self, now: Time, data: [u8; 8]) {
        *self = Self { value_ms: u64::from_le_bytes(data) & MILLISECONDS, since: now, is_set: true };
    }

    /// As the host reads it. It has counted without a stop.
    pub(super) fn read(&self, now: Time) -> [u8; 8] {
        let gone_ms = u64::try_from(now.since(self.since).as_millis()).unwrap_or(u64::MAX);
        let mut data = (self.value_ms.wrapping_add(gone_ms) & MILLISECONDS).to_le_bytes();
        data[6] = if self.is_set { SET_BY_HOST } else { 0 };
        data
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_counts_from_what_it_was_set_to() {
        let start = Time::from_nanos(1 << 50);
        let mut timestamp = Timestamp::new(start);
        let later = start + Duration::from_millis(70_000);
        assert_eq!(timestamp.read(later), [0x70, 0x11, 1, 0, 0, 0, 0, 0]);
        timestamp.set(later, [0xFF; 8]);
        assert_eq!(timestamp.read(later), [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2, 0]);
        assert_eq!(timestamp.read(later + Duration::from_millis(3)), [2, 0, 0, 0, 0, 0, 2, 0]);
    }
}
