//! A block device of the kernel's own NBD client, to which one end of a pair of sockets is handed; at the other end is our
//! NBD server. If this process dies the device holds its requests for a while, for another process to take it over.
mod netlink;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::netlink::{Attributes, Netlink};
use super::{BURIAL_INTERVAL, BURIAL_PATIENCE};
use crate::volume::Geometry;

/// How long requests wait for somebody to take over from a process that died.
pub const ORPHANED_S: u64 = 600;
/// The largest block of the kernel's client.
const BLOCK_MAX: u32 = 4096;

/// The driver's commands, and their attributes (`<linux/nbd-netlink.h>`).
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCKET_ITEM: u16 = 1;
const SOCKET_DESCRIPTOR: u16 = 1;

/// Why there is no device of the kernel's NBD client, or it does not go.
#[derive(Debug, thiserror::Error)]
pub enum NbdDeviceError {
    #[error("the kernel's NBD client does not answer: {0}")]
    Open(io::Error),
    #[error(
        "a device of the kernel's NBD client has blocks of {BLOCK_MAX} bytes at most, and this volume of {0}"
    )]
    BlockSize(u32),
    #[error("the kernel's NBD client: {doing}: {source}")]
    Refused { doing: &'static str, source: io::Error },
    #[error("no NBD device carries the mark of this attachment any more")]
    Gone,
}

/// A device of ours.
#[derive(Debug)]
pub struct NbdDevice {
    number: u32,
    mark: u64,
}

impl NbdDevice {
    /// Has a device made for a volume; gives the server's end of its connection, where requests come at once.
    ///
    /// # Errors
    /// When the kernel has no NBD client, or it refuses.
    pub fn connect(geometry: Geometry, mark: u64) -> Result<(Self, UnixStream), NbdDeviceError> {
        if geometry.block_size > BLOCK_MAX {
            return Err(NbdDeviceError::BlockSize(geometry.block_size));
        }
        let refused = |source| NbdDeviceError::Refused { doing: "making a device", source };
        let (ours, theirs) = UnixStream::pair().map_err(refused)?;
        let attributes = Attributes::default()
            .with(SIZE_BYTES, &geometry.size.to_ne_bytes())
            .with(BLOCK_SIZE_BYTES, &u64::from(geometry.block_size).to_ne_bytes())
            // A volume whose target is away holds requests for as long as it was told to.
            .with(TIMEOUT, &0_u64.to_ne_bytes())
            .with(DEAD_CONNECTION_TIMEOUT, &ORPHANED_S.to_ne_bytes())
            .with(SERVER_FLAGS, &u64::from(flags(geometry)).to_ne_bytes())
            .with(BACKEND_IDENTIFIER, &backend(mark));
        let answer = open()?.ask(CONNECT, &with_socket(attributes, &theirs)).map_err(refused)?;
        let number = Netlink::number(&answer, INDEX);
        let number = number.ok_or_else(|| refused(io::ErrorKind::InvalidData.into()))?;
        Ok((Self { number, mark }, ours))
    }

    /// The device with this mark, whose process has died; gives the new server's end, where requests come at once.
    ///
    /// # Errors
    /// When there is none, or the kernel refuses.
    pub fn take_over(mark: u64) -> Result<(Self, UnixStream), NbdDeviceError> {
        let refused = |source| NbdDeviceError::Refused { doing: "taking a device over", source };
        let number = find(mark).ok_or(NbdDeviceError::Gone)?;
        let device = Self { number, mark };
        let end = Instant::now() + BURIAL_PATIENCE;
        loop {
            let (ours, theirs) = UnixStream::pair().map_err(refused)?;
            open()?.ask(RECONFIGURE, &with_socket(device.attributes(), &theirs)).map_err(refused)?;
            drop(theirs);
            // The kernel takes no connection as long as it has not seen that the other is dead, and does not say so.
            if !is_hung_up(&ours) {
                return Ok((device, ours));
            }
            if Instant::now() > end {
                return Err(refused(io::ErrorKind::TimedOut.into()));
            }
            thread::sleep(BURIAL_INTERVAL);
        }
    }

