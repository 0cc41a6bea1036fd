//! The wires of software RDMA as one: over TCP, or through memory of this machine, as the address says.
use std::io;
use std::os::fd::BorrowedFd;

use super::shm::{self, ShmWire};
use super::soft::{Dialer, Soft, Wire};
use super::tcp::{self, TcpWire};
use crate::iwarp::Outgoing;
use crate::memory::Memory;
use crate::verbs::{Address, Sge};

/// Software RDMA over either.
pub type AnySoft = Soft<AnyWire>;

/// One connection of software RDMA.
#[derive(Debug)]
pub enum AnyWire {
    Tcp(TcpWire),
    Shm(Box<ShmWire>),
}

impl From<TcpWire> for AnyWire {
    fn from(wire: TcpWire) -> Self {
        Self::Tcp(wire)
    }
}

impl From<ShmWire> for AnyWire {
    fn from(wire: ShmWire) -> Self {
        Self::Shm(Box::new(wire))
    }
}

/// Calls the wire that it is.
macro_rules! route {
    ($any:expr, |$wire:ident| $call:expr) => {
        match $any {
            AnyWire::Tcp($wire) => $call,
            AnyWire::Shm($wire) => $call,
        }
    };
}

impl Wire for AnyWire {
    fn established(&mut self) -> io::Result<bool> {
        route!(self, |wire| wire.established())
    }

    fn receive(&mut self, memory: &Memory, direct: Option<Sge>, staging: &mut [u8]) -> io::Result<usize> {
        route!(self, |wire| wire.receive(memory, direct, staging))
    }

    fn send(&mut self, memory: &Memory, outgoing: &Outgoing) -> io::Result<usize> {
        route!(self, |wire| wire.send(memory, outgoing))
    }

    fn finish(&mut self) {
        route!(self, |wire| wire.finish());
    }

    fn segment_size(&self) -> Option<u32> {
        route!(self, |wire| wire.segment_size())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        route!(self, |wire| wire.descriptor())
    }

    fn direct_from(&self) -> Option<u32> {
        route!(self, |wire| wire.direct_from())
    }

    fn stays_on_machine(&self) -> bool {
        route!(self, |wire| wire.stays_on_machine())
    }

    fn rest(&mut self, for_room: bool) {
        route!(self, |wire| wire.rest(for_room));
    }

    fn woken(&mut self) {
        route!(self, |wire| wire.woken());
    }
}

/// Connects by whichever the address takes, without blocking.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyDialer;

impl Dialer<AnyWire> for AnyDialer {
    fn dial(&mut self, to: Address) -> io::Result<AnyWire> {
        match to {
            Address::Ip(to) => tcp::dial(to).map(AnyWire::from),
            Address::Path(path) => shm::dial(path.as_path()).map(AnyWire::from),
            Address::Process { .. } => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}
