//! An attached controller: a reactor thread which runs the host machine over software RDMA or an RDMA adapter,
//! and the exports above it. [`Attached`] is the handle of everyone else.
//!
//! **Several cores** are several reactors, each with a controller of its own: NVMe lets a host have as many as it likes.
//! So nothing of one core is ever another's: queues, keep alive, reconnects, the fence of late writes and the states of
//! paths are as they are with one core, and a request stays on the core on which it came. What has to hold across them:
//! a flush by one controller covers what was written by the others, since the cache is the namespace's (the namespace has to
//! be one that controllers share); and nobody is told of a write's failure while it may still be executed, because what is
//! written next may come by another core (see the host's fence).
mod carrier;
mod cores;
mod direct;
mod export;
mod inquiry;
mod provider;
mod reactor;
mod registration;
mod route;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ironside_common::auth::{Keys, Outcome};
use ironside_common::memory::SizeClass;
use ironside_common::provider::soft;
use ironside_common::reactor::{RingError, Sender, mailbox};
use ironside_common::verbs::Address;

use crate::host::{
    Answer, ConnectError, Controller, Counters, DiscoveryLog, HostEvent, HostOptions, Namespace,
    NamespaceError, OptionsError,
};
use crate::paths::{JobName, PathStatus, Policy};
use crate::volume::State;

pub use cores::{CORES_MAX, Core, Cores, CoresError};
pub use direct::{Direct, Lent, RegisterError, Registered};
pub use export::{Context, Export, Site};
pub use inquiry::{discover, inquire, pass, probe};
pub use provider::{Carried, Provider, ProviderError};
pub use registration::Registration;
pub use route::Route;

/// Letters a reactor may leave unread.
const MAILBOX_CAPACITY: usize = 64;
/// Events nobody has looked at yet; later ones are dropped.
const EVENTS_CAPACITY: usize = 256;
/// How long a reactor may take to answer a question.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Buffers for exports. Memory is taken from the system only as they are used.
const BUFFERS: [SizeClass; 4] = [
    SizeClass { size: 4 << 10, count: 2048 },
    SizeClass { size: 32 << 10, count: 512 },
    SizeClass { size: 128 << 10, count: 256 },
    SizeClass { size: 1 << 20, count: 64 },
];

/// Whether the stream is protected by CRC32C (RFC 5044). It is whenever either side asks for it.
#[derive(
    Clone, Copy, Debug, Default, serde::Deserialize, Eq, PartialEq, serde::Serialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Crc {
    /// Always
    #[default]
    On,
    /// Never: a target which asks for it is not connected to
    Off,
    /// If the target asks for it
    Peer,
}

impl Crc {
    fn settings(self) -> soft::Settings {
        let (crc, refuse_crc) = (self == Self::On, self == Self::Off);
        soft::Settings { crc, refuse_crc, ..soft::Settings::default() }
    }
}

/// Which controller to attach, and how.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    pub host: HostOptions,
    /// Where the same subsystem is reached too, by ways of their own.
    pub more_addresses: Vec<Address>,
    /// Which of several ways a request takes.
    pub policy: Policy,
    pub crc: Crc,
    pub provider: Provider,
    pub registration: Registration,
    /// The cores to run on, each with a controller of its own; one at least.
    pub cores: Vec<Core>,
    /// The buffers there are for exports, sizes ascending.
    pub buffers: Vec<SizeClass>,
}

impl AttachOptions {
    /// By one way, with CRC, on any core, with buffers for every purpose.
    #[must_use]
    pub fn new(host: HostOptions) -> Self {
        Self {
            host,
            more_addresses: Vec::new(),
            policy: Policy::default(),
            crc: Crc::On,
            provider: Provider::Auto,
            registration: Registration::Auto,
            cores: vec![Core::default()],
            buffers: BUFFERS.to_vec(),
        }
    }

    /// Every address, that of the host first.
    fn addresses(&self) -> Vec<Address> {
        std::iter::once(self.host.address).chain(self.more_addresses.iter().copied()).collect()
    }
}

/// Why a controller could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error("no RDMA adapter can be used: {0}")]
    Adapter(io::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Under `auto`, where an adapter owns the way.
    #[error("{software}; by the RDMA adapter on the way: {adapter}")]
    Neither { adapter: String, software: ConnectError },
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("no memory for buffers: {0}")]
    Memory(io::Error),
    #[error("no thread to run on: {0}")]
    Thread(io::Error),
    #[error("core {core} cannot be used: {source}")]
    Core { core: usize, source: io::Error },
    /// Of several cores.
    #[error("core {number} of {count} got no controller of its own: {source}")]
    One { number: usize, count: usize, source: Box<Self> },
    #[error(
        "another subsystem, or another namespace, answers at the same address: several cores take one target"
    )]
    Apart,
    #[error("its reactor ended unexpectedly; this is a bug")]
    Gone,
}

