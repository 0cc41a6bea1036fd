//! The controller: what a host talks to on its admin queue. It knows no transport, clock or socket: commands
//! and the time go in, answers and [`Event`]s come out, the same from the same.
//!
//! A controller lives on one reactor; its I/O queues may be on others, which ask it by [`Controller::join_queue`]
//! and then do without it. A discovery controller is this same machine with another view of the catalog.
mod async_event;
mod connect;
mod discovery;
mod error_log;
mod features;
mod identify;
mod keep_alive;
mod log_page;
mod properties;
mod reservation_log;
#[cfg(test)]
mod tests;
mod timestamp;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ironside_common::nvme::admin::{self, Abort};
use ironside_common::nvme::fabrics::{PropertyGet, PropertySet};
use ironside_common::nvme::log_page::AnaState;
use ironside_common::nvme::property::Version;
use ironside_common::nvme::{AdminOpcode, Command, FabricsType, Nqn, Status, Transfer};
use ironside_common::time::Time;
use uuid::Uuid;

use self::async_event::{AsyncEvents, Notice};
pub use self::connect::{Admission, Refusal};
use self::error_log::ErrorLog;
use self::keep_alive::KeepAlive;
use self::properties::{Change, Registers};
use self::reservation_log::ReservationLog;
use self::timestamp::Timestamp;
use crate::catalog::{Catalog, Key, Namespace, Subsystem};
use crate::qpair::{Counts, Failure};
use crate::reservation::HostId;

/// The version of the specification controllers follow. From 2.0 on hosts ask for the structures which are
/// independent of command sets, and learn there which namespaces need no flush.
const VERSION: Version = Version::new(2, 0, 0);

/// What is to become of an admin command.
#[must_use = "a command is owed a response"]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Answer it now; `length` bytes of data were written for the host.
    Complete { status: Status, result: u64, length: u32 },
    /// Answer it by a later [`Event::AsyncEvent`], the oldest first.
    Hold,
    /// Reservations of this namespace shall outlast a loss of power or not: answer once it is so.
    SetPersistence { nsid: u32, persist: bool },
    /// Answer whether they do.
    GetPersistence { nsid: u32 },
    /// This namespace takes no writes from now on, or does again: answer once it is so, and what was written is durable.
    Protect { nsid: u32, protect: bool },
    /// Answer with the identifiers, from this one on, of the controllers of its subsystem which see the namespace, or of
    /// all.
    ListControllers { nsid: Option<u32>, first: u16 },
    /// Abort that command of an I/O queue if it can be, then answer: result 0 if it was, else 1.
    Abort { sqid: u16, cid: u16 },
}

/// What a controller has to say by itself.
#[must_use]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The oldest held command succeeds with this result.
    AsyncEvent { result: u32 },
    /// The oldest held command ends without an answer.
    Forget,
    /// The host disabled the controller or shut it down: its I/O queues end.
    Disabled,
    /// The controller ends, and all of its queues with it.
    Fatal { why: &'static str },
}

/// One controller, from its Connect to the end of its admin queue.
#[derive(Debug)]
pub struct Controller {
    catalog: Arc<Catalog>,
    /// What it shows: a subsystem and its namespaces, or where which subsystem can be reached.
    subnqn: Nqn,
    admission: Admission,
    host_nqn: Nqn,
    host_id: HostId,
    created: Time,
    timestamp: Timestamp,
    registers: Registers,
    keep_alive: KeepAlive,
    notices: AsyncEvents,
    errors: ErrorLog,
    /// Namespaces which changed since the host last read the list of them.
    changed: BTreeSet<u32>,
    /// Changes of the access log since the controller was made.
    access_changes: u64,
    reservations: ReservationLog,
    /// Namespaces which hosts have write protected.
    protected: BTreeSet<Uuid>,
    /// Whether a queue has joined, by its identifier; the admin queue always has.
    queues: Vec<bool>,
    /// I/O queues granted by the Number of Queues feature.
    queues_granted: u16,
    events: VecDeque<Event>,
    /// What its queues did, when the log pages were last asked for.
    counts: Counts,
}

/// The answer to a command that succeeded.
struct Reply {
    result: u64,
    length: u32,
}

impl Controller {
    #[must_use]
    pub const fn cntlid(&self) -> u16 {
        self.admission.cntlid
    }

    #[must_use]
    pub const fn host_nqn(&self) -> &Nqn {
        &self.host_nqn
    }

    #[must_use]
    pub const fn host_id(&self) -> &HostId {
        &self.host_id
    }

    #[must_use]
    pub const fn subnqn(&self) -> &Nqn {
        &self.subnqn
    }

