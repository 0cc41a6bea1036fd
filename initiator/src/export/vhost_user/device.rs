//! A volume as a virtio block device (virtio 1.2, 5.2): what it can do, its configuration, and what its requests mean.
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::QUEUES;
use super::chain::SEGMENTS;
use crate::volume::{Geometry, Operation};

/// What a sector is, whatever the volume's blocks are.
pub(super) const SECTOR: u32 = 512;
/// Bytes of a configuration as the front-end may ask for it.
pub(super) const CONFIGURATION_MAX: usize = 256;
/// Bytes one buffer of a request may have.
const SEGMENT_MAX: u32 = 1 << 20;
/// Bytes of data of a request: what its buffers may have together.
const REQUEST_MAX: u64 = SEGMENT_MAX as u64 * SEGMENTS as u64;
/// Sectors of one discard.
const RANGE_SECTORS_MAX: u32 = 1 << 21;
/// Bytes of a device's name.
pub(super) const ID_LENGTH: usize = 20;
/// Bytes of a request's header.
pub(super) const HEADER_LENGTH: usize = 16;
/// Bytes of a range of a discard.
pub(super) const RANGE_LENGTH: usize = 16;
/// Where the configuration says whether the cache is to be used.
const WRITEBACK: u32 = 32;

/// Features, of the device and of its queues.
pub(super) mod feature {
    pub(in super::super) const SIZE_MAX: u64 = 1 << 1;
    pub(in super::super) const SEGMENT_MAX: u64 = 1 << 2;
    pub(in super::super) const READ_ONLY: u64 = 1 << 5;
    pub(in super::super) const BLOCK_SIZE: u64 = 1 << 6;
    pub(in super::super) const FLUSH: u64 = 1 << 9;
    pub(in super::super) const TOPOLOGY: u64 = 1 << 10;
    pub(in super::super) const CACHE_MODE: u64 = 1 << 11;
    pub(in super::super) const QUEUES: u64 = 1 << 12;
    pub(in super::super) const DISCARD: u64 = 1 << 13;
    pub(in super::super) const WRITE_ZEROES: u64 = 1 << 14;
    pub(in super::super) const INDIRECT: u64 = 1 << 28;
    pub(in super::super) const EVENT_INDEX: u64 = 1 << 29;
    /// vhost-user's own.
    pub(in super::super) const PROTOCOL: u64 = 1 << 30;
    pub(in super::super) const VERSION_1: u64 = 1 << 32;
    /// What would change the meaning of everything: a log of what is written, an IOMMU, packed queues.
    pub(in super::super) const IMPOSSIBLE: u64 = 1 << 26 | 1 << 33 | 1 << 34;
    /// All that a volume may have.
    pub(in super::super) const KNOWN: u64 = SIZE_MAX
        | SEGMENT_MAX
        | READ_ONLY
        | BLOCK_SIZE
        | FLUSH
        | TOPOLOGY
        | CACHE_MODE
        | QUEUES
        | DISCARD
        | WRITE_ZEROES
        | INDIRECT
        | EVENT_INDEX
        | PROTOCOL
        | VERSION_1;
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Status {
    Ok = 0,
    Error = 1,
    Unsupported = 2,
}

/// A volume as its machine sees it.
#[derive(Clone, Debug)]
pub struct Disk {
    geometry: Geometry,
    read_only: bool,
    id: [u8; ID_LENGTH],
    /// Whether the guest wants the volume's cache used.
    writeback: bool,
}

/// `struct virtio_blk_config`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct Configuration {
    sectors: U64,
    segment_size_max: U32,
    segments_max: U32,
    cylinders_heads_sectors: [u8; 4],
    block_size: U32,
    physical_block_exponent: u8,
    alignment_offset: u8,
    minimum_io_blocks: U16,
    optimal_io_blocks: U32,
    writeback: u8,
    unused: u8,
    queues: U16,
    discard_sectors_max: U32,
    discard_segments_max: U32,
    discard_alignment_sectors: U32,
    write_zeroes_sectors_max: U32,
    write_zeroes_segments_max: U32,
    write_zeroes_may_unmap: u8,
    padding: [u8; 3],
}
const _: () = assert!(size_of::<Configuration>() == 60);
const _: () = assert!(std::mem::offset_of!(Configuration, writeback) == WRITEBACK as usize);

/// What is before each request's data.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}
const _: () = assert!(size_of::<Header>() == HEADER_LENGTH);

