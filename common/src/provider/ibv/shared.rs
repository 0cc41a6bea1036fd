//! Receives which all connections of one adapter share, so that memory for them stops growing where connections do not.
//!
//! Hosts may send more than there are receives, once many are connected. So what arrives while few are left is copied
//! out at once, into memory of its connection that no adapter knows and that takes nothing until then: data which waits
//! for a slow medium keeps nobody's Connect or Keep Alive from coming. Only what arrives faster than a reactor turns finds
//! no receive; then the adapter has its peer try again, for as long as it takes.
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::rc::Rc;

use rdma_sys::{ibv_device_attr, ibv_pd, ibv_post_srq_recv, ibv_recv_wr, ibv_srq, ibv_srq_init_attr, ibv_wc};

use super::library::Library;
use super::queue_pair::Owner;
use super::registration::Buffers;
use crate::memory::Memory;
use crate::provider::receives::Receives;
use crate::verbs::Sge;

/// Receives of one adapter at most: 18 MiB with 4 KiB of in-capsule data each.
const MOST: u32 = 4096;
/// An adapter which has fewer shares none.
const LEAST: u32 = 512;
/// Receives which are made at once.
const CHUNK: u16 = 128;
/// Names a receive that is shared, instead of the connection whose it is: no connection has this handle.
const SHARED: u64 = 1 << 63 | 0xFFFF << 32;
/// Marks the number of a buffer into which a message was copied.
const SPILLED: u32 = 1 << 31;

/// How many receives connections share on an adapter with these limits; none if that is not worth it.
pub(super) fn most(limits: &ibv_device_attr) -> u32 {
    let has = |limit: i32| u32::try_from(limit).unwrap_or(0);
    if has(limits.max_srq) == 0 {
        return 0;
    }
    // Each completion queue has room for all of them, and most of it is to be for other work.
    let most = MOST.min(has(limits.max_srq_wr)).min(has(limits.max_cqe) / 4);
    if most < LEAST { 0 } else { most / u32::from(CHUNK) * u32::from(CHUNK) }
}

/// The number of the receive that has completed, if it is one of those which are shared.
pub(super) fn number(completion: &ibv_wc) -> Option<u32> {
    (completion.wr_id >> 32 == SHARED >> 32).then_some(completion.wr_id as u32)
}

pub(super) struct SharedReceives {
    library: &'static Library,
    srq: *mut ibv_srq,
    most: u32,
    size: u32,
    /// Receives in the order of their numbers, so many each.
    chunks: Vec<Buffers>,
    /// Receives which wait for messages.
    posted: u32,
    /// Messages that all peers together may send at once.
    owed: u32,
    /// Receives whose messages are out with the consumer.
    lent: u32,
    /// Regions of chunks that nobody was told of yet.
    fresh: Vec<u32>,
    /// Whose messages come by which queue pair.
    owners: HashMap<u32, Owner>,
}

impl SharedReceives {
    /// # Safety
    /// The domain is valid, and outlives this.
    pub(super) unsafe fn new(
        library: &'static Library,
        pd: *mut ibv_pd,
        most: u32,
        size: u32,
    ) -> io::Result<Self> {
        // SAFETY: numbers and pointers, for which zeroes are valid.
        let mut wish: ibv_srq_init_attr = unsafe { zeroed() };
        wish.attr.max_wr = most;
        wish.attr.max_sge = 1;
        // SAFETY: the caller's promise; the wish is read, and what came of it written there.
        let srq = unsafe { (library.create_srq)(pd, &raw mut wish) };
        if srq.is_null() {
            return Err(io::Error::last_os_error());
        }
        let owners = HashMap::new();
        let (chunks, fresh) = (Vec::new(), Vec::new());
        Ok(Self { library, srq, most, size, chunks, posted: 0, owed: 0, lent: 0, fresh, owners })
    }

    pub(super) const fn handle(&self) -> *mut ibv_srq {
        self.srq
    }

    /// Bytes that each holds.
    pub(super) const fn size(&self) -> u32 {
        self.size
    }

    /// A connection is to come, whose peer may send so many messages at once. `make` gives so many buffers.
    pub(super) fn admit(
        &mut self,
        owed: u16,
        make: impl Fn(u16, u32) -> io::Result<Buffers>,
    ) -> io::Result<()> {
        let owed = self.owed + u32::from(owed);
        while self.total() < owed.min(self.most) {
            let first = self.total();
            let chunk = make(CHUNK, self.size)?;
            self.fresh.push(chunk.receives.lkey());
            self.chunks.push(chunk);
            (first..self.total()).for_each(|buffer| self.post(buffer));
        }
        self.owed = owed;
        Ok(())
    }

    /// A region in which messages lie from now on, told of once.
    pub(super) fn next_region(&mut self) -> Option<u32> {
        self.fresh.pop()
    }

