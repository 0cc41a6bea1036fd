//! The process behind an attachment, from its first word to its last.
//!
//! The main thread makes the connection and the exports, says that the volume is ready, and then waits for
//! signals, questions and news of the reactor, which runs in a thread of its own.
mod offer;
mod rekey;
mod setup;
mod ways;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::auth::Keys;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use tracing::{info, warn};

use self::offer::Offer;
pub(super) use self::ways::{Lack, Machine};
use super::attachment::{
    self, Answer, Attachment, Claim, Condition, Order, PathCondition, Question, Report, Specification, Via,
    VolumeFacts, listen,
};
use super::error::CliError;
use super::inquiry::choose;
use super::secrets::Given;
use crate::attach::{AttachOptions, Attached, Status};
use crate::export::usage::Use;
use crate::host::{HostEvent, Namespace, ReservationNotice};
use crate::paths::PathStatus;
use crate::volume::State;

/// How long what is in the device's cache may take to be written when the process is told to end.
const SYNC_PATIENCE: Duration = Duration::from_secs(5);
/// Notifications of reservations kept; the oldest are forgotten.
const NOTICES_MAX: usize = 255;
/// How often it is looked what became of the association.
const EVENTS_INTERVAL_MS: u16 = 1000;

/// Runs the process. What goes wrong before the volume is ready is told to whoever started it.
pub(super) fn run() -> Result<(), CliError> {
    let attachment = Daemon::start();
    let report = match &attachment {
        Ok(daemon) => Report::Ready(Box::new(daemon.attachment.clone())),
        Err(error) => {
            Report::Failed { message: error.to_string(), remedy: error.remedy(), class: error.class() }
        }
    };
    let told = tell(&report);
    let daemon = attachment?;
    // Whoever started it has gone away, and would never know that it is attached.
    if told.is_err() {
        warn!("nobody waits for the volume any more");
        return daemon.end();
    }
    daemon.serve()
}

fn tell(report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()?;
    setup::close_stdout()
}

fn connect(specification: &Specification, given: &Given) -> Result<Attached, CliError> {
    let mut options = Box::new(specification.options());
    options.keys = specification.secrets.keys(given)?;
    let attach = AttachOptions {
        more_addresses: specification.more_addresses.clone(),
        policy: specification.iopolicy,
        crc: specification.crc,
        provider: specification.provider,
        registration: specification.registration,
        cores: specification.cores(),
        ..AttachOptions::new((*options).clone())
    };
    Attached::attach(attach).map_err(|source| CliError::Attach { options, source })
}

struct Daemon {
    attachment: Attachment,
    claim: Claim,
    attached: Attached,
    offer: Offer,
    control: UnixListener,
    signals: SignalFd,
    /// Of reservations, oldest first.
    notices: VecDeque<ReservationNotice>,
    /// What the command line said of secrets, and those there are.
    given: Given,
    keys: Option<Arc<Keys>>,
}

impl Daemon {
    fn start() -> Result<Self, CliError> {
        let system = |doing| move |source: io::Error| CliError::System { doing, source };
        let Order { specification, given, take_over } = serde_json::from_reader(io::stdin().lock())
            .map_err(io::Error::from)
            .map_err(system("reading what to attach"))?;
        setup::leave_the_terminal();
        let directory = attachment::Directory::open()?;
        let (claim, before) = match take_over {
            None => (directory.claim()?, None),
            Some(name) => {
                let taken = directory.take_over(&name)?;
                let (claim, before) = taken.ok_or(CliError::NotRecoverable { name })?;
                (claim, Some(before))
            }
        };
        let started = Self::start_in(&claim, &specification, &given, before.as_ref());
        match started {
            Ok((attachment, attached, offer, control, signals)) => {
                let (notices, keys) = (VecDeque::new(), None);
                let mut daemon =
                    Self { attachment, claim, attached, offer, control, signals, notices, given, keys };
                daemon.remember_secrets()?;
                Ok(daemon)
            }
            Err(error) => {
                // The error says more than a failure to tidy up would; what was taken over stays for another attempt.
                if before.is_none() {
                    let _ = claim.release();
                }
                Err(error)
            }
        }
    }

