//! Bytes on their way out: headers staged here, payload in place where its memory stays as it is.
use super::fpdu::{FPDU_MAX, fpdu_length};
use super::{LocalMemory, index};
use crate::verbs::Sge;

/// A run of bytes to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part<'a> {
    Staged(&'a [u8]),
    InPlace(Sge),
}

impl Part<'_> {
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Staged(bytes) => bytes.len(),
            Self::InPlace(sge) => index(sge.length),
        }
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Clone, Copy, Debug)]
enum Piece {
    Staged { start: usize, length: usize },
    InPlace(Sge),
}

impl Piece {
    const fn len(&self) -> usize {
        match self {
            Self::Staged { length, .. } => *length,
            Self::InPlace(sge) => index(sge.length),
        }
    }
}

/// Bytes staged before they are sent: the kernel copies them on while they are in the nearest cache.
pub(super) const STAGED_AT_ONCE: usize = 64 * 1024;
/// Pieces to send at once.
const PIECES: usize = 512;

/// Room for what is to be sent. A stream needs it only while something waits, so that many can take turns with one, which
/// stays in the cache.
#[derive(Debug)]
pub struct Staging {
    bytes: Box<[u8]>,
    pieces: Vec<Piece>,
}

impl Staging {
    /// Room for what is sent at once, with CRC, when everything passes through it, and for the FPDU that exceeds it.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "it takes room for all that is sent at once, and is no value like any other"
    )]
    pub fn new() -> Self {
        Self::of(STAGED_AT_ONCE + FPDU_MAX, PIECES)
    }

    /// Room for so many bytes in so many pieces.
    pub(super) fn of(bytes: usize, pieces: usize) -> Self {
        Self { bytes: vec![0; bytes].into_boxed_slice(), pieces: Vec::with_capacity(pieces) }
    }
}

/// What waits to be sent, oldest first: whole FPDUs, of which the front may have been sent in part.
#[derive(Debug)]
pub struct Outgoing {
    staging: Staging,
    /// Its own, while a larger one is lent to it.
    own: Option<Staging>,
    /// Bytes of staging in use, sent ones among them: it is emptied when all is sent, not before.
    filled: usize,
    /// The first piece which has not been sent whole, and how much of it has.
    front: usize,
    front_sent: usize,
    waiting: usize,
    /// Bytes at the beginning which are no FPDU: an MPA frame.
    preface: usize,
}

impl Outgoing {
    /// Nothing but one MPA frame.
    #[must_use]
    pub fn of_frame(bytes: &[u8]) -> Self {
        let mut outgoing = Self::new(Staging::of(bytes.len(), 1));
        outgoing.preface(bytes);
        outgoing
    }

    /// An MPA frame, before anything else.
    pub(super) fn preface(&mut self, bytes: &[u8]) {
        debug_assert!(self.is_empty(), "a frame comes before FPDUs");
        self.stage(bytes.len()).copy_from_slice(bytes);
        self.preface = bytes.len();
    }

    /// Nothing yet, in room of its own.
    pub(super) const fn new(staging: Staging) -> Self {
        Self { staging, own: None, filled: 0, front: 0, front_sent: 0, waiting: 0, preface: 0 }
    }

    /// Whether it could use more room: it has none but its own, which is empty.
    pub(super) const fn wants_room(&self) -> bool {
        self.own.is_none() && self.is_empty()
    }

    /// Whether it has more room than its own.
    pub(super) const fn is_lent_room(&self) -> bool {
        self.own.is_some()
    }

    /// Has more room from now on.
    pub(super) fn lend(&mut self, staging: Staging) {
        assert!(self.wants_room(), "nothing may lie in the room it leaves");
        self.own = Some(std::mem::replace(&mut self.staging, staging));
    }

    /// Gives back what was lent, unless something lies in it.
    pub(super) fn give_back(&mut self) -> Option<Staging> {
        let own = if self.is_empty() { self.own.take() } else { None };
        own.map(|own| std::mem::replace(&mut self.staging, own))
    }

