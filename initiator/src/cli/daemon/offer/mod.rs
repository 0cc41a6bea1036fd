//! What the process offers to others on this machine: a block device of the ublk driver, a socket for NBD or for machines, or
//! the FUSE file with or without a loop device.
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

use crate::attach::{Attached, Description, Export, MakeExport, Site};
use crate::cli::attachment::{Attachment, Claim, MOUNT, Specification, Via, VolumeFacts};
use crate::cli::error::CliError;
use crate::export::Listener;
use crate::export::fuse::{Fuse, Mount};
use crate::export::loop_device::LoopDevice;
use crate::export::nbd::{Parameters, Part, Server};
use crate::export::nbd_device::NbdDevice;
use crate::export::ublk::{Device, Parts, Ublk, UblkError};
use crate::export::usage::{self, Use};
use crate::export::vhost_user::{self, Disk, Machine};
use crate::host::Namespace;
use crate::volume::Geometry;

/// What is offered.
pub(super) enum Offer {
    Ublk {
        device: Device,
        size: u64,
    },
    NbdDevice {
        device: NbdDevice,
        size: u64,
    },
    Nbd {
        socket: PathBuf,
        clients: Arc<AtomicUsize>,
    },
    VhostUser {
        socket: PathBuf,
        machines: Arc<AtomicUsize>,
    },
    /// Without a loop device it is the file that is offered.
    Fuse {
        mount: Mount,
        path: PathBuf,
        device: Option<LoopDevice>,
        size: u64,
    },
}

impl Offer {
    /// Offers the namespace by way of the attachment's directory.
    pub(super) fn make(
        attached: &Attached,
        claim: &Claim,
        specification: &Specification,
        namespace: &Namespace,
        via: Via,
    ) -> Result<Self, CliError> {
        let geometry = geometry(specification, namespace);
        let nsid = namespace.nsid;
        match via {
            Via::Ublk => {
                let mark = claim.mark()?;
                let queues = u16::try_from(attached.cores()).expect("cores are counted");
                let (mut device, parts) = Device::add(geometry, mark, queues)?;
                if let Err(error) = Self::ublk(attached, nsid, parts, || device.start()) {
                    attached.fail_fast();
                    remove(&mut device);
                    return Err(error);
                }
                Ok(Self::Ublk { device, size: geometry.size })
            }
            Via::Fuse | Via::FuseFile => {
                Self::fuse(attached, &claim.path().join(MOUNT), nsid, geometry, via == Via::Fuse)
            }
            Via::NbdDevice => {
                let (device, socket) = NbdDevice::connect(geometry, claim.mark()?)?;
                let offer = Self::NbdDevice { device, size: geometry.size };
                let parameters = parameters(specification, nsid, geometry);
                let exported = attached
                    .export(nsid, Box::new(move |_| Ok(Box::new(Server::handed(socket, parameters)))));
                if let Err(error) = exported {
                    offer.withdraw();
                    return Err(error.into());
                }
                Ok(offer)
            }
            Via::VhostUserBlk => Self::vhost_user(attached, claim, namespace, geometry),
            Via::Nbd | Via::Auto => {
                let parameters = parameters(specification, nsid, geometry);
                Self::nbd(attached, &claim.path().join("nbd.sock"), nsid, parameters)
            }
        }
    }

    /// Takes over what a process has left that died.
    pub(super) fn take_over(
        attached: &Attached,
        claim: &Claim,
        before: &Attachment,
        namespace: &Namespace,
    ) -> Result<Self, CliError> {
        let VolumeFacts { size, block_size, .. } = before.volume;
        let identity = namespace.identity.to_string();
        // What has no identifier could be anything.
        let is_the_same =
            namespace.identity != Default::default() && before.identity.as_ref() == Some(&identity);
        if !is_the_same || block_size != namespace.geometry.block_size || namespace.geometry.size < size {
            return Err(CliError::AnotherVolume { name: before.name.clone(), found: identity });
        }
        let geometry = geometry(&before.specification, namespace);
        if before.via == Via::VhostUserBlk {
            return Self::vhost_user(attached, claim, namespace, geometry);
        }
        let mark = claim.known_mark().ok_or(CliError::NotRecoverable { name: before.name.clone() })?;
        let nsid = namespace.nsid;
        // If this fails the device stays as it is: others wait for it.
        let mut offer = if before.via == Via::NbdDevice {
            let (device, socket) = NbdDevice::take_over(mark)?;
            let parameters = parameters(&before.specification, nsid, geometry);
            attached.export(nsid, Box::new(move |_| Ok(Box::new(Server::handed(socket, parameters)))))?;
            Self::NbdDevice { device, size }
        } else {
            let (mut device, parts) = Device::take_over(geometry, mark)?;
            // One for each core, as it was made, unless somebody else has made it.
            if parts.len() > attached.cores() {
                return Err(CliError::NotRecoverable { name: before.name.clone() });
            }
            Self::ublk(attached, nsid, parts, || device.resume())?;
            Self::Ublk { device, size }
        };
        offer.follow(geometry.size);
        Ok(offer)
    }

