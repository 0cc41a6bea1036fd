//! A feast: gluttons have as many large writes under way as their queues take, and begin another as soon as one ends. Whoever
//! connects, reads, asks and keeps alive meanwhile is answered within a bounded number of rounds, in each of which everybody
//! does what he can: buffers and receives are shared.
use std::ops::Range;
use std::time::Duration;

use ironside_common::nvme::admin::{Cns, Identify};
use ironside_common::nvme::{AdminOpcode, Command, Nqn, io};
use ironside_common::provider::sim::Choices;
use ironside_common::time::Time;
use ironside_common::verbs::Address;
use ironside_target::throttle::Limit;

use super::fabric::Fabric;
use super::raw::{ENTRIES, News, RawHost, Way};
use super::{BLOCK_SIZE, World, nqn};

/// The namespace at which everybody feasts, and its size.
pub(super) const TABLE: u32 = 10;
pub(super) const TABLE_BLOCKS: u64 = 64;
/// The numbers of gluttons, and of their guest.
const GLUTTONS: Range<u8> = 160..162;
const GUEST: u8 = 162;
pub(super) const NUMBERS: Range<u8> = GLUTTONS.start..GUEST + 1;
const QUEUES: usize = 4;
/// Bytes of the largest command: more than the smallest buffers hold.
const LARGE: u32 = 8192;
/// Commands which the guest has answered before it leaves.
const COURSES: u32 = 12;
/// Rounds a command of the guest may take, and its Connect with all its queues. Alone it takes some ten and some thirty.
const ROUNDS_MAX: u32 = 60;
const ROUNDS_MAX_CONNECT: u32 = 150;

pub(super) struct Feast<F: Fabric> {
    gluttons: Vec<Glutton<F>>,
    guest: Option<Guest<F>>,
    address: Address,
    nqn: Nqn,
}

struct Glutton<F: Fabric> {
    raw: RawHost<F>,
    length: u32,
    /// By queue and command, whether it is under way.
    under_way: Vec<[bool; ENTRIES as usize - 1]>,
    closing: bool,
}

struct Guest<F: Fabric> {
    raw: RawHost<F>,
    /// Rounds it has waited for what is under way.
    waited: u32,
    /// Commands which were answered, and whether another one is under way.
    answered: u32,
    waits: bool,
    is_ready: bool,
}

impl<F: Fabric> Feast<F> {
    pub(super) fn new(fabric: &mut F, address: Address, nqn: Nqn, choices: &mut impl Choices) -> Self {
        let count = 1 + choices.below(2) as usize;
        let gluttons = GLUTTONS.take(count).map(|number| Glutton {
            raw: RawHost::with_room(fabric, number, address, nqn, QUEUES, LARGE),
            length: if choices.chance(70) { LARGE } else { 4096 },
            under_way: vec![[false; ENTRIES as usize - 1]; QUEUES],
            closing: false,
        });
        Self { gluttons: gluttons.collect(), guest: None, address, nqn }
    }

    /// Everybody does what he can.
    pub(super) fn turn(&mut self, now: Time) -> bool {
        let mut busy = self.guest.as_mut().is_some_and(|guest| guest.turn(now));
        for glutton in &mut self.gluttons {
            busy |= glutton.turn(now);
        }
        busy
    }

    /// Whether there is nothing that gluttons could ask for in addition.
    pub(super) fn is_full(&self) -> bool {
        let taken = |glutton: &Glutton<F>| glutton.under_way.iter().flatten().all(|&taken| taken);
        self.gluttons.iter().all(taken)
    }

    /// Somebody else comes.
    pub(super) fn invite(&mut self, fabric: &mut F) {
        let raw = RawHost::with_room(fabric, GUEST, self.address, self.nqn, 1, LARGE).fetched();
        self.guest = Some(Guest { raw, waited: 0, answered: 0, waits: true, is_ready: false });
    }

    /// A round is over; says whether the guest has had all it came for.
    ///
    /// # Panics
    /// If the guest waits for too long.
    pub(super) fn end_round(&mut self) -> bool {
        let guest = self.guest.as_mut().expect("it was invited");
        guest.waited += 1;
        let most = if guest.is_ready { ROUNDS_MAX } else { ROUNDS_MAX_CONNECT };
        assert!(
            guest.waited <= most,
            "starved: {} commands answered, none for {most} rounds",
            guest.answered
        );
        guest.answered >= COURSES
    }

