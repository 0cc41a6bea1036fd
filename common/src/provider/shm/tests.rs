//! Two providers over memory they share.
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::provider::soft::{Dialer, Settings, Soft};
use crate::time::Time;
use crate::verbs::{
    Access, Address, CmEvent, ConnectParameters, Connections, Event, HostVerbs, Kind, QpHandle, Received,
    Registration, Remote, TargetVerbs, Token, Verbs, WcStatus,
};

const PARAMETERS: ConnectParameters =
    ConnectParameters { receives: 4, receive_size: 64 + 4096, send_queue: 12, reads: 2 };
/// Many times what a ring holds.
const LENGTH: u32 = 3 << 20;
const NOWHERE: &str = "127.0.0.1:0";

struct Path(PathBuf);

impl Dialer<ShmWire> for Path {
    fn dial(&mut self, _: Address) -> io::Result<ShmWire> {
        dial(&self.0)
    }
}

struct Side {
    soft: Soft<ShmWire>,
    memory: Rc<Memory>,
    data: Sge,
    polled: Vec<(u16, u16)>,
}

impl Side {
    fn new(path: PathBuf, registration: Registration) -> Self {
        let memory = Memory::new();
        let lkey = memory.register(Region::new(LENGTH as usize).unwrap());
        let data = memory.sge(lkey, 0, LENGTH);
        // It asks for CRC, and does without where bytes stay on the machine.
        let settings = Settings { crc: true, seed: 3, registration, ..Settings::default() };
        let soft = Soft::new(Rc::clone(&memory), Box::new(Path(path)), settings);
        Self { soft, memory, data, polled: Vec::new() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH as usize];
        self.memory.read(self.data, &mut bytes);
        bytes
    }

    /// As the ring does: tells of what is ready of that which it was asked to poll.
    fn tell_ready(&mut self) {
        for (slot, generation) in std::mem::take(&mut self.polled) {
            let wire = self.soft.wires().find(|(qp, _)| qp.0 == slot).map(|(_, wire)| wire);
            match wire.map(is_ready) {
                Some(true) => self.soft.on_ready(slot, generation),
                Some(false) => self.polled.push((slot, generation)),
                None => {}
            }
        }
    }

    fn cool(&mut self) {
        let polled = &mut self.polled;
        self.soft.cool(|interest| polled.push((interest.slot, interest.generation)));
    }

    fn arm(&mut self) {
        let polled = &mut self.polled;
        self.soft.arm(|interest| polled.push((interest.slot, interest.generation)));
    }
}

struct World {
    listener: Listener,
    host: Side,
    target: Side,
    now: Time,
    _directory: tempfile::TempDir,
}

impl World {
    fn new(registration: Registration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = Listener::bind(&path).unwrap();
        let (host, target) = (Side::new(path.clone(), registration), Side::new(path, registration));
        Self { listener, host, target, now: Time::ZERO, _directory: directory }
    }

    fn pump(&mut self) -> bool {
        if let Ok(visitor) = self.listener.accept() {
            let wire = ShmWire::accepted(visitor).unwrap();
            let nowhere: Address = NOWHERE.parse().unwrap();
            self.target.soft.adopt(wire, nowhere, nowhere);
        }
        // Time stands nearly still, so no deadline is met however slow the machine is.
        self.now = self.now + Duration::from_nanos(1);
        let busy = self.host.soft.pump(self.now) | self.target.soft.pump(self.now);
        for side in [&mut self.host, &mut self.target] {
            side.cool();
            side.tell_ready();
        }
        busy
    }

    fn next(&mut self, side: fn(&mut Self) -> &mut Side) -> Event {
        // All that could happen happens in this thread.
        for _ in 0..100_000 {
            if let Some(event) = side(self).soft.poll() {
                return event;
            }
            self.pump();
        }
        panic!("nothing happens");
    }

    fn host_event(&mut self) -> Event {
        self.next(|world| &mut world.host)
    }

    fn target_event(&mut self) -> Event {
        self.next(|world| &mut world.target)
    }

