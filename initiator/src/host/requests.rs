//! The requests of a host's users: cut into parts that fit one command, kept until every part has ended, and
//! held while there is no connection. Nothing here knows how a part reaches the controller.
use std::collections::VecDeque;
use std::time::Duration;

use ironside_common::nvme::{Status, StatusType};
use ironside_common::time::Time;
use ironside_common::verbs::Sge;

use crate::volume::{Completed, Geometry, IoError, Operation, PathError, Request};

/// How often a part is sent again whose controller says that it may be.
const RETRIES_MAX: u8 = 5;
/// How long a part waits before it is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Bytes that one command may cover, by what it does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PartLimits {
    pub transfer: u64,
    pub write_zeroes: u64,
    pub discard: u64,
}

/// The part of a request which one command covers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Part {
    request: u32,
    retries: u8,
    /// Bytes from the start of the request.
    start: u64,
    length: u64,
    /// It was lost, and may be executed until then: what nobody may be told before.
    open_until: Option<Time>,
}

/// What a part asks of the controller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Work {
    pub namespace: usize,
    pub operation: Operation,
    /// In bytes from the start of the volume.
    pub offset: u64,
    pub length: u64,
    pub buffer: Option<Sge>,
}

#[derive(Debug)]
struct Pending {
    namespace: usize,
    request: Request,
    /// Bytes one part of it may have.
    part_limit: u64,
    /// Bytes given out as parts. A flush counts as one byte.
    cursor: u64,
    end: u64,
    outstanding: u32,
    error: Option<IoError>,
}

/// See the module's description. All tables are sized once.
#[derive(Debug)]
pub(super) struct Requests {
    pending: Box<[Option<Pending>]>,
    free: Vec<u32>,
    /// Requests with parts not given out yet, oldest first.
    waiting: VecDeque<u32>,
    /// Parts whose connection was lost, before anything new.
    lost: VecDeque<Part>,
    /// Parts the controller wants later; all wait equally long, so the first is due first.
    delayed: VecDeque<(Time, Part)>,
    /// Parts whose connection was lost and which may still be executed until then: all wait equally long too.
    fenced: VecDeque<(Time, Part)>,
    /// Parts that have failed, and may be executed until then: whoever asked is told no earlier.
    late: VecDeque<(Time, Part, IoError)>,
    /// Nothing new changes anything before: parts which were failed may be executed until then.
    held_until: Option<Time>,
    completed: VecDeque<(usize, Completed)>,
    /// Why nothing is started any more.
    refusing: Option<IoError>,
    /// What this path cannot end is somebody else's to try again.
    one_of_many: bool,
    /// Who is told of a failure may write again by somebody else's queue.
    one_of_cores: bool,
}

impl Requests {
    /// Room for `capacity` requests, of which `parts` parts may be with the controller at once. Those of one path of
    /// many come back when it is lost; those of one core of many are not told to have failed while they may be executed.
    pub(super) fn new(capacity: u32, parts: usize, one_of_many: bool, one_of_cores: bool) -> Self {
        let room = capacity as usize;
        Self {
            pending: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            waiting: VecDeque::with_capacity(room),
            lost: VecDeque::with_capacity(parts),
            delayed: VecDeque::with_capacity(parts),
            fenced: VecDeque::with_capacity(parts),
            late: VecDeque::with_capacity(parts),
            held_until: None,
            completed: VecDeque::with_capacity(room),
            refusing: None,
            one_of_many,
            one_of_cores,
        }
    }

