//! A volume as a virtual machine's disk, with the real programs and a machine of our own making.
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ironside_tests::support::programs::Target;
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use super::bench::{Bench, eventually, namespace, pid};
use super::machine::{FLUSH, FrontEnd, Guest, ID, READ, WRITE};

/// Attaches the volume, and gives the socket.
fn attach(bench: &Bench, more: &[&str]) -> PathBuf {
    let attached = bench.connect(&[&["--via", "vhost-user-blk", "-c", "1"], more].concat());
    attached["DevicePath"].as_str().unwrap().into()
}

fn kill_attachment(bench: &Bench) {
    let process = pid(&bench.initiator.list()[0]);
    kill(process, Signal::SIGKILL).unwrap();
    eventually("the process ends", || !Path::new(&format!("/proc/{process}")).exists());
}

fn volume(bench: &Bench, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    File::open(bench.place.join("volume")).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn a_machine_reads_and_writes_its_disk_and_guards_it() {
    let bench = Bench::new();
    let socket = attach(&bench, &[]);
    let mut guest = Guest::new();
    let link = guest.connect(&socket);
    assert_eq!(link.configuration(0, 8), (64_u64 << 20 >> 9).to_le_bytes());
    assert_eq!(link.configuration(20, 4), 4096_u32.to_le_bytes());
    let bytes: Vec<u8> = (0..65536_u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    guest.put_data(0, &bytes);
    assert_eq!(guest.request(&link, WRITE, 8, 65536), 0);
    assert!(link.was_interrupted());
    assert_eq!(guest.request(&link, FLUSH, 0, 0), 0);
    assert!(volume(&bench, 4096, 65536) == bytes);
    guest.put_data(0, &[0; 65536]);
    assert_eq!(guest.request(&link, READ, 8, 65536), 0);
    assert!(guest.data(0, 65536) == bytes);
    assert_eq!(guest.request(&link, ID, 0, 20), 0);
    let id = guest.data(0, 20);
    assert!(id.iter().all(u8::is_ascii_hexdigit), "{id:?}");
    // Not whole blocks of the volume, and beyond its end.
    assert_eq!((guest.request(&link, WRITE, 1, 4096), guest.request(&link, READ, 1 << 40, 4096)), (1, 1));

    let listed = bench.initiator.list();
    assert_eq!(
        (listed[0]["Via"].as_str(), listed[0]["DevicePath"].as_str()),
        (Some("vhost-user-blk"), socket.to_str())
    );
    let said = bench.initiator.fail(5, &["disconnect", "vol0"]);
    assert!(said.contains("used by the machine"), "{said}");
    let other = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    assert!(std::io::Read::read(&mut &other, &mut [0]).unwrap() == 0, "another machine is turned away");
    for slot in 0..20 {
        guest.submit(&link, slot, READ, 0, 65536);
    }
    assert_eq!((0..20).map(|_| guest.wait().1).max(), Some(0));
    assert_eq!(link.stop(), 26);
    drop(link);
    eventually("the machine goes", || bench.initiator.run(&["disconnect", "vol0"]).status.success());
    bench.assert_clean();
}

#[test]
fn a_machine_outlives_its_back_end_and_nothing_is_lost_or_done_twice() {
    let mut bench = Bench::new();
    let socket = attach(&bench, &[]);
    let mut guest = Guest::new();
    let link = guest.connect(&socket);
    guest.put_data(0, &[1; 4096]);
    assert_eq!(guest.request(&link, WRITE, 0, 4096), 0);
    link.configure(32, 0);
    // What is under way when the process dies is held, as the target has died before.
    let port = bench.crash_target();
    for slot in 0..4_u16 {
        guest.put_data(slot, &[0x10 + slot as u8; 4096]);
        guest.submit(&link, slot, WRITE, 8 * u64::from(slot), 4096);
    }
    eventually("the loss is seen", || bench.initiator.list()[0]["State"] == "connecting");
    kill_attachment(&bench);
    let listed = bench.initiator.list();
    assert_eq!(listed[0]["State"].as_str(), Some("orphaned"));
    assert!(bench.initiator.fail(5, &["disconnect", "vol0"]).contains("used by the machine"));
    bench.target = Some(Target::serve_at(port, &bench.place, &[&namespace(&bench.place)]));
    let mut link = reconnect(&bench, &["recover", "vol0"], &mut guest, &socket, link);
    let mut ended: Vec<_> = (0..4).map(|_| guest.wait()).collect();
    ended.sort_unstable();
    assert_eq!(ended, [(0, 0), (1, 0), (2, 0), (3, 0)]);
    for slot in 0..4_u8 {
        assert_eq!(volume(&bench, 4096 * u64::from(slot), 4096), [0x10 + slot; 4096]);
    }
    assert_eq!(link.configuration(32, 1), [0], "how the cache is used outlasts it too");
    // Again, with nothing under way, and by connect, while the process may still be dying.
    kill(pid(&bench.initiator.list()[0]), Signal::SIGKILL).unwrap();
    let port = port.to_string();
    let nqn = bench.target().nqn.clone();
    let again = ["connect", "-a", "127.0.0.1", "-s", &port, "-n", &nqn];
    link = reconnect(&bench, &again, &mut guest, &socket, link);
    assert!(guest.is_quiet(), "nothing is done twice");
    assert_eq!(guest.request(&link, READ, 8, 4096), 0);
    assert_eq!(guest.data(0, 4096), [0x11; 4096]);
    bench.initiator.succeed(&["disconnect", "--force", "vol0"]);
    bench.assert_clean();
}

/// Has another process serve the machine.
fn reconnect(bench: &Bench, words: &[&str], guest: &mut Guest, socket: &Path, link: FrontEnd) -> FrontEnd {
    bench.initiator.succeed(words);
    drop(link);
    guest.connect(socket)
}

#[test]
fn a_machine_hears_of_a_new_size_and_a_volume_that_is_read_only_stays_as_it_is() {
    let mut bench = Bench::new();
    let socket = attach(&bench, &["--read-only", "-k", "2"]);
    let mut guest = Guest::new();
    let mut link = guest.connect(&socket);
    assert_eq!(guest.request(&link, WRITE, 0, 4096), 1);
    assert_eq!(guest.request(&link, READ, 0, 4096), 0);
    let port = bench.crash_target();
    let volume = bench.place.join("volume");
    File::options().write(true).open(&volume).unwrap().set_len(128 << 20).unwrap();
    let namespace = format!("{},lba=4096", volume.display());
    bench.target = Some(Target::serve_at(port, &bench.place, &[&namespace]));
    link.wait_for_change();
    assert_eq!(link.configuration(0, 8), (128_u64 << 20 >> 9).to_le_bytes());
    assert_eq!(guest.request(&link, READ, 100 << 20 >> 9, 4096), 0);
    bench.initiator.succeed(&["disconnect", "-f", "vol0"]);
    bench.assert_clean();
}

#[test]
fn a_front_end_that_talks_nonsense_is_hung_up_on_and_the_next_one_served() {
    let bench = Bench::new();
    let socket = attach(&bench, &[]);
    let message = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    for nonsense in [
        message(&[1, 0, 0]),
        message(&[1, 1, u32::MAX]),
        message(&[2, 1, 4, 0]),
        message(&[99, 1, 0]),
        message(&[5, 1, 8, 9, 0]),
        message(&[8, 1, 8, 200, 64]),
        message(&[13, 1, 8, 0, 0]),
    ] {
        let link = Guest::new().connect(&socket);
        assert!(link.gets_hung_up_on_for(&nonsense), "{nonsense:?}");
    }
    let mut guest = Guest::new();
    let link = guest.connect(&socket);
    assert_eq!(guest.request(&link, READ, 0, 4096), 0);
    // One that dies with its memory leaves nothing behind.
    drop((link, guest));
    let attached: Value = bench.initiator.list().remove(0);
    let log = Path::new(attached["DevicePath"].as_str().unwrap()).with_file_name("log");
    assert!(fs::read_to_string(log).unwrap().contains("the machine is gone"));
    eventually("it goes", || bench.initiator.run(&["disconnect", "vol0"]).status.success());
    bench.assert_clean();
}
