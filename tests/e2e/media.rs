//! Media in trouble, seen through the real programs: a full file system, a file cut short under the target,
//! and one that may not be written.
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use ironside_tests::support::programs::{Initiator, Target, program, run, text};

use super::bench::{eventually, namespace};

/// A file system of `size` in memory, mounted until it is dropped.
struct Mounted(String);

impl Mounted {
    /// Nothing without root, which is said.
    fn new(place: &Path, size: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: mounting takes root");
            return None;
        }
        let at = place.join("mounted");
        fs::create_dir(&at).unwrap();
        let at = at.to_str().unwrap().to_owned();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "ironside-e2e", &at]);
        Some(Self(at))
    }

    fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Whoever still has a file there is about to end.
        run("umount", &["-l", &self.0]);
    }
}

/// One volume of 64 MiB in `file`, attached as an NBD socket.
struct Attached {
    socket: String,
    /// What qemu-io has to be told besides.
    mode: &'static [&'static str],
    initiator: Initiator,
    _target: Target,
}

impl Attached {
    fn new(place: &Path, volume: &str) -> Self {
        let target = Target::serve(place, &[volume]);
        let initiator = Initiator::new(place);
        let attached = initiator.connect(&target, &["--via", "nbd"]);
        let socket = attached["DevicePath"].as_str().unwrap().to_owned();
        let mode: &[_] = if volume.contains("read-only") { &["-r"] } else { &[] };
        Self { socket, mode, initiator, _target: target }
    }

    /// What qemu-io says to one of its commands.
    fn qemu_io(&self, command: &str) -> (bool, String) {
        let address = format!("nbd+unix:///?socket={}", self.socket);
        let mut qemu_io = Command::new("qemu-io");
        qemu_io.args(["-f", "raw"]).args(self.mode).args(["-c", command, &address]);
        let output = qemu_io.output().unwrap();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    fn succeeds(&self, command: &str) {
        let (success, said) = self.qemu_io(command);
        assert!(success && !said.contains("failed"), "{command}: {said}");
    }

    fn fails(&self, command: &str, with: &str) {
        let (success, said) = self.qemu_io(command);
        assert!(!success && said.contains(with), "{command}: {said}");
    }
}

#[test]
fn a_full_file_system_says_so_and_goes_on_when_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::new(directory.path(), "40m") else { return };
    let attached = Attached::new(directory.path(), &namespace(mounted.path()));
    attached.succeeds("write -P 0x11 0 4M");
    let ballast = mounted.path().join("ballast");
    fs::write(&ballast, vec![1; 32 << 20]).unwrap();
    attached.fails("write -P 0x22 8M 16M", "No space left on device");
    attached.succeeds("read -P 0x11 0 4M");
    assert_eq!(attached.initiator.list()[0]["State"].as_str(), Some("live"));
    fs::remove_file(ballast).unwrap();
    attached.succeeds("write -P 0x22 8M 16M");
    attached.succeeds("flush");
    attached.succeeds("read -P 0x22 8M 16M");
    attached.initiator.succeed(&["disconnect", "vol0"]);
}

#[test]
fn a_file_cut_short_fails_where_it_ends_and_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let attached = Attached::new(directory.path(), &namespace(directory.path()));
    attached.succeeds("write -P 0x33 0 32M");
    let file = File::options().write(true).open(directory.path().join("volume")).unwrap();
    file.set_len(16 << 20).unwrap();
    attached.succeeds("read -P 0x33 0 16M");
    attached.fails("read 16M 1M", "failed");
    attached.fails("read 15M 2M", "failed");
    attached.succeeds("write -P 0x44 0 1M");
    attached.succeeds("read -P 0x44 0 1M");
    file.set_len(64 << 20).unwrap();
    eventually("what was cut off reads as zeroes again", || attached.qemu_io("read -P 0 16M 16M").0);
    attached.succeeds("read -P 0x33 1M 15M");
    attached.initiator.succeed(&["disconnect", "vol0"]);
}

#[test]
fn a_file_that_may_not_be_written_is_served_only_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::new(directory.path(), "80m") else { return };
    let volume = mounted.path().join("volume");
    fs::write(&volume, vec![0x55; 64 << 20]).unwrap();
    run("mount", &["-o", "remount,ro", &mounted.0]);

    let path = volume.to_str().unwrap();
    let refused = Command::new(program("ironside-target"))
        .args(["serve", "--allow-any-host", "--listen", "127.0.0.1:4499", "--namespace", path])
        .env("XDG_STATE_HOME", directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains(path) && said.contains("read-only"), "{said}");

    let attached = Attached::new(directory.path(), &format!("{path},read-only"));
    attached.succeeds("read -P 0x55 0 64M");
    let address = format!("nbd+unix:///?socket={}", attached.socket);
    assert!(run("nbdinfo", &["--json", &address]).contains("\"is_read_only\": true"));
    let writable = Attached { mode: &[], ..attached };
    writable.fails("write -P 0x66 0 4k", "Permission denied");
    let attached = Attached { mode: &["-r"], ..writable };
    attached.succeeds("read -P 0x55 0 4k");
    attached.initiator.succeed(&["disconnect", "vol0"]);
}
