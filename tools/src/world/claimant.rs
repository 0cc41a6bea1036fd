//! A host which shares a namespace by reservations: it registers, acquires, preempts, releases and clears at random,
//! while it reads and writes by several queues, on whichever reactors these are.
//!
//! What must hold: every answer is explained by the commands which came before it or at the same time; who may not write
//! does not, from the answer on which says so; a report says what is in force; and a host reads in its log what was done
//! to its rights, once, and nothing else.

use ironside_common::nvme::admin::{Abort, GetLogPage};
use ironside_common::nvme::copy::SourceRange;
use ironside_common::nvme::log_page::LogPageId;
use ironside_common::nvme::reservation::{
    AcquireAction, Keys, Kind, Notification, NotificationLog, RegisterAction, ReportEntry, ReportHeader,
    Request,
};
use ironside_common::nvme::{Command, Nqn, Status, io};
use ironside_common::provider::sim::Choices;
use ironside_common::time::Time;
use ironside_common::verbs::Address;
use zerocopy::{FromBytes, IntoBytes};

use super::BLOCK_SIZE;
use super::agreement::{Agreed, Agreement, Ask, Moment, Name};
use super::fabric::Fabric;
use super::raw::{News, RawHost, Way, host_id};

/// The namespace which claimants have for themselves, and its size.
pub(super) const SHARED: u32 = 9;
pub(super) const SHARED_BLOCKS: u64 = 32;
/// Commands which reserve and are under way at once: each more multiplies what is possible.
const OPEN_MAX: usize = 4;
/// Keys to choose from are few, so that hosts share some.
const KEYS: u32 = 3;
/// Commands a queue may have under way.
const JOBS: usize = 6;
/// Registrants a report has room for.
const REPORTED: u32 = 8;

pub(super) struct Claimant<F: Fabric> {
    raw: RawHost<F>,
    name: Name,
    /// By queue, the admin queue first, and command identifier.
    jobs: Vec<[Option<Running>; JOBS]>,
    next_serial: u64,
    aborts: Vec<Abortion>,
    closing: Option<Closing>,
    /// I/O which was kept from the medium by a reservation.
    pub(super) conflicts: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    serial: u64,
    job: Job,
}

/// A command which was to be aborted, and what both say of it.
#[derive(Clone, Copy, Debug)]
struct Abortion {
    serial: u64,
    /// The queue and identifier which the Abort names.
    named: (usize, u16),
    status: Option<Status>,
    aborted: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Reserve { ticket: u64 },
    Report { since: usize },
    Io { writes: bool, since: usize },
    Log,
    Abort { serial: u64 },
}

/// What is looked at before it leaves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Closing {
    Report,
    Log,
    Done,
}

impl<F: Fabric> Claimant<F> {
    pub(super) fn new(fabric: &mut F, number: u8, target: Address, nqn: Nqn, queues: usize) -> Self {
        let raw = RawHost::new(fabric, number, target, nqn, queues);
        Self {
            raw,
            name: number,
            jobs: vec![[None; JOBS]; queues + 1],
            next_serial: 0,
            aborts: Vec::new(),
            closing: None,
            conflicts: 0,
        }
    }

    pub(super) fn turn(&mut self, now: Time, agreement: &mut Agreement) -> bool {
        let mut busy = self.raw.turn(now);
        while let Some(news) = self.raw.next_news() {
            busy = true;
            match news {
                News::Ready => agreement.connected(self.name),
                News::Lost => self.on_lost(agreement),
                News::Answer { qid, cid, status, result } => {
                    self.on_answer((qid, cid), status, result, agreement);
                }
            }
        }
        busy | self.go_on_closing(now, agreement)
    }

    /// Begins something.
    pub(super) fn submit(&mut self, agreement: &mut Agreement, choices: &mut impl Choices) {
        let qid = 1 + choices.below(self.raw.io_queues() as u32) as usize;
        if !self.raw.is_ready() || self.closing.is_some() {
            return;
        }
        match choices.below(10) {
            0..=2 => self.reserve(qid, agreement, choices),
            3 => self.report(qid, agreement),
            4 if choices.chance(50) => self.read_log(),
            4 => self.abort(qid, choices),
            _ => self.read_or_write(qid, agreement, choices),
        }
    }

