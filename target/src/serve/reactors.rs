//! The reactors of a serving target, seen from the control thread: their threads, and what they are told.
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ironside_common::identity::state_directory;
use ironside_common::provider::soft;
use ironside_common::reactor::{Sender, mailbox, pin_to_core};

use super::{ServeError, keeper};
use crate::catalog::Catalog;
use crate::control::config::{Config, Crc};
use crate::limits::{Census, Resource};
use crate::poll_group::{Message, Settings, Survey};
use crate::reactor::{self, Letter, Parts, ReactorError};

/// Unread messages a reactor's mailbox holds.
const MAILBOX: usize = 4096;

/// Where a reactor says what came of a letter.
type Sent = mpsc::Sender<io::Result<()>>;

/// The reactors' threads, and how to reach them.
pub(super) struct Reactors {
    pub(super) senders: Vec<Sender<Letter>>,
    threads: Vec<JoinHandle<Result<(), ReactorError>>>,
}

impl Reactors {
    pub(super) fn start(config: &Config, catalog: &Arc<Catalog>) -> Result<Self, ServeError> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = config.reactors.map_or(cores, usize::from);
        let (senders, mailboxes): (Vec<_>, Vec<_>) = (0..count)
            .map(|_| mailbox(MAILBOX).map_err(ServeError::Thread))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .unzip();
        let directory = config.state_directory.clone().or_else(state_directory);
        let keeper = keeper::start(directory, senders[0].clone()).map_err(ServeError::Thread)?;
        let mut keeper = Some(keeper);
        let census = Census::default();
        let (started, all_started) = channel();
        let mut reactors = Self { senders, threads: Vec::new() };
        for (index, mailbox) in mailboxes.into_iter().enumerate() {
            let group = Settings {
                reactor: index,
                reactors: count,
                queue_depth: config.queue_depth,
                in_capsule: config.limits.count(Resource::InCapsule),
                reads: config.limits.count(Resource::RdmaReads),
                transfer_max: config.limits.count(Resource::TransferSize),
                census: census.clone(),
                drain: Duration::from_secs(config.drain_timeout_s.into()),
            };
            let provider =
                soft::Settings { crc: config.crc == Crc::On, seed: seed(), ..soft::Settings::default() };
            let parts = Parts {
                group,
                provider,
                io_poll: config.io_poll,
                poll: config.poll,
                huge_pages: config.huge_pages,
                catalog: Arc::clone(catalog),
                mailbox,
                reactors: reactors.senders.clone(),
                // The first has the registrar.
                keeper: keeper.take(),
            };
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

    /// Whether one of them has ended, which it does not by itself.
    pub(super) fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Has every reactor get ready for a version of the catalog which is to come: at its media, and at the adapters of
    /// its listeners. A switch has to follow, to that version or back to the present one.
    pub(super) fn attach(&self, next: &Arc<Catalog>) -> io::Result<()> {
        self.ask(|done| Letter::Attach { catalog: Arc::clone(next), done })
    }

    /// Takes all reactors over to a version of the catalog that they are ready for. Hosts are told once everyone has it.
    pub(super) fn switch(&self, to: &Arc<Catalog>) -> io::Result<()> {
        self.ask(|done| Letter::Switch { catalog: Arc::clone(to), done })
    }

    /// Lets every reactor tell its hosts what the last switch changed for them.
    pub(super) fn announce(&self) {
        for sender in &self.senders {
            // A reactor that is gone has no hosts.
            let _ = sender.send(Letter::Group(Message::Announce));
        }
    }

    /// Waits until nothing is at a medium any more that came by a way which the last switch ended. False if that
    /// takes too long.
    pub(super) fn settle(&self, patience: Duration) -> bool {
        let (done, all_done) = channel::<()>();
        for sender in &self.senders {
            // At a reactor that is gone nothing is under way.
            let _ = sender.send(Letter::Settle(done.clone()));
        }
        drop(done);
        // Nobody sends anything: each lets go of its end.
        all_done.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }

    /// What each has, in their order.
    pub(super) fn survey(&self) -> io::Result<Vec<Survey>> {
        reactor::survey(&self.senders)
    }

    /// Sends a letter to each, and waits until all have done what it says.
    fn ask(&self, letter: impl Fn(Sent) -> Letter) -> io::Result<()> {
        let (done, all_done) = channel();
        for sender in &self.senders {
            // One that is gone does not answer, which is found below.
            let _ = sender.send(letter(done.clone()));
        }
        drop(done);
        let answers: Vec<io::Result<()>> = all_done.iter().take(self.senders.len()).collect();
        if answers.len() < self.senders.len() {
            return Err(io::Error::other("a reactor has failed"));
        }
        answers.into_iter().collect()
    }

    pub(super) fn drain(self) -> Result<(), ServeError> {
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

/// Keys must not be guessable from the outside; the kernel's randomness makes a version 4 UUID.
fn seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
