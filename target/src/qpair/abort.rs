//! Abort: a command which is to end early (NVM Express base specification, Abort command).
//!
//! What waits for its turn, for a buffer, for its other half or for blocks ends at once. What the fabric or the medium has is asked to
//! end, and does not go on once they are done with it: until then nobody can say what comes of it.
use ironside_common::nvme::{Status, io};
use ironside_common::verbs::{Kind, TargetVerbs};

use super::fused::Pairing;
use super::phase::{Active, Execution, Phase, Work};
use super::{Context, Qpair, Services};

/// Commands of a queue which are asked to end at a time: more than a controller lets be aborted at once (ACL).
const ABORTS_MAX: usize = 4;

/// What becomes of an Abort.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Aborting {
    /// The command is answered as aborted, or it is not there or cannot be.
    Known(bool),
    /// It will show: [`Qpair::aborted`], under this number.
    Later(u64),
}

/// A command which is to end, and whether it has, aborted or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unwanted {
    number: u64,
    aborted: Option<bool>,
}

impl Qpair {
    /// Ends a command, if that can be done.
    pub fn abort<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, cid: u16) -> Aborting {
        let count = u16::try_from(self.slots.len()).expect("slots are counted by a u16");
        let is_named = |slot: &u16| self.slots[usize::from(*slot)].phase.abortable_cid() == Some(cid);
        let Some(named) = (0..count).find(is_named) else { return Aborting::Known(false) };
        // The second of two fused commands is where the first is.
        let slot = match self.slots[usize::from(named)].phase {
            Phase::Second(_) => (0..count).find(|&slot| self.second_of(slot) == Some(named)).unwrap_or(named),
            _ => named,
        };
        let execution = match self.leave(slot) {
            Phase::AwaitBuffer(active) => Execution::new(active, (None, None)),
            Phase::Throttled(active) => {
                self.withdraw(cx, slot, &active);
                Execution::new(active, (None, None))
            }
            Phase::AwaitSecond(active) => {
                self.pairing = Pairing::Refused;
                Execution::new(active, (None, None))
            }
            Phase::Fenced(execution) | Phase::Claiming(execution) => execution,
            busy => {
                self.enter(slot, busy);
                return self.ask_to_end(cx, slot, named);
            }
        };
        for queue in [&mut self.await_buffer, &mut self.await_fetch, &mut self.await_fused, &mut self.fenced]
        {
            queue.retain(|&waiting| waiting != slot);
        }
        self.end_early(cx, (slot, named), execution);
        self.advance(cx);
        Aborting::Known(true)
    }

    /// Whether the command of this number was aborted, once it has ended.
    pub fn aborted(&mut self, number: u64) -> Option<bool> {
        let index = self.unwanted.iter().position(|unwanted| unwanted.number == number)?;
        let aborted = self.unwanted[index].aborted?;
        self.unwanted.swap_remove(index);
        Some(aborted)
    }

    /// The command of this number may go on after all.
    pub fn give_up_abort(&mut self, number: u64) {
        self.unwanted.retain(|unwanted| unwanted.number != number);
    }

    /// Which of the commands that this slot does the work of is to end, if any: it begins nothing any more.
    pub(super) fn unwanted_of(&self, slot: u16, second: Option<u16>) -> Option<u16> {
        [Some(slot), second].into_iter().flatten().find(|&slot| self.is_unwanted(slot))
    }

    /// A command has ended.
    pub(super) fn note_end(&mut self, slot: u16, aborted: bool) {
        let number = self.slots[usize::from(slot)].number;
        if let Some(unwanted) = self.unwanted.iter_mut().find(|unwanted| unwanted.number == number) {
            unwanted.aborted = Some(aborted);
        }
    }

    pub(super) fn is_unwanted(&self, slot: u16) -> bool {
        let number = self.slots[usize::from(slot)].number;
        self.unwanted.iter().any(|unwanted| unwanted.number == number && unwanted.aborted.is_none())
    }

    fn ask_to_end<V, S: Services>(&mut self, cx: &mut Context<'_, V, S>, slot: u16, named: u16) -> Aborting {
        if self.unwanted.len() == ABORTS_MAX || self.is_unwanted(named) {
            return Aborting::Known(false);
        }
        let number = self.slots[usize::from(named)].number;
        self.unwanted.push(Unwanted { number, aborted: None });
        if matches!(self.slots[usize::from(slot)].phase, Phase::Executing(_)) {
            cx.services.cancel(self.token(Kind::Medium, slot));
        }
        Aborting::Later(number)
    }

    /// The command `named` is aborted, and one which is fused with it fails.
    pub(super) fn end_early<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        (slot, named): (u16, u16),
        execution: Execution,
    ) {
        let status =
            |slot| if slot == named { Status::ABORT_REQUESTED } else { Status::ABORTED_FAILED_FUSED };
        match execution.active.second {
            Some(second) => self.finish_fused(cx, (slot, second), execution, [slot, second].map(status)),
            None => self.finish(cx, slot, execution, status(slot)),
        }
    }

    /// The slot of the second command, if this one is the first of two.
    fn second_of(&self, slot: u16) -> Option<u16> {
        match &self.slots[usize::from(slot)].phase {
            Phase::AwaitBuffer(active) | Phase::Throttled(active) => active.second,
            Phase::Fetching(execution) | Phase::Claiming(execution) | Phase::Executing(execution) => {
                execution.active.second
            }
            _ => None,
        }
    }
}

impl Phase {
    /// The identifier of a command which might still be ended. One that a controller or the keeper of reservations has
    /// cannot be.
    fn abortable_cid(&self) -> Option<u16> {
        let at_medium = |work: &Work| matches!(work, Work::Io(_, request) if !matches!(request, io::Request::Reservation(_)));
        match self {
            Self::AwaitBuffer(Active { cid, .. })
            | Self::Throttled(Active { cid, .. })
            | Self::AwaitSecond(Active { cid, .. })
            | Self::Second(Active { cid, .. }) => Some(*cid),
            Self::Fetching(execution) | Self::Claiming(execution) | Self::Fenced(execution) => {
                Some(execution.active.cid)
            }
            Self::Executing(execution) => {
                Some(execution.active.cid).filter(|_| at_medium(&execution.active.work))
            }
            Self::Free | Self::Held(_) | Self::AwaitSend(_) | Self::Responding(_) => None,
        }
    }
}
