//! The fabric does what RDMA promises, and refuses what RDMA refuses.
use std::rc::Rc;

use super::*;
use crate::memory::Memory;
use crate::provider::sim::{Prng, REMOTE_ACCESS_ERROR};
use crate::verbs::{Address, Kind, Wc, WcStatus};

const PARAMETERS: ConnectParameters =
    ConnectParameters { receives: 2, receive_size: 4160, send_queue: 8, reads: 1 };

struct Pair {
    network: Network,
    host: SimProvider,
    target: SimProvider,
    host_memory: Rc<Memory>,
    target_memory: Rc<Memory>,
    host_qp: QpHandle,
    target_qp: QpHandle,
}

fn token(kind: Kind) -> Token {
    Token { kind, generation: 0, qpair: 0, slot: 0 }
}

fn connection_event(provider: &mut SimProvider) -> CmEvent {
    match provider.poll() {
        Some(Event::Connection(event)) => *event,
        other => panic!("{other:?} is no news of a connection"),
    }
}

fn settle(network: &Network) {
    let mut prng = Prng::new(1);
    while network.step(&mut prng) {}
}

fn pair() -> Pair {
    let network = Network::new();
    let (host_memory, target_memory) = (Memory::new(), Memory::new());
    for memory in [&host_memory, &target_memory] {
        memory.register(memory::Region::new(8192).unwrap());
    }
    let address: Address = "192.0.2.1:4420".parse().unwrap();
    let mut target = network.endpoint(address, Rc::clone(&target_memory), 4);
    network.set_listening(address, true);
    let host_address = "192.0.2.2:1".parse().unwrap();
    let mut host = network.endpoint(host_address, Rc::clone(&host_memory), 4);
    let host_qp = host.connect(address, PARAMETERS, b"hello");
    let CmEvent::Request(request) = connection_event(&mut target) else { panic!("no request") };
    assert_eq!(&request.private_data[..], b"hello");
    let target_qp = request.qp;
    target.accept(request, PARAMETERS, b"welcome");
    assert!(matches!(connection_event(&mut host), CmEvent::Established { qp, .. } if qp == host_qp));
    Pair { network, host, target, host_memory, target_memory, host_qp, target_qp }
}

/// Sends a command which exposes 512 bytes of the host, and gives what the target received and may use.
fn command(pair: &mut Pair, access: Access) -> (Received, Remote) {
    let mr = pair.host.allocate_mr(pair.host_qp);
    let exposure = pair.host.prepare(pair.host_qp, mr, pair.host_memory.sge(0, 512, 512), access);
    pair.host.post_command(pair.host_qp, token(Kind::Command), &[7; 64], None, Some(exposure));
    settle(&pair.network);
    let Some(Event::Received(received)) = pair.target.poll() else { panic!("no command") };
    assert_eq!(pair.target.message(&received), [7; 64]);
    (received, exposure.remote)
}

#[test]
fn data_is_placed_before_the_response_arrives_and_the_key_is_gone_after() {
    let mut pair = pair();
    let (received, remote) = command(&mut pair, Access::RemoteWrite);
    pair.target.repost(received);
    pair.target_memory.write(pair.target_memory.sge(0, 0, 512), &[9; 512]);
    let data = Some((pair.target_memory.sge(0, 0, 512), remote));
    pair.target.post_respond(pair.target_qp, token(Kind::Respond), data, &[1; 16], Some(remote.rkey));
    settle(&pair.network);
    let mut events = [pair.host.poll(), pair.host.poll()].into_iter().flatten();
    let received = events.find_map(|event| match event {
        Event::Received(received) => Some(received),
        _ => None,
    });
    let received = received.expect("the response arrived");
    assert_eq!(received.invalidated, Some(remote.rkey));
    assert_eq!(pair.host.message(&received), [1; 16]);
    pair.host.repost(received);
    let mut bytes = [0; 512];
    pair.host_memory.read(pair.host_memory.sge(0, 512, 512), &mut bytes);
    assert_eq!(bytes, [9; 512]);
    assert!(pair.network.nothing_exposed());
}

