//! What the ublk driver and whoever serves a device tell each other, as `<linux/ublk_cmd.h>` has it.
use ironside_common::reactor::UblkCommand;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::volume::{Geometry, Operation};

/// Bytes of the unit in which the driver counts.
pub(super) const SECTOR: u32 = 512;
/// The largest discard or write of zeroes; it is split on its way.
const RANGE_SECTORS_MAX: u32 = (1 << 30) / SECTOR;
/// The largest block size of the kernels we know.
pub(super) const BLOCK_MAX: u32 = 4096;

/// What a device can be made with. The numbers are those of the driver.
pub(super) mod feature {
    /// The device outlives its server, and waits for another.
    pub(in super::super) const USER_RECOVERY: u64 = 1 << 3;
    /// What a dead server had under way is given to its successor.
    pub(in super::super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are encoded as for ioctl.
    pub(in super::super) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    pub(in super::super) const UPDATE_SIZE: u64 = 1 << 10;
}

/// The control commands that are used, and whether they write what is passed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Command {
    GetDeviceInfo,
    AddDevice,
    DeleteDevice,
    StartDevice,
    StopDevice,
    SetParameters,
    StartUserRecovery,
    EndUserRecovery,
    GetFeatures,
    DeleteDeviceAsync,
    UpdateSize,
}

impl Command {
    pub(super) const fn number(self) -> u32 {
        const READ: u32 = 2 << 30;
        const BOTH: u32 = 3 << 30;
        let (direction, number) = match self {
            Self::GetDeviceInfo => (READ, 0x02),
            Self::AddDevice => (BOTH, 0x04),
            Self::DeleteDevice => (BOTH, 0x05),
            Self::StartDevice => (BOTH, 0x06),
            Self::StopDevice => (BOTH, 0x07),
            Self::SetParameters => (BOTH, 0x08),
            Self::StartUserRecovery => (BOTH, 0x10),
            Self::EndUserRecovery => (BOTH, 0x11),
            Self::GetFeatures => (READ, 0x13),
            Self::DeleteDeviceAsync => (READ, 0x14),
            Self::UpdateSize => (BOTH, 0x15),
        };
        direction | (size_of::<ControlCommand>() as u32) << 16 | (b'u' as u32) << 8 | number
    }
}

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Immutable, IntoBytes)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    pub(super) queue: u16,
    pub(super) length: u16,
    pub(super) address: u64,
    pub(super) data: u64,
    pub(super) path_length: u16,
    pub(super) padding: u16,
    pub(super) reserved: u32,
}
const _: () = assert!(size_of::<ControlCommand>() == 32);

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) queue_depth: u16,
    pub(super) state: u16,
    pub(super) padding: u16,
    pub(super) buffer_size: u32,
    pub(super) number: u32,
    pub(super) server: i32,
    pub(super) more_padding: u32,
    pub(super) flags: u64,
    /// The server's own; the driver keeps it. We keep there how we know our devices.
    pub(super) mark: u64,
    pub(super) owner: [u32; 2],
    pub(super) reserved: [u64; 2],
}
const _: () = assert!(size_of::<DeviceInfo>() == 64);

/// `struct ublk_params`, as much of it as is used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Immutable, IntoBytes)]
pub(super) struct Parameters {
    length: u32,
    types: u32,
    attributes: u32,
    logical_block_shift: u8,
    physical_block_shift: u8,
    optimal_io_shift: u8,
    minimum_io_shift: u8,
    sectors_max: u32,
    chunk_sectors: u32,
    sectors: [u32; 2],
    virtual_boundary_mask: [u32; 2],
    discard_alignment: u32,
    discard_granularity: u32,
    discard_sectors_max: u32,
    write_zeroes_sectors_max: u32,
    discard_segments_max: u16,
    reserved: u16,
}
const _: () = assert!(size_of::<Parameters>() == 60);

const TYPE_BASIC: u32 = 1;
const TYPE_DISCARD: u32 = 2;
const READ_ONLY: u32 = 1;
const VOLATILE_CACHE: u32 = 4;
const FUA: u32 = 8;

impl Parameters {
    /// What the kernel is to know of a volume, whose largest transfer is `buffer_size`.
    pub(super) fn new(geometry: Geometry, buffer_size: u32) -> Self {
        let Geometry { size, block_size, read_only, write_zeroes, discard, volatile_cache, .. } = geometry;
        let physical = match geometry.preferred_write {
            preferred if preferred.is_power_of_two() && preferred > block_size => preferred,
            _ => block_size,
        };
        let shift = |bytes: u32| bytes.trailing_zeros() as u8;
        let cache = if volatile_cache { VOLATILE_CACHE | FUA } else { 0 };
        let deallocates = !read_only && (discard || write_zeroes);
        let sectors = size / u64::from(SECTOR);
        let range = |offered: bool| if offered && !read_only { RANGE_SECTORS_MAX } else { 0 };
        Self {
            length: size_of::<Self>() as u32,
            types: TYPE_BASIC | if deallocates { TYPE_DISCARD } else { 0 },
            attributes: cache | if read_only { READ_ONLY } else { 0 },
            logical_block_shift: shift(block_size),
            physical_block_shift: shift(physical),
            optimal_io_shift: shift(physical),
            minimum_io_shift: shift(physical),
            sectors_max: buffer_size / SECTOR,
            sectors: zerocopy::transmute!(sectors),
            discard_granularity: if deallocates { block_size } else { 0 },
            discard_sectors_max: range(discard),
            write_zeroes_sectors_max: range(write_zeroes),
            discard_segments_max: u16::from(discard && deallocates),
            ..Self::default()
        }
    }
}

