//! A volume as a plain file, by FUSE: for root, and for whoever has no rights but `fusermount3`.
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ironside_tests::support::programs::{program, text};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::bench::{Bench, eventually, finish, fio, pid};

const NOBODY: u32 = 65534;

#[test]
fn a_file_holds_the_volume_and_is_guarded() {
    let Some(bench) = bench() else { return };
    let attached = bench.connect(&["--via", "fuse-file"]);
    assert_eq!(
        (attached["Via"].as_str(), attached["Reason"].as_str()),
        (Some("fuse-file"), Some("FUSE, as asked"))
    );
    let path = attached["DevicePath"].as_str().unwrap();
    assert!(fs::metadata(path).unwrap().is_file());
    assert_eq!(fs::metadata(path).unwrap().size(), 64 << 20);
    for job in ["--rw=randrw --bs=4k --size=4m --iodepth=32", "--rw=write --bs=1m --size=16m --iodepth=4"] {
        finish(fio(path, &job.split(' ').collect::<Vec<_>>()).spawn().unwrap());
    }
    let file = File::options().read(true).write(true).open(path).unwrap();
    file.write_all_at(&[0x5A; 8192], 4096).unwrap();
    file.sync_all().unwrap();
    let medium = fs::read(bench.place.join("volume")).unwrap();
    assert!(medium[4096..12288].iter().all(|&byte| byte == 0x5A));
    // Not whole blocks; and the volume has the size it has.
    assert_eq!(file.write_at(&[1; 100], 0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert_eq!(file.write_at(&[1; 4096], 64 << 20).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert!(bench.initiator.fail(5, &["disconnect", "vol0"]).contains("open by"));
    drop(file);
    bench.initiator.succeed(&["disconnect", "-d", path]);
    bench.assert_clean();
}

#[test]
fn a_read_only_file_refuses_writes() {
    let Some(bench) = bench() else { return };
    let attached = bench.connect(&["--via", "fuse-file", "--read-only"]);
    let path = attached["DevicePath"].as_str().unwrap();
    let refused = File::options().write(true).open(path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let mut block = [0; 4096];
    File::open(path).unwrap().read_exact_at(&mut block, 0).unwrap();
    bench.initiator.succeed(&["disconnect", "vol0"]);
    bench.assert_clean();
}

#[test]
fn whoever_has_no_rights_has_a_file_all_the_same() {
    let Some(bench) = bench() else { return };
    if !nix::unistd::geteuid().is_root() || !Path::new("/usr/bin/fusermount3").exists() {
        eprintln!("skipped: to become nobody takes root, and nobody's mounts take fusermount3");
        return;
    }
    let user = Nobody::new(&bench);
    if fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o006 != 0o006 {
        let refused = user.try_connect(&bench);
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains("chmod 666 /dev/fuse"), "{said}");
        eprintln!("skipped: /dev/fuse is open to root alone on this machine");
        return;
    }
    let attached = user.connect(&bench);
    let path = attached["DevicePath"].as_str().unwrap().to_owned();
    let written = user
        .run("dd", &["if=/dev/urandom", &format!("of={path}"), "bs=64k", "count=8", "conv=notrunc,fsync"]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let read = user.run("dd", &[&format!("if={path}"), "bs=64k", "count=8"]);
    assert!(read.stdout == fs::read(bench.place.join("volume")).unwrap()[..512 << 10], "other bytes");
    let ended = user.ironside(&["disconnect", "vol0"]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(fs::read_dir(&user.place).unwrap().count(), 0, "left behind");
    // A process that was killed leaves a mount, which is cleaned up by whoever made it.
    let attached = user.connect(&bench);
    let process = PathBuf::from(format!("/proc/{}", pid(&attached)));
    kill(pid(&attached), Signal::SIGKILL).unwrap();
    eventually("the process ends", || !process.exists());
    let listed = user.ironside(&["list"]);
    assert!(text(&listed.stderr).contains("cleaned up"), "{}", text(&listed.stderr));
    assert_eq!(fs::read_dir(&user.place).unwrap().count(), 0, "left behind");
    let refused = user.ironside(&["connect", "-a", "127.0.0.1", "-n", &bench.target().nqn, "--via", "ublk"]);
    assert_eq!(refused.status.code(), Some(6));
    assert!(text(&refused.stderr).contains("--via ublk takes root"), "{}", text(&refused.stderr));
    bench.assert_clean();
}

/// Somebody without rights, with a place of their own.
struct Nobody {
    place: PathBuf,
}

impl Nobody {
    fn new(bench: &Bench) -> Self {
        let place = bench.place.join("nobody");
        fs::create_dir(&place).unwrap();
        chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
        // The way there has to be open.
        fs::set_permissions(&bench.place, fs::Permissions::from_mode(0o755)).unwrap();
        Self { place }
    }

    fn run(&self, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).uid(NOBODY).gid(NOBODY).env("IRONSIDE_RUNTIME_DIR", &self.place);
        command.env("XDG_STATE_HOME", &self.place).stdin(Stdio::null()).output().unwrap()
    }

    fn ironside(&self, arguments: &[&str]) -> Output {
        let host = ["-q", "nqn.2026-11.org.example:nobody", "-I", "6f9619ff-8b86-d011-b42d-00cf4fc964ff"];
        let more = if arguments[0] == "connect" { &host[..] } else { &[] };
        self.run(program("ironside"), &[arguments, more].concat())
    }

    fn try_connect(&self, bench: &Bench) -> Output {
        let target = bench.target();
        let (port, nqn) = (target.port.to_string(), target.nqn.as_str());
        let words =
            ["connect", "-a", "127.0.0.1", "-s", &port, "-n", nqn, "-o", "json", "--via", "fuse-file"];
        self.ironside(&words)
    }

    fn connect(&self, bench: &Bench) -> Value {
        let output = self.try_connect(bench);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// With FUSE, if this machine has it.
fn bench() -> Option<Bench> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: a file takes /dev/fuse");
        return None;
    }
    Some(Bench::new())
}
