//! iWARP over the kernel's TCP sockets: [`TcpWire`] moves the bytes of one connection.
mod connect;
mod gather;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::socket::{getsockopt, sockopt};

use super::soft::{Soft, Wire};
use crate::iwarp::Outgoing;
use crate::memory::Memory;
use crate::verbs::Sge;

pub use connect::{TcpDialer, dial, listen};

/// The software provider over sockets.
pub type TcpSoft = Soft<TcpWire>;

/// One TCP connection.
#[derive(Debug)]
pub struct TcpWire {
    socket: TcpStream,
    established: bool,
}

impl TcpWire {
    /// Takes a connected socket: it will not block nor delay.
    ///
    /// # Errors
    /// When the kernel refuses a socket option.
    pub fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, established: true })
    }
}

impl Wire for TcpWire {
    fn established(&mut self) -> io::Result<bool> {
        if !self.established {
            if let Some(error) = self.socket.take_error()? {
                return Err(error);
            }
            match self.socket.peer_addr() {
                Ok(_) => self.established = true,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.established)
    }

    fn receive(&mut self, memory: &Memory, direct: Option<Sge>, staging: &mut [u8]) -> io::Result<usize> {
        gather::receive(self.socket.as_fd(), memory, direct, staging)
    }

    fn send(&mut self, memory: &Memory, outgoing: &Outgoing) -> io::Result<usize> {
        gather::send(self.socket.as_fd(), memory, outgoing)
    }

    fn finish(&mut self) {
        // It fails when the peer has gone already, and then nothing needs to be said.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn segment_size(&self) -> Option<u32> {
        getsockopt(&self.socket, sockopt::TcpMaxSeg).ok()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

impl Drop for TcpWire {
    fn drop(&mut self) {
        // A poll of readiness which is still out would keep the socket open behind our back.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