    fn start_in(
        claim: &Claim,
        specification: &Specification,
        given: &Given,
        before: Option<&Attachment>,
    ) -> Result<(Attachment, Attached, Offer, UnixListener, SignalFd), CliError> {
        let system = |doing| move |source| CliError::System { doing, source };
        setup::log_to(&claim.path().join("log")).map_err(system("opening the log"))?;
        let signals = setup::signals().map_err(system("asking for signals"))?;
        // Already to look whether there is ublk takes an io_uring.
        let asked = before.map_or(specification.via, |before| before.via);
        if asked == Via::Auto || asked.makes_a_device() {
            setup::become_flusher();
        }
        let (via, reason) = match before {
            None => ways::decide(specification.via, specification.cores().len())?,
            Some(before) => (before.via, format!("{}, taken over", before.via.in_words())),
        };
        if via.makes_a_device() {
            setup::protect_memory();
        }
        let control = listen(claim.path()).map_err(system("listening for questions"))?;
        let attached = connect(specification, given)?;
        let found = attached.description();
        let nsid = before.map(|before| before.nsid).or(specification.nsid);
        let namespace = choose(found, nsid)?;
        let offer = match before {
            None => Offer::make(&attached, claim, specification, namespace, via)?,
            Some(before) => Offer::take_over(&attached, claim, before, namespace)?,
        };
        let attachment = offer.attachment(claim, specification, found, namespace, reason);
        claim.write(&attachment)?;
        info!("{} is ready at {}", specification.nqn, attachment.device.display());
        Ok((attachment, attached, offer, control, signals))
    }

    /// Until it is told to end, or there is nothing left to serve.
    fn serve(mut self) -> Result<(), CliError> {
        loop {
            match self.wait()? {
                News::Signal if self.signal() == Some(Signal::SIGHUP) => {
                    info!("told to read secrets again");
                    self.rekey();
                }
                News::Signal => {
                    info!("told to end by a signal");
                    self.offer.sync(SYNC_PATIENCE);
                    return self.end();
                }
                News::Question => {
                    if self.answer_one() {
                        return self.end();
                    }
                }
                News::None => self.follow(),
            }
        }
    }

    fn wait(&self) -> Result<News, CliError> {
        let mut descriptors = [
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
        ];
        let waiting = |source: nix::Error| CliError::System { doing: "waiting", source: source.into() };
        loop {
            match poll(&mut descriptors, EVENTS_INTERVAL_MS) {
                Err(nix::errno::Errno::EINTR) => {}
                other => {
                    other.map_err(waiting)?;
                    break;
                }
            }
        }
        let happened = |index: usize| descriptors[index].any().unwrap_or(true);
        Ok(if happened(0) {
            News::Signal
        } else if happened(1) {
            News::Question
        } else {
            News::None
        })
    }

    /// Which one came.
    fn signal(&mut self) -> Option<Signal> {
        let read = self.signals.read_signal().ok().flatten()?;
        Signal::try_from(i32::try_from(read.ssi_signo).ok()?).ok()
    }

    /// Looks what became of the association. Its reactor writes the log.
    fn follow(&mut self) {
        let (mut changed, mut lost, mut over) = (false, false, false);
        while let Ok(event) = self.attached.next_event(Duration::ZERO) {
            over |= matches!(event, HostEvent::Failed(_));
            changed |= matches!(event, HostEvent::Connected | HostEvent::NamespaceChanged(_));
            lost |= matches!(event, HostEvent::Lost(_) | HostEvent::AttemptFailed(_));
            self.note(event);
        }
        if changed {
            self.condition();
        }
        // What is over on one core is over on all: nobody is to have half a volume.
        if over && self.attached.cores() > 1 && self.is_dead() {
            self.attached.fail_fast();
        }
        if lost && self.keys.is_some() {
            self.refresh_secrets();
        }
    }

    /// Whether a core has been given up.
    fn is_dead(&self) -> bool {
        self.attached.status().is_some_and(|status| status.state == State::Failed)
    }

    /// Keeps what others may ask for later.
    fn note(&mut self, event: HostEvent) {
        if let HostEvent::Notified(notice) = event {
            if self.notices.len() == NOTICES_MAX {
                self.notices.pop_front();
            }
            self.notices.push_back(notice);
        }
    }

