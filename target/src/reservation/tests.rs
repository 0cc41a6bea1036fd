//! The specification's rules for each command, and the order of what a change takes.
use ironside_common::nvme::Status;
use ironside_common::nvme::reservation::{AcquireAction, Kind, Notification, RegisterAction};
use uuid::Uuid;

use super::*;
use crate::backend::OpenMedium;
use crate::catalog::{Catalog, Hosts, Namespace, Subsystem};

const A: HostId = [1; 16];
const B: HostId = [2; 16];
const C: HostId = [3; 16];

const fn register(key: u64) -> Command {
    Command::Register {
        action: RegisterAction::Register,
        ignore_key: false,
        persist: None,
        key: 0,
        new_key: key,
    }
}

const fn unregister(key: u64) -> Command {
    Command::Register {
        action: RegisterAction::Unregister,
        ignore_key: false,
        persist: None,
        key,
        new_key: 0,
    }
}

const fn acquire(kind: Kind, key: u64) -> Command {
    Command::Acquire { action: AcquireAction::Acquire, kind, key, preempted_key: 0 }
}

const fn preempt(kind: Kind, key: u64, preempted_key: u64) -> Command {
    Command::Acquire { action: AcquireAction::Preempt, kind, key, preempted_key }
}

/// A namespace on which things happen one after another.
#[derive(Default)]
struct Bench {
    state: State,
    notices: Vec<(HostId, Notification)>,
}

impl Bench {
    fn ask(&mut self, host: HostId, command: Command) -> Status {
        match self.state.apply(&host, &command) {
            Ok(change) => {
                self.state = change.state;
                self.notices = change.notices;
                Status::SUCCESS
            }
            Err(status) => status,
        }
    }

    fn ok(&mut self, host: HostId, command: Command) -> &mut Self {
        assert_eq!(self.ask(host, command), Status::SUCCESS, "{command:?}");
        self
    }

    fn refused(&mut self, host: HostId, command: Command, status: Status) -> &mut Self {
        let before = self.state.clone();
        assert_eq!(self.ask(host, command), status, "{command:?}");
        assert_eq!(self.state, before);
        self
    }

    /// A and B are registered with keys 10 and 20, and A holds a reservation; C is a stranger.
    fn held(kind: Kind) -> Self {
        let mut bench = Self::default();
        bench.ok(A, register(10)).ok(B, register(20)).ok(A, acquire(kind, 10));
        bench
    }
}

#[test]
fn rights_are_as_the_specifications_table_says() {
    use Kind::{
        ExclusiveAccess, ExclusiveAccessAllRegistrants, ExclusiveAccessRegistrantsOnly, WriteExclusive,
        WriteExclusiveAllRegistrants, WriteExclusiveRegistrantsOnly,
    };
    let read_only = Rights { write: false, ..Rights::ALL };
    let nothing = Rights { read: false, write: false, protected: false };
    for (kind, registrant, stranger) in [
        (WriteExclusive, read_only, read_only),
        (ExclusiveAccess, nothing, nothing),
        (WriteExclusiveRegistrantsOnly, Rights::ALL, read_only),
        (ExclusiveAccessRegistrantsOnly, Rights::ALL, nothing),
        (WriteExclusiveAllRegistrants, Rights::ALL, read_only),
        (ExclusiveAccessAllRegistrants, Rights::ALL, nothing),
    ] {
        let bench = Bench::held(kind);
        let rights = [A, B, C].map(|host| bench.state.rights(&host));
        assert_eq!(rights, [Rights::ALL, registrant, stranger], "{kind}");
        assert_eq!(bench.state.is_holder(&B), kind.is_held_by_all());
    }
    assert_eq!(State::default().rights(&C), Rights::ALL);
}

