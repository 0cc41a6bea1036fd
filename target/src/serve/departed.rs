//! Namespaces which have gone lately, so that none takes the number of another before hosts have noticed: one which still
//! means the old one would write to the new one. A machine of versions and times.
use std::time::Duration;

use ironside_common::nvme::Nqn;
use ironside_common::time::Time;
use uuid::Uuid;

use crate::catalog::{Catalog, Namespace};

/// How long hosts have to notice that a namespace is gone.
const PAUSE: Duration = Duration::from_secs(2);

/// What went less than a pause ago.
#[derive(Debug, Default)]
pub(super) struct Departed {
    gone: Vec<Gone>,
}

#[derive(Debug)]
struct Gone {
    nqn: Nqn,
    nsid: u32,
    /// What hosts know data by. Its medium is not held on to.
    mark: Mark,
    at: Time,
}

/// UUID, NGUID and binary logarithm of the block size.
type Mark = (Uuid, Uuid, u8);

const fn mark(namespace: &Namespace) -> Mark {
    (namespace.uuid, namespace.nguid, namespace.block_shift)
}

impl Departed {
    /// `now` is the first moment at which `next` is served, and `before` no more.
    pub(super) fn note(&mut self, before: &Catalog, next: &Catalog, now: Time) {
        self.gone.retain(|one| now < one.at + PAUSE);
        for subsystem in before.subsystems() {
            let nqn = *subsystem.nqn();
            for namespace in subsystem.namespaces() {
                let (nsid, mark) = (namespace.nsid, mark(namespace));
                if mark_at(next, &nqn, nsid) != Some(mark) {
                    self.gone.push(Gone { nqn, nsid, mark, at: now });
                }
            }
        }
    }

    /// How long to wait before `next` may be served: nothing if no other namespace stands in it where one has gone.
    pub(super) fn pause_before(&self, next: &Catalog, now: Time) -> Duration {
        let is_taken = |one: &&Gone| mark_at(next, &one.nqn, one.nsid).is_some_and(|mark| mark != one.mark);
        let free_at = self.gone.iter().filter(is_taken).map(|one| one.at + PAUSE).max();
        free_at.map_or(Duration::ZERO, |at| at - now)
    }
}

fn mark_at(catalog: &Catalog, nqn: &Nqn, nsid: u32) -> Option<Mark> {
    Some(mark(catalog.subsystem(nqn)?.namespace(nsid)?))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::control::config::Config;
    use crate::control::prepare::prepare;

    fn uuid(digit: u8) -> String {
        format!("0000000{digit}-0000-4000-8000-000000000000")
    }

    /// One subsystem with a namespace 1 of this UUID and block size; none for `None`.
    fn catalog(namespace: Option<(u8, u32)>) -> Catalog {
        let namespace =
            namespace.map(|(digit, lba)| format!("{{ null = 8192, lba = {lba}, uuid = {:?} }}", uuid(digit)));
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "control = \"c\"\nstate-dir = {:?}\n[[subsystem]]\nnqn = \"nqn.2014-08.org.example:a\"\nallow-any-host = true\nnamespace = [{}]\n",
            directory.path(),
            namespace.unwrap_or_default()
        );
        Catalog::clone(&prepare(Config::parse(Path::new("x"), &text).unwrap()).unwrap().catalog)
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn another_waits_until_hosts_have_noticed_and_the_same_does_not() {
        let (one, none, other) = (catalog(Some((1, 4096))), catalog(None), catalog(Some((2, 4096))));
        let mut departed = Departed::default();
        departed.note(&one, &one, at(0));
        assert_eq!(departed.pause_before(&other, at(0)), Duration::ZERO, "nothing has gone");
        departed.note(&one, &none, at(1000));
        assert_eq!(departed.pause_before(&none, at(1000)), Duration::ZERO);
        assert_eq!(departed.pause_before(&one, at(1000)), Duration::ZERO, "it is the same data");
        assert_eq!(departed.pause_before(&other, at(1000)), Duration::from_secs(2));
        let otherwise = catalog(Some((1, 512)));
        assert_eq!(departed.pause_before(&otherwise, at(1500)), Duration::from_millis(1500));
        assert_eq!(departed.pause_before(&other, at(3000)), Duration::ZERO);
        departed.note(&none, &none, at(3000));
        assert!(departed.gone.is_empty(), "it is forgotten");
    }

    #[test]
    fn the_last_which_went_counts_and_a_subsystem_takes_its_namespaces_along() {
        let (one, none, other) = (catalog(Some((1, 4096))), catalog(None), catalog(Some((2, 4096))));
        let nothing = Catalog::new(1, Vec::new()).unwrap();
        let mut departed = Departed::default();
        departed.note(&one, &none, at(0));
        departed.note(&none, &one, at(500));
        departed.note(&one, &nothing, at(1000));
        assert_eq!(departed.pause_before(&other, at(1000)), Duration::from_secs(2));
        assert_eq!(departed.pause_before(&none, at(1000)), Duration::ZERO);
    }
}
