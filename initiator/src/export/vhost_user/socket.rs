//! The front-end's socket: messages with their file descriptors, received without waiting.
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, IntoBytes};

use super::message::{HEADER_LENGTH, Header, PAYLOAD_MAX, Request, TABLE_MAX};

pub(super) type Descriptors = ArrayVec<OwnedFd, TABLE_MAX>;

/// Why nothing more comes from a front-end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Gone {
    #[error("it hung up")]
    HungUp,
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error("it sent more descriptors than a message may have")]
    Descriptors,
    #[error("it sent a message of another version, or too long ({0} bytes)")]
    Header(u32),
    #[error("it sent a message {0} which is not whole")]
    Payload(u32),
    #[error("{0}")]
    Refused(#[from] super::front_end::Refusal),
}

/// What has come of the next message.
pub(super) struct Inbox {
    bytes: [u8; HEADER_LENGTH + PAYLOAD_MAX],
    filled: usize,
    descriptors: Descriptors,
}

impl Inbox {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; HEADER_LENGTH + PAYLOAD_MAX], filled: 0, descriptors: Descriptors::new_const() }
    }

    /// The next message once it is whole; nothing if more has to come.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
    ) -> Result<Option<(Header, Request, Descriptors)>, Gone> {
        loop {
            let header = self.header()?;
            let whole = HEADER_LENGTH + header.map_or(0, |header| header.size as usize);
            if let Some(header) = header.filter(|_| self.filled == whole) {
                self.filled = 0;
                let payload = &self.bytes[HEADER_LENGTH..whole];
                let request = Request::parse(header.request, payload).ok_or(Gone::Payload(header.request))?;
                return Ok(Some((header, request, std::mem::take(&mut self.descriptors))));
            }
            match self.fill(socket, whole) {
                Ok(0) => return Err(Gone::HungUp),
                Ok(count) => self.filled += count,
                Err(Gone::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(Gone::Socket(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn header(&self) -> Result<Option<Header>, Gone> {
        if self.filled < HEADER_LENGTH {
            return Ok(None);
        }
        let header = Header::read_from_bytes(&self.bytes[..HEADER_LENGTH]).expect("as long as one");
        if header.is_sound() { Ok(Some(header)) } else { Err(Gone::Header(header.size)) }
    }

    fn fill(&mut self, socket: BorrowedFd<'_>, whole: usize) -> Result<usize, Gone> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TABLE_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.bytes[self.filled..whole])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(socket, &mut into, &mut ancillary, flags).map_err(io::Error::from)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                for descriptor in descriptors {
                    self.descriptors.try_push(descriptor).map_err(|_| Gone::Descriptors)?;
                }
            }
        }
        match received.flags.contains(ReturnFlags::CTRUNC) {
            true => Err(Gone::Descriptors),
            false => Ok(received.bytes),
        }
    }
}

/// Sends a message, whole or not at all: a front-end that reads none of its answers is not worth waiting for.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    header: Header,
    payload: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(payload)];
    let sent = sendmsg(socket, &parts, &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    if sent == HEADER_LENGTH + payload.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Has reads and writes of a descriptor wait for nothing.
pub(super) fn without_waiting(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(fcntl(descriptor.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(descriptor.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(descriptor)
}
