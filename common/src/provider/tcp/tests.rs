//! Two providers over real sockets of this machine.
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::memory::Region;
use crate::provider::soft::Settings;
use crate::time::Time;
use crate::verbs::{
    Access, CmEvent, ConnectParameters, Connections, Event, HostVerbs, Kind, QpHandle, RejectReason,
    TargetVerbs, Token, Verbs,
};

const PARAMETERS: ConnectParameters =
    ConnectParameters { receives: 4, receive_size: 64 + 4096, send_queue: 12, reads: 2 };
const LENGTH: u32 = 3 << 20;

struct Side {
    soft: TcpSoft,
    memory: Rc<Memory>,
    data: Sge,
}

impl Side {
    fn new(crc: bool) -> Self {
        let memory = Memory::new();
        let lkey = memory.register(Region::new(LENGTH as usize).unwrap());
        let data = memory.sge(lkey, 0, LENGTH);
        let settings = Settings { crc, seed: 3, ..Settings::default() };
        Self { soft: TcpSoft::new(Rc::clone(&memory), Box::new(TcpDialer), settings), memory, data }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH as usize];
        self.memory.read(self.data, &mut bytes);
        bytes
    }
}

struct World {
    listener: TcpListener,
    host: Side,
    target: Side,
    now: Time,
}

