//! How a command comes in: looked at once and whole, in the order of its queue.
use std::rc::Rc;

use ironside_common::nvme::{Command, DataPointer, FabricsType, Status, admin, io};
use ironside_common::verbs::{Received, TargetVerbs};

use super::fused::{Fuse, Pairing};
use super::phase::{Active, Execution, Phase, Work};
use super::{Context, Qpair, Role, Services, execute};

impl Qpair {
    /// Step 1. Check the command whole: nothing later can find it malformed.
    pub(super) fn admit<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>) {
        while !self.incoming.is_empty() && !self.stopped {
            let Some(slot) = self.free.pop() else { return };
            let (received, arrived) = self.incoming.pop_front().expect("just seen");
            self.count().commands += 1;
            let number = self.counts.commands;
            let place = &mut self.slots[usize::from(slot)];
            (place.number, place.arrived) = (number, arrived);
            let command = Command::from_capsule(cx.verbs.message(&received)).expect("its length was checked");
            let data_length = received.length - u32::try_from(Command::SIZE).expect("64");
            let fuse = if matches!(self.role, Role::Io(_)) { Fuse::of(&command) } else { Some(Fuse::Alone) };
            let first = self.pair(cx, fuse.unwrap_or(Fuse::Alone));
            let pointer = DataPointer::parse(&command, data_length);
            let checked = first.and_then(|first| {
                let fuse = fuse.filter(|_| self.slots.len() > 1 || fuse == Some(Fuse::Alone));
                let (fuse, pointer) = (fuse.ok_or(Status::INVALID_FIELD)?, pointer?);
                let work = self.classify(&command, pointer, cx.pool.largest())?;
                Ok((fuse, first, pointer, work))
            });
            match checked {
                Ok((fuse, first, pointer, work)) => {
                    let in_capsule = matches!(pointer, DataPointer::InCapsule { .. });
                    let message = self.keep(cx, received, in_capsule);
                    let active =
                        Active { cid: command.cid.get(), pointer, work, message, second: None, no_way: None };
                    match (fuse, first) {
                        (Fuse::First, _) => self.accept_first(slot, active),
                        (_, Some(first)) => self.accept_second(cx, (first, slot), active),
                        _ => self.accept(cx, slot, active),
                    }
                }
                Err(status) => {
                    cx.verbs.repost(received);
                    if let Ok(Some(first)) = first {
                        self.refuse_first(cx, first, Status::ABORTED_FAILED_FUSED);
                    }
                    if fuse == Some(Fuse::First) {
                        self.pairing = Pairing::Refused;
                    }
                    let key = pointer.ok().and_then(DataPointer::key_to_invalidate);
                    self.refuse(cx.verbs, slot, &command, key, status);
                }
            }
        }
    }

    /// Its receive goes back at once, unless the command's data lies in it.
    fn keep<V: TargetVerbs, S>(
        &self,
        cx: &mut Context<'_, V, S>,
        received: Received,
        in_capsule: bool,
    ) -> Option<Received> {
        if in_capsule {
            return Some(received);
        }
        cx.verbs.repost(received);
        None
    }

    fn classify(&self, command: &Command, pointer: DataPointer, longest: u32) -> Result<Work, Status> {
        if pointer.length() > longest {
            // More than MDTS (NVM Express base specification 2.2, figure 313).
            return Err(Status::INVALID_FIELD);
        }
        if matches!(pointer, DataPointer::InCapsule { .. }) && !command.is_from_host() {
            return Err(Status::INVALID_FIELD);
        }
        match &self.role {
            Role::Io(namespaces) if !command.is_fabrics() => {
                let nsid = command.nsid.get();
                let found = namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid);
                let namespace = &namespaces[found.map_err(|_| Status::INVALID_NAMESPACE)?];
                if namespace.shared && command.fuse() != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                let alone = Command { flags: command.flags & !Command::FUSE, ..*command };
                let request = io::Request::parse(&alone, &namespace.geometry)?;
                if namespace.shared && matches!(request, io::Request::Reservation(_)) {
                    return Err(Status::INVALID_OPCODE);
                }
                request.transfer(&namespace.geometry).check(pointer)?;
                if namespace.read_only && request.changes_medium() {
                    return Err(Status::NAMESPACE_WRITE_PROTECTED);
                }
                if let Some(status) = self.conflict(nsid, &request) {
                    return Err(status);
                }
                Ok(Work::Io(Rc::clone(namespace), request))
            }
            Role::Unauthenticated if !is_authentication(command) => Err(Status::AUTHENTICATION_REQUIRED),
            _ => {
                admin::transfer(command)?.check(pointer)?;
                Ok(Work::Admin(Box::new(*command)))
            }
        }
    }

    /// Step 2. The command holds a slot, and may have to wait for its turn.
    fn accept<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, slot: u16, active: Active) {
        match self.limited_cost(&active, None) {
            Some(cost) => self.throttle(cx, slot, active, cost),
            None => self.begin(cx, slot, active),
        }
    }

    /// The command may go on.
    pub(super) fn begin<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        slot: u16,
        active: Active,
    ) {
        if active.fetch_length().is_some() {
            self.enter(slot, Phase::AwaitBuffer(active));
            return self.await_fetch.push_back(slot);
        }
        if let Some(data) = execute::in_place(&active, cx.services) {
            return self.answer(cx, slot, active, (Status::SUCCESS, 0), Some(data), None);
        }
        let room = match execute::need(&active) {
            None => Some((None, None)),
            // Where nobody waits, it need not be laid down to be taken up again at once.
            Some(need) if !self.waits_for_buffer() => self.room(cx, need),
            Some(_) => None,
        };
        match room {
            Some(room) => self.execute(cx, slot, Execution::new(active, room)),
            None => {
                self.enter(slot, Phase::AwaitBuffer(active));
                self.await_buffer.push_back(slot);
            }
        }
    }
}

fn is_authentication(command: &Command) -> bool {
    matches!(
        command.fabrics_type(),
        Some(FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE)
    )
}
