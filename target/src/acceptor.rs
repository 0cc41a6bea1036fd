//! The thread which owns the listeners: it hands each connection to one reactor, for good.
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::Duration;

#[cfg(feature = "ibv")]
use ironside_common::provider::ibv;
use ironside_common::provider::{shm, tcp};
use ironside_common::reactor::Sender;
use ironside_common::verbs::Address;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::catalog::{Listener, Way};
use crate::reactor::Letter;

/// How long to let the system recover when it has no descriptors left for a new connection.
const EXHAUSTED_PAUSE_MS: u16 = 500;

/// How long a listener whose adapter is away waits until it looks for it; twice as long each time, up to the second.
const FIRST_LOOK: Duration = Duration::from_millis(250);
const LAST_LOOK: Duration = Duration::from_secs(8);

/// A listener, open.
pub struct Door {
    listener: Listener,
    kind: Kind,
}

enum Kind {
    Software(TcpListener),
    /// Software too, through memory of this machine.
    Memory(shm::Listener),
    #[cfg(feature = "ibv")]
    Adapter(ibv::Listener),
}

impl Door {
    /// Takes the address. Connections over adapters come from [`Self::listen`] on; software's wait until then.
    ///
    /// # Errors
    /// What the system says, the address being in use for example.
    pub fn bind(listener: Listener) -> io::Result<Self> {
        let kind = match (listener.by, listener.address) {
            (Way::Software, Address::Ip(address)) => {
                let socket = tcp::listen(address)?;
                socket.set_nonblocking(true)?;
                Kind::Software(socket)
            }
            (Way::Software, Address::Path(path)) => Kind::Memory(shm::Listener::bind(path.as_path())?),
            #[cfg(feature = "ibv")]
            (Way::Adapter, Address::Ip(address)) => Kind::Adapter(ibv::Listener::bind(address)?),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self { listener, kind })
    }

    /// Listens.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn listen(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Software(_) | Kind::Memory(_) => Ok(()),
            #[cfg(feature = "ibv")]
            Kind::Adapter(listener) => listener.listen(),
        }
    }

    pub const fn listener(&self) -> Listener {
        self.listener
    }

    /// The next connection, if one waits.
    fn accept(&mut self) -> Option<Letter> {
        match &mut self.kind {
            Kind::Software(socket) => accept(socket),
            Kind::Memory(listener) => admit(listener, self.listener.address),
            #[cfg(feature = "ibv")]
            Kind::Adapter(listener) => {
                listener.log_adapter_news();
                listener.accept().map(|incoming| Letter::Welcome(Box::new(incoming)))
            }
        }
    }

    /// Readable when somebody waits, or an adapter has something to say.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.kind {
            Kind::Software(socket) => vec![socket.as_fd()],
            Kind::Memory(listener) => vec![listener.as_fd()],
            #[cfg(feature = "ibv")]
            Kind::Adapter(listener) => listener.descriptors().collect(),
        }
    }

    /// Whether its adapter is away.
    const fn is_lost(&self) -> bool {
        match &self.kind {
            Kind::Software(_) | Kind::Memory(_) => false,
            #[cfg(feature = "ibv")]
            Kind::Adapter(listener) => listener.is_lost(),
        }
    }

    /// Looks whether its adapter has come back. Reactors get ready for it before the first host comes.
    #[cfg(feature = "ibv")]
    fn recover(&mut self, reactors: &[Sender<Letter>]) {
        let (Kind::Adapter(listener), Address::Ip(at)) = (&mut self.kind, self.listener.address) else {
            return;
        };
        if let Err(error) = listener.bind_again() {
            return tracing::debug!(%at, %error, "the adapter is away");
        }
        for reactor in reactors {
            // One that is gone needs no adapter.
            let _ = reactor.send(Letter::Adapter(at));
        }
        match listener.listen() {
            Ok(()) => tracing::info!(%at, "the adapter is back"),
            Err(error) => tracing::error!(%at, %error, "the adapter is back, but cannot be listened at"),
        }
    }

    #[cfg(not(feature = "ibv"))]
    fn recover(&mut self, _: &[Sender<Letter>]) {}
}

/// The acceptor at work. Dropping its `stop` end, or [`Acceptor::stop`], ends it.
pub struct Acceptor {
    stop: OwnedFd,
    thread: JoinHandle<Vec<Door>>,
}

impl Acceptor {
    /// Starts to accept at `doors`, which listen.
    ///
    /// # Errors
    /// When the system has no pipe, timer or thread left.
    pub fn start(mut doors: Vec<Door>, reactors: Vec<Sender<Letter>>) -> io::Result<Self> {
        let (wake, stop) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let mut looks = Looks::new()?;
        let thread = thread::Builder::new().name("acceptor".into()).spawn(move || {
            accept_until_told(&mut doors, &reactors, &wake, &mut looks);
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

/// When to look for adapters that are away.
struct Looks {
    timer: TimerFd,
    pause: Duration,
}

impl Looks {
    fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        Ok(Self { timer, pause: FIRST_LOOK })
    }

    /// Looks, if it is time for that, and sees to it that it will be again as long as one is away.
    fn look(&mut self, due: bool, doors: &mut [Door], reactors: &[Sender<Letter>]) -> nix::Result<()> {
        if due {
            self.timer.unset()?;
            doors.iter_mut().filter(|door| door.is_lost()).for_each(|door| door.recover(reactors));
            self.pause = (2 * self.pause).min(LAST_LOOK);
        }
        if !doors.iter().any(Door::is_lost) {
            self.pause = FIRST_LOOK;
        } else if self.timer.get()?.is_none() {
            let once = Expiration::OneShot(self.pause.into());
            self.timer.set(once, TimerSetTimeFlags::empty())?;
        }
        Ok(())
    }
}

fn accept_until_told(doors: &mut [Door], reactors: &[Sender<Letter>], wake: &OwnedFd, looks: &mut Looks) {
    let mut next = 0;
    // A door may have been handed over with its adapter away.
    let mut due = false;
    loop {
        if let Err(error) = looks.look(due, doors, reactors) {
            tracing::error!(%error, "adapters which are away are not looked for: a timer fails");
        }
        let ends = [looks.timer.as_fd(), wake.as_fd()];
        let sources = doors.iter().flat_map(Door::descriptors).chain(ends);
        let mut descriptors: Vec<_> = sources.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut descriptors, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return tracing::error!(%error, "waiting for connections fails"),
        }
        let fired = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let [.., timer, wake] = &descriptors[..] else { unreachable!("both are there") };
        if fired(wake) {
            return;
        }
        due = fired(timer);
        for door in &mut *doors {
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
            Err(error) if is_over(&error) => return None,
            Err(_) => {}
        }
    }
}

/// Whoever comes to a socket of this machine.
fn admit(listener: &shm::Listener, local: Address) -> Option<Letter> {
    loop {
        match listener.accept() {
            Ok(visitor) => {
                let peer = Address::Process { id: visitor.process, user: visitor.user };
                tracing::debug!(%peer, %local, "a process of this machine has come");
                return Some(Letter::Admit { visitor, peer, local });
            }
            Err(error) if is_over(&error) => return None,
            Err(_) => {}
        }
    }
}

/// Whether nobody more can be accepted for now.
fn is_over(error: &io::Error) -> bool {
    match error.kind() {
        io::ErrorKind::WouldBlock => return true,
        io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            tracing::debug!(%error, "a connection was gone before it was accepted");
            return false;
        }
        _ => tracing::warn!(%error, "a connection cannot be accepted; is the limit of open files too low?"),
    }
    let _ = poll(&mut [], EXHAUSTED_PAUSE_MS);
    true
}
