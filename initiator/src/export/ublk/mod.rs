//! A volume as a block device of the ublk driver: requests come by the reactor's own io_uring, data by one copy of the
//! kernel's into memory which the volume transfers from.
//!
//! [`Device`] is the half that makes the device, starts it and takes it away; [`Ublk`] in the reactor serves it. If this
//! process dies, the device holds its requests and waits for another process to take it over, or for its end. Each device
//! carries a mark by which its attachment knows it, whatever numbers others have.
mod control;
mod descriptors;
mod server;
#[cfg(test)]
mod tests;
mod wire;

use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

pub use control::CONTROL;
pub use server::{Parts, Ublk};

use self::control::Control;
use self::descriptors::Descriptors;
use self::wire::{BLOCK_MAX, Command, DeviceInfo, Parameters, SECTOR, feature};
use super::{BURIAL_INTERVAL, BURIAL_PATIENCE};
use crate::volume::Geometry;

/// Requests under way at once.
const QUEUE_DEPTH: u16 = 128;
/// Bytes of the largest request.
const BUFFER_MAX: u32 = 512 << 10;
/// What a driver has to have. Linux 6.5 is the first that says what it has.
const NEEDED: u64 = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE | feature::CMD_IOCTL_ENCODE;

/// Why there is no ublk device, or it does not go.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    #[error("cannot open {CONTROL}: {0}")]
    Open(io::Error),
    #[error("the ublk driver of this kernel is too old: Linux 6.5 or later is needed")]
    TooOld,
    #[error("a ublk device has blocks of {BLOCK_MAX} bytes at most, and this volume of {0}")]
    BlockSize(u32),
    #[error("{}: {doing}: {source}", path.display())]
    Device { path: PathBuf, doing: &'static str, source: io::Error },
    #[error("no ublk device carries the mark of this attachment any more")]
    Gone,
    #[error("{} was made for requests of {there} bytes, and the volume takes {now} now", path.display())]
    Transfer { path: PathBuf, there: u32, now: u32 },
}

/// A device of ours, from its making to its end.
pub struct Device {
    control: Control,
    number: u32,
    features: u64,
}

impl Device {
    /// Makes a device for a volume, not started yet, and what reactors need to serve it: a queue for each of so many, or
    /// fewer where the machine has fewer processors.
    ///
    /// # Errors
    /// When there is no driver that can, or it refuses.
    pub fn add(geometry: Geometry, mark: u64, queues: u16) -> Result<(Self, Vec<Parts>), UblkError> {
        if geometry.block_size > BLOCK_MAX {
            return Err(UblkError::BlockSize(geometry.block_size));
        }
        let mut control = Control::open().map_err(UblkError::Open)?;
        let features = features(&mut control)?;
        let wanted = DeviceInfo {
            queues,
            queue_depth: QUEUE_DEPTH,
            buffer_size: buffer_size(geometry),
            flags: NEEDED,
            mark,
            ..DeviceInfo::default()
        };
        let made = control.add(wanted);
        let info = made.map_err(failed(PathBuf::from(CONTROL), "making a device"))?;
        let mut device = Self { control, number: info.number, features };
        match device.prepare(geometry, info) {
            Ok(parts) => Ok((device, parts)),
            Err(error) => {
                // The first error says more.
                let _ = device.remove();
                Err(error)
            }
        }
    }

    fn prepare(&mut self, geometry: Geometry, info: DeviceInfo) -> Result<Vec<Parts>, UblkError> {
        let set = self.control.set_parameters(self.number, Parameters::new(geometry, info.buffer_size));
        set.map_err(self.failed("setting its parameters"))?;
        self.parts(info)
    }

    /// Opens what reactors need, by queue. The driver has the device opened once alone.
    fn parts(&self, info: DeviceInfo) -> Result<Vec<Parts>, UblkError> {
        let path = self.server_path();
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let device = opened.map_err(failed(path.clone(), "opening it"))?;
        let (queue_depth, buffer_size) = (info.queue_depth, info.buffer_size);
        let part = |queue| {
            let mapped = Descriptors::map(&device, queue, queue_depth);
            let descriptors = mapped.map_err(failed(path.clone(), "mapping its requests"))?;
            let device = device.try_clone().map_err(failed(path.clone(), "opening it"))?;
            Ok(Parts { device: device.into(), queue, descriptors, queue_depth, buffer_size })
        };
        (0..info.queues).map(part).collect()
    }

    /// Has the block device appear. Reactors serve it already: the kernel looks for partitions.
    ///
    /// # Errors
    /// When the driver refuses, or the volume does not answer in time.
    pub fn start(&mut self) -> Result<(), UblkError> {
        self.tell(Command::StartDevice, std::process::id().into(), "starting it")
    }