#[test]
fn reading_what_is_only_lent_for_writing_breaks_the_connection() {
    let mut pair = pair();
    let (received, remote) = command(&mut pair, Access::RemoteWrite);
    pair.target.repost(received);
    let into = pair.target_memory.sge(0, 0, 512);
    pair.target.post_fetch(pair.target_qp, token(Kind::Fetch), remote, into);
    settle(&pair.network);
    let status = WcStatus::Failed(REMOTE_ACCESS_ERROR);
    let expected = Wc { qp: pair.target_qp, token: token(Kind::Fetch), status };
    assert!(matches!(pair.target.poll(), Some(Event::Completed(wc)) if wc == expected));
    assert!(matches!(connection_event(&mut pair.target), CmEvent::Disconnected { .. }));
    pair.target.destroy(pair.target_qp);
    assert_eq!(pair.target.queue_pairs(), 0);
}

#[test]
fn work_posted_to_a_broken_connection_comes_back_flushed() {
    let mut pair = pair();
    pair.network.break_one(&mut Prng::new(3));
    pair.target.post_respond(pair.target_qp, token(Kind::Respond), None, &[0; 16], None);
    settle(&pair.network);
    let mut flushed = 0;
    while let Some(event) = pair.target.poll() {
        if let Event::Completed(wc) = event {
            assert_eq!(wc.status, WcStatus::Flushed);
            flushed += 1;
        }
    }
    assert_eq!(flushed, 1);
}

/// How a key is used that the target was given, and how that ends.
fn fetch(pair: &mut Pair, from: Remote, length: u32) -> WcStatus {
    let into = pair.target_memory.sge(0, 0, length);
    pair.target.post_fetch(pair.target_qp, token(Kind::Fetch), from, into);
    settle(&pair.network);
    std::iter::from_fn(|| pair.target.poll())
        .find_map(|event| match event {
            Event::Completed(wc) => Some(wc.status),
            _ => None,
        })
        .expect("posted work completes")
}

const ACCESS_ERROR: WcStatus = WcStatus::Failed(REMOTE_ACCESS_ERROR);

#[test]
fn a_key_opens_nothing_before_its_work_request_was_executed() {
    let mut pair = pair();
    let mr = pair.host.allocate_mr(pair.host_qp);
    let sge = pair.host_memory.sge(0, 512, 512);
    let exposure = pair.host.prepare(pair.host_qp, mr, sge, Access::RemoteRead);
    assert_eq!(fetch(&mut pair, exposure.remote, 512), ACCESS_ERROR);
}

#[test]
fn a_key_opens_nothing_after_either_side_has_ended_it() {
    for by_the_peer in [false, true] {
        let mut pair = pair();
        let (received, remote) = command(&mut pair, Access::RemoteRead);
        pair.target.repost(received);
        assert_eq!(fetch(&mut pair, remote, 512), WcStatus::Success);
        if by_the_peer {
            let key = Some(remote.rkey);
            pair.target.post_respond(pair.target_qp, token(Kind::Respond), None, &[0; 16], key);
        } else {
            pair.host.post_invalidate(pair.host_qp, token(Kind::Invalidate), remote.rkey);
        }
        settle(&pair.network);
        while pair.target.poll().is_some() {}
        assert_eq!(fetch(&mut pair, remote, 512), ACCESS_ERROR);
    }
}

#[test]
fn no_byte_beyond_what_was_exposed_can_be_reached() {
    for (offset, length, status) in
        [(0, 512, WcStatus::Success), (511, 2, ACCESS_ERROR), (u64::MAX, 1, ACCESS_ERROR)]
    {
        let mut pair = pair();
        let (received, remote) = command(&mut pair, Access::RemoteRead);
        pair.target.repost(received);
        let at = Remote { address: remote.address.wrapping_add(offset), ..remote };
        assert_eq!(fetch(&mut pair, at, length), status, "{offset} {length}");
    }
}

