//! The place of a Unix socket in the file system: free, left behind by somebody who is gone, or in use.
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Why no socket can be made at a place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("{0} is there and no socket: it stays as it is; name another path")]
    NoSocket(PathBuf),
    #[error("somebody listens at {0} already")]
    InUse(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<PlaceError> for io::Error {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Io(error) => error,
            other => Self::other(other),
        }
    }
}

/// Removes a socket which was left at `path` by a process that is gone.
///
/// # Errors
/// When something else is there, or somebody listens there, or the system refuses.
pub fn make_room(path: &Path) -> Result<(), PlaceError> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !there.file_type().is_socket() {
        return Err(PlaceError::NoSocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(fs::remove_file(path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Whoever may not connect, or finds nobody at leisure, does not know that nobody listens.
        _ => Err(PlaceError::InUse(path.to_owned())),
    }
}
