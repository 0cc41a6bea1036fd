//! How often commands of a queue failed, by their status. Failures are rare and of few kinds, so there is room for some
//! kinds, and all others are counted together: nothing is allocated for a failure.
use arrayvec::ArrayVec;
use ironside_common::nvme::Status;

/// Statuses which are counted apart.
const KINDS: usize = 16;

/// The failures of a queue, or of several.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    known: ArrayVec<(Status, u64), KINDS>,
    others: u64,
}

impl Errors {
    pub(super) fn note(&mut self, status: Status) {
        self.add(status, 1);
    }

    fn add(&mut self, status: Status, count: u64) {
        if let Some((_, known)) = self.known.iter_mut().find(|(known, _)| known.is(status)) {
            *known += count;
        } else if self.known.try_push((status, count)).is_err() {
            self.others += count;
        }
    }

    /// Adds those of another queue.
    pub fn join(&mut self, other: &Self) {
        for &(status, count) in &other.known {
            self.add(status, count);
        }
        self.others += other.others;
    }

    /// Each status and how often there was one; `None`: all those for which there was no room.
    pub fn iter(&self) -> impl Iterator<Item = (Option<Status>, u64)> {
        let known = self.known.iter().map(|&(status, count)| (Some(status), count));
        known.chain((self.others > 0).then_some((None, self.others)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_apart_as_long_as_there_is_room() {
        let mut errors = Errors::default();
        for code in 0..20 {
            errors.note(Status::from_field(code << 1 | 1 << 9));
            errors.note(Status::from_field(code << 1 | 1 << 9).with_dnr(true));
        }
        assert_eq!(errors.iter().count(), KINDS + 1);
        assert!(errors.iter().take(KINDS).all(|(status, count)| status.is_some() && count == 2));
        assert_eq!(errors.iter().last(), Some((None, 8)));
        let mut both = Errors::default();
        both.join(&errors);
        both.join(&errors);
        assert_eq!(both.iter().map(|(_, count)| count).sum::<u64>(), 80);
    }
}