/// What a discard, or zeroes, are about.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct Range {
    sector: U64,
    sectors: U32,
    flags: U32,
}
const _: () = assert!(size_of::<Range>() == RANGE_LENGTH);
const UNMAP: u32 = 1;

/// What a request is about, by its header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wanted {
    Volume(Work),
    /// Its range is in its data: of this length, or it is no such request.
    Range(RangeKind),
    /// The device's name.
    Id,
    Nothing(Status),
}

/// Something for the volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Work {
    pub(super) operation: Operation,
    pub(super) offset: u64,
    pub(super) length: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RangeKind {
    Discard,
    WriteZeroes,
}

impl Disk {
    /// A volume by this name, of which as much is told as there is room for.
    #[must_use]
    pub fn new(geometry: Geometry, name: &str) -> Self {
        let mut id = [0; ID_LENGTH];
        id.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        Self { geometry, read_only: geometry.read_only, id, writeback: true }
    }

    /// As it was for a machine which goes on with it.
    #[must_use]
    pub const fn with_writeback(self, writeback: bool) -> Self {
        Self { writeback, ..self }
    }

    /// The volume has changed.
    pub(super) fn changed(&mut self, geometry: Geometry) {
        self.geometry = geometry;
        self.read_only |= geometry.read_only;
    }

    pub(super) const fn id(&self) -> [u8; ID_LENGTH] {
        self.id
    }

    /// What it can do.
    pub(super) fn features(&self) -> u64 {
        use feature as f;
        let Geometry { volatile_cache, discard, write_zeroes, .. } = self.geometry;
        let if_there = |there: bool, bits: u64| if there { bits } else { 0 };
        let always = f::SIZE_MAX | f::SEGMENT_MAX | f::BLOCK_SIZE | f::TOPOLOGY | f::QUEUES;
        let transport = f::INDIRECT | f::EVENT_INDEX | f::PROTOCOL | f::VERSION_1;
        always
            | transport
            | if_there(self.read_only, f::READ_ONLY)
            | if_there(volatile_cache, f::FLUSH | f::CACHE_MODE)
            | if_there(discard && !self.read_only, f::DISCARD)
            | if_there(write_zeroes && !self.read_only, f::WRITE_ZEROES)
    }

    /// The configuration, and nothing behind it.
    pub(super) fn configuration(&self) -> [u8; CONFIGURATION_MAX] {
        let Geometry { size, block_size, preferred_write, discard, write_zeroes, volatile_cache, .. } =
            self.geometry;
        let blocks = match preferred_write {
            preferred if preferred.is_power_of_two() && preferred > block_size => preferred / block_size,
            _ => 1,
        };
        let range = |offered: bool| if offered && !self.read_only { RANGE_SECTORS_MAX } else { 0 };
        let one_if = |offered: bool| u32::from(offered && !self.read_only);
        let configuration = Configuration {
            sectors: (size / u64::from(SECTOR)).into(),
            segment_size_max: SEGMENT_MAX.into(),
            // Of each request's buffers two are its header and its status.
            segments_max: (SEGMENTS as u32 - 2).into(),
            block_size: block_size.into(),
            physical_block_exponent: blocks.trailing_zeros() as u8,
            minimum_io_blocks: u16::try_from(blocks).unwrap_or(1).into(),
            writeback: (volatile_cache && self.writeback).into(),
            queues: (QUEUES as u16).into(),
            discard_sectors_max: range(discard).into(),
            discard_segments_max: one_if(discard).into(),
            discard_alignment_sectors: (block_size / SECTOR).into(),
            write_zeroes_sectors_max: range(write_zeroes).into(),
            write_zeroes_segments_max: one_if(write_zeroes).into(),
            write_zeroes_may_unmap: one_if(write_zeroes) as u8,
            ..Configuration::default()
        };
        let mut bytes = [0; CONFIGURATION_MAX];
        bytes[..size_of::<Configuration>()].copy_from_slice(configuration.as_bytes());
        bytes
    }

    /// The guest has written to the configuration, where it may choose how the cache is used and nothing else.
    pub(super) fn configure(&mut self, offset: u32, bytes: &[u8]) -> bool {
        match (offset, bytes) {
            (WRITEBACK, &[writeback]) if self.geometry.volatile_cache && writeback <= 1 => {
                self.writeback = writeback == 1;
                true
            }
            _ => false,
        }
    }

    /// Whether the guest wants the cache used: front-ends tell it once, and it has to outlast them.
    pub(super) const fn writeback(&self) -> bool {
        self.writeback
    }

