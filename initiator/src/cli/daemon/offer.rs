//! What the process offers to others on this machine: the NBD socket, or the FUSE file and its loop device.
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ironside_common::size::Size;
use tracing::{info, warn};

use crate::attach::{Attached, Description};
use crate::cli::attachment::{Attachment, Claim, MOUNT, Specification, Via, VolumeFacts};
use crate::cli::error::CliError;
use crate::export::fuse::{Fuse, Mount};
use crate::export::loop_device::LoopDevice;
use crate::export::nbd::{Listener, Parameters, Server};
use crate::export::usage::{self, Use};
use crate::host::Namespace;
use crate::volume::Geometry;

/// The way to be taken, and why in words for people.
///
/// # Errors
/// If the way asked for is not open here.
pub(super) fn decide(wanted: Via) -> Result<(Via, String), CliError> {
    let missing = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| !Path::new(path).exists());
    decide_here(wanted, nix::unistd::geteuid().is_root(), missing)
}

fn decide_here(wanted: Via, root: bool, missing: Option<&'static str>) -> Result<(Via, String), CliError> {
    let nbd = |reason: String| Ok((Via::Nbd, reason));
    match (wanted, root, missing) {
        (Via::Nbd, ..) => nbd("NBD, as asked".into()),
        (Via::Fuse, true, None) => Ok((Via::Fuse, "FUSE and the loop driver, as asked".into())),
        (Via::Fuse, false, _) => Err(CliError::BlockDeviceTakesRoot),
        (Via::Fuse, true, Some(missing)) => Err(CliError::NoDriver { missing }),
        (Via::Auto, true, None) => {
            let reason = "FUSE and the loop driver: the best here, since it makes a block device";
            Ok((Via::Fuse, reason.into()))
        }
        (Via::Auto, true, Some(missing)) => {
            nbd(format!("NBD: the best here, since a block device takes {missing}, which is missing"))
        }
        (Via::Auto, false, _) => nbd("NBD: the best here, since a block device takes root".into()),
    }
}

/// What is offered.
pub(super) enum Offer {
    Nbd { socket: PathBuf, clients: Arc<AtomicUsize> },
    Fuse { mount: Mount, path: PathBuf, device: LoopDevice, size: u64 },
}

impl Offer {
    /// Offers the namespace by way of the attachment's directory.
    pub(super) fn make(
        attached: &Attached,
        directory: &Path,
        specification: &Specification,
        namespace: &Namespace,
        via: Via,
    ) -> Result<Self, CliError> {
        let read_only = specification.read_only || namespace.geometry.read_only;
        let geometry = Geometry { read_only, ..namespace.geometry };
        let nsid = namespace.nsid;
        if via == Via::Fuse {
            return Self::fuse(attached, &directory.join(MOUNT), nsid, geometry);
        }
        let description = format!("{} namespace {nsid}", specification.nqn);
        let parameters = Parameters::new(nsid.to_string(), description, geometry);
        Self::nbd(attached, &directory.join("nbd.sock"), nsid, parameters)
    }

    fn nbd(attached: &Attached, path: &Path, nsid: u32, parameters: Parameters) -> Result<Self, CliError> {
        let failed = |source| CliError::Nbd { path: path.to_owned(), source };
        let listener = Listener::bind(path).map_err(failed)?;
        let clients = listener.clients();
        attached.export(nsid, Box::new(move |_| Ok(Box::new(Server::new(listener, parameters)))))?;
        Ok(Self::Nbd { socket: path.to_owned(), clients })
    }

    fn fuse(attached: &Attached, path: &Path, nsid: u32, geometry: Geometry) -> Result<Self, CliError> {
        let failed = |source| CliError::Mount { path: path.to_owned(), source };
        DirBuilder::new().mode(0o700).create(path).map_err(failed)?;
        let (mount, parts) = Mount::new(path, geometry).map_err(failed)?;
        attached.export(nsid, Box::new(move |site| Ok(Box::new(Fuse::new(parts, site.memory)))))?;
        match LoopDevice::attach(&mount.file(), geometry.block_size, geometry.read_only) {
            Ok(device) => Ok(Self::Fuse { mount, path: path.to_owned(), device, size: geometry.size }),
            Err(error) => {
                // Or the mount would stay behind.
                attached.fail_fast();
                unmount(mount, path);
                Err(error.into())
            }
        }
    }

