//! Target and initiator on one machine, by a Unix socket and memory they share.
use std::fs::{self, File};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use ironside_tests::support::programs::{Initiator, Target, free_port, run, text};
use nix::sys::signal::{Signal, kill};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;

use super::bench::{eventually, namespace, pid};

struct Bench {
    initiator: Initiator,
    target: Option<Target>,
    socket: PathBuf,
    place: PathBuf,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_owned();
        let socket = place.join("ironside.sock");
        let initiator = Initiator::new(&place);
        let mut bench = Self { initiator, target: None, socket, place, _directory: directory };
        bench.serve(free_port());
        bench
    }

    fn serve(&mut self, port: u16) {
        let volume = namespace(&self.place);
        let socket = self.socket.to_str().unwrap();
        let options = ["--listen", socket, "--allow-any-host", "--namespace", &volume];
        self.target =
            Some(Target::serve_as("nqn.2014-08.org.example:same-host", port, &self.place, &options));
    }

    fn target(&self) -> &Target {
        self.target.as_ref().unwrap()
    }

    fn by_socket<'a>(&'a self, command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&[command, "-t", "rdma", "-a", self.socket.to_str().unwrap()], more].concat()
    }

    fn connect(&self, more: &[&str]) -> Value {
        let nqn = &*self.target().nqn;
        let line = [&["-n", nqn, "--via", "nbd", "-o", "json"], more].concat();
        let said = self.initiator.succeed(&self.by_socket("connect", &line));
        let said: Value = serde_json::from_str(&said).unwrap();
        said.get("Devices").map_or(said.clone(), |devices| devices[0].clone())
    }

    fn qemu_io(&self, device: &Value, command: &str) {
        let address = format!("nbd+unix:///?socket={}", device["DevicePath"].as_str().unwrap());
        let output = Command::new("qemu-io").args(["-f", "raw", "-c", command, &address]).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && !said.contains("failed"), "{command}: {said}");
    }

    /// Pieces of shared memory which the target has mapped, and descriptors it has.
    fn held(&self) -> (usize, usize) {
        let process = Path::new("/proc").join(self.target().id().to_string());
        let maps = fs::read_to_string(process.join("maps")).unwrap();
        let mapped = maps.lines().filter(|line| line.contains("memfd:ironside")).count();
        (mapped, fs::read_dir(process.join("fd")).unwrap().count())
    }
}

#[test]
fn a_volume_is_attached_by_a_socket_and_survives_its_target() {
    let mut bench = Bench::new();
    let device = bench.connect(&["-c", "1", "-k", "2"]);
    bench.qemu_io(&device, "write -P 0x11 0 8M");
    bench.qemu_io(&device, "write -P 0x22 12288 4096");
    bench.qemu_io(&device, "read -P 0x22 12288 4096");
    bench.qemu_io(&device, "read -P 0x11 16384 4M");
    let listed = bench.initiator.list();
    assert!(listed[0].to_string().contains(bench.socket.to_str().unwrap()), "{listed:?}");
    assert_eq!(bench.held().0, 2, "one piece of memory for the admin queue, and one for the I/O queue");

    let discovered = bench.initiator.succeed(&bench.by_socket("discover", &["-o", "json"]));
    assert!(discovered.contains("intra-host") && discovered.contains(bench.socket.to_str().unwrap()));

    // It leaves its socket behind, as a crash does; the next one takes it over.
    let port = bench.target.take().unwrap().crash();
    assert!(bench.socket.exists());
    eventually("the loss is noticed", || bench.initiator.list()[0]["State"] == "connecting");
    bench.serve(port);
    bench.qemu_io(&device, "read -P 0x11 16384 4M");
    assert_eq!(bench.initiator.list()[0]["State"].as_str(), Some("live"));
    bench.initiator.succeed(&["disconnect", device["Name"].as_str().unwrap()]);
    eventually("memory is given back", || bench.held().0 == 0);
    kill(nix::unistd::Pid::from_raw(bench.target().id().cast_signed()), Signal::SIGTERM).unwrap();
    eventually("the socket goes with its target", || !bench.socket.exists());
}

#[test]
fn nothing_is_left_of_an_initiator_that_is_killed() {
    let bench = Bench::new();
    let before = bench.held();
    let device = bench.connect(&[]);
    bench.qemu_io(&device, "write -P 0x33 0 1M");
    assert!(bench.held().0 > before.0);
    kill(pid(&bench.initiator.list()[0]), Signal::SIGKILL).unwrap();
    eventually("its memory and descriptors are given back", || bench.held() == before);
    bench.initiator.run(&["disconnect", "--force", device["Name"].as_str().unwrap()]);
    let device = bench.connect(&[]);
    bench.qemu_io(&device, "read -P 0x33 0 1M");
    bench.initiator.succeed(&["disconnect", device["Name"].as_str().unwrap()]);
}

#[test]
fn whoever_cannot_be_reached_says_why() {
    let bench = Bench::new();
    let refused = |path: &Path| {
        let line = ["discover", "-t", "rdma", "-a", path.to_str().unwrap()];
        let output = bench.initiator.run(&line);
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let missing = refused(&bench.place.join("missing"));
    assert!(missing.contains("no target listens there"), "{missing}");
    let file = bench.place.join("file");
    fs::write(&file, "precious").unwrap();
    let plain = refused(&file);
    assert!(plain.contains("is no socket"), "{plain}");
    let output = Command::new(ironside_tests::support::programs::program("ironside-target"))
        .args(["serve", "--listen", file.to_str().unwrap(), "--allow-any-host", "--namespace", "null:1MiB"])
        .env("XDG_STATE_HOME", bench.place.join("other"))
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("no socket"), "{said}");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

/// The memory which the target hands to whoever connects.
fn knock(socket: &Path) -> (UnixStream, File) {
    let socket = UnixStream::connect(socket).unwrap();
    let mut hello = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&socket, &mut [IoSliceMut::new(&mut hello)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let memory: OwnedFd = descriptors.next().unwrap().next().unwrap();
    (socket, File::from(memory))
}

/// A process which takes the memory and writes whatever it likes into it, again and again, while another works.
#[test]
fn a_process_which_scribbles_harms_nobody_else() {
    let bench = Bench::new();
    let device = bench.connect(&[]);
    bench.qemu_io(&device, "write -P 0x44 0 4M");
    let before = bench.held();
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..200 {
        let (socket, memory) = knock(&bench.socket);
        let length = memory.metadata().unwrap().len();
        assert!(memory.set_len(0).is_err(), "what is sealed cannot be taken away");
        for _ in 0..50 {
            // Every other time one of the first page, where the numbers are.
            let at = if random() % 2 == 0 { (random() % 1024) & !7 } else { random() % (length - 8) };
            memory.write_at(&(random() >> (random() % 64)).to_le_bytes(), at).unwrap();
            // Wakes the target now and then, whether or not it wants to be.
            if random() % 4 == 0 {
                let _ = rustix::net::send(&socket, &[1], rustix::net::SendFlags::NOSIGNAL);
            }
        }
        if round % 20 == 0 {
            bench.qemu_io(&device, "read -P 0x44 0 4M");
        }
    }
    bench.qemu_io(&device, "read -P 0x44 0 4M");
    eventually("what the scribblers had is given back", || bench.held() == before);
    bench.initiator.succeed(&["disconnect", device["Name"].as_str().unwrap()]);
    assert!(
        run("cat", &[bench.place.join("target.log").to_str().unwrap()])
            .lines()
            .all(|line| !line.contains("panic"))
    );
}
