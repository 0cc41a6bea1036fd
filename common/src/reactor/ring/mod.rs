//! The storage ring of one reactor: one io_uring instance, and what it keeps alive for the kernel.
//!
//! Memory is named by [`Sge`] and checked against the regions of [`Memory`], which the ring holds. Files
//! are held by the ring too. Queueing never fails: what does not fit the submission queue waits in a
//! backlog. Nothing reaches the kernel before [`Ring::submit`] or [`Ring::wait`].
mod setup;
#[cfg(test)]
mod tests;
mod ublk;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use nix::fcntl::FallocateFlags;
use nix::poll::PollFlags;
use slab::Slab;

use setup::Completions;
pub use setup::RingError;
pub use ublk::{UblkCommand, UblkTag};

use super::clock;
use crate::memory::{Memory, Region};
use crate::verbs::{Sge, Token};

/// Files the kernel keeps in its own table for this ring. More are possible, at a look-up each.
const FIXED_FILES: u32 = 256;
/// Regions which can be registered, by their number.
const FIXED_REGIONS: u32 = 1024;
/// The most the kernel takes as one registered buffer.
const LARGEST_BUFFER: usize = 1 << 30;
/// The name of the ring's own operations, which no token has.
const INTERNAL: u64 = 0;
/// How long a ring which is dropped waits for the kernel to let go of its memory, and how often it asks.
const LAST_WAIT: Duration = Duration::from_secs(2);
const LAST_WAIT_PART: Duration = Duration::from_millis(100);

/// A file known to one ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RingFile(u32);

/// How a write is to be done.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Flags {
    #[default]
    None,
    /// The completion means durable: the data, and the metadata needed to find it (`RWF_DSYNC`).
    Durable,
}

/// One io_uring instance, owned by the thread which made it.
pub struct Ring {
    uring: IoUring,
    memory: Rc<Memory>,
    files: Slab<Arc<OwnedFd>>,
    fixed_files: bool,
    /// The regions the kernel has registered, which stay mapped as long as it has.
    regions: Vec<Option<Arc<Region>>>,
    backlog: VecDeque<squeue::Entry>,
    /// Operations queued and not reaped.
    in_flight: usize,
    completions: Completions,
}

impl Ring {
    /// A ring for `entries` operations between two submissions.
    ///
    /// # Errors
    /// See [`RingError`]: each says what to do.
    pub fn new(entries: u32, memory: Rc<Memory>) -> Result<Self, RingError> {
        Self::build(entries, memory, Completions::Announced)
    }

    /// A ring for reads and writes only, of files whose device is polled: their completions are found by
    /// [`Ring::submit`], which looks, and by nothing else. What cannot be polled fails with `EOPNOTSUPP`.
    ///
    /// # Errors
    /// See [`RingError`].
    pub fn polled(entries: u32, memory: Rc<Memory>) -> Result<Self, RingError> {
        Self::build(entries, memory, Completions::LookedFor)
    }

    fn build(entries: u32, memory: Rc<Memory>, completions: Completions) -> Result<Self, RingError> {
        let uring = setup::build(entries, completions)?;
        // Both tables are optimisations; an older kernel is served without them.
        let fixed_files = uring.submitter().register_files_sparse(FIXED_FILES).is_ok();
        let fixed_regions = uring.submitter().register_buffers_sparse(FIXED_REGIONS).is_ok();
        let regions = vec![None; if fixed_regions { FIXED_REGIONS as usize } else { 0 }];
        let backlog = VecDeque::with_capacity(entries as usize * 4);
        Ok(Self {
            uring,
            memory,
            files: Slab::new(),
            fixed_files,
            regions,
            backlog,
            in_flight: 0,
            completions,
        })
    }

    /// The regions whose memory this ring can name.
    #[must_use]
    pub const fn memory(&self) -> &Rc<Memory> {
        &self.memory
    }

    /// Operations which have not been reaped yet.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Pins a region and registers it with the kernel, which makes transfers cheaper. Says whether the
    /// kernel took it: it may lack memory it is allowed to lock. Transfers work in either case.
    pub fn register_region(&mut self, lkey: u32) -> bool {
        let region = self.memory.region(lkey);
        let Some(slot) = self.regions.get_mut(lkey as usize) else { return false };
        if region.len() > LARGEST_BUFFER {
            return false;
        }
        region.prefer_huge_pages();
        let buffer =
            libc::iovec { iov_base: region.pointer(0, region.len()).as_ptr().cast(), iov_len: region.len() };
        // SAFETY: the memory stays mapped until the kernel has let go of it: the ring holds the region
        // from here on, and drops it only after the update in `unregister_region`, or with the ring.
        let registered = unsafe { self.uring.submitter().register_buffers_update(lkey, &[buffer], None) };
        *slot = registered.is_ok().then_some(region);
        slot.is_some()
    }

