//! Software RDMA as a pure machine: MPA framing, DDP placement and RDMAP operations over a byte stream
//! which somebody else moves. It sees no socket, clock or thread.
//!
//! [`mpa`] settles how two sides talk, [`Stream`] is one side in full operation.
pub mod crc;
pub mod ddp;
mod fault;
pub mod fpdu;
pub mod mpa;
mod outgoing;
pub mod rdmap;
mod stag;
mod stream;
pub mod terminate;

pub use fault::Fault;
pub use outgoing::{Outgoing, Part, Staging};
pub use stag::{StagError, StagSlot, StagTable};
pub use stream::{Config, HEAD_MAX, Role, Stream, StreamEvent, ULPDU_MIN, Work};

use crate::verbs::Sge;

/// Local memory as the machine sees it: it copies in and out, and never holds a reference.
pub trait LocalMemory {
    /// Copies `bytes` to the start of `to`.
    fn write(&self, to: Sge, bytes: &[u8]);

    /// Copies from the start of `from` until `into` is full.
    fn read(&self, from: Sge, into: &mut [u8]);
}

/// A length as an index. Only here may it be cast: an index has 32 bits at least.
const fn index(length: u32) -> usize {
    const { assert!(size_of::<usize>() >= size_of::<u32>()) };
    length as usize
}
