//! What NVMe and NVMe over Fabrics put on the wire, and what it means: two kinds of types.
//!
//! *Wire structures* ([`Command`], [`Completion`], [`identify::Controller`], …) are `repr(C)`, unaligned and
//! little-endian by type; every byte pattern is a valid one, and it survives being read and written again.
//! *Meaning* ([`io::Request`], [`DataPointer`], [`admin::GetLogPage`], …) is parsed from them once and cannot
//! be wrong afterwards. A number nobody knows is a value of its type, never a panic. `Display` says each in
//! words. Nothing here does I/O or allocates on the data path.
pub mod admin;
pub mod async_event;
pub mod bits;
mod command;
mod completion;
pub mod copy;
pub mod discovery;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod io;
pub mod log_page;
mod nqn;
mod opcode;
pub mod private_data;
pub mod property;
pub mod reservation;
mod sgl;
mod status;
pub mod text;

pub use command::{Command, QueueKind};
pub use completion::Completion;
pub use nqn::{DISCOVERY_NQN, Nqn, NqnError};
pub use opcode::{AdminOpcode, FABRICS_OPCODE, FabricsType, IoOpcode};
pub use sgl::{DataPointer, Transfer};
pub use status::{Status, StatusType};

/// The namespace identifier which means every namespace.
pub const ALL_NAMESPACES: u32 = 0xFFFF_FFFF;
