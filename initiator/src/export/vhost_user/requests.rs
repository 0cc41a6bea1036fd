//! Requests of a machine which are under way: taken from its queues, cut into pieces of a buffer each, and given back.
//!
//! Data goes by a buffer of ours, since the guest may change its memory at any time: a write is copied before the volume
//! sees it, a read after the volume has filled it.
use std::collections::VecDeque;
use std::sync::Arc;

use ironside_common::memory::{Lease, Memory, Region};
use slab::Slab;
use tracing::debug;
use zerocopy::FromBytes;

use super::chain::{Chain, DESCRIPTOR_LENGTH, Descriptor, Malformed, Segment, length, parts};
use super::device::{Disk, HEADER_LENGTH, RANGE_LENGTH, Status, Wanted, Work, feature};
use super::front_end::FrontEnd;
use super::memory::{GuestMemory, Outside};
use super::queue::Queue;
use crate::attach::Context;
use crate::volume::{self, Completed, Operation};

/// Requests under way at once, of all queues.
const REQUESTS: u16 = 256;
/// Pieces of them in the volume's hands.
const PIECES: usize = 256;

/// See the module's description.
pub(super) struct Requests {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Slots of which something is still to be handed to the volume, the first of them next.
    waiting: VecDeque<u16>,
    pieces: Slab<Piece>,
    /// Bytes of the largest piece.
    piece_size: u32,
    /// The queue looked at next.
    turn: usize,
}

/// A request of the guest until it is given back.
struct Slot {
    chain: Chain,
    queue: usize,
    head: u16,
    work: Work,
    /// Bytes handed to the volume so far.
    issued: u64,
    in_flight: u16,
    /// Whether something of it is still to be handed to the volume.
    waits: bool,
    status: Status,
}

/// A part of a request, in the volume's hands.
struct Piece {
    slot: u16,
    at: u64,
    length: u32,
    lease: Option<Lease>,
}

/// What became of a try to hand a piece on.
#[derive(Eq, PartialEq)]
enum Issued {
    Some,
    NotNow,
}

