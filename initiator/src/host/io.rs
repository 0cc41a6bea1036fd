//! Requests on their way: parts become commands on whatever queue has room; and what is due by the clock.
use ironside_common::nvme::Command;
use ironside_common::nvme::io::{Range, Request};
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, HostVerbs, Sge};
use zerocopy::IntoBytes;

use super::queue::Data;
use super::requests::{Part, Work};
use super::{Fault, Host, HostEvent, Mark, Owner, Phase, Scratch, TIMEOUT_CHECK_INTERVAL};
use crate::volume::{IoError, Operation};

impl Host {
    /// Sends parts while there are some and queues have room.
    pub(super) fn issue<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) -> bool {
        let mut any = self.send_authentication(verbs, now);
        while matches!(self.phase, Phase::Live(_)) {
            let Some(queue) = self.queue_with_room() else { break };
            let Some(part) = self.requests.next_part(now) else { break };
            self.send_part(verbs, queue, part, now);
            any = true;
        }
        any
    }

    /// Does what is due.
    pub(super) fn on_time<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        self.requests.tell_late(now);
        if self.reconnect.fails_fast_at().is_some_and(|end| now >= end) && !self.fails_fast && !self.closing {
            self.fails_fast = true;
            self.refuse(IoError::ConnectionLost);
            self.events.push_back(HostEvent::FailsFast);
        }
        if self.reconnect.gives_up_at().is_some_and(|end| now >= end) {
            self.give_up(verbs, now);
        }
        match &mut self.phase {
            Phase::Setup(setup) => {
                if let Some(error) = setup.overdue(now) {
                    return self.fail_setup(verbs, error, now);
                }
                if setup.woken(now) {
                    self.drive_setup(verbs, now);
                }
            }
            Phase::Live(_) => self.on_time_live(verbs, now),
            Phase::Shutdown { .. } => self.look_for_shutdown(verbs, now),
            Phase::Waiting { until } if *until <= now => self.begin_setup(verbs, now),
            Phase::Waiting { .. } | Phase::Idle | Phase::Ending(_) | Phase::Over => {}
        }
    }

    fn on_time_live<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        self.keep_alive(verbs, now);
        let in_flight = self.commands_in_flight();
        let Phase::Live(live) = &mut self.phase else { return };
        if live.close_by.is_some_and(|end| in_flight == 0 || now >= end) {
            return self.begin_shutdown(verbs, now);
        }
        if now >= live.next_timeout_check {
            live.next_timeout_check = now + TIMEOUT_CHECK_INTERVAL;
            self.check_timeouts(verbs, now);
        }
    }

    fn check_timeouts<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        let limit = self.options.io_timeout;
        let counts = |owner: &Owner| matches!(owner, Owner::Part(..) | Owner::Step | Owner::Authentication);
        let oldest = self.queues.iter().filter_map(|queue| queue.oldest(counts)).min();
        if oldest.is_some_and(|sent| now.since(sent) >= limit) {
            self.lose(verbs, Fault::CommandTimeout(limit.as_secs()), now);
        }
    }

    /// The next queue in turn that takes a command.
    fn queue_with_room(&mut self) -> Option<usize> {
        let count = self.queues.len().saturating_sub(1);
        for _ in 0..count {
            let index = 1 + self.next_queue % count;
            self.next_queue = index % count;
            if self.queues[index].has_room() {
                return Some(index);
            }
        }
        None
    }

    fn send_part<V: HostVerbs + Connections>(&mut self, verbs: &mut V, queue: usize, part: Part, now: Time) {
        let work = self.requests.work(&part);
        if !self.namespaces[work.namespace].available {
            return self.requests.ended(part, Err(IoError::NamespaceGone));
        }
        let slot = self.queues[queue].next_slot().expect("the queue has room");
        let scratch = self.range_scratch(queue, slot);
        let (command, data) = self.command(&work, scratch);
        let mark = match data {
            Data::In(buffer) => self.marks.set(&self.memory, buffer),
            Data::None | Data::Out(_) => Mark::default(),
        };
        self.queues[queue].submit(verbs, command, data, Owner::Part(part, mark), now);
    }

    /// The command for a part. Counts fit their fields: the limits of parts see to it.
    fn command(&self, work: &Work, scratch: Sge) -> (Command, Data) {
        let namespace = &self.namespaces[work.namespace];
        let shift = namespace.geometry.block_size.trailing_zeros();
        let lba = work.offset >> shift;
        let blocks = u32::try_from(work.length >> shift).unwrap_or(u32::MAX);
        let to_host = || work.buffer.map_or(Data::None, Data::In);
        let from_host = || work.buffer.map_or(Data::None, Data::Out);
        let (request, data) = match work.operation {
            Operation::Read => (Request::Read { lba, blocks, fua: false }, to_host()),
            Operation::Write { fua } => (Request::Write { lba, blocks, fua }, from_host()),
            Operation::Flush => (Request::Flush, Data::None),
            Operation::WriteZeroes { unmap, fua } => {
                let deallocate = unmap && namespace.zeroes_by_unmapping;
                (Request::WriteZeroes { lba, blocks, deallocate, fua }, Data::None)
            }
            Operation::Discard => {
                self.memory.write(scratch, Range::new(lba, blocks).as_bytes());
                (Request::DatasetManagement { ranges: 1, deallocate: true }, Data::Out(scratch))
            }
        };
        (request.to_command(0, namespace.nsid), data)
    }

    fn range_scratch(&self, queue: usize, slot: u16) -> Sge {
        let first = (queue - 1) * usize::from(self.options.queue_size);
        let index = u32::try_from(first + usize::from(slot)).expect("sized when the scratch was made");
        self.scratch.ranges.slice(index * Scratch::RANGE_LENGTH, Scratch::RANGE_LENGTH)
    }
}
