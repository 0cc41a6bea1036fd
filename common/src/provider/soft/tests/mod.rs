//! Two providers joined by pipes, under seeds and a clock of the test's own.
mod life;
mod pipe;
mod rest;
mod traffic;

use std::collections::BTreeMap;

use pipe::{PipeWire, Pipes};

use super::*;
use crate::memory::Region;
use crate::verbs::{
    Access, CmRequest, ConnectParameters, Connections, HostVerbs, Kind, MrHandle, Received, RejectReason,
    Remote, TargetVerbs, Token, Verbs, Wc, WcStatus,
};

const HOST: &str = "10.0.0.1:1";
const TARGET: &str = "10.0.0.2:4420";
const TICK: Duration = Duration::from_micros(10);

const PARAMETERS: ConnectParameters =
    ConnectParameters { receives: 8, receive_size: 64 + 4096, send_queue: 24, reads: 4 };

/// One provider, with memory of its own to work on.
struct Side {
    soft: Soft<PipeWire>,
    memory: Rc<Memory>,
    data: Sge,
}

impl Side {
    fn new(pipes: &Pipes, address: &str, crc: bool) -> Self {
        let memory = Memory::new();
        let lkey = memory.register(Region::new(1 << 20).unwrap());
        let data = memory.sge(lkey, 0, 1 << 20);
        let settings = Settings { crc, seed: 9, ..Settings::default() };
        let dialer = Box::new(pipes.dialer(address.parse().unwrap()));
        Self { soft: Soft::new(Rc::clone(&memory), dialer, settings), memory, data }
    }

    fn bytes(&self, at: Sge) -> Vec<u8> {
        let mut bytes = vec![0; at.length as usize];
        self.memory.read(at, &mut bytes);
        bytes
    }
}

struct World {
    pipes: Pipes,
    host: Side,
    target: Side,
    now: Time,
}

impl World {
    fn new(seed: u64, host_crc: bool, target_crc: bool) -> Self {
        let pipes = Pipes::new(seed);
        pipes.listen(TARGET.parse().unwrap());
        let (host, target) = (Side::new(&pipes, HOST, host_crc), Side::new(&pipes, TARGET, target_crc));
        // A clock that has run for long: nothing may take zero for now.
        Self { pipes, host, target, now: Time::from_nanos(1 << 50) }
    }

    fn pump(&mut self) {
        self.now = self.now + TICK;
        while let Some((wire, peer)) = self.pipes.accept(TARGET.parse().unwrap()) {
            self.target.soft.adopt(wire, peer, TARGET.parse().unwrap());
        }
        self.host.soft.pump(self.now);
        self.target.soft.pump(self.now);
    }

    /// Pumps until one of the sides has something to say, and gives that.
    fn next(&mut self, side: fn(&mut Self) -> &mut Side) -> Event {
        for _ in 0..100_000 {
            if let Some(event) = side(self).soft.poll() {
                return event;
            }
            self.pump();
        }
        panic!("nothing happens");
    }

    fn host_connection(&mut self) -> CmEvent {
        match self.next(|world| &mut world.host) {
            Event::Connection(event) => *event,
            other => panic!("{other:?}"),
        }
    }

    fn target_connection(&mut self) -> CmEvent {
        match self.next(|world| &mut world.target) {
            Event::Connection(event) => *event,
            other => panic!("{other:?}"),
        }
    }

    fn request(&mut self) -> CmRequest {
        match self.target_connection() {
            CmEvent::Request(request) => request,
            other => panic!("{other:?}"),
        }
    }

    fn connect(&mut self) -> QpHandle {
        self.host.soft.connect(
            TARGET.parse().unwrap(),
            ConnectParameters { reads: 0, ..PARAMETERS },
            b"hello",
        )
    }

    /// A connection, from both ends.
    fn connected(&mut self) -> (QpHandle, QpHandle) {
        let ours = self.connect();
        let request = self.request();
        let theirs = request.qp;
        self.target.soft.accept(request, PARAMETERS, b"welcome");
        match self.host_connection() {
            CmEvent::Established { qp, private_data } => {
                assert_eq!((qp, &private_data[..]), (ours, &b"welcome"[..]));
            }
            other => panic!("{other:?}"),
        }
        (ours, theirs)
    }

    /// Until every wire is closed.
    fn settle(&mut self) {
        for _ in 0..300_000 {
            if self.pipes.open() == 0 {
                return;
            }
            self.pump();
        }
        panic!("a wire stays open");
    }
}

fn token(kind: Kind, slot: u16) -> Token {
    Token { kind, generation: 0, qpair: 0, slot }
}
