//! What one client is still to be sent, in order, and how far that has got.
use std::collections::VecDeque;

use ironside_common::memory::Lease;
use ironside_common::verbs::Sge;

use super::reply::Head;

/// Answers to options first, then replies with their data.
pub(super) struct Output {
    text: Vec<u8>,
    replies: VecDeque<Reply>,
    /// Bytes of `text`, or of the first reply, which have been sent.
    sent: usize,
}

struct Reply {
    head: Head,
    data: Option<Lease>,
}

/// A part of the output.
pub(super) enum Part<'a> {
    Bytes(&'a [u8]),
    Memory(Sge),
}

impl Output {
    /// Room for `depth` replies.
    pub(super) fn new(depth: usize) -> Self {
        Self { text: Vec::with_capacity(1024), replies: VecDeque::with_capacity(depth), sent: 0 }
    }

    /// Answers to options, to be appended to.
    pub(super) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    pub(super) fn push(&mut self, head: Head, data: Option<Lease>) {
        self.replies.push_back(Reply { head, data });
    }

    /// Replies not sent completely.
    pub(super) fn replies(&self) -> usize {
        self.replies.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.replies.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.replies.clear();
        self.sent = 0;
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let replies = self.replies.iter().flat_map(|reply| {
            let data = reply.data.as_ref().map(|lease| Part::Memory(lease.sge()));
            std::iter::once(Part::Bytes(&reply.head)).chain(data)
        });
        let mut skip = self.sent;
        std::iter::once(Part::Bytes(&self.text)).chain(replies).filter_map(move |part| {
            let skipped = skip.min(part.len());
            skip -= skipped;
            (skipped < part.len()).then(|| part.after(skipped))
        })
    }

    /// `count` bytes of the parts were sent.
    pub(super) fn sent(&mut self, count: usize) {
        self.sent += count;
        if !self.text.is_empty() {
            if self.sent < self.text.len() {
                return;
            }
            self.sent -= self.text.len();
            self.text.clear();
        }
        while self.replies.front().is_some_and(|reply| reply.len() <= self.sent) {
            let reply = self.replies.pop_front().expect("just seen");
            self.sent -= reply.len();
        }
    }
}

impl Reply {
    fn len(&self) -> usize {
        self.head.len() + self.data.as_ref().map_or(0, |lease| lease.sge().length as usize)
    }
}

impl Part<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(sge) => sge.length as usize,
        }
    }

    fn after(self, count: usize) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[count..]),
            Self::Memory(sge) => {
                let count = u32::try_from(count).expect("less than its length");
                Self::Memory(sge.slice(count, sge.length - count))
            }
        }
    }
}
