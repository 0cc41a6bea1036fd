//! The one place where reservations change: one command at a time for each namespace, through all that has to be done
//! before it is answered. It knows no reactor, file or connection: `A` is whoever asked.
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ironside_common::nvme::Status;
use ironside_common::nvme::reservation::Notification;
use uuid::Uuid;

use super::state::{Change, Command, HostId, State};
use crate::catalog::{Catalog, Subsystem};

/// What has to be done next. Each `Keep` and each `Install` is answered.
#[derive(Clone, Debug)]
pub enum Action<A> {
    /// Make it durable; then [`Registrar::on_kept`].
    Keep(Keep),
    /// Every reactor has to take it over; then [`Registrar::on_installed`], once for each.
    Install(Install),
    Answer(A, Status),
    Notify {
        uuid: Uuid,
        notices: Arc<[(HostId, Notification)]>,
    },
    /// Hosts see another write protection of this namespace.
    Show(Uuid),
}

/// A state which is to outlast a loss of power.
#[derive(Clone, Debug)]
pub struct Keep {
    pub uuid: Uuid,
    pub number: u64,
    /// Nothing if nothing is to be left of it after a loss of power.
    pub state: Option<Arc<State>>,
}

/// A state which is to be in force.
#[derive(Clone, Debug)]
pub struct Install {
    pub uuid: Uuid,
    pub number: u64,
    pub state: Arc<State>,
    /// Hosts whose outstanding commands are to end.
    pub aborted: Arc<[HostId]>,
}

/// The reservations of all namespaces.
#[derive(Debug)]
pub struct Registrar<A> {
    reactors: usize,
    namespaces: BTreeMap<Uuid, Entry<A>>,
    actions: VecDeque<Action<A>>,
    next_number: u64,
}

#[derive(Debug)]
struct Entry<A> {
    state: Arc<State>,
    /// Whether what is in the namespace outlasts a loss of power, and so its reservations may.
    lasting: bool,
    under_way: Option<UnderWay<A>>,
    waiting: VecDeque<(A, HostId, Command)>,
}

#[derive(Debug)]
struct UnderWay<A> {
    asker: A,
    number: u64,
    state: Arc<State>,
    notices: Vec<(HostId, Notification)>,
    aborted: Vec<HostId>,
    /// Whether its write protection changes.
    shows: bool,
    /// Reactors which do not have it yet, once it is kept.
    missing: Option<usize>,
}

impl<A> Registrar<A> {
    #[must_use]
    pub fn new(reactors: usize, catalog: &Catalog) -> Self {
        let mut registrar =
            Self { reactors, namespaces: BTreeMap::new(), actions: VecDeque::new(), next_number: 1 };
        registrar.on_catalog(catalog);
        registrar
    }

    /// Namespaces which were not there before begin as they were kept. One which goes stays known, with its
    /// reservations: it may come back.
    pub fn on_catalog(&mut self, catalog: &Catalog) {
        for namespace in catalog.subsystems().iter().flat_map(Subsystem::namespaces) {
            self.namespaces.entry(namespace.uuid).or_insert_with(|| Entry {
                state: namespace.kept.clone().unwrap_or_default(),
                lasting: namespace.medium.outlasts_power_loss(),
                under_way: None,
                waiting: VecDeque::new(),
            });
        }
    }

    /// A host asks for something.
    pub fn ask(&mut self, asker: A, uuid: Uuid, host: HostId, command: Command) {
        match self.namespaces.get_mut(&uuid) {
            Some(entry) => entry.waiting.push_back((asker, host, command)),
            None => self.actions.push_back(Action::Answer(asker, Status::INVALID_NAMESPACE)),
        }
        self.go_on(uuid);
    }

    /// It is durable, or could not be made so: then nothing has changed.
    pub fn on_kept(&mut self, uuid: Uuid, number: u64, kept: bool) {
        let Some(entry) = self.namespaces.get_mut(&uuid) else { return };
        if entry.under_way.as_ref().is_none_or(|change| change.number != number || change.missing.is_some()) {
            return;
        }
        if kept {
            self.install(uuid);
        } else if let Some(UnderWay { asker, .. }) = entry.under_way.take() {
            self.actions.push_back(Action::Answer(asker, Status::INTERNAL));
            self.go_on(uuid);
        }
    }

    /// One more reactor has it, and nothing that it forbids is under way there.
    pub fn on_installed(&mut self, uuid: Uuid, number: u64) {
        let Some(entry) = self.namespaces.get_mut(&uuid) else { return };
        let Some(under_way) = entry.under_way.as_mut().filter(|change| change.number == number) else {
            return;
        };
        let Some(missing) = &mut under_way.missing else { return };
        *missing = missing.saturating_sub(1);
        if *missing > 0 {
            return;
        }
        if let Some(UnderWay { asker, notices, shows, .. }) = entry.under_way.take() {
            self.actions.push_back(Action::Answer(asker, Status::SUCCESS));
            self.actions.extend(shows.then_some(Action::Show(uuid)));
            if !notices.is_empty() {
                self.actions.push_back(Action::Notify { uuid, notices: notices.into() });
            }
            self.go_on(uuid);
        }
    }

    pub fn poll(&mut self) -> Option<Action<A>> {
        self.actions.pop_front()
    }

    /// Whether nobody waits for anything.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.actions.is_empty() && self.namespaces.values().all(|entry| entry.under_way.is_none())
    }

    /// Takes up the next commands of a namespace until one needs something done.
    fn go_on(&mut self, uuid: Uuid) {
        let Some(entry) = self.namespaces.get_mut(&uuid) else { return };
        while entry.under_way.is_none()
            && let Some((asker, host, command)) = entry.waiting.pop_front()
        {
            match entry.state.apply(&host, &command) {
                Err(status) => self.actions.push_back(Action::Answer(asker, status)),
                Ok(change) if change.state == *entry.state => {
                    self.actions.push_back(Action::Answer(asker, Status::SUCCESS));
                }
                Ok(Change { state, notices, aborted }) => {
                    let number = self.next_number;
                    self.next_number += 1;
                    let kept = state.kept();
                    let keeps = entry.lasting && kept != entry.state.kept();
                    let shows = state.protected != entry.state.protected;
                    let state = Arc::new(state);
                    entry.under_way =
                        Some(UnderWay { asker, number, state, notices, aborted, shows, missing: None });
                    if keeps {
                        let state = kept.map(Arc::new);
                        self.actions.push_back(Action::Keep(Keep { uuid, number, state }));
                    } else {
                        return self.install(uuid);
                    }
                }
            }
        }
    }

    fn install(&mut self, uuid: Uuid) {
        let Some(entry) = self.namespaces.get_mut(&uuid) else { return };
        let Some(under_way) = &mut entry.under_way else { return };
        under_way.missing = Some(self.reactors);
        entry.state = Arc::clone(&under_way.state);
        let aborted = under_way.aborted.as_slice().into();
        let install = Install { uuid, number: under_way.number, state: Arc::clone(&entry.state), aborted };
        self.actions.push_back(Action::Install(install));
    }
}
