//! Descriptor chains of a virtqueue (virtio 1.2, 2.7.5): what a request's buffers are. All of it is the guest's word: every
//! index is looked at, every loop ends, and each descriptor is copied once.
use arrayvec::ArrayVec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Buffers of one request: what is advertised for data, its header and its status.
pub(super) const SEGMENTS: usize = 128;

pub(super) mod flag {
    pub(in super::super) const NEXT: u16 = 1;
    pub(in super::super) const WRITE: u16 = 2;
    pub(in super::super) const INDIRECT: u16 = 4;
}

/// `struct virtq_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(super) struct Descriptor {
    pub(super) address: U64,
    pub(super) length: U32,
    pub(super) flags: U16,
    pub(super) next: U16,
}
pub(super) const DESCRIPTOR_LENGTH: u32 = 16;
const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR_LENGTH as usize);

/// One buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) length: u32,
}

/// What is wrong with a chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("a descriptor beyond the table")]
    Index,
    #[error("a chain which does not end")]
    Loop,
    #[error("a chain of more than {SEGMENTS} buffers")]
    TooLong,
    #[error("a buffer to read from after one to write to")]
    Order,
    #[error("an indirect table where there may be none, or of no descriptors")]
    Indirect,
    #[error("an indirect table outside the guest's memory")]
    Outside,
}

/// The buffers of a request: first those the guest has filled, then those it wants filled.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    segments: ArrayVec<Segment, SEGMENTS>,
    /// How many of them are filled.
    readable: usize,
}

impl Chain {
    /// Reads a chain. `table` gives descriptors of the queue's own table of `size`; `indirect` those at an address and
    /// number, if the driver may use such tables.
    pub(super) fn read(
        &mut self,
        head: u16,
        size: u16,
        table: impl FnMut(u16) -> Result<Descriptor, Malformed>,
        indirect: Option<impl Fn(u64, u16) -> Result<Descriptor, Malformed>>,
    ) -> Result<(), Malformed> {
        self.segments.clear();
        self.readable = 0;
        let Some(at) = self.follow(head, size, table)? else { return Ok(()) };
        let (address, length) = (at.address.get(), at.length.get());
        let count = u16::try_from(length / DESCRIPTOR_LENGTH).map_err(|_| Malformed::Indirect)?;
        let whole = length.is_multiple_of(DESCRIPTOR_LENGTH) && count > 0 && at.flags.get() & flag::NEXT == 0;
        let indirect = indirect.filter(|_| whole).ok_or(Malformed::Indirect)?;
        match self.follow(0, count, |index| indirect(address, index))? {
            None => Ok(()),
            Some(_) => Err(Malformed::Indirect),
        }
    }

    /// Follows descriptors to the end, or to one that stands for a table.
    fn follow(
        &mut self,
        first: u16,
        size: u16,
        mut at: impl FnMut(u16) -> Result<Descriptor, Malformed>,
    ) -> Result<Option<Descriptor>, Malformed> {
        let mut index = first;
        for _ in 0..size {
            if index >= size {
                return Err(Malformed::Index);
            }
            let descriptor = at(index)?;
            let flags = descriptor.flags.get();
            if flags & flag::INDIRECT != 0 {
                return Ok(Some(descriptor));
            }
            self.push(descriptor)?;
            if flags & flag::NEXT == 0 {
                return Ok(None);
            }
            index = descriptor.next.get();
        }
        Err(Malformed::Loop)
    }

    fn push(&mut self, descriptor: Descriptor) -> Result<(), Malformed> {
        let is_filled = descriptor.flags.get() & flag::WRITE == 0;
        if is_filled && self.readable < self.segments.len() {
            return Err(Malformed::Order);
        }
        self.readable += usize::from(is_filled);
        let segment = Segment { address: descriptor.address.get(), length: descriptor.length.get() };
        self.segments.try_push(segment).map_err(|_| Malformed::TooLong)
    }

    /// What the guest has filled.
    pub(super) fn filled(&self) -> &[Segment] {
        &self.segments[..self.readable]
    }

    /// What it wants filled.
    pub(super) fn wanted(&self) -> &[Segment] {
        &self.segments[self.readable..]
    }
}

/// Bytes of these buffers together.
pub(super) fn length(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.length)).sum()
}