    fn connected(&mut self) -> (QpHandle, QpHandle) {
        let ours = self.host.soft.connect(NOWHERE.parse().unwrap(), PARAMETERS, b"ping");
        let Event::Connection(event) = self.target_event() else { panic!() };
        let CmEvent::Request(request) = *event else { panic!("{event:?}") };
        assert_eq!(&request.private_data[..], b"ping");
        let theirs = request.qp;
        self.target.soft.accept(request, PARAMETERS, b"pong");
        let Event::Connection(event) = self.host_event() else { panic!() };
        let CmEvent::Established { qp, private_data } = *event else { panic!("{event:?}") };
        assert_eq!((qp, &private_data[..]), (ours, &b"pong"[..]));
        (ours, theirs)
    }

    /// The host exposes all of its data by a command, which the target has received.
    fn exposed(&mut self, ours: QpHandle, access: Access) -> Remote {
        let mr = self.host.soft.allocate_mr(ours);
        let exposure = self.host.soft.prepare(ours, mr, self.host.data, access);
        self.host.soft.post_command(ours, token(Kind::Command), &[1; 64], None, Some(exposure));
        let received = self.message();
        assert_eq!(self.target.soft.message(&received), [1; 64]);
        self.target.soft.repost(received);
        exposure.remote
    }

    fn message(&mut self) -> Received {
        match self.target_event() {
            Event::Received(received) => received,
            other => panic!("{other:?}"),
        }
    }

    fn end_of(&mut self, side: fn(&mut Self) -> &mut Side) -> (QpHandle, String) {
        loop {
            match self.next(side) {
                Event::Connection(event) => match *event {
                    CmEvent::Disconnected { qp, reason } => return (qp, reason),
                    event => panic!("{event:?}"),
                },
                Event::Completed(wc) => assert!(matches!(wc.status, WcStatus::Flushed | WcStatus::Success)),
                Event::Received(received) => side(self).soft.repost(received),
            }
        }
    }
}

