//! The process behind an attachment, from its first word to its last.
//!
//! The main thread makes the connection and the exports, says that the volume is ready, and then waits for
//! signals, questions and news of the reactor, which runs in a thread of its own.
mod offer;
mod setup;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signalfd::SignalFd;
use tracing::{info, warn};

use self::offer::Offer;
use super::attachment::{Answer, Attachment, Claim, Question, Report, Specification, Status, answer, listen};
use super::error::CliError;
use super::inquiry::choose;
use crate::attach::{AttachOptions, Attached};
use crate::export::usage::Use;
use crate::host::HostEvent;
use crate::volume::State;

/// How long what is in the device's cache may take to be written when the process is told to end.
const SYNC_PATIENCE: Duration = Duration::from_secs(5);
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

struct Daemon {
    attachment: Attachment,
    claim: Claim,
    attached: Attached,
    offer: Offer,
    control: UnixListener,
    signals: SignalFd,
}

impl Daemon {
    fn start() -> Result<Self, CliError> {
        let system = |doing| move |source: io::Error| CliError::System { doing, source };
        let specification: Specification = serde_json::from_reader(io::stdin().lock())
            .map_err(io::Error::from)
            .map_err(system("reading what to attach"))?;
        setup::leave_the_terminal();
        let claim = super::attachment::Directory::open()?.claim()?;
        let started = Self::start_in(&claim, &specification);
        match started {
            Ok((attachment, attached, offer, control, signals)) => {
                Ok(Self { attachment, claim, attached, offer, control, signals })
            }
            Err(error) => {
                // The error says more than a failure to tidy up would.
                let _ = claim.release();
                Err(error)
            }
        }
    }

    fn start_in(
        claim: &Claim,
        specification: &Specification,
    ) -> Result<(Attachment, Attached, Offer, UnixListener, SignalFd), CliError> {
        let system = |doing| move |source| CliError::System { doing, source };
        setup::log_to(&claim.path().join("log")).map_err(system("opening the log"))?;
        let signals = setup::signals().map_err(system("asking for signals"))?;
        let (via, reason) = offer::decide(specification.via);
        if via == super::attachment::Via::Fuse {
            setup::protect_memory();
        }
        let control = listen(claim.path()).map_err(system("listening for questions"))?;
        let address = specification.address;
        let options = specification.options();
        let options = AttachOptions { crc: specification.crc.is_wanted(), ..AttachOptions::new(options) };
        let attached = Attached::attach(options).map_err(|source| CliError::Attach { address, source })?;
        let found = attached.description();
        let namespace = choose(found, specification.nsid)?;
        let offer = Offer::make(&attached, claim.path(), specification, namespace, via)?;
        let attachment = offer.attachment(claim, specification, &found.controller, namespace, reason);
        claim.write(&attachment)?;
        info!("{} is ready at {}", attachment.nqn, attachment.device.display());
        Ok((attachment, attached, offer, control, signals))
    }

    /// Until it is told to end, or there is nothing left to serve.
    fn serve(mut self) -> Result<(), CliError> {
        loop {
            match self.wait()? {
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

    /// Looks what became of the association.
    fn follow(&mut self) {
        while let Ok(event) = self.attached.next_event(Duration::ZERO) {
            info!("{event:?}");
            if let HostEvent::NamespaceChanged(_) = event
                && let Some(status) = self.attached.status()
                && let Some((_, geometry)) =
                    status.volumes.iter().find(|(nsid, _)| *nsid == self.attachment.nsid)
            {
                self.offer.follow(geometry.size);
            }
        }
    }

    /// Answers whoever asks. True if that means to end.
    fn answer_one(&mut self) -> bool {
        let Ok((socket, _)) = self.control.accept() else { return false };
        let mut ends = false;
        let answered = answer(&socket, |question| match question {
            Question::Status => Answer::Status(self.status()),
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

    fn status(&self) -> Status {
        // The words are those of the kernel's controllers.
        let state = match self.attached.status().map(|status| status.state) {
            Some(State::Connected) => "live",
            Some(State::Connecting | State::Reconnecting) => "connecting",
            Some(State::Failed) | None => "dead",
        };
        Status { state: state.into() }
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
