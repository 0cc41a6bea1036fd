//! Moves bytes between a socket and registered memory, without blocking and without a copy of ours.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;
use ironside_common::memory::Memory;

use super::connection::Places;
use super::output::Part;

/// Parts gathered into one call.
const PARTS: usize = 64;

/// Receives into the places; says how many bytes. Zero is the end of the stream.
///
/// # Errors
/// `WouldBlock` if there is nothing now; anything else ends the connection.
pub(super) fn receive(socket: BorrowedFd<'_>, memory: &Memory, places: Places<'_>) -> io::Result<usize> {
    let mut vectors = ArrayVec::<libc::iovec, 2>::new();
    if let Some(sge) = places.data {
        vectors.push(vector(memory.pointer(sge).as_ptr(), sge.length as usize));
    }
    vectors.push(vector(places.staging.as_mut_ptr(), places.staging.len()));
    let mut message = message(&mut vectors);
    // SAFETY: the message names memory which is ours alone during the call: a leased buffer inside its
    // region, and the staging borrowed mutably.
    checked(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
}

/// Sends from the front of the parts; says how many bytes were taken. The kernel has copied them.
///
/// # Errors
/// `WouldBlock` if nothing can be taken now; anything else ends the connection.
pub(super) fn send<'a>(
    socket: BorrowedFd<'_>,
    memory: &Memory,
    parts: impl Iterator<Item = Part<'a>>,
) -> io::Result<usize> {
    let mut vectors: ArrayVec<libc::iovec, PARTS> = parts
        .take(PARTS)
        .map(|part| match part {
            Part::Bytes(bytes) => vector(bytes.as_ptr().cast_mut(), bytes.len()),
            Part::Memory(sge) => vector(memory.pointer(sge).as_ptr(), sge.length as usize),
        })
        .collect();
    let message = message(&mut vectors);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message names bytes borrowed for the call and leased buffers inside their regions; the
    // kernel only reads them.
    checked(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
}

fn vector(base: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: length }
}

fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: vectors.as_mut_ptr(),
        msg_iovlen: vectors.len(),
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}

fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
