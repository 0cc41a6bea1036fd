//! The end of a command: its answer, and the slot it gives back.
use std::mem;

use ironside_common::nvme::{Command, Completion, IoOpcode, Status};
use ironside_common::verbs::{Kind, TargetVerbs};

use super::phase::{Phase, Reply};
use super::{CommandKind, Qpair, Role};

impl Qpair {
    /// Step 6. The answer is known: it goes out at once, unless others wait for the send queue.
    pub(super) fn reply(&mut self, verbs: &mut impl TargetVerbs, slot: u16, reply: Reply) {
        if self.await_send.is_empty() && self.send_credits >= reply.cost() {
            return self.post(verbs, slot, reply);
        }
        self.enter(slot, Phase::AwaitSend(reply));
        self.await_send.push_back(slot);
    }

    pub(super) fn refuse(
        &mut self,
        verbs: &mut impl TargetVerbs,
        slot: u16,
        command: &Command,
        invalidate: Option<u32>,
        status: Status,
    ) {
        let cid = command.cid.get();
        self.count().failed(cid, status, command.nsid.get());
        self.errors.note(status);
        if let Role::Io(namespaces) = &self.role
            && let Some(namespace) = namespaces.iter().find(|one| one.nsid == command.nsid.get())
        {
            namespace.usage.failed(CommandKind::of_opcode(IoOpcode(command.opcode)));
        }
        self.reply(
            verbs,
            slot,
            Reply { cid, status, result: 0, data: None, _lease: None, in_place: None, invalidate },
        );
    }

    /// Step 7. Post what waited.
    pub(super) fn respond(&mut self, verbs: &mut impl TargetVerbs) {
        while let Some(&slot) = self.await_send.front() {
            let Phase::AwaitSend(reply) = &self.slots[usize::from(slot)].phase else {
                unreachable!("only replies wait for the send queue");
            };
            if self.send_credits < reply.cost() {
                return;
            }
            self.await_send.pop_front();
            let Phase::AwaitSend(reply) = self.leave(slot) else { unreachable!("just seen") };
            self.post(verbs, slot, reply);
        }
    }

    /// Posts the response. The receive the host will need next has been posted before.
    fn post(&mut self, verbs: &mut impl TargetVerbs, slot: u16, reply: Reply) {
        self.send_credits -= reply.cost();
        let sqhd = self.advance_sqhd();
        let completion = Completion::new(reply.result, sqhd, self.sqid, reply.cid, reply.status);
        verbs.post_respond(
            self.handle,
            self.token(Kind::Respond, slot),
            reply.data,
            &completion.to_bytes(),
            reply.invalidate,
        );
        self.enter(slot, Phase::Responding(reply));
    }

    /// Step 8. The response is out, and by the fabric's ordering so is the data before it.
    pub(super) fn on_responded(&mut self, slot: u16) {
        let Phase::Responding(reply) = self.leave(slot) else {
            unreachable!("a response completed for a command which did not respond");
        };
        self.send_credits += reply.cost();
        self.free_slot(slot);
    }

    /// The submission queue head after one more command was taken from it; without flow control FFFFh once, and then
    /// 0 (NVM Express base specification 2.2, sections 3.3.2.5 and 6.3).
    pub(super) fn advance_sqhd(&mut self) -> u16 {
        if self.sq_size == 0 {
            return mem::take(&mut self.sqhd);
        }
        self.sqhd = (self.sqhd + 1) % self.sq_size;
        self.sqhd
    }
}
