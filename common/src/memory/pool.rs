//! Buffers of a few sizes, cut from one registered region. A [`Lease`] comes back by being dropped.
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use super::{Memory, Region};
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
        let region = Region::new(length)?;
        let base = region.address();
        let lkey = memory.register(region);
        Ok(Rc::new(Self { base, lkey, classes }))
    }

    /// A buffer of at least `length` bytes from the smallest class that has one, or nothing for now.
    ///
    /// # Panics
    /// If no class is large enough: the caller's transfer limit promised it.
    pub fn lease(self: &Rc<Self>, length: u32) -> Option<Lease> {
        assert!(length <= self.largest(), "{length} bytes are more than any buffer holds");
        let first = self.classes.partition_point(|class| class.size < length);
        let fitting = self.classes.iter().enumerate().skip(first);
        fitting
            .filter_map(|(class, inner)| Some((class, inner.free.borrow_mut().pop()?)))
            .map(|(class, index)| Lease { pool: Rc::clone(self), class, index, length })
            .next()
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

/// Exclusive use of one buffer until dropped. Whoever may still touch the memory must hold it.
#[derive(Debug)]
pub struct Lease {
    pool: Rc<Pool>,
    class: usize,
    index: u32,
    length: u32,
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
