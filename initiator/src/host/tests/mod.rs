//! A host against a small target: what it does when all goes well, when connections break, and when the target
//! lies.
mod fake;
mod lies;
mod losses;
mod queues;
mod several;
mod target;
mod volumes;

use std::rc::Rc;
use std::time::Duration;

use ironside_common::memory::{Memory, Region};
use ironside_common::nvme::{DISCOVERY_NQN, Nqn};
use ironside_common::time::Time;
use ironside_common::verbs::{Sge, Verbs};

use super::*;
use crate::volume::Operation;
use fake::Fake;
use target::{BLOCK, BLOCKS, Lie, Target};

/// Host, provider, target and their time.
struct World {
    memory: Rc<Memory>,
    fake: Fake,
    target: Target,
    host: Host,
    now: Time,
    /// 64 KiB to read into and write from.
    buffer: Sge,
    events: Vec<HostEvent>,
}

fn options() -> HostOptions {
    let host_nqn = "nqn.2014-08.org.example:host".parse().unwrap();
    let nqn = "nqn.2014-08.org.example:sub1".parse().unwrap();
    let host_id = uuid::Uuid::from_u128(0x0102_0304);
    HostOptions {
        nr_io_queues: 3,
        requests: 64,
        reconnect_delay: Duration::from_secs(2),
        ctrl_loss_tmo: Some(Duration::from_secs(60)),
        ..HostOptions::new("192.0.2.1:4420".parse().unwrap(), nqn, host_nqn, host_id)
    }
}

impl World {
    fn new(options: HostOptions) -> Self {
        let memory = Memory::new();
        let lkey = memory.register(Region::new(1 << 16).unwrap());
        let buffer = memory.sge(lkey, 0, 1 << 16);
        let fake = Fake::new(Rc::clone(&memory));
        let host = Host::new(options, Rc::clone(&memory)).unwrap();
        let now = Time::from_nanos(1_000_000);
        Self { memory, fake, target: Target::new(), host, now, buffer, events: Vec::new() }
    }

    fn connected(options: HostOptions) -> Self {
        let mut world = Self::new(options);
        world.start();
        assert!(world.took_event(&HostEvent::Connected), "{:?}", world.events);
        world
    }

    fn with_lie(lie: Lie) -> Self {
        let mut world = Self::new(options());
        world.target.lie = Some(lie);
        world
    }

    fn start(&mut self) {
        self.host.start(&mut self.fake, self.now);
        self.run();
    }

    /// Everything that can happen without time passing.
    fn run(&mut self) {
        loop {
            let mut any = self.host.turn(&mut self.fake, self.now);
            while let Some(event) = self.fake.poll() {
                self.host.on_event(&mut self.fake, event, self.now);
                any = true;
            }
            any |= self.target.run(&mut self.fake);
            self.events.extend(std::iter::from_fn(|| self.host.next_event()));
            if !any {
                return;
            }
        }
    }

    /// Lets time pass, deadline by deadline.
    fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(deadline) = self.host.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.run();
        }
        self.now = end;
        self.run();
    }

    fn took_event(&mut self, wanted: &HostEvent) -> bool {
        let position = self.events.iter().position(|event| event == wanted);
        position.map(|position| self.events.remove(position)).is_some()
    }

    /// Why it failed, once it has.
    fn failure(&self) -> Option<&ConnectError> {
        self.events.iter().find_map(|event| match event {
            HostEvent::Failed(error) => Some(error),
            _ => None,
        })
    }

    fn request(&self, tag: u64, operation: Operation, offset: u64, length: u32) -> Request {
        let transfers = matches!(operation, Operation::Read | Operation::Write { .. });
        let buffer = transfers.then(|| self.buffer.slice(0, length));
        Request { tag, operation, offset, length: length.into(), buffer }
    }

    fn submit(&mut self, tag: u64, operation: Operation, offset: u64, length: u32) {
        let request = self.request(tag, operation, offset, length);
        self.host.submit(0, request).unwrap();
        self.run();
    }

    fn completed(&mut self) -> Option<(u64, Result<(), IoError>)> {
        self.host.next_completed().map(|(_, completed)| (completed.tag, completed.result))
    }

    fn fill(&self, byte: u8) {
        self.memory.write(self.buffer, &vec![byte; self.buffer.length as usize]);
    }

    fn buffer(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.buffer.length as usize];
        self.memory.read(self.buffer, &mut bytes);
        bytes
    }
}

