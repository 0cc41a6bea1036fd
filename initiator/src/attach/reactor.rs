//! The reactor thread of an attached controller.
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use ironside_common::auth::{Computing, SystemRandomness};
use ironside_common::memory::{Memory, Pool, SizeClass};
#[cfg(feature = "ibv")]
use ironside_common::provider::ibv::{Ibv, Library};
use ironside_common::provider::soft::{self, Soft};
use ironside_common::provider::wires::{AnyDialer, AnySoft};
use ironside_common::reactor::{
    Mailbox, Poll, Ring, Sender, Tenant, clock, pin_to_core, run as run_reactor, source,
};
use ironside_common::time::Time;
use ironside_common::verbs::Token;

use super::carrier::Carrier;
use super::{
    AttachError, AttachOptions, Carried, Context, Core, Description, Export, ExportError, Letter, MakeExport,
    Provider, Site, Status,
};
use crate::host::{ConnectError, Counters, Host, HostEvent, HostOptions, Namespace};
use crate::paths::{JobName, Paths};
use crate::volume::State;

/// Entries of the ring; more in flight are submitted as these complete.
const RING_ENTRIES: u32 = 256;
/// How long exports may take to end before the association ends under them.
const EXPORTS_PATIENCE: Duration = Duration::from_secs(5);
/// Where the mailbox of the reactor itself is armed; exports have the slots above.
const OWN_MAILBOX: u16 = 0;

type Ready = SyncSender<Result<Description, AttachError>>;

/// Runs until it is asked to close, or the first connection fails.
pub(super) fn run(
    options: AttachOptions,
    number: usize,
    (own, mailbox): (Sender<Letter>, Mailbox<Letter>),
    ready: Ready,
    events: SyncSender<HostEvent>,
) {
    let failed = ready.clone();
    // Nobody waits any more once the outcome is known.
    let report = |error| drop(failed.try_send(Err(error)));
    let reply = move |name, outcome| own.send(Letter::Computed { name, outcome }).is_ok();
    let core = options.cores[number];
    let seats =
        Seats { core, is_first: number == 0, computing: Computing::new(reply), mailbox, ready, events };
    let ended = match options.provider.by_adapters(&options.addresses()) {
        Ok(true) => by_adapter(&options, seats, adapters),
        Ok(false) => run_by(&options, seats, Carried::Software, software).map(drop),
        Err(error) => Err(error.into()),
    };
    if let Err(error) = ended {
        tracing::error!(%error, "the reactor has ended");
        report(error);
    }
}

/// By the adapter which owns the way; and by software where nobody answers there, unless the adapter was demanded.
fn by_adapter<C: Carrier>(
    options: &AttachOptions,
    seats: Seats,
    adapters: impl FnOnce(&AttachOptions, &Rc<Memory>) -> Result<C, AttachError>,
) -> Result<(), AttachError> {
    let dial_patience = options.provider.adapter_patience(options.host.dial_patience);
    let host = HostOptions { dial_patience, ..options.host.clone() };
    let by_adapter = AttachOptions { host, ..options.clone() };
    let Some((seats, why)) = run_by(&by_adapter, seats, Carried::Adapter, adapters)? else { return Ok(()) };
    let instead = Carried::SoftwareInstead(why.to_string());
    tracing::warn!(to = %options.host.address, "by {instead}");
    run_by(options, seats, instead, software).map(drop)
}

/// Where a reactor runs, and what it shares with other threads.
struct Seats {
    core: Core,
    is_first: bool,
    computing: Computing<JobName>,
    mailbox: Mailbox<Letter>,
    ready: Ready,
    events: SyncSender<HostEvent>,
}

/// Runs until it is over. Gives the seats back where nobody has answered, and there is another way to try.
fn run_by<C: Carrier>(
    options: &AttachOptions,
    seats: Seats,
    carried: Carried,
    carrier: impl FnOnce(&AttachOptions, &Rc<Memory>) -> Result<C, AttachError>,
) -> Result<Option<(Seats, ConnectError)>, AttachError> {
    let (mut ring, mut reactor) = HostReactor::new(options, seats, carried, carrier)?;
    run_reactor(&mut ring, &mut reactor)?;
    let HostReactor { core, is_first, computing, mailbox, ready, events, unanswered, .. } = reactor;
    Ok(unanswered
        .and_then(|why| Some((Seats { core, is_first, computing, mailbox, ready: ready?, events }, why))))
}