    /// Whether the host has enabled it.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.registers.is_ready()
    }

    /// Executes a command of the admin queue whose data pointer was found to fit it
    /// ([`ironside_common::nvme::admin::transfer`]): `data` came from the host, `out` goes to it.
    pub fn handle_command(&mut self, now: Time, command: &Command, data: &[u8], out: &mut [u8]) -> Outcome {
        self.keep_alive.note_activity(now);
        match self.execute(now, command, data, out) {
            Ok(outcome) => outcome,
            Err(status) => {
                self.errors.record(0, command.cid.get(), status, command.nsid.get());
                Outcome::Complete { status: status.with_more(true), result: 0, length: 0 }
            }
        }
    }

    /// What all its queues have done since it was made.
    pub fn note_counts(&mut self, counts: Counts) {
        self.counts = counts;
    }

    /// So many commands failed on a queue without having come here; of the last of them more is known.
    pub fn note_failures(&mut self, sqid: u16, count: u64, last: Failure) {
        self.errors.skip(count - 1);
        self.errors.record(sqid, last.cid, Status::from_field(last.status_field), last.nsid);
    }

    /// There was a command on some queue of this controller, at `at` or since it was last noted.
    pub fn note_activity(&mut self, at: Time) {
        self.keep_alive.note_activity(at);
    }

    /// A namespace is write protected, or not any more.
    pub fn set_protected(&mut self, uuid: Uuid, protected: bool) {
        if protected {
            self.protected.insert(uuid);
        } else {
            self.protected.remove(&uuid);
        }
    }

    /// Every reactor has it: the host may be told.
    pub fn note_protection(&mut self, uuid: Uuid) {
        let Ok(subsystem) = self.subsystem() else { return };
        let seen = subsystem.namespaces_for(&self.host_nqn).find(|namespace| namespace.uuid == uuid);
        if let Some(nsid) = seen.map(|namespace| namespace.nsid) {
            self.changed.insert(nsid);
            self.notices.raise(Notice::Namespaces);
        }
    }

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.keep_alive.deadline()
    }

    /// The time came, or is near; too early does no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.keep_alive.expire(now) {
            self.registers.fail();
            self.events.push_back(Event::Fatal { why: "the host's keep alive did not come" });
        }
    }

    /// The next thing to be done.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| self.notices.poll())
    }

    /// Goes on with a new version of the catalog. The host hears of what changed for it.
    pub fn catalog_changed(&mut self, catalog: &Arc<Catalog>) {
        let old = std::mem::replace(&mut self.catalog, Arc::clone(catalog));
        if self.is_discovery() {
            let entries = |catalog| discovery::entries(catalog, &self.host_nqn, self.admission.local);
            if entries(&old).ne(entries(catalog)) {
                self.notices.raise(Notice::Discovery);
            }
            return;
        }
        match (old.subsystem(&self.subnqn), catalog.subsystem(&self.subnqn)) {
            (_, None) => self.events.push_back(Event::Fatal { why: "its subsystem was removed" }),
            (_, Some(new)) if !new.allows(&self.host_nqn) => {
                self.events.push_back(Event::Fatal { why: "its host is not allowed any more" });
            }
            (_, Some(new)) if !new.is_reached_at(self.admission.local) => {
                self.events.push_back(Event::Fatal { why: "it is not reached at this address any more" });
            }
            (Some(old), Some(new)) if must_authenticate(old.key(&self.host_nqn), new.key(&self.host_nqn)) => {
                self.events.push_back(Event::Fatal { why: "its host has to authenticate with another key" });
            }
            (None, Some(_)) => {}
            (Some(old), Some(new)) => {
                self.note_changed_namespaces(old, new);
                self.note_changed_access(old, new);
            }
        }
    }

    /// Which groups there are, of which namespaces, and in which states: what the access log says.
    fn note_changed_access(&mut self, old: &Subsystem, new: &Subsystem) {
        let access = |of: &Subsystem| -> Vec<(u32, u32, AnaState)> {
            let said = of.namespaces_for(&self.host_nqn).map(|one| (one.nsid, one.ana_group));
            said.map(|(nsid, group)| (nsid, group, of.ana_state(group, self.admission.local))).collect()
        };
        if access(old) != access(new) {
            self.access_changes += 1;
            self.notices.raise(Notice::Access);
        }
    }

    fn note_changed_namespaces(&mut self, old: &Subsystem, new: &Subsystem) {
        let host = &self.host_nqn;
        let differs = |nsid: &u32| match (old.namespace_for(host, *nsid), new.namespace_for(host, *nsid)) {
            (Some(old), Some(new)) => !old.looks_like(new),
            _ => true,
        };
        let seen = old.namespaces_for(host).chain(new.namespaces_for(host));
        let differing: Vec<u32> = seen.map(|namespace| namespace.nsid).filter(differs).collect();
        if !differing.is_empty() {
            self.changed.extend(differing);
            self.notices.raise(Notice::Namespaces);
        }
    }

    fn execute(
        &mut self,
        now: Time,
        command: &Command,
        data: &[u8],
        out: &mut [u8],
    ) -> Result<Outcome, Status> {
        if command.fuse() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if let Some(fabrics_type) = command.fabrics_type() {
            return self.execute_fabrics(now, fabrics_type, command).map(Outcome::from);
        }
        if !self.registers.is_ready() {
            return Err(Status::COMMAND_SEQUENCE);
        }
        // Structures have their size: only so much room lets them be written without a check each.
        if let Transfer::ToHost(length) = admin::transfer(command)?
            && usize::try_from(length) != Ok(out.len())
        {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        match AdminOpcode(command.opcode) {
            AdminOpcode::KEEP_ALIVE => Ok(Reply::result(0).into()),
            AdminOpcode::ASYNC_EVENT_REQUEST => self.notices.hold().map(|()| Outcome::Hold),
            AdminOpcode::IDENTIFY => self.identify(command, out),
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(now, command, out).map(Outcome::from),
            AdminOpcode::SET_FEATURES => self.set_features(now, command, data),
            AdminOpcode::GET_FEATURES => self.get_features(now, command, out),
            AdminOpcode::ABORT => Ok(self.abort(Abort::parse(command))),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn execute_fabrics(
        &mut self,
        now: Time,
        fabrics_type: FabricsType,
        command: &Command,
    ) -> Result<Reply, Status> {
        match fabrics_type {
            FabricsType::PROPERTY_GET => self.registers.get(&PropertyGet::parse(command)).map(Reply::result),
            FabricsType::PROPERTY_SET => {
                match self.registers.set(&PropertySet::parse(command))? {
                    Change::None => {}
                    Change::Enabled => self.keep_alive.note_activity(now),
                    Change::Disabled => {
                        self.events.extend(self.notices.release());
                        self.events.push_back(Event::Disabled);
                    }
                }
                Ok(Reply::result(0))
            }
            FabricsType::CONNECT => Err(Status::COMMAND_SEQUENCE),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// A command of the admin queue was answered before anyone could abort it, or is an event request, which
    /// need not be abortable.
    fn abort(&self, abort: Abort) -> Outcome {
        match self.queues.get(usize::from(abort.sqid)) {
            Some(true) if abort.sqid != 0 => Outcome::Abort { sqid: abort.sqid, cid: abort.cid },
            _ => Reply::result(Abort::NOT_ABORTED).into(),
        }
    }

    /// A catalog without its subsystem ends the controller, so that only the last commands before the end do
    /// not find it. The discovery subsystem is in no catalog.
    fn subsystem(&self) -> Result<&Subsystem, Status> {
        self.catalog.subsystem(&self.subnqn).ok_or(Status::INVALID_NAMESPACE)
    }

    /// The namespace of a number, if its host sees one there.
    fn namespace(&self, nsid: u32) -> Result<Option<&Namespace>, Status> {
        Ok(self.subsystem()?.namespace_for(&self.host_nqn, nsid))
    }

    /// Whether another target serves its subsystem too.
    fn is_shared(&self) -> bool {
        self.subsystem().is_ok_and(Subsystem::is_shared)
    }

    /// MDTS: the longest transfer in pages of 4 KiB, as a binary logarithm.
    fn mdts(&self) -> u8 {
        u8::try_from((self.admission.transfer_max / 4096).ilog2()).expect("a logarithm of 32 bits")
    }

    fn is_discovery(&self) -> bool {
        self.subnqn.is_discovery()
    }
}

/// Whether what a host has proven is not enough any more.
fn must_authenticate(old: Option<&Key>, new: Option<&Key>) -> bool {
    match (old, new) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(old), Some(new)) => new.disconnect_on_change && old.policy != new.policy,
    }
}

impl Reply {
    const fn result(result: u64) -> Self {
        Self { result, length: 0 }
    }

    /// All of `out` is data for the host.
    fn data(out: &[u8]) -> Self {
        Self { result: 0, length: u32::try_from(out.len()).expect("a transfer has a limit") }
    }
}

impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        Self::Complete { status: Status::SUCCESS, result: reply.result, length: reply.length }
    }
}