/// Whether a poll of its descriptor would end.
fn is_ready(wire: &ShmWire) -> bool {
    let mut polled = [PollFd::new(wire.socket.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).unwrap() == 1
}

fn token(kind: Kind) -> Token {
    Token { kind, generation: 0, qpair: 0, slot: 0 }
}

fn there_and_back(registration: Registration) {
    let mut world = World::new(registration);
    let (ours, theirs) = world.connected();
    let pattern: Vec<u8> = (0..LENGTH).map(|i| (i ^ i >> 8 ^ i >> 15) as u8).collect();
    world.host.memory.write(world.host.data, &pattern);
    for access in [Access::RemoteRead, Access::RemoteWrite] {
        let remote = world.exposed(ours, access);
        let data = world.target.data;
        let written = if access == Access::RemoteRead {
            world.target.soft.post_fetch(theirs, token(Kind::Fetch), remote, data);
            let Event::Completed(wc) = world.target_event() else { panic!() };
            assert_eq!((wc.token, wc.status), (token(Kind::Fetch), WcStatus::Success));
            None
        } else {
            world.host.memory.zero(world.host.data);
            Some((data, remote))
        };
        let key = (registration == Registration::Window).then_some(remote.rkey);
        world.target.soft.post_respond(theirs, token(Kind::Respond), written, &[2; 16], key);
        loop {
            match world.host_event() {
                Event::Received(received) => {
                    assert_eq!(received.invalidated, key);
                    assert_eq!(world.host.soft.message(&received), [2; 16]);
                    world.host.soft.repost(received);
                    break;
                }
                Event::Completed(wc) => assert_eq!(wc.token, token(Kind::Command)),
                Event::Connection(event) => panic!("{event:?}"),
            }
        }
        assert!(world.target.bytes() == pattern);
        let Event::Completed(wc) = world.target_event() else { panic!() };
        assert_eq!(wc.token, token(Kind::Respond));
    }
    assert!(world.host.bytes() == pattern);
    world.target.soft.disconnect(theirs);
    assert_eq!(world.end_of(|world| &mut world.host).0, ours);
    world.host.soft.destroy(ours);
    world.target.soft.destroy(theirs);
}

#[test]
fn megabytes_there_and_back() {
    there_and_back(Registration::Window);
    there_and_back(Registration::Pool);
}

/// What a key does not open is told from what it does, as over any wire; and nothing of the host's memory changes.
#[test]
fn keys_bounds_and_rights_are_checked_by_whose_memory_it_is() {
    type Wrong = fn(Remote) -> Remote;
    let wrongs: [(Access, Wrong); 3] = [
        (Access::RemoteWrite, |remote| Remote { rkey: remote.rkey ^ 1, ..remote }),
        (Access::RemoteWrite, |remote| Remote { address: remote.address + 1, ..remote }),
        (Access::RemoteRead, |remote| remote),
    ];
    for (access, wrong) in wrongs {
        let mut world = World::new(Registration::Window);
        let (ours, theirs) = world.connected();
        let remote = world.exposed(ours, access);
        let (data, to) = (world.target.data, wrong(remote));
        world.target.memory.write(data, &[0xEE; 4096]);
        world.target.soft.post_respond(theirs, token(Kind::Respond), Some((data, to)), &[2; 16], None);
        assert_eq!(world.end_of(|world| &mut world.host).0, ours);
        assert_eq!(world.end_of(|world| &mut world.target).0, theirs);
        let bytes = world.host.bytes();
        // Of a write that leaves its bounds only the pieces outside are refused.
        if to.address == remote.address {
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn a_peer_that_dies_is_noticed_by_its_socket_alone() {
    let mut world = World::new(Registration::Window);
    let (ours, _) = world.connected();
    while world.pump() {}
    let polled = world.target.polled.clone();
    world.target.arm();
    assert_eq!((polled.len(), &world.target.polled), (1, &polled), "polled once, since it stands");
    assert!(!world.target.soft.pump(world.now));
    // As the kernel does for a process that is killed: nothing is said, and the socket closes.
    drop(std::mem::replace(&mut world.host, Side::new(PathBuf::new(), Registration::Window)));
    let (qp, reason) = world.end_of(|world| &mut world.target);
    assert!(reason.contains("closed"), "{reason}");
    world.target.soft.destroy(qp);
    assert_eq!((world.target.soft.queue_pairs(), ours.0), (0, 0));
}

#[test]
fn who_sleeps_is_woken_by_its_socket_and_who_does_not_is_not() {
    let mut world = World::new(Registration::Window);
    let (ours, _) = world.connected();
    while world.pump() {}
    let ready = |world: &World| is_ready(world.target.soft.wires().next().unwrap().1);
    world.host.soft.post_command(ours, token(Kind::Command), &[1; 64], None, None);
    world.host.soft.flush(world.now);
    assert!(!ready(&world), "no system call while it looks by itself");
    let received = world.message();
    world.target.soft.repost(received);
    while world.pump() {}
    world.target.arm();
    assert!(!world.target.soft.pump(world.now) && !ready(&world));
    world.host.soft.post_command(ours, token(Kind::Command), &[1; 64], None, None);
    world.host.soft.flush(world.now);
    assert!(ready(&world));
    world.target.tell_ready();
    let received = world.message();
    world.target.soft.repost(received);
    assert!(!ready(&world), "what has woken it was read");
}

/// A host whose process writes whatever it likes into the memory, at any time: it ends its own connection at most.
#[test]
fn memory_scribbled_over_ends_one_connection_and_harms_no_other() {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut ended = 0;
    for _ in 0..40 {
        let mut world = World::new(Registration::Window);
        let (bad, _) = world.connected();
        let (good, _) = world.connected();
        let scribbled = world.host.soft.wires().next().unwrap().1.rings.as_ref().unwrap().shared();
        for round in 0..60 {
            for qp in [bad, good] {
                if round < 20 || qp == good {
                    world.host.soft.post_command(qp, token(Kind::Command), &[1; 64], None, None);
                }
            }
            for _ in 0..random() % 4 {
                // Every other time one of the numbers.
                let at = if random() % 2 == 0 { random() % 6 * 128 } else { random() % rings::LENGTH as u64 };
                let at = usize::try_from(at & !7).unwrap();
                scribbled.store_u64(at, random() >> (random() % 64));
            }
            // The good one is served whatever comes of the other.
            let mut served = false;
            while !served {
                match world.target_event() {
                    Event::Received(received) => {
                        served = received.qp.0 == good.0;
                        world.target.soft.repost(received);
                    }
                    Event::Connection(event) => {
                        let CmEvent::Disconnected { qp, .. } = *event else { panic!("{event:?}") };
                        assert_eq!(qp.0, bad.0);
                        ended += 1;
                    }
                    Event::Completed(_) => {}
                }
            }
            while let Some(event) = world.host.soft.poll() {
                if let Event::Received(received) = event {
                    world.host.soft.repost(received);
                }
            }
        }
    }
    assert!(ended > 20, "only {ended} of 40 were ended");
}