    /// What a request wants. `filled` and `wanted` are bytes of its data: behind the header, and before the status.
    /// `features` are those the driver has taken.
    pub(super) fn request(
        &self,
        header: [u8; HEADER_LENGTH],
        filled: u64,
        wanted: u64,
        features: u64,
    ) -> Wanted {
        let header: Header = zerocopy::transmute!(header);
        let fua = self.writes_are_durable(features);
        let transfer = |operation, length: u64| match header.sector.get().checked_mul(SECTOR.into()) {
            Some(offset) if length.is_multiple_of(SECTOR.into()) && (1..=REQUEST_MAX).contains(&length) => {
                Wanted::Volume(Work { operation, offset, length })
            }
            _ => Wanted::Nothing(Status::Error),
        };
        match header.kind.get() {
            0 => transfer(Operation::Read, wanted),
            1 if self.read_only => Wanted::Nothing(Status::Error),
            1 => transfer(Operation::Write { fua }, filled),
            4 => Wanted::Volume(Work { operation: Operation::Flush, offset: 0, length: 0 }),
            8 => Wanted::Id,
            11 if self.geometry.discard => self.range(RangeKind::Discard, filled),
            13 if self.geometry.write_zeroes => self.range(RangeKind::WriteZeroes, filled),
            _ => Wanted::Nothing(Status::Unsupported),
        }
    }

    fn range(&self, kind: RangeKind, filled: u64) -> Wanted {
        match filled == RANGE_LENGTH as u64 && !self.read_only {
            true => Wanted::Range(kind),
            false => Wanted::Nothing(Status::Error),
        }
    }

    /// What a request about a range wants, by its data.
    pub(super) fn range_request(&self, kind: RangeKind, data: [u8; RANGE_LENGTH], features: u64) -> Wanted {
        let Range { sector, sectors, flags } = zerocopy::transmute!(data);
        let fua = self.writes_are_durable(features);
        let operation = match (kind, flags.get()) {
            (RangeKind::Discard, 0) => Operation::Discard,
            (RangeKind::WriteZeroes, flags @ (0 | UNMAP)) => {
                Operation::WriteZeroes { unmap: flags == UNMAP, fua }
            }
            _ => return Wanted::Nothing(Status::Unsupported),
        };
        let length = u64::from(sectors.get()) * u64::from(SECTOR);
        match sector.get().checked_mul(SECTOR.into()) {
            Some(offset) if (1..=RANGE_SECTORS_MAX).contains(&sectors.get()) => {
                Wanted::Volume(Work { operation, offset, length })
            }
            _ => Wanted::Nothing(Status::Error),
        }
    }

