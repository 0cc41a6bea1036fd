//! The host: one association with one controller, kept up for as long as its user wants it.
//!
//! [`Host`] is a protocol machine: it takes events, times and requests, and acts on the verbs it is handed with
//! each call. It owns no socket, clock, thread or lock. What it is doing is its [`Phase`]:
//!
//! ```text
//!          start            ready                 fault, or asked to close
//!   Idle ────────► Setup ─────────► Live ───────────────► Ending ──► Over
//!                    ▲  └── failed ──────────────────────►  │
//!                    └───────── Waiting ◄───────────────────┘ again
//! ```
//!
//! While it is not `Live`, requests are held; parts of requests that were with the lost controller are sent
//! again on the next one, once the old queue pairs are gone and nobody can reach their buffers any more.
mod admin;
mod authentication;
mod controller;
mod discovery;
mod ending;
mod error;
mod events;
mod fault;
mod fence;
mod io;
mod keep_alive;
mod marks;
mod namespace;
mod options;
mod passed;
mod queue;
mod reauthentication;
mod reconnect;
mod requests;
mod scan;
mod setup;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io as std_io;
use std::rc::Rc;
use std::time::Duration;

use ironside_common::memory::{Memory, Region};
use ironside_common::nvme::log_page::AnaState;
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, HostVerbs, QpHandle, Sge};

use crate::volume::{Completed, Geometry, IoError, Request, State, Volume};
use ending::Then;
use keep_alive::KeepAlive;
use marks::{Mark, Marks};
use queue::Queue;
use reauthentication::Reauthentication;
use reconnect::{Reconnect, ReconnectPolicy};
use requests::{Part, Requests};
use scan::Scan;
use setup::{Association, Setup};

pub use controller::Controller;
pub use discovery::DiscoveryLog;
pub use error::{ConnectError, Doing, Incompatible};
pub use fault::Fault;
pub use namespace::{IDENTIFY_LENGTH, Namespace, NamespaceError, NamespaceIdentity};
pub use options::{ADMIN_QUEUE_SIZE, HostOptions, IO_QUEUES_MAX, OptionsError, Role};
pub use passed::{Answer, Passed, PassedData};
pub use queue::{MAX_QUEUE_SIZE, Refusal};
pub use scan::ScanError;

/// Between two looks for commands which are not answered.
const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What has happened that a user may want to know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostEvent {
    /// The association stands, for the first time or again; namespaces are known.
    Connected,
    /// It is lost. Requests are held.
    Lost(Fault),
    /// It has been lost for so long that requests fail until it stands again.
    FailsFast,
    /// An attempt to reconnect has failed; more follow.
    AttemptFailed(ConnectError),
    /// It is over, and this is why; every request fails.
    Failed(ConnectError),
    /// It is over, as asked.
    Closed,
    /// A namespace has another size, has gone or has come back. By its index.
    NamespaceChanged(usize),
    /// A namespace was found that was not there before. By its index.
    NamespaceAdded(usize),
    /// The state of an ANA group is another one.
    AccessChanged,
    /// Another host did something to reservations which this one shares.
    Notified(ReservationNotice),
    /// So many queues have authenticated again.
    Reauthenticated { queues: u16 },
    /// They have not, and nothing else has changed: whether the connection goes on is the controller's to say.
    ReauthenticationFailed(ConnectError),
}

/// One entry of the log of reservation notifications.
#[derive(Clone, Copy, Debug, serde::Deserialize, Eq, PartialEq, serde::Serialize)]
pub struct ReservationNotice {
    /// Its number in the log of the controller it came from.
    pub count: u64,
    /// What happened, as on the wire: [`ironside_common::nvme::reservation::Notification`].
    pub kind: u8,
    pub nsid: u32,
}

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Commands that have ended, whatever came of them.
    pub commands: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Commands the controller refused.
    pub errors: u64,
    /// Associations made after the first.
    pub reconnects: u64,
}

impl Counters {
    /// Those of two hosts together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
            errors: self.errors + other.errors,
            reconnects: self.reconnects + other.reconnects,
        }
    }
}

