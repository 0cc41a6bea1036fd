//! Gathered sends and scattered receives. Registered memory is never a Rust slice, so the vectors are
//! made of pointers, here and nowhere else.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::iwarp::{Outgoing, Part};
use crate::memory::Memory;
use crate::verbs::Sge;

/// Vectors of one call; the kernel takes 1,024.
const VECTORS: usize = 256;

const NOTHING: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// The memory of an element, for the kernel.
fn vector(memory: &Memory, sge: Sge) -> libc::iovec {
    libc::iovec { iov_base: memory.pointer(sge).as_ptr().cast(), iov_len: sge.length as usize }
}

/// A message of these vectors and nothing else.
fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: vectors.as_mut_ptr(),
        msg_iovlen: vectors.len(),
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}

pub(super) fn receive(
    socket: BorrowedFd<'_>,
    memory: &Memory,
    direct: Option<Sge>,
    staging: &mut [u8],
) -> io::Result<usize> {
    let behind = libc::iovec { iov_base: staging.as_mut_ptr().cast(), iov_len: staging.len() };
    let mut vectors = [NOTHING, behind];
    let used = match direct {
        Some(direct) => {
            vectors[0] = vector(memory, direct);
            &mut vectors[..]
        }
        None => &mut vectors[1..],
    };
    let mut message = message(used);
    // SAFETY: the first vector lies in a registered region, which the table keeps and nobody holds a
    // reference into; the second is `staging`, which is ours alone until the call returns.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

pub(super) fn send(socket: BorrowedFd<'_>, memory: &Memory, outgoing: &Outgoing) -> io::Result<usize> {
    let mut vectors = [NOTHING; VECTORS];
    let mut used = 0;
    for (vector, part) in vectors.iter_mut().zip(outgoing.parts()) {
        *vector = match part {
            Part::Staged(bytes) => {
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }
            Part::InPlace(sge) => self::vector(memory, sge),
        };
        used += 1;
    }
    let message = message(&mut vectors[..used]);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: every vector is either a slice which `outgoing` holds on to, or lies in a registered region
    // which the table keeps. The kernel only reads them, and only until the call returns.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
