//! Making an io_uring instance: the best the kernel offers, and what to do where it offers none.
use std::fs;
use std::io;

use io_uring::{Builder, IoUring};

/// Why there is no ring, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error(
        "io_uring is disabled on this machine (kernel.io_uring_disabled = {level}); enable it with \
         `sysctl -w kernel.io_uring_disabled=0`{group}",
        group = if *level == 1 { ", or put this user into the group of kernel.io_uring_group" } else { "" }
    )]
    Disabled { level: u32 },
    #[error(
        "io_uring is forbidden to this process, most likely by a container's seccomp profile; allow the \
         system calls io_uring_setup, io_uring_enter and io_uring_register (for instance with \
         `--security-opt seccomp=unconfined`)"
    )]
    Forbidden,
    #[error("this kernel is built without io_uring; Linux 5.11 or later with CONFIG_IO_URING is needed")]
    Missing,
    #[error("the io_uring of this kernel is too old; Linux 5.11 or later is needed")]
    TooOld,
    #[error("too little memory may be locked for io_uring; raise it with `ulimit -l` or LimitMEMLOCK=")]
    LockedMemory,
    #[error("io_uring fails")]
    Other(#[from] io::Error),
}

/// Where the administrator may have switched io_uring off.
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// How a ring learns that an operation has completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Completions {
    /// The device says so, by an interrupt.
    Announced,
    /// Whoever enters the kernel looks for them (`IORING_SETUP_IOPOLL`).
    LookedFor,
}

/// A ring with `entries` submission entries, and completions for four times as many operations in flight.
pub(super) fn build(entries: u32, completions: Completions) -> Result<IoUring, RingError> {
    let variants: [fn(&mut Builder<_, _>); 4] = [
        // Linux 6.1: completions wait until this thread asks for them.
        |builder| {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        },
        // Linux 6.0.
        |builder| {
            builder.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag();
        },
        // Linux 5.19.
        |builder| {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        },
        |_| {},
    ];
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for variant in variants {
        let mut builder = IoUring::builder();
        variant(builder.dontfork().setup_clamp().setup_cqsize(entries.saturating_mul(4)));
        if completions == Completions::LookedFor {
            builder.setup_iopoll();
        }
        match builder.build(entries) {
            Ok(ring) if ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop() => {
                return Ok(ring);
            }
            Ok(_) => return Err(RingError::TooOld),
            Err(error) => refusal = error,
        }
        if refusal.raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(explain(refusal, fs::read_to_string(DISABLED).ok().as_deref()))
}

/// What a refusal means, given what the kernel says about io_uring being disabled.
fn explain(refusal: io::Error, disabled: Option<&str>) -> RingError {
    let level = disabled.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    match refusal.raw_os_error() {
        Some(libc::EPERM) if level > 0 => RingError::Disabled { level },
        Some(libc::EPERM | libc::EACCES) => RingError::Forbidden,
        Some(libc::ENOSYS) if disabled.is_some() => RingError::Forbidden,
        Some(libc::ENOSYS) => RingError::Missing,
        Some(libc::EINVAL) => RingError::TooOld,
        Some(libc::ENOMEM) => RingError::LockedMemory,
        _ => RingError::Other(refusal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do() {
        let message = |errno, disabled| explain(io::Error::from_raw_os_error(errno), disabled).to_string();
        assert!(message(libc::EPERM, Some("2\n")).contains("sysctl -w kernel.io_uring_disabled=0"));
        assert!(message(libc::EPERM, Some("1\n")).contains("kernel.io_uring_group"));
        assert!(!message(libc::EPERM, Some("2\n")).contains("kernel.io_uring_group"));
        assert!(message(libc::EPERM, Some("0\n")).contains("seccomp"));
        assert!(message(libc::ENOSYS, Some("0\n")).contains("seccomp"));
        assert!(message(libc::ENOSYS, None).contains("CONFIG_IO_URING"));
        assert!(message(libc::EINVAL, None).contains("5.11"));
        assert!(message(libc::ENOMEM, None).contains("ulimit -l"));
        assert!(message(libc::EMFILE, None).contains("io_uring fails"));
    }
}
