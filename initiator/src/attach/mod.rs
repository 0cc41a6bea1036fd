//! An attached controller: a reactor thread which runs the host machine over software RDMA or an RDMA adapter,
//! and the exports above it. [`Attached`] is the handle of everyone else.
mod carrier;
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
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ironside_common::auth::{Keys, Outcome};
use ironside_common::memory::SizeClass;
use ironside_common::provider::soft;
use ironside_common::reactor::{RingError, Sender, mailbox};

use crate::host::{
    Answer, ConnectError, Controller, Counters, DiscoveryLog, HostEvent, HostOptions, Namespace,
    NamespaceError, OptionsError,
};
use crate::paths::{JobName, PathStatus, Policy};
use crate::volume::State;

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
    pub more_addresses: Vec<SocketAddr>,
    /// Which of several ways a request takes.
    pub policy: Policy,
    pub crc: Crc,
    pub provider: Provider,
    pub registration: Registration,
    /// The core to run on; any, if not given.
    pub core: Option<usize>,
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
            core: None,
            buffers: BUFFERS.to_vec(),
        }
    }

    /// Every address, that of the host first.
    fn addresses(&self) -> Vec<SocketAddr> {
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

/// The handle of an attached controller. Dropping it closes it.
pub struct Attached {
    letters: Sender<Letter>,
    events: Receiver<HostEvent>,
    description: Description,
    thread: Option<JoinHandle<()>>,
}

impl Attached {
    /// Connects to a controller on a reactor thread of its own. Waits until that is done; it is tried once.
    ///
    /// # Errors
    /// Why it failed.
    pub fn attach(options: AttachOptions) -> Result<Self, AttachError> {
        options.host.check()?;
        let (letters, mailbox) = mailbox(MAILBOX_CAPACITY).map_err(AttachError::Thread)?;
        let own = letters.clone();
        let (ready, outcome) = sync_channel(1);
        let (event_sender, events) = sync_channel(EVENTS_CAPACITY);
        let thread = thread::Builder::new()
            .name("reactor".into())
            .spawn(move || reactor::run(options, (own, mailbox), ready, event_sender))
            .map_err(AttachError::Thread)?;
        let description = outcome.recv().map_err(|_| AttachError::Gone)??;
        Ok(Self { letters, events, description, thread: Some(thread) })
    }

    /// What became known when it was attached.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Exports a namespace: `make` runs in the reactor's thread, where its result then lives.
    ///
    /// # Errors
    /// If there is no such namespace, it is exported already, or `make` fails.
    pub fn export(&self, nsid: u32, make: MakeExport) -> Result<(), ExportError> {
        let (reply, answer) = sync_channel(1);
        self.letters.send(Letter::Export { nsid, make, reply }).map_err(|_| ExportError::Gone)?;
        answer.recv().map_err(|_| ExportError::Gone)?
    }

    /// How it is doing; nothing if its reactor does not answer.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let (reply, answer) = sync_channel(1);
        self.letters.send(Letter::Status(reply)).ok()?;
        answer.recv_timeout(ANSWER_PATIENCE).ok()
    }

    /// Every connection made from now on authenticates by these secrets, and associations which stand do so again, beside
    /// their commands: [`HostEvent::Reauthenticated`], [`HostEvent::ReauthenticationFailed`] or [`HostEvent::Lost`]
    /// follows for each. How many; nothing if its reactor does not answer.
    #[must_use]
    pub fn rekey(&self, keys: Arc<Keys>) -> Option<usize> {
        let (reply, answer) = sync_channel(1);
        self.letters.send(Letter::Rekey { keys, reply }).ok()?;
        answer.recv_timeout(ANSWER_PATIENCE).ok()
    }

    /// Waits for the next thing that happens to the association.
    ///
    /// # Errors
    /// When the time is over, or nothing will ever follow.
    pub fn next_event(&self, timeout: Duration) -> Result<HostEvent, RecvTimeoutError> {
        self.events.recv_timeout(timeout)
    }

    /// From now on every new request fails at once, and those held because the connection is lost. So nobody
    /// waits for a target that is dead while its exports are taken away.
    pub fn fail_fast(&self) {
        // A reactor that has ended fails everything as it is.
        let _ = self.letters.send(Letter::FailFast);
    }

    /// Ends exports and association, and waits until that is done.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let _ = self.letters.send(Letter::Close);
        if thread.join().is_err() {
            tracing::error!("the reactor ended by a panic");
        }
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").field("cntlid", &self.description.cntlid).finish_non_exhaustive()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.end();
    }
}
