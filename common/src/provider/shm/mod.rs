//! Software RDMA between processes of one machine, by memory which both have mapped: [`ShmWire`] moves the bytes of one
//! connection through it. What is said, and all that is checked of it, is what [`crate::provider::soft`] says and
//! checks over any wire: keys, bounds, rights, order and depths. So neither end ever sees memory of the
//! other's: each copies into the shared memory what it has to say, and out of it what it has checked that may come.
//!
//! The Unix socket by which both have met stays open. A byte on it wakes a peer that sleeps; its end is the peer's.
mod handshake;
mod listen;
mod rings;
#[cfg(test)]
mod tests;

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::soft::Wire;
use crate::iwarp::{Outgoing, Part};
use crate::memory::{Memory, Region};
use crate::verbs::Sge;
use rings::{BYTES, Broken, End, RING, ROOM, Rings};

pub use listen::{Listener, Visitor, dial};

/// From how many bytes of payload on they are taken to their place at once: whatever comes in between costs no call.
const DIRECT_FROM: u32 = 1024;
/// Pieces so large are for the peer to take while the next is copied.
const PUBLISHED_AT_ONCE: usize = 16 << 10;

/// One connection between two processes of this machine.
#[derive(Debug)]
pub struct ShmWire {
    socket: UnixStream,
    /// Absent until the target has handed it over.
    rings: Option<Rings>,
    /// Bytes taken since the peer was last asked whether it waits for room.
    taken: u64,
    /// The peer has gone. What it left in the ring still counts.
    is_gone: bool,
    /// Nobody tells us of the socket any more.
    is_unwatched: bool,
}

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> Self {
        Self::new(io::ErrorKind::InvalidData, broken)
    }
}

impl ShmWire {
    /// Our end of what a host has been handed: see [`Visitor`].
    ///
    /// # Errors
    /// When the memory cannot be mapped.
    pub fn accepted(visitor: Visitor) -> io::Result<Self> {
        let Visitor { socket, memory, .. } = visitor;
        let shared = Region::of_file(&memory, rings::LENGTH)?;
        Ok(Self::new(socket, Some(Rings::new(shared, End::Target))))
    }

    fn new(socket: UnixStream, rings: Option<Rings>) -> Self {
        Self { socket, rings, taken: 0, is_gone: false, is_unwatched: false }
    }

    /// Takes the bytes by which the peer has woken us, and finds out whether it is still there.
    fn read_socket(&mut self) {
        let mut bytes = [0; 64];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((_, 64)) | Err(rustix::io::Errno::INTR) => {}
                Ok((_, 1..)) | Err(rustix::io::Errno::WOULDBLOCK) => return,
                Ok(_) | Err(_) => {
                    self.is_gone = true;
                    return;
                }
            }
        }
    }

    /// Wakes the peer, if it sleeps and wants what there is now.
    fn wake(&mut self, by: u64) {
        let Some(rings) = &mut self.rings else { return };
        if rings.is_to_wake(by) {
            // A socket that is full wakes whoever is to read it, and one that is closed has nobody to wake.
            let _ = send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

impl Wire for ShmWire {
    fn established(&mut self) -> io::Result<bool> {
        if self.rings.is_none() {
            let shared = handshake::receive(self.socket.as_fd()).map_err(io::Error::other)?;
            self.rings = shared.map(|shared| Rings::new(shared, End::Host));
        }
        Ok(self.rings.is_some())
    }

    fn receive(&mut self, memory: &Memory, direct: Option<Sge>, staging: &mut [u8]) -> io::Result<usize> {
        let Some(rings) = &mut self.rings else { return Err(io::ErrorKind::WouldBlock.into()) };
        let in_place = direct.map_or(0, |direct| u64::from(direct.length));
        let mut there = rings.there(in_place + staging.len() as u64)?;
        if there == 0 {
            if std::mem::take(&mut self.taken) > 0 {
                self.wake(ROOM);
            }
            if self.is_unwatched {
                self.read_socket();
            }
            if !self.is_gone {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // Its last bytes were published before it went.
            let Some(rings) = &mut self.rings else { return Ok(0) };
            there = rings.there(1)?;
            if there == 0 {
                return Ok(0);
            }
        }
        let Some(rings) = &mut self.rings else { return Ok(0) };
        rings.get_up();
        let placed = there.min(in_place);
        if let Some(direct) = direct.filter(|_| placed > 0) {
            rings.take_memory(memory, direct.slice(0, u32::try_from(placed).unwrap_or(direct.length)));
        }
        let staged = usize::try_from(there - placed).unwrap_or(usize::MAX).min(staging.len());
        rings.take(&mut staging[..staged]);
        rings.release();
        let moved = placed + staged as u64;
        self.taken += moved;
        if self.taken >= RING / 4 {
            self.taken = 0;
            self.wake(ROOM);
        }
        Ok(usize::try_from(moved).unwrap_or(usize::MAX))
    }

    fn send(&mut self, memory: &Memory, outgoing: &Outgoing) -> io::Result<usize> {
        if self.is_gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let Some(rings) = &mut self.rings else { return Err(io::ErrorKind::WouldBlock.into()) };
        let room = rings.room((outgoing.len() as u64).min(RING))?;
        let mut left = usize::try_from(room).unwrap_or(usize::MAX).min(outgoing.len());
        if left == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (mut sent, mut unpublished) = (0, 0);
        for part in outgoing.parts() {
            let length = part.len().min(left);
            match part {
                Part::Staged(bytes) => rings.put(&bytes[..length]),
                Part::InPlace(sge) => {
                    rings.put_memory(memory, sge.slice(0, u32::try_from(length).unwrap_or(sge.length)));
                }
            }
            (sent, left, unpublished) = (sent + length, left - length, unpublished + length);
            if unpublished >= PUBLISHED_AT_ONCE {
                rings.publish();
                unpublished = 0;
            }
            if left == 0 {
                break;
            }
        }
        rings.publish();
        self.wake(BYTES);
        Ok(sent)
    }

    fn finish(&mut self) {
        self.is_unwatched = true;
        // It fails when the peer has gone already, and then nothing needs to be said.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn segment_size(&self) -> Option<u32> {
        None
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn direct_from(&self) -> Option<u32> {
        Some(DIRECT_FROM)
    }

    fn stays_on_machine(&self) -> bool {
        true
    }

    fn rest(&mut self, for_room: bool) {
        if let Some(rings) = &mut self.rings {
            rings.lie_down(if for_room { BYTES | ROOM } else { BYTES });
        }
    }

    fn woken(&mut self) {
        // Until the memory is there, what comes is the memory.
        if let Some(rings) = &mut self.rings {
            rings.get_up();
            self.read_socket();
        }
    }
}

impl Drop for ShmWire {
    fn drop(&mut self) {
        // A poll of readiness which is still out would keep the socket open behind our back.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
