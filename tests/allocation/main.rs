//! After connect the data path allocates nothing, on either end: a host and a poll group over real sockets,
//! in one thread, under an allocator that counts.

use std::net::TcpStream;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use allocation_counter::measure;
use ironside_common::memory::{Memory, Pool, Region, SizeClass};
use ironside_common::nvme::Nqn;
use ironside_common::provider::soft::{Settings, Soft};
use ironside_common::provider::tcp::{self, TcpDialer, TcpSoft, TcpWire};
use ironside_common::reactor::{Ring, clock};
use ironside_common::verbs::{Sge, Token, Verbs};
use ironside_initiator::host::{Host, HostOptions};
use ironside_initiator::volume::{Operation, Request, State};
use ironside_target::backend::{self, Backends, Done, Medium, OpenMedium};
use ironside_target::catalog::{Catalog, Hosts, Namespace, Subsystem};
use ironside_target::limits::Census;
use ironside_target::poll_group::{self, PollGroup, Storage};
use ironside_target::throttle::{HostLimits, Limit};
use uuid::Uuid;

const DEPTH: u64 = 32;

struct RamOnly(Backends);

impl Medium for RamOnly {
    fn submit(&mut self, token: Token, namespace: usize, operation: backend::Operation) {
        self.0.submit(token, namespace, operation);
    }

    fn in_place(&self, namespace: usize, offset: u64, length: u32) -> Option<Sge> {
        self.0.in_place(namespace, offset, length)
    }

    fn poll(&mut self) -> Option<Done> {
        self.0.poll()
    }
}

impl Storage for RamOnly {
    fn backend_of(&mut self, _namespace: &Namespace) -> usize {
        0
    }
}

struct Pair {
    group: PollGroup<TcpSoft, RamOnly>,
    listener: std::net::TcpListener,
    provider: TcpSoft,
    host: Host,
    buffers: Sge,
}

#[expect(clippy::unwrap_used, reason = "what cannot be set up fails the test")]
impl Pair {
    /// Namespace 1 has no limit; namespace 2 makes commands wait.
    fn new(crc: bool, limit_hosts: bool) -> Self {
        let listener = tcp::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let nqn: Nqn = "nqn.2014-08.org.example:allocation".parse().unwrap();
        let settings = Settings { crc, ..Settings::default() };

        let memory = Memory::new();
        let medium = OpenMedium::ram(16 << 20, 4096).unwrap();
        let whole = |nsid: u32| Namespace::whole(nsid, Uuid::from_u128(nsid.into()), medium.clone());
        let limit = Limit { iops: NonZeroU64::new(50_000), burst_ms: 0, ..Limit::default() };
        let namespaces = vec![whole(1), Namespace { limit, ..whole(2) }];
        let subsystem = Subsystem::new(nqn, "S", Hosts::Any, vec![address.into()], namespaces).unwrap();
        // Each host has buckets of its own, too.
        let each = Limit { iops: NonZeroU64::new(100_000), ..limit };
        let subsystem = subsystem.with_host_limits(HostLimits {
            each: if limit_hosts { each } else { Limit::default() },
            named: Vec::new(),
        });
        let catalog = Arc::new(Catalog::new(1, vec![subsystem]).unwrap());
        let mut ring = Ring::new(64, Rc::clone(&memory)).unwrap();
        let mut backends = Backends::new(Rc::clone(&memory), 128);
        backends.add(&medium, &mut ring).unwrap();
        let classes = [SizeClass { size: 8192, count: 128 }, SizeClass { size: 1 << 20, count: 8 }];
        let pool = Pool::new(&memory, &classes).unwrap();
        let verbs = Soft::new(Rc::clone(&memory), Box::new(TcpDialer), settings);
        let shape = poll_group::Settings {
            reactor: 0,
            reactors: 1,
            queue_depth: 128,
            in_capsule: 4096,
            reads: 16,
            transfer_max: 1 << 20,
            census: Census::default(),
            drain: Duration::from_secs(30),
        };
        let group = PollGroup::new(shape, verbs, RamOnly(backends), pool, memory, catalog);

        let memory = Memory::new();
        let lkey = memory.register(Region::new(1 << 20).unwrap());
        let buffers = memory.sge(lkey, 0, 1 << 20);
        let mut provider = Soft::new(Rc::clone(&memory), Box::new(TcpDialer), settings);
        let options = HostOptions::new(address.into(), nqn, nqn, Uuid::from_u128(2));
        let mut host = Host::new(options, memory).unwrap();
        host.start(&mut provider, clock::now());
        Self { group, listener, provider, host, buffers }
    }

    fn accept(&mut self) {
        while let Ok((socket, peer)) = self.listener.accept() {
            let local = TcpStream::local_addr(&socket).unwrap();
            self.group.verbs().adopt(TcpWire::new(socket).unwrap(), peer.into(), local.into());
        }
    }

    fn turn(&mut self) {
        let now = clock::now();
        self.group.verbs().pump(now);
        self.group.turn(now);
        while let Some((_, message)) = self.group.next_message() {
            self.group.on_message(now, message);
        }
        self.group.verbs().flush(now);
        self.provider.pump(now);
        while let Some(event) = self.provider.poll() {
            self.host.on_event(&mut self.provider, event, now);
        }
        self.host.turn(&mut self.provider, now);
        self.provider.flush(now);
    }

    fn connect(&mut self) {
        while self.host.state() == State::Connecting {
            self.accept();
            self.turn();
        }
        assert_eq!(self.host.state(), State::Connected);
    }

    /// Reads and writes, in the capsule and beyond it, until all have ended.
    fn round(&mut self, volume: usize) {
        for tag in 0..DEPTH {
            let length = if tag % 4 < 2 { 4096 } else { 16384 };
            let operation = if tag % 2 == 0 { Operation::Read } else { Operation::Write { fua: false } };
            let buffer = self.buffers.slice(u32::try_from(tag * 32768).unwrap(), length);
            let length = u64::from(length);
            let request = Request { tag, operation, offset: tag * 32768, length, buffer: Some(buffer) };
            self.host.submit(volume, request).unwrap();
        }
        let mut ended = 0;
        while ended < DEPTH {
            self.turn();
            while let Some((_, completed)) = self.host.next_completed() {
                assert_eq!(completed.result, Ok(()));
                ended += 1;
            }
        }
    }
}

#[test]
fn after_connect_neither_end_allocates() {
    for crc in [false, true] {
        let mut pair = Pair::new(crc, false);
        let connecting = measure(|| pair.connect());
        assert!(connecting.count_total > 0, "the allocator counts");
        // Queues which grow to their size do so in the first rounds.
        (0..20).for_each(|_| pair.round(0));
        let counted = measure(|| (0..50).for_each(|_| pair.round(0)));
        assert_eq!(counted.count_total, 0, "{counted:?} with CRC {crc}");
    }
}

#[test]
fn commands_which_wait_for_their_turn_for_the_first_time_allocate_nothing() {
    for limit_hosts in [false, true] {
        let mut pair = Pair::new(false, limit_hosts);
        pair.connect();
        // What is common to all commands grows; where hosts are limited, the buckets of theirs are asked too.
        (0..20).for_each(|_| pair.round(0));
        let counted = measure(|| (0..20).for_each(|_| pair.round(1)));
        assert_eq!(counted.count_total, 0, "{counted:?}, hosts limited: {limit_hosts}");
    }
}
