//! Just enough of generic netlink to ask a driver for something and hear its answer (`<linux/genetlink.h>`).
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
/// The type of an answer which is an error, or says that there was none.
const ERROR: u16 = 2;
/// A request, whose end is to be told.
const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
/// The family which knows the others, what to ask it, and what it answers.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// How long the kernel may take to answer.
const PATIENCE_S: i64 = 30;
/// What an attribute with others inside has in its type.
const NESTED: u16 = 1 << 15;

/// The attributes of a message.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    #[must_use]
    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).expect("attributes of ours are short");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    #[must_use]
    pub(super) fn with_nested(self, kind: u16, inside: &Self) -> Self {
        self.with(kind | NESTED, &inside.0)
    }
}

/// The value of an attribute in what was answered.
fn find(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (length, kind) = (u16_at(bytes, 0)?, u16_at(bytes, 2)?);
        let value = bytes.get(ATTRIBUTE_HEADER..length.into())?;
        if kind & !NESTED == wanted {
            return Some(value);
        }
        bytes = bytes.get(usize::from(length).next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A conversation with one family.
pub(super) struct Netlink {
    socket: OwnedFd,
    family: u16,
}

impl Netlink {
    /// # Errors
    /// When there is no such family: its driver is not loaded.
    pub(super) fn open(family: &str) -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            Some(SockProtocol::NetlinkGeneric),
        )?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
        let mut netlink = Self { socket, family: CONTROL };
        let name = [family.as_bytes(), &[0]].concat();
        let answer = netlink.ask(GET_FAMILY, &Attributes::default().with(FAMILY_NAME, &name))?;
        let number = find(&answer, FAMILY_ID).and_then(|value| u16_at(value, 0));
        netlink.family = number.ok_or(io::ErrorKind::InvalidData)?;
        Ok(netlink)
    }

    /// Asks, and gives the attributes of the answer, which may be none.
    pub(super) fn ask(&mut self, command: u8, attributes: &Attributes) -> io::Result<Vec<u8>> {
        let message = message(self.family, command, attributes);
        sendto(self.socket.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut answer = Vec::new();
        let mut bytes = vec![0; 16 << 10];
        loop {
            let count = recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
            if let Some(result) = read(&bytes[..count], &mut answer) {
                return result.map(|()| answer);
            }
        }
    }

    /// A number in what was answered.
    pub(super) fn number(answer: &[u8], wanted: u16) -> Option<u32> {
        u32_at(find(answer, wanted)?, 0)
    }
}

fn message(family: u16, command: u8, attributes: &Attributes) -> Vec<u8> {
    let length =
        u32::try_from(HEADER + GENERIC_HEADER + attributes.0.len()).expect("messages of ours are short");
    let mut message = Vec::with_capacity(length as usize);
    message.extend(length.to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(&attributes.0);
    message
}

/// Reads what the kernel has sent: an answer is kept, and the end told.
fn read(mut bytes: &[u8], answer: &mut Vec<u8>) -> Option<io::Result<()>> {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let Some(body) = bytes.get(HEADER..length as usize) else {
            return Some(Err(io::ErrorKind::InvalidData.into()));
        };
        if kind == ERROR {
            let errno = u32_at(body, 0).map_or(libc::EPROTO, |number| number.cast_signed().wrapping_neg());
            return Some(if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) });
        }
        *answer = body.get(GENERIC_HEADER..).unwrap_or_default().to_vec();
        bytes = bytes.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_lie_as_the_kernel_reads_them() {
        let inside = Attributes::default().with(1, &7_u32.to_ne_bytes());
        let attributes = Attributes::default().with(2, b"nbd\0x").with_nested(7, &inside);
        let message = message(0x1234, 3, &attributes);
        assert_eq!((message.len(), u32_at(&message, 0)), (44, Some(44)));
        assert_eq!((u16_at(&message, 4), u16_at(&message, 6)), (Some(0x1234), Some(5)));
        let body = &message[HEADER + GENERIC_HEADER..];
        assert_eq!(find(body, 2), Some(&b"nbd\0x"[..]));
        assert_eq!(find(find(body, 7).unwrap(), 1).and_then(|value| u32_at(value, 0)), Some(7));
        assert_eq!(find(body, 9), None);
        assert_eq!(find(&[3, 0, 1, 0], 1), None, "shorter than its own header");
    }

    #[test]
    fn an_answer_is_kept_and_an_end_is_told() {
        let part = |kind: u16, body: &[u8]| {
            let length = u32::try_from(HEADER + body.len()).unwrap();
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
        };
        let attributes = Attributes::default().with(1, &3_u32.to_ne_bytes()).0;
        let said = part(0x20, &[&[1, 1, 0, 0], &attributes[..]].concat());
        let mut answer = Vec::new();
        assert!(read(&said, &mut answer).is_none(), "the end is to come");
        assert_eq!(Netlink::number(&answer, 1), Some(3));
        let done = part(ERROR, &[0; 20]);
        assert!(read(&[said, done].concat(), &mut answer).unwrap().is_ok());
        let refused = part(ERROR, &(-libc::EBUSY).to_ne_bytes());
        let error = read(&refused, &mut answer).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        assert!(read(&part(ERROR, &[]), &mut answer).unwrap().is_err());
        assert!(read(&[200, 0, 0, 0, 2, 0, 0, 0], &mut answer).unwrap().is_err(), "longer than it is");
    }

    #[test]
    fn a_family_nobody_has_is_not_there() {
        assert!(Netlink::open("ironside-none").is_err());
    }
}
