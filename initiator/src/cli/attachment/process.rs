//! A process by a descriptor, which never comes to mean another one as a number may.
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

#[derive(Debug)]
pub(crate) struct Process {
    descriptor: OwnedFd,
}

impl Process {
    /// The process which has this number now. Whoever knows it by something that only lives as long as the
    /// process (a connection, a lock) and still has that afterwards has the right one.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { descriptor: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Waits for its end; says whether that came in time.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut descriptors = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut descriptors, timeout) {
                Err(nix::errno::Errno::EINTR) => {}
                other => return Ok(other? > 0),
            }
        }
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.descriptor, Signal::KILL)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_waited_for_and_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.wait(Duration::ZERO).unwrap());
        process.kill().unwrap();
        assert!(process.wait(Duration::from_secs(10)).unwrap());
        child.wait().unwrap();
        assert!(Process::open(child.id()).is_err());
        assert!(Process::open(0).is_err() && Process::open(u32::MAX).is_err());
    }
}
