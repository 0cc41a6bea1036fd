//! Several paths to one subsystem as one: [`Paths`] has a [`Host`] for each, gives every request to a path which leads
//! to its namespace, and to another one if that path does not end it.
//!
//! **A late write must not land after a newer one.** A request which a path refused for want of access has not been
//! executed, and one which was not sent neither: they go on at once. A read or a flush may be executed twice. But a
//! write whose answer never came may still be at the medium behind the lost path. It is *parked*: it goes on only once
//! that path stands again, if its target is one which ends old writes before it lets a host connect anew, or once the
//! target must have given the old association up, because no keep alive came. Whoever waits for a parked write has not been told
//! that it ended, so nobody can have built on it.
//!
//! With one path alone there is nothing to choose: the host holds requests by itself.
mod learn;
mod parked;
mod policy;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::auth::{Job, Keys, Outcome};
use ironside_common::memory::Memory;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::time::Time;
use ironside_common::verbs::{Address, CmEvent, Connections, Event, HostVerbs, QpHandle};
use uuid::Uuid;

use self::parked::Parked;
pub use self::policy::Policy;
use crate::host::{Host, HostEvent, HostOptions, Namespace};
use crate::volume::{Completed, Geometry, IoError, PathError, Request, State, Volume};

/// Paths of one attachment at most.
pub const PATHS_MAX: usize = 8;
/// How long a path which refused a request for want of access is passed over, if it does not say why.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How one path is doing.
#[derive(Clone, Debug)]
pub struct PathStatus {
    pub address: Address,
    pub state: State,
    pub cntlid: Option<u16>,
    /// Of each namespace, by the index it has among all: its state by this path; nothing if the path does not lead there.
    pub access: Vec<Option<AnaState>>,
    /// Why it is not used, if it is not.
    pub reason: Option<String>,
    /// Requests it has now.
    pub requests: usize,
}

#[derive(Debug)]
struct Path {
    host: Host,
    /// The host's index of each namespace, if this path leads there.
    namespaces: Vec<Option<usize>>,
    /// Until when it is passed over for a namespace it refused.
    refused_until: Vec<Option<Time>>,
    /// Associations it has had.
    epoch: u64,
    in_flight: usize,
    /// Why nothing of it is used although it is connected.
    unfit: Option<&'static str>,
    last_error: Option<String>,
}

/// A job of one path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct JobName {
    path: usize,
    number: u64,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    namespace: usize,
    request: Request,
}

/// See the module's description. All tables are sized once.
#[derive(Debug)]
pub struct Paths {
    paths: Vec<Path>,
    policy: Policy,
    /// What is known of namespaces, whichever path leads there; an index stays what it names.
    namespaces: Vec<Namespace>,
    pending: Box<[Option<Pending>]>,
    free: Vec<usize>,
    /// Requests for which there is no path now, oldest first.
    waiting: VecDeque<usize>,
    parked: Vec<Parked>,
    completed: VecDeque<(usize, Completed)>,
    events: VecDeque<(usize, HostEvent)>,
    refusing: Option<IoError>,
    /// Since when no path stands, and whether requests fail by now for that.
    lost_at: Option<Time>,
    fails_fast: bool,
    /// The path taken last.
    last: usize,
    now: Time,
}

impl Paths {
    /// Paths which do nothing yet, one to each address of `addresses`, otherwise as `options` say.
    ///
    /// # Errors
    /// When the system has no memory.
    ///
    /// # Panics
    /// If there is no address or there are too many, or the options are not valid.
    pub fn new(
        options: &HostOptions,
        addresses: &[Address],
        policy: Policy,
        memory: &Rc<Memory>,
    ) -> io::Result<Self> {
        assert!((1..=PATHS_MAX).contains(&addresses.len()), "addresses are counted where they come from");
        let one_of_many = addresses.len() > 1;
        let path = |(index, &address): (u128, &Address)| {
            let marks = Uuid::from_u128(options.marks.as_u128().wrapping_add(index));
            let options = HostOptions { address, one_of_many, marks, ..options.clone() };
            Ok(Path {
                host: Host::new(options, Rc::clone(memory))?,
                namespaces: Vec::new(),
                refused_until: Vec::new(),
                epoch: 0,
                in_flight: 0,
                unfit: None,
                last_error: None,
            })
        };
        let room = if one_of_many { options.requests as usize } else { 0 };
        Ok(Self {
            paths: (0..).zip(addresses).map(path).collect::<io::Result<_>>()?,
            policy,
            namespaces: Vec::new(),
            pending: (0..room).map(|_| None).collect(),
            free: (0..room).rev().collect(),
            waiting: VecDeque::with_capacity(room),
            parked: Vec::with_capacity(room),
            completed: VecDeque::with_capacity(room),
            events: VecDeque::new(),
            refusing: None,
            lost_at: None,
            fails_fast: false,
            last: addresses.len() - 1,
            now: Time::ZERO,
        })
    }

