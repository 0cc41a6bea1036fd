//! Media against the real kernel: files, devices, full and shrunken ones.
mod copies;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use ironside_common::memory::{Memory, Region};
use ironside_common::reactor::Ring;
use ironside_common::verbs::{Kind, Sge, Token};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;

const BUFFER: u32 = 1 << 20;

/// One reactor's worth of media, driven to the end of each operation.
struct Bench {
    memory: Rc<Memory>,
    ring: Ring,
    backends: Backends,
    buffer: u32,
}

impl Bench {
    fn new() -> Self {
        let memory = Memory::new();
        let buffer = memory.register(Region::new(BUFFER as usize).unwrap());
        let mut ring = Ring::new(64, Rc::clone(&memory)).unwrap();
        ring.register_region(buffer);
        let backends = Backends::new(Rc::clone(&memory), 64);
        Self { memory, ring, backends, buffer }
    }

    fn polling(mut self) -> Self {
        self.backends = self.backends.polling();
        self
    }

    fn add(&mut self, medium: &OpenMedium) -> usize {
        self.backends.add(medium, &mut self.ring).unwrap()
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        self.memory.sge(self.buffer, offset, length)
    }

    /// Every operation submitted, ended, by slot.
    fn finish(&mut self, count: usize) -> Vec<Done> {
        let mut done = Vec::new();
        while done.len() < count {
            while let Some(one) = self.backends.poll() {
                done.push(one);
            }
            if !self.backends.pump(&mut self.ring) && done.len() < count {
                self.ring.wait(None).unwrap();
            }
            while let Some((token, result)) = self.ring.reap() {
                self.backends.on_ring(token, result);
            }
        }
        assert_eq!(self.backends.poll(), None);
        assert_eq!(self.ring.in_flight(), 0);
        done.sort_unstable_by_key(|done| done.token.slot);
        done
    }

    fn execute(&mut self, namespace: usize, operation: Operation) -> Result<(), BlockError> {
        self.backends.submit(token(0), namespace, operation);
        let done = self.finish(1);
        assert_eq!(done[0].token, token(0));
        assert_eq!(self.backends.in_flight(namespace), 0);
        done[0].result
    }

    fn write(&mut self, namespace: usize, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.write_from(0, namespace, offset, bytes)
    }

    fn write_from(&mut self, at: u64, namespace: usize, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        let from = self.sge(at, u32::try_from(bytes.len()).unwrap());
        self.memory.write(from, bytes);
        self.execute(namespace, Operation::Write { offset, from, fua: false })
    }

    fn read(&mut self, namespace: usize, offset: u64, length: u32) -> Result<Vec<u8>, BlockError> {
        self.read_into(0, namespace, offset, length)
    }

    fn read_into(
        &mut self,
        at: u64,
        namespace: usize,
        offset: u64,
        length: u32,
    ) -> Result<Vec<u8>, BlockError> {
        let into = self.sge(at, length);
        self.memory.write(into, &vec![0xEE; length as usize]);
        self.execute(namespace, Operation::Read { offset, into })?;
        let mut bytes = vec![0; length as usize];
        self.memory.read(into, &mut bytes);
        Ok(bytes)
    }
}

fn token(slot: u16) -> Token {
    Token { kind: Kind::Medium, generation: 3, qpair: 4, slot }
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 256 + seed) as u8).collect()
}

