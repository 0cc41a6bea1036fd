//! What a command does once it holds what it needs: one operation of the medium after another, or a
//! controller's answer.
use std::rc::Rc;

use ironside_common::memory::{Account, Lease, Memory, Pool};
use ironside_common::nvme::{Command, DataPointer, Status, io};
use ironside_common::verbs::{Kind, Received, Remote, Sge, TargetVerbs, Token, Verbs};

use super::phase::{Active, Execution, Phase, Reply, Work};
use super::{AdminJob, AdminReply, CommandKind, Context, Namespace, Qpair, ReservationJob, Services, copy};
use crate::backend::{Done, Operation};

/// Buffers for a command's data, and for what it compares.
pub(super) type Room = (Option<Lease>, Option<Lease>);

/// Buffers a command needs before it can go on, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    data: Option<u32>,
    scratch: Option<u32>,
}

impl Need {
    /// All or nothing: two commands which each hold half of what they need would wait for ever.
    fn take(self, pool: &Rc<Pool>, account: &Rc<Account>) -> Option<Room> {
        match (self.data, self.scratch) {
            (Some(data), Some(scratch)) => {
                let data = pool.lease_share(account, data)?;
                Some((Some(data), Some(pool.lease_more(account, scratch)?)))
            }
            (Some(data), None) => Some((Some(pool.lease_share(account, data)?), None)),
            (None, Some(scratch)) => Some((None, Some(pool.lease_share(account, scratch)?))),
            (None, None) => Some((None, None)),
        }
    }
}

/// `None` if the command needs no buffer at all.
pub(super) fn need(active: &Active) -> Option<Need> {
    if let (Some(_), Work::Io(namespace, io::Request::Compare { blocks, .. })) = (active.second, &active.work)
    {
        return Some(Need { data: Some(3 * namespace.bytes(*blocks)), scratch: None });
    }
    let data = match active.pointer {
        DataPointer::Keyed { length: length @ 1.., .. } => Some(length),
        _ => None,
    };
    let scratch = match &active.work {
        Work::Io(namespace, io::Request::Compare { blocks, .. } | io::Request::Verify { blocks, .. }) => {
            Some(namespace.bytes(*blocks))
        }
        // How much it copies shows only when its ranges are here.
        Work::Io(namespace, io::Request::Copy { .. }) => {
            Some(namespace.bytes(namespace.geometry.copy_blocks()))
        }
        _ => None,
    };
    (data.is_some() || scratch.is_some()).then_some(Need { data, scratch })
}

/// What a Read can send from where it lies.
pub(super) fn in_place(active: &Active, medium: &impl Services) -> Option<(Sge, Remote)> {
    if is_fenced(active, medium) {
        return None;
    }
    let Work::Io(namespace, io::Request::Read { lba, blocks, .. }) = &active.work else { return None };
    let offset = namespace.geometry.bytes(*lba);
    Some((medium.in_place(namespace.medium, offset, namespace.bytes(*blocks))?, active.remote()?))
}

/// What comes next for a command.
enum Next {
    Admin(AdminJob),
    Reserve(ReservationJob),
    Submit(usize, Operation),
    Finish(Status),
}

impl Qpair {
    /// Buffers, if there are some for this queue now.
    pub(super) fn room<V, S>(&self, cx: &mut Context<'_, V, S>, need: Need) -> Option<Room> {
        if cx.offered.is_some_and(|offered| offered != cx.pool.returned()) {
            return None;
        }
        cx.buffers.checked_sub(1).and_then(|left| {
            let room = need.take(cx.pool, &self.account)?;
            cx.buffers = left;
            Some(room)
        })
    }

