//! Targets which are none: whoever attaches is told so, and the reactor thread ends.
use std::net::{SocketAddr, TcpListener};
use std::thread;

use super::*;

fn options(address: SocketAddr) -> AttachOptions {
    let nqn = "nqn.2014-08.org.example:sub1".parse().unwrap();
    let host_nqn = "nqn.2014-08.org.example:host".parse().unwrap();
    AttachOptions::new(HostOptions::new(address.into(), nqn, host_nqn, uuid::Uuid::from_u128(7)))
}

#[test]
fn nobody_listening_is_said_at_once() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Attached::attach(options(address)).unwrap_err();
    assert!(matches!(error, AttachError::Connect(ConnectError::Refused { .. })), "{error:?}");
    assert!(error.to_string().starts_with("connecting the admin queue: "), "{error}");
    assert!(discover(options(address)).is_err());
    assert!(inquire(options(address)).is_err());
}

#[test]
fn a_listener_that_hangs_up_is_no_target() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || drop(listener.accept().unwrap()));
    let error = Attached::attach(options(address)).unwrap_err();
    assert!(matches!(error, AttachError::Connect(ConnectError::Refused { .. })), "{error:?}");
    accepting.join().unwrap();
}

#[test]
fn options_out_of_range_are_refused_before_anything_starts() {
    let mut options = options("127.0.0.1:1".parse().unwrap());
    options.host.queue_size = 2000;
    assert!(matches!(Attached::attach(options), Err(AttachError::Options(OptionsError::QueueSize))));
}
