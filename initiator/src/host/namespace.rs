//! A namespace as the host came to know it, and whether the one found later under the same number is the same.
use std::fmt;

use ironside_common::nvme::identify;
use uuid::Uuid;

use super::requests::PartLimits;
use crate::volume::Geometry;

/// Bytes of every Identify structure.
pub const IDENTIFY_LENGTH: usize = identify::SIZE as usize;

/// What is the same for all namespaces of a controller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ControllerLimits {
    /// Most bytes of one transfer.
    pub max_transfer: u32,
    pub volatile_cache: bool,
    pub write_zeroes: bool,
    pub discard: bool,
    /// Bytes one Write Zeroes may cover; nothing means what its block count can say.
    pub write_zeroes_max: Option<u64>,
    /// Blocks one range of a discard may have; nothing means what its count can say.
    pub discard_blocks_max: Option<u32>,
}

/// What names a namespace for good, in the whole world.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NamespaceIdentity {
    pub uuid: Option<Uuid>,
    pub nguid: Option<Uuid>,
    pub eui64: Option<[u8; 8]>,
}

impl fmt::Display for NamespaceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { uuid: Some(uuid), .. } => write!(f, "UUID {uuid}"),
            Self { nguid: Some(nguid), .. } => write!(f, "NGUID {}", nguid.simple()),
            Self { eui64: Some(eui64), .. } => write!(f, "EUI64 {:016x}", u64::from_be_bytes(*eui64)),
            Self { .. } => f.write_str("without an identifier"),
        }
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub nsid: u32,
    pub identity: NamespaceIdentity,
    pub geometry: Geometry,
    pub limits: PartLimits,
    /// ANAGRPID: the group whose state is its own.
    pub ana_group: u32,
    /// Whether several controllers may have it at once.
    pub shared: bool,
    /// Whether unmapped blocks read as zeroes, so that zeroes may be written by unmapping.
    pub zeroes_by_unmapping: bool,
    /// Whether it is there, and the one it was.
    pub available: bool,
    /// What has its number instead, if something has.
    pub replacement: Option<NamespaceIdentity>,
    /// Its Identify structure as it came.
    pub identify: Box<[u8; IDENTIFY_LENGTH]>,
}

/// Why a namespace cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NamespaceError {
    #[error("the namespace is not active")]
    Inactive,
    #[error("the namespace is not ready")]
    NotReady,
    #[error("the format in use is not described")]
    Format,
    #[error("logical blocks of 2^{0} bytes are not supported")]
    BlockSize(u8),
    #[error("namespaces with metadata are not supported")]
    Metadata,
    #[error("a size of {blocks} blocks is beyond 2^63 bytes")]
    Size { blocks: u64 },
}

impl Namespace {
    /// Reads an Identify Namespace structure of the NVM command set.
    ///
    /// # Errors
    /// If the namespace is not there or of a kind we cannot use.
    pub fn parse(
        nsid: u32,
        identify: &[u8; IDENTIFY_LENGTH],
        controller: &ControllerLimits,
    ) -> Result<Self, NamespaceError> {
        let wire: &identify::Namespace = zerocopy::transmute_ref!(identify);
        let blocks = wire.nsze.get();
        if !wire.is_active() || blocks == 0 {
            return Err(NamespaceError::Inactive);
        }
        let format = wire.format().ok_or(NamespaceError::Format)?;
        if format.metadata_size.get() != 0 {
            return Err(NamespaceError::Metadata);
        }
        let shift = format.block_shift;
        if !(9..=16).contains(&shift) {
            return Err(NamespaceError::BlockSize(shift));
        }
        let size = blocks.checked_mul(1 << shift).filter(|&size| size < 1 << 63);
        let size = size.ok_or(NamespaceError::Size { blocks })?;
        let block_size = 1 << shift;
        let geometry = Geometry {
            size,
            block_size,
            max_transfer: controller.max_transfer.max(block_size),
            preferred_write: preferred_write(wire, block_size),
            read_only: wire.is_write_protected(),
            write_zeroes: controller.write_zeroes,
            discard: controller.discard,
            volatile_cache: controller.volatile_cache,
        };
        Ok(Self {
            nsid,
            identity: NamespaceIdentity {
                uuid: None,
                nguid: Some(Uuid::from_bytes(wire.nguid)).filter(|id| !id.is_nil()),
                eui64: Some(wire.eui64).filter(|id| *id != [0; 8]),
            },
            geometry,
            limits: part_limits(&geometry, controller),
            ana_group: wire.anagrpid.get(),
            shared: wire.nmic & identify::Namespace::SHARED != 0,
            zeroes_by_unmapping: wire.deallocated_reads_zero(),
            available: true,
            replacement: None,
            identify: Box::new(*identify),
        })
    }

    /// Whether `found`, seen under the same number later, holds the same data in the same blocks.
    #[must_use]
    pub fn is_same(&self, found: &Self) -> bool {
        self.identity == found.identity && self.geometry.block_size == found.geometry.block_size
    }
}

/// What one command may cover; whole blocks always.
fn part_limits(geometry: &Geometry, controller: &ControllerLimits) -> PartLimits {
    /// NLB has 16 bits and is 0's based.
    const WRITE_ZEROES_BLOCKS_MAX: u64 = 1 << 16;
    let block = u64::from(geometry.block_size);
    let whole = |bytes: u64| (bytes / block).max(1) * block;
    let zeroes = controller.write_zeroes_max.unwrap_or(u64::MAX).min(WRITE_ZEROES_BLOCKS_MAX * block);
    let discard_blocks = controller.discard_blocks_max.unwrap_or(u32::MAX).max(1);
    PartLimits {
        transfer: whole(geometry.max_transfer.into()),
        write_zeroes: whole(zeroes),
        discard: u64::from(discard_blocks) * block,
    }
}

/// NPWG, where the namespace says one that makes sense.
fn preferred_write(wire: &identify::Namespace, block_size: u32) -> u32 {
    let stated = wire.nsfeat & identify::Namespace::OPTIMAL_IO != 0;
    let bytes = (u64::from(wire.npwg) + 1) * u64::from(block_size);
    match u32::try_from(bytes) {
        Ok(bytes) if stated && bytes.is_power_of_two() && bytes <= 1 << 20 => bytes,
        _ => block_size,
    }
}
