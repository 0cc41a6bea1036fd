//! Software RDMA and the machine's adapters as one provider, so that one reactor serves by either. Handles tell them
//! apart: even ones are connections of software, odd ones of adapters.
#[cfg(feature = "ibv")]
use std::io;
#[cfg(feature = "ibv")]
use std::net::SocketAddr;
#[cfg(feature = "ibv")]
use std::rc::Rc;

#[cfg(feature = "ibv")]
use super::ibv::{Ibv, Incoming, Library};
use super::soft::{Interest, Soft, Wire};
#[cfg(feature = "ibv")]
use crate::memory::Memory;
use crate::reactor::source;
use crate::time::Time;
use crate::verbs::{
    Address, CmEvent, CmRequest, ConnectParameters, Connections, Event, Limits, QpHandle, Received, Remote,
    Sge, TargetVerbs, Token, Verbs, Wc,
};

/// Connections of each kind: all that half of the handles name.
const CONNECTIONS: u16 = 1 << 15;

/// Both ways of one reactor.
pub struct Both<W> {
    soft: Soft<W>,
    #[cfg(feature = "ibv")]
    adapters: Adapters,
}

/// The libraries are asked for with the first connection that needs them.
#[cfg(feature = "ibv")]
struct Adapters {
    memory: Rc<Memory>,
    /// What they are told of as soon as they are there.
    shared: Vec<u32>,
    ibv: Option<Ibv>,
}

#[cfg(feature = "ibv")]
impl Adapters {
    fn get(&mut self) -> io::Result<&mut Ibv> {
        let ibv = match self.ibv.take() {
            Some(ibv) => ibv,
            None => {
                let library = Library::get().map_err(io::Error::other)?;
                let mut ibv = Ibv::new(library, Rc::clone(&self.memory))?;
                ibv.share(std::mem::take(&mut self.shared))?;
                ibv
            }
        };
        Ok(self.ibv.insert(ibv))
    }
}

/// What a handle names.
#[derive(Clone, Copy)]
enum Inner {
    Soft(QpHandle),
    #[cfg(feature = "ibv")]
    Adapter(QpHandle),
}

impl Inner {
    fn of(outer: QpHandle) -> Self {
        let inner = QpHandle(outer.0 >> 1);
        #[cfg(feature = "ibv")]
        if outer.0 & 1 == 1 {
            return Self::Adapter(inner);
        }
        Self::Soft(inner)
    }

    const fn outer(self) -> QpHandle {
        match self {
            Self::Soft(inner) => QpHandle(inner.0 << 1),
            #[cfg(feature = "ibv")]
            Self::Adapter(inner) => QpHandle(inner.0 << 1 | 1),
        }
    }
}

/// Calls the provider which a handle names with its own handle.
macro_rules! route {
    ($both:expr, $qp:expr, |$verbs:ident, $inner:ident| $call:expr) => {
        match Inner::of($qp) {
            Inner::Soft($inner) => {
                let $verbs = &mut $both.soft;
                $call
            }
            #[cfg(feature = "ibv")]
            Inner::Adapter($inner) => {
                let $verbs = $both.adapters.ibv.as_mut().expect("a handle was given out");
                $call
            }
        }
    };
}

/// As `route`, for what changes nothing.
macro_rules! route_shared {
    ($both:expr, $qp:expr, |$verbs:ident, $inner:ident| $call:expr) => {
        match Inner::of($qp) {
            Inner::Soft($inner) => {
                let $verbs = &$both.soft;
                $call
            }
            #[cfg(feature = "ibv")]
            Inner::Adapter($inner) => {
                let $verbs = $both.adapters.ibv.as_ref().expect("a handle was given out");
                $call
            }
        }
    };
}

impl<W: Wire> Both<W> {
    #[cfg(feature = "ibv")]
    #[must_use]
    pub fn new(mut soft: Soft<W>, memory: Rc<Memory>) -> Self {
        soft.set_most(CONNECTIONS);
        Self { soft, adapters: Adapters { memory, shared: Vec::new(), ibv: None } }
    }

