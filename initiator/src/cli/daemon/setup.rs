//! What a process in the background does to itself before anything else.
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{dup2_stderr, dup2_stdout, setsid};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use tracing::info;

/// Makes a session of its own, so that no terminal takes the process with it.
pub(super) fn leave_the_terminal() {
    // It can only fail when there is one already.
    let _ = setsid();
}

/// Everything the process has to say from now on goes to this file.
pub(super) fn log_to(path: &Path) -> io::Result<()> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    dup2_stderr(&log)?;
    let filter = crate::cli::log::filter_or_default();
    // A second one only comes up in tests.
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false).try_init();
    Ok(())
}

/// Lets go of whoever waits for our output.
pub(super) fn close_stdout() -> io::Result<()> {
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    Ok(dup2_stdout(&null)?)
}

/// The signals which tell the process to end or to read secrets again, to be read from a descriptor by it alone. Called before there
/// are other threads, which inherit that they do not get them.
pub(super) fn signals() -> io::Result<SignalFd> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?)
}

/// What this process needs memory for starts no writing back, which could be of the very data that it is to write. Called
/// before there are other threads, and before any io_uring has workers of the kernel's: they inherit it.
pub(super) fn become_flusher() {
    if let Err(error) = configure_io_flusher_behavior(true) {
        info!("not treated as an I/O flusher, which takes CAP_SYS_RESOURCE: {error}");
    }
}

/// The kernel may want memory, and to get it wants to write to a device which this very process serves: so it
/// must not have to wait for memory itself.
pub(super) fn protect_memory() {
    // Who kills this process to get memory gets none, and loses what waits to be written.
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        info!("not spared when memory runs out, which takes CAP_SYS_RESOURCE: {error}");
    }
    // Within a limit every later allocation would fail once it is reached.
    if let Err(error) = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
        return info!("memory is not locked, since how much may be is limited: {error}");
    }
    // As pages come into use: the buffers are far larger than what is ever touched of them.
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(flags) {
        info!("memory is not locked, which takes CAP_IPC_LOCK: {error}");
    }
}
