//! `ironside-target serve`: from a configuration to reactors at work, until a signal says stop.
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ironside_common::provider::{soft, tcp};
use ironside_common::reactor::{Sender, mailbox, pin_to_core};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use crate::acceptor::Acceptor;
use crate::catalog::Catalog;
use crate::control::config::{Config, Crc};
use crate::control::prepare::{PrepareError, prepare};
use crate::poll_group::{Message, Settings};
use crate::reactor::{self, Letter, Parts, ReactorError};

/// Unread messages a reactor's mailbox holds.
const MAILBOX: usize = 4096;
/// In-capsule data: more corrupts writes of Linux 5.4 to 5.12 hosts.
const IN_CAPSULE: u32 = 4096;
/// RDMA Reads outstanding on one connection at most.
const READS: u32 = 128;
/// I/O queues of one controller at most, whatever the number of reactors: they take turns, and a queue
/// more costs a host's core nothing but its receives here.
const IO_QUEUES: u16 = 64;

/// Why the target does not serve, or stopped to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("cannot listen at {0}{hint}", hint = listen_hint(.1))]
    Listen(SocketAddr, #[source] io::Error),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("signals cannot be waited for")]
    Signals(#[source] nix::Error),
    #[error("reactor {0} failed")]
    Reactor(usize, #[source] ReactorError),
}

fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => ": something else listens there; stop it or choose another --listen",
        io::ErrorKind::AddrNotAvailable => ": no interface of this machine has that address",
        io::ErrorKind::PermissionDenied => ": ports below 1024 are for root",
        _ => "",
    }
}

/// Serves until SIGTERM or SIGINT, then drains. Prints the line that begins with `ready` once it serves.
///
/// # Errors
/// What prevented it; nothing is left running.
pub fn serve(config: &Config) -> Result<(), ServeError> {
    let signals = block_signals()?;
    raise_open_files();
    let catalog = Arc::new(prepare(config)?);
    let listeners = listen(&catalog)?;
    let reactors = Reactors::start(config, &catalog)?;
    let acceptor = match Acceptor::start(listeners, reactors.senders.clone()) {
        Ok(acceptor) => acceptor,
        Err(error) => {
            reactors.drain()?;
            return Err(ServeError::Thread(error));
        }
    };
    announce(&catalog, config);
    let failed = reactors.wait_for_signal(&signals);
    tracing::info!("stopping: commands under way are finished");
    acceptor.stop();
    failed.and(reactors.drain())
}

fn listen(catalog: &Catalog) -> Result<Vec<TcpListener>, ServeError> {
    let addresses = catalog.listeners().iter().map(|listener| listener.address);
    addresses.map(|at| tcp::listen(at).map_err(|error| ServeError::Listen(at, error))).collect()
}

/// The line scripts wait for: addresses, then NQNs.
fn announce(catalog: &Catalog, config: &Config) {
    let addresses: Vec<_> = catalog.listeners().iter().map(|one| one.address.to_string()).collect();
    let nqns: Vec<_> = catalog.subsystems().iter().map(|one| one.nqn().to_string()).collect();
    println!("ready on {} serving {}", addresses.join(" "), nqns.join(" "));
    tracing::info!(crc = ?config.crc, queue_depth = config.queue_depth, "serving");
    // Outside of systemd there is nobody to notify.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
}

/// A connection is a descriptor; the usual soft limit of 1024 is for programs which use select.
fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays");
    }
}

fn block_signals() -> Result<SigSet, ServeError> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    // Every thread made later inherits this, so that only the one who asks gets them.
    signals.thread_block().map_err(ServeError::Signals)?;
    Ok(signals)
}

/// The reactors' threads, and how to reach them.
struct Reactors {
    senders: Vec<Sender<Letter>>,
    threads: Vec<JoinHandle<Result<(), ReactorError>>>,
}

impl Reactors {
    fn start(config: &Config, catalog: &Arc<Catalog>) -> Result<Self, ServeError> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = config.reactors.map_or(cores, usize::from);
        let (senders, mailboxes): (Vec<_>, Vec<_>) = (0..count)
            .map(|_| mailbox(MAILBOX).map_err(ServeError::Thread))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .unzip();
        let (started, all_started) = channel();
        let mut reactors = Self { senders, threads: Vec::new() };
        for (index, mailbox) in mailboxes.into_iter().enumerate() {
            let group = Settings {
                reactor: index,
                reactors: count,
                queue_depth: config.queue_depth,
                in_capsule: IN_CAPSULE,
                reads: READS,
                io_queues: IO_QUEUES,
            };
            let provider =
                soft::Settings { crc: config.crc == Crc::On, seed: seed(), ..soft::Settings::default() };
            let senders = reactors.senders.clone();
            let parts = Parts { group, provider, catalog: Arc::clone(catalog), mailbox, reactors: senders };
            let started = started.clone();
            let pinned = (count <= cores && cores > 1).then_some(index);
            let thread = thread::Builder::new().name(format!("reactor-{index}"));
            let thread = thread.spawn(move || {
                run_reactor(parts, pinned, || {
                    // Nobody waits any more once another reactor has failed.
                    let _ = started.send(());
                })
            });
            reactors.threads.push(thread.map_err(ServeError::Thread)?);
        }
        drop(started);
        reactors.await_start(&all_started);
        Ok(reactors)
    }

    /// Every reactor says so once, or drops its end.
    fn await_start(&self, started: &Receiver<()>) {
        // One that failed is found by the drain, which knows why.
        let _ = self.threads.iter().try_for_each(|_| started.recv());
    }

    /// Until a signal comes, or a reactor fails.
    fn wait_for_signal(&self, signals: &SigSet) -> Result<(), ServeError> {
        let descriptor = SignalFd::new(signals).map_err(ServeError::Signals)?;
        loop {
            match wait(&descriptor, Duration::from_millis(500)) {
                Ok(true) => return Ok(()),
                Ok(false) if self.threads.iter().any(JoinHandle::is_finished) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(ServeError::Signals(error)),
            }
        }
    }

    fn drain(self) -> Result<(), ServeError> {
        for sender in &self.senders {
            // A reactor that is gone needs no telling.
            let _ = sender.send(Letter::Group(Message::Drain));
        }
        let mut result = Ok(());
        for (index, thread) in self.threads.into_iter().enumerate() {
            let ended = thread.join().unwrap_or(Err(ReactorError::Panicked));
            result = result.and(ended.map_err(|error| ServeError::Reactor(index, error)));
        }
        result
    }
}

fn run_reactor(parts: Parts, pinned: Option<usize>, started: impl FnOnce()) -> Result<(), ReactorError> {
    if let Some(core) = pinned
        && let Err(error) = pin_to_core(core)
    {
        tracing::debug!(%error, core, "a reactor is not pinned");
    }
    reactor::serve(parts, started)
}

/// Waits for one of the signals; false if none came in time.
fn wait(descriptor: &SignalFd, timeout: Duration) -> Result<bool, nix::Error> {
    let timeout = u16::try_from(timeout.as_millis()).unwrap_or(u16::MAX);
    let mut poll =
        [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(descriptor), nix::poll::PollFlags::POLLIN)];
    match nix::poll::poll(&mut poll, timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Keys must not be guessable from the outside; the kernel's randomness makes a version 4 UUID.
fn seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
