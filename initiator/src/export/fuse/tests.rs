//! The file and the block device on a real kernel, with a volume in memory. Mounting takes root and
//! `/dev/fuse`; without them there is nothing to test here, and the tests say so.
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};

use super::{Fuse, Mount};
use crate::export::loop_device::LoopDevice;
use crate::export::tests::{GEOMETRY, Running};
use crate::export::usage::{self, Use};
use crate::volume::Geometry;

struct Mounted {
    mount: Mount,
    running: Running,
    file: PathBuf,
    _directory: tempfile::TempDir,
}

impl Mounted {
    fn new(geometry: Geometry) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let (mount, parts) = Mount::new(directory.path(), geometry).unwrap();
        let running = Running::start(move |memory| Fuse::new(parts, memory));
        let file = mount.file();
        Some(Self { mount, running, file, _directory: directory })
    }

    fn end(self) -> Vec<u8> {
        self.mount.unmount().unwrap();
        self.running.end()
    }
}

/// Aligned for direct I/O.
fn page(value: u8) -> Vec<u8> {
    vec![value; 4096]
}

#[test]
fn the_file_is_the_volume() {
    let Some(mounted) = Mounted::new(GEOMETRY) else { return };
    let metadata = fs::metadata(&mounted.file).unwrap();
    assert_eq!(metadata.len(), GEOMETRY.size);
    let names: Vec<_> = fs::read_dir(mounted.file.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["vol"]);
    let file = OpenOptions::new().read(true).write(true).open(&mounted.file).unwrap();
    file.write_all_at(&page(7), 8192).unwrap();
    let mut back = vec![0; 1000];
    file.read_exact_at(&mut back, 8192 + 17).unwrap();
    assert!(back.iter().all(|&byte| byte == 7), "a read need not begin with a block");
    assert!(file.write_all_at(&[1, 2, 3], 0).is_err(), "a write has to");
    assert!(file.write_all_at(&page(1), GEOMETRY.size).is_err());
    assert_eq!(file.read_at(&mut back, GEOMETRY.size).unwrap(), 0);
    assert!(file.set_len(0).is_err());
    file.sync_all().unwrap();
    let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file.as_fd(), FallocateFlags::FALLOC_FL_PUNCH_HOLE | keep, 8192, 512).unwrap();
    fallocate(file.as_fd(), FallocateFlags::FALLOC_FL_ZERO_RANGE | keep, 12288 - 512, 512).unwrap();
    assert!(fallocate(file.as_fd(), keep, 0, 4096).is_err(), "there is nothing to allocate");
    drop(file);
    let bytes = mounted.end();
    let expected = [vec![0; 512], vec![7; 4096 - 1024], vec![0; 512]].concat();
    assert_eq!(bytes[8192..12288], expected);
}

#[test]
fn a_read_only_volume_cannot_be_written() {
    let Some(mounted) = Mounted::new(Geometry { read_only: true, ..GEOMETRY }) else { return };
    let refused = OpenOptions::new().write(true).open(&mounted.file).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let device = LoopDevice::attach(&mounted.file, 512, true).unwrap();
    let mut first = vec![1; 512];
    File::open(device.path()).unwrap().read_exact_at(&mut first, 0).unwrap();
    assert_eq!(first, vec![0; 512]);
    device.detach().unwrap();
    mounted.end();
}

#[test]
fn a_loop_device_makes_it_a_block_device() {
    let Some(mounted) = Mounted::new(GEOMETRY) else { return };
    let device = LoopDevice::attach(&mounted.file, 512, false).unwrap();
    assert!(device.stands_on(&mounted.file) && !device.stands_on(Path::new("/dev/null")));
    let sys = Path::new("/sys/block").join(device.path().file_name().unwrap());
    assert_eq!(fs::read_to_string(sys.join("loop/dio")).unwrap().trim(), "1");
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_SYNC).open(device.path()).unwrap();
    file.write_all_at(&page(9), 4096).unwrap();
    file.sync_all().unwrap();
    assert_eq!(usage::of(device.path()), [], "our own use does not count");
    let mut other =
        std::process::Command::new("sleep").arg("60").stdin(file.try_clone().unwrap()).spawn().unwrap();
    let uses = usage::of(device.path());
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(uses, [Use::OpenBy { pid: other.id(), name: "sleep".into() }]);
    drop(file);
    device.detach().unwrap();
    assert!(mounted.end()[4096..8192].iter().all(|&byte| byte == 9));
}
