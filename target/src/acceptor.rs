//! The thread which owns the listeners: it hands each connection to one reactor, for good.
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};

use ironside_common::reactor::Sender;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::reactor::Letter;

/// How long to let the system recover when it has no descriptors left for a new connection.
const EXHAUSTED_PAUSE_MS: u16 = 500;

/// The acceptor at work. Dropping its `stop` end, or [`Acceptor::stop`], ends it.
pub struct Acceptor {
    stop: OwnedFd,
    thread: JoinHandle<Vec<TcpListener>>,
}

impl Acceptor {
    /// Starts to accept on `listeners`.
    ///
    /// # Errors
    /// When the system has no pipe or thread left.
    pub fn start(listeners: Vec<TcpListener>, reactors: Vec<Sender<Letter>>) -> io::Result<Self> {
        for listener in &listeners {
            listener.set_nonblocking(true)?;
        }
        let (wake, stop) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let thread = thread::Builder::new().name("acceptor".into()).spawn(move || {
            accept_until_told(&listeners, &reactors, &wake);
            listeners
        })?;
        Ok(Self { stop, thread })
    }

    /// Accepts nothing more, and gives the listeners back, with whoever waits at them.
    pub fn stop(self) -> Vec<TcpListener> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|_| {
            tracing::error!("the acceptor had panicked");
            Vec::new()
        })
    }
}

fn accept_until_told(listeners: &[TcpListener], reactors: &[Sender<Letter>], wake: &OwnedFd) {
    let mut next = 0;
    loop {
        let sources = listeners.iter().map(AsFd::as_fd).chain([wake.as_fd()]);
        let mut descriptors: Vec<_> = sources.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut descriptors, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return tracing::error!(%error, "waiting for connections fails"),
        }
        let fired = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        if descriptors.last().is_some_and(fired) {
            return;
        }
        for listener in listeners {
            while let Some(letter) = accept(listener) {
                // A mailbox that is gone means that the daemon is ending; the connection is closed.
                let _ = reactors[next % reactors.len()].send(letter);
                next += 1;
            }
        }
    }
}

fn accept(listener: &TcpListener) -> Option<Letter> {
    loop {
        match listener.accept() {
            Ok((socket, peer)) => {
                let local: io::Result<SocketAddr> = socket.local_addr();
                match local {
                    Ok(local) => return Some(Letter::Adopt { socket, peer, local }),
                    Err(error) => tracing::debug!(%peer, %error, "gone before it was accepted"),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                tracing::debug!(%error, "a connection was gone before it was accepted");
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted; is the limit of open files too low?");
                let _ = poll(&mut [], EXHAUSTED_PAUSE_MS);
                return None;
            }
        }
    }
}