    /// Begins to connect all paths.
    pub fn start<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        self.paths.iter_mut().for_each(|path| path.host.start(verbs, now));
    }

    /// Takes one event of the provider.
    pub fn on_event<V: HostVerbs + Connections>(&mut self, verbs: &mut V, event: Event, now: Time) {
        self.now = now;
        let index = queue_pair(&event).and_then(|qp| self.paths.iter().position(|path| path.host.owns(qp)));
        // What is nobody's any more any host puts away.
        self.paths[index.unwrap_or(0)].host.on_event(verbs, event, now);
    }

    /// Sends what was submitted and does what is due: see [`Host::turn`].
    pub fn turn<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) -> bool {
        self.now = now;
        self.collect_events();
        let mut busy = self.collect();
        for path in &mut self.paths {
            let due = path.refused_until.iter_mut().any(|until| until.take_if(|at| *at <= now).is_some());
            if due {
                path.host.reread_access(verbs, now);
            }
            busy |= due;
        }
        busy |= self.release();
        self.check_fast_fail();
        busy |= self.send_waiting();
        for path in &mut self.paths {
            busy |= path.host.turn(verbs, now);
        }
        busy
    }

    /// When [`Self::turn`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let hosts = self.paths.iter().filter_map(|path| path.host.deadline());
        let refused = self.paths.iter().flat_map(|path| path.refused_until.iter().copied().flatten());
        let parked = self.parked.iter().filter_map(|parked| parked.until);
        let fails_fast = self.fails_fast_at().filter(|_| !self.fails_fast);
        hosts.chain(refused).chain(parked).chain(fails_fast).min()
    }

    /// See [`Host::submit`].
    ///
    /// # Errors
    /// Gives it back if there is no room for it now.
    ///
    /// # Panics
    /// If there is no such namespace.
    pub fn submit(&mut self, namespace: usize, request: Request) -> Result<(), Request> {
        if let [only] = &mut self.paths[..] {
            return only.host.submit(namespace, request);
        }
        if !self.has_room() {
            return Err(request);
        }
        let slot = self.free.pop().expect("has_room looked");
        self.pending[slot] = Some(Pending { namespace, request });
        if let Some(error) = self.refusing {
            self.end(slot, Err(error));
        } else if !self.waiting.is_empty() || !self.dispatch(slot) {
            self.waiting.push_back(slot);
        }
        Ok(())
    }

    /// Whether [`Self::submit`] would take one more. Completions not yet fetched count.
    #[must_use]
    pub fn has_room(&self) -> bool {
        match &self.paths[..] {
            [only] => only.host.has_room(),
            _ => !self.free.is_empty() && self.completed.len() < self.free.len(),
        }
    }

    /// The next request that has ended, and the index of its namespace.
    pub fn next_completed(&mut self) -> Option<(usize, Completed)> {
        if let [only] = &mut self.paths[..] {
            return only.host.next_completed();
        }
        self.collect();
        self.completed.pop_front()
    }

    /// The next thing that has happened, and on which path. Indices of namespaces are those of [`Self::namespaces`].
    pub fn next_event(&mut self) -> Option<(usize, HostEvent)> {
        self.collect_events();
        self.events.pop_front()
    }

    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        match &self.paths[..] {
            [only] => only.host.namespaces(),
            _ => &self.namespaces,
        }
    }

    /// That of the best path.
    #[must_use]
    pub fn state(&self) -> State {
        let states = || self.paths.iter().map(|path| path.host.state());
        let best = [State::Connected, State::Reconnecting, State::Connecting];
        best.into_iter().find(|best| states().any(|state| state == *best)).unwrap_or(State::Failed)
    }

    /// Whether every path is over for good.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.paths.iter().all(|path| path.host.is_over())
    }

    /// The host of the path which is connected, or of the first one: who speaks for all.
    #[must_use]
    pub fn speaker(&self) -> &Host {
        let connected = self.paths.iter().find(|path| path.host.state() == State::Connected);
        let known = || self.paths.iter().find(|path| path.host.controller().is_some());
        &connected.or_else(known).unwrap_or(&self.paths[0]).host
    }

    /// The host of each path, in the order of their addresses.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.paths.iter().map(|path| &path.host)
    }

    /// How each path is doing.
    #[must_use]
    pub fn status(&self) -> Vec<PathStatus> {
        let of = |path: &Path| PathStatus {
            address: path.host.options().address,
            state: path.host.state(),
            cntlid: path.host.cntlid(),
            access: self.access_of(path),
            reason: path.unfit.map(str::to_owned).or_else(|| path.last_error.clone()),
            requests: path.in_flight,
        };
        self.paths.iter().map(of).collect()
    }

    fn access_of(&self, path: &Path) -> Vec<Option<AnaState>> {
        if self.paths.len() == 1 {
            return (0..path.host.namespaces().len()).map(|index| Some(path.host.ana_state(index))).collect();
        }
        path.namespaces.iter().map(|index| index.map(|index| path.host.ana_state(index))).collect()
    }

    /// Ends all paths in good order; see [`Host::close`].
    pub fn close<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        self.fails_fast = false;
        self.refuse(IoError::Closing);
        self.paths.iter_mut().for_each(|path| path.host.close(verbs, now));
    }

    /// See [`Host::fail_fast`].
    pub fn fail_fast(&mut self) {
        self.fails_fast = false;
        self.refuse(IoError::Closing);
        self.paths.iter_mut().for_each(|path| path.host.fail_fast());
    }

    /// What a path has to have computed before it goes on authenticating, and what it is called.
    pub fn next_job(&mut self) -> Option<(JobName, Job)> {
        self.paths.iter_mut().enumerate().find_map(|(path, one)| {
            let (number, job) = one.host.next_job()?;
            Some((JobName { path, number }, job))
        })
    }

    /// What the job of this name came to.
    pub fn computed<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        name: JobName,
        outcome: Outcome,
        now: Time,
    ) {
        self.paths[name.path].host.computed(verbs, name.number, outcome, now);
    }

    /// How many associations will authenticate again by these secrets: see [`Host::rekey`].
    pub fn rekey(&mut self, keys: &Arc<Keys>) -> usize {
        self.paths.iter_mut().filter_map(|path| path.host.rekey(Arc::clone(keys)).then_some(())).count()
    }

    /// The volume of this index.
    ///
    /// # Panics
    /// If there is no such namespace.
    pub fn volume(&mut self, namespace: usize) -> PathsVolume<'_> {
        assert!(namespace < self.namespaces().len(), "no namespace {namespace}");
        PathsVolume { paths: self, namespace }
    }

    /// Takes what has ended on each path. Says whether there was anything.
    fn collect(&mut self) -> bool {
        if self.paths.len() == 1 {
            return false;
        }
        let mut any = false;
        for index in 0..self.paths.len() {
            while let Some((_, completed)) = self.paths[index].host.next_completed() {
                any = true;
                self.paths[index].in_flight -= 1;
                self.on_completed(index, completed);
            }
        }
        any
    }

    fn on_completed(&mut self, path: usize, Completed { tag, result }: Completed) {
        let slot = usize::try_from(tag).expect("a tag of ours is a slot");
        let Pending { namespace, request } = self.pending[slot].expect("its request is under way");
        let error = match result {
            Ok(()) => return self.end(slot, Ok(())),
            Err(IoError::Path(PathError::Unanswered)) if self.tells_late() && request.operation.changes() => {
                self.park(path, slot);
                return self.fail_parked(self.refusing.unwrap_or(IoError::ConnectionLost));
            }
            Err(error) => self.refusing.unwrap_or(error),
        };
        match error {
            IoError::Path(PathError::Refused(_)) => {
                self.paths[path].refused_until[namespace] = Some(self.now + REFUSED_PAUSE);
                self.waiting.push_back(slot);
            }
            IoError::Path(PathError::Unanswered) if request.operation.changes() => self.park(path, slot),
            IoError::Path(_) => self.waiting.push_back(slot),
            // What it did not send, when it was given up.
            IoError::ConnectionLost if self.has_prospects() => self.waiting.push_back(slot),
            IoError::NamespaceGone if self.leads_elsewhere(path, namespace) => self.waiting.push_back(slot),
            error => self.end(slot, Err(error)),
        }
    }

    /// Gives requests to paths, as far as there are some. Says whether there were.
    fn send_waiting(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.waiting.len() {
            let slot = self.waiting.pop_front().expect("just counted");
            if self.dispatch(slot) {
                any = true;
            } else if self.has_prospects() {
                self.waiting.push_back(slot);
            } else {
                any = true;
                self.end(slot, Err(IoError::ConnectionLost));
            }
        }
        any
    }

    /// Gives a request to a path. False if none leads there now.
    fn dispatch(&mut self, slot: usize) -> bool {
        let Pending { namespace, request } = self.pending[slot].expect("only what is under way is sent");
        // It would be newer than what may still happen behind our back.
        if request.operation.changes() && self.parked.iter().any(Parked::has_failed) {
            return false;
        }
        let candidates =
            self.paths.iter().enumerate().filter_map(|(index, path)| path.candidate(index, namespace));
        let Some(index) = self.policy.choose(candidates, self.last) else {
            if !self.namespaces[namespace].available {
                self.end(slot, Err(IoError::NamespaceGone));
                return true;
            }
            return false;
        };
        let path = &mut self.paths[index];
        let of_host = path.namespaces[namespace].expect("a candidate leads there");
        let tag = u64::try_from(slot).expect("a slot is a small number");
        let taken = path.host.submit(of_host, Request { tag, ..request }).is_ok();
        assert!(taken, "a candidate has room");
        path.in_flight += 1;
        self.last = index;
        true
    }

    /// Whether requests fail now, and what an unanswered write of them may still do matters.
    fn tells_late(&self) -> bool {
        self.fails_fast || self.refusing.is_some() && self.speaker().options().one_of_cores
    }

    /// Whether some path stands or may stand again.
    fn has_prospects(&self) -> bool {
        self.paths.iter().any(|path| !path.host.is_over())
    }

    fn leads_elsewhere(&self, path: usize, namespace: usize) -> bool {
        let others = self.paths.iter().enumerate().filter(|(index, _)| *index != path);
        others.into_iter().any(|(_, other)| other.leads_to(namespace))
    }

    fn end(&mut self, slot: usize, result: Result<(), IoError>) {
        let Pending { namespace, request } = self.pending[slot].take().expect("a request ends once");
        self.free.push(slot);
        self.completed.push_back((namespace, Completed { tag: request.tag, result }));
    }

    /// Fails, with `error`, everything which is not with a path, now and from now on.
    fn refuse(&mut self, error: IoError) {
        self.refusing = Some(error);
        while let Some(slot) = self.waiting.pop_front() {
            self.end(slot, Err(error));
        }
        self.fail_parked(error);
    }

    fn collect_events(&mut self) {
        for index in 0..self.paths.len() {
            while let Some(event) = self.paths[index].host.next_event() {
                self.on_host_event(index, event);
            }
        }
    }

    fn on_host_event(&mut self, index: usize, event: HostEvent) {
        let path = &mut self.paths[index];
        match &event {
            HostEvent::Connected => {
                path.epoch += 1;
                path.last_error = None;
                path.refused_until.fill(None);
            }
            HostEvent::Lost(fault) => path.last_error = Some(fault.to_string()),
            HostEvent::AttemptFailed(error) | HostEvent::Failed(error) => {
                path.last_error = Some(error.to_string());
            }
            HostEvent::AccessChanged => path.refused_until.fill(None),
            HostEvent::NamespaceChanged(_) | HostEvent::NamespaceAdded(_) if self.paths.len() > 1 => {
                self.check_subsystem(index);
                return self.learn(index);
            }
            HostEvent::FailsFast
            | HostEvent::NamespaceChanged(_)
            | HostEvent::NamespaceAdded(_)
            | HostEvent::Notified(_)
            | HostEvent::Reauthenticated { .. }
            | HostEvent::ReauthenticationFailed(_)
            | HostEvent::Closed => {}
        }
        if self.paths.len() > 1 && event == HostEvent::Connected {
            self.check_subsystem(index);
            self.learn(index);
        }
        self.events.push_back((index, event));
    }
}

/// One namespace, by whichever path.
#[derive(Debug)]
pub struct PathsVolume<'a> {
    paths: &'a mut Paths,
    namespace: usize,
}

impl Volume for PathsVolume<'_> {
    fn geometry(&self) -> Geometry {
        self.paths.namespaces()[self.namespace].geometry
    }

    fn state(&self) -> State {
        self.paths.state()
    }

    fn has_room(&self) -> bool {
        self.paths.has_room()
    }

    fn submit(&mut self, request: Request) -> Result<(), Request> {
        self.paths.submit(self.namespace, request)
    }
}

/// The queue pair an event is about.
fn queue_pair(event: &Event) -> Option<QpHandle> {
    match event {
        Event::Received(received) => Some(received.qp),
        Event::Completed(wc) => Some(wc.qp),
        Event::Connection(event) => match &**event {
            CmEvent::Request(_) => None,
            CmEvent::Established { qp, .. }
            | CmEvent::Refused { qp, .. }
            | CmEvent::Disconnected { qp, .. } => Some(*qp),
        },
    }
}