#[test]
fn a_key_is_registered_once_and_replaced_by_who_knows_it() {
    let replace = |ignore_key, key, new_key| Command::Register {
        action: RegisterAction::Replace,
        ignore_key,
        persist: None,
        key,
        new_key,
    };
    let mut bench = Bench::default();
    bench
        .ok(A, register(10))
        .ok(A, register(10))
        .refused(A, register(11), Status::RESERVATION_CONFLICT)
        .refused(A, register(0), Status::INVALID_FIELD)
        .refused(A, replace(false, 9, 11), Status::RESERVATION_CONFLICT)
        .ok(A, replace(false, 10, 11))
        .ok(A, replace(true, 0, 12))
        .refused(B, replace(false, 0, 20), Status::RESERVATION_CONFLICT)
        .ok(B, replace(true, 0, 20));
    assert_eq!(bench.state.registrants.iter().map(|one| one.key).collect::<Vec<_>>(), [12, 20]);
    assert_eq!(bench.state.generation, 5, "each Register that succeeds counts");
    bench.refused(A, unregister(11), Status::RESERVATION_CONFLICT).ok(A, unregister(12));
    bench.refused(A, unregister(12), Status::RESERVATION_CONFLICT);
}

#[test]
fn a_reservation_is_acquired_by_a_registrant_if_nobody_has_it() {
    let mut bench = Bench::held(Kind::WriteExclusive);
    let generation = bench.state.generation;
    bench
        .ok(A, acquire(Kind::WriteExclusive, 10))
        .refused(A, acquire(Kind::ExclusiveAccess, 10), Status::RESERVATION_CONFLICT)
        .refused(A, acquire(Kind::WriteExclusive, 11), Status::RESERVATION_CONFLICT)
        .refused(B, acquire(Kind::WriteExclusive, 20), Status::RESERVATION_CONFLICT)
        .refused(C, acquire(Kind::WriteExclusive, 0), Status::RESERVATION_CONFLICT);
    assert_eq!(bench.state.generation, generation, "no registration has changed");
}

#[test]
fn releasing_needs_the_holder_the_key_and_the_type() {
    let release = |kind, key| Command::Release { kind: Some(kind), key };
    for kind in Kind::ALL {
        let mut bench = Bench::held(kind);
        bench.refused(A, release(kind, 11), Status::RESERVATION_CONFLICT);
        let other = if kind == Kind::WriteExclusive { Kind::ExclusiveAccess } else { Kind::WriteExclusive };
        bench.refused(A, release(other, 10), Status::INVALID_FIELD);
        bench.refused(A, Command::Release { kind: None, key: 10 }, Status::INVALID_FIELD);
        if !kind.is_held_by_all() {
            bench.ok(B, release(kind, 20));
            assert!(bench.state.held.is_some(), "not B's to release");
        }
        bench.ok(A, release(kind, 10));
        assert_eq!((bench.state.held, bench.state.registrants.len()), (None, 2));
        let told = kind.includes_registrants().then_some((B, Notification::ReservationReleased));
        assert_eq!(bench.notices, Vec::from_iter(told), "{kind}");
    }
}

#[test]
fn a_reservation_ends_with_the_registration_of_its_last_holder() {
    for kind in Kind::ALL {
        let mut bench = Bench::held(kind);
        bench.ok(A, unregister(10));
        assert_eq!(bench.state.held.is_some(), kind.is_held_by_all(), "{kind}");
        bench.ok(B, unregister(20));
        assert_eq!(bench.state.held, None);
    }
}

#[test]
fn clear_ends_everything_and_tells_the_others() {
    let mut bench = Bench::held(Kind::ExclusiveAccess);
    bench.refused(C, Command::Clear { key: 0 }, Status::RESERVATION_CONFLICT);
    bench.ok(B, Command::Clear { key: 20 });
    assert_eq!((bench.state.held, bench.state.registrants.len()), (None, 0));
    assert_eq!(bench.notices, [(A, Notification::ReservationPreempted)]);
}

#[test]
fn preempting_the_holder_takes_its_place() {
    let mut bench = Bench::held(Kind::WriteExclusiveRegistrantsOnly);
    bench.ok(C, register(10)).ok(B, preempt(Kind::ExclusiveAccess, 20, 10));
    assert_eq!(bench.state.held, Some(Held { kind: Kind::ExclusiveAccess, holder: B }));
    assert_eq!(bench.state.registrants, [Registrant { host_id: B, key: 20 }]);
    let preempted = Notification::RegistrationPreempted;
    assert!(bench.notices.contains(&(A, preempted)) && bench.notices.contains(&(C, preempted)));
    assert_eq!(bench.state.rights(&A), Rights { read: false, write: false, protected: false });

    // Its own holder changes the type, and stays.
    bench.ok(B, preempt(Kind::WriteExclusive, 20, 20));
    assert_eq!(bench.state.held, Some(Held { kind: Kind::WriteExclusive, holder: B }));
}

