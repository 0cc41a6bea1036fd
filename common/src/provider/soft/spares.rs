//! What connections need only while something is under way, so that many idle ones cost little: room to prepare what is
//! sent, and for the beginning of what has not come whole. There is some for each connection, but the one used last is
//! taken next: what lies below was mostly never touched, and takes no memory of the system.
use super::connection::Full;
use crate::iwarp::fpdu::FPDU_MAX;
use crate::iwarp::{Staging, Stream};

#[derive(Default)]
pub(super) struct Spares {
    pub(super) stagings: Vec<Staging>,
    pub(super) leftovers: Vec<Vec<u8>>,
}

impl Spares {
    /// There is one more connection.
    pub(super) fn join(&mut self) {
        self.stagings.push(Staging::new());
        self.leftovers.push(Vec::with_capacity(FPDU_MAX));
    }

    /// A connection ends, which takes with it what waits to be sent.
    pub(super) fn leave(&mut self, full: &mut Full) {
        if std::mem::take(&mut full.leftover).capacity() == 0 {
            self.leftovers.pop();
        }
        if let Some(staging) = full.stream.give_back() {
            self.stagings.push(staging);
        }
        if !full.stream.is_lent_room() {
            self.stagings.pop();
        }
    }

    pub(super) fn lend_to(&mut self, stream: &mut Stream) {
        if stream.wants_room() {
            stream.lend(self.stagings.pop().expect("there is one for each connection"));
        }
    }

    pub(super) fn take_back(&mut self, stream: &mut Stream) {
        self.stagings.extend(stream.give_back());
    }

    /// Keeps these bytes in `leftover`, in place of what was there.
    pub(super) fn keep(&mut self, leftover: &mut Vec<u8>, bytes: &[u8]) {
        leftover.clear();
        match (bytes.is_empty(), leftover.capacity() == 0) {
            (true, false) => self.leftovers.push(std::mem::take(leftover)),
            (false, true) => *leftover = self.leftovers.pop().expect("there is one for each connection"),
            _ => {}
        }
        leftover.extend_from_slice(bytes);
    }
}
