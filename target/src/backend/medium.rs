//! A medium as the control thread opens it, to be attached to any number of reactors.
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ironside_common::memory::{HugePages, Region};

use super::uring::OpenFile;

/// Why a medium cannot be opened, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("{path} cannot be written; export it read-only, or change its permissions")]
    NotWritable { path: PathBuf, source: io::Error },
    #[error(
        "{path} is in use: mounted, opened exclusively, or served by another process; end that first, or serve it read-only on both sides"
    )]
    InUse { path: PathBuf },
    #[error("{path} is neither a regular file nor a block device")]
    NotStorage { path: PathBuf },
    #[error(
        "{path} holds {size} bytes, less than one block of {block_size}; make it larger, for instance with `truncate --size 1G`"
    )]
    TooSmall { path: PathBuf, size: u64, block_size: u32 },
    #[error("a block size of {block_size} is not possible; it is a power of two from 512 to 4096")]
    BlockSize { block_size: u32 },
    #[error("{path} has sectors of {sector_size} bytes, so blocks of {block_size} bytes are not possible")]
    SectorSize { path: PathBuf, sector_size: u32, block_size: u32 },
    #[error("a medium of {size} bytes is not possible")]
    Size { size: u64, source: io::Error },
}

/// How a file or block device is to be opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FileOptions {
    /// Bytes of a logical block. By default what the device or the file system works with.
    pub block_size: Option<u32>,
    pub read_only: bool,
    /// Go through the page cache even where direct I/O is possible.
    pub buffered: bool,
    /// Another target may serve it too, if it shares it likewise.
    pub shared: bool,
}

/// What tells one medium from another, as long as the system runs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Identity {
    File {
        device: u64,
        inode: u64,
    },
    BlockDevice {
        number: u64,
    },
    /// In memory: only itself.
    Anonymous,
}

impl Identity {
    /// Of the file or device this path leads to now.
    ///
    /// # Errors
    /// If there is none, or it may not be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(match metadata.file_type().is_block_device() {
            true => Self::BlockDevice { number: metadata.rdev() },
            false => Self::File { device: metadata.dev(), inode: metadata.ino() },
        })
    }
}

/// An open medium. Clones are the same medium.
#[derive(Clone, Debug)]
pub struct OpenMedium(Arc<Inner>);

/// A medium which nobody has to keep open for this, to be found again while somebody still does.
#[derive(Clone, Debug)]
pub struct WeakMedium(Weak<Inner>);

impl WeakMedium {
    /// The medium, if it is still open.
    #[must_use]
    pub fn upgrade(&self) -> Option<OpenMedium> {
        self.0.upgrade().map(OpenMedium)
    }
}

#[derive(Debug)]
struct Inner {
    kind: Kind,
    /// In whole blocks, and only ever refreshed by the control thread.
    size: AtomicU64,
    block_size: u32,
    read_only: bool,
    /// Whether it was opened to be shared with another target.
    shared: bool,
}

#[derive(Debug)]
pub(super) enum Kind {
    File(OpenFile),
    Ram(Arc<Region>),
    Null,
    Faulty,
}