    /// What others open.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path(self.number)
    }

    /// Tells the kernel that the volume has another size now.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resized(&self, size: u64) -> Result<(), NbdDeviceError> {
        let attributes = self.attributes().with(SIZE_BYTES, &size.to_ne_bytes());
        let told = open()?.ask(RECONFIGURE, &attributes);
        told.map(drop).map_err(|source| NbdDeviceError::Refused { doing: "changing the size", source })
    }

    /// Takes it away. Whoever has it open gets errors.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(&self) -> Result<(), NbdDeviceError> {
        let told = open()?.ask(DISCONNECT, &self.attributes());
        told.map(drop).map_err(|source| NbdDeviceError::Refused { doing: "disconnecting a device", source })
    }

    /// Which device is meant. The kernel makes sure that it is ours.
    fn attributes(&self) -> Attributes {
        let backend = backend(self.mark);
        Attributes::default().with(INDEX, &self.number.to_ne_bytes()).with(BACKEND_IDENTIFIER, &backend)
    }
}

/// The device which carries this mark.
#[must_use]
pub fn marked(mark: u64) -> Option<PathBuf> {
    find(mark).map(path)
}

/// Takes away the device which carries this mark, if there is one.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(mark: u64) -> Result<(), NbdDeviceError> {
    find(mark).map_or(Ok(()), |number| NbdDevice { number, mark }.remove())
}

fn find(mark: u64) -> Option<u32> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut ours = devices.filter(|device| {
        fs::read_to_string(device.path().join("backend")).is_ok_and(|says| says.trim_end() == name(mark))
    });
    ours.next()?.file_name().to_str()?.strip_prefix("nbd")?.parse().ok()
}

fn path(number: u32) -> PathBuf {
    format!("/dev/nbd{number}").into()
}

/// What the kernel keeps of us beside the device, and shows.
fn name(mark: u64) -> String {
    format!("ironside-{mark:016x}")
}

/// The same as it is told.
fn backend(mark: u64) -> Vec<u8> {
    [name(mark).as_bytes(), &[0]].concat()
}

fn open() -> Result<Netlink, NbdDeviceError> {
    Netlink::open("nbd").map_err(NbdDeviceError::Open)
}

fn with_socket(attributes: Attributes, socket: &UnixStream) -> Attributes {
    let descriptor = Attributes::default().with(SOCKET_DESCRIPTOR, &socket.as_raw_fd().to_ne_bytes());
    attributes.with_nested(SOCKETS, &Attributes::default().with_nested(SOCKET_ITEM, &descriptor))
}

fn is_hung_up(socket: &UnixStream) -> bool {
    let mut descriptors = [PollFd::new(socket.as_fd(), PollFlags::POLLHUP)];
    poll(&mut descriptors, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// The transmission flags of the protocol (proto.md, "Transmission flags"), as far as the kernel knows them.
fn flags(geometry: Geometry) -> u16 {
    let flag = |is: bool, bit: u16| if is { 1 << bit } else { 0 };
    let Geometry { read_only, volatile_cache, discard, write_zeroes, .. } = geometry;
    1 | flag(read_only, 1)
        | flag(volatile_cache, 2)
        | flag(volatile_cache && !read_only, 3)
        | flag(discard && !read_only, 5)
        | flag(write_zeroes && !read_only, 6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::GEOMETRY;

    #[test]
    fn the_kernel_is_told_what_the_volume_can_do() {
        assert_eq!(flags(GEOMETRY), 0b110_1101);
        assert_eq!(flags(Geometry { read_only: true, ..GEOMETRY }), 0b111);
        assert_eq!(flags(Geometry { volatile_cache: false, discard: false, ..GEOMETRY }), 0b100_0001);
    }

    #[test]
    fn a_connection_nobody_holds_is_seen() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!is_hung_up(&ours));
        drop(theirs);
        assert!(is_hung_up(&ours));
        assert_eq!(marked(0), None);
    }
}
