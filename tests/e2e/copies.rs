//! The Copy command against the real target, on file systems that share blocks and on such that do not.
use std::path::{Path, PathBuf};
use std::process::Command;

use ironside_tests::support::programs::{Target, run, text};

use crate::bench::namespace;

/// A file system of its own in a file, mounted until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Nothing where that takes what is not here, which is said.
    fn new(place: &Path, kind: &str, options: &[&str]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            eprintln!("skipped: mounting takes root and the loop driver");
            return None;
        }
        let image = place.join("image");
        std::fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
        let made = Command::new(format!("mkfs.{kind}")).args(options).arg(&image).output();
        if !made.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: nothing makes {kind} here");
            return None;
        }
        let at = place.join("mounted");
        std::fs::create_dir(&at).unwrap();
        run("mount", &["-o", "loop", image.to_str().unwrap(), at.to_str().unwrap()]);
        Some(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Whoever still has a file there is about to end.
        run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

/// Has a host copy blocks of this namespace at random, and compare.
fn copy_and_compare(place: &Path, volume: &str) {
    let target = Target::serve(place, &[volume]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/copies.py");
    let output = Command::new("python3").arg(script).args([&target.port.to_string(), &target.nqn]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// How many pieces of the volume share their blocks with others.
fn shared(place: &Path) -> usize {
    run("filefrag", &["-v", place.join("volume").to_str().unwrap()]).matches("shared").count()
}

#[test]
fn xfs_shares_what_is_copied() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::new(directory.path(), "xfs", &["-q", "-m", "reflink=1"]) else { return };
    copy_and_compare(directory.path(), &namespace(&mounted.0));
    assert!(shared(&mounted.0) > 0);
}

#[test]
fn ext4_tmpfs_and_memory_hold_what_was_copied() {
    let directory = tempfile::tempdir().unwrap();
    if let Some(mounted) = Mounted::new(directory.path(), "ext4", &["-q"]) {
        copy_and_compare(directory.path(), &namespace(&mounted.0));
        assert_eq!(shared(&mounted.0), 0);
    }
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    copy_and_compare(directory.path(), &namespace(memory.path()));
    copy_and_compare(directory.path(), "ram:64MiB,lba=512");
}
