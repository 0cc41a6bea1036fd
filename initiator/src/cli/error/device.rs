//! What to do when the kernel does not give us a block device, by what it says.
use std::io;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use crate::export::loop_device::LoopError;
use crate::export::nbd_device::NbdDeviceError;
use crate::export::ublk::UblkError;

/// Any user may have it, on any machine.
const WITHOUT: &str = "; or use --via nbd, which needs neither";

/// When a FUSE file system cannot be mounted.
pub(super) fn mount_remedy(error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if is_closed_to_us("/dev/fuse") => {
            "open /dev/fuse to this user (chmod 666 /dev/fuse, as most systems have it), or run it as root"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "mounting takes root and CAP_SYS_ADMIN: in a container, run it with --privileged and --device /dev/fuse"
        }
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            "the kernel has no FUSE: load it with modprobe fuse; in a container, hand in /dev/fuse"
        }
        Some(libc::ENOMEM | libc::EAGAIN) => "free memory, or raise the limit on locked memory (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)",
        Some(libc::ENOSPC) => "the limit on mounts is reached (sysctl fs.mount-max): unmount something",
        Some(libc::EBUSY) => "something is mounted there already: ironside list cleans up what is left over",
        _ => "FUSE takes root and /dev/fuse",
    };
    format!("{advice}{WITHOUT}")
}

fn is_closed_to_us(path: &str) -> bool {
    access(path, AccessFlags::R_OK | AccessFlags::W_OK) == Err(Errno::EACCES)
}

/// When the ublk driver does not make or keep a device.
pub(super) fn ublk_remedy(error: &UblkError) -> String {
    let advice = match error {
        UblkError::Open(source) if source.raw_os_error() == Some(libc::ENOENT) => {
            "load the driver (modprobe ublk_drv); in a container, hand in /dev/ublk-control"
        }
        UblkError::Open(_) => {
            "ublk devices take root and CAP_SYS_ADMIN: in a container, run it with --privileged"
        }
        UblkError::TooOld => "use --via fuse, which older kernels have too",
        UblkError::BlockSize(_) => "format it with smaller blocks",
        UblkError::Device { doing: "opening it", .. } => "in a container, mount the machine's /dev",
        UblkError::Device { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
            "ironside list says whether the target answers; the log may say more"
        }
        UblkError::Device { .. } => "the kernel's log (dmesg) may say more",
        UblkError::Gone | UblkError::Transfer { .. } => {
            return "ironside disconnect it, and connect anew".into();
        }
    };
    format!("{advice}{WITHOUT}")
}

/// When the kernel's NBD client does not make or keep a device.
pub(super) fn nbd_device_remedy(error: &NbdDeviceError) -> String {
    let advice = match error {
        NbdDeviceError::Open(_) => "load the driver (modprobe nbd)",
        NbdDeviceError::BlockSize(_) => "format it with smaller blocks",
        NbdDeviceError::Refused { source, .. } if source.raw_os_error() == Some(libc::EPERM) => {
            "NBD devices take root and CAP_SYS_ADMIN: in a container, run it with --privileged"
        }
        NbdDeviceError::Refused { .. } => "the kernel's log (dmesg) may say more",
        NbdDeviceError::Gone => return "ironside disconnect it, and connect anew".into(),
    };
    format!("{advice}{WITHOUT}")
}

/// When the loop driver does not make a device of the file.
pub(super) fn loop_remedy(error: &LoopError) -> String {
    let (path, source) = match error {
        LoopError::Open { path, source } | LoopError::Refused { path, source } => (path.as_path(), source),
        LoopError::NoneFree(source) => (std::path::Path::new("/dev/loop-control"), source),
    };
    let advice = match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "loop devices take root and CAP_SYS_ADMIN: in a container, run it with --privileged".into()
        }
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) if path.ends_with("loop-control") => {
            "the kernel has no loop driver: load it with modprobe loop".into()
        }
        Some(libc::ENOENT | libc::ENXIO) => format!(
            "{0} is not there, though the kernel has it: in a container, mount the machine's /dev, or make it \
             (mknod {0} b 7 N)",
            path.display()
        ),
        Some(libc::ENOSPC | libc::EBUSY) => {
            "detach loop devices nobody needs (losetup --list), or load the driver with a larger max_loop".into()
        }
        Some(libc::EINVAL | libc::ENOTTY) => {
            "the loop driver does not take it: it has to be that of Linux 5.8 or later, and blocks have at most \
             a page"
                .into()
        }
        Some(libc::ENOMEM) => "free memory".into(),
        _ => "loop devices take root and the loop driver".to_owned(),
    };
    format!("{advice}{WITHOUT}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_remedy() {
        let os = io::Error::from_raw_os_error;
        assert!(mount_remedy(&os(libc::EPERM)).contains("/dev/fuse"));
        assert!(mount_remedy(&os(libc::ENODEV)).contains("modprobe fuse"));
        let open =
            |path: &str, number| loop_remedy(&LoopError::Open { path: path.into(), source: os(number) });
        assert!(open("/dev/loop-control", libc::ENOENT).contains("modprobe loop"));
        assert!(open("/dev/loop9", libc::ENOENT).contains("mknod /dev/loop9"));
        assert!(loop_remedy(&LoopError::NoneFree(os(libc::ENOSPC))).contains("losetup"));
        for number in 1..200 {
            assert!(mount_remedy(&os(number)).contains("--via nbd"));
            assert!(open("/dev/loop1", number).contains("--via nbd"));
        }
    }
}
