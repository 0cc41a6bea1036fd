//! Commands which wait for their turn under a limit: of their namespace, or of this queue's host. They wait before they
//! have a buffer or a credit, and hold nothing but their slot, and the receive if their data lies in it.
use ironside_common::nvme::{Status, io};
use ironside_common::verbs::{Kind, TargetVerbs};

use super::phase::{Active, Phase, Work};
use super::{Context, Qpair, Services};
use crate::throttle::Cost;

impl Qpair {
    /// Whether its host is limited from now on, whatever the namespace.
    pub fn set_limited(&mut self, limited: bool) {
        self.limited = limited;
    }

    /// Whether this use of the slot waits for its turn.
    pub fn is_throttled(&self, slot: u16, generation: u16) -> bool {
        self.slots
            .get(usize::from(slot))
            .is_some_and(|slot| slot.generation == generation && matches!(slot.phase, Phase::Throttled(_)))
    }

    /// The turn of this command has come.
    pub fn on_turn<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, slot: u16) {
        self.take_turn(cx, slot);
        self.advance(cx);
    }

    /// Nobody has to wait for a turn any more: the queue comes to its end.
    pub fn unthrottle<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>) {
        for slot in self.throttled() {
            self.take_turn(cx, slot);
        }
        self.advance(cx);
    }

    /// What an I/O command has to wait for a turn for, if it has to.
    pub(super) fn limited_cost(&self, active: &Active, second: Option<&Active>) -> Option<Cost> {
        let namespace = active.namespace()?;
        if !namespace.limited && !self.limited {
            return None;
        }
        let (first, second) = (cost(active)?, second.and_then(cost).unwrap_or_default());
        Some(Cost {
            commands: first.commands + second.commands,
            read: first.read + second.read,
            write: first.write + second.write,
        })
    }

    /// The command waits for its turn.
    pub(super) fn throttle<V, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        slot: u16,
        active: Active,
        cost: Cost,
    ) {
        let namespace = active.namespace().expect("only I/O commands are limited").uuid;
        cx.services.await_turn(self.token(Kind::Medium, slot), namespace, cost);
        self.enter(slot, Phase::Throttled(active));
    }

    /// It waits no more, though its turn has not come.
    pub(super) fn withdraw<V, S: Services>(&self, cx: &mut Context<'_, V, S>, slot: u16, active: &Active) {
        let namespace = active.namespace().expect("only I/O commands are limited").uuid;
        cx.services.give_up_turn(self.token(Kind::Medium, slot), namespace);
    }

    /// Ends those which would be refused at the medium, which may not be for long.
    pub fn end_barred<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>) {
        for slot in self.throttled() {
            let Phase::Throttled(active) = &self.slots[usize::from(slot)].phase else {
                unreachable!("just seen")
            };
            let barred = |slot, active| self.no_way(active).or_else(|| self.barred(slot, active));
            let second = active.second.and_then(|slot| match &self.slots[usize::from(slot)].phase {
                Phase::Second(active) => barred(slot, active),
                _ => None,
            });
            let Some(status) = barred(slot, active).or(second) else { continue };
            let is_pair = active.second.is_some();
            self.withdraw(cx, slot, active);
            if is_pair {
                // The pair goes on, up to where it is refused as a whole.
                self.take_turn(cx, slot);
            } else {
                self.end_throttled(cx, slot, status);
            }
        }
        self.advance(cx);
    }

    fn end_throttled<V: TargetVerbs, S>(&mut self, cx: &mut Context<'_, V, S>, slot: u16, status: Status) {
        let Phase::Throttled(active) = self.leave(slot) else { unreachable!("just seen") };
        self.answer(cx, slot, active, (status, 0), None, None);
    }

    fn take_turn<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, slot: u16) {
        let Phase::Throttled(active) = self.leave(slot) else { unreachable!("it waits for its turn") };
        if active.second.is_some() {
            self.begin_fused(slot, active);
        } else {
            self.begin(cx, slot, active);
        }
    }

    fn throttled(&self) -> impl Iterator<Item = u16> + use<> {
        let is_throttled = |slot: &u16| matches!(self.slots[usize::from(*slot)].phase, Phase::Throttled(_));
        let count = u16::try_from(self.slots.len()).expect("slots are counted by a u16");
        (0..count).filter(is_throttled).collect::<Vec<_>>().into_iter()
    }
}

/// What a command asks for; nothing if it is never limited. A Flush is not: it moves nothing, and what hosts order by it
/// shall not wait behind what they do not. How much a Copy moves shows only later: it counts as the largest.
fn cost(active: &Active) -> Option<Cost> {
    let Work::Io(namespace, request) = &active.work else { return None };
    let bytes = |blocks| namespace.bytes(blocks);
    let (read, write) = match *request {
        io::Request::Read { blocks, .. }
        | io::Request::Compare { blocks, .. }
        | io::Request::Verify { blocks, .. } => (bytes(blocks), 0),
        io::Request::Write { blocks, .. } => (0, bytes(blocks)),
        io::Request::Copy { .. } => {
            let most = bytes(namespace.geometry.copy_blocks());
            (most, most)
        }
        io::Request::WriteZeroes { .. } | io::Request::DatasetManagement { .. } => (0, 0),
        io::Request::Flush | io::Request::Reservation(_) | io::Request::Unknown(_) => return None,
    };
    Some(Cost { commands: 1, read, write })
}
