//! Messages of vhost-user: bytes, and what they mean (QEMU's docs/interop/vhost-user.rst). Numbers are in the byte order of
//! this machine.
use arrayvec::ArrayVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::device::CONFIGURATION_MAX;

/// Bytes of the largest payload there is a use for.
pub(super) const PAYLOAD_MAX: usize = 512;
/// Regions which one message brings.
pub(super) const TABLE_MAX: usize = 8;

const VERSION_MASK: u32 = 3;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// What comes before each payload.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(super) struct Header {
    pub(super) request: u32,
    flags: u32,
    pub(super) size: u32,
}
pub(super) const HEADER_LENGTH: usize = size_of::<Header>();
const _: () = assert!(HEADER_LENGTH == 12);

impl Header {
    /// Of an answer to this.
    pub(super) const fn answer(self, size: u32) -> Self {
        Self { request: self.request, flags: VERSION | REPLY, size }
    }

    /// Of a message of our own.
    pub(super) const fn to_front_end(request: u32) -> Self {
        Self { request, flags: VERSION, size: 0 }
    }

    /// Whether it is one of a version we know, with a payload that can be.
    pub(super) const fn is_sound(self) -> bool {
        self.flags & VERSION_MASK == VERSION && self.flags & REPLY == 0 && self.size <= PAYLOAD_MAX as u32
    }

    pub(super) const fn needs_reply(self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

/// Which extensions of the protocol there are.
pub(super) mod protocol_feature {
    pub(in super::super) const QUEUES: u64 = 1 << 0;
    pub(in super::super) const REPLY_ACK: u64 = 1 << 3;
    pub(in super::super) const BACKEND_CHANNEL: u64 = 1 << 5;
    pub(in super::super) const CONFIGURATION: u64 = 1 << 9;
    pub(in super::super) const INFLIGHT: u64 = 1 << 12;
    pub(in super::super) const RESET_DEVICE: u64 = 1 << 13;
    pub(in super::super) const MEMORY_SLOTS: u64 = 1 << 15;
    /// All that is offered.
    pub(in super::super) const OFFERED: u64 =
        QUEUES | REPLY_ACK | BACKEND_CHANNEL | CONFIGURATION | INFLIGHT | RESET_DEVICE | MEMORY_SLOTS;
}

/// What we tell the front-end by ourselves: the configuration has changed.
pub(super) const CONFIGURATION_CHANGED: u32 = 2;

/// A piece of the machine's memory, as it is announced.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
pub(super) struct MemoryRegion {
    /// Where the guest sees it.
    pub(super) guest: u64,
    pub(super) size: u64,
    /// Where the front-end sees it, which is how rings are named.
    pub(super) user: u64,
    /// Where it begins in the file that comes with it.
    pub(super) offset: u64,
}

/// A number of a queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
pub(super) struct VringState {
    pub(super) index: u32,
    pub(super) number: u32,
}

/// Where the parts of a queue lie, as the front-end sees them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
pub(super) struct VringAddresses {
    pub(super) index: u32,
    flags: u32,
    pub(super) descriptors: u64,
    pub(super) used: u64,
    pub(super) available: u64,
    log: u64,
}

/// The memory in which is kept what is under way.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
pub(super) struct InflightArea {
    pub(super) size: u64,
    pub(super) offset: u64,
    pub(super) queues: u16,
    pub(super) queue_size: u16,
    /// Sent by some, as C lays it out, and left out by others.
    pub(super) padding: [u8; 4],
}

/// What comes before bytes of the configuration.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
pub(super) struct ConfigurationPart {
    pub(super) offset: u32,
    pub(super) size: u32,
    pub(super) flags: u32,
}

/// Bytes of an inflight description at least.
const INFLIGHT_LENGTH: usize = 20;

/// A message of the front-end, understood.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemoryTable(ArrayVec<MemoryRegion, TABLE_MAX>),
    SetQueueSize(VringState),
    SetQueueAddresses(VringAddresses),
    SetQueueBase(VringState),
    GetQueueBase(VringState),
    SetKick(Descriptor),
    SetCall(Descriptor),
    SetError(Descriptor),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueCount,
    EnableQueue(VringState),
    SetBackendChannel,
    GetConfiguration(ConfigurationPart),
    SetConfiguration(ConfigurationPart, ArrayVec<u8, CONFIGURATION_MAX>),
    /// With how many bytes of it are wanted back.
    GetInflight(InflightArea, usize),
    SetInflight(InflightArea),
    ResetDevice,
    GetMemorySlots,
    AddMemory(MemoryRegion),
    RemoveMemory(MemoryRegion),
    Unknown(u32),
}

/// Which queue a file descriptor is for, and whether one comes with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Descriptor {
    pub(super) index: u32,
    pub(super) comes: bool,
}