/// The parts of these buffers which hold `length` bytes from `skip` on, as far as they reach.
pub(super) fn parts(segments: &[Segment], skip: u64, length: u64) -> impl Iterator<Item = Segment> + '_ {
    let (mut skip, mut left) = (skip, length);
    segments.iter().filter_map(move |segment| {
        let passed = skip.min(segment.length.into());
        skip -= passed;
        let part = (u64::from(segment.length) - passed).min(left);
        left -= part;
        // An address that wraps lies in no region.
        let address = segment.address.wrapping_add(passed);
        (part > 0)
            .then(|| Segment { address, length: u32::try_from(part).expect("no more than its segment") })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn descriptor(address: u64, length: u32, flags: u16, next: u16) -> Descriptor {
        Descriptor { address: address.into(), length: length.into(), flags: flags.into(), next: next.into() }
    }

    type Indirect = fn(u64, u16) -> Result<Descriptor, Malformed>;
    const NEVER: Option<Indirect> = None;

    fn read(table: &[Descriptor]) -> Result<Chain, Malformed> {
        let mut chain = Chain::default();
        let size = u16::try_from(table.len()).unwrap();
        chain.read(0, size, |index| Ok(table[usize::from(index)]), NEVER).map(|()| chain)
    }

    #[test]
    fn buffers_come_in_their_order_and_apart() {
        let chain = read(&[
            descriptor(100, 16, flag::NEXT, 2),
            descriptor(300, 1, flag::WRITE, 0),
            descriptor(200, 512, flag::NEXT | flag::WRITE, 1),
        ])
        .unwrap();
        assert_eq!(chain.filled(), [Segment { address: 100, length: 16 }]);
        assert_eq!(length(chain.wanted()), 513);
        let cut: Vec<_> = parts(chain.wanted(), 500, 100).collect();
        assert_eq!(cut, [Segment { address: 700, length: 12 }, Segment { address: 300, length: 1 }]);
        assert_eq!(parts(chain.wanted(), 600, 1).count(), 0);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let loops = [descriptor(0, 1, flag::NEXT, 1), descriptor(0, 1, flag::NEXT, 0)];
        assert_eq!(read(&loops).unwrap_err(), Malformed::Loop);
        assert_eq!(read(&[descriptor(0, 1, flag::NEXT, 1)]).unwrap_err(), Malformed::Loop);
        assert_eq!(read(&[descriptor(0, 1, flag::NEXT, 9), loops[0]]).unwrap_err(), Malformed::Index);
        let turned = [descriptor(0, 1, flag::NEXT | flag::WRITE, 1), descriptor(0, 1, 0, 0)];
        assert_eq!(read(&turned).unwrap_err(), Malformed::Order);
        assert_eq!(read(&[descriptor(0, 16, flag::INDIRECT, 0)]).unwrap_err(), Malformed::Indirect);
        let long: Vec<_> = (1..=200).map(|next| descriptor(0, 1, flag::NEXT, next)).collect();
        assert_eq!(read(&long).unwrap_err(), Malformed::TooLong);
    }

    #[test]
    fn an_indirect_table_is_followed_once() {
        let by = |at: Descriptor, flags: u16| {
            let mut chain = Chain::default();
            let inner = move |address: u64, index: u16| {
                Ok(descriptor(
                    address + u64::from(index),
                    7,
                    if index == 0 { flags | flag::NEXT } else { flag::WRITE },
                    1,
                ))
            };
            chain.read(0, 8, |_| Ok(at), Some(inner)).map(|()| chain)
        };
        let chain = by(descriptor(1000, 32, flag::INDIRECT, 0), 0).unwrap();
        assert_eq!((chain.filled()[0].address, chain.wanted()[0].address), (1000, 1001));
        for (at, flags) in [
            (descriptor(0, 32, flag::INDIRECT, 0), flag::INDIRECT),
            (descriptor(0, 32, flag::INDIRECT | flag::NEXT, 0), 0),
            (descriptor(0, 33, flag::INDIRECT, 0), 0),
            (descriptor(0, 0, flag::INDIRECT, 0), 0),
            (descriptor(0, !15, flag::INDIRECT, 0), 0),
        ] {
            assert_eq!(by(at, flags).unwrap_err(), Malformed::Indirect);
        }
    }

    proptest! {
        #[test]
        fn no_table_ends_us_or_keeps_us(
            table in proptest::collection::vec((any::<u64>(), any::<u32>(), 0..8_u16, 0..40_u16), 1..33),
            head in 0..40_u16,
        ) {
            let table: Vec<_> = table.into_iter().map(|(a, l, f, n)| descriptor(a, l, f, n)).collect();
            let size = u16::try_from(table.len()).unwrap();
            let (mut chain, mut looked) = (Chain::default(), 0);
            let inner = |address: u64, index: u16| Ok(descriptor(address, 1, u16::from(index.is_multiple_of(2)), index.wrapping_add(1)));
            let result = chain.read(head, size, |index| { looked += 1; Ok(table[usize::from(index)]) }, Some(inner));
            prop_assert!(looked <= usize::from(size));
            if result.is_ok() {
                prop_assert!(chain.filled().len() + chain.wanted().len() <= SEGMENTS);
            }
        }
    }
}