    /// Without adapters, for which this was not built.
    #[cfg(not(feature = "ibv"))]
    #[must_use]
    pub fn new(mut soft: Soft<W>) -> Self {
        soft.set_most(CONNECTIONS);
        Self { soft }
    }

    /// See [`Soft::adopt`].
    pub fn adopt(&mut self, wire: W, peer: Address, local: Address) {
        self.soft.adopt(wire, peer, local);
    }

    /// See [`Ibv::adopt`].
    ///
    /// # Errors
    /// When the system has no channel for connection management left.
    #[cfg(feature = "ibv")]
    pub fn adopt_from_adapter(&mut self, incoming: Incoming) -> io::Result<()> {
        self.adapters.get()?.adopt(incoming);
        Ok(())
    }

    /// See [`Ibv::share`].
    ///
    /// # Errors
    /// If an adapter takes one of the regions not.
    #[cfg(feature = "ibv")]
    pub fn share(&mut self, regions: Vec<u32>) -> io::Result<()> {
        match &mut self.adapters.ibv {
            Some(ibv) => ibv.share(regions),
            None => {
                self.adapters.shared = regions;
                Ok(())
            }
        }
    }

    /// Gets ready for connections by the adapter which owns an address. See [`Ibv::open`].
    ///
    /// # Errors
    /// If no adapter does, or it has not what is needed.
    #[cfg(feature = "ibv")]
    pub fn open_adapter(&mut self, at: SocketAddr) -> io::Result<()> {
        self.adapters.get()?.open(at).map(drop)
    }

    /// See [`Ibv::next_region`].
    #[cfg(feature = "ibv")]
    pub fn next_region(&mut self) -> Option<u32> {
        self.adapters.ibv.as_mut().and_then(Ibv::next_region)
    }

    /// Takes what there is. Says whether there was anything.
    pub fn pump(&mut self, now: Time) -> bool {
        let busy = self.soft.pump(now);
        #[cfg(feature = "ibv")]
        let busy = self.adapters.ibv.as_mut().is_some_and(|ibv| ibv.pump(now)) || busy;
        busy
    }

    /// See [`Soft::flush`]. Adapters send at once.
    pub fn flush(&mut self, now: Time) -> bool {
        self.soft.flush(now)
    }