    /// Takes a region back from the kernel. Nothing in flight may name it any more.
    pub fn unregister_region(&mut self, lkey: u32) {
        let Some(region) = self.regions.get_mut(lkey as usize).and_then(Option::take) else { return };
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: an empty buffer names no memory.
        let result = unsafe { self.uring.submitter().register_buffers_update(lkey, &[nothing], None) };
        if result.is_err() {
            // The kernel still has it, so it stays mapped for ever.
            mem::forget(region);
        }
    }

    /// Makes a file known to the ring, which keeps it open.
    ///
    /// # Panics
    /// After four billion files.
    pub fn add_file(&mut self, file: Arc<OwnedFd>) -> RingFile {
        let fd = file.as_raw_fd();
        let index = u32::try_from(self.files.insert(file)).expect("files are few");
        if self.fixed_files && index < FIXED_FILES {
            let taken = self.uring.submitter().register_files_update(index, &[fd]);
            // A kernel that made the table but takes no file into it serves all files the other way; those
            // already in it keep working, for they are known by descriptor as well.
            self.fixed_files = taken.is_ok();
        }
        RingFile(index)
    }

    /// Forgets a file. What is in flight for it still completes.
    ///
    /// # Errors
    /// When queued operations cannot be handed to the kernel before.
    ///
    /// # Panics
    /// If the ring does not know it.
    pub fn remove_file(&mut self, file: RingFile) -> Result<(), RingError> {
        self.submit()?;
        self.files.remove(file.0 as usize);
        if self.fixed_files && file.0 < FIXED_FILES {
            const EMPTY: RawFd = -1;
            self.uring.submitter().register_files_update(file.0, &[EMPTY])?;
        }
        Ok(())
    }

    /// Reads at `offset` of the file into `into`; completes with the number of bytes.
    pub fn read(&mut self, file: RingFile, offset: u64, into: Sge, token: Token) {
        let memory = self.memory.pointer(into).as_ptr();
        let entry = match (self.fixed(file), self.registered(into)) {
            (Ok(fixed), Some(index)) => {
                opcode::ReadFixed::new(fixed, memory, into.length, index).offset(offset).build()
            }
            (Err(fd), Some(index)) => {
                opcode::ReadFixed::new(fd, memory, into.length, index).offset(offset).build()
            }
            (Ok(fixed), None) => opcode::Read::new(fixed, memory, into.length).offset(offset).build(),
            (Err(fd), None) => opcode::Read::new(fd, memory, into.length).offset(offset).build(),
        };
        self.push(entry.user_data(token.to_bits()));
    }

    /// Writes `from` at `offset` of the file; completes with the number of bytes.
    pub fn write(&mut self, file: RingFile, offset: u64, from: Sge, flags: Flags, token: Token) {
        let memory = self.memory.pointer(from).as_ptr().cast_const();
        let flags = match flags {
            Flags::None => 0,
            Flags::Durable => libc::RWF_DSYNC,
        };
        let entry = match (self.fixed(file), self.registered(from)) {
            (Ok(fixed), Some(index)) => opcode::WriteFixed::new(fixed, memory, from.length, index)
                .offset(offset)
                .rw_flags(flags)
                .build(),
            (Err(fd), Some(index)) => {
                opcode::WriteFixed::new(fd, memory, from.length, index).offset(offset).rw_flags(flags).build()
            }
            (Ok(fixed), None) => {
                opcode::Write::new(fixed, memory, from.length).offset(offset).rw_flags(flags).build()
            }
            (Err(fd), None) => {
                opcode::Write::new(fd, memory, from.length).offset(offset).rw_flags(flags).build()
            }
        };
        self.push(entry.user_data(token.to_bits()));
    }