impl Requests {
    /// `piece_size`: bytes of the buffers requests are cut to.
    pub(super) fn new(piece_size: u32) -> Self {
        let nothing = Work { operation: Operation::Flush, offset: 0, length: 0 };
        let slot = |_| Slot {
            chain: Chain::default(),
            queue: 0,
            head: 0,
            work: nothing,
            issued: 0,
            in_flight: 0,
            waits: false,
            status: Status::Ok,
        };
        Self {
            slots: (0..REQUESTS).map(slot).collect(),
            free: (0..REQUESTS).rev().collect(),
            waiting: VecDeque::with_capacity(REQUESTS.into()),
            pieces: Slab::with_capacity(PIECES),
            piece_size,
            turn: 0,
        }
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Goes as far as that goes now. True if anything was done.
    pub(super) fn advance(
        &mut self,
        front_end: &mut FrontEnd,
        disk: &Disk,
        context: &mut Context<'_>,
    ) -> bool {
        let mut did = false;
        loop {
            if let Some(&slot) = self.waiting.front() {
                if self.issue(slot, front_end, context) == Issued::NotNow {
                    return did;
                }
            } else if !self.take_next(front_end, disk) {
                return did;
            }
            did = true;
        }
    }

    /// A piece has ended. Without a front-end its machine has gone, and its memory is not touched any more.
    ///
    /// # Panics
    /// If no piece has this tag.
    pub(super) fn completed(
        &mut self,
        front_end: Option<&mut FrontEnd>,
        memory: &Memory,
        completed: Completed,
    ) {
        let index = usize::try_from(completed.tag).expect("a tag of ours");
        let Piece { slot, at, length, lease } = self.pieces.remove(index);
        let it = &mut self.slots[usize::from(slot)];
        it.in_flight -= 1;
        if let Err(error) = completed.result {
            debug!(%error, "a request of the machine fails");
            it.status = Status::Error;
        }
        let Some(front_end) = front_end else {
            if it.in_flight == 0 && !it.waits {
                self.free.push(slot);
            }
            return;
        };
        if let (Operation::Read, Some(lease), Ok(())) = (it.work.operation, &lease, completed.result) {
            let (region, start) = bytes_of(lease, memory);
            let filled = each(it.chain.wanted(), at, length, |segment, done| {
                front_end.memory.fill(segment.address, segment.length as usize, &region, start + done)
            });
            if filled.is_err() {
                it.status = Status::Error;
            }
        }
        if it.in_flight == 0 && !it.waits {
            self.finish(slot, front_end);
        }
    }

    /// The machine has gone. What the volume has still ends, and is nobody's.
    pub(super) fn abandon(&mut self) {
        while let Some(slot) = self.waiting.pop_front() {
            let it = &mut self.slots[usize::from(slot)];
            it.waits = false;
            if it.in_flight == 0 {
                self.free.push(slot);
            }
        }
    }

    /// Takes one request from the queues, each in its turn.
    fn take_next(&mut self, front_end: &mut FrontEnd, disk: &Disk) -> bool {
        let Some(&slot) = self.free.last() else { return false };
        let count = front_end.queues.len();
        let found = (0..count).find_map(|step| {
            // The machine may have fewer queues than the one before it.
            let index = (self.turn + step) % count;
            front_end.queues[index].next().map(|head| (index, head))
        });
        let Some((queue, head)) = found else { return false };
        self.turn = (queue + 1) % count;
        self.free.pop();
        self.begin(slot, queue, head, front_end, disk);
        true
    }

    fn begin(&mut self, slot: u16, queue: usize, head: u16, front_end: &mut FrontEnd, disk: &Disk) {
        let it = &mut self.slots[usize::from(slot)];
        (it.queue, it.head, it.issued, it.status) = (queue, head, 0, Status::Ok);
        match it.understand(front_end, disk) {
            Ok(Wanted::Volume(work)) => {
                (it.work, it.waits) = (work, true);
                self.waiting.push_back(slot);
            }
            Ok(Wanted::Nothing(status)) => {
                it.status = status;
                self.finish(slot, front_end);
            }
            // Answered by now, or understood as something else.
            Ok(Wanted::Id | Wanted::Range(_)) => self.finish(slot, front_end),
            Err(malformed) => {
                front_end.queues[queue].abort(&malformed);
                self.free.push(slot);
            }
        }
    }

    /// Hands the next piece of a request to the volume.
    fn issue(&mut self, slot: u16, front_end: &mut FrontEnd, context: &mut Context<'_>) -> Issued {
        let it = &mut self.slots[usize::from(slot)];
        let Work { operation, offset, length } = it.work;
        let moves_data = matches!(operation, Operation::Read | Operation::Write { .. });
        let remaining = length - it.issued;
        let part = if moves_data { remaining.min(self.piece_size.into()) } else { remaining };
        let part_length = u32::try_from(part).expect("a range has 1 GiB at most");
        if !context.volume.has_room() || self.pieces.len() >= PIECES {
            return Issued::NotNow;
        }
        let lease = if moves_data { context.pool.lease(part_length) } else { None };
        if moves_data && lease.is_none() {
            return Issued::NotNow;
        }
        if let (Operation::Write { .. }, Some(lease)) = (operation, &lease) {
            let (region, start) = bytes_of(lease, context.memory);
            let at = HEADER_LENGTH as u64 + it.issued;
            let taken = each(it.chain.filled(), at, part_length, |segment, done| {
                front_end.memory.take(segment.address, segment.length as usize, &region, start + done)
            });
            if taken.is_err() {
                it.status = Status::Error;
            }
        }
        // After an error nothing more is asked for.
        if it.status == Status::Ok {
            let (at, offset) = (it.issued, offset + it.issued);
            it.issued += part;
            it.in_flight += 1;
            let buffer = lease.as_ref().map(Lease::sge);
            let tag = self.pieces.insert(Piece { slot, at, length: part_length, lease }) as u64;
            let request = volume::Request { tag, operation, offset, length: part, buffer };
            context.volume.submit(request).expect("the volume said it had room");
        }
        if it.issued == length || it.status != Status::Ok {
            it.waits = false;
            self.waiting.pop_front();
            if self.slots[usize::from(slot)].in_flight == 0 {
                self.finish(slot, front_end);
            }
        }
        Issued::Some
    }

    /// Gives a request back.
    fn finish(&mut self, slot: u16, front_end: &mut FrontEnd) {
        let it = &self.slots[usize::from(slot)];
        let wanted = length(it.chain.wanted());
        let status = write(&front_end.memory, it.chain.wanted(), wanted - 1, &[it.status as u8]);
        let queue = &mut front_end.queues[it.queue];
        match status {
            Ok(()) => queue.end(it.head, u32::try_from(wanted).unwrap_or(u32::MAX)),
            Err(outside) => queue.abort(&outside),
        }
        self.free.push(slot);
    }
}

impl Slot {
    /// Reads the chain, and what it says. What needs no volume is answered.
    fn understand(&mut self, front_end: &FrontEnd, disk: &Disk) -> Result<Wanted, Broken> {
        let (memory, features) = (&front_end.memory, front_end.features());
        let queue: &Queue = &front_end.queues[self.queue];
        let ring = queue.ring().expect("what was taken came from a ring");
        let indirect = |address, index| descriptor(memory, address, index);
        let indirect = (features & feature::INDIRECT != 0).then_some(indirect);
        self.chain.read(self.head, ring.size(), |index| Ok(ring.descriptor(index)), indirect)?;
        let (filled, wanted) = (self.chain.filled(), self.chain.wanted());
        let (Some(data), Some(room)) =
            (length(filled).checked_sub(HEADER_LENGTH as u64), length(wanted).checked_sub(1))
        else {
            return Err(Broken::NoRoom);
        };
        let mut header = [0; HEADER_LENGTH];
        if read(memory, filled, 0, &mut header).is_err() {
            return Ok(Wanted::Nothing(Status::Error));
        }
        Ok(match disk.request(header, data, room, features) {
            Wanted::Range(kind) => {
                let mut range = [0; RANGE_LENGTH];
                match read(memory, filled, HEADER_LENGTH as u64, &mut range) {
                    Ok(()) => disk.range_request(kind, range, features),
                    Err(Outside) => Wanted::Nothing(Status::Error),
                }
            }
            Wanted::Id => {
                let id = disk.id();
                let told = usize::try_from(room).unwrap_or(usize::MAX).min(id.len());
                match write(memory, wanted, 0, &id[..told]) {
                    Ok(()) => Wanted::Nothing(Status::Ok),
                    Err(Outside) => Wanted::Nothing(Status::Error),
                }
            }
            other => other,
        })
    }
}

/// Why a chain cannot be answered.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Chain(#[from] Malformed),
    #[error("a request without a whole header, or without room for its status")]
    NoRoom,
}

