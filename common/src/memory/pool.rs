//! Buffers of a few sizes, cut from one registered region. A [`Lease`] comes back by being dropped.
//!
//! Many share a pool, and some of them may be slow or hostile: what each holds is written down in its
//! [`Account`], and none gets so much that the others get nothing.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;

use super::{HugePages, Memory, Region};
use crate::verbs::Sge;

/// So many buffers of so many bytes each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SizeClass {
    /// A multiple of 4096, so that direct I/O takes every buffer.
    pub size: u32,
    pub count: u32,
}

/// The buffers of one reactor. Owned by one thread; [`Rc`] because every lease knows the way home.
pub struct Pool {
    base: u64,
    lkey: u32,
    classes: Vec<Class>,
    /// Buffers which came back, since the beginning.
    returned: Cell<u64>,
}

struct Class {
    size: u32,
    count: u32,
    /// Offset of its first buffer in the region.
    start: u64,
    free: RefCell<Vec<u32>>,
}

impl Pool {
    /// Cuts `classes`, smallest first, from one new region, and registers it in `memory`.
    ///
    /// # Errors
    /// When the system has no memory for it.
    ///
    /// # Panics
    /// If the sizes do not grow or are not multiples of 4096.
    pub fn new(memory: &Memory, classes: &[SizeClass]) -> io::Result<Rc<Self>> {
        Self::in_pages(memory, classes, HugePages::Off)
    }

    /// As [`Self::new`], in huge pages that are set aside, if so many are free.
    ///
    /// # Errors
    /// As [`Self::new`].
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn in_pages(memory: &Memory, classes: &[SizeClass], pages: HugePages) -> io::Result<Rc<Self>> {
        assert!(classes.is_sorted_by(|a, b| a.size < b.size), "size classes grow");
        assert!(classes.iter().all(|class| class.size % 4096 == 0), "direct I/O needs whole pages");
        let mut start = 0;
        let classes = classes
            .iter()
            .map(|class| {
                let first = start;
                start += u64::from(class.size) * u64::from(class.count);
                let free = RefCell::new((0..class.count).rev().collect());
                Class { size: class.size, count: class.count, start: first, free }
            })
            .collect();
        let length = usize::try_from(start).map_err(io::Error::other)?;
        let region = Region::in_pages(length, false, pages)?;
        let base = region.address();
        let lkey = memory.register(region);
        Ok(Rc::new(Self { base, lkey, classes, returned: Cell::new(0) }))
    }

    /// A buffer of at least `length` bytes from the smallest class that has one, or nothing for now.
    ///
    /// # Panics
    /// If no class is large enough: the caller's transfer limit promised it.
    pub fn lease(self: &Rc<Self>, length: u32) -> Option<Lease> {
        self.take(length, None, |_, _| true)
    }

    /// As [`Self::lease`], on an account, which gets no more than its share.
    ///
    /// # Panics
    /// As [`Self::lease`].
    pub fn lease_share(self: &Rc<Self>, account: &Rc<Account>, length: u32) -> Option<Lease> {
        self.take(length, Some(account), |class, free| account.may_take(class, free))
    }

    /// As [`Self::lease`], on an account, whatever it holds: the second buffer of who has just got one.
    ///
    /// # Panics
    /// As [`Self::lease`].
    pub fn lease_more(self: &Rc<Self>, account: &Rc<Account>, length: u32) -> Option<Lease> {
        self.take(length, Some(account), |_, _| true)
    }

    fn take(
        self: &Rc<Self>,
        length: u32,
        account: Option<&Rc<Account>>,
        may: impl Fn(usize, usize) -> bool,
    ) -> Option<Lease> {
        assert!(length <= self.largest(), "{length} bytes are more than any buffer holds");
        let first = self.classes.partition_point(|class| class.size < length);
        let mut fitting = self.classes.iter().enumerate().skip(first);
        let (class, index) = fitting.find_map(|(class, inner)| {
            let mut free = inner.free.borrow_mut();
            let index = if may(class, free.len()) { free.pop() } else { None };
            Some((class, index?))
        })?;
        let account = account.map(Rc::clone);
        if let Some(account) = &account {
            account.add(class);
        }
        Some(Lease { pool: Rc::clone(self), class, index, length, account })
    }

    /// An account of nothing yet. What it holds counts for `group` too, if it belongs to one.
    #[must_use]
    pub fn account(&self, group: Option<&Rc<Account>>) -> Rc<Account> {
        let held = self.classes.iter().map(|_| Cell::new(0)).collect();
        Rc::new(Account { held, group: group.map(Rc::clone) })
    }

    /// The region all buffers lie in.
    #[must_use]
    pub const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// A number which grows with each buffer that comes back: nobody who got none has to ask before.
    #[must_use]
    pub fn returned(&self) -> u64 {
        self.returned.get()
    }