    /// Without a driver that flushes, or if it wants no cache, a write is durable when it ends (5.2.6.2).
    const fn writes_are_durable(&self, features: u64) -> bool {
        features & feature::FLUSH == 0 || !self.writeback
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::GEOMETRY;

    fn disk() -> Disk {
        Disk::new(GEOMETRY, "0123456789abcdef0123456789")
    }

    fn header(kind: u32, sector: u64) -> [u8; HEADER_LENGTH] {
        let header = Header { kind: kind.into(), reserved: 0.into(), sector: sector.into() };
        zerocopy::transmute!(header)
    }

    fn range(sector: u64, sectors: u32, flags: u32) -> [u8; RANGE_LENGTH] {
        let range = Range { sector: sector.into(), sectors: sectors.into(), flags: flags.into() };
        zerocopy::transmute!(range)
    }

    #[test]
    fn it_says_what_the_volume_can_do_and_no_more() {
        let all = disk();
        let told = |disk: &Disk| Configuration::read_from_prefix(&disk.configuration()).unwrap().0;
        let configuration = told(&all);
        assert_eq!((configuration.sectors.get(), configuration.block_size.get()), (GEOMETRY.size / 512, 512));
        assert_eq!((configuration.physical_block_exponent, configuration.minimum_io_blocks.get()), (3, 8));
        assert_eq!((configuration.writeback, configuration.write_zeroes_may_unmap), (1, 1));
        assert_eq!((configuration.segments_max.get(), configuration.discard_segments_max.get()), (126, 1));
        assert_ne!(all.features() & feature::FLUSH, 0);
        assert_eq!(&all.id(), b"0123456789abcdef0123");
        let poor = Geometry { read_only: true, volatile_cache: false, block_size: 4096, ..GEOMETRY };
        let poor = Disk::new(poor, "a");
        let missing = feature::FLUSH | feature::CACHE_MODE | feature::DISCARD | feature::WRITE_ZEROES;
        assert_eq!(poor.features() & (missing | feature::READ_ONLY), feature::READ_ONLY);
        let configuration = told(&poor);
        assert_eq!((configuration.writeback, configuration.discard_sectors_max.get()), (0, 0));
        assert_eq!(configuration.discard_alignment_sectors.get(), 8);
    }

    #[test]
    fn requests_mean_what_the_specification_means_and_nothing_else_is_done() {
        let disk = disk();
        let ask = |kind, filled, wanted| disk.request(header(kind, 8), filled, wanted, feature::FLUSH);
        let work = |operation, length| Wanted::Volume(Work { operation, offset: 4096, length });
        assert_eq!(ask(0, 0, 4096), work(Operation::Read, 4096));
        assert_eq!(ask(1, 512, 0), work(Operation::Write { fua: false }, 512));
        assert_eq!(ask(8, 0, 20), Wanted::Id);
        assert!(matches!(ask(4, 0, 0), Wanted::Volume(Work { operation: Operation::Flush, length: 0, .. })));
        assert_eq!(ask(11, 16, 0), Wanted::Range(RangeKind::Discard));
        let error = Wanted::Nothing(Status::Error);
        assert_eq!((ask(0, 0, 0), ask(0, 0, 511), ask(1, REQUEST_MAX + 512, 0)), (error, error, error));
        assert_eq!((ask(11, 32, 0), ask(13, 0, 0)), (error, error));
        assert_eq!(disk.request(header(0, u64::MAX), 0, 512, 0), error);
        for kind in [2, 3, 5, 9, 14, u32::MAX] {
            assert_eq!(ask(kind, 512, 512), Wanted::Nothing(Status::Unsupported));
        }
    }

    #[test]
    fn ranges_are_whole_and_their_flags_known() {
        let disk = disk();
        let of = |kind, range| disk.range_request(kind, range, feature::FLUSH);
        let work = |operation| Wanted::Volume(Work { operation, offset: 512, length: 1024 });
        assert_eq!(of(RangeKind::Discard, range(1, 2, 0)), work(Operation::Discard));
        let zeroes = |unmap| work(Operation::WriteZeroes { unmap, fua: false });
        assert_eq!(of(RangeKind::WriteZeroes, range(1, 2, 1)), zeroes(true));
        assert_eq!(of(RangeKind::WriteZeroes, range(1, 2, 0)), zeroes(false));
        assert_eq!(of(RangeKind::Discard, range(1, 2, 1)), Wanted::Nothing(Status::Unsupported));
        assert_eq!(of(RangeKind::WriteZeroes, range(1, 2, 2)), Wanted::Nothing(Status::Unsupported));
        for wrong in [range(1, 0, 0), range(u64::MAX, 1, 0), range(0, u32::MAX, 0)] {
            assert_eq!(of(RangeKind::Discard, wrong), Wanted::Nothing(Status::Error));
        }
    }

    #[test]
    fn without_a_cache_each_write_is_durable() {
        let mut disk = disk();
        let is_durable = |disk: &Disk, features| match disk.request(header(1, 0), 512, 0, features) {
            Wanted::Volume(Work { operation: Operation::Write { fua }, .. }) => fua,
            other => panic!("{other:?}"),
        };
        assert!(!is_durable(&disk, feature::FLUSH) && is_durable(&disk, 0));
        assert!(disk.configure(WRITEBACK, &[0]) && is_durable(&disk, feature::FLUSH));
        assert_eq!(disk.configuration()[WRITEBACK as usize], 0);
        assert!(disk.configure(WRITEBACK, &[1]) && !is_durable(&disk, feature::FLUSH));
        assert!(
            !disk.configure(WRITEBACK, &[2])
                && !disk.configure(0, &[0])
                && !disk.configure(WRITEBACK, &[0, 0])
        );
        let without = Geometry { volatile_cache: false, ..GEOMETRY };
        assert!(!Disk::new(without, "a").configure(WRITEBACK, &[0]));
    }

    #[test]
    fn a_volume_that_is_read_only_is_not_written() {
        let disk = Disk::new(Geometry { read_only: true, ..GEOMETRY }, "a");
        for (kind, filled) in [(1, 512), (11, 16), (13, 16)] {
            assert_eq!(disk.request(header(kind, 0), filled, 0, 0), Wanted::Nothing(Status::Error));
        }
        assert!(matches!(disk.request(header(0, 0), 0, 512, 0), Wanted::Volume(_)));
    }
}