    /// The connection that was admitted comes by this queue pair.
    pub(super) fn enrol(&mut self, qp_num: u32, owner: Owner) {
        self.owners.insert(qp_num, owner);
    }

    /// The connection is gone, or has never come. What its queue pair left behind was polled.
    pub(super) fn leave(&mut self, qp_num: Option<u32>, owed: u16) {
        qp_num.map(|qp_num| self.owners.remove(&qp_num));
        self.owed -= u32::from(owed);
    }

    /// A receive has completed. Says whose message it is, if they are still there.
    pub(super) fn on_completion(&mut self, completion: &ibv_wc) -> Option<Owner> {
        self.posted = self.posted.saturating_sub(1);
        self.owners.get(&completion.qp_num).copied()
    }

    /// Where a message of so many bytes lies until it is given back: where it has come, or where there is more room.
    pub(super) fn lend(&mut self, memory: &Memory, spill: &mut Spill, buffer: u32, length: u32) -> u32 {
        if self.is_scarce()
            && let Some(place) = spill.take()
        {
            memory.copy(self.buffer(buffer).slice(0, length), spill.receives.buffer(place));
            self.post(buffer);
            return SPILLED | place;
        }
        self.lent += 1;
        buffer
    }

    /// A message which was lent where it had come is not needed any more.
    pub(super) fn give_back(&mut self, buffer: u32) {
        self.lent -= 1;
        self.post(buffer);
    }

    /// Whether messages are out which lie where they have come.
    pub(super) const fn is_lent(&self) -> bool {
        self.lent > 0
    }

    pub(super) fn post(&mut self, buffer: u32) {
        let (chunk, index) = place(buffer);
        let mut into = self.chunks[chunk].piece(index);
        let mut work = ibv_recv_wr {
            wr_id: SHARED | u64::from(buffer),
            next: null_mut(),
            sg_list: &raw mut into,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: the queue is valid, and the adapter copies the request, not what it names, before it returns.
        match unsafe { ibv_post_srq_recv(self.srq, &raw mut work, &raw mut bad) } {
            0 => self.posted += 1,
            // So does one that was taken away; connections are told by other means.
            error => tracing::debug!(error, "an adapter takes no receive"),
        }
    }

    pub(super) fn buffer(&self, buffer: u32) -> Sge {
        let (chunk, index) = place(buffer);
        self.chunks[chunk].receives.buffer(index)
    }

    pub(super) fn bytes(&self, buffer: u32, length: u32) -> &[u8] {
        let (chunk, index) = place(buffer);
        self.chunks[chunk].receives.bytes(index, length)
    }

    /// Whether so few are left that peers, who may send more than there are, could find none.
    fn is_scarce(&self) -> bool {
        self.owed > self.total() && self.posted < self.total() / 4
    }

    fn total(&self) -> u32 {
        u32::try_from(self.chunks.len()).expect("chunks are few") * u32::from(CHUNK)
    }
}

/// In which chunk a receive lies, and its number there.
fn place(buffer: u32) -> (usize, u32) {
    let chunk = u32::from(CHUNK);
    ((buffer / chunk) as usize, buffer % chunk)
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: made by us, destroyed once; queue pairs go before, and the buffers after.
        let result = unsafe { (self.library.destroy_srq)(self.srq) };
        debug_assert!(super::adapter::is_gone(result), "a shared receive queue stays: {result}");
    }
}

/// Memory of one connection for messages which cannot stay where they have come. The system gives it page by page, as it
/// is written to.
pub(super) struct Spill {
    receives: Receives,
    free: Vec<u32>,
    count: usize,
    /// It may have pages.
    touched: bool,
}

impl Spill {
    /// For so many messages of so many bytes.
    pub(super) fn new(memory: &Rc<Memory>, count: u16, size: u32) -> io::Result<Self> {
        let free = (0..u32::from(count)).rev().collect();
        Ok(Self { receives: Receives::new(memory, count, size)?, free, count: count.into(), touched: false })
    }

    /// The number here of a message which was copied.
    pub(super) const fn number(buffer: u32) -> Option<u32> {
        if buffer & SPILLED == 0 { None } else { Some(buffer & !SPILLED) }
    }

    /// A peer which sends more than it may finds none.
    fn take(&mut self) -> Option<u32> {
        let place = self.free.pop()?;
        self.touched = true;
        Some(place)
    }

    pub(super) fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }

    pub(super) fn buffer(&self, place: u32) -> Sge {
        self.receives.buffer(place)
    }

    pub(super) fn bytes(&self, place: u32, length: u32) -> &[u8] {
        self.receives.bytes(place, length)
    }

    /// Gives the pages back to the system, if none is in use.
    pub(super) fn sweep(&mut self, memory: &Memory) {
        if self.touched && self.free.len() == self.count {
            let region = memory.region(self.receives.lkey());
            self.touched = region.discard(0, region.len()).is_err();
        }
    }
}
