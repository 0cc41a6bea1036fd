//! What every end-to-end test of an attachment needs.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ironside_tests::support::programs::{Initiator, Target};
use nix::unistd::Pid;
use serde_json::Value;

/// A place, a target with one volume of 64 MiB in a file, and the initiator.
pub(crate) struct Bench {
    pub(crate) initiator: Initiator,
    pub(crate) target: Option<Target>,
    pub(crate) place: PathBuf,
    _directory: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_owned();
        let target = Some(Target::serve(&place, &[&namespace(&place)]));
        Self { initiator: Initiator::new(&place), target, place, _directory: directory }
    }

    /// One that can make block devices, if this machine can.
    pub(crate) fn with_devices() -> Option<Self> {
        let missing = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| !Path::new(path).exists());
        if !nix::unistd::geteuid().is_root() || missing.is_some() {
            eprintln!("skipped: a block device takes root, /dev/fuse and the loop driver");
            return None;
        }
        Some(Self::new())
    }

    pub(crate) fn target(&self) -> &Target {
        self.target.as_ref().unwrap()
    }

    pub(crate) fn connect(&self, more: &[&str]) -> Value {
        self.initiator.connect(self.target(), more)
    }

    /// Attaches it as a block device, and gives that.
    pub(crate) fn device(&self, more: &[&str]) -> String {
        let attached = self.connect(&[&["--via", "fuse"], more].concat());
        attached["DevicePath"].as_str().unwrap().to_owned()
    }

    pub(crate) fn crash_target(&mut self) -> u16 {
        self.target.take().unwrap().crash()
    }

    /// Nothing is attached and nothing is left of what was.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.initiator.list(), Vec::<Value>::new());
        assert_eq!(fs::read_dir(&self.initiator.place).unwrap().count(), 0, "left behind");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.place.to_str().unwrap()), "a mount is left");
    }

    /// Made in the place, so that it goes with it.
    pub(crate) fn mount_point(&self) -> String {
        let path = self.place.join("mnt");
        fs::create_dir(&path).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

pub(crate) fn namespace(place: &Path) -> String {
    format!("{},size=64MiB,lba=4096", place.join("volume").display())
}

/// fio on a block device: writes, reads back and compares checksums.
pub(crate) fn fio(device: &str, more: &[&str]) -> Command {
    let mut fio = Command::new("fio");
    fio.args([
        "--name=e2e",
        "--ioengine=libaio",
        "--direct=1",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ]);
    fio.arg(format!("--filename={device}")).args(more).stdin(Stdio::null()).stdout(Stdio::piped());
    fio.stderr(Stdio::piped());
    fio
}

pub(crate) fn finish(fio: Child) {
    let output = fio.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether a loop device stands on anything.
pub(crate) fn is_bound(device: &str) -> bool {
    Path::new("/sys/block").join(Path::new(device).file_name().unwrap()).join("loop").exists()
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not happen within 30 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn pid(device: &Value) -> Pid {
    Pid::from_raw(i32::try_from(device["Process"].as_i64().unwrap()).unwrap())
}