/// Whose command it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Owner {
    /// The current step of setting up, of a scan, or of shutting down.
    Step,
    KeepAlive,
    AsyncEvent,
    /// A message of an authentication while the association stands.
    Authentication,
    /// With what its memory was marked, if it reads.
    Part(Part, Mark),
}

#[derive(Debug)]
enum Phase {
    Idle,
    Setup(Box<Setup>),
    Live(Box<Live>),
    /// The controller was asked to shut down.
    Shutdown {
        give_up_at: Time,
        /// When to look again whether it has; nothing while a command is under way.
        look_at: Option<Time>,
    },
    /// Every queue pair is being ended.
    Ending(Then),
    Waiting {
        until: Time,
    },
    Over,
}

#[derive(Debug)]
struct Live {
    keep_alive: KeepAlive,
    scan: Option<Scan>,
    /// The controller announced a change which the scan under way may have missed.
    rescan: bool,
    /// So it did, or a status did, of the state of a group.
    reread_access: bool,
    /// So it did, of reservations.
    notified: bool,
    next_timeout_check: Time,
    reauthentication: Reauthentication,
    /// Asked to close: when to stop waiting for commands in flight.
    close_by: Option<Time>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Host {
    options: HostOptions,
    memory: Rc<Memory>,
    scratch: Scratch,
    /// What the last admin command read.
    page: Box<[u8; IDENTIFY_LENGTH]>,
    phase: Phase,
    /// By queue identifier: the admin queue first.
    queues: Vec<Queue<Owner>>,
    /// The queue pair which is being connected.
    dialing: Option<QpHandle>,
    /// Where to look first for a queue with room.
    next_queue: usize,
    association: Option<Association>,
    namespaces: Vec<Namespace>,
    /// The state of each ANA group by this controller, as its log had it last.
    access: Vec<(u32, AnaState)>,
    requests: Requests,
    marks: Marks,
    reconnect: Reconnect,
    /// Jobs given out so far.
    jobs: u64,
    closing: bool,
    /// Requests fail until there is a connection again.
    fails_fast: bool,
    events: VecDeque<HostEvent>,
    counters: Counters,
}

impl Host {
    /// A host which does nothing yet. Its scratch memory is registered with `memory`.
    ///
    /// # Errors
    /// When the system has no memory.
    ///
    /// # Panics
    /// If the options are not valid: [`HostOptions::check`] says.
    pub fn new(options: HostOptions, memory: Rc<Memory>) -> std_io::Result<Self> {
        assert_eq!(options.check(), Ok(()), "options are checked where they come from");
        let policy = ReconnectPolicy {
            reconnect_delay: options.reconnect_delay,
            ctrl_loss_tmo: options.ctrl_loss_tmo,
            fast_io_fail_tmo: options.fast_io_fail_tmo.filter(|_| !options.one_of_many),
        };
        let commands = usize::from(options.nr_io_queues) * usize::from(options.queue_size);
        Ok(Self {
            scratch: Scratch::new(&memory, commands)?,
            memory,
            page: Box::new([0; IDENTIFY_LENGTH]),
            phase: Phase::Idle,
            queues: Vec::new(),
            dialing: None,
            next_queue: 0,
            association: None,
            namespaces: Vec::new(),
            access: Vec::new(),
            requests: Requests::new(options.requests, commands, options.one_of_many, options.one_of_cores),
            marks: Marks::new(options.marks),
            reconnect: Reconnect::new(policy),
            jobs: 0,
            closing: false,
            fails_fast: false,
            events: VecDeque::new(),
            counters: Counters::default(),
            options,
        })
    }

    /// Begins to connect. [`HostEvent::Connected`] or [`HostEvent::Failed`] follows: the first connection is
    /// tried once.
    pub fn start<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        if matches!(self.phase, Phase::Idle) {
            self.begin_setup(verbs, now);
        }
    }