    /// Step 5. To the medium, or to a controller.
    pub(super) fn execute<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        slot: u16,
        mut execution: Execution,
    ) {
        if let Some(second) = execution.active.second {
            return self.execute_fused(cx, slot, second, execution);
        }
        if execution.step == 0 && is_fenced(&execution.active, cx.services) {
            self.enter(slot, Phase::Fenced(execution));
            return self.fenced.push_back(slot);
        }
        let token = self.token(Kind::Medium, slot);
        let next = next(&mut execution, token, cx);
        if !matches!(next, Next::Finish(_))
            && let Some(named) = self.unwanted_of(slot, None)
        {
            return self.end_early(cx, (slot, named), execution);
        }
        match next {
            Next::Admin(job) => {
                self.enter(slot, Phase::Executing(execution));
                cx.services.admin(job);
            }
            Next::Reserve(job) => {
                self.enter(slot, Phase::Executing(execution));
                cx.services.reserve(job);
            }
            Next::Submit(medium, operation) => {
                let no_way = || self.no_way(&execution.active).filter(|_| execution.step == 0);
                if let Some(status) = no_way().or_else(|| self.barred(slot, &execution.active)) {
                    return self.finish(cx, slot, execution, status);
                }
                self.enter(slot, Phase::Executing(execution));
                cx.services.submit(token, medium, operation);
            }
            Next::Finish(status) => self.finish(cx, slot, execution, status),
        }
    }

    /// One completion of the medium.
    pub fn on_done<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, done: Done) {
        let slot = done.token.slot;
        let Phase::Executing(mut execution) = self.leave(slot) else {
            unreachable!("the medium answered a command which did not ask");
        };
        if self.fault.is_some() {
            if execution.active.second.is_some() {
                self.release_claim(cx, slot, &execution.active);
            }
            return self.release(cx.verbs, slot, execution.active.message);
        }
        match done.result {
            Ok(()) if execution.is_all() => self.finish(cx, slot, execution, Status::SUCCESS),
            Ok(()) => {
                execution.step += 1;
                self.execute(cx, slot, execution);
            }
            Err(error) if execution.gathers_instead(error) => self.execute(cx, slot, execution),
            Err(error) => match execution.active.second {
                Some(second) => self.fail_fused(cx, (slot, second), execution, error.into()),
                None => self.finish(cx, slot, execution, error.into()),
            },
        }
        self.advance(cx);
    }

    /// A controller's answer.
    pub fn on_admin_done<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        token: Token,
        answer: AdminReply,
    ) {
        let slot = token.slot;
        let (active, data) = match self.leave(slot) {
            Phase::Executing(execution) => (execution.active, execution.data),
            Phase::Held(active) => (active, None),
            other => unreachable!("a controller answered a command which is {other:?}"),
        };
        if self.fault.is_some() {
            return self.release(cx.verbs, slot, active.message);
        }
        let sends = answer.length > 0 && answer.status.is_success();
        let sge = data.as_ref().filter(|_| sends).map(|lease| lease.sge().slice(0, answer.length));
        let placed = sge.zip(active.remote());
        self.answer(cx, slot, active, (answer.status, answer.result), placed, data);
        self.advance(cx);
    }

    /// The controller keeps the command until there is an event to tell.
    pub fn hold(&mut self, token: Token) {
        match self.leave(token.slot) {
            Phase::Executing(execution) => self.enter(token.slot, Phase::Held(execution.active)),
            other => unreachable!("held a command which is {other:?}"),
        }
    }

    /// The controller lets go of a command it held, which gets no response.
    pub fn forget<V: TargetVerbs, S: Services>(&mut self, cx: &mut Context<'_, V, S>, token: Token) {
        let Phase::Held(active) = self.leave(token.slot) else { unreachable!("forgot what was not held") };
        // The host's queue is as empty as if it had heard of it.
        self.advance_sqhd();
        self.release(cx.verbs, token.slot, active.message);
        self.advance(cx);
    }

    pub(super) fn finish<V: TargetVerbs, S: Services>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        slot: u16,
        execution: Execution,
        status: Status,
    ) {
        let result = if status.is_success() { 0 } else { execution.result_of_failure() };
        let Execution { active, data, .. } = execution;
        let reads = matches!(active.work, Work::Io(_, io::Request::Read { .. }));
        let sge = data.as_ref().filter(|_| reads && status.is_success()).map(Lease::sge);
        let placed = sge.zip(active.remote());
        self.answer(cx, slot, active, (status, result), placed, data);
    }

    /// The receive goes back before the answer which lets the host use it.
    pub(super) fn answer<V: TargetVerbs, S>(
        &mut self,
        cx: &mut Context<'_, V, S>,
        slot: u16,
        active: Active,
        (status, result): (Status, u64),
        data: Option<(Sge, Remote)>,
        lease: Option<Lease>,
    ) {
        self.count().answered(&active.work, active.cid, status);
        if let Work::Io(namespace, request) = &active.work {
            let nanos = cx.now.as_nanos().saturating_sub(self.slots[usize::from(slot)].arrived.as_nanos());
            namespace.note_use(request, status, nanos);
        }
        if !status.is_success() {
            self.errors.note(status);
        }
        self.note_end(slot, status.is(Status::ABORT_REQUESTED));
        let invalidate = active.pointer.key_to_invalidate();
        let is_in_place = data.is_some() && lease.is_none();
        let in_place = active.namespace().filter(|_| is_in_place).map(Rc::clone).zip(active.bytes());
        if let Some(received) = active.message {
            cx.verbs.repost(received);
        }
        let _lease = lease.filter(|_| data.is_some());
        self.reply(
            cx.verbs,
            slot,
            Reply { cid: active.cid, status, result, data, _lease, in_place, invalidate },
        );
    }
}

