//! Blocks which one command has for itself while it works on them in several steps: a fused Compare and Write is atomic
//! to every other command on the namespace, of any queue, host and reactor.
//!
//! Ordinary commands pay nothing for it: no lock, no atomic, only a look at a list which is empty. Who claims blocks asks
//! the reactor which keeps the order of that namespace's claims. It tells every reactor; each holds back what would come
//! upon these blocks, and says so once none of its commands is at them. When all have, the claim is granted. So a pair
//! costs two messages to each reactor and two back, and waits for what is under way on its own blocks.
use std::collections::VecDeque;

use ironside_common::time::Time;
use ironside_common::verbs::{Connections, QpHandle, TargetVerbs};
use uuid::Uuid;

use super::{Message, PollGroup, QueueName, Storage, handle};
use crate::qpair::Extent;

/// One use of a command slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CommandName {
    pub queue: QueueName,
    pub slot: u16,
    pub generation: u16,
}

/// Blocks, and the command which wants them for itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Claim {
    pub name: CommandName,
    pub extent: Extent,
}

/// A claim as a reactor knows it whose commands it holds back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    claim: Claim,
    /// None of our commands is at these blocks any more, and the keeper was told.
    is_clear: bool,
}

/// The claims on those namespaces which this reactor keeps the order of, oldest first.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    claims: VecDeque<Kept>,
}

#[derive(Debug)]
struct Kept {
    claim: Claim,
    /// Reactors which have not said that they are clear; nothing while an older claim is in the way.
    missing: Option<usize>,
}

impl Keeper {
    fn add(&mut self, claim: Claim) {
        self.claims.push_back(Kept { claim, missing: None });
    }

    /// The oldest claim with no other in its way, which `reactors` are to be told of now.
    fn begin(&mut self, reactors: usize) -> Option<Claim> {
        let is_free = |index: usize| {
            let extent = &self.claims[index].claim.extent;
            self.claims.iter().take(index).all(|older| !older.claim.extent.overlaps(extent))
        };
        let waits = |index: &usize| self.claims[*index].missing.is_none();
        let index = (0..self.claims.len()).filter(waits).find(|&index| is_free(index))?;
        self.claims[index].missing = Some(reactors);
        Some(self.claims[index].claim)
    }

    /// One more reactor is clear; says whether it was the last.
    fn cleared(&mut self, name: CommandName) -> bool {
        let kept = self.claims.iter_mut().find(|kept| kept.claim.name == name);
        // One that was given up meanwhile is not known any more.
        let Some(missing) = kept.and_then(|kept| kept.missing.as_mut()) else { return false };
        *missing -= 1;
        *missing == 0
    }

    /// Says whether the reactors were told of it.
    fn remove(&mut self, name: CommandName) -> bool {
        let index = self.claims.iter().position(|kept| kept.claim.name == name);
        index.and_then(|index| self.claims.remove(index)).is_some_and(|kept| kept.missing.is_some())
    }
}

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// Passes on what a queue pair has asked for while it was called.
    pub(super) fn pass_claims_on(&mut self, qp: QpHandle, generation: u32) {
        while let Some((token, extent, wanted)) = self.desk.claims.pop_front() {
            let queue = self.name(qp, generation);
            let name = CommandName { queue, slot: token.slot, generation: token.generation };
            let claim = Claim { name, extent };
            let message = if wanted { Message::Claim(claim) } else { Message::Release(claim) };
            self.send(self.keeper_of(extent.namespace), message);
        }
    }

    pub(super) fn on_claim(&mut self, claim: Claim) {
        self.keeper.add(claim);
        self.begin_claims();
    }

    pub(super) fn on_release(&mut self, claim: Claim) {
        if self.keeper.remove(claim.name) {
            self.tell_all(&Message::Resume(claim.name));
        }
        self.begin_claims();
    }

    fn begin_claims(&mut self) {
        while let Some(claim) = self.keeper.begin(self.settings.reactors) {
            self.tell_all(&Message::Hold(claim));
        }
    }

    /// A reactor has cleared the way for a claim.
    pub(super) fn on_clear(&mut self, name: CommandName) {
        if self.keeper.cleared(name) {
            self.send(name.queue.reactor, Message::Granted(name));
        }
    }

    pub(super) fn on_hold(&mut self, claim: Claim) {
        self.desk.held.push(Held { claim, is_clear: false });
    }

    /// Tells the keepers of what has become clear; says whether anything has.
    pub(super) fn check_claims(&mut self) -> bool {
        let mut busy = false;
        for index in 0..self.desk.held.len() {
            let Held { claim, is_clear } = self.desk.held[index];
            let mut connections = self.connections.iter().flatten();
            if is_clear || connections.any(|connection| connection.qpair.is_at(&claim.extent)) {
                continue;
            }
            busy = true;
            self.desk.held[index].is_clear = true;
            self.send(self.keeper_of(claim.extent.namespace), Message::Clear(claim.name));
        }
        busy
    }

    pub(super) fn on_granted(&mut self, now: Time, name: CommandName) {
        let CommandName { queue, slot, generation } = name;
        // A connection that has failed meanwhile has given the claim back.
        if self.named(queue).is_some_and(|connection| connection.qpair.claims(slot, generation)) {
            self.with_qpair(now, queue.qp, |qpair, cx| qpair.on_claimed(cx, slot));
        }
    }

    /// Lets those go on whom a claim has held back.
    pub(super) fn on_resume(&mut self, now: Time, name: CommandName) {
        self.desk.held.retain(|held| held.claim.name != name);
        for index in 0..self.connections.len() {
            let qp = handle(index);
            if self.connection(qp).is_some_and(|connection| connection.qpair.is_fenced()) {
                self.with_qpair(now, qp, |qpair, cx| qpair.on_released(cx));
            }
        }
    }

    fn keeper_of(&self, namespace: Uuid) -> usize {
        let reactors = self.settings.reactors as u128;
        usize::try_from(namespace.as_u128() % reactors).expect("reactors are few")
    }
}

impl Held {
    pub(super) fn overlaps(&self, extent: &Extent) -> bool {
        self.claim.extent.overlaps(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(slot: u16, start: u64, end: u64) -> Claim {
        let queue = QueueName { reactor: 0, qp: QpHandle(0), generation: 0 };
        let namespace = Uuid::from_u128(1);
        Claim { name: CommandName { queue, slot, generation: 0 }, extent: Extent { namespace, start, end } }
    }

    #[test]
    fn claims_on_the_same_blocks_take_turns_and_others_do_not_wait() {
        let mut keeper = Keeper::default();
        let [first, second, third, apart] =
            [claim(1, 0, 10), claim(2, 9, 20), claim(3, 15, 16), claim(4, 20, 30)];
        for claim in [first, second, third, apart] {
            keeper.add(claim);
        }
        assert_eq!(keeper.begin(2), Some(first));
        assert_eq!(keeper.begin(2), Some(apart), "nobody is in its way");
        assert_eq!(keeper.begin(2), None, "the third waits behind the second, which came first");
        assert!(!keeper.cleared(first.name) && keeper.cleared(first.name));
        assert!(!keeper.cleared(second.name), "which nobody was told of");
        assert!(keeper.remove(first.name));
        assert_eq!(keeper.begin(2), Some(second));
        assert!(!keeper.remove(third.name), "given up before anybody was told");
        assert!(keeper.remove(second.name));
        assert!(!keeper.cleared(second.name), "an answer on its way when it was given up");
        assert!(keeper.begin(2).is_none() && keeper.claims.len() == 1);
    }
}