impl Request {
    /// The meaning of a payload; nothing if it cannot be that of this request.
    pub(super) fn parse(number: u32, payload: &[u8]) -> Option<Self> {
        Some(match number {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(u64::read_from_bytes(payload).ok()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => Self::SetMemoryTable(table(payload)?),
            8 => Self::SetQueueSize(VringState::read_from_bytes(payload).ok()?),
            9 => Self::SetQueueAddresses(VringAddresses::read_from_bytes(payload).ok()?),
            10 => Self::SetQueueBase(VringState::read_from_bytes(payload).ok()?),
            11 => Self::GetQueueBase(VringState::read_from_bytes(payload).ok()?),
            12 => Self::SetKick(descriptor(payload)?),
            13 => Self::SetCall(descriptor(payload)?),
            14 => Self::SetError(descriptor(payload)?),
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(u64::read_from_bytes(payload).ok()?),
            17 => Self::GetQueueCount,
            18 => Self::EnableQueue(VringState::read_from_bytes(payload).ok()?),
            21 => Self::SetBackendChannel,
            24 => Self::GetConfiguration(part(payload)?.0),
            25 => {
                let (part, bytes) = part(payload)?;
                Self::SetConfiguration(part, bytes.try_into().ok()?)
            }
            31 => Self::GetInflight(inflight(payload)?, payload.len()),
            32 => Self::SetInflight(inflight(payload)?),
            34 => Self::ResetDevice,
            36 => Self::GetMemorySlots,
            37 => Self::AddMemory(single(payload)?),
            38 => Self::RemoveMemory(single(payload)?),
            other => Self::Unknown(other),
        })
    }
}

fn table(payload: &[u8]) -> Option<ArrayVec<MemoryRegion, TABLE_MAX>> {
    let (count, rest) = u64::read_from_prefix(payload).ok()?;
    // A count of 32 bits, and padding which may hold anything.
    let count = usize::try_from(count as u32).ok().filter(|&count| count <= TABLE_MAX)?;
    let mut regions = ArrayVec::new();
    let mut rest = rest;
    for _ in 0..count {
        let (region, after) = MemoryRegion::read_from_prefix(rest).ok()?;
        regions.push(region);
        rest = after;
    }
    Some(regions)
}

fn single(payload: &[u8]) -> Option<MemoryRegion> {
    MemoryRegion::read_from_bytes(payload.get(size_of::<u64>()..)?).ok()
}

/// Bits 0 to 7 are the queue, bit 8 says that no descriptor comes.
fn descriptor(payload: &[u8]) -> Option<Descriptor> {
    let word = u64::read_from_bytes(payload).ok()?;
    Some(Descriptor { index: word as u32 & 0xFF, comes: word & 1 << 8 == 0 })
}

fn part(payload: &[u8]) -> Option<(ConfigurationPart, &[u8])> {
    let (part, bytes) = ConfigurationPart::read_from_prefix(payload).ok()?;
    let end = part.offset.checked_add(part.size)?;
    let sound = part.size as usize == bytes.len() && end as usize <= CONFIGURATION_MAX;
    sound.then_some((part, bytes))
}

fn inflight(payload: &[u8]) -> Option<InflightArea> {
    let mut whole = [0; size_of::<InflightArea>()];
    if payload.len() < INFLIGHT_LENGTH {
        return None;
    }
    whole.get_mut(..payload.len())?.copy_from_slice(payload);
    InflightArea::read_from_bytes(&whole).ok()
}

impl InflightArea {
    /// As it is sent back, in as many bytes as it came in.
    pub(super) fn on_the_wire(&self, length: usize) -> &[u8] {
        &self.as_bytes()[..length]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_mean_what_qemu_means() {
        let state = VringState { index: 3, number: 128 };
        assert_eq!(Request::parse(8, state.as_bytes()), Some(Request::SetQueueSize(state)));
        assert_eq!(Request::parse(8, &state.as_bytes()[..7]), None);
        let kick = |word: u64| Request::parse(12, word.as_bytes());
        assert_eq!(kick(2), Some(Request::SetKick(Descriptor { index: 2, comes: true })));
        assert_eq!(kick(0x107), Some(Request::SetKick(Descriptor { index: 7, comes: false })));
        let region = MemoryRegion { guest: 0, size: 4096, user: 1 << 40, offset: 8192 };
        let table = [1_u64.as_bytes(), region.as_bytes()].concat();
        let one = [region].into_iter().collect();
        assert_eq!(Request::parse(5, &table), Some(Request::SetMemoryTable(one)));
        assert_eq!(Request::parse(37, &table), Some(Request::AddMemory(region)));
        assert_eq!(Request::parse(5, &[2_u64.as_bytes(), region.as_bytes()].concat()), None);
        assert_eq!(Request::parse(5, 9_u64.as_bytes()), None, "more than one message can bring");
        assert_eq!(Request::parse(99, &[]), Some(Request::Unknown(99)));
        let inflight = |length: usize| Request::parse(31, &vec![0; length]);
        assert!(matches!(inflight(20), Some(Request::GetInflight(_, 20))));
        assert!(matches!(inflight(24), Some(Request::GetInflight(_, 24))));
        assert!(inflight(19).is_none() && inflight(25).is_none());
    }

    #[test]
    fn a_part_of_the_configuration_has_as_many_bytes_as_it_says_and_lies_inside() {
        let part = |offset, size, bytes: usize| {
            let part = ConfigurationPart { offset, size, flags: 0 };
            Request::parse(24, &[part.as_bytes(), &vec![0; bytes]].concat())
        };
        assert!(part(0, 60, 60).is_some() && part(32, 1, 1).is_some());
        assert!(part(0, 60, 59).is_none() && part(256, 1, 1).is_none() && part(u32::MAX, 1, 1).is_none());
    }

    proptest! {
        #[test]
        fn no_payload_ends_us(number in 0..64_u32, payload in proptest::collection::vec(any::<u8>(), 0..400)) {
            let parsed = Request::parse(number, &payload);
            prop_assert!(parsed.is_none() || number != 5 || payload[0] <= 8);
        }
    }
}