fn next<V: TargetVerbs, S: Services>(
    execution: &mut Execution,
    token: Token,
    cx: &Context<'_, V, S>,
) -> Next {
    let (data, memory) = (execution.data_sge(cx.verbs), cx.memory);
    let (namespace, request) = match &execution.active.work {
        Work::Admin(command) => return Next::Admin(AdminJob { token, command: **command, data }),
        Work::Io(namespace, request) => (namespace, request),
    };
    let offset = |lba: u64| namespace.geometry.bytes(lba);
    let scratch = || execution.scratch.as_ref().expect("it leased scratch").sge();
    let first = execution.step == 0;
    let operation = match *request {
        io::Request::Read { lba, .. } if first => {
            Operation::Read { offset: offset(lba), into: data.expect("a Read leased a buffer") }
        }
        io::Request::Write { lba, fua, .. } if first => {
            Operation::Write { offset: offset(lba), from: data.expect("a Write brought data"), fua }
        }
        io::Request::Compare { lba, .. } | io::Request::Verify { lba, .. } if first => {
            Operation::Read { offset: offset(lba), into: scratch() }
        }
        io::Request::Compare { .. } => {
            let same = equal(memory, data.expect("a Compare brought data"), scratch());
            return Next::Finish(if same { Status::SUCCESS } else { Status::COMPARE_FAILURE });
        }
        io::Request::Flush if first => Operation::Flush,
        io::Request::WriteZeroes { lba, blocks, deallocate, fua } if first => {
            Operation::WriteZeroes { offset: offset(lba), length: offset(blocks.into()), deallocate, fua }
        }
        io::Request::DatasetManagement { ranges, deallocate: true } => {
            let list = data.expect("a range list was brought");
            match deallocation(ranges, list, execution.step, namespace, memory) {
                Ok(Some(operation)) => operation,
                Ok(None) => return Next::Finish(Status::SUCCESS),
                Err(status) => return Next::Finish(status),
            }
        }
        io::Request::Copy { .. } => {
            let (list, medium) = (data.expect("a range list was brought"), namespace.medium);
            match copy::next(execution, list, cx.services, memory) {
                Ok(Some(operation)) => return Next::Submit(medium, operation),
                Ok(None) => return Next::Finish(Status::SUCCESS),
                Err(status) => return Next::Finish(status),
            }
        }
        io::Request::Reservation(request) => {
            return Next::Reserve(ReservationJob { token, nsid: namespace.nsid, request, data });
        }
        io::Request::Unknown(_) => return Next::Finish(Status::INVALID_OPCODE),
        _ => return Next::Finish(Status::SUCCESS),
    };
    Next::Submit(namespace.medium, operation)
}

/// The operation for range number `step` of a Dataset Management, those of nothing not counted; none once all is done. All
/// or nothing: no range is touched if one of them is wrong.
fn deallocation(
    ranges: u16,
    list: Sge,
    step: u32,
    namespace: &Namespace,
    memory: &Memory,
) -> Result<Option<Operation>, Status> {
    const MOST: usize = io::Ranges::MAX as usize * io::Range::SIZE as usize;
    let mut bytes = [0; MOST];
    let bytes = &mut bytes[..usize::from(ranges) * size_of::<io::Range>()];
    memory.read(list, bytes);
    let geometry = &namespace.geometry;
    let ranges = io::Ranges::parse(bytes, ranges, geometry)?;
    let Some((lba, blocks)) = ranges.iter().nth(step as usize) else {
        let all = ranges.iter().map(|(_, blocks)| geometry.bytes(blocks.into())).sum();
        namespace.usage.moved(CommandKind::Deallocate, all);
        return Ok(None);
    };
    Ok(Some(Operation::Deallocate { offset: geometry.bytes(lba), length: geometry.bytes(blocks.into()) }))
}

/// Whether somebody else has claimed blocks of this command.
pub(super) fn is_fenced(active: &Active, services: &impl Services) -> bool {
    services.has_claims() && active.extent().is_some_and(|extent| services.is_claimed(&extent))
}

/// Data of a command within its capsule.
pub(super) fn in_capsule(verbs: &impl Verbs, message: &Received, offset: u32, length: u32) -> Sge {
    let start = u32::try_from(Command::SIZE).expect("64 bytes");
    verbs.message_sge(message, start).slice(offset, length)
}

/// Whether two pieces of memory hold the same bytes.
pub(super) fn equal(memory: &Memory, a: Sge, b: Sge) -> bool {
    const PART: u32 = 4096;
    let (mut left, mut right) = ([0; PART as usize], [0; PART as usize]);
    a.length == b.length
        && (0..a.length).step_by(PART as usize).all(|offset| {
            let part = PART.min(a.length - offset);
            let (left, right) = (&mut left[..part as usize], &mut right[..part as usize]);
            memory.read(a.slice(offset, part), left);
            memory.read(b.slice(offset, part), right);
            left == right
        })
}
