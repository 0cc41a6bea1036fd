//! Opening files and block devices, and finding out whether and how they take direct I/O.
use std::fs::{File, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::{Mode, major, minor};

use crate::backend::medium::{FileOptions, Identity, OpenError, check_block_size};
use crate::backend::polled::Polling;

/// The ring of a target that was killed gives its files up a moment after the process is gone.
const LOCK_ATTEMPTS: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// What direct I/O asks of memory where a file system does not say.
const MEMORY_ALIGNMENT: u32 = 512;
/// The most that memory made by us is aligned to.
const PAGE: u32 = 4096;
/// What a regular file's block size is, unless said otherwise.
const FILE_BLOCK_SIZE: u32 = 512;

/// A file or block device, open for all reactors.
#[derive(Clone, Debug)]
pub(in crate::backend) struct OpenFile {
    pub(in crate::backend) fd: Arc<OwnedFd>,
    pub(in crate::backend) identity: Identity,
    /// What direct I/O demands; none when it goes through the page cache.
    pub(in crate::backend) alignment: Option<Alignment>,
    /// Bytes when it was opened.
    pub(in crate::backend) size: u64,
    /// What its block size is, unless said otherwise.
    pub(in crate::backend) native_block_size: u32,
    /// What blocks have to be multiples of.
    sector_size: u32,
    pub(in crate::backend) is_writable: bool,
    /// Whether completions can be looked for instead of announced.
    pub(in crate::backend) polling: Polling,
    is_locked: bool,
    /// Whether others may hold the lock with it, which share it too.
    shares_lock: bool,
}

/// What direct I/O demands of a transfer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::backend) struct Alignment {
    /// Of the address in memory.
    pub(in crate::backend) memory: u32,
    /// Of offset and length.
    pub(in crate::backend) offset: u32,
}

impl OpenFile {
    /// Opens it, and decides on the block size.
    pub(in crate::backend) fn open(path: &Path, options: FileOptions) -> Result<(Self, u32), OpenError> {
        let metadata =
            std::fs::metadata(path).map_err(|source| OpenError::Open { path: path.into(), source })?;
        let is_device = metadata.file_type().is_block_device();
        if !is_device && !metadata.is_file() {
            return Err(OpenError::NotStorage { path: path.into() });
        }
        let identity = match is_device {
            true => Identity::BlockDevice { number: metadata.rdev() },
            false => Identity::File { device: metadata.dev(), inode: metadata.ino() },
        };
        let mut flags = if options.read_only { OFlag::O_RDONLY } else { OFlag::O_RDWR } | OFlag::O_CLOEXEC;
        flags.set(OFlag::O_EXCL, is_device && !options.read_only);
        let mut file = open_with(path, flags)?;
        if is_device && options.shared {
            // Nobody else claims it, such as a mount; and now the other target may open it as well.
            drop(file);
            flags.remove(OFlag::O_EXCL);
            file = open_with(path, flags)?;
        }
        let is_locked = !is_device;
        let shares_lock = options.read_only || options.shared;
        if is_locked {
            lock(path, &file, shares_lock)?;
        }
        let failed = |source| OpenError::Open { path: path.into(), source };
        let sector_size = if is_device { sector_size(&file).map_err(failed)? } else { 1 };
        let direct = if options.buffered { None } else { Direct::switch_on(&file) };
        let native = direct.as_ref().map_or(FILE_BLOCK_SIZE, |direct| direct.alignment.offset);
        let native = native.max(FILE_BLOCK_SIZE).max(sector_size);
        let block_size = options.block_size.unwrap_or(native);
        check_block_size(block_size)?;
        if !block_size.is_multiple_of(sector_size) {
            return Err(OpenError::SectorSize { path: path.into(), sector_size, block_size });
        }
        let alignment = direct.and_then(|direct| direct.keep_if_fitting(&file, block_size));
        tracing::debug!(path = %path.display(), block_size, ?alignment, "opened");
        let size = size_of(&file).map_err(failed)?;
        let file = Self {
            fd: Arc::new(file.into()),
            identity,
            alignment,
            size,
            native_block_size: native,
            sector_size,
            is_writable: !options.read_only,
            polling: Polling::new(is_device && alignment.is_some() && can_be_polled(metadata.rdev())),
            is_locked,
            shares_lock,
        };
        Ok((file, block_size))
    }

    /// Whether a file system keeps it.
    pub(in crate::backend) const fn has_file_system(&self) -> bool {
        matches!(self.identity, Identity::File { .. })
    }

    /// Whether it can be served in blocks of this size as it was opened.
    pub(in crate::backend) fn takes_blocks_of(&self, block_size: u32) -> bool {
        let direct = self.alignment.is_none_or(|alignment| block_size.is_multiple_of(alignment.offset));
        direct && block_size.is_multiple_of(self.sector_size)
    }

    pub(in crate::backend) fn unlock(&self) {
        self.with_lock(File::unlock);
    }

    pub(in crate::backend) fn lock_again(&self) {
        let shares_lock = self.shares_lock;
        self.with_lock(|file| {
            let locked = if shares_lock { file.try_lock_shared() } else { file.try_lock() };
            locked.map_err(io::Error::from)
        });
    }

