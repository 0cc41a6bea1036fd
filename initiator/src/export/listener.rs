//! The Unix socket at which an export is found.
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// The socket of an export before, and while, it is served. Its file goes with it.
pub struct Listener {
    path: PathBuf,
    pub(super) socket: UnixListener,
    /// How many clients are connected, for others to see.
    clients: Arc<AtomicUsize>,
}

impl Listener {
    /// Listens at `path`, where whatever is left of an earlier socket is removed. Only this user may
    /// connect.
    ///
    /// # Errors
    /// When the socket cannot be made there.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(path)?;
        let listener = Self { path: path.to_owned(), socket, clients: Arc::default() };
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listener.socket.set_nonblocking(true)?;
        Ok(listener)
    }

    /// How many clients are connected, now and later.
    #[must_use]
    pub fn clients(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.clients)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = fs::remove_file(&self.path);
    }
}
