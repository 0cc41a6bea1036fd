//! Compare and Write, fused: two commands which follow each other on a queue and are one to everybody else (NVM Express
//! base specification 2.2, section 3.4.2; NVM command set specification 1.2, section 2.1.3).
//!
//! The first waits for the second. From then on the first does the work of both: it leases room for what is compared,
//! written and read in one piece, fetches, claims its blocks, so that no command of any queue is or comes upon them,
//! reads, compares and writes. The second holds its slot until both are answered.
use ironside_common::memory::Lease;
use ironside_common::nvme::{Command, DataPointer, Status, io};
use ironside_common::verbs::{Kind, Received, Sge, TargetVerbs};

use super::phase::{Active, Execution, Phase, Work};
use super::{Context, Qpair, Services, execute};
use crate::backend::Operation;

/// Most bytes of a fused Compare and Write. A third of this, and so the whole with its three copies, has to fit a buffer
/// that is not scarce.
pub const FUSED_MAX: u32 = 16 << 10;

/// FUSE of a command (bits 1:0 of its flags).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fuse {
    Alone,
    First,
    Second,
}

impl Fuse {
    pub(super) const fn of(command: &Command) -> Option<Self> {
        match command.fuse() {
            0 => Some(Self::Alone),
            1 => Some(Self::First),
            2 => Some(Self::Second),
            _ => None,
        }
    }
}

/// What the next command of a queue may be the second of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Pairing {
    #[default]
    None,
    /// A first command waits in this slot.
    Waits(u16),
    /// The first was refused; the second is owed an answer of its own.
    Refused,
}

/// What a pair does next, as the steps of its execution count.
const FETCH_COMPARED: u32 = 0;
const FETCH_WRITTEN: u32 = 1;
const CLAIM: u32 = 2;
const READ: u32 = 3;
const WRITE: u32 = 4;

