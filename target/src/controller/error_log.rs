//! The error information log: the last commands which failed.
use std::collections::VecDeque;

use ironside_common::nvme::Status;
use ironside_common::nvme::log_page::ErrorEntry;
use zerocopy::FromZeros;

/// Entries kept; ELPE is one less.
pub(super) const ENTRIES: u8 = 64;

/// Parameter location: no field in particular.
const NO_LOCATION: u16 = 0xFFFF;

#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    /// Errors there ever were.
    count: u64,
    /// Newest first.
    entries: VecDeque<ErrorEntry>,
}

impl ErrorLog {
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &ErrorEntry> {
        self.entries.iter()
    }

    /// Errors of which nothing more is known.
    pub(super) const fn skip(&mut self, count: u64) {
        self.count += count;
    }

    pub(super) fn record(&mut self, sqid: u16, cid: u16, status: Status, nsid: u32) {
        self.count += 1;
        self.entries.truncate(usize::from(ENTRIES) - 1);
        self.entries.push_front(ErrorEntry {
            count: self.count.into(),
            sqid: sqid.into(),
            cid: cid.into(),
            status_field: status.to_field().into(),
            parameter_location: NO_LOCATION.into(),
            nsid: nsid.into(),
            ..ErrorEntry::new_zeroed()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_come_first() {
        let mut log = ErrorLog::default();
        for cid in 0..100 {
            log.record(0, cid, Status::INVALID_FIELD, 1);
        }
        assert_eq!((log.count(), log.entries().count()), (100, 64));
        assert!(log.entries().map(|entry| entry.cid.get()).eq((36..100).rev()));
        assert_eq!(log.entries().next().map(|entry| entry.count.get()), Some(100));
    }
}
