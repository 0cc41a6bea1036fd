//! What is agreed about one namespace, by reservations and write protection, and what each command makes of it (NVM Express base specification 2.2, section
//! 8.1.22). Hosts are told apart by their Host Identifier alone.
use ironside_common::nvme::Status;
use ironside_common::nvme::reservation::{AcquireAction, Kind, Notification, RegisterAction};

/// Who a host is, by its Connect.
pub type HostId = [u8; 16];

/// Most registrants: the report counts them in 16 bits.
const REGISTRANTS_MAX: usize = u16::MAX as usize;

/// A host which is registered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registrant {
    pub host_id: HostId,
    pub key: u64,
}

/// A reservation. The holder of a type which all registrants hold is whoever acquired it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Held {
    pub kind: Kind,
    pub holder: HostId,
}

/// All that is agreed about a namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// GEN of the report.
    pub generation: u32,
    /// By host identifier, ascending.
    pub registrants: Vec<Registrant>,
    pub held: Option<Held>,
    /// Whether the reservations outlast a loss of power.
    pub persist: bool,
    /// Whether anybody may write at all, which no host holds: it has nothing to do with the rest.
    pub protected: bool,
}

/// What a host may do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rights {
    pub read: bool,
    pub write: bool,
    /// The namespace takes no writes of anybody.
    pub protected: bool,
}

impl Rights {
    pub const ALL: Self = Self { read: true, write: true, protected: false };
}

/// What a host asks for, with the keys it brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    Register { action: RegisterAction, ignore_key: bool, persist: Option<bool>, key: u64, new_key: u64 },
    Acquire { action: AcquireAction, kind: Kind, key: u64, preempted_key: u64 },
    Release { kind: Option<Kind>, key: u64 },
    Clear { key: u64 },
    SetPersistence(bool),
    Protect(bool),
}

/// The next state, and who has to know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    pub state: State,
    pub notices: Vec<(HostId, Notification)>,
    /// Hosts whose outstanding commands end with this.
    pub aborted: Vec<HostId>,
}

impl State {
    /// What `host` may do (NVM Express base specification 2.2, figures 646 and 647).
    #[must_use]
    pub fn rights(&self, host: &HostId) -> Rights {
        let all = Rights { protected: self.protected, ..Rights::ALL };
        let Some(held) = self.held else { return all };
        let included = held.kind.includes_registrants() && self.registrant(host).is_some();
        if held.holder == *host && self.registrant(host).is_some() || included {
            return all;
        }
        Rights { read: !held.kind.excludes_reads(), write: false, ..all }
    }

    /// What is left of it after a loss of power, if anything is.
    #[must_use]
    pub fn kept(&self) -> Option<Self> {
        match (self.persist, self.protected) {
            (true, _) => Some(self.clone()),
            (false, true) => Some(Self { protected: true, ..Self::default() }),
            (false, false) => None,
        }
    }

    /// Whether `host` holds the reservation, alone or with all others.
    #[must_use]
    pub fn is_holder(&self, host: &HostId) -> bool {
        let holds = |held: Held| held.kind.is_held_by_all() || held.holder == *host;
        self.held.is_some_and(holds) && self.registrant(host).is_some()
    }

    #[must_use]
    pub fn registrant(&self, host: &HostId) -> Option<&Registrant> {
        let index = self.registrants.binary_search_by_key(host, |registrant| registrant.host_id).ok()?;
        Some(&self.registrants[index])
    }

    /// What becomes of it when `host` asks for this.
    ///
    /// # Errors
    /// What to answer: then nothing changes.
    pub fn apply(&self, host: &HostId, command: &Command) -> Result<Change, Status> {
        let mut next = Next::new(self, *host);
        match *command {
            Command::Register { action, ignore_key, persist, key, new_key } => {
                next.register(action, ignore_key, key, new_key)?;
                next.state.persist = persist.unwrap_or(self.persist);
            }
            Command::Acquire { action, kind, key, preempted_key } => {
                next.check_key(key)?;
                match action {
                    AcquireAction::Acquire => next.acquire(kind)?,
                    AcquireAction::Preempt => next.preempt(kind, preempted_key)?,
                    AcquireAction::PreemptAndAbort => {
                        next.preempt(kind, preempted_key)?;
                        next.aborted.clone_from(&next.removed);
                    }
                }
            }
            Command::Release { kind, key } => {
                next.check_key(key)?;
                next.release(kind)?;
            }
            Command::Clear { key } => {
                next.check_key(key)?;
                next.clear();
            }
            Command::SetPersistence(persist) => next.state.persist = persist,
            Command::Protect(protected) => next.state.protected = protected,
        }
        let Next { state, notices, aborted, .. } = next;
        Ok(Change { state, notices, aborted })
    }
}

/// A state on its way to the next.
struct Next {
    state: State,
    host: HostId,
    notices: Vec<(HostId, Notification)>,
    /// Whose registration was preempted.
    removed: Vec<HostId>,
    aborted: Vec<HostId>,
}

impl Next {
    fn new(state: &State, host: HostId) -> Self {
        let state = state.clone();
        Self { state, host, notices: Vec::new(), removed: Vec::new(), aborted: Vec::new() }
    }

