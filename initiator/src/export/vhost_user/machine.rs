//! Which machine uses an attachment, written down beside it: whoever finds the attachment without its process knows by it
//! that a machine waits, and how it uses the volume's cache.
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::export::usage::Use;

/// A machine's process, which may have died since.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Machine {
    /// Zero if it is one of another container.
    pid: u32,
    /// When it began, in the kernel's ticks: a number may come to be another process's.
    began: u64,
    pub(super) writeback: bool,
}

/// The name of the record in an attachment's directory.
const RECORD: &str = "machine.json";

impl Machine {
    pub(super) fn of(pid: u32, writeback: bool) -> Self {
        Self { pid, began: began(pid).unwrap_or(0), writeback }
    }

    /// What is written down in an attachment's directory.
    #[must_use]
    pub fn read(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(directory.join(RECORD)).ok()?).ok()
    }

    /// Whether the guest wants the volume's cache used.
    #[must_use]
    pub const fn writeback(self) -> bool {
        self.writeback
    }

    pub(super) fn write(self, directory: &Path) -> io::Result<()> {
        let draft = directory.join("machine.json.new");
        fs::write(&draft, serde_json::to_vec(&self)?)?;
        fs::rename(draft, directory.join(RECORD))
    }

    pub(super) fn forget(directory: &Path) {
        // It may never have been written.
        let _ = fs::remove_file(directory.join(RECORD));
    }

    /// Who it is, if it lives. Of a process of another container that is not known, so it counts as alive.
    #[must_use]
    pub fn uses(self) -> Option<Use> {
        if self.pid == 0 {
            return Some(Use::Machine { pid: 0, name: String::new() });
        }
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid)).ok()?;
        let (pid, name) = (self.pid, name.trim().into());
        (began(pid) == Some(self.began)).then_some(Use::Machine { pid, name })
    }
}

/// When a process began: the 22nd field of its line (proc(5)), of which the second may hold anything.
fn began(pid: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    line.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_as_long_as_it_lives_and_no_other_for_it() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(Machine::read(place.path()), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let machine = Machine::of(child.id(), false);
        machine.write(place.path()).unwrap();
        let found = Machine::read(place.path()).unwrap();
        assert_eq!((found, found.writeback()), (machine, false));
        assert_eq!(found.uses(), Some(Use::Machine { pid: child.id(), name: "sleep".into() }));
        assert_eq!(Machine { began: machine.began + 1, ..machine }.uses(), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.uses(), None);
        assert!(Machine::of(0, true).uses().is_some(), "who knows");
        Machine::forget(place.path());
        assert_eq!(Machine::read(place.path()), None);
    }
}