#[test]
fn preempting_a_key_of_no_holder_removes_registrations_only() {
    let mut bench = Bench::held(Kind::WriteExclusive);
    bench
        .ok(C, register(30))
        .refused(B, preempt(Kind::WriteExclusive, 20, 99), Status::RESERVATION_CONFLICT)
        .refused(B, preempt(Kind::WriteExclusive, 20, 0), Status::INVALID_FIELD)
        .refused(B, preempt(Kind::WriteExclusive, 21, 10), Status::RESERVATION_CONFLICT)
        .ok(B, preempt(Kind::ExclusiveAccess, 20, 30));
    assert_eq!(bench.state.held, Some(Held { kind: Kind::WriteExclusive, holder: A }));
    assert!(bench.state.registrant(&C).is_none());

    let mut bench = Bench::default();
    bench.ok(A, register(10)).ok(B, register(20)).ok(A, preempt(Kind::WriteExclusive, 10, 20));
    assert_eq!((bench.state.held, bench.state.registrants.len()), (None, 1));
}

#[test]
fn of_a_reservation_all_hold_key_zero_preempts_all_others() {
    let mut bench = Bench::held(Kind::WriteExclusiveAllRegistrants);
    bench.ok(C, register(30)).ok(B, preempt(Kind::WriteExclusiveAllRegistrants, 20, 30));
    assert_eq!(bench.state.registrants.len(), 2);
    bench.ok(B, preempt(Kind::ExclusiveAccess, 20, 0));
    assert_eq!(bench.state.registrants, [Registrant { host_id: B, key: 20 }]);
    assert_eq!(bench.state.held, Some(Held { kind: Kind::ExclusiveAccess, holder: B }));
}

#[test]
fn abort_names_those_who_were_preempted() {
    let bench = Bench::held(Kind::WriteExclusive);
    let Command::Acquire { kind, key, preempted_key, .. } = preempt(Kind::WriteExclusive, 20, 10) else {
        unreachable!()
    };
    let action = AcquireAction::PreemptAndAbort;
    let change = bench.state.apply(&B, &Command::Acquire { action, kind, key, preempted_key }).unwrap();
    assert_eq!(change.aborted, [A]);
    assert_eq!(bench.state.apply(&B, &preempt(kind, key, preempted_key)).unwrap().aborted, [[0; 16]; 0]);
}

fn registrar(reactors: usize) -> Registrar<u8> {
    let medium = OpenMedium::null(8192, 512).unwrap();
    let namespace = Namespace::whole(1, UUID, medium);
    let nqn = "nqn.2014-08.org.example:a".parse().unwrap();
    let listen = vec!["127.0.0.1:4420".parse().unwrap()];
    let subsystem = Subsystem::new(nqn, "S", Hosts::Any, listen, vec![namespace]).unwrap();
    Registrar::new(reactors, &Catalog::new(1, vec![subsystem]).unwrap())
}

const UUID: Uuid = Uuid::from_u128(7);

fn lasting(key: u64) -> Command {
    let Command::Register { action, ignore_key, key: current, .. } = register(key) else { unreachable!() };
    Command::Register { action, ignore_key, persist: Some(true), key: current, new_key: key }
}

#[test]
fn a_change_is_kept_then_installed_everywhere_then_answered() {
    let mut registrar = registrar(2);
    registrar.ask(1, UUID, A, lasting(10));
    registrar.ask(2, UUID, B, register(20));
    let Some(Action::Keep(keep)) = registrar.poll() else { panic!("not kept first") };
    assert_eq!(keep.state.unwrap().registrants.len(), 1);
    assert!(registrar.poll().is_none(), "one at a time");
    registrar.on_kept(UUID, keep.number, true);
    let Some(Action::Install(install)) = registrar.poll() else { panic!("not installed") };
    registrar.on_installed(UUID, install.number);
    assert!(registrar.poll().is_none() && !registrar.is_idle(), "one reactor is missing");
    registrar.on_installed(UUID, install.number);
    assert!(matches!(registrar.poll(), Some(Action::Answer(1, Status::SUCCESS))));
    assert!(matches!(registrar.poll(), Some(Action::Keep(_))), "and now the next");
}

