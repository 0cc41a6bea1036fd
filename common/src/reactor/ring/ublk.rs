//! The commands by which a ring serves a queue of a ublk device: one for each tag is always either with the kernel, which
//! waits for a request to bring, or with us, who carry the request out.
use io_uring::opcode;

use super::{Ring, RingFile};
use crate::verbs::{Sge, Token};

/// What is said about one tag. The kernel answers with 0 once a request has come, or with what is wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UblkCommand {
    /// The first word: bring a request.
    Fetch,
    /// The last request has ended with so many bytes, or a negative errno: bring the next one.
    CommitAndFetch { result: i32 },
}

/// A place for one request in a queue of a ublk device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UblkTag {
    pub queue: u16,
    pub tag: u16,
}

impl UblkCommand {
    /// What `<linux/ublk_cmd.h>` calls `UBLK_U_IO_FETCH_REQ` and `UBLK_U_IO_COMMIT_AND_FETCH_REQ`.
    const fn number(self) -> u32 {
        match self {
            Self::Fetch => 0xC010_7520,
            Self::CommitAndFetch { .. } => 0xC010_7521,
        }
    }

    /// `struct ublksrv_io_cmd`.
    fn bytes(self, UblkTag { queue, tag }: UblkTag, buffer: u64) -> [u8; 16] {
        let result = match self {
            Self::Fetch => 0,
            Self::CommitAndFetch { result } => result,
        };
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&result.to_ne_bytes());
        bytes[8..].copy_from_slice(&buffer.to_ne_bytes());
        bytes
    }
}

impl Ring {
    /// Tells a queue of a ublk device about one tag. From now on until this completes the kernel may read and
    /// write the buffer, in which the data of a tag's requests lies. A queue is served by one thread alone.
    pub fn ublk(&mut self, device: RingFile, command: UblkCommand, tag: UblkTag, buffer: Sge, token: Token) {
        let address = self.memory.pointer(buffer).as_ptr().expose_provenance() as u64;
        let (number, bytes) = (command.number(), command.bytes(tag, address));
        let entry = match self.fixed(device) {
            Ok(fixed) => opcode::UringCmd16::new(fixed, number).cmd(bytes).build(),
            Err(fd) => opcode::UringCmd16::new(fd, number).cmd(bytes).build(),
        };
        self.push(entry.user_data(token.to_bits()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_lie_as_the_kernel_reads_them() {
        // _IOWR('u', 0x20 and 0x21, 16 bytes)
        let encoded = |number: u32| 3 << 30 | 16 << 16 | u32::from(b'u') << 8 | number;
        let commit = UblkCommand::CommitAndFetch { result: -5 };
        assert_eq!((UblkCommand::Fetch.number(), commit.number()), (encoded(0x20), encoded(0x21)));
        let bytes = commit.bytes(UblkTag { queue: 3, tag: 0x1234 }, 0x1122_3344_5566_7788);
        assert_eq!(u16::from_ne_bytes([bytes[0], bytes[1]]), 3);
        assert_eq!(u16::from_ne_bytes([bytes[2], bytes[3]]), 0x1234);
        assert_eq!(i32::from_ne_bytes(bytes[4..8].try_into().unwrap()), -5);
        assert_eq!(u64::from_ne_bytes(bytes[8..].try_into().unwrap()), 0x1122_3344_5566_7788);
    }
}
