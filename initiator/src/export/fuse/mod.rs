//! A volume as the one file `vol` of a FUSE file system, which a loop device can turn into a block device.
//!
//! The session's own threads take requests from the kernel ([`filesystem`]), copy a write's data into a
//! buffer of the session ([`buffers`]) and send the request to the reactor, which owns the volume. The
//! reactor answers the kernel itself when the volume is done.
mod buffers;
mod filesystem;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuser::{BackgroundSession, Config, Errno, MountOption, ReplyData, ReplyEmpty, ReplyWrite};
use ironside_common::memory::Memory;
use ironside_common::reactor::{Mailbox, Sender, mailbox};
use ironside_common::verbs::{Sge, Token};
use nix::mount::{MntFlags, umount2};
use slab::Slab;

use self::buffers::{Buffer, Buffers};
use self::filesystem::VolumeFile;
use crate::attach::{Context, Export};
use crate::volume::{Completed, Geometry, IoError, Operation, Request};

/// Name of the file.
pub const FILE: &str = "vol";
/// Bytes of the largest read or write the kernel may ask for.
const LARGEST: u32 = 1 << 20;
/// Requests the kernel may have under way in the background.
const BACKGROUND: u16 = 256;
/// Requests sent to the reactor and not yet taken.
const UNREAD: usize = 512;
/// Threads which take requests.
const THREADS: usize = 2;

/// What the kernel wants, on its way to the reactor.
struct Task {
    operation: Operation,
    offset: u64,
    length: u64,
    buffer: Option<Buffer>,
    answer: Answer,
}

/// Whom to answer. Dropped without an answer, the kernel gets an error.
enum Answer {
    /// These bytes of the buffer.
    Data {
        reply: ReplyData,
        skip: u32,
        length: u32,
    },
    Written {
        reply: ReplyWrite,
        length: u32,
    },
    Done(ReplyEmpty),
}

/// A mounted file system, made before its reactor half runs.
pub struct Mount {
    session: BackgroundSession,
    path: PathBuf,
}

impl Mount {
    /// Mounts at the directory `path`. Requests wait until the reactor serves the [`Fuse`], which is to be
    /// made there from the [`Parts`].
    ///
    /// # Errors
    /// When the kernel or `fusermount3` refuses, or there is no memory.
    pub fn new(path: &Path, geometry: Geometry) -> io::Result<(Self, Parts)> {
        let buffers = Buffers::new(geometry.block_size)?;
        let (sender, mailbox) = mailbox(UNREAD)?;
        let size = Arc::new(AtomicU64::new(geometry.size));
        let file = VolumeFile::new(sender, Arc::clone(&buffers), Arc::clone(&size), geometry);
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("ironside".into()), MountOption::DefaultPermissions];
        config.mount_options.push(if geometry.read_only { MountOption::RO } else { MountOption::RW });
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let session = fuser::spawn_mount(file, path, &config)?;
        Ok((Self { session, path: path.to_owned() }, Parts { mailbox, buffers, size }))
    }

    /// Where the file is.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.path.join(FILE)
    }

    /// Takes it away, even while somebody has the file open: they keep what they have until they let go.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn unmount(self) -> io::Result<()> {
        let detached = umount2(&self.path, MntFlags::MNT_DETACH);
        // Without the right to unmount, dropping the session asks `fusermount3` to.
        drop(self.session);
        match detached {
            Ok(()) | Err(nix::errno::Errno::EPERM) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Ends whatever is mounted at `path`, by whatever right there is. That nothing is mounted there is well too.
///
/// # Errors
/// When the kernel and `fusermount3` refuse.
pub fn unmount(path: &Path) -> io::Result<()> {
    match umount2(path, MntFlags::MNT_DETACH) {
        Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => Ok(()),
        // A user's own mount is ended by the program which made it; and it says too that there is none.
        Err(nix::errno::Errno::EPERM) if !is_mounted(path) => Ok(()),
        Err(nix::errno::Errno::EPERM) => {
            let ended = Command::new("fusermount3").args(["-u", "-z", "-q", "--"]).arg(path).status()?;
            if ended.success() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
        }
        Err(error) => Err(error.into()),
    }
}

fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path))
}