    /// Duplicates of a descriptor have one lock together.
    fn with_lock(&self, change: impl FnOnce(&File) -> io::Result<()>) {
        if !self.is_locked {
            return;
        }
        let changed = self.fd.try_clone().and_then(|fd| change(&File::from(fd)));
        if let Err(error) = changed {
            tracing::warn!(%error, "the lock of a file that is served cannot be changed");
        }
    }

    /// Bytes it holds now.
    pub(in crate::backend) fn current_size(&self) -> io::Result<u64> {
        size_of(&File::from(self.fd.try_clone()?))
    }
}

fn open_with(path: &Path, flags: OFlag) -> Result<File, OpenError> {
    let opened = open(path, flags, Mode::empty()).map(File::from).map_err(io::Error::from);
    opened.map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => OpenError::InUse { path: path.into() },
        Some(libc::EACCES | libc::EROFS | libc::EPERM | libc::ETXTBSY) if flags.contains(OFlag::O_RDWR) => {
            OpenError::NotWritable { path: path.into(), source }
        }
        _ => OpenError::Open { path: path.into(), source },
    })
}

/// Two targets which write one file would ruin it, unless both know that they share it. A lock lasts as long as the descriptor, so that a target
/// which was killed leaves none. A file system without locks has none to ask.
fn lock(path: &Path, file: &File, shares: bool) -> Result<(), OpenError> {
    for _ in 0..LOCK_ATTEMPTS {
        match if shares { file.try_lock_shared() } else { file.try_lock() } {
            Err(TryLockError::WouldBlock) => pause(),
            Err(TryLockError::Error(error)) => {
                tracing::debug!(path = %path.display(), %error, "not locked");
                return Ok(());
            }
            Ok(()) => return Ok(()),
        }
    }
    Err(OpenError::InUse { path: path.into() })
}

#[expect(clippy::disallowed_methods, reason = "the control thread opens media, before anything is served")]
fn pause() {
    std::thread::sleep(LOCK_PAUSE);
}

/// The end of a file or device. The position of the descriptor is nobody's: all transfers name an offset.
fn size_of(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Direct I/O, switched on, and what the descriptor's flags were before.
struct Direct {
    before: OFlag,
    alignment: Alignment,
}

impl Direct {
    /// Tries direct I/O.
    fn switch_on(file: &File) -> Option<Self> {
        let before = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).ok()?);
        fcntl(file, FcntlArg::F_SETFL(before | OFlag::O_DIRECT)).ok()?;
        let alignment = ask_alignment(file).or_else(|| try_alignment(file));
        if alignment.is_none() {
            switch_off(file, before);
        }
        Some(Self { before, alignment: alignment? })
    }

    /// Stays with it if every transfer of whole blocks meets its demands; memory which does not is rare and
    /// can be copied.
    fn keep_if_fitting(self, file: &File, block_size: u32) -> Option<Alignment> {
        let Alignment { memory, offset } = self.alignment;
        if memory.is_power_of_two() && memory <= PAGE && block_size.is_multiple_of(offset) {
            return Some(self.alignment);
        }
        switch_off(file, self.before);
        None
    }
}

fn switch_off(file: &File, before: OFlag) {
    let result = fcntl(file, FcntlArg::F_SETFL(before));
    debug_assert!(result.is_ok(), "giving up direct I/O is always possible: {result:?}");
}

/// What the file system says about direct I/O (statx, Linux 6.1); none when it says nothing.
fn ask_alignment(file: &File) -> Option<Alignment> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    let (fd, path, flags) = (file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH);
    // SAFETY: the descriptor is open, the path a C string, and the kernel writes one `statx` at most.
    let result = unsafe { libc::statx(fd, path, flags, libc::STATX_DIOALIGN, answer.as_mut_ptr()) };
    if result != 0 {
        return None;
    }
    // SAFETY: all fields are integers, and every bit pattern, zeroes included, is one.
    let answer = unsafe { answer.assume_init() };
    let told = answer.stx_mask & libc::STATX_DIOALIGN != 0 && answer.stx_dio_offset_align != 0;
    told.then_some(Alignment { memory: answer.stx_dio_mem_align, offset: answer.stx_dio_offset_align })
}

/// The smallest aligned read which the file takes.
fn try_alignment(file: &File) -> Option<Alignment> {
    let mut memory = vec![0_u8; 3 * 4096];
    let page = memory.as_ptr().align_offset(4096);
    [512_u32, 4096].into_iter().find_map(|offset| {
        let length = usize::try_from(offset).ok()?;
        let at = page + MEMORY_ALIGNMENT as usize;
        file.read_at(&mut memory[at..at + length], 0).ok()?;
        Some(Alignment { memory: MEMORY_ALIGNMENT, offset })
    })
}

/// Whether the kernel has queues of this device which it can poll. A partition has those of its disk.
fn can_be_polled(device: u64) -> bool {
    let directory = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let says = |queue| std::fs::read_to_string(format!("{directory}/{queue}/io_poll"));
    says("queue").or_else(|_| says("../queue")).is_ok_and(|text| text.trim() == "1")
}

fn sector_size(device: &File) -> io::Result<u32> {
    let mut size: libc::c_int = 0;
    // SAFETY: the descriptor is an open block device, and BLKSSZGET writes one `int`.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), BLKSSZGET, &raw mut size) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(size).map_err(io::Error::other)
}

/// Asks for the logical sector size; linux/fs.h.
const BLKSSZGET: libc::Ioctl = 0x1268;