    /// Whether one more request would be taken. Completions not yet fetched count: their queue is bounded.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() && self.completed.len() + self.outstanding() < self.pending.len()
    }

    /// Requests taken and not ended.
    pub(super) fn outstanding(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Takes a request.
    ///
    /// # Errors
    /// Gives it back if there is no room.
    pub(super) fn submit(
        &mut self,
        namespace: usize,
        request: Request,
        geometry: &Geometry,
        limits: &PartLimits,
    ) -> Result<(), Request> {
        if !self.has_room() {
            return Err(request);
        }
        let checked = self.refusing.map_or(Ok(()), Err).and_then(|()| check(&request, geometry));
        if let Some(result) = checked.err().map(Err).or_else(|| nothing_to_do(&request, geometry)) {
            self.completed.push_back((namespace, Completed { tag: request.tag, result }));
            return Ok(());
        }
        let index = self.free.pop().expect("has_room looked");
        let part_limit = match request.operation {
            Operation::Read | Operation::Write { .. } => limits.transfer,
            Operation::WriteZeroes { .. } => limits.write_zeroes,
            Operation::Discard => limits.discard,
            Operation::Flush => 1,
        };
        let end = if request.operation == Operation::Flush { 1 } else { request.length };
        let pending = Pending { namespace, request, part_limit, cursor: 0, end, outstanding: 0, error: None };
        self.pending[index as usize] = Some(pending);
        self.waiting.push_back(index);
        Ok(())
    }

    /// The next part to be sent, oldest request first; it counts as sent.
    pub(super) fn next_part(&mut self, now: Time) -> Option<Part> {
        if let Some(part) = self.lost.pop_front() {
            return Some(part);
        }
        for waiting in [&mut self.delayed, &mut self.fenced] {
            if waiting.front().is_some_and(|(due, _)| *due <= now) {
                return waiting.pop_front().map(|(_, part)| part);
            }
        }
        self.held_until.take_if(|until| *until <= now);
        let request = *self.waiting.front()?;
        let pending = self.pending[request as usize].as_mut().expect("waiting requests have not ended");
        if self.held_until.is_some() && pending.request.operation.changes() {
            return None;
        }
        let (start, left) = (pending.cursor, pending.end - pending.cursor);
        let length = left.min(pending.part_limit);
        pending.cursor += length;
        pending.outstanding += 1;
        if pending.cursor == pending.end {
            self.waiting.pop_front();
        }
        Some(Part { request, retries: 0, start, length, open_until: None })
    }

    /// What a part is to do.
    ///
    /// # Panics
    /// If it has ended.
    pub(super) fn work(&self, part: &Part) -> Work {
        let pending = self.pending(part);
        let request = &pending.request;
        let slice = |sge: Sge| {
            let narrow = |bytes| u32::try_from(bytes).expect("a buffer has at most 4 GiB");
            sge.slice(narrow(part.start), narrow(part.length))
        };
        Work {
            namespace: pending.namespace,
            operation: request.operation,
            offset: request.offset + part.start,
            length: part.length,
            buffer: request.buffer.map(slice),
        }
    }

    /// The controller has answered.
    pub(super) fn answered(&mut self, part: Part, result: Result<(), Status>, now: Time) {
        match result {
            Err(status) if self.one_of_many && is_of_path(status) => {
                self.ended(part, Err(IoError::Path(PathError::Refused(status))));
            }
            // There is no other path: it is waited for.
            Err(status) if may_become_accessible(status) && self.refusing.is_none() => {
                self.delayed.push_back((now + RETRY_DELAY, part));
            }
            Err(status) if part.retries < RETRIES_MAX && may_retry(status) && self.refusing.is_none() => {
                let part = Part { retries: part.retries + 1, ..part };
                self.delayed.push_back((now + RETRY_DELAY, part));
            }
            result => self.ended(part, result.map_err(to_io_error)),
        }
    }

    /// Its connection is gone, and nobody can reach its buffer any more: it is sent again on the next one. If it changes
    /// anything it may be executed `until` then, and goes on no earlier, unless that `ends_with_return` of the connection.
    pub(super) fn lost(&mut self, part: Part, until: Option<Time>, ends_with_return: bool) {
        let until = until.filter(|_| self.pending(&part).request.operation.changes());
        let part = Part { open_until: until.filter(|_| self.one_of_cores), ..part };
        let fence = until.filter(|_| !ends_with_return);
        match (self.refusing, fence) {
            _ if self.one_of_many => self.ended(part, Err(IoError::Path(PathError::Unanswered))),
            (None, Some(until)) => self.fenced.push_back((until, part)),
            (None, None) => self.lost.push_back(part),
            (Some(error), fence) => {
                self.hold(fence);
                self.fail(part, error);
            }
        }
    }

    /// What is new waits for what has failed, where that cannot wait itself.
    fn hold(&mut self, until: Option<Time>) {
        self.held_until = self.held_until.max(until.filter(|_| !self.one_of_cores));
    }

    /// A part which is with nobody has failed. Whoever asked for it is told now, or once it cannot happen any more.
    fn fail(&mut self, part: Part, error: IoError) {
        match part.open_until {
            Some(until) => self.late.push_back((until, part, error)),
            None => self.ended(part, Err(error)),
        }
    }

    /// Tells of failures that were kept back until now.
    pub(super) fn tell_late(&mut self, now: Time) {
        while let Some(index) = self.late.iter().position(|(until, ..)| *until <= now) {
            let (_, part, error) = self.late.swap_remove_back(index).expect("it was just found");
            self.ended(part, Err(error));
        }
    }

    /// When there is something to tell.
    pub(super) fn next_late(&self) -> Option<Time> {
        self.late.iter().map(|(until, ..)| *until).min()
    }

    /// The connection is gone. What it was not sent of one path of many comes back.
    pub(super) fn withdraw(&mut self) {
        if !self.one_of_many || self.refusing.is_some() {
            return;
        }
        self.fail_waiting(IoError::Path(PathError::NotSent));
    }

    /// A part has ended for good; with its request, if it was the last.
    pub(super) fn ended(&mut self, part: Part, result: Result<(), IoError>) {
        let pending = self.pending[part.request as usize].as_mut().expect("its part was outstanding");
        pending.outstanding -= 1;
        if let Err(error) = result {
            // That a part may still be executed matters more than whatever became of the others.
            let is_open = error == IoError::Path(PathError::Unanswered);
            pending.error = pending.error.filter(|_| !is_open).or(Some(error));
            if pending.cursor < pending.end {
                pending.cursor = pending.end;
                self.waiting.retain(|&index| index != part.request);
            }
        }
        self.finish(part.request);
    }

    /// Fails, with `error`, everything which is not with the controller, now and from now on.
    pub(super) fn refuse(&mut self, error: IoError) {
        self.refusing = Some(error);
        self.fail_waiting(error);
    }

    /// Takes requests again; those which nobody knows to have failed go on.
    pub(super) fn accept(&mut self) {
        self.refusing = None;
        self.fenced.extend(self.late.drain(..).map(|(until, part, _)| (until, part)));
        self.fenced.make_contiguous().sort_by_key(|(until, _)| *until);
    }

    fn fail_waiting(&mut self, error: IoError) {
        self.hold(self.fenced.back().map(|(until, _)| *until));
        while let Some((_, part)) = self.delayed.pop_front().or_else(|| self.fenced.pop_front()) {
            self.fail(part, error);
        }
        while let Some(part) = self.lost.pop_front() {
            self.fail(part, error);
        }
        while let Some(index) = self.waiting.pop_front() {
            let pending = self.pending[index as usize].as_mut().expect("waiting requests have not ended");
            pending.cursor = pending.end;
            pending.error.get_or_insert(error);
            self.finish(index);
        }
    }

    /// The next request that has ended, and the namespace it was for.
    pub(super) fn next_completed(&mut self) -> Option<(usize, Completed)> {
        self.completed.pop_front()
    }

    /// When a part is due to be sent again, or what waits may be sent.
    pub(super) fn deadline(&self) -> Option<Time> {
        let again = [&self.delayed, &self.fenced].into_iter().filter_map(|one| one.front());
        let held_until = self.held_until.filter(|_| !self.waiting.is_empty());
        again.map(|(due, _)| *due).chain(held_until).min()
    }

    fn finish(&mut self, index: u32) {
        let over = |pending: &mut Pending| pending.outstanding == 0 && pending.cursor == pending.end;
        let Some(pending) = self.pending[index as usize].take_if(over) else { return };
        self.free.push(index);
        let result = pending.error.map_or(Ok(()), Err);
        self.completed.push_back((pending.namespace, Completed { tag: pending.request.tag, result }));
    }

    fn pending(&self, part: &Part) -> &Pending {
        self.pending[part.request as usize].as_ref().expect("its part is outstanding")
    }
}

