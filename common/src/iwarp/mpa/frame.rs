//! MPA Request and Reply frames (RFC 5044, section 7.1.1; RFC 6581, section 6).
use arrayvec::ArrayVec;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::verbs::PrivateData;

const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;

/// The first bytes of a frame.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct FrameWire {
    pub key: [u8; 16],
    pub flags: u8,
    pub revision: u8,
    pub private_data_length: U16,
}
const _: () = assert!(size_of::<FrameWire>() == 20);

/// What revision 2 puts in front of the private data, and counts with it.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct EnhancedWire {
    pub ird: U16,
    pub ord: U16,
}
const _: () = assert!(size_of::<EnhancedWire>() == 4);

/// The two high bits of each word are flags.
const DEPTH_MASK: u16 = 0x3FFF;
const PEER_TO_PEER: u16 = 0x8000;
const RTR_SEND: u16 = 0x4000;
const RTR_WRITE: u16 = 0x8000;
const RTR_READ: u16 = 0x4000;

/// RFC 5044, section 7.1.1: more private data is an error.
const PRIVATE_DATA_MAX: usize = 512;

/// Bytes of the longest frame.
pub const FRAME_MAX: usize = size_of::<FrameWire>() + PRIVATE_DATA_MAX;

/// Which of the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FrameKind {
    Request,
    Reply,
}

impl FrameKind {
    const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => REQUEST_KEY,
            Self::Reply => REPLY_KEY,
        }
    }
}

/// How the active side may show that it is ready to receive, so that the passive side may send first.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RtrForms {
    pub send: bool,
    pub write: bool,
    pub read: bool,
}

/// The enhanced block of revision 2.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Enhanced {
    pub peer_to_peer: bool,
    pub rtr: RtrForms,
    /// 14 bits each; [`Enhanced::UNSPECIFIED`] leaves it open.
    pub ird: u16,
    pub ord: u16,
}

impl Enhanced {
    /// The depth which means that the consumers settle it among themselves.
    pub const UNSPECIFIED: u16 = DEPTH_MASK;

    fn from_wire(wire: EnhancedWire) -> Self {
        let (ird, ord) = (wire.ird.get(), wire.ord.get());
        Self {
            peer_to_peer: ird & PEER_TO_PEER != 0,
            rtr: RtrForms {
                send: ird & RTR_SEND != 0,
                write: ord & RTR_WRITE != 0,
                read: ord & RTR_READ != 0,
            },
            ird: ird & DEPTH_MASK,
            ord: ord & DEPTH_MASK,
        }
    }

    fn to_wire(self) -> EnhancedWire {
        let flag = |set, bit| if set { bit } else { 0 };
        let ird =
            self.ird & DEPTH_MASK | flag(self.peer_to_peer, PEER_TO_PEER) | flag(self.rtr.send, RTR_SEND);
        let ord = self.ord & DEPTH_MASK | flag(self.rtr.write, RTR_WRITE) | flag(self.rtr.read, RTR_READ);
        EnhancedWire { ird: ird.into(), ord: ord.into() }
    }
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FrameError {
    #[error("the first bytes are no MPA frame")]
    Key,
    #[error("MPA revision {0}")]
    Revision(u8),
    #[error("{0} bytes of private data")]
    PrivateDataLength(u16),
    #[error("an enhanced frame without its enhanced block")]
    EnhancedMissing,
}

/// A Request or a Reply.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    pub kind: FrameKind,
    /// The sender wants markers in what it receives.
    pub markers: bool,
    pub crc: bool,
    /// In a Reply only.
    pub reject: bool,
    pub revision: u8,
    pub enhanced: Option<Enhanced>,
    /// The consumer's bytes. A longer tail than we keep is cut off: a prefix is all that is ever looked at.
    pub private_data: PrivateData,
}

/// What the beginning of a frame tells.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Parsed {
    /// So many bytes there have to be in all before more can be said. To read beyond them would be to read
    /// beyond the frame.
    Needs(usize),
    Whole(Box<Frame>),
}

impl Frame {
    /// Reads a frame of which `bytes` is the beginning.
    ///
    /// # Errors
    /// If it cannot become one any more; a wrong key is noticed at its first wrong byte.
    pub fn parse(kind: FrameKind, bytes: &[u8]) -> Result<Parsed, FrameError> {
        let key = kind.key();
        let common = bytes.len().min(key.len());
        if bytes[..common] != key[..common] {
            return Err(FrameError::Key);
        }
        let Ok((wire, rest)) = FrameWire::read_from_prefix(bytes) else {
            return Ok(Parsed::Needs(size_of::<FrameWire>()));
        };
        if wire.revision > 2 {
            return Err(FrameError::Revision(wire.revision));
        }
        let length = wire.private_data_length.get();
        if usize::from(length) > PRIVATE_DATA_MAX {
            return Err(FrameError::PrivateDataLength(length));
        }
        let Some(mut private_data) = rest.get(..usize::from(length)) else {
            return Ok(Parsed::Needs(size_of::<FrameWire>() + usize::from(length)));
        };
        let mut enhanced = None;
        if wire.revision == 2 && wire.flags & ENHANCED != 0 {
            let (block, rest) =
                EnhancedWire::read_from_prefix(private_data).map_err(|_| FrameError::EnhancedMissing)?;
            enhanced = Some(Enhanced::from_wire(block));
            private_data = rest;
        }
        let kept = private_data.iter().copied().take(PrivateData::new_const().capacity());
        Ok(Parsed::Whole(Box::new(Self {
            kind,
            markers: wire.flags & MARKERS != 0,
            crc: wire.flags & CRC != 0,
            reject: wire.flags & REJECT != 0,
            revision: wire.revision,
            enhanced,
            private_data: kept.collect(),
        })))
    }

    /// The bytes of it.
    #[must_use]
    pub fn to_bytes(&self) -> ArrayVec<u8, FRAME_MAX> {
        let flag = |set, bit| if set { bit } else { 0 };
        let block_length = if self.enhanced.is_some() { size_of::<EnhancedWire>() } else { 0 };
        let length = u16::try_from(block_length + self.private_data.len()).expect("both are small");
        let wire = FrameWire {
            key: *self.kind.key(),
            flags: flag(self.markers, MARKERS)
                | flag(self.crc, CRC)
                | flag(self.reject, REJECT)
                | flag(self.enhanced.is_some(), ENHANCED),
            revision: self.revision,
            private_data_length: length.into(),
        };
        let mut bytes = ArrayVec::new();
        bytes.extend(wire.as_bytes().iter().copied());
        if let Some(enhanced) = self.enhanced {
            bytes.extend(enhanced.to_wire().as_bytes().iter().copied());
        }
        bytes.extend(self.private_data.iter().copied());
        bytes
    }
}