impl Qpair {
    /// Takes note of a command in the order of its queue, before it is looked at. Says which first command it is the
    /// second of, if of any; one that has waited for another is answered.
    ///
    /// # Errors
    /// What to answer a second command whose first did not come, or was refused.
    pub(super) fn pair<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        fuse: Fuse,
    ) -> Result<Option<u16>, Status> {
        match (std::mem::take(&mut self.pairing), fuse) {
            (Pairing::Waits(first), Fuse::Second) => Ok(Some(first)),
            (Pairing::Refused, Fuse::Second) => Err(Status::ABORTED_FAILED_FUSED),
            (Pairing::None, Fuse::Second) => Err(Status::ABORTED_MISSING_FUSED),
            (Pairing::Waits(first), _) => {
                self.refuse_first(cx, first, Status::ABORTED_MISSING_FUSED);
                Ok(None)
            }
            (Pairing::None | Pairing::Refused, _) => Ok(None),
        }
    }

    /// The first command is well-formed: it waits for the one behind it.
    pub(super) fn accept_first(&mut self, slot: u16, active: Active) {
        self.enter(slot, Phase::AwaitSecond(active));
        self.pairing = Pairing::Waits(slot);
    }

    /// Ends a first command which has no second, or whose second is refused.
    pub(super) fn refuse_first<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        first: u16,
        status: Status,
    ) {
        let Phase::AwaitSecond(active) = self.leave(first) else { unreachable!("it waits for its second") };
        self.answer(cx, first, active, (status, 0), None, None);
    }

    /// Both are here and well-formed by themselves.
    pub(super) fn accept_second<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        (first, second): (u16, u16),
        active: Active,
    ) {
        let Phase::AwaitSecond(mut compare) = self.leave(first) else {
            unreachable!("it waits for this one")
        };
        if let Err(status) = fit(&compare.work, &active.work, cx.pool.largest()) {
            self.answer(cx, first, compare, (status, 0), None, None);
            return self.answer(cx, second, active, (status, 0), None, None);
        }
        compare.second = Some(second);
        let cost = self.limited_cost(&compare, Some(&active));
        self.enter(second, Phase::Second(active));
        match cost {
            Some(cost) => self.throttle(cx, first, compare, cost),
            None => self.begin_fused(first, compare),
        }
    }

    /// A pair may go on.
    pub(super) fn begin_fused(&mut self, slot: u16, active: Active) {
        self.enter(slot, Phase::AwaitBuffer(active));
        self.await_fused.push_back(slot);
    }

    /// A buffer for all there is to hold, and credits to fetch with, are free.
    pub(super) fn start_fused<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>) {
        while let Some(&slot) = self.await_fused.front() {
            let Phase::AwaitBuffer(active) = &self.slots[usize::from(slot)].phase else {
                unreachable!("only commands without a buffer wait for one");
            };
            if self.send_credits == 0 || self.read_credits == 0 {
                return;
            }
            let need = execute::need(active).expect("a pair needs room");
            let Some(room) = self.room(cx, need) else { return };
            self.await_fused.pop_front();
            let Phase::AwaitBuffer(active) = self.leave(slot) else { unreachable!("just seen") };
            self.execute(cx, slot, Execution::new(active, room));
        }
    }

    /// The next step of a pair.
    pub(super) fn execute_fused<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        slot: u16,
        second: u16,
        mut execution: Execution,
    ) {
        if execution.step <= WRITE
            && let Some(named) = self.unwanted_of(slot, Some(second))
        {
            return self.end_early(cx, (slot, named), execution);
        }
        let Work::Io(namespace, io::Request::Compare { lba, blocks, .. }) = &execution.active.work else {
            unreachable!("the first of a pair is a Compare");
        };
        let (medium, length) = (namespace.medium, namespace.bytes(*blocks));
        let offset = namespace.geometry.bytes(*lba);
        let room = |part: u32| lease(&execution).slice(part * length, length);
        let (compared, written, read) = (room(0), room(1), room(2));
        let token = self.token(Kind::Medium, slot);
        let barred = || self.barred(second, self.second(second));
        let refusal = match execution.step {
            READ => self.no_way(&execution.active).or_else(barred),
            WRITE => barred(),
            _ => None,
        };
        if let Some(status) = refusal {
            return self.fail_fused(cx, (slot, second), execution, status);
        }
        match execution.step {
            FETCH_COMPARED | FETCH_WRITTEN => {
                let (into, active) = match execution.step {
                    FETCH_COMPARED => (compared, &execution.active),
                    _ => (written, self.second(second)),
                };
                let (pointer, message) = (active.pointer, active.message.as_ref());
                let fetches = bring(cx, pointer, message, into);
                execution.step += 1;
                if let Some(remote) = fetches {
                    self.send_credits -= 1;
                    self.read_credits -= 1;
                    cx.verbs.post_fetch(self.handle, self.token(Kind::Fetch, slot), remote, into);
                    return self.enter(slot, Phase::Fetching(execution));
                }
                self.execute(cx, slot, execution);
            }
            CLAIM => {
                let extent = execution.active.extent().expect("it has blocks");
                execution.step = READ;
                self.enter(slot, Phase::Claiming(execution));
                cx.services.claim(token, extent);
            }
            READ => {
                self.enter(slot, Phase::Executing(execution));
                cx.services.submit(token, medium, Operation::Read { offset, into: read });
            }
            WRITE if execute::equal(cx.memory, compared, read) => {
                let Work::Io(_, io::Request::Write { fua, .. }) = self.second(second).work else {
                    unreachable!("the second of a pair is a Write");
                };
                self.enter(slot, Phase::Executing(execution));
                cx.services.submit(token, medium, Operation::Write { offset, from: written, fua });
            }
            WRITE => {
                let failed = [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED];
                self.finish_fused(cx, (slot, second), execution, failed);
            }
            _ => self.finish_fused(cx, (slot, second), execution, [Status::SUCCESS; 2]),
        }
    }

    /// The blocks are this pair's alone.
    pub fn on_claimed<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, slot: u16) {
        let Phase::Claiming(execution) = self.leave(slot) else {
            unreachable!("only who waits for blocks is given them");
        };
        self.execute(cx, slot, execution);
        self.advance(cx);
    }

    /// Whether this use of the slot waits for blocks it has claimed.
    pub fn claims(&self, slot: u16, generation: u16) -> bool {
        self.slots
            .get(usize::from(slot))
            .is_some_and(|slot| slot.generation == generation && matches!(slot.phase, Phase::Claiming(_)))
    }

    /// The medium failed one of the two: a pair whose Compare fails writes nothing.
    pub(super) fn fail_fused<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        pair: (u16, u16),
        execution: Execution,
        status: Status,
    ) {
        let statuses = match execution.step {
            READ if status.is(Status::ABORT_REQUESTED) && self.is_unwanted(pair.1) => {
                [Status::ABORTED_FAILED_FUSED, status]
            }
            READ => [status, Status::ABORTED_FAILED_FUSED],
            _ => [Status::SUCCESS, status],
        };
        self.finish_fused(cx, pair, execution, statuses);
    }

    pub(super) fn finish_fused<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        (first, second): (u16, u16),
        execution: Execution,
        [compare, write]: [Status; 2],
    ) {
        if execution.step > CLAIM {
            self.release_claim(cx, first, &execution.active);
        }
        self.answer(cx, first, execution.active, (compare, 0), None, None);
        let Phase::Second(active) = self.leave(second) else { unreachable!("it waits for the first") };
        self.answer(cx, second, active, (write, 0), None, None);
    }

    /// The blocks which a pair has claimed are everybody's again.
    pub(super) fn release_claim<V, S: Services>(
        &self,
        cx: &mut Context<'_, V, S>,
        slot: u16,
        active: &Active,
    ) {
        let extent = active.extent().expect("a pair has blocks");
        cx.services.release(self.token(Kind::Medium, slot), extent);
    }

    fn second(&self, slot: u16) -> &Active {
        match &self.slots[usize::from(slot)].phase {
            Phase::Second(active) => active,
            other => unreachable!("the second of a pair is {other:?}"),
        }
    }
}

