//! The thread beside a reactor for what the kernel does only while somebody waits, and io_uring has no operation for:
//! letting two ranges of a file share their blocks. It is there once something is to be shared, and ends with its reactor.
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use ironside_common::reactor::Ring;
use ironside_common::verbs::{Kind, Token};
use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Calls under way at a time; who comes with more has to do without.
const CALLS_MAX: usize = 64;
/// The ring's name of the thread's bell: the last slot there could be.
pub(super) const BELL: Token = Token { kind: Kind::Medium, generation: 0, qpair: u16::MAX, slot: u16::MAX };

/// Bytes of a file which those from `offset` on are to share.
#[derive(Debug)]
pub(super) struct Call {
    pub token: Token,
    pub file: Arc<OwnedFd>,
    pub source: u64,
    pub offset: u64,
    pub length: u64,
}

/// The way to the thread, and back.
#[derive(Default)]
pub(super) struct Sharing {
    thread: Option<Thread>,
    under_way: usize,
    /// The ring polls the bell.
    is_watched: bool,
}

struct Thread {
    calls: SyncSender<Call>,
    answers: Receiver<(Token, i32)>,
    bell: Arc<EventFd>,
}

impl Sharing {
    /// Has a call made; says whether it will be. The answer comes by [`Self::on_ring`].
    pub(super) fn submit(&mut self, call: Call, ring: &mut Ring) -> bool {
        if self.under_way == CALLS_MAX {
            return false;
        }
        if self.thread.is_none() {
            match Thread::start() {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    tracing::warn!(%error, "no thread to share blocks of files on: they are copied");
                    return false;
                }
            }
        }
        // There is room for all that may be under way, and the thread waits for them.
        let taken = self.thread.as_ref().is_some_and(|thread| thread.calls.try_send(call).is_ok());
        self.under_way += usize::from(taken);
        self.watch(ring);
        taken
    }

    /// Has the ring wake by the bell as long as an answer is to come; to be called in each turn.
    pub(super) fn watch(&mut self, ring: &mut Ring) {
        if let Some(thread) = self.thread.as_ref().filter(|_| self.under_way > 0 && !self.is_watched) {
            self.is_watched = true;
            ring.poll_once(thread.bell.as_fd(), PollFlags::POLLIN, BELL);
        }
    }

    /// The bell has rung: [`Self::next`] has the answers.
    pub(super) fn on_ring(&mut self) {
        self.is_watched = false;
        if let Some(thread) = &self.thread {
            // Empty already is as good.
            let _ = thread.bell.read();
        }
    }

    /// The next call which has ended, as the ring tells of an operation.
    pub(super) fn next(&mut self) -> Option<(Token, i32)> {
        let answer = self.thread.as_ref()?.answers.try_recv().ok()?;
        self.under_way -= 1;
        Some(answer)
    }
}

impl Thread {
    fn start() -> io::Result<Self> {
        let (calls, taken) = sync_channel::<Call>(CALLS_MAX);
        let (answer, answers) = sync_channel(CALLS_MAX);
        let bell = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let bell = Arc::new(bell);
        let ringing = Arc::clone(&bell);
        thread::Builder::new().name("sharing".into()).spawn(move || {
            for call in taken {
                let (token, result) = (call.token, share(&call));
                // Whoever is told may want the file closed.
                drop(call);
                if answer.send((token, result)).is_err() {
                    // The reactor is gone.
                    return;
                }
                // It can only fail when the counter is full, and then the reactor wakes anyway.
                let _ = ringing.write(1);
            }
        })?;
        Ok(Self { calls, answers, bell })
    }
}

/// Zero, or the negative errno; see `FICLONERANGE` in ioctl_ficlonerange(2).
fn share(call: &Call) -> i32 {
    let file = call.file.as_raw_fd();
    let range = libc::file_clone_range {
        src_fd: file.into(),
        src_offset: call.source,
        src_length: call.length,
        dest_offset: call.offset,
    };
    // SAFETY: the descriptor is open, and the kernel reads one `file_clone_range`.
    let result = unsafe { libc::ioctl(file, libc::FICLONERANGE, &raw const range) };
    match result {
        0 => 0,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}
