//! The Unix socket by which host and target meet.
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

use super::{ShmWire, handshake};
use crate::unix_socket::{PlaceError, make_room};

/// Who may connect: whoever may write the socket, which its owner's user and group may.
const MODE: Mode = Mode::from_bits_truncate(0o660);

/// A socket where hosts of this machine knock. Its file goes with it.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    socket: UnixListener,
}

impl Listener {
    /// Listens at `path`. A socket which was left there by somebody who is gone is replaced.
    ///
    /// # Errors
    /// When something else is there, or somebody listens there, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, PlaceError> {
        make_room(path)?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(io::Error::from)?;
        // The file has the socket's mode, so there is no moment at which others may use it.
        fchmod(&socket, MODE).map_err(io::Error::from)?;
        let address = UnixAddr::new(path).map_err(io::Error::from)?;
        bind(socket.as_raw_fd(), &address).map_err(io::Error::from)?;
        listen(&socket, Backlog::MAXCONN).map_err(io::Error::from)?;
        Ok(Self { path: path.to_owned(), socket: UnixListener::from(socket) })
    }

    /// The next host that knocks, if one does. Memory of its own is made for it and handed over.
    ///
    /// # Errors
    /// When the system has nothing left for it; and `WouldBlock` when nobody is there.
    pub fn accept(&self) -> io::Result<Visitor> {
        let (socket, _) = self.socket.accept()?;
        socket.set_nonblocking(true)?;
        let credentials = getsockopt(&socket, PeerCredentials)?;
        let memory = handshake::make()?;
        handshake::send(socket.as_fd(), memory.as_fd())?;
        Ok(Visitor { socket, memory, process: credentials.pid().cast_unsigned(), user: credentials.uid() })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = fs::remove_file(&self.path);
    }
}

/// A host that has been handed its memory: see [`ShmWire::accepted`].
#[derive(Debug)]
pub struct Visitor {
    pub(super) socket: UnixStream,
    pub(super) memory: File,
    /// Who it was when it connected, as the kernel says.
    pub process: u32,
    pub user: u32,
}

/// Starts to connect to a target which listens at `path`.
///
/// # Errors
/// When nobody listens there, or we may not ask.
pub fn dial(path: &Path) -> io::Result<ShmWire> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) => Ok(ShmWire::new(UnixStream::from(socket), None)),
        Err(error) => Err(explained(error, path)),
    }
}

/// What the system says, and what may be done about it.
fn explained(error: Errno, path: &Path) -> io::Error {
    let at = path.display();
    let why = match error {
        Errno::ENOENT => format!("there is no socket {at}: no target listens there"),
        Errno::ECONNREFUSED
            if fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) =>
        {
            format!("{at} is no socket")
        }
        Errno::ECONNREFUSED => format!("nobody listens at {at} any more; the target that left it has ended"),
        Errno::EACCES => format!(
            "no right to connect to {at}: it takes the right to write it, and to pass its directories"
        ),
        Errno::EPROTOTYPE => format!("{at} is a socket of another kind"),
        Errno::EAGAIN => format!("too many wait at {at} already"),
        other => format!("{at}: {}", other.desc()),
    };
    io::Error::new(io::Error::from(error).kind(), why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o117, 0);
        assert!(matches!(Listener::bind(&path), Err(PlaceError::InUse(_))));
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&path), Err(PlaceError::NoSocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn whoever_cannot_connect_is_told_why() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let why = |path: &Path| dial(path).unwrap_err().to_string();
        assert!(why(&path).contains("no target listens"), "{}", why(&path));
        fs::write(&path, "").unwrap();
        assert!(why(&path).contains("is no socket"), "{}", why(&path));
        fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        assert!(why(&path).contains("any more"), "{}", why(&path));
        fs::remove_file(&path).unwrap();
        let _datagrams = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        assert!(why(&path).contains("another kind"), "{}", why(&path));
        assert!(dial(Path::new(&"x".repeat(200))).is_err());
    }

    #[test]
    fn who_knocks_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let _host = dial(&path).unwrap();
        let visitor = listener.accept().unwrap();
        assert_eq!(visitor.process, std::process::id());
        assert_eq!(visitor.user, nix::unistd::getuid().as_raw());
    }
}