#[test]
fn a_key_of_the_pool_lasts_for_both_directions_and_is_not_the_peer_s_to_end() {
    let mut pair = pair();
    pair.host.set_registration(Registration::Pool);
    let (received, remote) = command(&mut pair, Access::RemoteWrite);
    pair.target.repost(received);
    assert_eq!(fetch(&mut pair, remote, 512), WcStatus::Success);
    let (received, again) = command(&mut pair, Access::RemoteRead);
    pair.target.repost(received);
    assert_eq!(again, remote);
    assert!(pair.network.nothing_exposed(), "but what lasts");
    let beyond = Remote { address: remote.address + 8192 - 512, ..remote };
    assert_eq!(fetch(&mut pair, beyond, 1), ACCESS_ERROR);
}

#[test]
fn only_a_key_bound_by_work_is_the_peer_s_to_end() {
    for registration in [Registration::Pool, Registration::Dynamic] {
        let mut pair = pair();
        pair.host.set_registration(registration);
        let (received, remote) = command(&mut pair, Access::RemoteRead);
        pair.target.repost(received);
        assert_eq!(fetch(&mut pair, remote, 512), WcStatus::Success);
        let key = Some(remote.rkey);
        pair.target.post_respond(pair.target_qp, token(Kind::Respond), None, &[0; 16], key);
        settle(&pair.network);
        let refused = std::iter::from_fn(|| pair.target.poll())
            .any(|event| matches!(event, Event::Completed(wc) if wc.status == ACCESS_ERROR));
        assert!(refused, "{registration:?}");
    }
}

#[test]
fn a_key_made_for_a_command_has_its_right_and_bounds_and_opens_nothing_afterwards() {
    for (access, offset, ended) in
        [(Access::RemoteWrite, 0, false), (Access::RemoteRead, 1, false), (Access::RemoteRead, 0, true)]
    {
        let mut pair = pair();
        pair.host.set_registration(Registration::Dynamic);
        let (received, remote) = command(&mut pair, access);
        pair.target.repost(received);
        if ended {
            assert_eq!(fetch(&mut pair, remote, 512), WcStatus::Success);
            pair.host.post_invalidate(pair.host_qp, token(Kind::Invalidate), remote.rkey);
            settle(&pair.network);
        }
        let at = Remote { address: remote.address + offset, ..remote };
        assert_eq!(fetch(&mut pair, at, 512), ACCESS_ERROR, "{access:?} at {offset}");
    }
}

#[test]
fn memory_of_others_is_lent_for_single_commands_however_ours_is_lent() {
    for registration in [Registration::Window, Registration::Pool, Registration::Dynamic] {
        let mut pair = pair();
        pair.host.set_registration(registration);
        let own = memory::Own::new(memory::Pages::zeroed(4096));
        let lkey = pair.host_memory.register(std::sync::Arc::clone(own.region()));
        let mr = pair.host.allocate_mr(pair.host_qp);
        let sge = pair.host_memory.sge(lkey, 0, 4096);
        let exposure = pair.host.prepare(pair.host_qp, mr, sge, Access::RemoteRead);
        assert!(exposure.registration.ends_with_command());
        pair.host.post_command(pair.host_qp, token(Kind::Command), &[7; 64], None, Some(exposure));
        settle(&pair.network);
        assert!(pair.host.exposes(lkey));
        pair.host.post_invalidate(pair.host_qp, token(Kind::Invalidate), exposure.remote.rkey);
        settle(&pair.network);
        assert!(!pair.host.exposes(lkey), "{registration:?}");
        drop(pair.host_memory.unregister(lkey));
        assert_eq!(own.into_inner().len(), 4096);
    }
}
