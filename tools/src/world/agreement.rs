//! What hosts have agreed about a namespace by reservations: a model of its own, which knows all that may be in force
//! while commands are under way, whichever of them comes first.
//!
//! A [`Course`] is one way in which it may have gone: a state, and which of the commands that are not answered have
//! been taken there. An answer leaves those courses which explain it; if none does, a promise is broken.
use std::collections::BTreeMap;

use ironside_common::nvme::Status;
use ironside_common::nvme::reservation::{AcquireAction, Kind, Notification, RegisterAction, Request};

/// A host, by its number.
pub(super) type Name = u8;

/// More courses than this mean that too many commands are under way at once.
const COURSES_MAX: usize = 20_000;

/// What is in force.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Agreed {
    pub(super) generation: u32,
    pub(super) keys: BTreeMap<Name, u64>,
    pub(super) held: Option<(Kind, Name)>,
    pub(super) persists: bool,
}

/// A command with the keys it brings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) request: Request,
    pub(super) key: u64,
    pub(super) other: u64,
}

/// What a command comes to.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Outcome {
    status: Status,
    told: Vec<(Name, Notification)>,
    aborted: Vec<Name>,
}

impl Agreed {
    pub(super) fn may(&self, name: Name, writes: bool) -> bool {
        let Some((kind, holder)) = self.held else { return true };
        let is_registered = self.keys.contains_key(&name);
        let has_all = name == holder || kind.includes_registrants();
        (is_registered && has_all) || !writes && !kind.excludes_reads()
    }

    pub(super) fn holds(&self, name: Name) -> bool {
        self.keys.contains_key(&name)
            && self.held.is_some_and(|(kind, holder)| kind.is_held_by_all() || holder == name)
    }

    fn after(&self, name: Name, ask: &Ask) -> (Self, Outcome) {
        let mut next = self.clone();
        let (mut told, mut gone) = (Vec::new(), Vec::new());
        let status = next.take(name, ask, &mut told, &mut gone);
        if !status.is_success() {
            return (self.clone(), Outcome { status, told: Vec::new(), aborted: Vec::new() });
        }
        let aborts = matches!(ask.request, Request::Acquire { action: AcquireAction::PreemptAndAbort, .. });
        (next, Outcome { status, told, aborted: if aborts { gone } else { Vec::new() } })
    }

    fn take(
        &mut self,
        name: Name,
        ask: &Ask,
        told: &mut Vec<(Name, Notification)>,
        gone: &mut Vec<Name>,
    ) -> Status {
        let own = self.keys.get(&name).copied();
        let has_key = own == Some(ask.key);
        match ask.request {
            Request::Register { action, ignore_key, persist } => {
                let may = match action {
                    RegisterAction::Register => own.is_none() || own == Some(ask.other),
                    RegisterAction::Replace => ignore_key || has_key,
                    RegisterAction::Unregister => own.is_some() && (ignore_key || has_key),
                };
                if !may {
                    return Status::RESERVATION_CONFLICT;
                }
                self.generation += 1;
                self.persists = persist.unwrap_or(self.persists);
                if action == RegisterAction::Unregister {
                    self.unregister(name, name, told);
                } else {
                    self.keys.insert(name, ask.other);
                }
            }
            _ if !has_key => return Status::RESERVATION_CONFLICT,
            Request::Acquire { action: AcquireAction::Acquire, kind } => match self.held {
                None => self.held = Some((kind, name)),
                Some((held, _)) if held == kind && self.holds(name) => {}
                Some(_) => return Status::RESERVATION_CONFLICT,
            },
            Request::Acquire { kind, .. } => return self.preempt(name, kind, ask.other, told, gone),
            Request::Release { kind } => {
                if let Some((held, _)) = self.held.filter(|_| self.holds(name)) {
                    if kind != Some(held) {
                        return Status::INVALID_FIELD;
                    }
                    self.end(held, name, told);
                }
            }
            Request::Clear => {
                let others = self.keys.keys().filter(|&&other| other != name);
                told.extend(others.map(|&other| (other, Notification::ReservationPreempted)));
                *self = Self { generation: self.generation + 1, persists: self.persists, ..Self::default() };
            }
            Request::Report { .. } => unreachable!("a report changes nothing"),
        }
        Status::SUCCESS
    }