/// `struct ublksrv_io_desc`: a request the kernel has brought.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(super) struct Descriptor {
    pub(super) operation_and_flags: u32,
    pub(super) sectors: u32,
    pub(super) start_sector: u64,
    pub(super) address: u64,
}
const _: () = assert!(size_of::<Descriptor>() == 24);

const FLAG_FUA: u32 = 1 << 13;
const FLAG_NO_UNMAP: u32 = 1 << 15;

/// What the kernel wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Descriptor {
    /// Its meaning; nothing if there is none, or it is longer than a buffer.
    pub(super) fn request(self, buffer_size: u32) -> Option<Request> {
        let is = |flag: u32| self.operation_and_flags & flag != 0;
        let fua = is(FLAG_FUA);
        let operation = match self.operation_and_flags & 0xFF {
            0 => Operation::Read,
            1 => Operation::Write { fua },
            2 => return Some(Request { operation: Operation::Flush, offset: 0, length: 0 }),
            3 => Operation::Discard,
            5 => Operation::WriteZeroes { unmap: !is(FLAG_NO_UNMAP), fua },
            _ => return None,
        };
        let offset = self.start_sector.checked_mul(SECTOR.into())?;
        let length = u64::from(self.sectors) * u64::from(SECTOR);
        let request = Request { operation, offset, length };
        (!request.moves_data() || length <= buffer_size.into()).then_some(request)
    }
}

impl Request {
    pub(super) const fn moves_data(&self) -> bool {
        matches!(self.operation, Operation::Read | Operation::Write { .. })
    }

    /// How its end is told.
    pub(super) fn answer(&self, result: Result<(), i32>) -> UblkCommand {
        let moved = if self.moves_data() { i32::try_from(self.length) } else { Ok(0) };
        let moved = moved.expect("no more than a buffer holds");
        UblkCommand::CommitAndFetch { result: result.map_or_else(|errno| -errno, |()| moved) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::GEOMETRY;

    #[test]
    fn commands_are_numbered_as_the_driver_has_it() {
        assert_eq!(Command::AddDevice.number(), 0xC020_7504);
        assert_eq!(Command::GetFeatures.number(), 0x8020_7513);
        assert_eq!(Command::UpdateSize.number(), 0xC020_7515);
    }

    #[test]
    fn parameters_say_what_a_volume_can_do_and_no_more() {
        let all = Parameters::new(GEOMETRY, 1 << 19);
        assert_eq!((all.types, all.attributes), (TYPE_BASIC | TYPE_DISCARD, VOLATILE_CACHE | FUA));
        assert_eq!((all.logical_block_shift, all.physical_block_shift, all.sectors_max), (9, 12, 1024));
        assert_eq!(u64::from(all.sectors[0]), GEOMETRY.size / 512);
        assert_eq!((all.discard_granularity, all.discard_segments_max), (512, 1));
        let poor = Geometry { read_only: true, volatile_cache: false, block_size: 4096, ..GEOMETRY };
        let poor = Parameters::new(poor, 1 << 19);
        assert_eq!((poor.types, poor.attributes, poor.logical_block_shift), (TYPE_BASIC, READ_ONLY, 12));
        assert_eq!((poor.discard_sectors_max, poor.write_zeroes_sectors_max), (0, 0));
        let odd = Geometry { preferred_write: 3 * 4096, discard: false, ..GEOMETRY };
        let odd = Parameters::new(odd, 1 << 19);
        assert_eq!((odd.physical_block_shift, odd.discard_segments_max, odd.discard_sectors_max), (9, 0, 0));
        assert!(odd.write_zeroes_sectors_max > 0 && odd.types == TYPE_BASIC | TYPE_DISCARD);
    }

    #[test]
    fn requests_mean_what_the_driver_means_and_nothing_else_is_done() {
        let meaning = |operation_and_flags, sectors| {
            let descriptor = Descriptor { operation_and_flags, sectors, start_sector: 8, address: 0 };
            descriptor.request(65536)
        };
        let of = |operation, length| Some(Request { operation, offset: 4096, length });
        assert_eq!(meaning(0, 8), of(Operation::Read, 4096));
        assert_eq!(meaning(1, 128), of(Operation::Write { fua: false }, 65536));
        assert_eq!(meaning(1 | FLAG_FUA, 1), of(Operation::Write { fua: true }, 512));
        assert_eq!(meaning(3, 1 << 21), of(Operation::Discard, 1 << 30));
        assert_eq!(meaning(5, 8), of(Operation::WriteZeroes { unmap: true, fua: false }, 4096));
        let kept = Operation::WriteZeroes { unmap: false, fua: true };
        assert_eq!(meaning(5 | FLAG_NO_UNMAP | FLAG_FUA, 8), of(kept, 4096));
        assert_eq!(meaning(2, 0).unwrap().operation, Operation::Flush);
        assert_eq!(
            (meaning(1, 129), meaning(0, u32::MAX), meaning(4, 1), meaning(10, 1)),
            (None, None, None, None)
        );
        let beyond = Descriptor { operation_and_flags: 0, sectors: 1, start_sector: u64::MAX, address: 0 };
        assert_eq!(beyond.request(65536), None);
    }

    #[test]
    fn answers_carry_bytes_or_what_went_wrong() {
        let commit = |result| UblkCommand::CommitAndFetch { result };
        let read = Request { operation: Operation::Read, offset: 0, length: 4096 };
        assert_eq!((read.answer(Ok(())), read.answer(Err(libc::EIO))), (commit(4096), commit(-libc::EIO)));
        let discard = Request { operation: Operation::Discard, ..read };
        assert_eq!(discard.answer(Ok(())), commit(0));
    }
}
