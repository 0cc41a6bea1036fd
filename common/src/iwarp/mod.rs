//! Software RDMA as a pure machine: MPA framing, DDP placement and RDMAP operations over a byte stream
//! which somebody else moves. It sees no socket, clock or thread.
mod outgoing;

pub use outgoing::{Outgoing, Part};

use crate::verbs::Sge;

/// Local memory as the machine sees it: it copies in and out, and never holds a reference.
pub trait LocalMemory {
    /// Copies `bytes` to the start of `to`.
    fn write(&self, to: Sge, bytes: &[u8]);

    /// Copies from the start of `from` until `into` is full.
    fn read(&self, from: Sge, into: &mut [u8]);
}