    /// Serves a device, each queue on a core, and has it begin once it is served.
    fn ublk(
        attached: &Attached,
        nsid: u32,
        parts: Vec<Parts>,
        begin: impl FnOnce() -> Result<(), UblkError>,
    ) -> Result<(), CliError> {
        let queue = |parts: Parts| -> MakeExport {
            Box::new(move |site| Ok(Box::new(Ublk::new(parts, site.memory)?)))
        };
        attached.export_in_parts(nsid, parts.into_iter().map(queue))?;
        Ok(begin()?)
    }

    fn nbd(attached: &Attached, path: &Path, nsid: u32, parameters: Parameters) -> Result<Self, CliError> {
        let failed = |source| CliError::Socket { path: path.to_owned(), source };
        let listener = Listener::bind(path).map_err(failed)?;
        let clients = listener.clients();
        let parts = Part::of_each(listener, parameters, attached.cores()).map_err(failed)?;
        let part = |part: Part| -> MakeExport { Box::new(move |_| Ok(Box::new(Server::of(part)))) };
        attached.export_in_parts(nsid, parts.into_iter().map(part))?;
        Ok(Self::Nbd { socket: path.to_owned(), clients })
    }

    /// Serves one machine after the other. One that waits for us goes on as it was.
    fn vhost_user(
        attached: &Attached,
        claim: &Claim,
        namespace: &Namespace,
        geometry: Geometry,
    ) -> Result<Self, CliError> {
        let (directory, socket) = (claim.path().to_owned(), claim.path().join("vhost.sock"));
        let writeback = Machine::read(&directory).is_none_or(Machine::writeback);
        let disk = Disk::new(geometry, &disk_name(namespace)).with_writeback(writeback);
        let failed = |source| CliError::Socket { path: socket.clone(), source };
        let listener = Listener::bind(&socket).map_err(failed)?;
        let machines = listener.clients();
        let serve = move |site: Site<'_>| {
            let piece_size = site.pool.largest().min(geometry.max_transfer);
            let export = vhost_user::Server::new(listener, disk, directory, piece_size);
            Ok(Box::new(export) as Box<dyn Export>)
        };
        attached.export(namespace.nsid, Box::new(serve))?;
        Ok(Self::VhostUser { socket, machines })
    }

    fn fuse(
        attached: &Attached,
        path: &Path,
        nsid: u32,
        geometry: Geometry,
        as_device: bool,
    ) -> Result<Self, CliError> {
        let failed = |source| CliError::Mount { path: path.to_owned(), source };
        DirBuilder::new().mode(0o700).create(path).map_err(failed)?;
        let (mount, parts) = Mount::new(path, geometry).map_err(failed)?;
        attached.export(nsid, Box::new(move |site| Ok(Box::new(Fuse::new(parts, site.memory)))))?;
        let attach = || LoopDevice::attach(&mount.file(), geometry.block_size, geometry.read_only);
        match as_device.then(attach).transpose() {
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
            Self::Ublk { device, .. } => device.path(),
            Self::NbdDevice { device, .. } => device.path(),
            Self::Nbd { socket, .. } | Self::VhostUser { socket, .. } => socket.clone(),
            Self::Fuse { device: Some(device), .. } => device.path().to_owned(),
            Self::Fuse { mount, .. } => mount.file(),
        }
    }

    pub(super) fn uses(&self) -> Vec<Use> {
        match self {
            Self::Nbd { clients, .. } => match clients.load(Ordering::Relaxed) {
                0 => Vec::new(),
                clients => vec![Use::NbdClients(clients)],
            },
            Self::VhostUser { machines, .. } if machines.load(Ordering::Relaxed) == 0 => Vec::new(),
            Self::VhostUser { socket, .. } => {
                let known = socket.parent().and_then(Machine::read);
                let somebody = || Some(Use::Machine { pid: 0, name: String::new() });
                known.map_or_else(somebody, Machine::uses).into_iter().collect()
            }
            Self::Ublk { .. } | Self::NbdDevice { .. } | Self::Fuse { .. } => usage::of(&self.device()),
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
            Self::Ublk { .. } => (Via::Ublk, None),
            Self::NbdDevice { .. } => (Via::NbdDevice, None),
            Self::Nbd { .. } => (Via::Nbd, None),
            Self::VhostUser { .. } => (Via::VhostUserBlk, None),
            Self::Fuse { device: Some(device), .. } => (Via::Fuse, Some(device.path().to_owned())),
            Self::Fuse { .. } => (Via::FuseFile, None),
        };
        Attachment {
            name: claim.name.clone(),
            pid: std::process::id(),
            specification: specification.clone(),
            nsid: namespace.nsid,
            identity: Some(namespace.identity.to_string()),
            via,
            reason,
            carried: found.carried.clone(),
            device: self.device(),
            read_only: namespace.geometry.read_only || specification.read_only,
            loop_device,
            volume: VolumeFacts::new(&found.controller, namespace),
        }
    }

    /// The volume may have another size now: a block device has to be told.
    pub(super) fn follow(&mut self, now: u64) {
        let path = self.device();
        let resized = match self {
            // A machine is told by the reactor.
            Self::Nbd { .. } | Self::VhostUser { .. } | Self::Fuse { device: None, .. } => return,
            Self::Ublk { size, .. } | Self::NbdDevice { size, .. } | Self::Fuse { size, .. }
                if *size == now =>
            {
                return;
            }
            Self::Ublk { device, size } => {
                *size = now;
                match device.resized(now) {
                    Ok(false) => Err("this kernel (before Linux 6.16) cannot be told".into()),
                    told => told.map(drop).map_err(|error| error.to_string()),
                }
            }
            Self::NbdDevice { device, size } => {
                *size = now;
                device.resized(now).map_err(|error| error.to_string())
            }
            Self::Fuse { device: Some(device), size, mount, .. } => {
                *size = now;
                // The kernel asks for the file's size again, and only then sees the new one.
                let known = fs::metadata(mount.file()).map_err(|error| error.to_string());
                known.and_then(|_| device.resized().map_err(|error| error.to_string()))
            }
        };
        match resized {
            Ok(()) => info!("{} has {} now", path.display(), Size(now)),
            Err(why) => warn!("{} keeps its old size: {why}", path.display()),
        }
    }

    /// Has what the kernel still holds back written, unless that takes too long.
    pub(super) fn sync(&self, patience: Duration) {
        if matches!(self, Self::Nbd { .. } | Self::VhostUser { .. }) {
            return;
        }
        let path = self.device();
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

    /// Takes everything away. What cannot be is said in the log: the process ends all the same, and with it
    /// what it serves.
    pub(super) fn withdraw(self) {
        match self {
            Self::Nbd { .. } | Self::VhostUser { .. } => {}
            Self::Ublk { mut device, .. } => remove(&mut device),
            Self::NbdDevice { device, .. } => {
                if let Err(error) = device.remove() {
                    warn!("the NBD device stays: {error}");
                }
            }
            Self::Fuse { mount, path, device, .. } => {
                if let Some(Err(error)) = device.map(LoopDevice::detach) {
                    warn!("the loop device stays: {error}");
                }
                unmount(mount, &path);
            }
        }
    }
}

/// What the volume is to those it is offered to.
fn geometry(specification: &Specification, namespace: &Namespace) -> Geometry {
    let read_only = specification.read_only || namespace.geometry.read_only;
    Geometry { read_only, ..namespace.geometry }
}

fn parameters(specification: &Specification, nsid: u32, geometry: Geometry) -> Parameters {
    Parameters::new(nsid.to_string(), format!("{} namespace {nsid}", specification.nqn), geometry)
}

/// What a machine is told its disk is called: what names the namespace for good, as far as there is room.
fn disk_name(namespace: &Namespace) -> String {
    let identity = namespace.identity.to_string();
    match identity.split_once(' ') {
        Some(("UUID" | "NGUID" | "EUI64", number)) => number.replace('-', ""),
        _ => format!("ironside-{}", namespace.nsid),
    }
}

fn remove(device: &mut Device) {
    if let Err(error) = device.remove() {
        warn!("the ublk device stays: {error}");
    }
}

fn unmount(mount: Mount, path: &Path) {
    let gone: io::Result<()> = mount.unmount().and_then(|()| fs::remove_dir(path));
    if let Err(error) = gone {
        warn!("the mount stays: {error}");
    }
}