    /// Makes all completed writes of the file durable, with the metadata needed to find the data.
    pub fn fdatasync(&mut self, file: RingFile, token: Token) {
        let entry = match self.fixed(file) {
            Ok(fixed) => opcode::Fsync::new(fixed).flags(FsyncFlags::DATASYNC).build(),
            Err(fd) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        self.push(entry.user_data(token.to_bits()));
    }

    /// Changes how a range of the file is allocated; see fallocate(2).
    pub fn fallocate(
        &mut self,
        file: RingFile,
        mode: FallocateFlags,
        offset: u64,
        length: u64,
        token: Token,
    ) {
        let entry = match self.fixed(file) {
            Ok(fixed) => opcode::Fallocate::new(fixed, length).offset(offset).mode(mode.bits()).build(),
            Err(fd) => opcode::Fallocate::new(fd, length).offset(offset).mode(mode.bits()).build(),
        };
        self.push(entry.user_data(token.to_bits()));
    }

    /// Completes once when the descriptor is ready for one of `events`, with the events that are. The
    /// descriptor stays open until the next submission; afterwards the kernel holds on to what it names.
    pub fn poll_once(&mut self, fd: BorrowedFd<'_>, events: PollFlags, token: Token) {
        let events = u32::from(events.bits().cast_unsigned());
        let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), events).build();
        self.push(entry.user_data(token.to_bits()));
    }

    /// Asks the kernel to cancel an operation. It completes in any case: cancelled (`ECANCELED`), or as
    /// it would have.
    pub fn cancel(&mut self, token: Token) {
        self.push(opcode::AsyncCancel::new(token.to_bits()).build().user_data(INTERNAL));
    }

    /// Hands what is queued to the kernel, and lets it post completions. A polled ring looks once for those of
    /// the device.
    ///
    /// # Errors
    /// When the ring itself is broken.
    pub fn submit(&mut self) -> Result<(), RingError> {
        loop {
            self.drain_backlog();
            let has_to_look = self.completions == Completions::LookedFor && self.in_flight > 0;
            let queue = self.uring.submission();
            if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() && !has_to_look {
                return Ok(());
            }
            drop(queue);
            tolerate(self.uring.submit())?;
            if self.backlog.is_empty() || self.uring.submission().is_full() {
                return Ok(());
            }
        }
    }

    /// Submits, and sleeps until there is a completion or the time is over, all in one call of the kernel. Signals end it
    /// early.
    ///
    /// # Errors
    /// When the ring itself is broken.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), RingError> {
        self.drain_backlog();
        if !self.uring.completion().is_empty() || !self.backlog.is_empty() {
            self.submit()?;
            if !self.uring.completion().is_empty() || !self.backlog.is_empty() {
                return Ok(());
            }
        }
        // A sleep which waits for a socket is not waiting for a drive, and shall not be counted as such.
        let flags = match self.uring.params().is_feature_no_iowait() {
            true => EnterFlags::NO_IOWAIT,
            false => EnterFlags::empty(),
        };
        let submitter = self.uring.submitter();
        let Some(timeout) = timeout.map(Timespec::from) else {
            return tolerate(submitter.submit_with_args_and_flags(1, &SubmitArgs::new(), flags));
        };
        tolerate(submitter.submit_with_args_and_flags(1, &SubmitArgs::new().timespec(&timeout), flags))
    }

    /// The next operation which has completed, with what the system call would have returned, or the
    /// negative errno.
    pub fn reap(&mut self) -> Option<(Token, i32)> {
        loop {
            let entry = self.uring.completion().next()?;
            self.in_flight -= 1;
            if let Some(token) = Token::from_bits(entry.user_data()) {
                return Some((token, entry.result()));
            }
        }
    }

    fn fixed(&self, file: RingFile) -> Result<Fixed, Fd> {
        if self.fixed_files && file.0 < FIXED_FILES {
            return Ok(Fixed(file.0));
        }
        Err(Fd(self.files[file.0 as usize].as_raw_fd()))
    }

    /// The kernel's number of the registered region which an element lies in. A number that has passed on
    /// to another region since is no match.
    fn registered(&self, sge: Sge) -> Option<u16> {
        let region = self.regions.get(sge.lkey as usize)?.as_ref()?;
        let offset = sge.address.checked_sub(region.address())?;
        let inside = offset + u64::from(sge.length) <= region.len() as u64;
        inside.then(|| u16::try_from(sge.lkey).ok()).flatten()
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.in_flight += 1;
        self.backlog.push_back(entry);
        self.drain_backlog();
    }

    fn drain_backlog(&mut self) {
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: memory named by an entry was checked to lie in a region of `memory`, which outlives
            // the operation: regions are taken out of it only when nothing in flight names them, and
            // `drop` waits for the kernel or leaks the table. Files are held, or by the kernel.
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
    }

    /// Waits until the kernel is done with everything; says whether it is.
    fn quiesce(&mut self) -> bool {
        self.in_flight -= self.backlog.len();
        self.backlog.clear();
        let end = clock::now() + LAST_WAIT;
        while self.in_flight > 0 && clock::now() < end {
            let now = Some(Timespec::new());
            // Nothing found to cancel, or not in time, or not known to this kernel: all alike, as what
            // counts is what has been reaped.
            let _ = self.uring.submitter().register_sync_cancel(now, CancelBuilder::any());
            if self.wait(Some(LAST_WAIT_PART)).is_err() {
                return false;
            }
            while self.reap().is_some() {}
        }
        self.in_flight == 0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.quiesce() {
            tracing::warn!(operations = self.in_flight, "the kernel keeps memory of a ring which has ended");
            mem::forget(Rc::clone(&self.memory));
        }
    }
}

/// Failures to enter which only mean to come again: interrupted, timed out, no memory for now, or too many
/// completions unreaped.
fn tolerate(entered: io::Result<usize>) -> Result<(), RingError> {
    match entered {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error.into()),
        },
    }
}
