//! What carries a world's connections: the simulated fabric, or iWARP streams over a simulated byte pipe.
use std::rc::Rc;

use ironside_common::memory::Memory;
use ironside_common::provider::sim::{Choices, Network, SimProvider};
use ironside_common::time::Time;
use ironside_common::verbs::{Address, Connections, HostVerbs, Registration, TargetVerbs};

/// A provider which needs to be driven.
pub(super) trait Pump {
    /// Moves bytes and notices deadlines; says whether there was anything to do.
    fn pump(&mut self, now: Time) -> bool;

    fn deadline(&self) -> Option<Time>;

    /// How buffers are lent to peers: said before anything is connected.
    fn set_registration(&mut self, registration: Registration);

    /// Whether a peer reaches any of a region of ours.
    fn exposes(&self, lkey: u32) -> bool;
}

/// The carrier of one world.
pub(super) trait Fabric {
    type Provider: TargetVerbs + HostVerbs + Connections + Pump;

    /// A provider for one reactor. Those of a target listen once [`Self::set_listening`] says so.
    fn provider(&mut self, address: Address, memory: &Rc<Memory>, ird: u32) -> Self::Provider;

    fn set_listening(&mut self, address: Address, listening: bool);

    /// Lets one thing move. False if nothing can.
    fn step(&mut self, choices: &mut impl Choices) -> bool;

    /// Breaks one connection, if there is any.
    fn break_one(&mut self, choices: &mut impl Choices);
}

impl Pump for SimProvider {
    fn pump(&mut self, _now: Time) -> bool {
        false
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn set_registration(&mut self, registration: Registration) {
        Self::set_registration(self, registration);
    }

    fn exposes(&self, lkey: u32) -> bool {
        Self::exposes(self, lkey)
    }
}

impl Fabric for Network {
    type Provider = SimProvider;

    fn provider(&mut self, address: Address, memory: &Rc<Memory>, ird: u32) -> SimProvider {
        self.endpoint(address, Rc::clone(memory), ird)
    }

    fn set_listening(&mut self, address: Address, listening: bool) {
        Self::set_listening(self, address, listening);
    }

    fn step(&mut self, choices: &mut impl Choices) -> bool {
        Self::step(self, choices)
    }

    fn break_one(&mut self, choices: &mut impl Choices) {
        Self::break_one(self, choices);
    }
}
