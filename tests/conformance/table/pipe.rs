//! A byte stream in memory with the software provider at one end and a test at the other.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use ironside_common::iwarp::Outgoing;
use ironside_common::memory::Memory;
use ironside_common::provider::soft::{Dialer, Wire};
use ironside_common::verbs::{Address, Sge};

#[derive(Debug, Default)]
struct Stream {
    to_endpoint: VecDeque<u8>,
    from_endpoint: Vec<u8>,
    /// The test sends nothing more.
    ended: bool,
    /// The endpoint sends nothing more, or has closed.
    finished: bool,
    closed: bool,
    segment: Option<u32>,
}

/// The endpoint's end.
#[derive(Debug)]
pub(crate) struct Pipe(Rc<RefCell<Stream>>);

/// The test's end.
#[derive(Clone, Debug)]
pub(crate) struct Peer(Rc<RefCell<Stream>>);

/// A stream over a path with TCP segments of this size, if it has segments.
pub(crate) fn pipe(segment: Option<u32>) -> (Pipe, Peer) {
    let stream = Rc::new(RefCell::new(Stream { segment, ..Stream::default() }));
    (Pipe(Rc::clone(&stream)), Peer(stream))
}

impl Peer {
    pub(crate) fn send(&self, bytes: &[u8]) {
        self.0.borrow_mut().to_endpoint.extend(bytes);
    }

    /// All that came since.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.borrow_mut().from_endpoint)
    }

    /// Ends the stream towards the endpoint.
    pub(crate) fn end(&self) {
        self.0.borrow_mut().ended = true;
    }

    /// Whether the endpoint has ended its side.
    pub(crate) fn is_over(&self) -> bool {
        let stream = self.0.borrow();
        stream.finished || stream.closed
    }
}

impl Wire for Pipe {
    fn established(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn receive(&mut self, memory: &Memory, direct: Option<Sge>, staging: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.0.borrow_mut();
        let there = stream.to_endpoint.len();
        if there == 0 {
            return if stream.ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let placed = direct.map_or(0, |sge| there.min(sge.length as usize));
        let bytes: Vec<u8> = stream.to_endpoint.drain(..placed).collect();
        if let Some(sge) = direct {
            memory.write(sge, &bytes);
        }
        let staged = staging.len().min(stream.to_endpoint.len());
        for (to, from) in staging.iter_mut().zip(stream.to_endpoint.drain(..staged)) {
            *to = from;
        }
        Ok(placed + staged)
    }

    fn send(&mut self, memory: &Memory, outgoing: &Outgoing) -> io::Result<usize> {
        let bytes = outgoing.first(usize::MAX, memory);
        self.0.borrow_mut().from_endpoint.extend_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn finish(&mut self) {
        self.0.borrow_mut().finished = true;
    }

    fn segment_size(&self) -> Option<u32> {
        self.0.borrow().segment
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.0.borrow_mut().closed = true;
    }
}

/// Where the test finds the other ends of what the endpoint dialled, oldest first.
pub(crate) type Dialled = Rc<RefCell<VecDeque<Peer>>>;

/// Connects to the test, wherever it is asked to.
pub(crate) struct ToTest {
    pub(crate) dialled: Dialled,
}

impl Dialer<Pipe> for ToTest {
    fn dial(&mut self, _: Address) -> io::Result<Pipe> {
        let (ours, theirs) = pipe(None);
        self.dialled.borrow_mut().push_back(theirs);
        Ok(ours)
    }
}
