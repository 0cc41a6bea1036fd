//! Bytes on their way out: headers staged here, payload in place where its memory stays as it is.
use std::collections::VecDeque;

use crate::verbs::Sge;

/// A run of bytes to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part<'a> {
    Staged(&'a [u8]),
    InPlace(Sge),
}

#[derive(Clone, Copy, Debug)]
enum Piece {
    Staged { start: u32, length: u32 },
    InPlace(Sge),
}

/// What waits to be sent, oldest first.
#[derive(Debug)]
pub struct Outgoing {
    staging: Box<[u8]>,
    pieces: VecDeque<Piece>,
}

impl Outgoing {
    /// The parts in order.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.pieces.iter().map(|piece| match *piece {
            Piece::Staged { start, length } => {
                Part::Staged(&self.staging[start as usize..(start + length) as usize])
            }
            Piece::InPlace(sge) => Part::InPlace(sge),
        })
    }
}