impl OpenMedium {
    /// Opens a regular file or a block device, for direct I/O where it takes it.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn file(path: &Path, options: FileOptions) -> Result<Self, OpenError> {
        let (file, block_size) = OpenFile::open(path, options)?;
        let inner = Inner {
            size: AtomicU64::new(file.size),
            block_size,
            read_only: options.read_only,
            shared: options.shared,
            kind: Kind::File(file),
        };
        let medium = Self(Arc::new(inner));
        let size = medium.refresh().map_err(|source| OpenError::Open { path: path.into(), source })?;
        match size {
            0 => Err(OpenError::TooSmall { path: path.into(), size, block_size }),
            _ => Ok(medium),
        }
    }

    /// Memory of this many bytes, zeroed, which takes from the system what is written to it.
    ///
    /// # Errors
    /// When the size is not a multiple of the block size, or more than the system has.
    pub fn ram(size: u64, block_size: u32) -> Result<Self, OpenError> {
        Self::ram_in_pages(size, block_size, HugePages::Off)
    }

    /// As [`Self::ram`], in huge pages that are set aside, if so many are free: then all of it is taken at once.
    ///
    /// # Errors
    /// As [`Self::ram`].
    pub fn ram_in_pages(size: u64, block_size: u32, pages: HugePages) -> Result<Self, OpenError> {
        let impossible = |source| OpenError::Size { size, source };
        let length = usize::try_from(size).map_err(|error| impossible(io::Error::other(error)))?;
        let region = Region::in_pages(length, true, pages).map_err(impossible)?;
        Self::anonymous(Kind::Ram(region), size, block_size)
    }

    /// A medium which holds nothing.
    ///
    /// # Errors
    /// When the size is not a multiple of the block size.
    pub fn null(size: u64, block_size: u32) -> Result<Self, OpenError> {
        Self::anonymous(Kind::Null, size, block_size)
    }

    /// A medium whose content the simulator keeps, in a [`super::Faulty`]; a real reactor has no such thing.
    ///
    /// # Errors
    /// When the size is not a multiple of the block size.
    pub fn faulty(size: u64, block_size: u32) -> Result<Self, OpenError> {
        Self::anonymous(Kind::Faulty, size, block_size)
    }

    fn anonymous(kind: Kind, size: u64, block_size: u32) -> Result<Self, OpenError> {
        check_block_size(block_size)?;
        if size == 0 || !size.is_multiple_of(u64::from(block_size)) {
            return Err(OpenError::Size { size, source: io::ErrorKind::InvalidInput.into() });
        }
        Ok(Self(Arc::new(Inner {
            kind,
            size: AtomicU64::new(size),
            block_size,
            read_only: false,
            shared: false,
        })))
    }

    /// The same medium, which from now on takes no change.
    ///
    /// # Panics
    /// When it is already in use elsewhere.
    #[must_use]
    pub fn protected(mut self) -> Self {
        Arc::get_mut(&mut self.0).expect("a medium is protected before it is shared").read_only = true;
        self
    }

    /// What it holds in blocks of another size, or read-only, or no longer so: itself if it is so already,
    /// else a second medium on the same memory or descriptor, which needs no second lock. `block_size` is as
    /// in [`FileOptions`]. Nothing if it was not opened for that.
    #[must_use]
    pub fn with_options(&self, block_size: Option<u32>, read_only: bool) -> Option<Self> {
        let (kind, native, fits) = match &self.0.kind {
            Kind::File(file) => {
                let native = file.native_block_size;
                let fits = file.takes_blocks_of(block_size.unwrap_or(native));
                (Kind::File(file.clone()), native, fits && (read_only || file.is_writable))
            }
            Kind::Ram(region) => (Kind::Ram(Arc::clone(region)), self.0.block_size, true),
            Kind::Null => (Kind::Null, self.0.block_size, true),
            Kind::Faulty => return None,
        };
        let block_size = block_size.unwrap_or(native);
        if (block_size, read_only) == (self.0.block_size, self.0.read_only) {
            return Some(self.clone());
        }
        let size = self.size() - self.size() % u64::from(block_size);
        let possible = fits && check_block_size(block_size).is_ok() && size > 0;
        let inner = Inner { kind, size: AtomicU64::new(size), block_size, read_only, shared: self.0.shared };
        possible.then(|| Self(Arc::new(inner)))
    }

    /// Gives up the lock of a file for a moment, so that the same process can lock it in another way;
    /// [`Self::lock_again`] if it does not.
    pub fn unlock(&self) {
        if let Kind::File(file) = &self.0.kind {
            file.unlock();
        }
    }

    /// Takes the lock back which [`Self::unlock`] gave up.
    pub fn lock_again(&self) {
        if let Kind::File(file) = &self.0.kind {
            file.lock_again();
        }
    }

    /// Whether both are one and the same medium, not merely two openings of one file.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A way to find it again that does not keep it open.
    #[must_use]
    pub fn downgrade(&self) -> WeakMedium {
        WeakMedium(Arc::downgrade(&self.0))
    }

    /// Bytes it holds: whole blocks.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size.load(Ordering::Relaxed)
    }

    /// Bytes of a logical block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.0.block_size
    }

    /// Whether another target may serve it too.
    #[must_use]
    pub fn shared(&self) -> bool {
        self.0.shared
    }

    #[must_use]
    pub fn read_only(&self) -> bool {
        self.0.read_only
    }

    /// Whether a write which has completed may still be lost with the power, unless flushed.
    #[must_use]
    pub fn volatile_cache(&self) -> bool {
        matches!(self.0.kind, Kind::File(_) | Kind::Faulty)
    }

    /// Whether what it holds is there again after a loss of power.
    #[must_use]
    pub fn outlasts_power_loss(&self) -> bool {
        !matches!(self.0.kind, Kind::Ram(_))
    }

    /// Whether it gives the space of deallocated blocks back.
    #[must_use]
    pub fn deallocates(&self) -> bool {
        !matches!(self.0.kind, Kind::Null)
    }

    #[must_use]
    pub fn identity(&self) -> Identity {
        match &self.0.kind {
            Kind::File(file) => file.identity,
            Kind::Ram(_) | Kind::Null | Kind::Faulty => Identity::Anonymous,
        }
    }

    /// Whether reads and writes bypass the page cache.
    #[must_use]
    pub fn direct(&self) -> bool {
        matches!(&self.0.kind, Kind::File(file) if file.alignment.is_some())
    }

    /// Looks again how large the medium is, for all reactors at once. A file may have grown.
    ///
    /// # Errors
    /// What the system says.
    pub fn refresh(&self) -> io::Result<u64> {
        if let Kind::File(_) = &self.0.kind {
            let size = self.current_size()?;
            self.0.size.store(size - size % u64::from(self.0.block_size), Ordering::Relaxed);
        }
        Ok(self.size())
    }

    /// Bytes it holds at this moment, which nobody else is told.
    pub(super) fn current_size(&self) -> io::Result<u64> {
        match &self.0.kind {
            Kind::File(file) => file.current_size(),
            Kind::Ram(_) | Kind::Null | Kind::Faulty => Ok(self.size()),
        }
    }

    pub(super) fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        match &self.0.kind {
            Kind::File(file) => Some(Arc::clone(&file.fd)),
            Kind::Ram(_) | Kind::Null | Kind::Faulty => None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_polled(&self) -> bool {
        matches!(&self.0.kind, Kind::File(file) if file.polling.is_on())
    }

    /// Takes the medium for one that can be polled, whatever the kernel says of it.
    #[cfg(test)]
    pub(super) fn pretend_it_can_be_polled(mut self) -> Self {
        let inner = Arc::get_mut(&mut self.0).expect("nobody else has it yet");
        if let Kind::File(file) = &mut inner.kind {
            file.polling = super::polled::Polling::new(true);
        }
        self
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.0.kind
    }
}

/// Whether hosts can work with blocks of this size.
pub(super) fn check_block_size(block_size: u32) -> Result<(), OpenError> {
    if block_size.is_power_of_two() && (512..=4096).contains(&block_size) {
        return Ok(());
    }
    Err(OpenError::BlockSize { block_size })
}
