//! Several hosts as one: two paths to the small target, each with a controller of its own.
use ironside_common::nvme::text;

use super::*;
use crate::paths::{Paths, Policy};

const WRITE: Operation = Operation::Write { fua: true };
const FAST: Duration = Duration::from_secs(4);
/// Until the target must have given an association up that fell silent: two keep alive timeouts of 5 s, and 2 s.
const FENCE: Duration = Duration::from_secs(12);

/// As [`World`], with paths in the place of the host.
struct Two {
    fake: Fake,
    target: Target,
    paths: Paths,
    now: Time,
    buffer: Sge,
    events: Vec<HostEvent>,
}

impl Two {
    /// Two paths that stand, to a target which is not Ironside's.
    fn connected(options: &HostOptions) -> Self {
        let memory = Memory::new();
        let lkey = memory.register(Region::new(1 << 16).unwrap());
        let buffer = memory.sge(lkey, 0, 1 << 16);
        let fake = Fake::new(Rc::clone(&memory));
        let mut target = Target::new();
        (target.several, target.lie) =
            (true, Some(Lie::Controller(|wire| wire.model = text::padded("Other"))));
        let addresses = ["192.0.2.1:4420", "198.51.100.1:4420"].map(|address| address.parse().unwrap());
        let paths = Paths::new(options, &addresses, Policy::RoundRobin, &memory).unwrap();
        let now = Time::from_nanos(1_000_000);
        let mut two = Self { fake, target, paths, now, buffer, events: Vec::new() };
        two.paths.start(&mut two.fake, now);
        two.run();
        assert_eq!(two.standing(), 2);
        two
    }

    fn run(&mut self) {
        loop {
            let mut any = self.paths.turn(&mut self.fake, self.now);
            while let Some(event) = self.fake.poll() {
                self.paths.on_event(&mut self.fake, event, self.now);
                any = true;
            }
            any |= self.target.run(&mut self.fake);
            self.events.extend(std::iter::from_fn(|| self.paths.next_event()).map(|(_, event)| event));
            if !any {
                return;
            }
        }
    }

    fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(deadline) = self.paths.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.run();
        }
        self.now = end;
        self.run();
    }

    /// Paths which are used.
    fn standing(&self) -> usize {
        let is_used = |path: &&crate::paths::PathStatus| {
            path.state == State::Connected && path.reason.is_none() && path.access[0].is_some()
        };
        self.paths.status().iter().filter(is_used).count()
    }

    fn submit(&mut self, tag: u64, operation: Operation) {
        let buffer = Some(self.buffer.slice(0, 512));
        self.paths.submit(0, Request { tag, operation, offset: 0, length: 512, buffer }).unwrap();
        self.run();
    }

    /// What has ended, by its tag.
    fn completed(&mut self) -> Vec<(u64, Result<(), IoError>)> {
        let ended = std::iter::from_fn(|| self.paths.next_completed());
        let mut ended: Vec<_> = ended.map(|(_, completed)| (completed.tag, completed.result)).collect();
        ended.sort_unstable_by_key(|(tag, _)| *tag);
        ended
    }

    /// The target is away from now on, whatever path leads there, and `asked` lies unanswered.
    fn lose_all(&mut self, asked: &[(u64, Operation)]) {
        self.target.holds_io = true;
        for &(tag, operation) in asked {
            self.submit(tag, operation);
        }
        self.target.silent = true;
        for qp in self.fake.pairs() {
            self.fake.break_pair(qp);
        }
        self.run();
        self.target.holds_io = false;
    }
}

fn failing_fast() -> HostOptions {
    HostOptions { fast_io_fail_tmo: Some(FAST), ..options() }
}

#[test]
fn with_every_path_lost_requests_fail_after_the_time_and_go_on_with_the_first_that_stands() {
    let mut two = Two::connected(&failing_fast());
    two.lose_all(&[(1, Operation::Read), (2, WRITE)]);
    two.submit(3, Operation::Read);
    two.pass(FAST - Duration::from_millis(100));
    assert_eq!((two.completed(), two.paths.state()), (vec![], State::Reconnecting));
    two.pass(Duration::from_millis(200));
    assert!(two.events.contains(&HostEvent::FailsFast));
    two.submit(4, WRITE);
    let lost = Err(IoError::ConnectionLost);
    assert_eq!(two.completed(), [(1, lost), (2, lost), (3, lost), (4, lost)]);
    two.target.silent = false;
    two.pass(FENCE - FAST - Duration::from_millis(200));
    assert_eq!((two.paths.state(), two.standing()), (State::Connected, 2));
    // The second request has failed, and may be executed still: nothing newer goes by it.
    two.submit(5, WRITE);
    two.submit(6, Operation::Read);
    assert_eq!(two.completed(), [(6, Ok(()))]);
    two.pass(Duration::from_millis(200));
    assert_eq!(two.completed(), [(5, Ok(()))]);
}

#[test]
fn without_that_time_they_wait_until_all_is_over() {
    let mut two = Two::connected(&options());
    two.lose_all(&[(1, Operation::Read), (2, WRITE)]);
    two.pass(Duration::from_secs(59));
    assert_eq!(two.completed(), []);
    two.pass(Duration::from_secs(2));
    assert_eq!(two.completed(), [1, 2].map(|tag| (tag, Err(IoError::ConnectionLost))));
    assert!(two.paths.is_over());
}
