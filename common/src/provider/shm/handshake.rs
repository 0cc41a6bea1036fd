//! How both ends come to share memory: the target makes it, and hands it over by the Unix socket.
//!
//! The target owns what it has made, so no host can give it memory which ends it when touched. What comes to a host is
//! looked at before it is mapped: it neither shrinks nor grows, is as long as it has to be, and lies in ordinary pages.
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::rings::LENGTH;
use crate::memory::Region;

const NAME: &CStr = c"ironside";
/// What the target says first: who it is, how the memory is laid out, and how long it is.
const MAGIC: [u8; 8] = *b"IRONSIDE";
/// Changes with the layout in `rings.rs`.
const VERSION: u32 = 1;
const HELLO: usize = 16;

/// Why no memory came to be shared.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("who listens there hung up; its log says why")]
    Closed,
    #[error("who listens there is no target of Ironside's")]
    Stranger,
    #[error("the target shares memory by version {0}, we by {VERSION}: both have to be of one release")]
    Version(u32),
    #[error("the target handed over no memory, or more than that")]
    Descriptors,
    #[error("the memory which the target handed over is not sealed: it could be taken away again")]
    Unsealed,
    #[error(
        "the memory which the target handed over is of {0} bytes and not of {LENGTH}, or of no ordinary pages"
    )]
    Shape(i64),
}

fn hello() -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..12].copy_from_slice(&VERSION.to_le_bytes());
    hello[12..].copy_from_slice(&u32::try_from(LENGTH).unwrap_or(u32::MAX).to_le_bytes());
    hello
}

/// New memory, which from now on keeps its length.
pub(super) fn make() -> io::Result<File> {
    let file = File::from(memfd_create(NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    file.set_len(LENGTH as u64)?;
    fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(seals()))?;
    Ok(file)
}

const fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL)
}

/// Hands memory over. A socket on which nothing was sent has room for that.
pub(super) fn send(socket: BorrowedFd<'_>, memory: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [memory];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let hello = hello();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(socket, &[IoSlice::new(&hello)], &mut ancillary, flags)?;
    if sent == HELLO { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Takes what the target hands over; nothing if it has not yet.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<Option<Arc<Region>>, HandshakeError> {
    let mut hello = [0; HELLO];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut hello)], &mut ancillary, flags) {
        Ok(received) => received,
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => return Ok(None),
        Err(error) => return Err(io::Error::from(error).into()),
    };
    // Whatever else came is closed with this.
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let memory: Vec<OwnedFd> = rights.flatten().collect();
    if received.bytes == 0 {
        return Err(HandshakeError::Closed);
    }
    check_hello(&hello[..received.bytes])?;
    let cut = received.flags.contains(ReturnFlags::CTRUNC);
    let [memory] = &memory[..] else { return Err(HandshakeError::Descriptors) };
    if cut {
        return Err(HandshakeError::Descriptors);
    }
    check_memory(memory.as_fd())?;
    Ok(Some(Region::of_file(memory, LENGTH)?))
}

fn check_hello(said: &[u8]) -> Result<(), HandshakeError> {
    let ours = hello();
    if said.len() != HELLO || said[..8] != ours[..8] {
        return Err(HandshakeError::Stranger);
    }
    if said != ours {
        return Err(HandshakeError::Version(u32::from_le_bytes([said[8], said[9], said[10], said[11]])));
    }
    Ok(())
}

/// A file that could become shorter, or whose pages may run out (huge ones), would end this process when it is touched.
fn check_memory(memory: BorrowedFd<'_>) -> Result<(), HandshakeError> {
    let there = fcntl(memory, FcntlArg::F_GET_SEALS).map_err(|_| HandshakeError::Unsealed)?;
    if !SealFlag::from_bits_retain(there).contains(seals()) {
        return Err(HandshakeError::Unsealed);
    }
    let length = nix::sys::stat::fstat(memory).map_err(io::Error::from)?.st_size;
    let ordinary = fstatfs(memory).map_err(io::Error::from)?.filesystem_type() == TMPFS_MAGIC;
    if length == LENGTH as i64 && ordinary { Ok(()) } else { Err(HandshakeError::Shape(length)) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn handed_over(memory: &File) -> Result<Option<Arc<Region>>, HandshakeError> {
        let (target, host) = UnixStream::pair().unwrap();
        send(target.as_fd(), memory.as_fd()).unwrap();
        receive(host.as_fd())
    }

    fn of(length: u64, seals: SealFlag) -> File {
        let file = File::from(memfd_create(c"", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.set_len(length).unwrap();
        fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    }

    #[test]
    fn what_the_target_makes_is_what_a_host_takes_and_both_see_it() {
        let memory = make().unwrap();
        let theirs = handed_over(&memory).unwrap().unwrap();
        let ours = Region::of_file(&memory, LENGTH).unwrap();
        ours.store_u64(8, 7);
        assert_eq!(theirs.load_u64(8), 7);
        assert!(memory.set_len(1).is_err() && memory.set_len(LENGTH as u64 * 2).is_err());
        assert!(fcntl(memory.as_fd(), FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
    }

    #[test]
    fn memory_that_could_be_taken_away_is_refused() {
        let length = LENGTH as u64;
        for seals in
            [SealFlag::empty(), SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW]
        {
            assert!(matches!(handed_over(&of(length, seals)), Err(HandshakeError::Unsealed)), "{seals:?}");
        }
        for wrong in [0, length - 1, length + 1] {
            assert!(matches!(handed_over(&of(wrong, seals())), Err(HandshakeError::Shape(_))), "{wrong}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        assert!(matches!(handed_over(&file), Err(HandshakeError::Unsealed)));
    }

    #[test]
    fn who_is_no_target_of_ours_is_told_from_one_that_has_not_spoken() {
        let (mut target, host) = UnixStream::pair().unwrap();
        assert!(receive(host.as_fd()).unwrap().is_none());
        target.write_all(b"SSH-2.0-whatever").unwrap();
        assert!(matches!(receive(host.as_fd()), Err(HandshakeError::Stranger)));
        target.write_all(&hello()).unwrap();
        assert!(matches!(receive(host.as_fd()), Err(HandshakeError::Descriptors)));
        let mut other = hello();
        other[8] = 9;
        target.write_all(&other).unwrap();
        assert!(matches!(receive(host.as_fd()), Err(HandshakeError::Version(9))));
        drop(target);
        assert!(matches!(receive(host.as_fd()), Err(HandshakeError::Closed)));
    }
}
