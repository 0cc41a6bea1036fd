//! The export on a real socket, driven by a real loop, with a volume in memory.
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use ironside_common::reactor::Poll;

use super::world::{client_flags, info_data, option, parameters, request};
use crate::export::Listener;
use crate::export::nbd::wire::{command, option as number};
use crate::export::nbd::{Part, Server};
use crate::export::tests::{GEOMETRY, Running};

struct Served {
    path: PathBuf,
    running: Running,
    _directory: tempfile::TempDir,
}

impl Served {
    fn start() -> Self {
        Self::start_with(Poll::Adaptive)
    }

    fn start_with(poll: Poll) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        let at = path.clone();
        let part = move || Part::of_each(Listener::bind(&at).unwrap(), parameters(), 1).unwrap().remove(0);
        let running = Running::start_with(poll, move |_| Server::of(part()));
        Self { path, running, _directory: directory }
    }

    /// What the volume holds in the end.
    fn end(self) -> Vec<u8> {
        self.running.end()
    }
}

/// A client in the transmission phase, with simple replies.
fn connect(path: &Path) -> UnixStream {
    let mut socket = UnixStream::connect(path).unwrap();
    let bytes = [client_flags(), option(number::GO, &info_data("vol", &[]))].concat();
    socket.write_all(&bytes).unwrap();
    // Greeting, two infos, one acknowledgement.
    let mut answers = [0; 18 + (20 + 12) + (20 + 14) + 20];
    socket.read_exact(&mut answers).unwrap();
    socket
}

fn expect_done(socket: &mut UnixStream, cookie: u64) {
    let mut reply = [0; 16];
    socket.read_exact(&mut reply).unwrap();
    assert_eq!(reply[4..8], [0; 4]);
    assert_eq!(reply[8..], cookie.to_be_bytes());
}

#[test]
fn several_clients_write_and_read_at_once() {
    const LENGTH: u32 = 100 * 1024;
    let served = Served::start();
    assert_eq!(served.path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    thread::scope(|scope| {
        for client in 0..8_u8 {
            let path = &served.path;
            scope.spawn(move || {
                let mut socket = connect(path);
                let offset = u64::from(client) * u64::from(LENGTH);
                for round in 0..20 {
                    let data = vec![client + round; LENGTH as usize];
                    socket.write_all(&request(command::WRITE, 0, 1, offset, LENGTH)).unwrap();
                    socket.write_all(&data).unwrap();
                    expect_done(&mut socket, 1);
                    socket.write_all(&request(command::READ, 0, 2, offset, LENGTH)).unwrap();
                    expect_done(&mut socket, 2);
                    let mut back = vec![0; LENGTH as usize];
                    socket.read_exact(&mut back).unwrap();
                    assert_eq!(back, data);
                }
            });
        }
    });
    let path = served.path.clone();
    let bytes = served.end();
    assert!(bytes[..LENGTH as usize].iter().all(|&byte| byte == 19));
    assert!(!path.exists());
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_and_not_the_end() {
    let served = Served::start();
    let mut lazy = connect(&served.path);
    for cookie in 0..100 {
        lazy.write_all(&request(command::READ, 0, cookie, 0, 16384)).unwrap();
    }
    let mut other = connect(&served.path);
    other.write_all(&request(command::FLUSH, 0, 7, 0, 0)).unwrap();
    expect_done(&mut other, 7);
    served.end();
    let mut rest = Vec::new();
    // Requests the server had not read when it hung up make the end a reset.
    if let Err(error) = lazy.read_to_end(&mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert!(rest.len() < 100 * 16384);
    assert_eq!(other.read(&mut [0; 1]).unwrap(), 0, "hung up on");
}

#[test]
fn a_loop_which_never_sleeps_sends_on_once_there_is_room() {
    let served = Served::start_with(Poll::Always);
    let mut client = connect(&served.path);
    for cookie in 0..100 {
        client.write_all(&request(command::READ, 0, cookie, 0, 16384)).unwrap();
    }
    // By the time this one is answered there is no room for the other's replies.
    let mut other = connect(&served.path);
    other.write_all(&request(command::FLUSH, 0, 7, 0, 0)).unwrap();
    expect_done(&mut other, 7);
    for cookie in 0..100 {
        expect_done(&mut client, cookie);
        client.read_exact(&mut [0; 16384]).unwrap();
    }
    served.end();
}

#[test]
fn clients_come_and_go_and_those_too_many_are_turned_away() {
    let served = Served::start();
    for _ in 0..3 {
        let mut clients: Vec<_> = (0..64).map(|_| connect(&served.path)).collect();
        let mut surplus = UnixStream::connect(&served.path).unwrap();
        assert_eq!(surplus.read(&mut [0; 1]).unwrap(), 0);
        for client in &mut clients {
            client.write_all(&request(command::DISCONNECT, 0, 0, 0, 0)).unwrap();
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        }
    }
    assert_eq!(served.end().len() as u64, GEOMETRY.size);
}

#[test]
fn a_client_which_is_handed_over_needs_no_words_before_its_first_request() {
    let (mut kernel, ours) = UnixStream::pair().unwrap();
    let running = Running::start(move |_| Server::handed(ours, parameters()));
    kernel.write_all(&request(command::WRITE, 0, 1, 4096, 4096)).unwrap();
    kernel.write_all(&[0x5A; 4096]).unwrap();
    expect_done(&mut kernel, 1);
    kernel.write_all(&request(command::READ, 0, 2, 4096, 4096)).unwrap();
    expect_done(&mut kernel, 2);
    let mut back = [0; 4096];
    kernel.read_exact(&mut back).unwrap();
    assert_eq!(back, [0x5A; 4096]);
    // It ends with the export, whether its client has said farewell or not.
    assert!(running.end()[4096..8192].iter().all(|&byte| byte == 0x5A));
    assert_eq!(kernel.read(&mut [0; 1]).unwrap(), 0, "hung up on");
}

#[test]
fn clients_of_an_export_in_parts_are_seated_in_turn_and_stay_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let parts = Part::of_each(Listener::bind(&path).unwrap(), parameters(), 2).unwrap();
    // Each has a volume of its own here, which shows by whom a client is served.
    let running: Vec<_> = parts.into_iter().map(|part| Running::start(move |_| Server::of(part))).collect();
    let mut clients: Vec<_> = (0..4).map(|_| connect(&path)).collect();
    for round in 1..4 {
        for (client, offset) in clients.iter_mut().zip((0..).step_by(4096)) {
            client.write_all(&request(command::WRITE, 0, round, offset, 4096)).unwrap();
            client.write_all(&[round as u8; 4096]).unwrap();
            expect_done(client, round);
        }
    }
    drop(clients);
    let written = |bytes: Vec<u8>| [0, 1, 2, 3].map(|client| bytes[client * 4096..][..4096] == [3; 4096]);
    let seen: Vec<_> = running.into_iter().map(|one| written(one.end())).collect();
    assert_eq!(seen, [[false, true, false, true], [true, false, true, false]]);
}
