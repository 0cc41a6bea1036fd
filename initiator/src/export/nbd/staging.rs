//! Bytes which came from a socket and have not been understood yet.

/// A fixed buffer filled at one end and used up at the other.
#[derive(Debug)]
pub(super) struct Staging {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Staging {
    pub(super) fn new(size: usize) -> Self {
        Self { buffer: vec![0; size].into(), start: 0, end: 0 }
    }

    /// What is there.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The first `count` bytes are done with.
    pub(super) fn used(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "no more than there is");
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for more; what is there moves to the front first.
    pub(super) fn spare(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// `count` bytes of the room were filled.
    pub(super) fn filled(&mut self, count: usize) {
        assert!(count <= self.buffer.len() - self.end, "no more than fits");
        self.end += count;
    }
}