    fn preempt(
        &mut self,
        name: Name,
        kind: Kind,
        key: u64,
        told: &mut Vec<(Name, Notification)>,
        gone: &mut Vec<Name>,
    ) -> Status {
        let replaces = self.held.filter(|&(held, holder)| {
            if held.is_held_by_all() { key == 0 } else { self.keys.get(&holder) == Some(&key) }
        });
        let with_key = |agreed: &Self| {
            let with = agreed.keys.iter().filter(|&(_, &other)| other == key || key == 0);
            with.map(|(&other, _)| other).collect::<Vec<_>>()
        };
        let going = match replaces {
            Some(_) => with_key(self).into_iter().filter(|&other| other != name).collect(),
            None if key == 0 => return Status::INVALID_FIELD,
            None => with_key(self),
        };
        if replaces.is_none() && going.is_empty() {
            return Status::RESERVATION_CONFLICT;
        }
        if replaces.is_some() {
            self.held = None;
        }
        for other in going {
            self.unregister(other, name, told);
            if other != name {
                told.push((other, Notification::RegistrationPreempted));
                gone.push(other);
            }
        }
        if let Some((held, _)) = replaces {
            if held != kind {
                self.tell_others(name, told);
            }
            self.held = Some((kind, name));
        }
        self.generation += 1;
        Status::SUCCESS
    }

    fn unregister(&mut self, name: Name, by: Name, told: &mut Vec<(Name, Notification)>) {
        self.keys.remove(&name);
        if let Some((kind, holder)) = self.held
            && if kind.is_held_by_all() { self.keys.is_empty() } else { holder == name }
        {
            self.end(kind, by, told);
        }
    }

    fn end(&mut self, kind: Kind, by: Name, told: &mut Vec<(Name, Notification)>) {
        self.held = None;
        self.tell_released(kind, by, told);
    }

    fn tell_released(&self, kind: Kind, by: Name, told: &mut Vec<(Name, Notification)>) {
        if kind.includes_registrants() {
            self.tell_others(by, told);
        }
    }

    fn tell_others(&self, by: Name, told: &mut Vec<(Name, Notification)>) {
        let others = self.keys.keys().filter(|&&other| other != by);
        told.extend(others.map(|&other| (other, Notification::ReservationReleased)));
    }
}

/// One way in which it may have gone.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Course {
    state: Agreed,
    /// By ticket.
    taken: BTreeMap<u64, Outcome>,
}

/// What was possible at some time: a state, and whose commands were aborted on the way to it.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) state: Agreed,
    pub(super) aborted: Vec<Name>,
}

/// What a host is to be told, which reads it from its log.
#[derive(Debug, Default)]
struct Notices {
    /// The first command whose notices reach the controller it has now.
    since: Option<u64>,
    due: Vec<Notification>,
    /// Those of commands of which nobody knows what became, or which the controller may have come too late for.
    maybe: Vec<Notification>,
    /// Read before the command was answered.
    early: Vec<Notification>,
}

#[derive(Debug)]
struct Open {
    ticket: u64,
    name: Name,
    ask: Ask,
    /// Nobody will hear what became of it.
    lost: bool,
    /// Its target is gone: whatever it came to has been.
    over: bool,
}

#[derive(Debug)]
pub(super) struct Agreement {
    courses: Vec<Course>,
    open: Vec<Open>,
    history: Vec<Moment>,
    notices: BTreeMap<Name, Notices>,
    next_ticket: u64,
    /// Commands which succeeded.
    pub(super) succeeded: u64,
}

impl Agreement {
    pub(super) fn new() -> Self {
        let course = Course { state: Agreed::default(), taken: BTreeMap::new() };
        Self {
            courses: vec![course],
            open: Vec::new(),
            history: Vec::new(),
            notices: BTreeMap::new(),
            next_ticket: 0,
            succeeded: 0,
        }
    }

    /// Commands which may still be taken.
    pub(super) fn open(&self) -> usize {
        self.open.iter().filter(|open| !open.over).count()
    }

    /// What may be in force.
    pub(super) fn some_state(&self) -> &Agreed {
        &self.courses[0].state
    }