#[test]
fn what_cannot_be_kept_does_not_happen() {
    let mut registrar = registrar(1);
    registrar.ask(1, UUID, A, lasting(10));
    let Some(Action::Keep(keep)) = registrar.poll() else { panic!("not kept first") };
    registrar.on_kept(UUID, keep.number, false);
    assert!(matches!(registrar.poll(), Some(Action::Answer(1, Status::INTERNAL))));
    registrar.ask(2, UUID, A, acquire(Kind::WriteExclusive, 10));
    assert!(matches!(registrar.poll(), Some(Action::Answer(2, Status::RESERVATION_CONFLICT))));
    registrar.ask(3, Uuid::from_u128(9), A, register(1));
    assert!(matches!(registrar.poll(), Some(Action::Answer(3, Status::INVALID_NAMESPACE))));
    assert!(registrar.is_idle());
}

#[test]
fn protection_is_nobodys_and_is_kept_without_the_rest() {
    let mut bench = Bench::held(Kind::ExclusiveAccess);
    bench.ok([0; 16], Command::Protect(true));
    assert_eq!(bench.state.rights(&A), Rights { protected: true, ..Rights::ALL });
    assert_eq!(bench.state.rights(&C), Rights { read: false, write: false, protected: true });
    assert_eq!(bench.state.kept(), Some(State { protected: true, ..State::default() }));
    bench.ok(A, Command::Clear { key: 10 });
    assert!(bench.state.protected, "a host clears reservations, and nothing else");
    bench.ok([0; 16], Command::SetPersistence(true));
    assert_eq!(bench.state.kept().as_ref(), Some(&bench.state));
    bench.ok([0; 16], Command::Protect(false)).ok([0; 16], Command::SetPersistence(false));
    assert_eq!(bench.state.kept(), None);
}

#[test]
fn hosts_see_protection_once_it_is_in_force_everywhere() {
    let mut registrar = registrar(2);
    registrar.ask(1, UUID, [0; 16], Command::Protect(true));
    let Some(Action::Keep(keep)) = registrar.poll() else { panic!("not kept first") };
    assert!(keep.state.unwrap().protected);
    registrar.on_kept(UUID, keep.number, true);
    let Some(Action::Install(install)) = registrar.poll() else { panic!("not installed") };
    registrar.on_installed(UUID, install.number);
    assert!(registrar.poll().is_none());
    registrar.on_installed(UUID, install.number);
    assert!(matches!(registrar.poll(), Some(Action::Answer(1, Status::SUCCESS))));
    assert!(matches!(registrar.poll(), Some(Action::Show(UUID))));
    registrar.ask(2, UUID, A, register(10));
    assert!(matches!(registrar.poll(), Some(Action::Install(_))), "what is kept stays as it is");
}

#[test]
fn what_need_not_last_is_not_written() {
    let mut registrar = registrar(1);
    registrar.ask(1, UUID, A, register(10));
    let Some(Action::Install(install)) = registrar.poll() else { panic!("not installed at once") };
    registrar.on_installed(UUID, install.number);
    assert!(matches!(registrar.poll(), Some(Action::Answer(1, Status::SUCCESS))));
}

#[test]
fn a_reservation_that_is_passed_on_is_released_only_if_its_type_changes() {
    for (kind, told) in [(Kind::WriteExclusiveRegistrantsOnly, 0), (Kind::ExclusiveAccessRegistrantsOnly, 1)]
    {
        let mut bench = Bench::held(Kind::WriteExclusiveRegistrantsOnly);
        bench.ok(C, register(30)).ok(B, preempt(kind, 20, 10));
        let released = bench.notices.iter().filter(|&&one| one == (C, Notification::ReservationReleased));
        assert_eq!(released.count(), told, "{kind}");
    }
}
