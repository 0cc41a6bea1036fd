//! Software RDMA: the verbs traits over one [`crate::iwarp::Stream`] per connection and a [`Wire`] under it.
mod wire;

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use crate::memory::Memory;
use crate::time::Time;
use crate::verbs::{
    CmRequest, ConnectParameters, Connections, Event, Exposure, HostVerbs, Limits, MrHandle, QpHandle,
    Received, Remote, Sge, TargetVerbs, Token, Verbs,
};

pub use wire::{Dialer, Wire};

/// How the software provider is to behave.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether we ask for CRC32C. It is used when either side asks.
    pub crc: bool,
    /// The largest ULPDU to send; nothing means what one TCP segment takes.
    pub ulpdu_max: Option<u16>,
    /// RDMA Reads a peer may have outstanding towards us at most (our IRD).
    pub reads: u16,
    /// Where the unpredictable part of keys comes from.
    pub seed: u64,
    /// How long a connection may stand still with bytes unsent or an RDMA Read unanswered.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { crc: true, ulpdu_max: None, reads: 128, seed: 0, patience: Duration::from_secs(15) }
    }
}

/// One source of readiness to poll once, as [`Soft::arm`] asks for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Interest {
    pub descriptor: RawFd,
    /// Also when it can be written, not only when it can be read.
    pub writable: bool,
    /// To be handed back to [`Soft::on_ready`].
    pub slot: u16,
    pub generation: u16,
}

/// The software provider of one reactor.
pub struct Soft<W> {
    wires: PhantomData<W>,
}

impl<W: Wire> Soft<W> {
    pub fn new(memory: Rc<Memory>, dialer: Box<dyn Dialer<W>>, settings: Settings) -> Self {
        let _ = (memory, dialer, settings);
        Self { wires: PhantomData }
    }

    /// Takes a connection which was just accepted, and awaits the peer's MPA Request. A
    /// [`crate::verbs::CmEvent::Request`] follows, or nothing if the peer does not speak the protocol.
    pub fn adopt(&mut self, wire: W, peer: SocketAddr, local: SocketAddr) {
        let _ = (wire, peer, local);
    }

    /// Receives from every hot connection, advances, and sends what there is: one gathered send for each
    /// connection. Says whether anything happened.
    pub fn pump(&mut self, now: Time) -> bool {
        let _ = now;
        false
    }

    /// Sends what was posted since, without receiving: the end of a turn.
    pub fn flush(&mut self, now: Time) -> bool {
        let _ = now;
        false
    }

    /// When [`Self::pump`] has to be called even if nothing arrives.
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// Before sleep: every connection goes cold, and `poll` is asked once for each that is not yet polled.
    /// Afterwards one more [`Self::pump`] must find nothing.
    pub fn arm(&mut self, poll: impl FnMut(Interest)) {
        let _ = poll;
    }

    /// What [`Self::arm`] asked for has come: the connection is hot again.
    pub fn on_ready(&mut self, slot: u16, generation: u16) {
        let _ = (slot, generation);
    }
}

impl<W: Wire> Verbs for Soft<W> {
    fn limits(&self, qp: QpHandle) -> Limits {
        unimplemented!("{qp:?}")
    }
    fn poll(&mut self) -> Option<Event> {
        None
    }
    fn message(&self, received: &Received) -> &[u8] {
        unimplemented!("{received:?}")
    }
    fn message_sge(&self, received: &Received, offset: u32) -> Sge {
        unimplemented!("{received:?} {offset}")
    }
    fn repost(&mut self, received: Received) {
        unimplemented!("{received:?}")
    }
}

impl<W: Wire> TargetVerbs for Soft<W> {
    fn post_fetch(&mut self, qp: QpHandle, token: Token, from: Remote, into: Sge) {
        unimplemented!("{qp:?} {token:?} {from:?} {into:?}")
    }
    fn post_respond(
        &mut self,
        qp: QpHandle,
        token: Token,
        data: Option<(Sge, Remote)>,
        response: &[u8; 16],
        invalidate: Option<u32>,
    ) {
        unimplemented!("{qp:?} {token:?} {data:?} {response:?} {invalidate:?}")
    }
}

impl<W: Wire> HostVerbs for Soft<W> {
    fn allocate_mr(&mut self, qp: QpHandle) -> MrHandle {
        unimplemented!("{qp:?}")
    }
    fn prepare(&mut self, qp: QpHandle, mr: MrHandle, sge: Sge, access: crate::verbs::Access) -> Exposure {
        unimplemented!("{qp:?} {mr:?} {sge:?} {access:?}")
    }
    fn post_command(
        &mut self,
        qp: QpHandle,
        token: Token,
        command: &[u8; 64],
        data: Option<Sge>,
        expose: Option<Exposure>,
    ) {
        unimplemented!("{qp:?} {token:?} {command:?} {data:?} {expose:?}")
    }
    fn post_invalidate(&mut self, qp: QpHandle, token: Token, key: u32) {
        unimplemented!("{qp:?} {token:?} {key}")
    }
}

impl<W: Wire> Connections for Soft<W> {
    fn accept(&mut self, request: CmRequest, parameters: ConnectParameters, private_data: &[u8]) {
        unimplemented!("{request:?} {parameters:?} {private_data:?}")
    }
    fn reject(&mut self, request: CmRequest, private_data: &[u8]) {
        unimplemented!("{request:?} {private_data:?}")
    }
    fn connect(&mut self, to: SocketAddr, parameters: ConnectParameters, private_data: &[u8]) -> QpHandle {
        unimplemented!("{to:?} {parameters:?} {private_data:?}")
    }
    fn disconnect(&mut self, qp: QpHandle) {
        unimplemented!("{qp:?}")
    }
    fn destroy(&mut self, qp: QpHandle) {
        unimplemented!("{qp:?}")
    }
}
