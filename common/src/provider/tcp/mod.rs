//! iWARP over the kernel's TCP sockets: [`TcpWire`] moves the bytes of one connection.
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use super::soft::{Dialer, Soft, Wire};
use crate::iwarp::Outgoing;
use crate::memory::Memory;
use crate::verbs::Sge;

/// The software provider over sockets.
pub type TcpSoft = Soft<TcpWire>;

/// One TCP connection.
#[derive(Debug)]
pub struct TcpWire {
    socket: TcpStream,
}

impl TcpWire {
    /// Takes a connected socket: it will not block nor delay.
    ///
    /// # Errors
    /// When the kernel refuses a socket option.
    pub fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket })
    }
}

impl Wire for TcpWire {
    fn established(&mut self) -> io::Result<bool> {
        unimplemented!()
    }
    fn receive(&mut self, memory: &Memory, direct: Option<Sge>, staging: &mut [u8]) -> io::Result<usize> {
        unimplemented!("{memory:?} {direct:?} {staging:?}")
    }
    fn send(&mut self, memory: &Memory, outgoing: &Outgoing) -> io::Result<usize> {
        unimplemented!("{memory:?} {outgoing:?}")
    }
    fn finish(&mut self) {}
    fn segment_size(&self) -> Option<u32> {
        None
    }
    fn descriptor(&self) -> Option<RawFd> {
        Some(self.socket.as_raw_fd())
    }
}

/// Connects without blocking.
#[derive(Debug, Default)]
pub struct TcpDialer;

impl Dialer<TcpWire> for TcpDialer {
    fn dial(&mut self, to: SocketAddr) -> io::Result<TcpWire> {
        unimplemented!("{to}")
    }
}

/// Listens on `address`. The listener blocks; the acceptor may have it otherwise.
///
/// # Errors
/// When the address is taken or not ours.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address)
}