fn software(options: &AttachOptions, memory: &Rc<Memory>) -> Result<AnySoft, AttachError> {
    let seed = uuid::Uuid::new_v4().as_u64_pair().0;
    let registration = options.registration.asked().unwrap_or_default();
    let settings = soft::Settings { seed, registration, ..options.crc.settings() };
    Ok(Soft::new(Rc::clone(memory), Box::new(AnyDialer), settings))
}

#[cfg(feature = "ibv")]
fn adapters(options: &AttachOptions, memory: &Rc<Memory>) -> Result<Ibv, AttachError> {
    let library = Library::get().map_err(|error| AttachError::Adapter(std::io::Error::other(error)))?;
    Ibv::for_host(library, Rc::clone(memory), options.registration.asked()).map_err(AttachError::Adapter)
}

#[cfg(not(feature = "ibv"))]
fn adapters(options: &AttachOptions, memory: &Rc<Memory>) -> Result<AnySoft, AttachError> {
    software(options, memory)
}

struct HostReactor<C> {
    core: Core,
    /// Of several cores: what all controllers tell alike, this one passes on.
    is_first: bool,
    paths: Paths,
    /// By path: whether its first connection has failed, as long as none stands.
    has_failed: Vec<bool>,
    carrier: C,
    memory: Rc<Memory>,
    pool: Rc<Pool>,
    /// By their index; each of another namespace.
    exports: Vec<Slot>,
    computing: Computing<JobName>,
    mailbox: Mailbox<Letter>,
    /// Where the outcome of the first connection goes.
    ready: Option<Ready>,
    events: SyncSender<HostEvent>,
    phase: Phase,
    state: State,
    state_since: Time,
    last_error: Option<String>,
    carried: Carried,
    /// Whether another way is to be tried if nobody answers.
    has_alternative: bool,
    /// Nobody has: why.
    unanswered: Option<ConnectError>,
}

struct Slot {
    nsid: u32,
    namespace: usize,
    /// Gone once it has ended.
    export: Option<Box<dyn Export>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Running,
    /// Exports are ending; if they take too long, the association ends under them.
    EndingExports {
        until: Time,
    },
    /// The association is ending; exports tell their peers of what failed for a moment longer.
    EndingHost {
        until: Time,
    },
    Over,
}

impl<C: Carrier> HostReactor<C> {
    fn new(
        options: &AttachOptions,
        Seats { core, is_first, computing, mailbox, ready, events }: Seats,
        carried: Carried,
        carrier: impl FnOnce(&AttachOptions, &Rc<Memory>) -> Result<C, AttachError>,
    ) -> Result<(Ring, Self), AttachError> {
        if let Some(core) = core.number {
            pin_to_core(core).map_err(|source| AttachError::Core { core, source })?;
        }
        let memory = Memory::new();
        let ring = Ring::new(RING_ENTRIES, Rc::clone(&memory))?;
        let least = [SizeClass { size: 4096, count: 1 }];
        let classes = if options.buffers.is_empty() { &least } else { &options.buffers[..] };
        let pool = Pool::new(&memory, classes).map_err(AttachError::Memory)?;
        let mut carrier = carrier(options, &memory)?;
        let addresses = options.addresses();
        let host = HostOptions { marks: uuid::Uuid::new_v4(), ..options.host.clone() };
        let paths = Paths::new(&host, &addresses, options.policy, &memory);
        let mut paths = paths.map_err(AttachError::Memory)?;
        let now = clock::now();
        paths.start(&mut carrier, now);
        let reactor = Self {
            core,
            is_first,
            paths,
            has_failed: vec![false; addresses.len()],
            carrier,
            memory,
            pool,
            exports: Vec::new(),
            computing,
            mailbox,
            ready: Some(ready),
            events,
            phase: Phase::Running,
            state: State::Connecting,
            state_since: now,
            last_error: None,
            has_alternative: carried == Carried::Adapter && options.provider == Provider::Auto,
            carried,
            unanswered: None,
        };
        Ok((ring, reactor))
    }

