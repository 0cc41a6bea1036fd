//! Which way is tried after which, where nobody answers.
use std::net::TcpListener;
use std::sync::mpsc::sync_channel;
use std::thread;

use ironside_common::reactor::mailbox;

use super::*;

/// Why there is no attachment, if whoever calls is hung up on. Software stands in the place of the adapter.
fn hung_up_on(provider: Provider) -> AttachError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let nqn = "nqn.2014-08.org.example:a".parse().unwrap();
    let host = HostOptions::new(address.into(), nqn, nqn, uuid::Uuid::from_u128(7));
    let options = AttachOptions { provider, buffers: Vec::new(), ..AttachOptions::new(host) };
    let (_letters, mailbox) = mailbox(1).unwrap();
    let computing = Computing::new(|_, _| false);
    let ((ready, outcome), (events, _heard)) = (sync_channel(1), sync_channel(8));
    let calls = thread::spawn(move || {
        listener.incoming().map_while(|call| call.ok()?.peer_addr().ok()).take(2).count()
    });
    let seats = Seats { core: Core::default(), is_first: true, computing, mailbox, ready, events };
    by_adapter(&options, seats, software).unwrap();
    let error = outcome.recv().unwrap().unwrap_err();
    // Whoever still waits for the second call gets one.
    drop(std::net::TcpStream::connect(address));
    calls.join().unwrap();
    error
}

#[test]
fn where_nobody_answers_by_the_adapter_software_is_tried_and_both_are_told_of() {
    let error = hung_up_on(Provider::Auto);
    assert!(matches!(error, AttachError::Neither { .. }), "{error:?}");
    let said = error.to_string();
    assert_eq!(said.matches("connecting the admin queue").count(), 2, "{said}");
    assert!(said.contains("by the RDMA adapter on the way"), "{said}");
}

#[test]
fn an_adapter_that_was_demanded_is_all_that_is_tried() {
    let error = hung_up_on(Provider::Ibv);
    assert!(matches!(error, AttachError::Connect(ConnectError::Refused { .. })), "{error:?}");
}