    /// Nothing begins any more; what is left is looked at, and then the host goes.
    pub(super) fn close(&mut self) {
        self.closing = Some(Closing::Report);
    }

    pub(super) fn is_over(&self) -> bool {
        self.raw.is_over()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.raw.deadline()
    }

    fn is_idle(&self) -> bool {
        self.jobs.iter().flatten().all(Option::is_none)
    }

    /// Once nothing is under way: a last report, and the log until it is empty.
    fn go_on_closing(&mut self, now: Time, agreement: &mut Agreement) -> bool {
        if !self.is_idle() || !(self.raw.is_ready() || self.closing == Some(Closing::Done)) {
            return false;
        }
        match self.closing {
            Some(Closing::Report) => {
                self.report(1, agreement);
                self.closing = Some(Closing::Log);
            }
            // What others have lost may still be taken, until they are back.
            Some(Closing::Log) if agreement.open() > 0 => return false,
            Some(Closing::Log) if agreement.owes(self.name) => self.read_log(),
            Some(Closing::Log) => self.closing = Some(Closing::Done),
            Some(Closing::Done) => {
                self.raw.close(now);
                return false;
            }
            None => return false,
        }
        true
    }

    fn reserve(&mut self, qid: usize, agreement: &mut Agreement, choices: &mut impl Choices) {
        let under_way = self
            .jobs
            .iter()
            .flatten()
            .any(|running| matches!(running, Some(Running { job: Job::Reserve { .. }, .. })));
        if under_way || agreement.open() >= OPEN_MAX {
            return;
        }
        let ask = pick(self.name, agreement.some_state(), choices);
        let request = ask.request;
        let Some(cid) = self.vacant(qid) else { return };
        let length = request.transfer().length();
        let keys = Keys::new(ask.key, ask.other);
        self.raw.write(self.raw.room(qid, cid, length), &keys.as_bytes()[..length as usize]);
        let ticket = agreement.ask(self.name, ask);
        super::trace(|| format!("claimant {} ticket {ticket}: {request}, {ask:?}", self.name));
        let way = if choices.chance(50) { Way::InCapsule } else { Way::Fetched };
        self.begin(qid, request.to_command(cid, SHARED), Job::Reserve { ticket }, Some((way, length)));
    }

    fn report(&mut self, qid: usize, agreement: &mut Agreement) {
        let Some(cid) = self.vacant(qid) else { return };
        let length = ReportHeader::SIZE + REPORTED * ReportEntry::SIZE;
        let request = Request::Report { length, extended: true };
        let job = Job::Report { since: agreement.now() };
        self.begin(qid, request.to_command(cid, SHARED), job, Some((Way::ToHost, length)));
    }

    fn read_log(&mut self) {
        let Some(cid) = self.vacant(0).filter(|&cid| cid == 0) else { return };
        let length = size_of::<NotificationLog>() as u32;
        let command = GetLogPage::new(LogPageId::RESERVATION_NOTIFICATION, 0, length).to_command(cid);
        self.begin(0, command, Job::Log, Some((Way::ToHost, length)));
    }

    fn read_or_write(&mut self, qid: usize, agreement: &mut Agreement, choices: &mut impl Choices) {
        let Some(cid) = self.vacant(qid) else { return };
        let blocks = 1 + choices.below(4);
        let lba = u64::from(choices.below(SHARED_BLOCKS as u32 - blocks));
        let length = blocks * BLOCK_SIZE;
        let (request, data) = match choices.below(7) {
            6 => {
                let sources = [SourceRange::new(lba, blocks), SourceRange::new(0, 1)];
                self.raw.write(self.raw.room(qid, cid, 64), sources.as_bytes());
                let lba = u64::from(choices.below(SHARED_BLOCKS as u32 - blocks - 1));
                (io::Request::Copy { lba, ranges: 2, fua: false }, Some((Way::Fetched, 64)))
            }
            0 => (io::Request::Read { lba, blocks, fua: false }, Some((Way::ToHost, length))),
            1 => (io::Request::Compare { lba, blocks, fua: false }, Some((Way::Fetched, length))),
            2 => (io::Request::WriteZeroes { lba, blocks, deallocate: choices.chance(50), fua: false }, None),
            3 => (io::Request::Write { lba, blocks, fua: false }, Some((Way::InCapsule, length))),
            _ => (io::Request::Write { lba, blocks, fua: choices.chance(50) }, Some((Way::Fetched, length))),
        };
        let job = Job::Io { writes: request.changes_medium(), since: agreement.now() };
        self.begin(qid, request.to_command(cid, SHARED), job, data);
    }