    /// Ends the association in good order, whatever it is doing: new and held requests fail, those with the
    /// controller get a moment, then it is told. [`HostEvent::Closed`] follows.
    pub fn close<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        self.begin_close(verbs, now);
    }

    /// Fails, from now on, every new request and those held for want of a connection. The association
    /// itself goes on.
    pub fn fail_fast(&mut self) {
        self.closing = true;
        self.refuse(IoError::Closing);
    }

    /// Takes a request for the namespace of this index.
    ///
    /// # Errors
    /// Gives it back if there is no room for it now.
    ///
    /// # Panics
    /// If there is no such namespace.
    pub fn submit(&mut self, namespace: usize, request: Request) -> Result<(), Request> {
        let Namespace { geometry, limits, .. } = &self.namespaces[namespace];
        self.requests.submit(namespace, request, geometry, limits)
    }

    /// Whether [`Self::submit`] would take one more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.requests.has_room()
    }

    /// Sends what was submitted and does what is due. To be called once a turn, after events and requests.
    /// Says whether anything was done.
    pub fn turn<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) -> bool {
        let due = self.deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.on_time(verbs, now);
        }
        self.issue(verbs, now) || due
    }

    /// When [`Self::turn`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let earliest = |times: &[Option<Time>]| times.iter().copied().flatten().min();
        let of_phase = match &self.phase {
            Phase::Idle | Phase::Ending(_) | Phase::Over => None,
            Phase::Setup(setup) => earliest(&[Some(setup.deadline()), self.next_consequence()]),
            // Asked to close with nothing in flight: at once.
            Phase::Live(live) if live.close_by.is_some() && self.commands_in_flight() == 0 => {
                Some(Time::ZERO)
            }
            Phase::Live(live) => earliest(&[
                live.keep_alive.deadline(),
                live.close_by,
                self.awaits_answers(live).then_some(live.next_timeout_check),
                // Where every queue is full, a response comes first.
                self.requests.deadline().filter(|_| self.queues.iter().skip(1).any(Queue::has_room)),
            ]),
            Phase::Shutdown { give_up_at, look_at } => earliest(&[Some(*give_up_at), *look_at]),
            Phase::Waiting { until } => earliest(&[Some(*until), self.next_consequence()]),
        };
        earliest(&[of_phase, self.requests.next_late()])
    }

    /// The next request that has ended, and the index of its namespace.
    pub fn next_completed(&mut self) -> Option<(usize, Completed)> {
        self.requests.next_completed()
    }

    /// The next thing that has happened.
    pub fn next_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    #[must_use]
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Over => State::Failed,
            _ if self.closing => State::Failed,
            Phase::Live(_) => State::Connected,
            _ if self.association.is_none() => State::Connecting,
            _ => State::Reconnecting,
        }
    }

    /// Whether it is over for good: nothing follows, and no queue pair is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// What is known of the namespaces, in the order they were found; an index stays what it names.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// The state of the namespace of this index by this controller, as far as it says.
    #[must_use]
    pub fn ana_state(&self, namespace: usize) -> AnaState {
        let group = self.namespaces[namespace].ana_group;
        let known = self.access.iter().find(|(one, _)| *one == group);
        known.map_or(AnaState::OPTIMIZED, |(_, state)| *state)
    }

    /// Whether this queue pair is one of its own.
    #[must_use]
    pub fn owns(&self, qp: QpHandle) -> bool {
        self.dialing == Some(qp) || self.queues.iter().any(|queue| queue.qp() == qp)
    }

    /// Namespaces that cannot be used, and why.
    #[must_use]
    pub fn skipped(&self) -> &[(u32, NamespaceError)] {
        self.association.as_ref().map_or(&[], |association| &association.skipped)
    }

    /// The controller of the current association, or of the last one.
    #[must_use]
    pub fn controller(&self) -> Option<&Controller> {
        self.association.as_ref().map(|association| &association.controller)
    }

    /// What the controller was called in the current association, or in the last one.
    #[must_use]
    pub fn cntlid(&self) -> Option<u16> {
        self.association.as_ref().map(|association| association.cntlid)
    }

    /// The discovery log, for [`Role::Discovery`].
    #[must_use]
    pub fn discovered(&self) -> Option<&DiscoveryLog> {
        self.association.as_ref().map(|association| &association.discovered)
    }

    /// What came of the command, for [`Role::Command`].
    #[must_use]
    pub fn answer(&self) -> Option<&Answer> {
        self.association.as_ref().map(|association| &association.answer)
    }

    /// How long each answer took, for [`Role::Probe`].
    #[must_use]
    pub fn round_trips(&self) -> &[Duration] {
        self.association.as_ref().map_or(&[], |association| &association.round_trips)
    }

    /// Attempts to reconnect that have failed since the connection was lost.
    #[must_use]
    pub fn failed_attempts(&self) -> usize {
        // One more is under way, or waited for.
        self.reconnect.attempts().saturating_sub(1)
    }

    /// When reconnecting ends for good; nothing while connected, or if it never does.
    #[must_use]
    pub fn gives_up_at(&self) -> Option<Time> {
        self.reconnect.gives_up_at()
    }

    #[must_use]
    pub fn options(&self) -> &HostOptions {
        &self.options
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// I/O queues of the current association.
    #[must_use]
    pub fn io_queues(&self) -> usize {
        self.queues.len().saturating_sub(1)
    }

    /// The volume of this index, for whoever wants one without the rest.
    ///
    /// # Panics
    /// If there is no such namespace.
    pub fn volume(&mut self, namespace: usize) -> HostVolume<'_> {
        assert!(namespace < self.namespaces.len(), "no namespace {namespace}");
        HostVolume { host: self, namespace }
    }

    fn commands_in_flight(&self) -> usize {
        self.queues.iter().skip(1).map(Queue::outstanding).sum()
    }

    /// When something follows from having been without a connection for so long.
    fn next_consequence(&self) -> Option<Time> {
        let fails_fast_at = self.reconnect.fails_fast_at().filter(|_| !self.fails_fast);
        [fails_fast_at, self.reconnect.gives_up_at()].into_iter().flatten().min()
    }

    fn awaits_answers(&self, live: &Live) -> bool {
        live.scan.is_some() || live.reauthentication.is_under_way() || self.commands_in_flight() > 0
    }

    /// Ends everything that waits, and all that will come, with `error`.
    fn refuse(&mut self, error: IoError) {
        self.requests.refuse(error);
    }
}