    /// When [`Self::pump`] has to be called even if nothing arrives.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let soft = self.soft.deadline();
        #[cfg(feature = "ibv")]
        let soft = soft.into_iter().chain(self.adapters.ibv.as_ref().and_then(Ibv::deadline)).min();
        soft
    }

    /// To be called at each turn: `poll` is asked for what is to be polled once, and under which source.
    pub fn cool(&mut self, mut poll: impl FnMut(u16, Interest<'_>)) {
        self.soft.cool(|interest| poll(source::WIRE, interest));
        #[cfg(feature = "ibv")]
        if let Some(ibv) = &mut self.adapters.ibv {
            ibv.watch(|interest| poll(source::ADAPTER, interest));
        }
    }

    /// Before sleep: all that may bring work is polled once.
    pub fn arm(&mut self, mut poll: impl FnMut(u16, Interest<'_>)) {
        self.soft.arm(|interest| poll(source::WIRE, interest));
        #[cfg(feature = "ibv")]
        if let Some(ibv) = &mut self.adapters.ibv {
            ibv.arm(|interest| poll(source::ADAPTER, interest));
        }
    }

    /// What [`Self::cool`] or [`Self::arm`] asked for under a source has come.
    pub fn on_ready(&mut self, token: Token) {
        match token.qpair {
            #[cfg(feature = "ibv")]
            source::ADAPTER => {
                if let Some(ibv) = &mut self.adapters.ibv {
                    ibv.on_ready(token.slot);
                }
            }
            _ => self.soft.on_ready(token.slot, token.generation),
        }
    }
}

/// An event as consumers see it, which know outer handles only.
fn outside(event: Event, name: impl Fn(QpHandle) -> Inner) -> Event {
    let outer = |qp: QpHandle| name(qp).outer();
    match event {
        Event::Received(received) => Event::Received(Received { qp: outer(received.qp), ..received }),
        Event::Completed(wc) => Event::Completed(Wc { qp: outer(wc.qp), ..wc }),
        Event::Connection(mut event) => {
            match &mut *event {
                CmEvent::Request(CmRequest { qp, .. })
                | CmEvent::Established { qp, .. }
                | CmEvent::Refused { qp, .. }
                | CmEvent::Disconnected { qp, .. } => *qp = outer(*qp),
            }
            Event::Connection(event)
        }
    }
}

impl<W: Wire> Verbs for Both<W> {
    fn limits(&self, qp: QpHandle) -> Limits {
        route_shared!(self, qp, |verbs, qp| verbs.limits(qp))
    }

    fn poll(&mut self) -> Option<Event> {
        if let Some(event) = self.soft.poll() {
            return Some(outside(event, Inner::Soft));
        }
        #[cfg(feature = "ibv")]
        if let Some(event) = self.adapters.ibv.as_mut().and_then(Ibv::poll) {
            return Some(outside(event, Inner::Adapter));
        }
        None
    }

    fn message(&self, received: &Received) -> &[u8] {
        let Received { qp, buffer, length, invalidated } = *received;
        route_shared!(self, qp, |verbs, qp| verbs.message(&Received { qp, buffer, length, invalidated }))
    }

    fn message_sge(&self, received: &Received, offset: u32) -> Sge {
        let Received { qp, buffer, length, invalidated } = *received;
        route_shared!(self, qp, |verbs, qp| {
            verbs.message_sge(&Received { qp, buffer, length, invalidated }, offset)
        })
    }

    fn repost(&mut self, received: Received) {
        route!(self, received.qp, |verbs, qp| verbs.repost(Received { qp, ..received }));
    }
}

impl<W: Wire> TargetVerbs for Both<W> {
    fn post_fetch(&mut self, qp: QpHandle, token: Token, from: Remote, into: Sge) {
        route!(self, qp, |verbs, qp| verbs.post_fetch(qp, token, from, into));
    }

    fn post_respond(
        &mut self,
        qp: QpHandle,
        token: Token,
        data: Option<(Sge, Remote)>,
        response: &[u8; 16],
        invalidate: Option<u32>,
    ) {
        route!(self, qp, |verbs, qp| verbs.post_respond(qp, token, data, response, invalidate));
    }
}

/// It accepts. Who connects knows which of both it wants, and takes that one alone.
impl<W: Wire> Connections for Both<W> {
    fn accept(&mut self, request: CmRequest, parameters: ConnectParameters, private_data: &[u8]) {
        route!(self, request.qp, |verbs, qp| {
            verbs.accept(CmRequest { qp, ..request }, parameters, private_data);
        });
    }

    fn reject(&mut self, request: CmRequest, private_data: &[u8]) {
        route!(self, request.qp, |verbs, qp| verbs.reject(CmRequest { qp, ..request }, private_data));
    }

    fn connect(&mut self, to: Address, parameters: ConnectParameters, private_data: &[u8]) -> QpHandle {
        Inner::Soft(self.soft.connect(to, parameters, private_data)).outer()
    }

    fn disconnect(&mut self, qp: QpHandle) {
        route!(self, qp, |verbs, qp| verbs.disconnect(qp));
    }

    fn catch_up(&mut self, qp: QpHandle) {
        route!(self, qp, |verbs, qp| verbs.catch_up(qp));
    }

    fn has_caught_up(&self, qp: QpHandle) -> bool {
        route_shared!(self, qp, |verbs, qp| verbs.has_caught_up(qp))
    }

    fn destroy(&mut self, qp: QpHandle) {
        route!(self, qp, |verbs, qp| verbs.destroy(qp));
    }
}

#[cfg(test)]
#[cfg(feature = "ibv")]
mod tests {
    use super::*;

    #[test]
    fn each_handle_of_either_kind_has_a_name_of_its_own() {
        for inner in [0, 1, CONNECTIONS - 1].map(QpHandle) {
            let (soft, adapter) = (Inner::Soft(inner).outer(), Inner::Adapter(inner).outer());
            assert_ne!(soft, adapter);
            assert!(matches!(Inner::of(soft), Inner::Soft(handle) if handle == inner));
            assert!(matches!(Inner::of(adapter), Inner::Adapter(handle) if handle == inner));
        }
    }
}