/// Why a namespace could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("the controller has no namespace {0}")]
    NoNamespace(u32),
    #[error("namespace {0} is exported already")]
    Twice(u32),
    #[error("namespace {0} is not one that controllers share, so one core alone can have it")]
    NotShared(u32),
    #[error("no more than 255 namespaces can be exported at once")]
    TooMany,
    #[error("the export could not be made: {0}")]
    Make(io::Error),
    #[error("its reactor has ended")]
    Gone,
}

/// What became known when the controller was attached.
#[derive(Clone, Debug)]
pub struct Description {
    pub carried: Carried,
    pub cntlid: u16,
    pub controller: Controller,
    pub namespaces: Vec<Namespace>,
    /// Namespaces that cannot be used, and why.
    pub skipped: Vec<(u32, NamespaceError)>,
    pub io_queues: usize,
    /// The discovery log, of a discovery controller.
    pub discovered: DiscoveryLog,
    /// What came of a command that was passed.
    pub answer: Answer,
    /// How long each answer took, if it was probed.
    pub round_trips: Vec<Duration>,
}

/// How an attached controller is doing.
#[derive(Clone, Debug)]
pub struct Status {
    pub state: State,
    /// How long it has been in this state.
    pub since: Duration,
    pub counters: Counters,
    pub cntlid: Option<u16>,
    pub io_queues: usize,
    pub controller: Option<Controller>,
    /// As they are now, those which are not there any more too.
    pub namespaces: Vec<Namespace>,
    /// The last thing that went wrong with the connection, while it is not made again.
    pub last_error: Option<String>,
    /// Attempts to reconnect that have failed.
    pub failed_attempts: usize,
    /// For how long reconnecting is still tried; nothing while connected, or if it goes on for ever.
    pub gives_up_in: Option<Duration>,
    pub paths: Vec<PathStatus>,
}

