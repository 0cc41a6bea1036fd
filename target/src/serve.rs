//! `ironside-target serve`: from a configuration to reactors at work, until a signal says stop; and what is
//! served changes meanwhile.
mod daemon;
mod departed;
mod keeper;
mod reactors;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use ironside_common::reactor::clock::now;
use ironside_common::verbs::Address;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use self::daemon::Daemon;
use crate::catalog::Catalog;
use crate::control::config::Config;
use crate::control::prepare::PrepareError;
use crate::control::source::Source;
use crate::reactor::ReactorError;
use crate::rpc::{self, ControlError, Server, Subject};

/// How often it is looked whether media have another size, and whether all reactors live.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Why the target does not serve, or stopped to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("cannot listen at {0}{hint}", hint = listen_hint(.0, .1))]
    Listen(Address, #[source] io::Error),
    #[error("metrics cannot be told at {0}{hint}", hint = listen_hint(&(*.0).into(), .1))]
    Metrics(SocketAddr, #[source] io::Error),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("signals cannot be waited for")]
    Signals(#[source] nix::Error),
    #[error("reactor {0} failed")]
    Reactor(usize, #[source] ReactorError),
}

fn listen_hint(address: &Address, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            ": something else listens there; stop it or choose another --listen".into()
        }
        io::ErrorKind::AddrNotAvailable => {
            format!(": no interface of this machine has that address{}", bracket_hint(address))
        }
        io::ErrorKind::PermissionDenied if address.is_on_machine() => {
            ": it takes the right to write its directory".into()
        }
        io::ErrorKind::NotFound if address.is_on_machine() => ": its directory has to be there".into(),
        io::ErrorKind::PermissionDenied => ": ports below 1024 are for root".into(),
        _ => String::new(),
    }
}

/// `::1:4460` is an address in full, but who writes it mostly means a port.
fn bracket_hint(address: &Address) -> String {
    let text = address.ip().to_string();
    match text.rsplit_once(':') {
        Some((before, port)) if port.len() == 4 && port.parse::<u16>().is_ok() => {
            // `::4460` leaves one colon of the two.
            let before = if before == ":" { "::" } else { before };
            format!("; if {port} is the port, write [{before}]:{port}")
        }
        _ => String::new(),
    }
}

/// Serves until SIGTERM or SIGINT, then drains. Prints the line that begins with `ready` once it serves. SIGHUP
/// has `source` read again, and what is served changed to what it says.
///
/// # Errors
/// What prevented it; nothing is left running.
pub fn serve(config: Config, source: Source) -> Result<(), ServeError> {
    let signals = block_signals()?;
    raise_open_files();
    // Before anybody hears that it serves: what it holds open then is what it holds open when idle.
    let signals = SignalFd::new(&signals).map_err(ServeError::Signals)?;
    // Before there are other threads.
    let mut server = config.control.as_deref().map(Server::bind).transpose()?;
    let mut daemon = Daemon::start(config, source)?;
    announce(daemon.catalog(), daemon.config());
    let failed = serve_until_told(&mut daemon, server.as_mut(), &signals);
    drop(server);
    tracing::info!("stopping: commands under way are finished");
    failed.and(daemon.stop())
}

/// Until a signal says stop, or a reactor fails.
fn serve_until_told(
    daemon: &mut Daemon,
    mut server: Option<&mut Server>,
    signals: &SignalFd,
) -> Result<(), ServeError> {
    let (mut look_at, mut more) = (now() + LOOK_INTERVAL, false);
    loop {
        let pressed = server.as_ref().and_then(|server| server.deadline());
        let until = if more { now() } else { pressed.map_or(look_at, |at| at.min(look_at)) };
        match wait(signals, server.as_deref(), until - now()).map_err(ServeError::Signals)? {
            Some(Signal::SIGHUP) => reload(daemon),
            Some(_) => return Ok(()),
            None => {}
        }
        if let Some(server) = &mut server {
            more = server.turn(now(), &mut |request| rpc::answer(request, daemon));
        }
        if now() >= look_at {
            if daemon.has_failed() {
                return Ok(());
            }
            daemon.look_at_media();
            look_at = now() + LOOK_INTERVAL;
        }
    }
}

/// Tells the service manager before and after, as sd_notify(3) wants it.
fn reload(daemon: &mut Daemon) {
    // Outside of systemd there is nobody to notify.
    if let Ok(now) = sd_notify::NotifyState::monotonic_usec_now() {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Reloading, now]);
    }
    // The log has said what came of it.
    let _ = daemon.reload();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
}

/// The line scripts wait for: addresses, then NQNs.
fn announce(catalog: &Catalog, config: &Config) {
    let addresses: Vec<_> = catalog.listeners().iter().map(|one| one.address.to_string()).collect();
    let nqns: Vec<_> = catalog.subsystems().iter().map(|one| one.nqn().to_string()).collect();
    println!("ready on {} serving {}", addresses.join(" "), nqns.join(" "));
    tracing::info!(crc = ?config.crc, queue_depth = config.queue_depth, "serving");
    tracing::info!("taken on at most: {}", config.limits.in_line());
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
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    // Every thread made later inherits this, so that only the one who asks gets them.
    signals.thread_block().map_err(ServeError::Signals)?;
    Ok(signals)
}

/// Waits for one of the signals, or for somebody at the control socket; nothing if no signal came in time.
fn wait(
    descriptor: &SignalFd,
    server: Option<&Server>,
    timeout: Duration,
) -> Result<Option<Signal>, nix::Error> {
    // Not a moment too early.
    let timeout = u16::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
    let signals = PollFd::new(descriptor.as_fd(), PollFlags::POLLIN);
    let clients = server.into_iter().flat_map(Server::descriptors);
    let mut descriptors: Vec<_> = std::iter::once(signals).chain(clients).collect();
    match poll(&mut descriptors, PollTimeout::from(timeout)) {
        Ok(0) | Err(nix::errno::Errno::EINTR) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error),
    }
    if descriptors[0].revents().is_none_or(|events| events.is_empty()) {
        return Ok(None);
    }
    let signal = descriptor.read_signal()?;
    Ok(signal.and_then(|signal| i32::try_from(signal.ssi_signo).ok()?.try_into().ok()))
}

/// An error and what caused it, on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_behind_an_address_without_brackets_is_guessed() {
        let hint =
            |text: &str| bracket_hint(&Address::from((text.parse::<std::net::IpAddr>().unwrap(), 4420)));
        assert_eq!(hint("::1:4460"), "; if 4460 is the port, write [::1]:4460");
        assert_eq!(hint("::4460"), "; if 4460 is the port, write [::]:4460");
        for address in ["::1", "2001:db8::abcd", "192.0.2.1"] {
            assert_eq!(hint(address), "");
        }
    }
}
