//! Sockets to elsewhere and from elsewhere.
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};

use super::TcpWire;
use crate::provider::soft::Dialer;
use crate::verbs::Address;

/// Connects without blocking.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDialer;

impl Dialer<TcpWire> for TcpDialer {
    fn dial(&mut self, to: Address) -> io::Result<TcpWire> {
        dial(to.socket().ok_or(io::ErrorKind::InvalidInput)?)
    }
}

/// Starts to connect.
///
/// # Errors
/// When it cannot even start.
pub fn dial(to: SocketAddr) -> io::Result<TcpWire> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(TcpWire { socket: TcpStream::from(socket), established: false })
}

/// Listens on `address`; an IPv6 wildcard takes IPv4 too. The listener does not block.
///
/// # Errors
/// When the address is taken or not ours.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