/// Whether the two go together: a Compare and a Write of the same blocks, which are not too many.
fn fit(first: &Work, second: &Work, longest: u32) -> Result<(), Status> {
    let (Work::Io(here, io::Request::Compare { lba, blocks, .. }), Work::Io(there, second)) = (first, second)
    else {
        return Err(Status::INVALID_FIELD);
    };
    let io::Request::Write { lba: second_lba, blocks: second_blocks, .. } = second else {
        return Err(Status::INVALID_FIELD);
    };
    if (here.nsid, lba, blocks) != (there.nsid, second_lba, second_blocks) {
        return Err(Status::INVALID_FIELD);
    }
    if here.bytes(*blocks) > FUSED_MAX.min(longest / 3) {
        return Err(Status::ATOMIC_WRITE_UNIT_EXCEEDED);
    }
    Ok(())
}

fn lease(execution: &Execution) -> Sge {
    execution.data.as_ref().map(Lease::sge).expect("a pair leased room for all of its data")
}

/// Copies data which came in the capsule; else says where it is to be fetched from.
fn bring<V: TargetVerbs, S>(
    cx: &Context<'_, V, S>,
    pointer: DataPointer,
    message: Option<&Received>,
    into: Sge,
) -> Option<ironside_common::verbs::Remote> {
    match (pointer, message) {
        (DataPointer::Keyed { remote, .. }, _) => Some(remote),
        (DataPointer::InCapsule { offset, length }, Some(message)) => {
            let from = execute::in_capsule(cx.verbs, message, offset, length);
            cx.memory.copy(from, into);
            None
        }
        _ => unreachable!("a Compare and a Write have data"),
    }
}