fn image(directory: &Path, size: u64) -> PathBuf {
    let path = directory.join("image");
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn options(block_size: u32) -> FileOptions {
    FileOptions { block_size: Some(block_size), ..FileOptions::default() }
}

/// A directory which is a file system of its own; gone with it.
struct Mount(tempfile::TempDir);

impl Mount {
    /// A tmpfs of this many bytes; none where we may not mount.
    fn tmpfs(size: u64) -> Option<Self> {
        let options = format!("size={size}");
        Self::new("none".as_ref(), "tmpfs", Some(&options))
    }

    fn new(source: &Path, kind: &str, options: Option<&str>) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        match mount(Some(source), directory.path(), Some(kind), MsFlags::empty(), options) {
            Ok(()) => Some(Self(directory)),
            Err(error) => {
                eprintln!("skipped, since nothing can be mounted: {error}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        umount2(self.0.path(), MntFlags::MNT_DETACH).unwrap();
    }
}

/// A file as a block device; gone with it.
struct Loop(PathBuf);

impl Loop {
    /// None where we may not make loop devices.
    fn new(image: &Path, sector_size: u32) -> Option<Self> {
        let sector_size = sector_size.to_string();
        let output = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector_size])
            .arg(image)
            .output()
            .unwrap();
        if !output.status.success() {
            eprintln!(
                "skipped, since there are no loop devices: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            return None;
        }
        Some(Self(String::from_utf8(output.stdout).unwrap().trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        assert!(Command::new("losetup").arg("--detach").arg(&self.0).status().unwrap().success());
    }
}

/// What every medium of at least 1 MiB which is zero at first has to do.
fn exercise(bench: &mut Bench, medium: &OpenMedium) {
    let namespace = bench.add(medium);
    let block = medium.block_size() as usize;
    let (first, second) = (pattern(block, 1), pattern(BUFFER as usize / 2, 2));
    let at = block as u64;
    bench.write(namespace, at, &first).unwrap();
    assert_eq!(bench.read(namespace, 0, medium.block_size() * 2).unwrap(), [vec![0; block], first].concat());
    bench.write(namespace, 4 * at, &second).unwrap();
    let fua = Operation::Write { offset: 0, from: bench.sge(0, medium.block_size()), fua: true };
    bench.execute(namespace, fua).unwrap();
    bench.execute(namespace, Operation::Flush).unwrap();
    assert_eq!(bench.read(namespace, 4 * at, BUFFER / 2).unwrap(), second);
    for (deallocate, fua) in [(false, false), (true, false), (false, true), (true, true)] {
        bench.write(namespace, 4 * at, &second).unwrap();
        let (offset, length) = (5 * at, 3 * at);
        bench.execute(namespace, Operation::WriteZeroes { offset, length, deallocate, fua }).unwrap();
        let back = bench.read(namespace, 4 * at, BUFFER / 2).unwrap();
        let zeroed = block..4 * block;
        let expected = |i: usize| if zeroed.contains(&i) { 0 } else { second[i] };
        assert!(back.iter().enumerate().all(|(i, byte)| *byte == expected(i)));
    }
    bench.execute(namespace, Operation::Deallocate { offset: 0, length: medium.size() }).unwrap();
    let end = medium.size();
    for (offset, length) in [(end, block as u32), (end - at, 2 * block as u32), (u64::MAX - 511, 512)] {
        let into = bench.sge(0, length);
        let beyond = bench.execute(namespace, Operation::Read { offset, into });
        assert_eq!(beyond, Err(BlockError::OutOfRange));
    }
    bench.backends.remove(namespace, &mut bench.ring).unwrap();
}

#[test]
fn files_hold_what_was_written() {
    let directory = tempfile::tempdir().unwrap();
    for block_size in [512, 4096] {
        for buffered in [false, true] {
            let path = image(directory.path(), 4 << 20);
            let medium = OpenMedium::file(&path, FileOptions { buffered, ..options(block_size) }).unwrap();
            assert_eq!((medium.size(), medium.block_size()), (4 << 20, block_size));
            exercise(&mut Bench::new(), &medium);
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn a_drive_that_cannot_be_polled_after_all_is_used_the_common_way() {
    let directory = tempfile::tempdir().unwrap();
    for buffered in [false, true] {
        let path = image(directory.path(), 4 << 20);
        let medium = OpenMedium::file(&path, FileOptions { buffered, ..options(512) }).unwrap();
        let medium = medium.pretend_it_can_be_polled();
        let mut bench = Bench::new().polling();
        exercise(&mut bench, &medium);
        // The page cache is never polled; direct I/O of a file may be taken without.
        assert!(!buffered || (bench.backends.polled(), medium.is_polled()) == (0, false));
        exercise(&mut bench, &medium);
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_drive_is_polled_only_where_that_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let medium = OpenMedium::file(&image(directory.path(), 4 << 20), options(512)).unwrap();
    assert!(!medium.is_polled(), "a regular file has no queues");
    let medium = medium.pretend_it_can_be_polled();
    exercise(&mut Bench::new(), &medium);
    assert!(medium.is_polled(), "nothing has been tried");
}

#[test]
fn memory_holds_what_was_written_and_is_read_in_place() {
    let medium = OpenMedium::ram(4 << 20, 512).unwrap();
    let mut bench = Bench::new();
    exercise(&mut bench, &medium);
    let namespace = bench.add(&medium);
    bench.write(namespace, 1024, &[7; 512]).unwrap();
    let place = bench.backends.in_place(namespace, 1024, 512).unwrap();
    let mut bytes = [0; 512];
    bench.memory.read(place, &mut bytes);
    assert_eq!(bytes, [7; 512]);
    assert_eq!(bench.backends.in_place(namespace, (4 << 20) - 512, 1024), None);
    let (other, same) = (Bench::new(), medium.clone());
    let mut other = other;
    let elsewhere = other.add(&same);
    assert_eq!(other.read(elsewhere, 1024, 512).unwrap(), [7; 512], "another reactor sees the same medium");
}

#[test]
fn nothing_reads_as_zeroes() {
    let medium = OpenMedium::null(1 << 40, 4096).unwrap();
    let mut bench = Bench::new();
    let namespace = bench.add(&medium);
    bench.write(namespace, 0, &[7; 4096]).unwrap();
    assert_eq!(bench.read(namespace, 0, 4096).unwrap(), [0; 4096]);
    let place = bench.backends.in_place(namespace, 1 << 39, 1 << 20).unwrap();
    assert_eq!(place.length, 1 << 20);
    assert_eq!(bench.backends.in_place(namespace, 1 << 39, (1 << 20) + 4096), None);
}

#[test]
fn devices_hold_what_was_written() {
    let directory = tempfile::tempdir().unwrap();
    for sector_size in [512, 4096] {
        let path = image(directory.path(), 4 << 20);
        let Some(device) = Loop::new(&path, sector_size) else { return };
        let medium = OpenMedium::file(&device.0, FileOptions::default()).unwrap();
        assert_eq!((medium.block_size(), medium.size()), (sector_size, 4 << 20));
        assert!(medium.direct());
        assert!(matches!(medium.identity(), Identity::BlockDevice { .. }));
        exercise(&mut Bench::new(), &medium);
        drop(medium);
        if sector_size == 4096 {
            let refused = OpenMedium::file(&device.0, options(512));
            assert!(matches!(refused, Err(OpenError::SectorSize { sector_size: 4096, block_size: 512, .. })));
        }
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_file_system_with_neither_direct_io_nor_zeroing_does_it_all() {
    let Some(mount) = Mount::tmpfs(16 << 20) else { return };
    let path = image(mount.0.path(), 4 << 20);
    exercise(&mut Bench::new(), &OpenMedium::file(&path, options(512)).unwrap());
}

#[test]
fn a_full_file_system_says_so_and_keeps_what_it_has() {
    let Some(mount) = Mount::tmpfs(1 << 20) else { return };
    let path = image(mount.0.path(), 4 << 20);
    let medium = OpenMedium::file(&path, options(4096)).unwrap();
    let mut bench = Bench::new();
    let namespace = bench.add(&medium);
    let bytes = pattern(BUFFER as usize, 5);
    bench.write(namespace, 0, &bytes[..4096]).unwrap();
    assert_eq!(bench.write(namespace, 1 << 20, &bytes), Err(BlockError::NoSpace));
    assert_eq!(bench.read(namespace, 0, 4096).unwrap(), bytes[..4096]);
    bench.execute(namespace, Operation::Deallocate { offset: 0, length: 4 << 20 }).unwrap();
    bench.write(namespace, 2 << 20, &bytes[..4096]).unwrap();
}

#[test]
fn a_truncated_file_reads_as_an_error_and_a_grown_one_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    for buffered in [false, true] {
        let path = image(directory.path(), 1 << 20);
        let medium = OpenMedium::file(&path, FileOptions { buffered, ..options(512) }).unwrap();
        let mut bench = Bench::new();
        let namespace = bench.add(&medium);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(8192 + 100).unwrap();
        assert_eq!(bench.read(namespace, 0, 8192), Ok(vec![0; 8192]));
        assert_eq!(bench.read(namespace, 4096, 8192), Err(BlockError::EndOfFile));
        assert_eq!(bench.read(namespace, 65536, 512), Err(BlockError::EndOfFile));
        for deallocate in [true, false] {
            let (offset, length) = (65536, 512);
            let zeroes = Operation::WriteZeroes { offset, length, deallocate, fua: false };
            // Where the file system knows no shorter way zeroes are written, and are there.
            match bench.execute(namespace, zeroes) {
                Ok(()) => assert_eq!(bench.read(namespace, offset, 512), Ok(vec![0; 512])),
                Err(error) => assert_eq!(error, BlockError::Truncated),
            }
        }
        file.set_len((2 << 20) + 100).unwrap();
        assert_eq!(medium.refresh().unwrap(), 2 << 20);
        assert_eq!(bench.read(namespace, (2 << 20) - 512, 512), Ok(vec![0; 512]));
    }
}

#[test]
fn a_read_only_medium_is_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(directory.path(), 1 << 20);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let medium = OpenMedium::file(&path, FileOptions { read_only: true, ..options(512) }).unwrap();
    assert!(medium.read_only());
    let mut bench = Bench::new();
    let namespace = bench.add(&medium);
    assert_eq!(bench.write(namespace, 0, &[7; 512]), Err(BlockError::ReadOnly));
    let (offset, length) = (0, 512);
    let zeroes = Operation::WriteZeroes { offset, length, deallocate: true, fua: false };
    assert_eq!(bench.execute(namespace, zeroes), Err(BlockError::ReadOnly));
    let deallocate = Operation::Deallocate { offset, length };
    assert_eq!(bench.execute(namespace, deallocate), Err(BlockError::ReadOnly));
    assert_eq!(bench.execute(namespace, Operation::Flush), Ok(()));
    assert_eq!(bench.read(namespace, 0, 512).unwrap(), [0; 512]);
}

#[test]
fn memory_which_direct_io_refuses_is_copied() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(directory.path(), 1 << 20);
    let medium = OpenMedium::file(&path, options(512)).unwrap();
    let mut bench = Bench::new();
    let namespace = bench.add(&medium);
    let bytes = pattern(1536, 9);
    for at in [1, 3, 100, 511, 4095] {
        bench.write_from(at, namespace, 512, &bytes).unwrap();
        assert_eq!(bench.read_into(at + 2, namespace, 512, 1536).unwrap(), bytes);
    }
}

#[test]
fn every_operation_of_many_comes_back_exactly_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(directory.path(), 4 << 20);
    let file = OpenMedium::file(&path, options(4096)).unwrap();
    let ram = OpenMedium::ram(4 << 20, 4096).unwrap();
    let mut bench = Bench::new();
    let (file, ram) = (bench.add(&file), bench.add(&ram));
    const COUNT: u16 = 700;
    for slot in 0..COUNT {
        let namespace = if slot % 3 == 0 { ram } else { file };
        let offset = u64::from(slot) * 4096;
        let memory = bench.sge(u64::from(slot % 256) * 4096, 4096);
        let operation = match slot % 5 {
            0 => Operation::Flush,
            1 => Operation::Write { offset, from: memory, fua: slot % 2 == 0 },
            2 => Operation::WriteZeroes { offset, length: 4096, deallocate: slot % 2 == 0, fua: false },
            _ => Operation::Read { offset, into: memory },
        };
        bench.backends.submit(token(slot), namespace, operation);
    }
    let done = bench.finish(usize::from(COUNT));
    assert!(done.iter().map(|done| done.token).eq((0..COUNT).map(token)));
    assert!(done.iter().all(|done| done.result == Ok(())));
    assert_eq!((bench.backends.in_flight(file), bench.backends.in_flight(ram)), (0, 0));
}

#[test]
fn giving_space_back_makes_a_file_sparse() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(directory.path(), 1 << 20);
    let medium = OpenMedium::file(&path, options(4096)).unwrap();
    let mut bench = Bench::new();
    let namespace = bench.add(&medium);
    bench.write(namespace, 0, &pattern(BUFFER as usize, 1)).unwrap();
    bench.execute(namespace, Operation::Flush).unwrap();
    let before = fs::metadata(&path).unwrap().blocks();
    bench.execute(namespace, Operation::Deallocate { offset: 65536, length: 1 << 19 }).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert!(after.blocks() < before, "{before} blocks before, {} after", after.blocks());
    assert_eq!(after.len(), 1 << 20);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path, options| OpenMedium::file(path, options).unwrap_err().to_string();
    let path = directory.path();
    assert!(open(&path.join("missing"), options(512)).contains("cannot open"));
    assert!(open(path, options(512)).contains("neither a regular file nor a block device"));
    let tiny = path.join("tiny");
    File::create(&tiny).unwrap().write_all(&[0; 511]).unwrap();
    assert!(open(&tiny, options(512)).contains("truncate --size"));
    for block_size in [0, 1, 256, 513, 8192] {
        assert!(open(&tiny, options(block_size)).contains("power of two"));
    }
    assert!(OpenMedium::ram(1000, 512).is_err());
    assert!(OpenMedium::ram(0, 512).is_err());
    assert!(OpenMedium::ram(1 << 62, 512).is_err());
}

#[test]
fn a_mounted_device_is_refused_and_one_shared_with_a_target_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let Some(device) = Loop::new(&image(directory.path(), 16 << 20), 512) else { return };
    let made = Command::new("mkfs.ext4").arg("-q").arg(&device.0).status();
    if !made.is_ok_and(|status| status.success()) {
        return;
    }
    let open = |shared| OpenMedium::file(&device.0, FileOptions { shared, ..FileOptions::default() });
    let both = [open(true).unwrap(), open(true).unwrap()];
    drop(both);
    let Some(_mounted) = Mount::new(&device.0, "ext4", None) else { return };
    assert!(matches!(open(false), Err(OpenError::InUse { .. })));
    assert!(matches!(open(true), Err(OpenError::InUse { .. })));
}

#[test]
fn identity_tells_files_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(directory.path(), 4096);
    let link = directory.path().join("link");
    fs::hard_link(&path, &link).unwrap();
    let other = directory.path().join("other");
    File::create(&other).unwrap().write_all_at(&[0; 4096], 0).unwrap();
    let identity = |path| OpenMedium::file(path, options(512)).unwrap().identity();
    assert_eq!(identity(&path), identity(&link));
    assert_ne!(identity(&path), identity(&other));
}

#[test]
fn a_file_has_one_writer_or_many_readers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let open = |read_only| OpenMedium::file(&path, FileOptions { read_only, ..FileOptions::default() });
    let writer = open(false).unwrap();
    assert!(matches!(open(false), Err(OpenError::InUse { .. })));
    assert!(matches!(open(true), Err(OpenError::InUse { .. })));
    drop(writer);
    let readers = [open(true).unwrap(), open(true).unwrap()];
    assert!(matches!(open(false), Err(OpenError::InUse { .. })));
    drop(readers);
    let shared = || OpenMedium::file(&path, FileOptions { shared: true, ..FileOptions::default() });
    let writers = [shared().unwrap(), shared().unwrap()];
    assert!(matches!(open(false), Err(OpenError::InUse { .. })), "it would not know of the other two");
    drop(writers);
    let alone = open(false).unwrap();
    assert!(matches!(shared(), Err(OpenError::InUse { .. })));
    drop(alone);
    open(false).unwrap();
}