    fn open_letter(&mut self, ring: &mut Ring, letter: Letter, now: Time) {
        match letter {
            Letter::Export { nsid, make, reply } => {
                // Whoever asked may have gone; the export stays.
                let _ = reply.try_send(self.add_export(nsid, make));
            }
            Letter::Status(reply) => {
                let _ = reply.try_send(self.status(now));
            }
            Letter::Rekey { keys, reply } => {
                let _ = reply.try_send(self.paths.rekey(&keys));
            }
            Letter::Computed { name, outcome } => self.paths.computed(&mut self.carrier, name, outcome, now),
            Letter::FailFast => self.paths.fail_fast(),
            Letter::Close => {
                if self.phase == Phase::Running {
                    if self.paths.state() != State::Connected {
                        self.paths.fail_fast();
                    }
                    self.phase = Phase::EndingExports { until: now + EXPORTS_PATIENCE };
                    self.advance_close(ring, now);
                }
            }
        }
    }

    fn add_export(&mut self, nsid: u32, make: MakeExport) -> Result<(), ExportError> {
        let namespace = self.paths.namespaces().iter().position(|namespace| namespace.nsid == nsid);
        let namespace = namespace.ok_or(ExportError::NoNamespace(nsid))?;
        if self.exports.iter().any(|slot| slot.nsid == nsid) {
            return Err(ExportError::Twice(nsid));
        }
        if self.exports.len() >= usize::from(u8::MAX) || self.phase != Phase::Running {
            return Err(ExportError::TooMany);
        }
        let geometry = self.paths.namespaces()[namespace].geometry;
        let site = Site { geometry, memory: &self.memory, pool: &self.pool };
        let export = make(site).map_err(ExportError::Make)?;
        self.exports.push(Slot { nsid, namespace, export: Some(export) });
        Ok(())
    }

    fn status(&self, now: Time) -> Status {
        let speaker = self.paths.speaker();
        Status {
            state: self.state,
            since: now.since(self.state_since),
            counters: self.paths.hosts().map(Host::counters).fold(Counters::default(), Counters::plus),
            cntlid: speaker.cntlid(),
            io_queues: self.paths.hosts().map(Host::io_queues).sum(),
            controller: speaker.controller().cloned(),
            namespaces: self.paths.namespaces().to_vec(),
            last_error: self.last_error.clone(),
            failed_attempts: speaker.failed_attempts(),
            gives_up_in: speaker.gives_up_at().map(|at| at.since(now)),
            paths: self.paths.status(),
        }
    }

    /// What the provider and the host have to say.
    fn receive(&mut self, ring: &mut Ring, now: Time) -> bool {
        let mut busy = self.carrier.pump(now);
        while let Some(event) = self.carrier.poll() {
            self.paths.on_event(&mut self.carrier, event, now);
            busy = true;
        }
        while let Some((name, job)) = self.paths.next_job() {
            if let Err(job) = self.computing.submit(name, job) {
                self.paths.computed(&mut self.carrier, name, job.run(&mut SystemRandomness), now);
            }
            busy = true;
        }
        while let Some((namespace, completed)) = self.paths.next_completed() {
            let index = self.exports.iter().position(|slot| slot.namespace == namespace);
            let index = index.expect("only exports submit requests");
            self.with(index, ring, now, |export, context| export.completed(context, completed));
            busy = true;
        }
        while let Some((path, event)) = self.paths.next_event() {
            self.on_host_event(ring, path, event, now);
            busy = true;
        }
        busy
    }