    /// Bytes of the largest buffer.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.classes.last().map_or(0, |class| class.size)
    }

    /// Buffers not leased, of all sizes.
    #[must_use]
    pub fn available(&self) -> usize {
        self.classes.iter().map(|class| class.free.borrow().len()).sum()
    }

    /// Buffers there are, of all sizes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.classes.iter().map(|class| class.count as usize).sum()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} free)", self.available(), self.total())
    }
}

/// How many buffers of each size somebody holds.
///
/// Of each size one account may have as many as are free, and a group of accounts twice as many: so one
/// alone gets half of all, two get a third each, and for a newcomer there is always something left (the
/// dynamic thresholds of shared-memory switches, Choudhury and Hahne 1998).
#[derive(Debug)]
pub struct Account {
    held: Box<[Cell<u32>]>,
    group: Option<Rc<Self>>,
}

impl Account {
    fn may_take(&self, class: usize, free: usize) -> bool {
        let held = |account: &Self| account.held[class].get() as usize;
        held(self) < free && self.group.as_deref().is_none_or(|group| held(group) < 2 * free)
    }

    fn add(&self, class: usize) {
        let held = &self.held[class];
        held.set(held.get() + 1);
        if let Some(group) = &self.group {
            group.add(class);
        }
    }

    fn remove(&self, class: usize) {
        let held = &self.held[class];
        held.set(held.get() - 1);
        if let Some(group) = &self.group {
            group.remove(class);
        }
    }
}

/// Exclusive use of one buffer until dropped. Whoever may still touch the memory must hold it.
#[derive(Debug)]
pub struct Lease {
    pool: Rc<Pool>,
    class: usize,
    index: u32,
    length: u32,
    account: Option<Rc<Account>>,
}

impl Lease {
    /// The bytes asked for, which may be fewer than the buffer has.
    #[must_use]
    pub fn sge(&self) -> Sge {
        let class = &self.pool.classes[self.class];
        let offset = class.start + u64::from(class.size) * u64::from(self.index);
        Sge { address: self.pool.base + offset, length: self.length, lkey: self.pool.lkey }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.classes[self.class].free.borrow_mut().push(self.index);
        self.pool.returned.set(self.pool.returned.get() + 1);
        if let Some(account) = &self.account {
            account.remove(self.class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: [SizeClass; 2] = [SizeClass { size: 4096, count: 2 }, SizeClass { size: 65536, count: 1 }];

    #[test]
    fn the_smallest_free_class_serves() {
        let pool = Pool::new(&Memory::new(), &CLASSES).unwrap();
        let (a, b) = (pool.lease(1).unwrap(), pool.lease(4096).unwrap());
        let large = pool.lease(512).unwrap();
        assert_eq!(large.sge().length, 512);
        assert!(pool.lease(1).is_none());
        let first = a.sge().address;
        drop(a);
        assert_eq!(pool.lease(8).unwrap().sge().address, first);
        drop((b, large));
        assert_eq!(pool.available(), pool.total());
    }

    #[test]
    fn nobody_gets_so_much_that_a_newcomer_gets_nothing() {
        let classes = [SizeClass { size: 4096, count: 24 }];
        let pool = Pool::new(&Memory::new(), &classes).unwrap();
        let take_all = |account: &Rc<Account>| -> Vec<Lease> {
            std::iter::from_fn(|| pool.lease_share(account, 4096)).collect()
        };
        let host = pool.account(None);
        let (a, b, c) = (pool.account(Some(&host)), pool.account(Some(&host)), pool.account(Some(&host)));
        let first = take_all(&a);
        assert_eq!(first.len(), 12, "half of all");
        let second = take_all(&b);
        assert_eq!((second.len(), take_all(&c).len()), (4, 0), "together they have two thirds");
        let newcomer = pool.account(None);
        let third = take_all(&newcomer);
        assert_eq!(third.len(), 4, "half of what is left");
        // Who got one may have the second that goes with it.
        assert!(pool.lease_more(&a, 4096).is_some());
        let before = pool.returned();
        drop((first, second, third));
        assert_eq!(pool.returned() - before, 20);
        assert_eq!(take_all(&c).len(), 12);
        assert_eq!(pool.available(), pool.total());
    }

    #[test]
    fn buffers_do_not_overlap() {
        let memory = Memory::new();
        let pool = Pool::new(&memory, &CLASSES).unwrap();
        let leases: Vec<_> = [4096, 4096, 65536].map(|length| pool.lease(length).unwrap()).into();
        for (value, lease) in (1..).zip(&leases) {
            memory.write(lease.sge(), &vec![value; lease.sge().length as usize]);
        }
        for (value, lease) in (1..).zip(&leases) {
            let mut back = vec![0; lease.sge().length as usize];
            memory.read(lease.sge(), &mut back);
            assert!(back.iter().all(|&byte| byte == value));
        }
    }
}
