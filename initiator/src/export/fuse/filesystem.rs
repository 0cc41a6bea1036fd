//! What the kernel asks of the file system: a directory with one file, whose bytes are the volume.
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, TimeOrNow, WriteFlags,
};
use nix::fcntl::FallocateFlags;

use super::buffers::Buffers;
use super::{Answer, BACKGROUND, FILE, LARGEST, Task, TaskSender};
use crate::volume::{Geometry, Operation};

const FILE_INODE: u64 = 2;
/// How long the kernel may believe what it was told about the file.
const VALID: Duration = Duration::from_secs(1);

pub(super) struct VolumeFile {
    reactor: TaskSender,
    buffers: Arc<Buffers>,
    size: Arc<AtomicU64>,
    geometry: Geometry,
    owner: (u32, u32),
}

impl VolumeFile {
    pub(super) fn new(
        reactor: TaskSender,
        buffers: Arc<Buffers>,
        size: Arc<AtomicU64>,
        geometry: Geometry,
    ) -> Self {
        let owner = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        Self { reactor, buffers, size, geometry, owner }
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = u64::from(inode) == FILE_INODE;
        let size = if is_file { self.size() } else { 0 };
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: match (is_file, self.geometry.read_only) {
                (false, _) => 0o500,
                (true, true) => 0o400,
                (true, false) => 0o600,
            },
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: self.geometry.preferred_write.max(4096),
            flags: 0,
        }
    }

    /// Hands a request to the reactor, which answers it. Without a reactor the kernel gets an error,
    /// because the answer is dropped.
    fn ask(&self, task: Task) {
        let _ = self.reactor.send(task);
    }

    /// The whole blocks around a range, and how much of them lies before it. Nothing beyond the end.
    fn blocks_around(&self, offset: u64, length: u32) -> (u64, u32, u32) {
        let block = u64::from(self.geometry.block_size);
        let start = offset - offset % block;
        let end = offset.saturating_add(u64::from(length)).min(self.size());
        let whole = (end - start).next_multiple_of(block);
        let number = |bytes: u64| u32::try_from(bytes).expect("a request and a block on either side");
        (start, number(whole), number(offset - start))
    }

    /// Whether a change of this range can be made, or the error that says why not.
    fn check(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let block = u64::from(self.geometry.block_size);
        let end = offset.checked_add(length);
        match end {
            _ if self.geometry.read_only => Err(Errno::EROFS),
            Some(end) if end <= self.size() => {
                let aligned = offset.is_multiple_of(block) && length.is_multiple_of(block);
                if aligned { Ok(()) } else { Err(Errno::EINVAL) }
            }
            _ => Err(Errno::ENOSPC),
        }
    }
}

impl Filesystem for VolumeFile {
    fn init(&mut self, _request: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // Whatever the kernel lacks it says by giving less, and works without.
        let _ = config.set_max_write(LARGEST);
        let _ = config.set_max_readahead(LARGEST);
        let _ = config.set_max_background(BACKGROUND);
        let _ = config.set_congestion_threshold(BACKGROUND);
        let wanted = InitFlags::FUSE_ASYNC_READ | InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_MAX_PAGES;
        let _ = config.add_capabilities(wanted);
        Ok(())
    }

    fn lookup(&self, _request: &fuser::Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == FILE {
            reply.entry(&VALID, &self.attributes(INodeNo(FILE_INODE)), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(
        &self,
        _request: &fuser::Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&VALID, &self.attributes(inode));
    }

    /// Times and modes may be set, to no effect; the size may not.
    fn setattr(
        &self,
        _request: &fuser::Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match size {
            Some(size) if size != self.size() => reply.error(Errno::EPERM),
            _ => reply.attr(&VALID, &self.attributes(inode)),
        }
    }

    fn readdir(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let directory = (1, FileType::Directory);
        let entries = [(directory, "."), (directory, ".."), ((FILE_INODE, FileType::RegularFile), FILE)];
        for (((inode, kind), name), next) in entries.into_iter().zip(1..) {
            if next > offset && reply.add(INodeNo(inode), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _request: &fuser::Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The page cache of the loop device, or of whoever reads the file, is enough.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let available = self.size().saturating_sub(offset);
        let length = size.min(LARGEST).min(u32::try_from(available).unwrap_or(u32::MAX));
        if length == 0 {
            return reply.data(&[]);
        }
        let (start, whole, skip) = self.blocks_around(offset, length);
        let buffer = Some(self.buffers.take(whole));
        let answer = Answer::Data { reply, skip, length };
        self.ask(Task { operation: Operation::Read, offset: start, length: whole.into(), buffer, answer });
    }

    fn write(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = match u32::try_from(data.len()) {
            Ok(length) if length <= LARGEST => length,
            _ => return reply.error(Errno::EINVAL),
        };
        if let Err(errno) = self.check(offset, length.into()) {
            return reply.error(errno);
        }
        if length == 0 {
            return reply.written(0);
        }
        let buffer = self.buffers.take(length);
        buffer.fill(data);
        // A write that has to be durable is followed by the kernel's own fsync.
        let operation = Operation::Write { fua: false };
        let answer = Answer::Written { reply, length };
        self.ask(Task { operation, offset, length: length.into(), buffer: Some(buffer), answer });
    }

    fn flush(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Closing promises nothing, and nothing is held back here.
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let answer = Answer::Done(reply);
        self.ask(Task { operation: Operation::Flush, offset: 0, length: 0, buffer: None, answer });
    }

    /// A hole has to read as zeroes, and the loop device relies on it: so punching one is writing zeroes
    /// which may be deallocated, never the mere hint that a discard is.
    fn fallocate(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode);
        let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let unmap = mode == keep | FallocateFlags::FALLOC_FL_PUNCH_HOLE;
        let zero = mode - keep == FallocateFlags::FALLOC_FL_ZERO_RANGE;
        if !(unmap || zero) || !self.geometry.write_zeroes {
            return reply.error(Errno::EOPNOTSUPP);
        }
        match self.check(offset, length) {
            Ok(()) if length > 0 => {
                let operation = Operation::WriteZeroes { unmap, fua: false };
                let answer = Answer::Done(reply);
                self.ask(Task { operation, offset, length, buffer: None, answer });
            }
            Ok(()) => reply.error(Errno::EINVAL),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _request: &fuser::Request, _inode: INodeNo, reply: ReplyStatfs) {
        // The loop device takes its discard granularity from the block size.
        let block = self.geometry.block_size.max(4096);
        let blocks = self.size() / u64::from(block);
        reply.statfs(blocks, 0, 0, 1, 0, block, 255, block);
    }
}
