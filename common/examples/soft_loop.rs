//! How fast the software provider is by itself: two of them over loopback TCP, one thread each. The target
//! answers every command with so many bytes of memory and a response, as it would answer Reads.
//!
//! Who finds nothing to do sleeps in poll(2), so the CPU time of each side says what a core of its own could
//! do, however busy the machine is.
//!
//! `soft_loop [bytes] [depth] [seconds] [crc]`
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollTimeout};
use nix::time::{ClockId, clock_gettime};

use ironside_common::memory::{Memory, Region};
use ironside_common::provider::soft::Settings;
use ironside_common::provider::tcp::{TcpDialer, TcpSoft, TcpWire};
use ironside_common::reactor::clock;
use ironside_common::verbs::{
    Access, CmEvent, ConnectParameters, Connections, Event, Exposure, HostVerbs, Kind, MrHandle, QpHandle,
    Received, Remote, Sge, TargetVerbs, Token, Verbs,
};

static DONE: AtomicBool = AtomicBool::new(false);

fn main() {
    let arguments: Vec<u32> = std::env::args().skip(1).map(|text| text.parse().expect("numbers")).collect();
    let argument = |index: usize, default| arguments.get(index).copied().unwrap_or(default);
    let (bytes, depth, seconds) = (argument(0, 4096), argument(1, 128), argument(2, 3));
    let settings = Settings { crc: argument(3, 0) != 0, seed: 1, ..Settings::default() };
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let address = listener.local_addr().expect("it is bound");
    let depth = u16::try_from(depth).expect("a queue's depth");
    let target = thread::spawn(move || run_target(&listener, bytes, depth, settings));

    let mut host = Host::connect(address, bytes, depth, settings);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds.into()) {
        host.turns(100);
    }
    let elapsed = start.elapsed();
    println!(
        "{bytes} bytes, depth {depth}, crc {}: {:.0} thousand reads/s, {:.2} GB/s",
        settings.crc,
        host.meter.commands as f64 / elapsed.as_secs_f64() / 1e3,
        host.meter.commands as f64 * f64::from(bytes) / elapsed.as_secs_f64() / 1e9,
    );
    DONE.store(true, Ordering::Relaxed);
    target.join().expect("the target ends well");
    host.meter.report("host");
}

/// What a thread uses of its CPU for each command: over all, and in the best stretch, which other processes
/// disturbed least.
struct Meter {
    start: Duration,
    stretch: (Duration, u64),
    commands: u64,
    best: f64,
}

const STRETCH: Duration = Duration::from_millis(20);

impl Meter {
    fn new() -> Self {
        let start = Self::used();
        Self { start, stretch: (start, 0), commands: 0, best: f64::INFINITY }
    }

    fn used() -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has one").into()
    }

    fn count(&mut self, commands: u64) {
        self.commands += commands;
        let done = self.commands - self.stretch.1;
        if done >= 1000 && done.is_multiple_of(64) {
            let now = Self::used();
            let elapsed = now - self.stretch.0;
            if elapsed >= STRETCH {
                self.best = self.best.min(elapsed.as_secs_f64() / done as f64);
                self.stretch = (now, self.commands);
            }
        }
    }

    fn report(&self, side: &str) {
        let mean = (Self::used() - self.start).as_secs_f64() / self.commands as f64;
        let show = |each: f64| format!("{:.2} us, {:.0} thousand/s", each * 1e6, 1e-3 / each);
        println!("{side}, CPU for each: {}; at best {}", show(mean), show(self.best));
    }
}

/// Sleeps until a socket is ready, but not for long.
fn sleep(soft: &mut TcpSoft) {
    let mut ready = None;
    soft.arm(|interest| {
        let mut poll = [PollFd::new(interest.descriptor, interest.events)];
        nix::poll::poll(&mut poll, PollTimeout::from(10u8)).expect("a descriptor to poll");
        ready = Some((interest.slot, interest.generation));
    });
    if let Some((slot, generation)) = ready {
        soft.on_ready(slot, generation);
    }
}

fn memory(bytes: u32, count: u16) -> (Rc<Memory>, Sge) {
    let memory = Memory::new();
    let length = bytes as usize * usize::from(count);
    let lkey = memory.register(Region::new(length).expect("memory for the data"));
    let all = memory.sge(lkey, 0, u32::try_from(length).expect("less than 4 GiB"));
    memory.zero(all);
    (memory, all)
}