    /// Whether everything has been sent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Bytes which wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.waiting
    }

    /// The parts in order, without what was sent.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let mut skip = self.front_sent;
        self.staging.pieces[self.front..].iter().map(move |piece| {
            let skipped = std::mem::take(&mut skip);
            match *piece {
                Piece::Staged { start, length } => {
                    Part::Staged(&self.staging.bytes[start + skipped..start + length])
                }
                Piece::InPlace(sge) => Part::InPlace(skip_bytes(sge, skipped)),
            }
        })
    }

    /// A copy of the first `most` bytes which wait, or of all if there are fewer.
    #[must_use]
    pub fn first(&self, most: usize, memory: &impl LocalMemory) -> Vec<u8> {
        let mut first = vec![0; most.min(self.waiting)];
        let mut filled = 0;
        for part in self.parts() {
            let into = &mut first[filled..];
            let take = part.len().min(into.len());
            match part {
                Part::Staged(bytes) => into[..take].copy_from_slice(&bytes[..take]),
                Part::InPlace(sge) => memory.read(sge, &mut into[..take]),
            }
            filled += take;
        }
        first
    }

    /// So much of the front is gone.
    ///
    /// # Panics
    /// If there was not so much.
    pub fn sent(&mut self, mut bytes: usize) {
        self.waiting = self.waiting.checked_sub(bytes).expect("no more can be sent than waits");
        if self.waiting == 0 {
            return self.clear();
        }
        while bytes > 0 {
            let left = self.staging.pieces[self.front].len() - self.front_sent;
            if bytes < left {
                self.front_sent += bytes;
                return;
            }
            bytes -= left;
            self.front += 1;
            self.front_sent = 0;
        }
    }

    /// Bytes of staging in use.
    pub(super) const fn staged(&self) -> usize {
        self.filled
    }

    /// Whether one FPDU with so many staged bytes fits.
    pub(super) fn has_room(&self, staged: usize) -> bool {
        self.staging.bytes.len() - self.filled >= staged
            && self.staging.pieces.capacity() - self.staging.pieces.len() >= 3
    }

    /// Appends bytes to be filled in by the caller.
    pub(super) fn stage(&mut self, length: usize) -> &mut [u8] {
        let start = self.filled;
        self.filled += length;
        self.waiting += length;
        match self.staging.pieces.last_mut() {
            Some(Piece::Staged { length: last, .. }) => *last += length,
            _ => self.staging.pieces.push(Piece::Staged { start, length }),
        }
        &mut self.staging.bytes[start..start + length]
    }

    /// The last `length` bytes that were staged.
    pub(super) fn staged_last(&self, length: usize) -> &[u8] {
        &self.staging.bytes[self.filled - length..self.filled]
    }

    /// Appends memory which stays where it is until it is sent.
    pub(super) fn place(&mut self, sge: Sge) {
        self.waiting += index(sge.length);
        self.staging.pieces.push(Piece::InPlace(sge));
    }

    pub(super) fn clear(&mut self) {
        self.staging.pieces.clear();
        (self.filled, self.front, self.front_sent, self.waiting, self.preface) = (0, 0, 0, 0, 0);
    }

    /// Keeps only the rest of the FPDU which was sent in part, if one was, and copies it: no memory of
    /// anybody's is named any more, and what is appended next begins where an FPDU begins.
    pub(super) fn settle(&mut self, memory: &impl LocalMemory) {
        let rest = self.rest_of_fpdu(memory);
        self.clear();
        self.stage(rest.len()).copy_from_slice(&rest);
    }

    fn rest_of_fpdu(&self, memory: &impl LocalMemory) -> Vec<u8> {
        let total: usize = self.staging.pieces.iter().map(Piece::len).sum();
        let sent = total - self.waiting;
        let end = self.fpdu_end_after(sent);
        self.first(end - sent, memory)
    }

    /// The end of the FPDU which byte `sent` (counted from the first piece) lies in; `sent` itself if one
    /// begins there. Each FPDU begins in a staged piece, which holds all of its length field.
    fn fpdu_end_after(&self, sent: usize) -> usize {
        let (mut end, mut piece_start) = (if sent == 0 { 0 } else { self.preface }, 0);
        for piece in &self.staging.pieces {
            while let Piece::Staged { start, length } = *piece
                && end < sent
                && end < piece_start + length
            {
                let at = start + (end - piece_start);
                end += fpdu_length(u16::from_be_bytes([self.staging.bytes[at], self.staging.bytes[at + 1]]));
            }
            piece_start += piece.len();
        }
        end
    }
}

fn skip_bytes(sge: Sge, skipped: usize) -> Sge {
    let skipped = u32::try_from(skipped).expect("less than the piece is long");
    sge.slice(skipped, sge.length - skipped)
}