    /// How it is; what has changed is written down, and passed on to the device.
    fn condition(&mut self) -> Condition {
        let status = self.attached.status();
        let nsid = self.attachment.nsid;
        if let Some(Status { controller: Some(controller), namespaces, .. }) = &status
            && let Some(namespace) =
                namespaces.iter().find(|namespace| namespace.nsid == nsid && namespace.available)
        {
            let volume = VolumeFacts::new(controller, namespace);
            self.offer.follow(volume.size);
            if self.attachment.volume != volume {
                self.attachment.volume = volume;
                if let Err(error) = self.claim.write(&self.attachment) {
                    warn!("what has changed cannot be written down: {error}");
                }
            }
        }
        condition(status.as_ref(), nsid)
    }

    /// Answers whoever asks. True if that means to end.
    fn answer_one(&mut self) -> bool {
        let Ok((socket, _)) = self.control.accept() else { return false };
        let mut ends = false;
        let answered = attachment::answer(&socket, |question| match question {
            Question::Status => {
                let condition = self.condition();
                Answer::Status(Box::new(attachment::Status {
                    attachment: self.attachment.clone(),
                    condition,
                }))
            }
            Question::Notifications => {
                self.follow();
                Answer::Notifications(self.notices.iter().copied().collect())
            }
            Question::Rekey => self.rekey(),
            Question::Detach { force } => {
                let uses = if force { Vec::new() } else { self.uses() };
                ends = uses.is_empty();
                if ends { Answer::Detaching } else { Answer::InUse(uses) }
            }
        });
        if let Err(error) = answered {
            warn!("a question could not be answered: {error}");
        }
        ends
    }

    fn uses(&self) -> Vec<Use> {
        self.offer.uses()
    }

    /// Ends everything in the order that leaves nobody waiting: requests fail at once, then the devices
    /// that make them go, then the connection.
    fn end(self) -> Result<(), CliError> {
        self.attached.fail_fast();
        self.offer.withdraw();
        self.attached.close();
        self.claim.release().map_err(|source| CliError::System { doing: "tidying up", source })
    }
}

enum News {
    Signal,
    Question,
    None,
}

/// The state of a namespace whose controller is `status`; nothing if its reactor is no more.
fn condition(status: Option<&Status>, nsid: u32) -> Condition {
    let Some(status) = status else {
        let reason = Some("its reactor does not answer; the log may say why".into());
        let state = "dead".into();
        let paths = Vec::new();
        return Condition { state, seconds: 0, reason, failed_attempts: 0, gives_up_in_seconds: None, paths };
    };
    let namespace = status.namespaces.iter().find(|namespace| namespace.nsid == nsid);
    let (state, reason) = match (status.state, namespace) {
        (State::Connected, Some(Namespace { available: true, .. })) => ("live", None),
        (State::Connected, Some(Namespace { replacement: Some(other), identity, .. }))
            if other == identity =>
        {
            ("gone", Some(format!("namespace {nsid} has blocks of another size now; nothing reaches it")))
        }
        (State::Connected, Some(Namespace { replacement: Some(other), .. })) => {
            ("gone", Some(format!("namespace {nsid} is another one now ({other}); nothing reaches it")))
        }
        (State::Connected, _) => ("gone", Some(format!("there is no namespace {nsid} any more"))),
        (State::Connecting | State::Reconnecting, _) => ("connecting", status.last_error.clone()),
        (State::Failed, _) => ("dead", status.last_error.clone()),
    };
    Condition {
        state: state.into(),
        seconds: status.since.as_secs(),
        reason,
        failed_attempts: status.failed_attempts,
        gives_up_in_seconds: status.gives_up_in.map(|time| time.as_secs()),
        paths: paths(status, nsid),
    }
}

/// Each path to a namespace.
fn paths(status: &Status, nsid: u32) -> Vec<PathCondition> {
    let index = status.namespaces.iter().position(|namespace| namespace.nsid == nsid);
    let path = |path: &PathStatus| PathCondition {
        address: path.address,
        state: match path.state {
            State::Connected => "live",
            State::Connecting | State::Reconnecting => "connecting",
            State::Failed => "dead",
        }
        .into(),
        access: index.and_then(|index| *path.access.get(index)?).map(|state| state.to_string()),
        cntlid: path.cntlid,
        requests: path.requests,
        reason: path.reason.clone(),
    };
    status.paths.iter().map(path).collect()
}