/// One namespace of a host.
#[derive(Debug)]
pub struct HostVolume<'a> {
    host: &'a mut Host,
    namespace: usize,
}

impl Volume for HostVolume<'_> {
    fn geometry(&self) -> Geometry {
        self.host.namespaces[self.namespace].geometry
    }

    fn state(&self) -> State {
        self.host.state()
    }

    fn has_room(&self) -> bool {
        self.host.has_room()
    }

    fn submit(&mut self, request: Request) -> Result<(), Request> {
        self.host.submit(self.namespace, request)
    }
}

/// Registered memory for what the host itself sends and reads.
#[derive(Clone, Copy, Debug)]
struct Scratch {
    /// For the data of the one admin or Connect command under way.
    page: Sge,
    /// Of the same size, for messages of an authentication beside others.
    authentication: Sge,
    /// Room for the range of one discard for each command there can be.
    ranges: Sge,
}

impl Scratch {
    /// Bytes of one Dataset Management range.
    const RANGE_LENGTH: u32 = 16;

    fn new(memory: &Memory, commands: usize) -> std_io::Result<Self> {
        const PAGE: usize = IDENTIFY_LENGTH;
        let ranges = commands * Self::RANGE_LENGTH as usize;
        let lkey = memory.register(Region::new(2 * PAGE + ranges.next_multiple_of(PAGE))?);
        let ranges = u32::try_from(ranges).map_err(std_io::Error::other)?;
        Ok(Self {
            page: memory.sge(lkey, 0, PAGE as u32),
            authentication: memory.sge(lkey, PAGE as u64, PAGE as u32),
            ranges: memory.sge(lkey, 2 * PAGE as u64, ranges),
        })
    }
}