    /// Wants some command of this queue to end early.
    fn abort(&mut self, qid: usize, choices: &mut impl Choices) {
        let victim = choices.below(JOBS as u32) as u16;
        // The first identifier is the log's.
        let vacant = (1..).zip(&self.jobs[0][1..]).find_map(|(cid, job)| job.is_none().then_some(cid));
        let (Some(Running { serial, job: Job::Io { .. } }), Some(cid)) =
            (self.jobs[qid][usize::from(victim)], vacant)
        else {
            return;
        };
        if self.aborts.iter().any(|abort| abort.serial == serial) {
            return;
        }
        self.aborts.push(Abortion { serial, named: (qid, victim), status: None, aborted: None });
        let abort = Abort { sqid: qid as u16, cid: victim };
        self.begin(0, abort.to_command(cid), Job::Abort { serial }, None);
    }

    /// An identifier which nothing has, and which no Abort names that is still on its way.
    fn vacant(&self, qid: usize) -> Option<u16> {
        let is_named =
            |cid| self.aborts.iter().any(|abort| abort.named == (qid, cid) && abort.aborted.is_none());
        let vacant = self.jobs[qid].iter().zip(0..).filter(|&(job, cid)| job.is_none() && !is_named(cid));
        vacant.map(|(_, cid)| cid).next()
    }

    fn begin(&mut self, qid: usize, command: Command, job: Job, data: Option<(Way, u32)>) {
        self.jobs[qid][usize::from(command.cid.get())] = Some(Running { serial: self.next_serial, job });
        self.next_serial += 1;
        self.raw.send(qid, command, data);
    }

    fn on_lost(&mut self, agreement: &mut Agreement) {
        for running in self.jobs.iter_mut().flatten().filter_map(Option::take) {
            if let Job::Reserve { ticket } = running.job {
                agreement.lost(ticket);
            }
        }
        self.aborts.clear();
        agreement.disconnected(self.name);
    }

    fn on_answer(
        &mut self,
        (qid, cid): (usize, u16),
        status: Status,
        result: u32,
        agreement: &mut Agreement,
    ) {
        let running = self.jobs[qid][usize::from(cid)].take();
        let Running { serial, job } = running.expect("an answer to nothing");
        super::trace(|| format!("claimant {} {job:?}: {status}", self.name));
        match job {
            Job::Reserve { ticket } => agreement.answered(ticket, status),
            Job::Io { writes, since } => {
                let is_unwanted = self.aborts.iter().any(|abort| abort.serial == serial);
                self.on_io(writes, status, is_unwanted, agreement.since(since));
                self.note_abort(serial, Some(status), None);
            }
            Job::Abort { serial } => {
                assert!(status.is_success(), "an Abort comes to {status}");
                self.note_abort(serial, None, Some(result & 1 == 0));
            }
            Job::Report { since } => {
                assert!(status.is_success(), "a report comes to {status}");
                let reported = self.reported(qid, cid);
                agreement.now();
                let possible = agreement.since(since);
                assert!(
                    possible.iter().any(|moment| is_reported(&moment.state, &reported)),
                    "a report says {reported:?}, which is none of {possible:?}"
                );
            }
            Job::Log => {
                assert!(status.is_success(), "a log comes to {status}");
                if let Some(notification) = self.logged(cid) {
                    agreement.noticed(self.name, notification);
                }
            }
        }
    }

    /// A command which is said to be aborted ends so.
    fn note_abort(&mut self, serial: u64, status: Option<Status>, aborted: Option<bool>) {
        for abort in self.aborts.iter_mut().filter(|abort| abort.serial == serial) {
            abort.status = abort.status.or(status);
            abort.aborted = abort.aborted.or(aborted);
            let lies = abort.aborted == Some(true)
                && abort.status.is_some_and(|status| !status.is(Status::ABORT_REQUESTED));
            assert!(!lies, "aborted, but answered {:?}", abort.status);
        }
        self.aborts.retain(|abort| abort.status.is_none() || abort.aborted.is_none());
    }