/// Makes an export in the reactor's thread.
pub type MakeExport = Box<dyn FnOnce(Site<'_>) -> io::Result<Box<dyn Export>> + Send>;

/// What reaches the reactor from other threads.
enum Letter {
    Export {
        nsid: u32,
        make: MakeExport,
        reply: SyncSender<Result<(), ExportError>>,
    },
    Status(SyncSender<Status>),
    /// Other secrets; how many associations authenticate by them is the answer.
    Rekey {
        keys: Arc<Keys>,
        reply: SyncSender<usize>,
    },
    Computed {
        name: JobName,
        outcome: Outcome,
    },
    FailFast,
    Close,
}

/// The handle of an attached controller, or of one for each core. Dropping it closes it.
pub struct Attached {
    /// By core.
    reactors: Vec<Running>,
    events: Receiver<HostEvent>,
}

/// The reactor of one core.
struct Running {
    letters: Sender<Letter>,
    description: Description,
    thread: JoinHandle<()>,
}

impl Attached {
    /// Connects to a controller on a reactor thread of its own, for each core. Waits until that is done; it is tried once.
    ///
    /// # Errors
    /// Why it failed.
    ///
    /// # Panics
    /// If there is no core in the options.
    pub fn attach(mut options: AttachOptions) -> Result<Self, AttachError> {
        assert!(!options.cores.is_empty(), "cores are counted where they come from");
        let count = options.cores.len();
        options.host.one_of_cores |= count > 1;
        options.host.check()?;
        let (event_sender, events) = sync_channel(EVENTS_CAPACITY);
        let mut attached = Self { reactors: Vec::with_capacity(count), events };
        for number in 0..count {
            let begun = Running::begin(&options, number, event_sender.clone());
            attached.reactors.push(begun.map_err(|source| match number {
                0 => source,
                _ => AttachError::One { number, count, source: Box::new(source) },
            })?);
        }
        if !attached.reactors.iter().skip(1).all(|other| cores::go_together(attached.description(), other)) {
            return Err(AttachError::Apart);
        }
        Ok(attached)
    }

    /// What became known when it was attached, on the first core.
    ///
    /// # Panics
    /// Never: there is one core at least.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.reactors[0].description
    }

    /// How many cores it has, each with a controller of its own.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.reactors.len()
    }

    /// Exports a namespace: `make` runs in the thread of the first core's reactor, where its result then lives.
    ///
    /// # Errors
    /// If there is no such namespace, it is exported already, or `make` fails.
    pub fn export(&self, nsid: u32, make: MakeExport) -> Result<(), ExportError> {
        self.reactors[0].export(nsid, make)
    }

    /// Exports a namespace on several cores, in parts which share it: each is made and lives on the core of its place.
    ///
    /// # Errors
    /// As [`Self::export`], and if the namespace is not one which controllers share.
    ///
    /// # Panics
    /// If there are more parts than cores.
    pub fn export_in_parts(
        &self,
        nsid: u32,
        parts: impl IntoIterator<Item = MakeExport>,
    ) -> Result<(), ExportError> {
        let namespaces = &self.description().namespaces;
        let is_private = |one: &Namespace| one.nsid == nsid && !one.shared;
        if self.cores() > 1 && namespaces.iter().any(is_private) {
            return Err(ExportError::NotShared(nsid));
        }
        parts.into_iter().enumerate().try_for_each(|(core, make)| self.reactors[core].export(nsid, make))
    }

    /// How it is doing: as the core does that fares worst. Nothing if a reactor does not answer.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let each: Option<Vec<_>> = self.reactors.iter().map(Running::status).collect();
        each?.into_iter().reduce(Status::and)
    }

    /// Every connection made from now on authenticates by these secrets, and associations which stand do so again, beside
    /// their commands: [`HostEvent::Reauthenticated`], [`HostEvent::ReauthenticationFailed`] or [`HostEvent::Lost`]
    /// follows for each. How many; nothing if a reactor does not answer.
    #[must_use]
    pub fn rekey(&self, keys: &Arc<Keys>) -> Option<usize> {
        self.reactors.iter().map(|reactor| reactor.rekey(Arc::clone(keys))).sum()
    }

    /// Waits for the next thing that happens to an association.
    ///
    /// # Errors
    /// When the time is over, or nothing will ever follow.
    pub fn next_event(&self, timeout: Duration) -> Result<HostEvent, RecvTimeoutError> {
        self.events.recv_timeout(timeout)
    }

    /// From now on every new request fails at once, and those held because the connection is lost. So nobody
    /// waits for a target that is dead while its exports are taken away. Of several cores, a write that may still be
    /// executed fails once it cannot be any more.
    pub fn fail_fast(&self) {
        for reactor in &self.reactors {
            // One that has ended fails everything as it is.
            let _ = reactor.letters.send(Letter::FailFast);
        }
    }

    /// Ends exports and associations, and waits until that is done.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        for reactor in &self.reactors {
            let _ = reactor.letters.send(Letter::Close);
        }
        for reactor in self.reactors.drain(..) {
            if reactor.thread.join().is_err() {
                tracing::error!("the reactor ended by a panic");
            }
        }
    }
}

impl Running {
    /// Starts it, and waits for its first connection.
    fn begin(
        options: &AttachOptions,
        number: usize,
        events: SyncSender<HostEvent>,
    ) -> Result<Self, AttachError> {
        let (letters, mailbox) = mailbox(MAILBOX_CAPACITY).map_err(AttachError::Thread)?;
        let own = letters.clone();
        let (ready, outcome) = sync_channel(1);
        let options = options.clone();
        let thread = thread::Builder::new()
            .name(if number == 0 { "reactor".into() } else { format!("reactor-{number}") })
            .spawn(move || reactor::run(options, number, (own, mailbox), ready, events))
            .map_err(AttachError::Thread)?;
        let description = outcome.recv().map_err(|_| AttachError::Gone)??;
        Ok(Self { letters, description, thread })
    }

    fn export(&self, nsid: u32, make: MakeExport) -> Result<(), ExportError> {
        let (reply, answer) = sync_channel(1);
        self.letters.send(Letter::Export { nsid, make, reply }).map_err(|_| ExportError::Gone)?;
        answer.recv().map_err(|_| ExportError::Gone)?
    }

    fn status(&self) -> Option<Status> {
        let (reply, answer) = sync_channel(1);
        self.letters.send(Letter::Status(reply)).ok()?;
        answer.recv_timeout(ANSWER_PATIENCE).ok()
    }

    fn rekey(&self, keys: Arc<Keys>) -> Option<usize> {
        let (reply, answer) = sync_channel(1);
        self.letters.send(Letter::Rekey { keys, reply }).ok()?;
        answer.recv_timeout(ANSWER_PATIENCE).ok()
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cntlids: Vec<_> = self.reactors.iter().map(|reactor| reactor.description.cntlid).collect();
        f.debug_struct("Attached").field("cntlids", &cntlids).finish_non_exhaustive()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.end();
    }
}