    pub(super) fn close(&mut self, now: Time) {
        self.gluttons.iter_mut().for_each(|glutton| glutton.closing = true);
        if let Some(guest) = &mut self.guest {
            guest.raw.close(now);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.gluttons.iter().all(|one| one.raw.is_over()) && self.guest.iter().all(|one| one.raw.is_over())
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let raws = self.gluttons.iter().map(|one| &one.raw).chain(self.guest.iter().map(|one| &one.raw));
        raws.filter_map(RawHost::deadline).min()
    }
}

impl<F: Fabric> Glutton<F> {
    fn turn(&mut self, now: Time) -> bool {
        let mut busy = self.raw.turn(now);
        while let Some(news) = self.raw.next_news() {
            busy = true;
            match news {
                News::Ready => {}
                News::Lost => self.under_way.fill([false; ENTRIES as usize - 1]),
                News::Answer { qid, cid, status, .. } => {
                    assert!(status.is_success(), "a glutton is refused: {status}");
                    self.under_way[qid - 1][usize::from(cid)] = false;
                }
            }
        }
        if self.closing && self.under_way.iter().flatten().all(|taken| !taken) {
            self.raw.close(now);
        }
        if !self.raw.is_ready() || self.closing {
            return busy;
        }
        for (queue, qid) in self.under_way.iter_mut().zip(1..) {
            for (taken, cid) in queue.iter_mut().zip(0..).filter(|(taken, _)| !**taken) {
                *taken = true;
                let blocks = self.length / BLOCK_SIZE;
                let write = io::Request::Write { lba: 0, blocks, fua: false }.to_command(cid, TABLE);
                self.raw.send(qid, write, Some((Way::Fetched, self.length)));
            }
        }
        busy
    }
}

impl<F: Fabric> Guest<F> {
    fn turn(&mut self, now: Time) -> bool {
        let mut busy = self.raw.turn(now);
        while let Some(news) = self.raw.next_news() {
            busy = true;
            match news {
                News::Ready => self.is_ready = true,
                // It leaves.
                News::Lost => {
                    assert!(self.answered >= COURSES, "nothing breaks, and yet a guest is disconnected");
                }
                News::Answer { status, .. } => {
                    assert!(status.is_success(), "a guest is refused: {status}");
                    self.answered += 1;
                }
            }
            (self.waited, self.waits) = (0, false);
        }
        if self.is_ready && !self.waits && self.answered < COURSES {
            self.waits = true;
            let (qid, command, data) = course(self.answered);
            self.raw.send(qid, command, data);
        }
        busy
    }
}

/// What a guest asks for, one after the other.
fn course(number: u32) -> (usize, Command, Option<(Way, u32)>) {
    let read = |length: u32| {
        let read = io::Request::Read { lba: 8, blocks: length / BLOCK_SIZE, fua: false };
        (1, read.to_command(0, TABLE), Some((Way::ToHost, length)))
    };
    match number % 4 {
        0 => (0, Command::new(AdminOpcode::KEEP_ALIVE.0, 0, 0), None),
        1 => read(LARGE),
        2 => (0, Identify::new(Cns::CONTROLLER, 0).to_command(0), Some((Way::ToHost, 4096))),
        _ => read(512),
    }
}

impl<F: Fabric> World<F> {
    /// Gluttons take what they can, and somebody comes who is not to be kept waiting.
    pub(super) fn hold_feast(&mut self, choices: &mut impl Choices) {
        self.served.limits.fill(Limit::default());
        self.served.host_limit = Limit::default();
        self.go_over();
        self.feast = Some(Feast::new(&mut self.fabric, self.address, nqn(), choices));
        self.until("gluttons to fill up", choices, |world| world.feast.as_ref().is_some_and(Feast::is_full));
        self.of_feast(|feast, fabric| feast.invite(fabric));
        loop {
            self.round(choices);
            if self.of_feast(|feast, _| feast.end_round()) {
                break;
            }
        }
        let now = self.now;
        self.of_feast(|feast, _| feast.close(now));
        self.until("the feast to end", choices, |world| world.feast.as_ref().is_some_and(Feast::is_over));
        self.report.feasts += 1;
    }

    fn of_feast<T>(&mut self, act: impl FnOnce(&mut Feast<F>, &mut F) -> T) -> T {
        act(self.feast.as_mut().expect("it is being held"), &mut self.fabric)
    }

    /// Everybody does what can be done now, once.
    fn round(&mut self, choices: &mut impl Choices) {
        self.now = self.now + Duration::from_micros(10);
        let now = self.now;
        let mut busy = false;
        while self.fabric.step(choices) {
            busy = true;
        }
        while self.target.turn_all(now) && self.target.has_letters() {
            busy = true;
        }
        for host in &mut self.hosts {
            busy |= host.turn(now, &mut self.shadows);
        }
        busy |= self.of_feast(|feast, _| feast.turn(now));
        while self.disks.borrow_mut().complete_one(choices, 0) {
            busy = true;
        }
        if !busy {
            self.advance_clock();
        }
    }
}