fn run_target(listener: &TcpListener, bytes: u32, depth: u16, settings: Settings) {
    let (memory, data) = memory(bytes, depth);
    let mut soft = TcpSoft::new(memory, Box::new(TcpDialer), settings);
    let (socket, peer) = listener.accept().expect("the host comes");
    soft.adopt(TcpWire::new(socket).expect("a socket"), peer.into(), peer.into());
    let parameters = ConnectParameters {
        receives: depth + 1,
        receive_size: 64 + 4096,
        send_queue: 3 * u32::from(depth),
        reads: 16,
    };
    let mut meter = Meter::new();
    while !DONE.load(Ordering::Relaxed) {
        let now = clock::now();
        if !soft.pump(now) {
            sleep(&mut soft);
        }
        while let Some(event) = soft.poll() {
            match event {
                Event::Received(received) => {
                    answer(&mut soft, received, bytes, data);
                    meter.count(1);
                }
                Event::Completed(_) => {}
                Event::Connection(event) => match *event {
                    CmEvent::Request(request) => soft.accept(request, parameters, &[]),
                    other => println!("target: {other:?}"),
                },
            }
        }
        soft.flush(now);
    }
    meter.report("target");
}

fn answer(soft: &mut TcpSoft, received: Received, bytes: u32, data: Sge) {
    let message = soft.message(&received);
    let field = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("eight bytes"));
    let (address, rkey, slot) = (field(0), field(8) as u32, field(16) as u16);
    let qp = received.qp;
    soft.repost(received);
    let mut response = [0; 16];
    response[..2].copy_from_slice(&slot.to_le_bytes());
    let token = Token { kind: Kind::Respond, generation: 0, qpair: qp.0, slot };
    let from = data.slice(u32::from(slot) * bytes, bytes);
    soft.post_respond(qp, token, Some((from, Remote { address, rkey })), &response, Some(rkey));
}

struct Host {
    soft: TcpSoft,
    qp: QpHandle,
    regions: Vec<MrHandle>,
    data: Sge,
    bytes: u32,
    free: Vec<u16>,
    meter: Meter,
}

impl Host {
    fn connect(address: std::net::SocketAddr, bytes: u32, depth: u16, settings: Settings) -> Self {
        let (memory, data) = memory(bytes, depth);
        let mut soft = TcpSoft::new(memory, Box::new(TcpDialer), settings);
        let parameters = ConnectParameters {
            receives: 2 * depth,
            receive_size: 16,
            send_queue: 3 * u32::from(depth),
            reads: 0,
        };
        let qp = soft.connect(address.into(), parameters, &[]);
        loop {
            soft.pump(clock::now());
            match soft.poll() {
                Some(Event::Connection(event)) => match *event {
                    CmEvent::Established { .. } => break,
                    other => panic!("{other:?}"),
                },
                _ => thread::yield_now(),
            }
        }
        let regions = (0..depth).map(|_| soft.allocate_mr(qp)).collect();
        Self { soft, qp, regions, data, bytes, free: (0..depth).collect(), meter: Meter::new() }
    }

    fn turns(&mut self, turns: u32) {
        for _ in 0..turns {
            let now = clock::now();
            if !self.soft.pump(now) {
                sleep(&mut self.soft);
            }
            while let Some(event) = self.soft.poll() {
                match event {
                    Event::Received(received) => {
                        let slot =
                            u16::from_le_bytes(self.soft.message(&received)[..2].try_into().expect("two"));
                        assert!(received.invalidated.is_some());
                        self.soft.repost(received);
                        self.free.push(slot);
                        self.meter.count(1);
                    }
                    Event::Completed(_) => {}
                    Event::Connection(event) => panic!("{event:?}"),
                }
            }
            while let Some(slot) = self.free.pop() {
                self.submit(slot);
            }
            self.soft.flush(now);
        }
    }

    fn submit(&mut self, slot: u16) {
        let sge = self.data.slice(u32::from(slot) * self.bytes, self.bytes);
        let mr = self.regions[usize::from(slot)];
        let exposure: Exposure = self.soft.prepare(self.qp, mr, sge, Access::RemoteWrite);
        let mut command = [0; 64];
        command[..8].copy_from_slice(&exposure.remote.address.to_le_bytes());
        command[8..12].copy_from_slice(&exposure.remote.rkey.to_le_bytes());
        command[16..18].copy_from_slice(&slot.to_le_bytes());
        let token = Token { kind: Kind::Command, generation: 0, qpair: self.qp.0, slot };
        self.soft.post_command(self.qp, token, &command, None, Some(exposure));
    }
}