    /// The device which carries this mark, made by a process that is no more, for this process to serve.
    /// [`Self::resume`] follows once reactors do.
    ///
    /// # Errors
    /// When there is no such device, its process has not ended, or the volume has become one that does not go with it.
    pub fn take_over(geometry: Geometry, mark: u64) -> Result<(Self, Vec<Parts>), UblkError> {
        let mut control = Control::open().map_err(UblkError::Open)?;
        let features = features(&mut control)?;
        let info = find(&mut control, mark).ok_or(UblkError::Gone)?;
        let mut device = Self { control, number: info.number, features };
        if info.buffer_size > geometry.max_transfer.max(buffer_size(geometry)) {
            let (there, now) = (info.buffer_size, geometry.max_transfer);
            return Err(UblkError::Transfer { path: device.path(), there, now });
        }
        let end = Instant::now() + BURIAL_PATIENCE;
        loop {
            match device.control.tell(Command::StartUserRecovery, device.number, 0) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                    thread::sleep(BURIAL_INTERVAL);
                }
                other => break other.map_err(device.failed("taking it over"))?,
            }
        }
        let parts = device.parts(info)?;
        Ok((device, parts))
    }

    /// Has the requests come that were held back.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn resume(&mut self) -> Result<(), UblkError> {
        self.tell(Command::EndUserRecovery, std::process::id().into(), "taking it over")
    }

    /// What others open.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.number).into()
    }

    fn server_path(&self) -> PathBuf {
        format!("/dev/ublkc{}", self.number).into()
    }

    /// Tells the kernel that the volume has another size now. False if this kernel cannot be told.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn resized(&mut self, size: u64) -> Result<bool, UblkError> {
        if self.features & feature::UPDATE_SIZE == 0 {
            return Ok(false);
        }
        self.tell(Command::UpdateSize, size / u64::from(SECTOR), "changing its size").map(|()| true)
    }

    /// Takes it away. Requests under way end before; whoever has it open gets errors.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn remove(&mut self) -> Result<(), UblkError> {
        self.tell(Command::StopDevice, 0, "stopping it")?;
        // The number is free once the last who has it open lets go, which is not waited for where that can be chosen.
        match self.control.tell(Command::DeleteDeviceAsync, self.number, 0) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                self.tell(Command::DeleteDevice, 0, "deleting it")
            }
            other => other.map_err(self.failed("deleting it")),
        }
    }

    fn tell(&mut self, command: Command, data: u64, doing: &'static str) -> Result<(), UblkError> {
        self.control.tell(command, self.number, data).map_err(self.failed(doing))
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(io::Error) -> UblkError + use<> {
        failed(self.path(), doing)
    }
}

/// Whether this machine has a driver that does.
///
/// # Errors
/// Why not.
pub fn usable() -> Result<(), UblkError> {
    features(&mut Control::open().map_err(UblkError::Open)?).map(drop)
}

/// The device which carries this mark, if there is one that may be looked at.
#[must_use]
pub fn marked(mark: u64) -> Option<PathBuf> {
    find(&mut Control::open().ok()?, mark).map(|info| format!("/dev/ublkb{}", info.number).into())
}

/// Takes away the device which carries this mark, if there is one.
///
/// # Errors
/// When the driver refuses.
pub fn remove(mark: u64) -> Result<(), UblkError> {
    let Ok(mut control) = Control::open() else { return Ok(()) };
    let Some(DeviceInfo { number, .. }) = find(&mut control, mark) else { return Ok(()) };
    Device { control, number, features: 0 }.remove()
}

/// # Errors
/// If the driver lacks what has to be there.
fn features(control: &mut Control) -> Result<u64, UblkError> {
    let features = control.features().map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => UblkError::Open(error),
        _ => UblkError::TooOld,
    })?;
    if features & NEEDED == NEEDED { Ok(features) } else { Err(UblkError::TooOld) }
}

fn find(control: &mut Control, mark: u64) -> Option<DeviceInfo> {
    let devices = fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    let numbers = devices.filter_map(|device| {
        device.file_name().to_str().and_then(|name| name.strip_prefix("ublkc")?.parse().ok())
    });
    numbers.filter_map(|number: u32| control.info(number).ok()).find(|info| info.mark == mark)
}

/// Bytes of the largest request for a volume.
fn buffer_size(geometry: Geometry) -> u32 {
    let largest = geometry.max_transfer.min(BUFFER_MAX);
    (largest - largest % BLOCK_MAX).max(BLOCK_MAX)
}

fn failed(path: PathBuf, doing: &'static str) -> impl FnOnce(io::Error) -> UblkError {
    move |source| UblkError::Device { path, doing, source }
}
