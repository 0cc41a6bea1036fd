//! The thread which owns the listeners: it hands each connection to one reactor, for good.
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{self, JoinHandle};

#[cfg(feature = "ibv")]
use ironside_common::provider::ibv;
use ironside_common::provider::tcp;
use ironside_common::reactor::Sender;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::catalog::{Listener, Way};
use crate::reactor::Letter;

/// How long to let the system recover when it has no descriptors left for a new connection.
const EXHAUSTED_PAUSE_MS: u16 = 500;

/// A listener, open.
pub struct Door {
    listener: Listener,
    kind: Kind,
}

enum Kind {
    Software(TcpListener),
    #[cfg(feature = "ibv")]
    Adapter(ibv::Listener),
}

impl Door {
    /// Listens.
    ///
    /// # Errors
    /// What the system says, the address being in use for example.
    pub fn open(listener: Listener) -> io::Result<Self> {
        let kind = match listener.by {
            Way::Software => {
                let socket = tcp::listen(listener.address)?;
                socket.set_nonblocking(true)?;
                Kind::Software(socket)
            }
            #[cfg(feature = "ibv")]
            Way::Adapter => Kind::Adapter(ibv::Listener::bind(listener.address)?),
            #[cfg(not(feature = "ibv"))]
            Way::Adapter => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self { listener, kind })
    }

    pub const fn listener(&self) -> Listener {
        self.listener
    }

    /// The next connection, if one waits.
    fn accept(&self) -> Option<Letter> {
        match &self.kind {
            Kind::Software(socket) => accept(socket),
            #[cfg(feature = "ibv")]
            Kind::Adapter(listener) => listener.next().map(|incoming| Letter::Welcome(Box::new(incoming))),
        }
    }
}

impl Door {
    /// Readable when an adapter has something to say of itself.
    fn news(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Kind::Software(_) => None,
            #[cfg(feature = "ibv")]
            Kind::Adapter(listener) => Some(listener.adapter_news()),
        }
    }

    fn log_news(&self) {
        match &self.kind {
            Kind::Software(_) => {}
            #[cfg(feature = "ibv")]
            Kind::Adapter(listener) => listener.log_adapter_news(),
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Software(socket) => socket.as_fd(),
            #[cfg(feature = "ibv")]
            Kind::Adapter(listener) => listener.as_fd(),
        }
    }
}

/// The acceptor at work. Dropping its `stop` end, or [`Acceptor::stop`], ends it.
pub struct Acceptor {
    stop: OwnedFd,
    thread: JoinHandle<Vec<Door>>,
}

impl Acceptor {
    /// Starts to accept at `doors`.
    ///
    /// # Errors
    /// When the system has no pipe or thread left.
    pub fn start(doors: Vec<Door>, reactors: Vec<Sender<Letter>>) -> io::Result<Self> {
        let (wake, stop) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let thread = thread::Builder::new().name("acceptor".into()).spawn(move || {
            accept_until_told(&doors, &reactors, &wake);
            doors
        })?;
        Ok(Self { stop, thread })
    }

    /// Accepts nothing more, and gives the doors back, with whoever waits at them.
    pub fn stop(self) -> Vec<Door> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|_| {
            tracing::error!("the acceptor had panicked");
            Vec::new()
        })
    }
}

fn accept_until_told(doors: &[Door], reactors: &[Sender<Letter>], wake: &OwnedFd) {
    let mut next = 0;
    loop {
        let news = doors.iter().filter_map(Door::news);
        let sources = doors.iter().map(AsFd::as_fd).chain(news).chain([wake.as_fd()]);
        let mut descriptors: Vec<_> = sources.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut descriptors, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return tracing::error!(%error, "waiting for connections fails"),
        }
        let fired = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        if descriptors.last().is_some_and(fired) {
            return;
        }
        for door in doors {
            door.log_news();
            while let Some(letter) = door.accept() {
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
