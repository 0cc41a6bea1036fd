//! Where attachments are written down: `/run/ironside` for root, `$XDG_RUNTIME_DIR/ironside` for others.
//!
//! Each has a directory with a `lock` which its process holds as long as it lives, a `state.json`, a control
//! socket and a log. A directory whose lock can be had belongs to nobody: its process is gone.
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::control::{Question, ask};
use super::{Attachment, Via};
use crate::export::loop_device::LoopDevice;
use crate::export::usage::{self, Use};
use crate::export::vhost_user::Machine;
use crate::export::{fuse, nbd_device, ublk};

/// Attachments of one user at once.
const ATTACHMENTS: u32 = 1024;
const LOCK: &str = "lock";
const STATE: &str = "state.json";
/// How long a process may take to die, and how often it is looked whether it has.
const DYING_PATIENCE: Duration = Duration::from_secs(10);
const DYING_INTERVAL: Duration = Duration::from_millis(20);
/// By what a device of the attachment is known.
const MARK: &str = "mark";

#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error("no place for attachments: set XDG_RUNTIME_DIR")]
    NoPlace,
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} belongs to somebody else, or others may write there", .0.display())]
    Unsafe(PathBuf),
    #[error("{ATTACHMENTS} volumes are attached; more are not supported")]
    Full,
}

/// The directory of this user's attachments.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

/// The right to one attachment's directory, for the life of its process.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) name: String,
    path: PathBuf,
    _lock: Flock<File>,
}

/// One directory as others find it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    /// Nothing while it is being made, or if it was left half made.
    pub(crate) attachment: Option<Attachment>,
    /// Held by us if its process is gone.
    abandoned: Option<Flock<File>>,
}

impl Directory {
    /// Finds or makes it. `IRONSIDE_RUNTIME_DIR` names another place.
    pub(crate) fn open() -> Result<Self, DirectoryError> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let path = match variable("IRONSIDE_RUNTIME_DIR") {
            Some(path) => path,
            None if nix::unistd::geteuid().is_root() => PathBuf::from("/run/ironside"),
            None => variable("XDG_RUNTIME_DIR").ok_or(DirectoryError::NoPlace)?.join("ironside"),
        };
        Self::at(path)
    }

    fn at(path: PathBuf) -> Result<Self, DirectoryError> {
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|e| io_error(&path, e))?;
        let metadata = fs::metadata(&path).map_err(|e| io_error(&path, e))?;
        // Whoever may write here could have us open sockets and devices of their choice.
        if metadata.uid() != nix::unistd::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return Err(DirectoryError::Unsafe(path));
        }
        Ok(Self { path })
    }

    /// Takes the first free name for a new attachment.
    pub(crate) fn claim(&self) -> Result<Claim, DirectoryError> {
        for number in 0..ATTACHMENTS {
            let name = format!("vol{number}");
            let path = self.path.join(&name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(|e| io_error(&path, e))?,
            }
            // Somebody who tidies up may have been between the two; then the next name does.
            if let Some(lock) = lock(&path) {
                return Ok(Claim { name, path, _lock: lock });
            }
        }
        Err(DirectoryError::Full)
    }

    /// Takes an attachment over whose process has died; gives what it had written down. Nothing if it lives, or there is
    /// no such attachment.
    pub(crate) fn take_over(&self, name: &str) -> Result<Option<(Claim, Attachment)>, DirectoryError> {
        let found = self.entries()?.into_iter().find(|entry| entry.name() == name);
        let Some(Entry { path, attachment: Some(attachment), abandoned: Some(lock) }) = found else {
            return Ok(None);
        };
        for socket in ["control.sock", "nbd.sock"] {
            match fs::remove_file(path.join(socket)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&path, error)),
                _ => {}
            }
        }
        Ok(Some((Claim { name: name.into(), path, _lock: lock }, attachment)))
    }

    /// Everything attached, by name.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, DirectoryError> {
        let mut paths: Vec<_> = fs::read_dir(&self.path)
            .map_err(|e| io_error(&self.path, e))?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect();
        paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
        Ok(paths.into_iter().filter_map(Entry::at).collect())
    }
}

