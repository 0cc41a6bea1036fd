//! Turns a file into a block device by the kernel's loop driver, with direct I/O and the volume's block
//! size.
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What `<linux/loop.h>` calls so.
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// How often a free device may be taken by somebody else before we get it.
const ATTEMPTS: u32 = 16;

/// Why a file did not become a block device, or does not cease to be one.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    #[error("cannot open {path}: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error("no loop device is free: {0}")]
    NoneFree(io::Error),
    #[error("the loop driver refuses {path}: {source}")]
    Refused { path: PathBuf, source: io::Error },
}

/// A loop device of ours.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

/// `struct loop_info64`: what may be said about a loop device.
#[repr(C)]
#[derive(Default)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    /// Two names of 64 bytes.
    names: [[u64; 8]; 2],
    encrypt_key: [u64; 4],
    init: [u64; 2],
}
const _: () = assert!(size_of::<Info>() == 232);

/// `struct loop_config`.
#[repr(C)]
#[derive(Default)]
struct Configuration {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<Configuration>() == 304);

impl LoopDevice {
    /// Makes a block device of `file`, with blocks of so many bytes.
    ///
    /// # Errors
    /// When there is no loop driver, no right to use it, or it does not take the file.
    pub fn attach(file: &Path, block_size: u32, read_only: bool) -> Result<Self, LoopError> {
        let backing = open(file, read_only, libc::O_DIRECT)?;
        let control = open(Path::new("/dev/loop-control"), false, 0)?;
        let fd = u32::try_from(backing.as_raw_fd()).expect("an open file has a number");
        let flags = LO_FLAGS_DIRECT_IO | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
        let configuration =
            Configuration { fd, block_size, info: Info { flags, ..Info::default() }, ..Default::default() };
        for _ in 0..ATTEMPTS {
            // SAFETY: this request takes no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            let number = checked(number).map_err(LoopError::NoneFree)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path, read_only, 0)?;
            // SAFETY: the request reads one `struct loop_config`, which outlives the call.
            let configured =
                unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const configuration) };
            match checked(configured) {
                Ok(_) => return Ok(Self { path }),
                // Somebody else was faster.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(source) => return Err(LoopError::Refused { path: file.to_owned(), source }),
            }
        }
        Err(LoopError::NoneFree(io::ErrorKind::ResourceBusy.into()))
    }

    /// A device which was attached earlier, perhaps by a process that is no more.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `file` is what this device stands on.
    #[must_use]
    pub fn stands_on(&self, file: &Path) -> bool {
        let Some(name) = self.path.file_name() else { return false };
        let says = Path::new("/sys/block").join(name).join("loop/backing_file");
        let Ok(says) = std::fs::read_to_string(says) else { return false };
        // A file which is gone has a note behind its name.
        says.trim_end().trim_end_matches(" (deleted)") == file.to_string_lossy()
    }

    /// Tells the kernel that the file has another size now.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resized(&self) -> Result<(), LoopError> {
        self.control(LOOP_SET_CAPACITY)
    }

    /// Ends it. Whoever has it open keeps it until they let go; then the kernel ends it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn detach(self) -> Result<(), LoopError> {
        match self.control(LOOP_CLR_FD) {
            // It is detached already.
            Err(LoopError::Refused { source, .. }) if source.raw_os_error() == Some(libc::ENXIO) => Ok(()),
            other => other,
        }
    }

    fn control(&self, request: libc::c_ulong) -> Result<(), LoopError> {
        let device = open(&self.path, true, 0)?;
        // SAFETY: neither request takes an argument.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), request) };
        match checked(result) {
            Ok(_) => Ok(()),
            Err(source) => Err(LoopError::Refused { path: self.path.clone(), source }),
        }
    }
}

fn open(path: &Path, read_only: bool, flags: i32) -> Result<File, LoopError> {
    OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(flags | libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| LoopError::Open { path: path.to_owned(), source })
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