fn check(request: &Request, geometry: &Geometry) -> Result<(), IoError> {
    if request.operation == Operation::Flush {
        return Ok(());
    }
    let whole = |bytes: u64| bytes.is_multiple_of(u64::from(geometry.block_size));
    if !whole(request.offset) || !whole(request.length) {
        return Err(IoError::Invalid);
    }
    let transfers = matches!(request.operation, Operation::Read | Operation::Write { .. });
    if transfers && request.buffer.is_none_or(|sge| u64::from(sge.length) != request.length) {
        return Err(IoError::Invalid);
    }
    if request.offset.checked_add(request.length).is_none_or(|end| end > geometry.size) {
        return Err(IoError::OutOfRange);
    }
    if geometry.read_only && request.operation != Operation::Read {
        return Err(IoError::ReadOnly);
    }
    match request.operation {
        Operation::WriteZeroes { .. } if !geometry.write_zeroes => Err(IoError::NotSupported),
        Operation::Discard if !geometry.discard => Err(IoError::NotSupported),
        _ => Ok(()),
    }
}

/// Requests which need no command: of no length, or a flush of what is durable anyway.
fn nothing_to_do(request: &Request, geometry: &Geometry) -> Option<Result<(), IoError>> {
    let flush = request.operation == Operation::Flush;
    (flush && !geometry.volatile_cache || !flush && request.length == 0).then_some(Ok(()))
}