impl Claim {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the attachment down, all or nothing.
    pub(crate) fn write(&self, attachment: &Attachment) -> Result<(), DirectoryError> {
        let draft = self.path.join("state.json.new");
        let text = serde_json::to_vec_pretty(attachment).map_err(|e| io_error(&draft, e.into()))?;
        let written = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&draft, self.path.join(STATE)));
        written.map_err(|e| io_error(&draft, e))
    }

    /// A mark by which a device of this attachment is known, written down before there is one.
    pub(crate) fn mark(&self) -> Result<u64, DirectoryError> {
        let path = self.path.join(MARK);
        let mark = uuid::Uuid::new_v4().as_u64_pair().1;
        fs::write(&path, format!("{mark:016x}\n")).map_err(|e| io_error(&path, e))?;
        Ok(mark)
    }

    /// The mark there is already.
    pub(crate) fn known_mark(&self) -> Option<u64> {
        mark_in(&self.path)
    }

    /// Removes all trace of the attachment.
    pub(crate) fn release(self) -> io::Result<()> {
        remove(&self.path)
    }
}

impl Entry {
    fn at(path: PathBuf) -> Option<Self> {
        let abandoned = lock(&path);
        let text = fs::read(path.join(STATE)).ok();
        let attachment = text.and_then(|text| serde_json::from_slice(&text).ok());
        // Gone since it was listed.
        path.is_dir().then_some(Self { path, attachment, abandoned })
    }

    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into()
    }

    /// Whether the process behind it lives.
    pub(crate) fn is_alive(&self) -> bool {
        self.abandoned.is_none()
    }

    /// Waits for a process that is dying, as one is for a moment that was killed, to be gone.
    pub(crate) fn settle(&mut self) {
        let end = Instant::now() + DYING_PATIENCE;
        if self.is_alive() && ask(&self.path, Question::Status).is_err_and(|error| is_of_the_dying(&error)) {
            while self.is_alive() && Instant::now() < end {
                thread::sleep(DYING_INTERVAL);
                self.abandoned = lock(&self.path);
            }
        }
    }

    /// Who uses what a dead process has left behind.
    pub(crate) fn uses(&self) -> Vec<Use> {
        if let Some(machine) = self.machine() {
            return vec![machine];
        }
        self.left_behind().map(|device| usage::of(&device)).unwrap_or_default()
    }

    /// The virtual machine which waits for its disk.
    fn machine(&self) -> Option<Use> {
        let is_its_disk = self.attachment.as_ref()?.via == Via::VhostUserBlk;
        Machine::read(&self.path).filter(|_| is_its_disk)?.uses()
    }

    /// Whether another process may take over the device, or the machine, of one that has died.
    pub(crate) fn is_recoverable(&self) -> bool {
        !self.is_alive()
            && self.attachment.as_ref().is_some_and(|attachment| attachment.via.is_recoverable())
            && (self.left_behind().is_some() || self.machine().is_some())
    }

    /// The block device a process has left behind, if it is still that.
    fn left_behind(&self) -> Option<PathBuf> {
        let device = self.attachment.as_ref().and_then(|attachment| attachment.loop_device.clone());
        device.filter(|device| self.is_ours(device)).or_else(|| {
            let mark = mark_in(&self.path)?;
            ublk::marked(mark).or_else(|| nbd_device::marked(mark))
        })
    }

    /// Takes away what a dead process has left behind: devices, mount, sockets, the directory.
    ///
    /// # Errors
    /// When the kernel refuses.
    ///
    /// # Panics
    /// If the process lives.
    pub(crate) fn clean_up(self) -> Result<(), DirectoryError> {
        assert!(!self.is_alive(), "only what nobody holds is cleaned up");
        let device = self.attachment.as_ref().and_then(|attachment| attachment.loop_device.as_deref());
        if let Some(device) = device.filter(|device| self.is_ours(device)) {
            let detached = LoopDevice::at(device).detach();
            detached.map_err(|error| io_error(device, io::Error::other(error)))?;
        }
        if let Some(mark) = mark_in(&self.path) {
            let failed = |error| io_error(&self.path, error);
            ublk::remove(mark).map_err(|error| failed(io::Error::other(error)))?;
            nbd_device::remove(mark).map_err(|error| failed(io::Error::other(error)))?;
        }
        let mount = self.path.join(MOUNT);
        fuse::unmount(&mount).map_err(|error| io_error(&mount, error))?;
        remove(&self.path).map_err(|e| io_error(&self.path, e))
    }

    /// Whether a loop device still stands on our file, or serves somebody else by now.
    fn is_ours(&self, device: &Path) -> bool {
        LoopDevice::at(device).stands_on(&self.path.join(MOUNT).join(fuse::FILE))
    }
}

/// Whether whoever holds the lock and answers a question so is about to end: its socket is closed already, or was while
/// the question lay there unread, or the process is no more which it belonged to. One that is only slow, or that
/// is just being made, says nothing or has no socket.
fn is_of_the_dying(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    let hung_up = matches!(error.kind(), ConnectionRefused | ConnectionReset | BrokenPipe | UnexpectedEof);
    hung_up || error.raw_os_error() == Some(libc::ESRCH)
}