    pub(super) fn ask(&mut self, name: Name, ask: Ask) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.open.push(Open { ticket, name, ask, lost: false, over: false });
        self.follow();
        ticket
    }

    /// # Panics
    /// If no course explains this answer.
    pub(super) fn answered(&mut self, ticket: u64, status: Status) {
        let open = self.remove_open(ticket);
        let before = self.courses.len();
        // What could not be kept on disk has not happened.
        if status.is(Status::INTERNAL) {
            self.courses.retain(|course| !course.taken.contains_key(&ticket));
        } else {
            self.courses
                .retain(|course| course.taken.get(&ticket).is_some_and(|outcome| outcome.status.is(status)));
        }
        assert!(
            !self.courses.is_empty(),
            "nothing of {before} courses explains that {open:?} comes to {status}"
        );
        self.succeeded += u64::from(status.is_success());
        let told = |course: &Course| course.taken.get(&ticket).map(|outcome| outcome.told.clone());
        let certain = told(&self.courses[0]).unwrap_or_default();
        let is_certain = self.courses.iter().all(|course| told(course).unwrap_or_default() == certain);
        self.tell(ticket, is_certain);
        self.forget(ticket);
    }

    /// Nobody will hear what became of it; it may still be taken.
    pub(super) fn lost(&mut self, ticket: u64) {
        self.tell(ticket, false);
        let open = self.open.iter_mut().find(|open| open.ticket == ticket).expect("a command ends once");
        open.lost = true;
        if open.over {
            self.remove_open(ticket);
            self.forget(ticket);
        }
    }

    /// The host connects anew: nothing that it lost is taken any more, and it has another controller.
    pub(super) fn connected(&mut self, name: Name) {
        let lost = self.open.iter().filter(|open| open.lost && open.name == name);
        for ticket in lost.map(|open| open.ticket).collect::<Vec<_>>() {
            self.remove_open(ticket);
            self.forget(ticket);
        }
        let notices = self.notices.entry(name).or_default();
        notices.since = Some(self.next_ticket);
    }

    /// The host has no controller any more.
    pub(super) fn disconnected(&mut self, name: Name) {
        let notices = self.notices.entry(name).or_default();
        notices.since = None;
        notices.due.clear();
        notices.early.clear();
    }

    /// The target is gone, and will begin with what it was to keep.
    pub(super) fn target_gone(&mut self) {
        let (lost, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|open| open.lost);
        self.open = rest;
        self.open.iter_mut().for_each(|open| open.over = true);
        for course in &mut self.courses {
            if !course.state.persists {
                course.state = Agreed::default();
            }
        }
        lost.iter().for_each(|open| self.forget(open.ticket));
        self.now();
    }

    /// Whether a host may write, or read, by what is possible now.
    pub(super) fn may(&self, name: Name, writes: bool) -> bool {
        self.courses.iter().any(|course| course.state.may(name, writes))
    }

    /// From here on; see [`Self::since`].
    pub(super) fn now(&mut self) -> usize {
        let start = self.history.len();
        // A command that aborts others is at work until it is answered.
        let moment = |course: &Course| Moment {
            state: course.state.clone(),
            aborted: course.taken.values().flat_map(|outcome| outcome.aborted.iter().copied()).collect(),
        };
        self.history.extend(self.courses.iter().map(moment));
        start
    }

    /// All that was possible since then.
    pub(super) fn since(&self, start: usize) -> &[Moment] {
        &self.history[start..]
    }

    /// A host reads this in its log.
    ///
    /// # Panics
    /// If nobody gave reason for it.
    pub(super) fn noticed(&mut self, name: Name, read: Notification) {
        let soon =
            |course: &Course| course.taken.values().any(|outcome| outcome.told.contains(&(name, read)));
        let is_soon = self.courses.iter().any(soon);
        let notices = self.notices.entry(name).or_default();
        let first_of = |list: &[Notification]| list.iter().position(|&one| one == read);
        // Two commands may be answered the other way round than they were carried out, so that either may come first.
        if let Some(index) = first_of(&notices.due) {
            notices.due.remove(index);
        } else if is_soon {
            // Of a command which may yet turn out to be the reason; if it does not, something that may have happened was.
            notices.early.push(read);
        } else if let Some(index) = first_of(&notices.maybe) {
            notices.maybe.remove(index);
        } else {
            panic!("{name} is told of {read:?} for no reason: {notices:?}");
        }
    }

    /// Whether a host has still to be told something.
    pub(super) fn owes(&self, name: Name) -> bool {
        self.notices.get(&name).is_some_and(|notices| !notices.due.is_empty())
    }

    /// Those concerned will read of this command in their logs, or may.
    fn tell(&mut self, ticket: u64, is_certain: bool) {
        let outcomes = self.courses.iter().filter_map(|course| course.taken.get(&ticket));
        let enough = if is_certain { 1 } else { usize::MAX };
        let told = outcomes.take(enough).flat_map(|outcome| outcome.told.iter().copied());
        for (name, notification) in told.collect::<Vec<_>>() {
            let notices = self.notices.entry(name).or_default();
            if let Some(index) = notices.early.iter().position(|&early| early == notification) {
                notices.early.remove(index);
            } else if is_certain && notices.since.is_some_and(|since| since <= ticket) {
                notices.due.push(notification);
            } else {
                notices.maybe.push(notification);
            }
        }
    }

    fn remove_open(&mut self, ticket: u64) -> Open {
        let index = self.open.iter().position(|open| open.ticket == ticket);
        self.open.remove(index.expect("a command ends once"))
    }

    /// Nobody asks any more whether it was taken.
    fn forget(&mut self, ticket: u64) {
        let mut courses = Vec::new();
        for mut course in std::mem::take(&mut self.courses) {
            course.taken.remove(&ticket);
            if !courses.contains(&course) {
                courses.push(course);
            }
        }
        self.courses = courses;
    }

    /// Adds every course to which the open commands lead.
    fn follow(&mut self) {
        let mut index = 0;
        while index < self.courses.len() {
            for Open { ticket, name, ask, .. } in self.open.iter().filter(|open| !open.over) {
                let course = &self.courses[index];
                if course.taken.contains_key(ticket) {
                    continue;
                }
                let (state, outcome) = course.state.after(*name, ask);
                let mut taken = course.taken.clone();
                self.history.push(Moment { state: state.clone(), aborted: outcome.aborted.clone() });
                taken.insert(*ticket, outcome);
                let next = Course { state, taken };
                if !self.courses.contains(&next) {
                    self.courses.push(next);
                }
            }
            index += 1;
            assert!(self.courses.len() < COURSES_MAX, "too many commands are under way");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(other: u64) -> Ask {
        let request =
            Request::Register { action: RegisterAction::Register, ignore_key: false, persist: None };
        Ask { request, key: 0, other }
    }

    fn acquire(action: AcquireAction, key: u64, other: u64) -> Ask {
        Ask { request: Request::Acquire { action, kind: Kind::WriteExclusive }, key, other }
    }

    #[test]
    fn of_two_which_acquire_at_once_only_one_may_be_told_that_it_has() {
        let mut agreement = Agreement::new();
        for name in [1, 2] {
            let ticket = agreement.ask(name, register(name.into()));
            agreement.answered(ticket, Status::SUCCESS);
        }
        let first = agreement.ask(1, acquire(AcquireAction::Acquire, 1, 0));
        let second = agreement.ask(2, acquire(AcquireAction::Acquire, 2, 0));
        assert!(agreement.may(1, true) && agreement.may(2, true), "either may come first");
        agreement.answered(first, Status::RESERVATION_CONFLICT);
        assert!(!agreement.may(1, true) && agreement.may(2, true));
        agreement.answered(second, Status::SUCCESS);
        assert_eq!(agreement.succeeded, 3);
    }

    #[test]
    #[should_panic(expected = "nothing of")]
    fn two_holders_are_found() {
        let mut agreement = Agreement::new();
        for name in [1, 2] {
            let ticket = agreement.ask(name, register(name.into()));
            agreement.answered(ticket, Status::SUCCESS);
        }
        for name in [1, 2] {
            let ticket = agreement.ask(name, acquire(AcquireAction::Acquire, name.into(), 0));
            agreement.answered(ticket, Status::SUCCESS);
        }
    }

    #[test]
    fn a_lost_command_may_be_taken_until_its_host_is_back() {
        let mut agreement = Agreement::new();
        for name in [1, 2] {
            agreement.connected(name);
            let ticket = agreement.ask(name, register(name.into()));
            agreement.answered(ticket, Status::SUCCESS);
        }
        let lost = agreement.ask(1, acquire(AcquireAction::Preempt, 1, 2));
        agreement.lost(lost);
        let start = agreement.now();
        assert!(agreement.since(start).iter().any(|moment| moment.state.keys.len() == 1));
        agreement.noticed(2, Notification::RegistrationPreempted);
        agreement.connected(1);
        assert_eq!(agreement.open(), 0);
        let start = agreement.now();
        assert_eq!(agreement.since(start).len(), 2, "both stay possible");
    }
}