impl World {
    fn new(address: &str, crc: bool) -> Self {
        let listener = listen(address.parse().unwrap()).unwrap();
        Self { listener, host: Side::new(crc), target: Side::new(false), now: Time::ZERO }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Time stands nearly still, so no deadline is met however slow the machine is.
    fn next(&mut self, side: fn(&mut Self) -> &mut Side) -> Event {
        loop {
            if let Some(event) = side(self).soft.poll() {
                return event;
            }
            if let Ok((socket, peer)) = self.listener.accept() {
                let local = socket.local_addr().unwrap();
                self.target.soft.adopt(TcpWire::new(socket).unwrap(), peer.into(), local.into());
            }
            self.now = self.now + Duration::from_nanos(1);
            let busy = self.host.soft.pump(self.now) | self.target.soft.pump(self.now);
            if !busy {
                std::thread::yield_now();
            }
        }
    }

    fn connected(&mut self) -> (QpHandle, QpHandle) {
        let ours = self.host.soft.connect(self.address().into(), PARAMETERS, b"ping");
        let Event::Connection(event) = self.next(|world| &mut world.target) else { panic!() };
        let CmEvent::Request(request) = *event else { panic!("{event:?}") };
        assert_eq!((request.local, &request.private_data[..]), (self.address().into(), &b"ping"[..]));
        let theirs = request.qp;
        self.target.soft.accept(request, PARAMETERS, b"pong");
        let Event::Connection(event) = self.next(|world| &mut world.host) else { panic!() };
        let CmEvent::Established { qp, private_data } = *event else { panic!("{event:?}") };
        assert_eq!((qp, &private_data[..]), (ours, &b"pong"[..]));
        (ours, theirs)
    }
}

fn token(kind: Kind) -> Token {
    Token { kind, generation: 0, qpair: 0, slot: 0 }
}

/// Megabytes there and back: partial sends, receives into place, many segments.
fn there_and_back(address: &str, crc: bool) {
    let mut world = World::new(address, crc);
    let (ours, theirs) = world.connected();
    let pattern: Vec<u8> = (0..LENGTH).map(|i| (i ^ i >> 8 ^ i >> 15) as u8).collect();
    world.host.memory.write(world.host.data, &pattern);
    for access in [Access::RemoteRead, Access::RemoteWrite] {
        let mr = world.host.soft.allocate_mr(ours);
        let exposure = world.host.soft.prepare(ours, mr, world.host.data, access);
        world.host.soft.post_command(ours, token(Kind::Command), &[1; 64], None, Some(exposure));
        let Event::Received(received) = world.next(|world| &mut world.target) else { panic!() };
        world.target.soft.repost(received);
        let (data, remote) = (world.target.data, exposure.remote);
        let written = match access {
            Access::RemoteRead => {
                world.target.soft.post_fetch(theirs, token(Kind::Fetch), remote, data);
                let Event::Completed(wc) = world.next(|world| &mut world.target) else { panic!() };
                assert_eq!(wc.token, token(Kind::Fetch));
                None
            }
            Access::RemoteWrite => {
                world.host.memory.zero(world.host.data);
                Some((data, remote))
            }
        };
        let respond = token(Kind::Respond);
        world.target.soft.post_respond(theirs, respond, written, &[2; 16], Some(remote.rkey));
        loop {
            match world.next(|world| &mut world.host) {
                Event::Received(received) => {
                    assert_eq!(received.invalidated, Some(remote.rkey));
                    assert_eq!(world.host.soft.message(&received), [2; 16]);
                    world.host.soft.repost(received);
                    break;
                }
                Event::Completed(wc) => assert_eq!(wc.token, token(Kind::Command)),
                Event::Connection(event) => panic!("{event:?}"),
            }
        }
        assert!(world.target.bytes() == pattern);
        let Event::Completed(wc) = world.next(|world| &mut world.target) else { panic!() };
        assert_eq!(wc.token, respond);
    }
    assert!(world.host.bytes() == pattern);
    world.target.soft.disconnect(theirs);
    let Event::Connection(event) = world.next(|world| &mut world.host) else { panic!() };
    assert!(matches!(*event, CmEvent::Disconnected { qp, .. } if qp == ours));
    world.host.soft.destroy(ours);
    world.target.soft.destroy(theirs);
}

#[test]
fn megabytes_over_ipv4_in_place() {
    there_and_back("127.0.0.1:0", false);
}

#[test]
fn megabytes_over_ipv4_with_crc() {
    there_and_back("127.0.0.1:0", true);
}

#[test]
fn megabytes_over_ipv6() {
    there_and_back("[::1]:0", false);
}

#[test]
fn a_closed_port_is_unreachable() {
    let mut world = World::new("127.0.0.1:0", false);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let qp = world.host.soft.connect(closed.into(), PARAMETERS, &[]);
    let Event::Connection(event) = world.next(|world| &mut world.host) else { panic!() };
    let CmEvent::Refused { qp: refused, reason: RejectReason::Unreachable(why) } = *event else {
        panic!("{event:?}")
    };
    assert_eq!(refused, qp);
    assert!(why.contains("refused"), "{why}");
}

#[test]
fn a_cold_connection_is_polled_once_and_warms_up() {
    let mut world = World::new("127.0.0.1:0", false);
    let (ours, theirs) = world.connected();
    // Until nothing is under way any more.
    for _ in 0..1000 {
        world.now = world.now + Duration::from_nanos(1);
        world.host.soft.pump(world.now);
        world.target.soft.pump(world.now);
    }
    let mut polled = Vec::new();
    for _ in 0..3 {
        world.target.soft.arm(|interest| polled.push((interest.slot, interest.generation, interest.events)));
        assert!(!world.target.soft.pump(world.now));
    }
    assert_eq!(polled.len(), 1);
    assert_eq!((polled[0].0, polled[0].2), (theirs.0, nix::poll::PollFlags::POLLIN));
    world.host.soft.post_command(ours, token(Kind::Command), &[1; 64], None, None);
    world.host.soft.flush(world.now);
    for _ in 0..100 {
        assert!(!world.target.soft.pump(world.now), "a cold connection is left alone");
    }
    world.target.soft.on_ready(polled[0].0, polled[0].1);
    let Event::Received(received) = world.next(|world| &mut world.target) else { panic!() };
    world.target.soft.repost(received);
    world.target.soft.arm(|interest| polled.push((interest.slot, interest.generation, interest.events)));
    assert_eq!(polled.len(), 2);
    assert_ne!(polled[0].1, polled[1].1);
}
