//! STags: the keys under which a peer reaches our memory, with bounds and rights.
//!
//! One table per connection is its protection domain: a key of one connection means nothing on another.
use crate::verbs::{Access, Remote, Sge, Token};

use super::terminate::Reason;

/// Why a key does not open the memory it was used for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StagError {
    #[error("no such STag")]
    Invalid,
    #[error("the STag does not grant this")]
    Rights,
    #[error("outside the STag's bounds")]
    Bounds,
    #[error("the tagged offset wraps")]
    Wrap,
}

impl StagError {
    /// For tagged data which arrived.
    pub(super) const fn tagged_reason(self) -> Reason {
        match self {
            // DDP has no number for rights: such an STag has no buffer for this (RFC 5041, section 7.1).
            Self::Invalid | Self::Rights => Reason::TAGGED_INVALID_STAG,
            Self::Bounds => Reason::TAGGED_BOUNDS,
            Self::Wrap => Reason::TAGGED_WRAP,
        }
    }

    /// For the source of an RDMA Read.
    pub(super) const fn source_reason(self) -> Reason {
        match self {
            Self::Invalid => Reason::SOURCE_INVALID_STAG,
            Self::Rights => Reason::SOURCE_RIGHTS,
            Self::Bounds => Reason::SOURCE_BOUNDS,
            Self::Wrap => Reason::SOURCE_WRAP,
        }
    }
}

/// What a registered key allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Rights {
    /// The sink of a Read of ours: the peer's Read Responses, and nothing it starts itself.
    ReadSink,
    Peer(Access),
    /// The peer's use too, in both directions if none is named; the key is ours alone to end.
    Lasting(Option<Access>),
}