fn descriptor(memory: &GuestMemory, table: u64, index: u16) -> Result<Descriptor, Malformed> {
    let mut bytes = [0; DESCRIPTOR_LENGTH as usize];
    let at = table.checked_add(u64::from(index) * u64::from(DESCRIPTOR_LENGTH)).ok_or(Malformed::Outside)?;
    memory.read(at, &mut bytes).map_err(|Outside| Malformed::Outside)?;
    Ok(Descriptor::read_from_bytes(&bytes).expect("as long as one"))
}

/// The memory of a buffer, and where in it the buffer begins.
fn bytes_of(lease: &Lease, memory: &Memory) -> (Arc<Region>, usize) {
    let sge = lease.sge();
    let region = memory.region(sge.lkey);
    let start = usize::try_from(sge.address - region.address()).expect("a buffer lies in its region");
    (region, start)
}

/// Goes over the parts of buffers that hold `length` bytes from `skip` on, with how much lies before each.
fn each(
    segments: &[Segment],
    skip: u64,
    length: u32,
    mut act: impl FnMut(Segment, usize) -> Result<(), Outside>,
) -> Result<(), Outside> {
    let mut done = 0;
    for segment in parts(segments, skip, length.into()) {
        act(segment, done)?;
        done += segment.length as usize;
    }
    Ok(())
}

fn read(memory: &GuestMemory, segments: &[Segment], skip: u64, into: &mut [u8]) -> Result<(), Outside> {
    let length = u32::try_from(into.len()).expect("a header or a range");
    each(segments, skip, length, |segment, done| {
        memory.read(segment.address, &mut into[done..done + segment.length as usize])
    })
}

fn write(memory: &GuestMemory, segments: &[Segment], skip: u64, bytes: &[u8]) -> Result<(), Outside> {
    let length = u32::try_from(bytes.len()).expect("a name or a status");
    each(segments, skip, length, |segment, done| {
        memory.write(segment.address, &bytes[done..done + segment.length as usize])
    })
}
