//! What the target has done, as numbers which a Prometheus server collects: a thread of its own answers HTTP, and asks the
//! reactors. Each counts for itself, with neither lock nor atomic sum.
mod adapters;
mod http;
mod text;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ironside_common::provider::tcp;
use ironside_common::reactor::Sender;
use ironside_common::reactor::clock::now;
use ironside_common::time::Time;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::http::{Answer, Head};
use crate::reactor::{self, Letter};

/// Clients at once.
const CLIENTS_MAX: usize = 32;
/// How long a client has to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The thread at work. Dropping it ends it.
pub struct Metrics {
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Takes the address, for [`Metrics::start`].
///
/// # Errors
/// What the system says, the address being in use for example.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = tcp::listen(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Metrics {
    /// Begins to answer whoever comes to `listener`.
    ///
    /// # Errors
    /// When the system has no pipe or thread left.
    pub fn start(listener: TcpListener, reactors: Vec<Sender<Letter>>) -> io::Result<Self> {
        let (wake, stop) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let mut server = Server { listener, reactors, clients: Vec::new() };
        let thread = thread::Builder::new().name("metrics".into()).spawn(move || server.serve(&wake))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of metrics had panicked");
        }
    }
}

struct Server {
    listener: TcpListener,
    reactors: Vec<Sender<Letter>>,
    clients: Vec<Client>,
}

struct Client {
    stream: TcpStream,
    head: Head,
    answer: Vec<u8>,
    taken: usize,
    deadline: Time,
}

impl Server {
    fn serve(&mut self, wake: &OwnedFd) {
        loop {
            let deadline = self.clients.iter().map(|client| client.deadline).min();
            let timeout = deadline.map_or(PollTimeout::NONE, |at| {
                let rest_ms = at.since(now()).as_millis() + 1;
                PollTimeout::try_from(rest_ms).unwrap_or(PollTimeout::MAX)
            });
            let ends = [(wake.as_fd(), PollFlags::POLLIN), (self.listener.as_fd(), PollFlags::POLLIN)];
            let clients = self.clients.iter().map(|client| (client.stream.as_fd(), client.wants()));
            let mut descriptors: Vec<_> =
                ends.into_iter().chain(clients).map(|(fd, flags)| PollFd::new(fd, flags)).collect();
            match poll(&mut descriptors, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return tracing::error!(%error, "waiting for whoever wants metrics fails"),
            }
            if descriptors[0].revents().is_some_and(|events| !events.is_empty()) {
                return;
            }
            self.accept();
            self.turn(now());
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() < CLIENTS_MAX && stream.set_nonblocking(true).is_ok() {
                let (head, answer, deadline) = (Head::default(), Vec::new(), now() + PATIENCE);
                self.clients.push(Client { stream, head, answer, taken: 0, deadline });
            }
        }
    }

    fn turn(&mut self, now: Time) {
        let Self { clients, reactors, .. } = self;
        clients.retain_mut(|client| {
            now < client.deadline && client.turn(&mut || reactor::survey(reactors).ok()).unwrap_or(false)
        });
    }
}

impl Client {
    fn wants(&self) -> PollFlags {
        if self.answer.is_empty() { PollFlags::POLLIN } else { PollFlags::POLLOUT }
    }

    /// Whether it is to stay.
    fn turn(
        &mut self,
        survey: &mut dyn FnMut() -> Option<Vec<crate::poll_group::Survey>>,
    ) -> io::Result<bool> {
        let mut piece = [0; 4096];
        while self.answer.is_empty() {
            match self.stream.read(&mut piece) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    if let Some(wanted) = self.head.push(&piece[..count]) {
                        self.answer = match wanted {
                            Answer::Metrics => match survey() {
                                Some(surveys) => http::metrics(&text::render(&surveys)),
                                None => http::unavailable(),
                            },
                            Answer::Other(answer) => answer,
                        };
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        while self.taken < self.answer.len() {
            match self.stream.write(&self.answer[self.taken..]) {
                Ok(0) => return Ok(false),
                Ok(count) => self.taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}
