//! One anonymous mapping, page-aligned, zeroed, taken from the system as it is touched; or memory of somebody else's.
//!
//! Peers, the kernel and (for a RAM namespace) other reactors may write a region while we read it, so no
//! Rust reference to its bytes ever exists: bytes are copied in and out. A race between two hosts for a
//! shared region's bytes is an unspecified value and nothing worse.
use std::any::Any;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::PAGE;
use super::copy::copy_racing;
use super::huge::{HugePages, in_words};

#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    length: usize,
    /// What was mapped, which begins before `base` where that is aligned to more than a page.
    mapping: (NonNull<u8>, usize),
    /// Whether it lies in huge pages that were set aside.
    huge: bool,
    /// Whether several threads touch it.
    shared: bool,
    /// Whether it is registered for a while only.
    passing: bool,
    /// What holds the memory, if it is somebody else's.
    keeper: Option<Arc<dyn Any + Send + Sync>>,
    /// [`PINNED`], and how many discards are under way.
    discards: AtomicU32,
}

/// What transparent huge pages are of, where the kernel has them.
const HUGE_PAGE: usize = 2 << 20;
/// The pages stay: a device reaches the memory by them, whatever the page tables say, or nobody would give them again.
const PINNED: u32 = 1 << 31;

// SAFETY: a region which is not shared is used by the one reactor that made it (its constructor says so);
// a shared one is accessed by `copy_racing` only. The mapping itself is not tied to a thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A region of `length` bytes for one reactor.
    ///
    /// # Errors
    /// When the system has no such address space left.
    pub fn new(length: usize) -> io::Result<Arc<Self>> {
        Self::map(length, false, false)
    }

    /// A region for one reactor which ends before what lends it does: peers are lent it for single commands only.
    ///
    /// # Errors
    /// When the system has no such address space left.
    pub fn new_passing(length: usize) -> io::Result<Arc<Self>> {
        Self::map(length, false, true)
    }

    /// A region which several threads may read and write at once. A large one lies in huge pages, if the
    /// kernel has some without being asked to set them aside.
    ///
    /// # Errors
    /// When the system has no such address space left.
    pub fn new_shared(length: usize) -> io::Result<Arc<Self>> {
        Self::map(length, true, false)
    }

    /// As [`Self::new`], or [`Self::new_shared`], in huge pages which are set aside if so many are free, and otherwise as
    /// those. What is in huge pages stays: it is all taken at once, and none of it given back before the region goes.
    ///
    /// # Errors
    /// When the system has no such address space left.
    pub fn in_pages(length: usize, shared: bool, pages: HugePages) -> io::Result<Arc<Self>> {
        for page in pages.sizes(length) {
            let of = in_words(page as u64);
            match Self::map_huge(length, shared, page) {
                Ok(region) => {
                    tracing::info!(bytes = length, "memory lies in huge pages of {of}");
                    return Ok(region);
                }
                Err(error) if pages == HugePages::Auto => {
                    tracing::debug!(bytes = length, %error, "huge pages of {of} are not there");
                }
                Err(error) => {
                    let needed = length.div_ceil(page);
                    let kibibytes = page >> 10;
                    tracing::warn!(
                        bytes = length,
                        "memory does not lie in huge pages of {of}: {needed} would have to be free ({error}); set more aside by \
                         /sys/kernel/mm/hugepages/hugepages-{kibibytes}kB/nr_hugepages"
                    );
                }
            }
        }
        Self::map(length, shared, false)
    }

    fn map_huge(length: usize, shared: bool, page: usize) -> io::Result<Arc<Self>> {
        let mapped = length.checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
        let size = NonZeroUsize::new(mapped).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let of_size = page.trailing_zeros().cast_signed() << libc::MAP_HUGE_SHIFT;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_HUGETLB | MapFlags::from_bits_retain(of_size);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap_anonymous(None, size, protection, flags) }?.cast::<u8>();
        let (mapping, discards) = ((base, mapped), AtomicU32::new(PINNED));
        let region =
            Self { base, length, mapping, huge: true, shared, passing: false, keeper: None, discards };
        // A page that is not to be had after all (a limit of a control group) would end the process when it is touched.
        // SAFETY: the mapping is our own, and the advice changes nothing of what is in it.
        let taken = unsafe { libc::madvise(base.as_ptr().cast(), mapped, libc::MADV_POPULATE_WRITE) };
        if taken == 0 { Ok(Arc::new(region)) } else { Err(io::Error::last_os_error()) }
    }

    fn map(length: usize, shared: bool, passing: bool) -> io::Result<Arc<Self>> {
        let large = shared && length >= HUGE_PAGE;
        let mapped =
            length.checked_add(if large { HUGE_PAGE } else { 0 }).ok_or(io::ErrorKind::OutOfMemory)?;
        let size = NonZeroUsize::new(mapped).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(None, size, protection, flags) }?.cast::<u8>();
        let skipped = if large { start.as_ptr().align_offset(HUGE_PAGE) } else { 0 };
        // SAFETY: a huge page more than `length` was mapped, and the next boundary of one is nearer than that.
        let base = unsafe { start.add(skipped) };
        let (mapping, discards) = ((start, mapped), AtomicU32::new(0));
        let region = Self { base, length, mapping, huge: false, shared, passing, keeper: None, discards };
        if large {
            region.prefer_huge_pages();
        }
        Ok(Arc::new(region))
    }

    /// The first `length` bytes of a file which other processes have mapped too, and write while we read: memory shared
    /// with them. If the file becomes shorter, touching what is gone ends this process (SIGBUS).
    ///
    /// # Errors
    /// When the kernel refuses, as it does if the file is not open for reading and writing.
    pub fn of_file(file: impl AsFd, length: usize) -> io::Result<Arc<Self>> {
        let size = NonZeroUsize::new(length).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, file, 0) }?.cast::<u8>();
        let (mapping, discards) = ((base, length), AtomicU32::new(PINNED));
        let (huge, shared, passing, keeper) = (false, true, false, None);
        Ok(Arc::new(Self { base, length, mapping, huge, shared, passing, keeper, discards }))
    }

    /// Memory of somebody else's, as it lies, whose pages stay.
    ///
    /// # Safety
    /// It may be read and written as long as the keeper is there. Nobody holds a reference to it while the region is read,
    /// written, or named in work.
    pub(super) unsafe fn of_others(bytes: NonNull<[u8]>, keeper: Arc<dyn Any + Send + Sync>) -> Arc<Self> {
        let (base, length, keeper) = (bytes.cast(), bytes.len(), Some(keeper));
        let (mapping, discards) = ((base, length), AtomicU32::new(PINNED));
        Arc::new(Self { base, length, mapping, huge: false, shared: false, passing: true, keeper, discards })
    }

    /// Whether it ends before what lends it does, as somebody else's memory may: it is lent to peers for single commands
    /// only, whatever may be done with what stays.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        self.passing
    }

    /// Whether it begins and ends with a page, so that it can be registered where it lies.
    #[must_use]
    pub fn is_whole_pages(&self) -> bool {
        self.base.addr().get().is_multiple_of(PAGE) && self.length.is_multiple_of(PAGE)
    }

    /// Where it lies in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The memory from `offset` on, `length` bytes of it, for the kernel or a device to use. The holder
    /// sees to it that the region outlives that use.
    ///
    /// # Panics
    /// If it does not lie inside.
    #[must_use]
    pub fn pointer(&self, offset: usize, length: usize) -> NonNull<u8> {
        assert!(offset <= self.length && length <= self.length - offset, "beyond the region");
        // SAFETY: the offset was just checked to lie within the mapping.
        unsafe { self.base.add(offset) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.pointer(offset, bytes.len());
        if self.shared {
            // SAFETY: both are valid for that many bytes, and no reference to a region's bytes exists.
            return unsafe { copy_racing(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        }
        // SAFETY: `to` is valid for that many bytes, and no Rust reference to a region's bytes exists, so
        // `bytes` cannot overlap them.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copies from `offset` on until `into` is full.
    ///
    /// # Panics
    /// If the region ends before.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.pointer(offset, into.len());
        if self.shared {
            // SAFETY: as in `write`.
            return unsafe { copy_racing(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        }
        // SAFETY: `from` is valid for that many bytes, and `into`, a Rust reference, cannot overlap them.
        unsafe { from.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) }
    }

    /// A number of two bytes which another process may write meanwhile: it is read as a whole, and before whatever is read
    /// of the region after it.
    ///
    /// # Panics
    /// If it does not lie inside, or at an odd offset.
    #[must_use]
    pub fn load_u16(&self, offset: usize) -> u16 {
        self.atomic_u16(offset).load(Ordering::Acquire)
    }

    /// Writes a number of two bytes as a whole, and after whatever was written to the region before it.
    ///
    /// # Panics
    /// If it does not lie inside, or at an odd offset.
    pub fn store_u16(&self, offset: usize, value: u16) {
        self.atomic_u16(offset).store(value, Ordering::Release);
    }

    fn atomic_u16(&self, offset: usize) -> &AtomicU16 {
        let at = self.pointer(offset, size_of::<u16>()).as_ptr();
        assert!(at.addr().is_multiple_of(align_of::<AtomicU16>()), "an aligned number");
        #[expect(clippy::cast_ptr_alignment, reason = "just checked")]
        let at = at.cast::<u16>();
        // SAFETY: it is mapped as long as this lives, and aligned; whoever else writes it does so by atomics, or by
        // instructions the compiler does not know of.
        unsafe { AtomicU16::from_ptr(at) }
    }

    /// As [`Self::load_u16`], of eight bytes.
    ///
    /// # Panics
    /// If it does not lie inside, or not at a multiple of eight.
    #[must_use]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.atomic_u64(offset).load(Ordering::Acquire)
    }

    /// As [`Self::store_u16`], of eight bytes.
    ///
    /// # Panics
    /// If it does not lie inside, or not at a multiple of eight.
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.atomic_u64(offset).store(value, Ordering::Release);
    }

    fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        let at = self.pointer(offset, size_of::<u64>()).as_ptr();
        assert!(at.addr().is_multiple_of(align_of::<AtomicU64>()), "an aligned number");
        #[expect(clippy::cast_ptr_alignment, reason = "just checked")]
        let at = at.cast::<u64>();
        // SAFETY: as in `atomic_u16`.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Sets `length` bytes from `offset` on to zero.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn zero(&self, offset: usize, length: usize) {
        const ZEROES: [u8; 4096] = [0; 4096];
        let mut done = 0;
        while done < length {
            let part = (length - done).min(ZEROES.len());
            self.write(offset + done, &ZEROES[..part]);
            done += part;
        }
    }

    /// Asks for huge pages where the region is large, of which tables of its pages need fewer entries. To be called before
    /// the whole of it comes into use. What the system gives is its own affair.
    pub fn prefer_huge_pages(&self) {
        if self.keeper.is_some() || self.huge || self.length < HUGE_PAGE {
            return;
        }
        // SAFETY: the mapping is our own, and the advice changes nothing of what is in it.
        let taken = unsafe { madvise(self.base.cast(), self.length, MmapAdvise::MADV_HUGEPAGE) };
        if let Err(error) = taken {
            tracing::debug!(%error, "the system has no huge pages to give by itself");
        }
    }

    /// To be called before a device is told of the pages: from now on none is given back to the system, or the
    /// device would go on to use those that were.
    pub fn pin(&self) {
        let mut discards = self.discards.fetch_or(PINNED, Ordering::SeqCst);
        while discards & !PINNED != 0 {
            std::thread::yield_now();
            discards = self.discards.load(Ordering::SeqCst);
        }
    }

    /// Gives the pages of a range back to the system; they read as zeroes afterwards. `offset` and
    /// `length` are multiples of the page size.
    ///
    /// # Errors
    /// What the kernel says; and if a device knows the pages, so that they have to stay.
    pub fn discard(&self, offset: usize, length: usize) -> io::Result<()> {
        let before = self.discards.fetch_add(1, Ordering::SeqCst);
        let result = if before & PINNED == 0 {
            self.give_back(offset, length)
        } else {
            Err(io::ErrorKind::ResourceBusy.into())
        };
        self.discards.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn give_back(&self, offset: usize, length: usize) -> io::Result<()> {
        let at = self.pointer(offset, length);
        // SAFETY: the range lies inside our own private anonymous mapping, whose bytes nobody holds a
        // reference to; the advice only turns them into zeroes.
        unsafe { madvise(at.cast(), length, MmapAdvise::MADV_DONTNEED) }?;
        Ok(())
    }

    /// Copies `length` bytes of `from` at `from_offset` to `offset`. Where the two overlap, what comes out is a mixture.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn copy_from(&self, offset: usize, from: &Self, from_offset: usize, length: usize) {
        let (from, to) = (from.pointer(from_offset, length), self.pointer(offset, length));
        // SAFETY: both are valid for that many bytes, and no reference to a region's bytes exists.
        unsafe { copy_racing(from.as_ptr(), to.as_ptr(), length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.keeper.is_some() {
            return;
        }
        // SAFETY: the mapping is ours, and whoever names its memory to the kernel holds the region.
        let result = unsafe { munmap(self.mapping.0.cast(), self.mapping.1) };
        debug_assert!(result.is_ok(), "munmap of our own mapping: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_at_any_offset_and_length() {
        for region in [Region::new(8192).unwrap(), Region::new_shared(8192).unwrap()] {
            for offset in [0, 1, 7, 8, 4090] {
                for length in [0, 1, 3, 8, 9, 100, 4096] {
                    let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + offset) as u8).collect();
                    region.write(offset, &bytes);
                    let mut back = vec![0; length];
                    region.read(offset, &mut back);
                    assert_eq!(back, bytes, "{length} bytes at {offset}");
                }
            }
        }
    }

    #[test]
    fn a_file_is_memory_shared_with_whoever_has_it() {
        let file = std::fs::File::from(
            nix::sys::memfd::memfd_create(c"shared", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap(),
        );
        file.set_len(8192).unwrap();
        let (region, theirs) = (Region::of_file(&file, 8192).unwrap(), Region::of_file(&file, 4096).unwrap());
        region.write(100, b"hello");
        region.store_u16(2, 0x1234);
        region.store_u64(8, u64::MAX - 1);
        let mut back = [0; 5];
        theirs.read(100, &mut back);
        assert_eq!((&back, theirs.load_u16(2), theirs.len()), (b"hello", 0x1234, 4096));
        assert_eq!(theirs.load_u64(8), u64::MAX - 1);
        assert!(region.discard(0, 4096).is_err(), "it is not ours to give back");
        assert!(Region::of_file(&file, 0).is_err());
    }

    #[test]
    fn zeroing_and_discarding_leave_the_neighbours_alone() {
        let region = Region::new_shared(3 * 4096).unwrap();
        region.write(0, &[0xAA; 3 * 4096]);
        region.discard(4096, 4096).unwrap();
        region.zero(10, 5);
        let mut back = vec![0; 3 * 4096];
        region.read(0, &mut back);
        let expected = |i: usize| if (10..15).contains(&i) || (4096..8192).contains(&i) { 0 } else { 0xAA };
        assert!(back.iter().enumerate().all(|(i, &byte)| byte == expected(i)));
    }

    /// What the kernel says of the mapping of a region, by the name of the line.
    fn said_of(region: &Region, name: &str) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'))?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(range.0)?..number(range.1)?).contains(&region.address()))
        };
        let mut lines = maps.lines().skip_while(|line| holds(line) != Some(true));
        lines
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    /// Huge pages of 2 MiB set aside, as long as this lives.
    struct SetAside(u64);

    impl SetAside {
        const PLACE: &str = "/proc/sys/vm/nr_hugepages";

        fn there() -> Option<u64> {
            std::fs::read_to_string(Self::PLACE).ok()?.trim().parse().ok()
        }

        fn more(pages: u64) -> Result<Self, String> {
            let before = Self::there().ok_or("the kernel has none")?;
            std::fs::write(Self::PLACE, (before + pages).to_string()).map_err(|error| error.to_string())?;
            let made = Self(before);
            if Self::there() == Some(before + pages) {
                Ok(made)
            } else {
                Err("too little memory is free".into())
            }
        }
    }

    impl Drop for SetAside {
        fn drop(&mut self) {
            let _ = std::fs::write(Self::PLACE, self.0.to_string());
        }
    }

    #[test]
    fn huge_pages_that_are_set_aside_are_taken_where_asked_for_and_stay() {
        let length = 3 << 20;
        let _set_aside = match SetAside::more(2) {
            Ok(set_aside) => set_aside,
            Err(why) => return eprintln!("skipped: huge pages cannot be set aside here: {why}"),
        };
        let plain = Region::in_pages(length, false, HugePages::Off).unwrap();
        assert_eq!(said_of(&plain, "KernelPageSize"), "4 kB");
        let region = Region::in_pages(length, true, HugePages::TwoMebibytes).unwrap();
        assert_eq!(said_of(&region, "KernelPageSize"), "2048 kB");
        assert_eq!((region.len(), region.address() % HUGE_PAGE as u64), (length, 0));
        region.write(length - 5, b"hello");
        assert!(region.discard(0, HUGE_PAGE).is_err(), "nobody would give them again");
        // More than were set aside, or than anybody may have: as if nothing had been asked for.
        for pages in [HugePages::Auto, HugePages::TwoMebibytes, HugePages::OneGibibyte] {
            let region = Region::in_pages(1 << 44, false, pages).unwrap();
            assert_eq!(said_of(&region, "KernelPageSize"), "4 kB");
        }
        let mut back = [0; 5];
        region.read(length - 5, &mut back);
        assert_eq!(&back, b"hello");
    }

    #[test]
    fn huge_pages_are_asked_for_where_a_region_is_large() {
        let region = Region::new(2 * HUGE_PAGE).unwrap();
        region.prefer_huge_pages();
        if std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
            assert!(said_of(&region, "VmFlags").split(' ').any(|flag| flag == "hg"));
        }
    }

    #[test]
    fn pages_a_device_knows_stay() {
        let region = Region::new_shared(4096).unwrap();
        region.write(0, &[0xAA]);
        region.pin();
        assert_eq!(region.discard(0, 4096).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        let mut back = [0];
        region.read(0, &mut back);
        assert_eq!(back, [0xAA], "only who knows of no device may think it gone");
    }

    #[test]
    #[should_panic(expected = "beyond the region")]
    fn an_offset_beyond_the_end_is_caught() {
        Region::new(4096).unwrap().write(4090, &[0; 7]);
    }
}