impl Rights {
    fn grant(self, wanted: Access) -> bool {
        match self {
            Self::ReadSink => false,
            Self::Peer(access) => access == wanted,
            Self::Lasting(access) => access.is_none_or(|access| access == wanted),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Window {
    /// The tagged offset of the first byte.
    base: u64,
    memory: Sge,
    rights: Rights,
}

#[derive(Debug, Default)]
struct Entry {
    /// The last key chosen.
    next_key: u8,
    /// The key in force, while there is a window.
    key: u8,
    window: Option<Window>,
    /// Read Responses which name this key and have not been sent whole.
    unsent: u32,
    /// The local invalidation which waits for them.
    waiting: Option<Token>,
}

/// The index of one entry; its key comes and goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StagSlot(u16);

impl StagSlot {
    /// # Panics
    /// Never for a number which [`Self::number`] gave.
    #[must_use]
    pub const fn from_number(number: u16) -> Self {
        Self(number)
    }

    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What became of an invalidation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Invalidation {
    Done,
    /// The peer can start nothing new, but bytes still leave for it: [`StagTable::release`] tells when.
    Waits,
}

/// Tagged offsets begin here, so that they say nothing of our address space and are never zero.
const OFFSET_BASE: u64 = 0x1_0000;
const PAGE_MASK: u64 = 0xFFF;

/// The keys of one connection.
#[derive(Debug)]
pub struct StagTable {
    /// The STag index of the first entry: unpredictable, never zero.
    first: u32,
    entries: Vec<Entry>,
}

impl StagTable {
    /// An empty table whose indices begin at a place that `seed` chooses.
    #[must_use]
    pub fn new(seed: u64, capacity: usize) -> Self {
        // 24 bits of index, less the 65,536 entries a table can have, less index zero.
        let first = 1 + u32::try_from(seed % 0x00FE_FFFF).expect("a remainder of 24 bits");
        Self { first, entries: Vec::with_capacity(capacity) }
    }

    /// One more entry.
    ///
    /// # Panics
    /// After 65,536 of them.
    pub fn allocate(&mut self) -> StagSlot {
        let slot = u16::try_from(self.entries.len()).expect("a connection has few memory regions");
        self.entries.push(Entry::default());
        StagSlot(slot)
    }

    /// The key and offset under which `memory` will be registered next: a key that differs from the last.
    #[must_use]
    pub fn prepare(&mut self, slot: StagSlot, memory: Sge) -> Remote {
        let entry = &mut self.entries[slot.index()];
        entry.next_key = entry.next_key.wrapping_add(1);
        let rkey = (self.first + u32::from(slot.0)) << 8 | u32::from(entry.next_key);
        Remote { address: OFFSET_BASE | memory.address & PAGE_MASK, rkey }
    }

    /// Lets the peer use `memory` as `remote`.
    ///
    /// # Panics
    /// If the entry is in use, or `remote` is not its own.
    pub fn register(&mut self, slot: StagSlot, remote: Remote, memory: Sge, access: Access) {
        self.open(slot, remote, Window { base: remote.address, memory, rights: Rights::Peer(access) });
    }

    /// Lets the peer use `memory` as `remote`, for one purpose or for both, until we take the key back.
    pub(super) fn expose(&mut self, slot: StagSlot, remote: Remote, memory: Sge, access: Option<Access>) {
        self.open(slot, remote, Window { base: remote.address, memory, rights: Rights::Lasting(access) });
    }

    pub(super) fn register_sink(&mut self, slot: StagSlot, remote: Remote, memory: Sge) {
        self.open(slot, remote, Window { base: remote.address, memory, rights: Rights::ReadSink });
    }

    fn open(&mut self, slot: StagSlot, remote: Remote, window: Window) {
        assert_eq!(remote.rkey >> 8, self.first + u32::from(slot.0), "another entry's key");
        let entry = &mut self.entries[slot.index()];
        assert!(entry.window.is_none() && entry.unsent == 0, "registered before it was invalidated");
        entry.key = remote.rkey.to_be_bytes()[3];
        entry.window = Some(window);
    }

    fn find(&self, stag: u32) -> Option<(StagSlot, &Entry, &Window)> {
        let slot = u16::try_from((stag >> 8).checked_sub(self.first)?).ok()?;
        let entry = self.entries.get(usize::from(slot))?;
        let window = entry.window.as_ref()?;
        (entry.key == stag.to_be_bytes()[3]).then_some((StagSlot(slot), entry, window))
    }

    /// The memory which a peer's operation may touch: all of `length` bytes from tagged offset `at.address`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self, at: Remote, length: u32, access: Access) -> Result<(StagSlot, Sge), StagError> {
        let (slot, _, window) = self.find(at.rkey).ok_or(StagError::Invalid)?;
        if !window.rights.grant(access) {
            return Err(StagError::Rights);
        }
        at.address.checked_add(length.into()).ok_or(StagError::Wrap)?;
        let offset = at.address.checked_sub(window.base).ok_or(StagError::Bounds)?;
        let offset = u32::try_from(offset).map_err(|_| StagError::Bounds)?;
        let end = offset.checked_add(length).ok_or(StagError::Bounds)?;
        if end > window.memory.length {
            return Err(StagError::Bounds);
        }
        Ok((slot, window.memory.slice(offset, length)))
    }

    /// Whether the peer reaches any of a region.
    pub(super) fn exposes(&self, lkey: u32) -> bool {
        self.entries.iter().filter_map(|entry| entry.window.as_ref()).any(|window| window.memory.lkey == lkey)
    }

    /// One more Read Response will leave from this memory.
    pub(super) fn hold(&mut self, slot: StagSlot) {
        self.entries[slot.index()].unsent += 1;
    }

    /// A Read Response has left. The invalidation which waited for that is done now, if it was the last.
    pub(super) fn release(&mut self, slot: StagSlot) -> Option<Token> {
        let entry = &mut self.entries[slot.index()];
        entry.unsent -= 1;
        if entry.unsent == 0 { entry.waiting.take() } else { None }
    }

    /// Takes a key back on our own wish. One which is not in force has nothing to take.
    pub(super) fn invalidate(&mut self, stag: u32, token: Token) -> Invalidation {
        let Some((slot, ..)) = self.find(stag) else { return Invalidation::Done };
        let entry = &mut self.entries[slot.index()];
        entry.window = None;
        if entry.unsent == 0 {
            return Invalidation::Done;
        }
        entry.waiting = Some(token);
        Invalidation::Waits
    }

    /// Takes a key back on the peer's wish. It knows when its Reads are answered: naming a key that one of
    /// them still needs breaks the stream, since the memory goes back to its owner at once.
    pub(super) fn invalidate_remotely(&mut self, stag: u32) -> Result<(), StagError> {
        let (slot, entry, window) = self.find(stag).ok_or(StagError::Invalid)?;
        if !matches!(window.rights, Rights::Peer(_)) || entry.unsent != 0 {
            return Err(StagError::Rights);
        }
        self.entries[slot.index()].window = None;
        Ok(())
    }

    /// The sink of a Read is done with.
    pub(super) fn close_sink(&mut self, slot: StagSlot) {
        self.entries[slot.index()].window = None;
    }

    /// Nothing is reachable any more. Gives back the invalidations which waited.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Token> {
        self.entries.iter_mut().filter_map(|entry| {
            entry.window = None;
            entry.unsent = 0;
            entry.waiting.take()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Kind;

    const MEMORY: Sge = Sge { address: 0x7F00_0000_1234, length: 4096, lkey: 3 };
    const TOKEN: Token = Token { kind: Kind::Invalidate, generation: 0, qpair: 0, slot: 0 };

    fn exposed(access: Access) -> (StagTable, StagSlot, Remote) {
        let mut table = StagTable::new(77, 4);
        table.allocate();
        let slot = table.allocate();
        let remote = table.prepare(slot, MEMORY);
        table.register(slot, remote, MEMORY, access);
        (table, slot, remote)
    }

    fn at(remote: Remote, offset: u64) -> Remote {
        Remote { address: remote.address.wrapping_add(offset), ..remote }
    }

    #[test]
    fn bounds_are_exact() {
        let (table, slot, remote) = exposed(Access::RemoteWrite);
        let check = |offset, length| table.check(at(remote, offset), length, Access::RemoteWrite);
        assert_eq!(check(0, 4096), Ok((slot, MEMORY)));
        assert_eq!(check(4095, 1), Ok((slot, MEMORY.slice(4095, 1))));
        assert_eq!(check(4095, 2), Err(StagError::Bounds));
        assert_eq!(check(4097, 0), Err(StagError::Bounds));
        assert_eq!(check(u64::MAX, 1), Err(StagError::Bounds));
        assert_eq!(check(1 << 32, 1), Err(StagError::Bounds));
        let end = Remote { address: u64::MAX, ..remote };
        assert_eq!(table.check(end, 2, Access::RemoteWrite), Err(StagError::Wrap));
    }

    #[test]
    fn only_the_whole_key_opens_and_only_for_its_right() {
        let (table, _, remote) = exposed(Access::RemoteRead);
        for rkey in [0, remote.rkey ^ 1, remote.rkey ^ 0x100, remote.rkey ^ 0x8000_0000] {
            let wrong = Remote { rkey, ..remote };
            assert_eq!(table.check(wrong, 1, Access::RemoteRead), Err(StagError::Invalid), "{rkey:#x}");
        }
        assert_eq!(table.check(remote, 1, Access::RemoteWrite), Err(StagError::Rights));
    }

    #[test]
    fn a_key_differs_from_the_one_before_and_the_old_one_is_dead() {
        let (mut table, slot, old) = exposed(Access::RemoteRead);
        assert_eq!(table.invalidate(old.rkey, TOKEN), Invalidation::Done);
        let new = table.prepare(slot, MEMORY);
        assert_ne!(new.rkey, old.rkey);
        table.register(slot, new, MEMORY, Access::RemoteRead);
        assert_eq!(table.check(old, 1, Access::RemoteRead), Err(StagError::Invalid));
        assert!(table.check(new, 1, Access::RemoteRead).is_ok());
        assert_eq!(table.invalidate(old.rkey, TOKEN), Invalidation::Done);
        assert!(table.check(new, 1, Access::RemoteRead).is_ok());
    }

    #[test]
    fn an_invalidation_waits_for_what_still_leaves() {
        let (mut table, slot, remote) = exposed(Access::RemoteRead);
        table.hold(slot);
        table.hold(slot);
        assert_eq!(table.invalidate_remotely(remote.rkey), Err(StagError::Rights));
        assert_eq!(table.invalidate(remote.rkey, TOKEN), Invalidation::Waits);
        assert_eq!(table.check(remote, 1, Access::RemoteRead), Err(StagError::Invalid));
        assert_eq!(table.release(slot), None);
        assert_eq!(table.release(slot), Some(TOKEN));
    }

    #[test]
    fn a_lasting_key_is_not_the_peer_s_to_end() {
        let mut table = StagTable::new(5, 2);
        let (both, one) = (table.allocate(), table.allocate());
        let whole = table.prepare(both, MEMORY);
        table.expose(both, whole, MEMORY, None);
        assert_eq!(table.check(at(whole, 8), 8, Access::RemoteRead), Ok((both, MEMORY.slice(8, 8))));
        assert_eq!(table.check(at(whole, 8), 8, Access::RemoteWrite), Ok((both, MEMORY.slice(8, 8))));
        assert_eq!(table.check(at(whole, 4090), 8, Access::RemoteWrite), Err(StagError::Bounds));
        let single = table.prepare(one, MEMORY);
        table.expose(one, single, MEMORY, Some(Access::RemoteRead));
        assert_eq!(table.check(single, 8, Access::RemoteWrite), Err(StagError::Rights));
        for key in [whole.rkey, single.rkey] {
            assert_eq!(table.invalidate_remotely(key), Err(StagError::Rights));
            assert_eq!(table.invalidate(key, TOKEN), Invalidation::Done);
        }
        assert_eq!(table.check(whole, 1, Access::RemoteRead), Err(StagError::Invalid));
    }

    #[test]
    fn a_read_sink_is_nobody_elses() {
        let mut table = StagTable::new(0, 1);
        let slot = table.allocate();
        let remote = table.prepare(slot, MEMORY);
        table.register_sink(slot, remote, MEMORY);
        assert_eq!(table.check(remote, 1, Access::RemoteWrite), Err(StagError::Rights));
        assert_eq!(table.check(remote, 1, Access::RemoteRead), Err(StagError::Rights));
        assert_eq!(table.invalidate_remotely(remote.rkey), Err(StagError::Rights));
        assert!(remote.rkey >> 8 != 0);
    }
}