/// Where the FUSE file system of an attachment is mounted.
pub(crate) const MOUNT: &str = "mnt";

fn mark_in(path: &Path) -> Option<u64> {
    u64::from_str_radix(fs::read_to_string(path.join(MARK)).ok()?.trim(), 16).ok()
}

/// The lock of an attachment's directory, if nobody has it and the directory is still there.
fn lock(path: &Path) -> Option<Flock<File>> {
    let file = path.join(LOCK);
    let open = || OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&file);
    let lock = Flock::lock(open().ok()?, FlockArg::LockExclusiveNonblock).ok()?;
    // A lock on a file that was removed meanwhile protects nothing.
    let (ours, there) = (lock.metadata().ok()?, fs::metadata(&file).ok()?);
    (ours.ino() == there.ino()).then_some(lock)
}

/// Everything but what is behind a mount.
fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir(entry.path())?;
        } else if entry.file_name() != LOCK {
            fs::remove_file(entry.path())?;
        }
    }
    // Last, so that nobody takes a half empty directory for an attachment being made.
    fs::remove_file(path.join(LOCK))?;
    fs::remove_dir(path)
}

fn io_error(path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::super::listen;
    use super::*;

    #[test]
    fn names_are_taken_in_order_and_come_back() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::at(place.path().join("run")).unwrap();
        let first = directory.claim().unwrap();
        let second = directory.claim().unwrap();
        assert_eq!((first.name.as_str(), second.name.as_str()), ("vol0", "vol1"));
        assert!(directory.entries().unwrap().iter().all(Entry::is_alive));
        first.release().unwrap();
        assert_eq!(directory.claim().unwrap().name, "vol0");
        second.release().unwrap();
    }

    #[test]
    fn what_a_dead_process_left_is_recognised_and_cleaned_up() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::at(place.path().to_owned()).unwrap();
        let claim = directory.claim().unwrap();
        fs::create_dir(claim.path().join(MOUNT)).unwrap();
        fs::write(claim.path().join(STATE), "{ half a sta").unwrap();
        drop(claim);
        let mut entries = directory.entries().unwrap();
        let entry = entries.pop().unwrap();
        assert!(!entry.is_alive() && entry.attachment.is_none() && entry.uses().is_empty());
        entry.clean_up().unwrap();
        assert!(directory.entries().unwrap().is_empty());
    }

    /// What is left of a process that dies while it is asked: at first its socket stands and nobody reads it, then that is
    /// closed, and the lock is the last to go.
    #[test]
    fn a_process_that_dies_while_it_is_asked_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::at(place.path().to_owned()).unwrap();
        let claim = directory.claim().unwrap();
        let control = listen(claim.path()).unwrap();
        let mut entry = directory.entries().unwrap().pop().unwrap();
        let dying = thread::spawn(move || {
            let mut asked = [PollFd::new(control.as_fd(), PollFlags::POLLIN)];
            poll(&mut asked, PollTimeout::NONE).unwrap();
            drop(control);
            drop(claim);
        });
        entry.settle();
        dying.join().unwrap();
        assert!(!entry.is_alive());
    }

    #[test]
    fn one_that_is_being_made_is_not_taken_for_a_dying_one() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::at(place.path().to_owned()).unwrap();
        let _claim = directory.claim().unwrap();
        let mut entry = directory.entries().unwrap().pop().unwrap();
        entry.settle();
        assert!(entry.is_alive());
        assert!(!is_of_the_dying(&io::ErrorKind::WouldBlock.into()), "it is only slow");
    }

    #[test]
    fn a_mark_is_known_to_who_comes_later() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::at(place.path().to_owned()).unwrap();
        let claim = directory.claim().unwrap();
        assert_eq!(claim.known_mark(), None);
        let mark = claim.mark().unwrap();
        assert_eq!((claim.known_mark(), mark_in(claim.path())), (Some(mark), Some(mark)));
        assert_ne!(claim.mark().unwrap(), mark);
        // Nobody takes over what lives, or what was left half made.
        assert!(directory.take_over("vol0").unwrap().is_none());
        drop(claim);
        assert!(directory.take_over("vol0").unwrap().is_none());
        assert!(directory.take_over("vol1").unwrap().is_none());
    }

    #[test]
    fn a_directory_others_may_write_is_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Directory::at(place.path().to_owned()), Err(DirectoryError::Unsafe(_))));
    }
}