    fn check_key(&self, key: u64) -> Result<(), Status> {
        let registrant = self.state.registrant(&self.host).filter(|registrant| registrant.key == key);
        registrant.map(|_| ()).ok_or(Status::RESERVATION_CONFLICT)
    }

    fn register(
        &mut self,
        action: RegisterAction,
        ignore_key: bool,
        key: u64,
        new_key: u64,
    ) -> Result<(), Status> {
        let own = self.state.registrant(&self.host).map(|registrant| registrant.key);
        match action {
            // Key 0 stands for no key where a registration is preempted.
            RegisterAction::Register | RegisterAction::Replace if new_key == 0 => {
                return Err(Status::INVALID_FIELD);
            }
            RegisterAction::Register if own.is_none_or(|own| own == new_key) => self.set_key(new_key)?,
            // Whoever ignores the key need not even be registered.
            RegisterAction::Replace if ignore_key || own == Some(key) => self.set_key(new_key)?,
            RegisterAction::Unregister if own.is_some_and(|own| ignore_key || own == key) => {
                let host = self.host;
                self.unregister(&host);
            }
            _ => return Err(Status::RESERVATION_CONFLICT),
        }
        self.changed();
        Ok(())
    }

    fn set_key(&mut self, key: u64) -> Result<(), Status> {
        let registrants = &mut self.state.registrants;
        match registrants.binary_search_by_key(&self.host, |registrant| registrant.host_id) {
            Ok(index) => registrants[index].key = key,
            Err(_) if registrants.len() == REGISTRANTS_MAX => return Err(Status::OPERATION_DENIED),
            Err(index) => registrants.insert(index, Registrant { host_id: self.host, key }),
        }
        Ok(())
    }

    /// One registration goes, and with it the reservation, if nobody holds it any more.
    fn unregister(&mut self, host: &HostId) {
        self.state.registrants.retain(|registrant| registrant.host_id != *host);
        let Some(held) = self.state.held else { return };
        let ends =
            if held.kind.is_held_by_all() { self.state.registrants.is_empty() } else { held.holder == *host };
        if ends {
            self.state.held = None;
            self.tell_released(held.kind);
        }
    }

    fn acquire(&mut self, kind: Kind) -> Result<(), Status> {
        match self.state.held {
            None => self.state.held = Some(Held { kind, holder: self.host }),
            Some(held) if held.kind == kind && self.state.is_holder(&self.host) => {}
            Some(_) => return Err(Status::RESERVATION_CONFLICT),
        }
        Ok(())
    }

    fn preempt(&mut self, kind: Kind, key: u64) -> Result<(), Status> {
        let Some(held) = self.state.held else { return self.preempt_registrations(key) };
        let replaces = if held.kind.is_held_by_all() {
            key == 0
        } else {
            self.state.registrant(&held.holder).is_some_and(|holder| holder.key == key)
        };
        if !replaces {
            return self.preempt_registrations(key);
        }
        let host = self.host;
        // Passed on, it is not released.
        self.state.held = None;
        // The holders go, the new one apart; that a key of 0 means all of them.
        self.remove(|registrant| registrant.host_id != host && (key == 0 || registrant.key == key));
        self.state.held = Some(Held { kind, holder: host });
        // Whoever is left has other rights now, whatever the types are.
        if held.kind != kind {
            self.tell_others(Notification::ReservationReleased);
        }
        self.changed();
        Ok(())
    }

    /// All registrations with this key go, the own one too if it has it.
    fn preempt_registrations(&mut self, key: u64) -> Result<(), Status> {
        if key == 0 {
            return Err(Status::INVALID_FIELD);
        }
        if self.state.registrants.iter().all(|registrant| registrant.key != key) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        self.remove(|registrant| registrant.key == key);
        self.changed();
        Ok(())
    }

    fn remove(&mut self, goes: impl Fn(&Registrant) -> bool) {
        let going: Vec<HostId> = self
            .state
            .registrants
            .iter()
            .filter(|registrant| goes(registrant))
            .map(|registrant| registrant.host_id)
            .collect();
        for host in going {
            self.unregister(&host);
            if host != self.host {
                self.notices.push((host, Notification::RegistrationPreempted));
                self.removed.push(host);
            }
        }
    }

    /// A registrant which does not hold the reservation releases nothing, successfully.
    fn release(&mut self, kind: Option<Kind>) -> Result<(), Status> {
        let Some(held) = self.state.held.filter(|_| self.state.is_holder(&self.host)) else { return Ok(()) };
        if kind != Some(held.kind) {
            return Err(Status::INVALID_FIELD);
        }
        self.state.held = None;
        self.tell_released(held.kind);
        Ok(())
    }

    fn clear(&mut self) {
        self.tell_others(Notification::ReservationPreempted);
        self.state.registrants.clear();
        self.state.held = None;
        self.changed();
    }

    /// Other registrants waited for it, if the type gives registrants rights.
    fn tell_released(&mut self, kind: Kind) {
        if kind.includes_registrants() {
            self.tell_others(Notification::ReservationReleased);
        }
    }

    fn tell_others(&mut self, notification: Notification) {
        let others = self.state.registrants.iter().filter(|registrant| registrant.host_id != self.host);
        self.notices.extend(others.map(|registrant| (registrant.host_id, notification)));
    }

    fn changed(&mut self) {
        self.state.generation = self.state.generation.wrapping_add(1);
    }
}