    fn on_io(&mut self, writes: bool, status: Status, is_unwanted: bool, possible: &[Moment]) {
        let might = |may| possible.iter().any(|moment| moment.state.may(self.name, writes) == may);
        if status.is_success() {
            assert!(might(true), "{} did what it had no right to: {possible:?}", self.name);
        } else if status.is(Status::RESERVATION_CONFLICT) {
            self.conflicts += 1;
            assert!(might(false), "{} was kept from what it had a right to: {possible:?}", self.name);
        } else if status.is(Status::ABORT_REQUESTED) {
            assert!(is_unwanted, "{} was aborted by nobody", self.name);
        } else if status.is(Status::ABORTED_PREEMPT) {
            let is_aborted = |moment: &Moment| moment.aborted.contains(&self.name);
            assert!(possible.iter().any(is_aborted), "{} was preempted by nobody", self.name);
        }
    }

    fn reported(&self, qid: usize, cid: u16) -> (ReportHeader, Vec<ReportEntry>) {
        let bytes = self.raw.read(self.raw.room(qid, cid, ReportHeader::SIZE + REPORTED * ReportEntry::SIZE));
        let (header, mut rest) = ReportHeader::read_from_prefix(&bytes).expect("it has room");
        let mut entries = Vec::new();
        for _ in 0..header.registrants.get() {
            let (entry, behind) = ReportEntry::read_from_prefix(rest).expect("claimants are few");
            entries.push(entry);
            rest = behind;
        }
        (header, entries)
    }

    fn logged(&self, cid: u16) -> Option<Notification> {
        let bytes = self.raw.read(self.raw.room(0, cid, size_of::<NotificationLog>() as u32));
        let log = NotificationLog::read_from_bytes(&bytes).expect("a page of 64 bytes");
        match log.kind {
            0 => None,
            1 => Some(Notification::RegistrationPreempted),
            2 => Some(Notification::ReservationReleased),
            3 => Some(Notification::ReservationPreempted),
            other => panic!("a notification of type {other}"),
        }
    }
}

fn is_reported(state: &Agreed, (header, entries): &(ReportHeader, Vec<ReportEntry>)) -> bool {
    let head = (header.generation.get(), header.kind, header.persists);
    let kind = state.held.map_or(0, |(kind, _)| kind.number());
    let said = entries.iter().map(|entry| (entry.host_id, entry.key.get(), entry.status == 1));
    let agreed = state.keys.iter().map(|(&name, &key)| (host_id(name).into_bytes(), key, state.holds(name)));
    head == (state.generation, kind, state.persists.into()) && said.eq(agreed)
}

/// What to ask for: mostly with the keys that are right.
fn pick(name: Name, state: &Agreed, choices: &mut impl Choices) -> Ask {
    let kind = Kind::ALL[choices.below(6) as usize];
    let (own, other) = (state.keys.get(&name).copied(), u64::from(1 + choices.below(KEYS)));
    let key = own.filter(|_| choices.chance(90)).unwrap_or(other);
    let persist = [None, None, Some(false), Some(true)][choices.below(4) as usize];
    let ignore_key = choices.chance(30);
    let register = |action| Request::Register { action, ignore_key, persist };
    let acquire = |action| Request::Acquire { action, kind };
    let what = if own.is_none() { choices.below(14) } else { 3 + choices.below(22) };
    let (request, other) = match what {
        0..=4 => (register(RegisterAction::Register), own.filter(|_| choices.chance(30)).unwrap_or(other)),
        5 => (register(RegisterAction::Unregister), 0),
        6 => (register(RegisterAction::Replace), other),
        7..=12 => (acquire(AcquireAction::Acquire), 0),
        13..=15 => (acquire(AcquireAction::Preempt), if choices.chance(20) { 0 } else { other }),
        16..=18 => (acquire(AcquireAction::PreemptAndAbort), if choices.chance(20) { 0 } else { other }),
        19 => (Request::Clear, 0),
        _ => {
            let held = state.held.map(|(held, _)| held).filter(|_| choices.chance(80));
            (Request::Release { kind: held.or(Some(kind)) }, 0)
        }
    };
    Ask { request, key, other }
}
