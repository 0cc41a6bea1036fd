//! A program's own memory, lent as it is to whatever reads and writes it: [`Own`] is with its owner, who sees its bytes;
//! [`Away`] is lent, and nobody's to look at; [`Loan`] is the duty of whoever may touch it meanwhile. The memory comes
//! back when the loan is over, and ends when nobody knows of it any more, whichever of them goes last.
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Region;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Memory that can be lent.
///
/// # Safety
/// Wherever the value is moved, [`Self::bytes`] names the same bytes, which may be read and written, and which nobody
/// reaches but by this value until it is dropped.
pub unsafe trait Lendable: Send + 'static {
    fn bytes(&mut self) -> NonNull<[u8]>;
}

// SAFETY: the bytes are the vector's alone, and stay where they are when it is moved.
unsafe impl Lendable for Vec<u8> {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::from(self.as_mut_slice())
    }
}

/// Zeroed memory of whole pages, which can be registered where it lies.
pub struct Pages(Box<[Page]>);

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

impl Pages {
    /// At least so many bytes.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        Self(vec![Page([0; PAGE]); length.div_ceil(PAGE)].into())
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pages({})", self.0.len())
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

// SAFETY: the bytes are the box's alone, and stay where they are when it is moved.
unsafe impl Lendable for Pages {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

/// Holds a program's memory for all who know of it, and gives it back when the last has gone.
struct Keeper<B> {
    memory: Option<B>,
    home: SyncSender<B>,
}

// SAFETY: nobody looks at the memory through this while it is shared; the last one takes it out.
unsafe impl<B: Send> Sync for Keeper<B> {}

impl<B> Drop for Keeper<B> {
    fn drop(&mut self) {
        // Whoever wanted it back may have gone: then it ends here.
        self.memory.take().map(|memory| self.home.try_send(memory));
    }
}

/// Memory which is with its owner.
pub struct Own<B> {
    bytes: NonNull<[u8]>,
    region: Arc<Region>,
    home: Receiver<B>,
}

// SAFETY: the bytes belong to memory which may move to other threads, and are reached by the owner of this alone.
unsafe impl<B: Send> Send for Own<B> {}

impl<B: Lendable> Own<B> {
    /// # Panics
    /// If it is empty.
    #[must_use]
    pub fn new(mut memory: B) -> Self {
        let bytes = memory.bytes();
        assert!(!bytes.is_empty(), "nothing can be done with no memory");
        let (home, at_home) = sync_channel(1);
        let keeper: Arc<dyn Any + Send + Sync> = Arc::new(Keeper { memory: Some(memory), home });
        // SAFETY: the trait's promise, as long as the keeper is there; who touches them meanwhile holds the loan.
        let region = unsafe { Region::of_others(bytes, keeper) };
        Self { bytes, region, home: at_home }
    }

    /// As whoever is to read or write it may know it: to be touched by the holder of a [`Loan`] alone.
    #[must_use]
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Gives it away for one use.
    pub fn lend(self) -> (Away<B>, Loan) {
        let gate = Arc::new(());
        let loan = Loan { region: Arc::clone(&self.region), _gate: Arc::clone(&gate) };
        (Away { own: self, gate }, loan)
    }

    /// The memory as it was given. Waits until everybody else who knows of it has let go.
    ///
    /// # Panics
    /// Never: the last to let go sends it here.
    #[must_use]
    pub fn into_inner(self) -> B {
        let Self { region, home, .. } = self;
        drop(region);
        home.recv().expect("whoever goes last sends it home")
    }
}

impl<B> Deref for Own<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: there is no loan, so the bytes are reached by this alone.
        unsafe { self.bytes.as_ref() }
    }
}

impl<B> DerefMut for Own<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { self.bytes.as_mut() }
    }
}

impl<B> fmt::Debug for Own<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Own({} bytes)", self.region.len())
    }
}

/// Memory which is lent.
#[must_use = "memory that is lent is to be taken back"]
#[derive(Debug)]
pub struct Away<B> {
    own: Own<B>,
    gate: Arc<()>,
}

impl<B> Away<B> {
    /// Takes it back.
    ///
    /// # Errors
    /// Itself, while the loan lasts.
    pub fn take_back(mut self) -> Result<Own<B>, Self> {
        if Arc::get_mut(&mut self.gate).is_some() { Ok(self.own) } else { Err(self) }
    }
}

/// The right to touch memory which is lent. Whoever names it to the kernel, a device or a peer holds this until they are
/// done with it, and is over with it by dropping it.
#[must_use = "a loan is over when it is dropped"]
#[derive(Debug)]
pub struct Loan {
    region: Arc<Region>,
    _gate: Arc<()>,
}

impl Loan {
    #[must_use]
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn memory_is_seen_by_its_owner_or_by_the_loan_s_holder() {
        let mut own = Own::new(Pages::zeroed(5000));
        assert!(own.region().is_whole_pages());
        assert_eq!(own.len(), 8192);
        own[4999] = 7;
        let (away, loan) = own.lend();
        let away = away.take_back().unwrap_err();
        let at_work = thread::spawn(move || {
            let mut byte = [0];
            loan.region().read(4999, &mut byte);
            loan.region().write(0, &[byte[0] + 1]);
        });
        at_work.join().unwrap();
        let own = away.take_back().unwrap();
        assert_eq!((own[0], own[4999]), (8, 7));
        assert_eq!(own.into_inner()[0], 8);
    }

    #[test]
    fn memory_comes_home_from_whoever_knows_it_last() {
        let own = Own::new(vec![9_u8; 10]);
        let region = Arc::clone(own.region());
        assert!(region.is_passing() && !region.is_whole_pages());
        let last = thread::spawn(move || drop(region));
        assert_eq!(own.into_inner(), [9; 10]);
        last.join().unwrap();
    }

    #[test]
    fn memory_nobody_takes_back_ends_with_its_loan() {
        let (away, loan) = Own::new(vec![1_u8; 3]).lend();
        drop(away);
        let mut bytes = [0; 3];
        loan.region().read(0, &mut bytes);
        assert_eq!(bytes, [1; 3]);
    }

    #[test]
    fn pages_of_others_are_not_given_to_the_system() {
        let own = Own::new(Pages::zeroed(PAGE));
        assert_eq!(own.region().discard(0, PAGE).unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
    }
}