    fn on_host_event(&mut self, ring: &mut Ring, path: usize, event: HostEvent, now: Time) {
        let nqn = self.paths.speaker().options().nqn;
        let address = self.paths.hosts().nth(path).map(|host| host.options().address);
        let address = address.map(tracing::field::display);
        match &event {
            HostEvent::Connected => {
                tracing::info!(%nqn, address, "connected");
                self.last_error = None;
                if let (Some(ready), Some(description)) = (self.ready.take(), self.describe()) {
                    // Nobody may be waiting any more; closing follows then.
                    let _ = ready.try_send(Ok(description));
                }
            }
            HostEvent::Failed(error) => self.on_failed(path, error),
            HostEvent::Lost(fault) if self.paths.state() == State::Connected => {
                tracing::warn!(%nqn, address, %fault, "a path is lost; requests take another");
            }
            HostEvent::Lost(fault) => {
                tracing::warn!(%nqn, address, %fault, "connection lost; requests are held");
                self.last_error = Some(fault.to_string());
            }
            HostEvent::FailsFast => {
                tracing::warn!(%nqn, "without a connection for too long: requests fail until there is one");
            }
            HostEvent::AttemptFailed(error) => {
                tracing::info!(%nqn, address, %error, "not connected yet");
                if self.paths.state() != State::Connected {
                    self.last_error = Some(error.to_string());
                }
                self.note_failure(path, error);
            }
            HostEvent::NamespaceChanged(namespace) => {
                self.log_change(*namespace);
                self.tell_of_change(ring, *namespace, now);
            }
            HostEvent::NamespaceAdded(namespace) => {
                let nsid = self.paths.namespaces()[*namespace].nsid;
                tracing::debug!(%nqn, nsid, "namespace found");
            }
            HostEvent::AccessChanged => {
                tracing::info!(%nqn, address, "the target says other states of access");
            }
            HostEvent::Notified(notice) => {
                tracing::info!(%nqn, address, nsid = notice.nsid, kind = notice.kind, "told of reservations");
            }
            HostEvent::Reauthenticated { queues } => {
                tracing::info!(%nqn, address, queues, "authenticated again");
            }
            HostEvent::ReauthenticationFailed(error) => {
                tracing::warn!(%nqn, address, %error, "could not authenticate again");
            }
            HostEvent::Closed => tracing::info!(%nqn, address, "disconnected"),
        }
        if self.is_first || !matches!(event, HostEvent::Notified(_)) {
            // A full channel has no reader who cares.
            let _ = self.events.try_send(event);
        }
        if self.paths.state() != self.state {
            (self.state, self.state_since) = (self.paths.state(), now);
        }
    }

    /// A path is over for good.
    fn on_failed(&mut self, path: usize, error: &ConnectError) {
        let nqn = self.paths.speaker().options().nqn;
        let waits = self.ready.is_some();
        self.note_failure(path, error);
        if !self.paths.is_over() {
            return tracing::error!(%nqn, %error, "a path is given up; the others go on");
        }
        self.last_error = Some(if error.is_final() {
            format!("the target refuses for good (it says not to try again): {error}")
        } else {
            error.to_string()
        });
        if waits {
            // Whoever started it is told.
        } else if error.is_final() {
            tracing::error!(
                %nqn, %error,
                "the target refuses and says not to try again; every request fails from now on: \
                 disconnect, and connect again once it serves this host"
            );
        } else {
            tracing::error!(%nqn, %error, "given up; every request fails from now on");
        }
    }

    /// While nothing has been connected yet: once every path has failed, whoever waits is told, or another way is tried.
    fn note_failure(&mut self, path: usize, error: &ConnectError) {
        self.has_failed[path] = true;
        if self.ready.is_none() || !self.has_failed.iter().all(|&failed| failed) {
            return;
        }
        self.phase = Phase::Over;
        if self.has_alternative && error.nobody_answered() {
            self.unanswered = Some(error.clone());
        } else if let Some(ready) = self.ready.take() {
            let _ = ready.try_send(Err(self.failure(error)));
        }
    }

    /// Why it could not be attached, by any way that was tried.
    fn failure(&self, error: &ConnectError) -> AttachError {
        let software = error.clone();
        match &self.carried {
            Carried::SoftwareInstead(adapter) if error.nobody_answered() => {
                AttachError::Neither { adapter: adapter.clone(), software }
            }
            _ => software.into(),
        }
    }

    fn log_change(&self, namespace: usize) {
        let nqn = self.paths.speaker().options().nqn;
        let Namespace { nsid, available, replacement, geometry, .. } = &self.paths.namespaces()[namespace];
        match (available, replacement) {
            (true, _) => tracing::info!(%nqn, nsid, size = geometry.size, "the namespace has changed"),
            (false, None) => tracing::warn!(%nqn, nsid, "the namespace is gone; its requests fail"),
            (false, Some(other)) => {
                tracing::warn!(%nqn, nsid, %other, "another namespace has this number now; requests fail");
            }
        }
    }

    fn tell_of_change(&mut self, ring: &mut Ring, namespace: usize, now: Time) {
        let geometry = self.paths.namespaces()[namespace].geometry;
        if let Some(index) = self.exports.iter().position(|slot| slot.namespace == namespace) {
            self.with(index, ring, now, |export, context| export.changed(context, geometry));
        }
    }