#[test]
fn a_host_connects_and_knows_its_namespaces() {
    let mut world = World::new(options());
    assert_eq!(world.host.state(), State::Connecting);
    world.start();
    assert_eq!(
        world.events,
        [HostEvent::NamespaceAdded(0), HostEvent::NamespaceAdded(1), HostEvent::Connected]
    );
    assert_eq!(world.host.state(), State::Connected);
    assert_eq!(world.target.connects, [(0, 5000, 0xFFFF), (1, 0, target::CNTLID), (2, 0, target::CNTLID)]);
    assert_eq!((world.host.io_queues(), world.host.cntlid()), (2, Some(target::CNTLID)));
    assert!(world.target.event_request.is_some());
    let nsids: Vec<_> = world.host.namespaces().iter().map(|namespace| namespace.nsid).collect();
    assert_eq!(nsids, [1, 5]);
    let geometry = world.host.namespaces()[0].geometry;
    assert_eq!((geometry.size, geometry.block_size), (BLOCKS * u64::from(BLOCK), BLOCK));
    assert_eq!(geometry.max_transfer, 8192, "MDTS");
    assert!(geometry.write_zeroes && geometry.discard && geometry.volatile_cache && !geometry.read_only);
    assert_eq!(world.fake.exposed_now(), 0);
}

#[test]
fn keep_alive_is_sent_for_as_long_as_it_takes() {
    let mut world = World::connected(options());
    world.pass(Duration::from_secs(50));
    assert_eq!(world.target.keep_alives, 20);
    assert_eq!(world.host.state(), State::Connected);
}

#[test]
fn a_host_closes_in_good_order() {
    let mut world = World::connected(options());
    world.host.close(&mut world.fake, world.now);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.target.shutdowns, 1);
    assert!(world.took_event(&HostEvent::Closed) && world.host.is_over());
    assert!(world.fake.pairs().is_empty());
    world.submit(1, Operation::Read, 0, 512);
    assert_eq!(world.completed(), Some((1, Err(IoError::Closing))));
}

#[test]
fn the_discovery_log_is_read_until_it_stands_still() {
    let nqn: Nqn = DISCOVERY_NQN.parse().unwrap();
    let world = World::connected(HostOptions { nqn, role: Role::Discovery, ..options() });
    let names: Vec<_> = world.host.discovered().unwrap().entries.iter().map(|entry| entry.subnqn()).collect();
    assert_eq!(names.len(), 6);
    assert!(names.iter().all(|name| name.contains(":2-")), "one generation only: {names:?}");
}

#[test]
fn an_inquiry_makes_no_io_queues() {
    let world = World::connected(HostOptions { role: Role::Inquiry, ..options() });
    assert_eq!((world.host.io_queues(), world.host.namespaces().len()), (0, 2));
    assert_eq!(world.target.connects.len(), 1);
}

#[test]
fn a_probe_asks_as_often_as_it_was_told_to() {
    let world = World::connected(HostOptions { role: Role::Probe(5), ..options() });
    assert_eq!((world.host.io_queues(), world.host.round_trips().len()), (0, 5));
}

#[test]
fn a_changed_namespace_is_looked_at_again() {
    let mut world = World::connected(options());
    world.events.clear();
    world.target.blocks.get_mut(&5).unwrap().truncate(4096);
    world.target.blocks.insert(9, vec![0; 8192]);
    world.target.tell_of_change(&mut world.fake);
    world.run();
    assert_eq!(world.events, [HostEvent::NamespaceChanged(1), HostEvent::NamespaceAdded(2)]);
    assert_eq!(world.host.namespaces()[1].geometry.size, 4096);
    assert!(world.target.event_request.is_some(), "the host asks for the next event");
    world.events.clear();
    world.target.blocks.remove(&5);
    world.target.tell_of_change(&mut world.fake);
    world.run();
    assert_eq!(world.events, [HostEvent::NamespaceChanged(1)]);
    let request = world.request(3, Operation::Read, 0, 512);
    world.host.submit(1, request).unwrap();
    world.run();
    assert_eq!(world.completed(), Some((3, Err(IoError::NamespaceGone))));
}

#[test]
fn the_log_of_reservations_is_read_until_it_is_empty() {
    let mut world = World::connected(options());
    world.events.clear();
    world.target.notices = vec![1, 3];
    world.target.tell_of_reservations(&mut world.fake);
    world.run();
    let told = |kind| HostEvent::Notified(ReservationNotice { count: 0, kind, nsid: 5 });
    assert_eq!(world.events, [told(1), told(3)]);
    world.events.clear();
    world.target.tell_of_reservations(&mut world.fake);
    world.run();
    assert_eq!(world.events, [], "there was nothing to read");
    assert!(world.target.event_request.is_some(), "the host asks for the next event");
}

#[test]
fn without_flow_control_the_queue_head_means_nothing() {
    let mut world = World::connected(HostOptions { disable_sqflow: true, ..options() });
    for tag in 0..200 {
        world.submit(tag, Operation::Read, 0, 512);
        assert_eq!(world.completed(), Some((tag, Ok(()))));
    }
}
