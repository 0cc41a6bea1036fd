//! The socket, and who is at it. Nothing here waits: a client which sends half a request, or does not take its answer, costs the
//! others nothing, and has to go when its time is over.
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ironside_common::time::Time;
use ironside_common::unix_socket::{PlaceError, make_room};
use nix::poll::{PollFd, PollFlags};
use nix::sys::stat::{Mode, umask};

use super::{Framer, RpcError};

/// Clients at once.
pub const CLIENTS_MAX: usize = 64;
/// How long a client has to send the rest of a request, or to take an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes read at a time.
const PIECE: usize = 64 << 10;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("{path} is the control socket of a target which runs: end that, or give another --control (control in a file)", path = .0.display())]
    InUse(PathBuf),
    #[error("{path} is no socket, and stays as it is: give another --control (control in a file)", path = .0.display())]
    NoSocket(PathBuf),
    #[error("no control socket can be made at {path}{hint}", path = .0.display(), hint = hint(.1))]
    Bind(PathBuf, #[source] io::Error),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => ": make its directory first",
        io::ErrorKind::PermissionDenied => ": choose a directory this user may write",
        io::ErrorKind::InvalidInput => ": a socket's path has 107 bytes at most",
        _ => "",
    }
}

/// The socket, which goes with it.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// Which file it made.
    inode: u64,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    framer: Framer,
    /// What it has not taken yet.
    answer: Vec<u8>,
    taken: usize,
    /// When it last sent or took something.
    active: Time,
    /// Nothing more is read; it goes with its last answer.
    closing: bool,
}

impl Server {
    /// Makes the socket, for this user alone. Call it before there are other threads: files they made meanwhile would be for
    /// this user alone as well.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn bind(path: &Path) -> Result<Self, ControlError> {
        let failed = |error| ControlError::Bind(path.to_owned(), error);
        // A target which was killed leaves its socket behind.
        make_room(path).map_err(|error| match error {
            PlaceError::InUse(path) => ControlError::InUse(path),
            PlaceError::NoSocket(path) => ControlError::NoSocket(path),
            PlaceError::Io(error) => failed(error),
        })?;
        let mask = umask(Mode::from_bits_truncate(0o177));
        let bound = UnixListener::bind(path);
        umask(mask);
        let listener = bound.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let inode = std::fs::metadata(path).map_err(failed)?.ino();
        Ok(Self { listener, path: path.to_owned(), inode, clients: Vec::new() })
    }

    /// What to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener = PollFd::new(self.listener.as_fd(), PollFlags::POLLIN);
        let clients = self.clients.iter().map(|one| PollFd::new(one.stream.as_fd(), one.wants()));
        std::iter::once(listener).chain(clients)
    }

    /// When there is something to do even if nobody says anything.
    pub fn deadline(&self) -> Option<Time> {
        self.clients.iter().filter(|one| one.is_pressed()).map(|one| one.active + PATIENCE).min()
    }

    /// Accepts who has come, and does one request of each who has sent one. Says whether there is more to do at once.
    pub fn turn(&mut self, now: Time, answer: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>) -> bool {
        self.accept(now);
        let mut more = false;
        self.clients.retain_mut(|client| match client.turn(now, answer) {
            Ok(busy) => {
                more |= busy;
                !(client.is_pressed() && now >= client.active + PATIENCE)
            }
            Err(_) => false,
        });
        more
    }

    fn accept(&mut self, now: Time) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return tracing::warn!(%error, "a control connection cannot be accepted"),
            };
            if let Err(error) = stream.set_nonblocking(true) {
                tracing::warn!(%error, "a control connection cannot be used");
                continue;
            }
            if self.clients.len() >= CLIENTS_MAX && !self.make_room() {
                tracing::warn!("{CLIENTS_MAX} clients are at the control socket, and one more is hung up on");
                continue;
            }
            let (framer, answer) = (Framer::default(), Vec::new());
            self.clients.push(Client { stream, framer, answer, taken: 0, active: now, closing: false });
        }
    }

    /// Hangs up on the client which has said nothing for longest, unless it waits for something.
    fn make_room(&mut self) -> bool {
        let idle = self.clients.iter().enumerate().filter(|(_, client)| !client.is_pressed());
        let Some((index, _)) = idle.min_by_key(|(_, client)| client.active) else { return false };
        self.clients.remove(index);
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Somebody may have put another one there.
        if std::fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Client {
    /// Whether it has begun something which it has to go on with.
    fn is_pressed(&self) -> bool {
        self.closing || self.framer.is_partial() || self.taken < self.answer.len()
    }

    fn wants(&self) -> PollFlags {
        match self.taken < self.answer.len() {
            true => PollFlags::POLLOUT,
            false => PollFlags::POLLIN,
        }
    }

    /// Sends what is to be sent; only then reads on, and does a request. True if another one may be there already.
    fn turn(&mut self, now: Time, answer: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>) -> io::Result<bool> {
        if !self.send(now)? {
            return Ok(false);
        }
        if self.closing {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        // What has come is done before more is read: a client which sends ahead waits, and costs no memory.
        let (mut request, mut ended) = (self.framer.take(), false);
        if matches!(request, Ok(None)) {
            ended = self.receive(now)?;
            request = self.framer.take();
        }
        match request {
            Ok(Some(request)) => {
                self.answer = answer(&request).unwrap_or_default();
                self.taken = 0;
                self.active = now;
                self.send(now)?;
                return Ok(self.framer.is_partial());
            }
            Ok(None) => {}
            Err(error) => {
                // There is no telling where the next request begins.
                self.closing = true;
                let error = RpcError::parse(error.to_string()).to_json();
                let answer = serde_json::json!({ "jsonrpc": "2.0", "id": null, "error": error });
                (self.answer, self.taken) = (format!("{answer}\n").into_bytes(), 0);
                self.send(now)?;
                return Ok(true);
            }
        }
        if ended { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(false) }
    }

    /// Whether all has been taken.
    fn send(&mut self, now: Time) -> io::Result<bool> {
        while self.taken < self.answer.len() {
            match (&self.stream).write(&self.answer[self.taken..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.taken += count;
                    self.active = now;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.answer = Vec::new();
        self.taken = 0;
        Ok(true)
    }

    /// Takes a piece of what has come. True if nothing more will.
    fn receive(&mut self, now: Time) -> io::Result<bool> {
        let mut piece = [0; PIECE];
        match (&self.stream).read(&mut piece) {
            Ok(0) => Ok(true),
            Ok(count) => {
                // A request begun is not kept alive by a byte now and then.
                if !self.framer.is_partial() {
                    self.active = now;
                }
                self.framer.push(&piece[..count]);
                Ok(false)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
