//! How memory is named: locally by a scatter/gather element, remotely by address and key.

/// A piece of registered local memory. Plain numbers: only a provider or the storage ring turn them into
/// memory, and both check them against the region which `lkey` names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sge {
    /// Virtual address in this process.
    pub address: u64,
    /// In bytes.
    pub length: u32,
    /// The region, as [`crate::memory::Memory::register`] numbered it.
    pub lkey: u32,
}

impl Sge {
    /// The part `offset..offset + length` of this piece.
    ///
    /// # Panics
    /// If it does not lie inside.
    #[must_use]
    pub const fn slice(self, offset: u32, length: u32) -> Self {
        assert!(offset <= self.length && length <= self.length - offset, "a slice beyond its piece");
        Self { address: self.address + offset as u64, length, lkey: self.lkey }
    }
}

/// What the peer lent us, or we the peer: where, and under which key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Remote {
    /// Opaque to everyone but the owner of the memory. iWARP calls it the tagged offset.
    pub address: u64,
    /// Key of the memory region or window. iWARP calls it the STag.
    pub rkey: u32,
}

/// What the peer may do with exposed memory. One direction only: a command needs no more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    RemoteRead,
    RemoteWrite,
}
