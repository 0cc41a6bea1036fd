//! Authenticating again while the association stands: by other secrets than before, or because the controller wants it.
//! Queue after queue, the admin queue first, goes through DH-HMAC-CHAP once more, while commands go on. What was proven
//! before holds until the controller ends the connection; a controller which no longer proves itself is left.
use std::sync::Arc;

use ironside_common::auth::{HostError, Keys};
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, HostVerbs};

use super::authentication::Authentication;
use super::error::ConnectError;
use super::queue::Refusal;
use super::setup::Ask;
use super::{Fault, Host, HostEvent, Owner, Phase};

/// Where the numbers of transactions begin which are not those of connecting.
const FIRST_TRANSACTION: u16 = 256;

/// What a live association knows of it.
#[derive(Debug)]
pub(super) struct Reauthentication {
    /// The controller asked for authentication when it was connected to.
    is_possible: bool,
    /// It is to be begun, once what is under way has ended.
    is_due: bool,
    under_way: Option<Box<UnderWay>>,
    next_transaction: u16,
}

#[derive(Debug)]
struct UnderWay {
    keys: Arc<Keys>,
    of_queue: Authentication,
    /// A message is with the controller.
    awaits_answer: bool,
}

impl Reauthentication {
    pub(super) const fn new(is_possible: bool, is_due: bool) -> Self {
        Self { is_possible, is_due, under_way: None, next_transaction: FIRST_TRANSACTION }
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    pub(super) fn machine(&mut self) -> Option<&mut Authentication> {
        self.under_way.as_mut().map(|under_way| &mut under_way.of_queue)
    }

    fn transaction(&mut self) -> u16 {
        let number = self.next_transaction;
        self.next_transaction = number.checked_add(1).unwrap_or(FIRST_TRANSACTION);
        number
    }
}

impl Host {
    /// Every connection made from now on authenticates by these secrets. An association which stands and had to
    /// authenticate does so again, beside its commands: [`HostEvent::Reauthenticated`],
    /// [`HostEvent::ReauthenticationFailed`] or [`HostEvent::Lost`] follows. Whether there is such an association.
    pub fn rekey(&mut self, keys: Arc<Keys>) -> bool {
        self.options.keys = Some(keys);
        self.authenticate_again()
    }

    /// Whether it will.
    pub(super) fn authenticate_again(&mut self) -> bool {
        let Phase::Live(live) = &mut self.phase else { return false };
        let again = &mut live.reauthentication;
        again.is_due |= again.is_possible && live.close_by.is_none();
        again.is_due
    }

    /// The controller will have nothing of a command before it knows its host. Other secrets are not needed for that.
    pub(super) fn on_unauthenticated(&mut self) {
        let is_idle = matches!(&self.phase, Phase::Live(live) if !live.reauthentication.is_under_way());
        if is_idle {
            self.authenticate_again();
        }
    }

    /// Sends the next message, if there is room for it. Commands go on, so it takes its place before them.
    pub(super) fn send_authentication<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        now: Time,
    ) -> bool {
        let Phase::Live(live) = &mut self.phase else { return false };
        let again = &mut live.reauthentication;
        if again.under_way.is_none() && std::mem::take(&mut again.is_due) {
            let Some(keys) = self.options.keys.clone() else { return false };
            let of_queue = Authentication::new(&self.options, &keys, 0, again.transaction());
            again.under_way = Some(Box::new(UnderWay { keys, of_queue, awaits_answer: false }));
        }
        let Some(under_way) = again.under_way.as_mut().filter(|one| !one.awaits_answer) else { return false };
        let Ask::Command { queue, command, payload } = under_way.of_queue.ask() else { return false };
        if !self.queues[usize::from(queue)].has_room() {
            return false;
        }
        under_way.awaits_answer = true;
        let data = self.payload(self.scratch.authentication, &payload);
        self.queues[usize::from(queue)].submit(verbs, command, data, Owner::Authentication, now);
        true
    }

    /// A message was answered.
    pub(super) fn on_authentication<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        result: Result<u64, Refusal>,
        now: Time,
    ) {
        self.memory.read(self.scratch.authentication, &mut self.page[..]);
        let Phase::Live(live) = &mut self.phase else { return };
        let again = &mut live.reauthentication;
        let Some(mut under_way) = again.under_way.take() else { return };
        under_way.awaits_answer = false;
        match under_way.of_queue.answered(result, &self.page[..]) {
            Ok(false) => again.under_way = Some(under_way),
            Ok(true) => {
                let next = under_way.of_queue.queue() + 1;
                if usize::from(next) == self.queues.len() {
                    return self.events.push_back(HostEvent::Reauthenticated { queues: next });
                }
                let transaction = again.transaction();
                under_way.of_queue = Authentication::new(&self.options, &under_way.keys, next, transaction);
                again.under_way = Some(under_way);
            }
            // Whether it is the controller we take it for, is not known any more.
            Err(ConnectError::Authentication { error, .. }) if !matches!(error, HostError::Refused(_)) => {
                self.lose(verbs, Fault::Authentication(error), now);
            }
            Err(error) => self.events.push_back(HostEvent::ReauthenticationFailed(error)),
        }
    }
}
