//! What the fuzzers drive: each function takes any bytes at all, and panics only if Ironside is wrong. The
//! targets in fuzz/ hand it what libFuzzer thinks up, the test `fuzz` what a seed gives.
pub mod authentication;
pub mod bytes;
pub mod operations;
pub mod world;

use std::rc::Rc;

use ironside_common::iwarp::LocalMemory;
use ironside_common::memory::{Memory, Region};
use ironside_common::verbs::Sge;

/// Bytes read as a list of choices; zeroes once they are used up.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Less than `bound`, which is not zero.
    pub fn below(&mut self, bound: u32) -> u32 {
        (u32::from(self.byte()) << 8 | u32::from(self.byte())) % bound
    }

    pub fn coin(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub const fn rest(&mut self) -> &'a [u8] {
        let rest = self.0;
        self.0 = &[];
        rest
    }
}

/// One region, as a stream reaches it.
pub(crate) struct Place {
    pub(crate) memory: Rc<Memory>,
    lkey: u32,
}

impl Place {
    pub(crate) fn new(length: usize) -> Self {
        let memory = Memory::new();
        let lkey = memory.register(Region::new(length).expect("memory can be had"));
        Self { memory, lkey }
    }

    pub(crate) fn sge(&self, offset: u32, length: u32) -> Sge {
        self.memory.sge(self.lkey, offset.into(), length)
    }
}

impl LocalMemory for Place {
    fn write(&self, to: Sge, bytes: &[u8]) {
        self.memory.write(to, bytes);
    }

    fn read(&self, from: Sge, into: &mut [u8]) {
        self.memory.read(from, into);
    }
}
