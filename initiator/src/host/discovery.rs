//! Reading the discovery log page so that it is consistent: its header, its entries, and its header again. If
//! the log changed meanwhile, all over.
use ironside_common::nvme::admin::GetLogPage;
use ironside_common::nvme::discovery::{self, Entry, Header};
use ironside_common::nvme::log_page::LogPageId;

use super::error::ConnectError;
use super::namespace::IDENTIFY_LENGTH;
use super::scan::Query;

/// Entries read at most, so that a number from the wire never asks for all our memory.
const ENTRIES_MAX: u64 = 4096;
/// How often the log may change while it is read.
const ATTEMPTS_MAX: u32 = 10;
const HEADER_LENGTH: u32 = Header::SIZE as u32;
const ENTRY_LENGTH: u32 = Entry::SIZE as u32;
/// Entries that fit one read.
const ENTRIES_PER_READ: u64 = 4;

/// What a discovery controller knows.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DiscoveryLog {
    /// Another one says that something has changed.
    pub generation: u64,
    pub entries: Vec<Entry>,
}

/// How far the reader is.
#[derive(Debug)]
pub(super) enum Progress {
    More,
    Complete(DiscoveryLog),
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct LogReader {
    attempts: u32,
    /// What the header said when this attempt began.
    header: Option<(u64, u64)>,
    entries: Vec<Entry>,
}

impl LogReader {
    pub(super) const fn new() -> Self {
        Self { attempts: 1, header: None, entries: Vec::new() }
    }

    /// What to read next.
    pub(super) fn query(&self) -> Query {
        let done = self.entries.len() as u64;
        let (offset, length) = match self.header {
            Some((_, records)) if done < records => {
                let count = (records - done).min(ENTRIES_PER_READ) as u32;
                (u64::from(HEADER_LENGTH) + done * u64::from(ENTRY_LENGTH), count * ENTRY_LENGTH)
            }
            _ => (0, HEADER_LENGTH),
        };
        let log = GetLogPage { offset, ..GetLogPage::new(LogPageId::DISCOVERY, 0, length) };
        Query { command: log.to_command(0), length }
    }

    /// What was asked for has been read.
    ///
    /// # Errors
    /// If the log never stands still.
    pub(super) fn answered(&mut self, data: &[u8; IDENTIFY_LENGTH]) -> Result<Progress, ConnectError> {
        let Some((generation, records)) = self.header else {
            self.begin(data);
            return Ok(Progress::More);
        };
        let missing = records - self.entries.len() as u64;
        if missing > 0 {
            let count = missing.min(ENTRIES_PER_READ) as usize;
            self.entries.extend(discovery::entries(data).take(count));
            return Ok(Progress::More);
        }
        if header(data).0 == generation {
            let entries = std::mem::take(&mut self.entries);
            return Ok(Progress::Complete(DiscoveryLog { generation, entries }));
        }
        if self.attempts == ATTEMPTS_MAX {
            return Err(ConnectError::UnsteadyLog);
        }
        self.attempts += 1;
        self.begin(data);
        Ok(Progress::More)
    }

    fn begin(&mut self, data: &[u8; IDENTIFY_LENGTH]) {
        self.header = Some(header(data));
        self.entries.clear();
    }
}

/// Generation and number of records.
fn header(data: &[u8; IDENTIFY_LENGTH]) -> (u64, u64) {
    let header = Header::parse(data).expect("a page holds a header");
    (header.generation.get(), header.records.get().min(ENTRIES_MAX))
}
