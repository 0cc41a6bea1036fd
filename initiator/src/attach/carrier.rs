//! What carries the connections of one attachment: software RDMA, or an RDMA adapter.
#[cfg(feature = "ibv")]
use ironside_common::provider::ibv::Ibv;
use ironside_common::provider::soft::Interest;
use ironside_common::provider::wires::AnySoft;
use ironside_common::reactor::{Ring, source};
use ironside_common::time::Time;
use ironside_common::verbs::{Connections, HostVerbs, Token};

/// A provider as a reactor drives it.
pub(super) trait Carrier: HostVerbs + Connections {
    /// Takes what there is. Says whether there was anything.
    fn pump(&mut self, now: Time) -> bool;

    /// Sends what waits to be sent. Says whether there was anything.
    fn flush(&mut self, now: Time) -> bool;

    /// When [`Self::pump`] has to be called even if nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// To be called at each turn: asks the ring to tell of what is to be looked at.
    fn cool(&mut self, ring: &mut Ring);

    /// Before sleep: the ring tells of all that may bring work.
    fn arm(&mut self, ring: &mut Ring);

    /// What the ring was asked for has come.
    fn on_ready(&mut self, token: Token);
}

impl Carrier for AnySoft {
    fn pump(&mut self, now: Time) -> bool {
        Self::pump(self, now)
    }

    fn flush(&mut self, now: Time) -> bool {
        Self::flush(self, now)
    }

    fn deadline(&self) -> Option<Time> {
        Self::deadline(self)
    }

    fn cool(&mut self, ring: &mut Ring) {
        Self::cool(self, |interest| watch(ring, interest));
    }

    fn arm(&mut self, ring: &mut Ring) {
        Self::arm(self, |interest| watch(ring, interest));
    }

    fn on_ready(&mut self, token: Token) {
        Self::on_ready(self, token.slot, token.generation);
    }
}

#[cfg(feature = "ibv")]
impl Carrier for Ibv {
    fn pump(&mut self, now: Time) -> bool {
        Self::pump(self, now)
    }

    /// Adapters send at once.
    fn flush(&mut self, _: Time) -> bool {
        false
    }

    fn deadline(&self) -> Option<Time> {
        Self::deadline(self)
    }

    fn cool(&mut self, ring: &mut Ring) {
        self.watch(|interest| watch(ring, interest));
    }

    fn arm(&mut self, ring: &mut Ring) {
        Self::arm(self, |interest| watch(ring, interest));
    }

    fn on_ready(&mut self, token: Token) {
        Self::on_ready(self, token.slot);
    }
}

fn watch(ring: &mut Ring, interest: Interest<'_>) {
    let token = source::token(source::WIRE, interest.slot, interest.generation);
    ring.poll_once(interest.descriptor, interest.events, token);
}