/// What the reactor needs for its half; may move to its thread.
pub struct Parts {
    mailbox: Mailbox<Task>,
    buffers: Arc<Buffers>,
    size: Arc<AtomicU64>,
}

/// The reactor's half: takes requests from the session's threads and answers the kernel.
pub struct Fuse {
    mailbox: Mailbox<Task>,
    /// Keys of the session's buffers among the reactor's memory.
    lkey: u32,
    size: Arc<AtomicU64>,
    tasks: Slab<Task>,
    /// Read data on its way to the kernel, which takes bytes by reference.
    scratch: Box<[u8]>,
    closing: bool,
}

impl Fuse {
    /// Called in the reactor's thread.
    #[must_use]
    pub fn new(parts: Parts, memory: &Memory) -> Self {
        let lkey = memory.register(parts.buffers.region());
        Self {
            mailbox: parts.mailbox,
            lkey,
            size: parts.size,
            tasks: Slab::with_capacity(usize::from(BACKGROUND)),
            scratch: vec![0; LARGEST as usize + 2 * buffers::SLACK as usize].into(),
            closing: false,
        }
    }

    /// The region's number, for a provider or ring which wants it registered.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    fn start(&mut self, context: &mut Context<'_>, task: Task) {
        if self.closing {
            return task.answer.fail(IoError::Closing);
        }
        let (operation, offset, length) = (task.operation, task.offset, task.length);
        let buffer = task.buffer.as_ref().map(|buffer| sge(context.memory, self.lkey, buffer, length));
        let tag = self.tasks.insert(task) as u64;
        let request = Request { tag, operation, offset, length, buffer };
        context.volume.submit(request).expect("the volume said it had room");
    }
}

impl Export for Fuse {
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        let mut did = false;
        while context.volume.has_room()
            && let Some(task) = self.mailbox.receive()
        {
            self.start(context, task);
            did = true;
        }
        did
    }

    fn completed(&mut self, context: &mut Context<'_>, completed: Completed) {
        let index = usize::try_from(completed.tag).expect("a tag of ours");
        let Task { length, buffer, answer, .. } = self.tasks.remove(index);
        if let Err(error) = completed.result {
            return answer.fail(error);
        }
        match answer {
            Answer::Done(reply) => reply.ok(),
            Answer::Written { reply, length } => reply.written(length),
            Answer::Data { reply, skip, length: wanted } => {
                let buffer = buffer.expect("a read has a buffer");
                let wanted = wanted as usize;
                let data = sge(context.memory, self.lkey, &buffer, length);
                let data = data.slice(skip, data.length - skip);
                context.memory.read(data, &mut self.scratch[..wanted]);
                reply.data(&self.scratch[..wanted]);
            }
        }
    }

    fn on_ring(&mut self, _context: &mut Context<'_>, _token: Token, _result: i32) {
        self.mailbox.on_ring();
    }

    fn arm(&mut self, context: &mut Context<'_>) {
        let slot = context.mailbox_slot();
        self.mailbox.arm(context.ring, slot);
    }

    fn changed(&mut self, _context: &mut Context<'_>, geometry: Geometry) {
        // The kernel asks for the size again when it has held it for a second.
        self.size.store(geometry.size, Ordering::Relaxed);
    }

    fn close(&mut self, context: &mut Context<'_>) -> bool {
        self.closing = true;
        self.turn(context);
        self.tasks.is_empty()
    }
}

impl Answer {
    fn fail(self, error: IoError) {
        let errno = Errno::from_i32(error.errno());
        match self {
            Self::Data { reply, .. } => reply.error(errno),
            Self::Written { reply, .. } => reply.error(errno),
            Self::Done(reply) => reply.error(errno),
        }
    }
}

fn sge(memory: &Memory, lkey: u32, buffer: &Buffer, length: u64) -> Sge {
    memory.sge(lkey, buffer.offset(), u32::try_from(length).expect("no more than a buffer holds"))
}

type TaskSender = Sender<Task>;
