//! Who of this process uses an adapter, so that one which is taken away can go when the last has let go of it.
//!
//! librdmacm opens an adapter once for the whole process and keeps it open, while kernels wait for that to end where the
//! driver cannot take itself away from programs (rxe and siw cannot). So the last one here closes it in its stead: it puts
//! something else under the descriptors, which librdmacm may close whenever it likes.
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rdma_sys::ibv_context;

/// An adapter of this process.
struct Open {
    /// Where librdmacm has it, by which it is known.
    context: usize,
    descriptors: [RawFd; 2],
    users: usize,
    removed: bool,
}

static ADAPTERS: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// That somebody uses an adapter. It goes before the identifier which keeps the adapter open, and after all that was
/// made of it.
pub(super) struct InUse {
    context: usize,
}

impl InUse {
    /// # Safety
    /// The adapter is open, and is kept open for longer than this lives.
    pub(super) unsafe fn new(context: *mut ibv_context) -> Self {
        // SAFETY: the caller's promise.
        let ibv_context { cmd_fd, async_fd, .. } = unsafe { &*context };
        Self::of(context.addr(), [*cmd_fd, *async_fd])
    }

    fn of(context: usize, descriptors: [RawFd; 2]) -> Self {
        with_all(|all| match all.iter_mut().find(|open| open.context == context) {
            Some(open) => open.users += 1,
            None => all.push(Open { context, descriptors, users: 1, removed: false }),
        });
        Self { context }
    }

    /// The adapter is taken away.
    pub(super) fn is_removed(&self) {
        with_all(|all| {
            let ours = all.iter_mut().find(|open| open.context == self.context);
            ours.expect("it is in use").removed = true;
        });
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let last = with_all(|all| {
            let index = all.iter().position(|open| open.context == self.context).expect("it is in use");
            all[index].users -= 1;
            (all[index].users == 0).then(|| all.swap_remove(index))
        });
        if let Some(Open { descriptors, .. }) = last.filter(|open| open.removed)
            && let Err(error) = replace(descriptors)
        {
            tracing::debug!(%error, "an adapter that was taken away stays open");
        }
    }
}

fn with_all<T>(act: impl FnOnce(&mut Vec<Open>) -> T) -> T {
    act(&mut ADAPTERS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Closes what lies under the descriptors, and keeps them taken.
fn replace(descriptors: [RawFd; 2]) -> io::Result<()> {
    let nothing = File::open("/dev/null")?;
    for descriptor in descriptors {
        // SAFETY: a descriptor of the adapter, which is kept open; nothing that is left of it is used any more.
        let result = unsafe { libc::dup3(nothing.as_raw_fd(), descriptor, libc::O_CLOEXEC) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_to_use_an_adapter_that_was_taken_away_closes_it_and_nobody_closes_another() {
        for (context, removed) in [(usize::MAX, false), (usize::MAX - 1, true)] {
            let (reader, mut writer) = io::pipe().unwrap();
            let descriptors = [reader.as_raw_fd(), reader.as_raw_fd()];
            let (first, second) = (InUse::of(context, descriptors), InUse::of(context, descriptors));
            if removed {
                first.is_removed();
            }
            drop(first);
            writer.write_all(b"open").unwrap();
            drop(second);
            assert_eq!(writer.write_all(b"open").is_err(), removed);
            // Whoever had opened it closes it at last.
            drop(reader);
        }
    }
}