/// Whether the same command may succeed in a moment, as its status and the DNR bit say.
fn may_retry(status: Status) -> bool {
    const RETRYABLE: [Status; 7] = [
        Status::ABORT_REQUESTED,
        Status::ABORTED_PREEMPT,
        Status::ABORTED_SQ_DELETION,
        Status::INTERRUPTED,
        Status::TRANSIENT_TRANSPORT,
        Status::NAMESPACE_NOT_READY,
        Status::INTERNAL_PATH_ERROR,
    ];
    // Whoever says this is being authenticated to meanwhile, which changes what the same command comes to.
    if status.is(Status::AUTHENTICATION_REQUIRED) {
        return true;
    }
    !status.dnr() && RETRYABLE.iter().any(|retryable| status.is(*retryable))
}

/// Whether another path may do better, as the status type and the DNR bit say.
fn is_of_path(status: Status) -> bool {
    status.status_type() == StatusType::Path && !status.dnr()
}

/// Whether the namespace may be accessible by the same path in a moment.
fn may_become_accessible(status: Status) -> bool {
    !status.dnr() && (status.is(Status::ANA_INACCESSIBLE) || status.is(Status::ANA_TRANSITION))
}

fn to_io_error(status: Status) -> IoError {
    const MEANINGS: [(Status, IoError); 10] = [
        (Status::LBA_OUT_OF_RANGE, IoError::OutOfRange),
        (Status::CAPACITY_EXCEEDED, IoError::NoSpace),
        (Status::NAMESPACE_WRITE_PROTECTED, IoError::ReadOnly),
        (Status::INVALID_OPCODE, IoError::NotSupported),
        (Status::INVALID_NAMESPACE, IoError::NamespaceGone),
        (Status::RESERVATION_CONFLICT, IoError::ReservationConflict),
        (Status::WRITE_FAULT, IoError::Medium),
        (Status::UNRECOVERED_READ, IoError::Medium),
        (Status::DEALLOCATED_BLOCK, IoError::Medium),
        (Status::ACCESS_DENIED, IoError::Medium),
    ];
    let known = MEANINGS.iter().find(|(meant, _)| status.is(*meant));
    known.map_or(IoError::Refused(status), |(_, error)| *error)
}

#[cfg(test)]
mod tests;
