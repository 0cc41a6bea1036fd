//! What the software provider needs of a byte stream, so that sockets and the simulator's pipes look
//! alike to it.
use std::io;
use std::os::fd::BorrowedFd;

use crate::iwarp::Outgoing;
use crate::memory::Memory;
use crate::verbs::{Address, Sge};

/// A reliable, ordered stream of bytes which never blocks: [`io::ErrorKind::WouldBlock`] says "not now".
pub trait Wire {
    /// Whether the connection stands. A wire handed to [`super::Soft::adopt`] always does; one that was
    /// dialled says `false` until it does.
    ///
    /// # Errors
    /// Why it could not be made.
    fn established(&mut self) -> io::Result<bool>;

    /// Receives into `direct` until it is full, then into `staging`; says how many bytes in all. Zero is
    /// the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing now; anything else ends the connection.
    fn receive(&mut self, memory: &Memory, direct: Option<Sge>, staging: &mut [u8]) -> io::Result<usize>;

    /// Sends from the front of `outgoing`; says how many bytes were taken. They have been copied: their
    /// memory may change afterwards.
    ///
    /// # Errors
    /// `WouldBlock` if nothing can be taken now; anything else ends the connection.
    fn send(&mut self, memory: &Memory, outgoing: &Outgoing) -> io::Result<usize>;

    /// Says to the peer that nothing follows. What was sent still arrives.
    fn finish(&mut self);

    /// The largest TCP segment the path takes now, if it has such a thing.
    fn segment_size(&self) -> Option<u32>;

    /// What readiness can be polled on.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// From how many bytes on a payload is to be received into its place, where that is another number than it is for
    /// sockets.
    fn direct_from(&self) -> Option<u32> {
        None
    }

    /// Whether the bytes stay in this machine's memory. Then no CRC is asked for, and the descriptor is readable when
    /// the wire has been [rested](Self::rest) and there is something for it, and when the peer has gone: it is polled for
    /// that, and nothing else, at all times.
    fn stays_on_machine(&self) -> bool {
        false
    }

    /// Nobody tries this wire any more before its descriptor is ready; except once, after this.
    fn rest(&mut self, _for_room: bool) {}

    /// The descriptor was ready.
    fn woken(&mut self) {}
}

/// Makes wires to elsewhere.
pub trait Dialer<W> {
    /// Starts to connect. [`Wire::established`] tells when it has.
    ///
    /// # Errors
    /// When it cannot even start.
    fn dial(&mut self, to: Address) -> io::Result<W>;
}