    /// What others open.
    pub(super) fn device(&self) -> PathBuf {
        match self {
            Self::Nbd { socket, .. } => socket.clone(),
            Self::Fuse { device, .. } => device.path().to_owned(),
        }
    }

    pub(super) fn uses(&self) -> Vec<Use> {
        match self {
            Self::Nbd { clients, .. } => match clients.load(Ordering::Relaxed) {
                0 => Vec::new(),
                clients => vec![Use::NbdClients(clients)],
            },
            Self::Fuse { .. } => usage::of(&self.device()),
        }
    }

    /// Writes down what is offered.
    pub(super) fn attachment(
        &self,
        claim: &Claim,
        specification: &Specification,
        found: &Description,
        namespace: &Namespace,
        reason: String,
    ) -> Attachment {
        let (via, loop_device) = match self {
            Self::Nbd { .. } => (Via::Nbd, None),
            Self::Fuse { device, .. } => (Via::Fuse, Some(device.path().to_owned())),
        };
        Attachment {
            name: claim.name.clone(),
            pid: std::process::id(),
            specification: specification.clone(),
            nsid: namespace.nsid,
            via,
            reason,
            carried: found.carried.clone(),
            device: self.device(),
            read_only: namespace.geometry.read_only || specification.read_only,
            loop_device,
            volume: VolumeFacts::new(&found.controller, namespace),
        }
    }

    /// The volume may have another size now: a loop device has to be told.
    pub(super) fn follow(&mut self, now: u64) {
        let Self::Fuse { device, size, mount, .. } = self else { return };
        if *size == now {
            return;
        }
        *size = now;
        // The kernel asks for the file's size again, and only then sees the new one.
        let resized = fs::metadata(mount.file()).map(|_| device.resized());
        match resized {
            Ok(Ok(())) => info!("{} has {} now", device.path().display(), Size(now)),
            other => warn!("{} keeps its old size: {other:?}", device.path().display()),
        }
    }

    /// Has what the kernel still holds back written, unless that takes too long.
    pub(super) fn sync(&self, patience: Duration) {
        if let Self::Fuse { device, .. } = self {
            let path = device.path().to_owned();
            let (done, synced) = mpsc::channel();
            thread::spawn(move || {
                // It is of no more use to whom there is nobody left to tell.
                let _ = done.send(File::open(&path).and_then(|file| file.sync_all()));
            });
            match synced.recv_timeout(patience) {
                Ok(Ok(())) => {}
                other => warn!("not everything was written: {other:?}"),
            }
        }
    }

    /// Takes everything away. What cannot be is said in the log: the process ends all the same, and with it
    /// what it serves.
    pub(super) fn withdraw(self) {
        let Self::Fuse { mount, path, device, .. } = self else { return };
        if let Err(error) = device.detach() {
            warn!("the loop device stays: {error}");
        }
        unmount(mount, &path);
    }
}

fn unmount(mount: Mount, path: &Path) {
    let gone: io::Result<()> = mount.unmount().and_then(|()| fs::remove_dir(path));
    if let Err(error) = gone {
        warn!("the mount stays: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_device_is_made_where_it_can_be_and_refused_where_it_cannot() {
        let way = |wanted, root, missing| decide_here(wanted, root, missing).unwrap().0;
        assert_eq!(way(Via::Auto, true, None), Via::Fuse);
        assert_eq!(way(Via::Auto, true, Some("/dev/fuse")), Via::Nbd);
        assert_eq!(way(Via::Auto, false, None), Via::Nbd);
        assert_eq!(way(Via::Fuse, true, None), Via::Fuse);
        let refused = decide_here(Via::Fuse, false, None).unwrap_err();
        assert!(refused.to_string().contains("root"), "{refused}");
        assert!(refused.remedy().unwrap().contains("--via nbd"));
        let refused = decide_here(Via::Fuse, true, Some("/dev/fuse")).unwrap_err();
        assert!(refused.to_string().contains("/dev/fuse"), "{refused}");
        assert!(refused.remedy().unwrap().contains("modprobe fuse"));
    }
}