    fn describe(&self) -> Option<Description> {
        let speaker = self.paths.speaker();
        Some(Description {
            carried: self.carried.clone(),
            cntlid: speaker.cntlid()?,
            controller: speaker.controller()?.clone(),
            namespaces: self.paths.namespaces().to_vec(),
            skipped: speaker.skipped().to_vec(),
            io_queues: speaker.io_queues(),
            discovered: speaker.discovered().cloned().unwrap_or_default(),
            answer: speaker.answer().cloned().unwrap_or_default(),
            round_trips: speaker.round_trips().to_vec(),
        })
    }

    /// Calls an export, if it has not ended.
    fn with<R>(
        &mut self,
        index: usize,
        ring: &mut Ring,
        now: Time,
        act: impl FnOnce(&mut dyn Export, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let Slot { namespace, export, .. } = self.exports.get_mut(index)?;
        let mut context = Context {
            volume: &mut self.paths.volume(*namespace),
            ring,
            pool: &self.pool,
            memory: &self.memory,
            now,
            index: u8::try_from(index).ok()?,
        };
        Some(act(export.as_deref_mut()?, &mut context))
    }

    /// Moves on with closing as far as it goes now.
    fn advance_close(&mut self, ring: &mut Ring, now: Time) -> bool {
        let (Phase::EndingExports { until } | Phase::EndingHost { until }) = self.phase else { return false };
        for index in 0..self.exports.len() {
            if self.with(index, ring, now, |export, context| export.close(context)) == Some(true) {
                self.exports[index].export = None;
            }
        }
        if now < until && self.exports.iter().any(|slot| slot.export.is_some()) {
            return false;
        }
        if matches!(self.phase, Phase::EndingExports { .. }) {
            self.phase = Phase::EndingHost { until: now + EXPORTS_PATIENCE };
            self.paths.close(&mut self.carrier, now);
            return true;
        }
        let over = self.paths.is_over();
        if over {
            self.phase = Phase::Over;
        }
        over
    }
}

impl<C: Carrier> Tenant for HostReactor<C> {
    fn turn(&mut self, ring: &mut Ring, now: Time) -> bool {
        let mut busy = false;
        while let Some(letter) = self.mailbox.receive() {
            self.open_letter(ring, letter, now);
            busy = true;
        }
        busy |= self.receive(ring, now);
        for index in 0..self.exports.len() {
            busy |= self.with(index, ring, now, |export, context| export.turn(context)) == Some(true);
        }
        busy |= self.paths.turn(&mut self.carrier, now);
        busy |= self.carrier.flush(now);
        busy |= self.advance_close(ring, now);
        self.carrier.cool(ring);
        busy
    }

    fn on_ring(&mut self, ring: &mut Ring, token: Token, result: i32, now: Time) {
        let index = match (token.qpair & 0xFF, token.slot) {
            (source::WIRE, _) => return self.carrier.on_ready(token),
            (source::MAILBOX, OWN_MAILBOX) => return self.mailbox.on_ring(),
            (source::MAILBOX, slot) => usize::from(slot - 1),
            _ => usize::from(token.qpair >> 8),
        };
        // What an export that has ended left in the ring is nobody's.
        self.with(index, ring, now, |export, context| export.on_ring(context, token, result));
    }

    fn arm(&mut self, ring: &mut Ring) {
        let now = clock::now();
        self.carrier.arm(ring);
        self.mailbox.arm(ring, OWN_MAILBOX);
        for index in 0..self.exports.len() {
            self.with(index, ring, now, |export, context| export.arm(context));
        }
    }

    fn deadline(&self) -> Option<Time> {
        let exports = self.exports.iter().filter_map(|slot| slot.export.as_ref()?.deadline()).min();
        let closing = match self.phase {
            Phase::EndingExports { until } | Phase::EndingHost { until } => Some(until),
            _ => None,
        };
        [self.paths.deadline(), self.carrier.deadline(), exports, closing].into_iter().flatten().min()
    }

    fn poll(&self) -> Poll {
        self.core.poll
    }

    fn finished(&self) -> bool {
        self.phase == Phase::Over
    }
}

#[cfg(test)]
mod tests;
