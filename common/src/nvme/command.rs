//! The 64-byte submission queue entry, which every command capsule begins with.
use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bits::{bits, place};
use super::{AdminOpcode, DataPointer, FABRICS_OPCODE, FabricsType, IoOpcode, admin, fabrics, io};

/// A submission queue entry as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Command {
    pub opcode: u8,
    /// Bits 1:0 FUSE, bits 7:6 PSDT.
    pub flags: u8,
    pub cid: U16,
    /// Fabrics commands have their type in the first byte of it.
    pub nsid: U32,
    pub cdw2: U32,
    pub cdw3: U32,
    pub metadata: U64,
    /// SGL1; see [`DataPointer`].
    pub sgl: [u8; 16],
    pub cdw10: U32,
    pub cdw11: U32,
    pub cdw12: U32,
    pub cdw13: U32,
    pub cdw14: U32,
    pub cdw15: U32,
}

const _: () = assert!(size_of::<Command>() == Command::SIZE);

/// What a queue carries decides what its opcodes mean.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QueueKind {
    Admin,
    Io,
}

impl Command {
    /// In bytes.
    pub const SIZE: usize = 64;

    /// `FLAGS` of every command over fabrics: SGLs, and not fused.
    pub const SGL_FLAGS: u8 = 0x40;

    /// The bits of `flags` which fuse a command with its neighbour.
    pub const FUSE: u8 = 0b11;

    /// A command without data, its other fields zero.
    #[must_use]
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Self {
        Self {
            opcode,
            flags: Self::SGL_FLAGS,
            cid: cid.into(),
            nsid: nsid.into(),
            sgl: DataPointer::None.to_sgl(),
            ..Self::new_zeroed()
        }
    }

    /// A Fabrics command without data, its other fields zero.
    #[must_use]
    pub fn fabrics(fabrics_type: FabricsType, cid: u16) -> Self {
        Self::new(FABRICS_OPCODE, cid, u32::from(fabrics_type.0))
    }

    /// This command with its data described by `pointer`.
    #[must_use]
    pub fn with_data(self, pointer: DataPointer) -> Self {
        Self { sgl: pointer.to_sgl(), ..self }
    }

    /// The command at the head of a capsule; `None` if the capsule is too short to hold one.
    #[must_use]
    pub fn from_capsule(capsule: &[u8]) -> Option<Self> {
        Self::read_from_prefix(capsule).ok().map(|(command, _)| command)
    }

    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        zerocopy::transmute!(self)
    }

    #[must_use]
    pub fn is_fabrics(&self) -> bool {
        self.opcode == FABRICS_OPCODE
    }

    /// Which Fabrics command it is, if it is one.
    #[must_use]
    pub fn fabrics_type(&self) -> Option<FabricsType> {
        self.is_fabrics().then(|| FabricsType(self.nsid.to_bytes()[0]))
    }

    /// FUSE: 0 for a command by itself.
    #[must_use]
    pub const fn fuse(&self) -> u8 {
        bits(self.flags as u64, 1, 0) as u8
    }

    /// PSDT: 01b over fabrics, but for Fabrics commands themselves.
    #[must_use]
    pub const fn psdt(&self) -> u8 {
        bits(self.flags as u64, 7, 6) as u8
    }

    /// Whether the opcode, or the Fabrics type, says that data goes from the host to the controller.
    #[must_use]
    pub fn is_from_host(&self) -> bool {
        self.direction() == 0b01
    }

    /// Whether the opcode, or the Fabrics type, says that no data goes anywhere.
    #[must_use]
    pub fn has_no_data(&self) -> bool {
        self.direction() == 0b00
    }

    fn direction(&self) -> u8 {
        let number = self.fabrics_type().map_or(self.opcode, |fabrics_type| fabrics_type.0);
        bits(number.into(), 1, 0) as u8
    }

    /// CDW10 and CDW11 as one: a starting LBA.
    #[must_use]
    pub fn cdw10_11(&self) -> u64 {
        join(self.cdw10, self.cdw11)
    }

    /// CDW12 and CDW13 as one: a log page offset, a property's value.
    #[must_use]
    pub fn cdw12_13(&self) -> u64 {
        join(self.cdw12, self.cdw13)
    }

    pub(super) fn set_cdw10_11(&mut self, value: u64) {
        (self.cdw10, self.cdw11) = split(value);
    }

    pub(super) fn set_cdw12_13(&mut self, value: u64) {
        (self.cdw12, self.cdw13) = split(value);
    }

    /// The command in words, given the kind of queue it came on.
    #[must_use]
    pub const fn on(&self, queue: QueueKind) -> impl fmt::Display + '_ {
        OnQueue { command: self, queue }
    }
}

/// Without the kind of queue only its head and a Fabrics command can be said in words; see [`Command::on`].
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_fabrics() {
            return write!(f, "{}", self.on(QueueKind::Admin));
        }
        write!(f, "opcode {:#04x} cid {:#06x} nsid {}", self.opcode, self.cid, self.nsid)?;
        write!(f, ", {}", DataPointer::describe(self))
    }
}

struct OnQueue<'a> {
    command: &'a Command,
    queue: QueueKind,
}

impl fmt::Display for OnQueue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.command;
        match (command.fabrics_type(), self.queue) {
            (Some(fabrics_type), _) => write!(f, "{fabrics_type} cid {:#06x}", command.cid)?,
            (None, QueueKind::Admin) => {
                write!(f, "{} cid {:#06x}", AdminOpcode(command.opcode), command.cid)?;
            }
            (None, QueueKind::Io) => {
                write!(f, "{} cid {:#06x}", IoOpcode(command.opcode), command.cid)?;
            }
        }
        if command.fuse() != 0 {
            write!(f, " fused {}", command.fuse())?;
        }
        match (command.is_fabrics(), self.queue) {
            (true, _) => fabrics::describe(command, f)?,
            (false, QueueKind::Admin) => admin::describe(command, f)?,
            (false, QueueKind::Io) => io::describe(command, f)?,
        }
        write!(f, ", {}", DataPointer::describe(command))
    }
}

fn join(low: U32, high: U32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn split(value: u64) -> (U32, U32) {
    (low_half(value).into(), low_half(value >> 32).into())
}

const fn low_half(value: u64) -> u32 {
    bits(value, 31, 0) as u32
}

/// A double word of 16-bit halves, the lower first.
pub(super) const fn halves(low: u16, high: u16) -> u32 {
    (place(low as u64, 15, 0) | place(high as u64, 31, 16)) as u32
}

/// The lower half of a double word.
pub(super) fn low_word(dword: U32) -> u16 {
    bits(dword.into(), 15, 0) as u16
}

/// The upper half of a double word.
pub(super) fn high_word(dword: U32) -> u16 {
    bits(dword.into(), 31, 16) as u16
}

/// The lowest byte of a double word.
pub(super) fn low_byte(dword: U32) -> u8 {
    bits(dword.into(), 7, 0) as u8
}
