//! What an export and the reactor it lives in are to each other.
use std::rc::Rc;

use ironside_common::memory::{Memory, Pool};
use ironside_common::reactor::{Ring, source};
use ironside_common::time::Time;
use ironside_common::verbs::Token;

use crate::volume::{Completed, Geometry, Volume};

/// Where an export is being made.
pub struct Site<'a> {
    /// What its volume is like.
    pub geometry: Geometry,
    pub memory: &'a Rc<Memory>,
    pub pool: &'a Rc<Pool>,
}

/// What an export may use while it is being called.
pub struct Context<'a> {
    pub volume: &'a mut dyn Volume,
    /// Whose completions of tokens made by [`Self::token`] come back to [`Export::on_ring`].
    pub ring: &'a mut Ring,
    /// Buffers the volume can transfer from and to. A lease must outlive the request that names it.
    pub pool: &'a Rc<Pool>,
    /// The bytes behind leases.
    pub memory: &'a Memory,
    pub now: Time,
    /// Number of the export among those of its reactor.
    pub index: u8,
}

impl Context<'_> {
    /// A token for the ring which is this export's own. Slot and generation are its own affair.
    #[must_use]
    pub fn token(&self, slot: u16, generation: u16) -> Token {
        source::token(source::EXPORT | u16::from(self.index) << 8, slot, generation)
    }

    /// The slot with which a mailbox of this export is to be armed; it may have one.
    #[must_use]
    pub fn mailbox_slot(&self) -> u16 {
        u16::from(self.index) + 1
    }
}

/// Something that offers one volume to others, inside the reactor of its controller.
///
/// The reactor calls [`Self::turn`] until nothing is left to do; then [`Self::arm`], one more look, and
/// sleep.
pub trait Export {
    /// Looks at whatever it polls. True if something was done, so that nobody goes to sleep yet.
    fn turn(&mut self, context: &mut Context<'_>) -> bool;

    /// One of its requests has ended.
    fn completed(&mut self, context: &mut Context<'_>, completed: Completed);

    /// An entry of the ring with a token of its own has completed, or its mailbox was rung.
    fn on_ring(&mut self, context: &mut Context<'_>, token: Token, result: i32);

    /// The reactor is about to sleep: whatever should wake it has to be in the ring.
    fn arm(&mut self, context: &mut Context<'_>);

    /// When it wants to be called again at the latest.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// The volume has changed: its size, or what it offers.
    fn changed(&mut self, _context: &mut Context<'_>, _geometry: Geometry) {}

    /// Asked to end: refuse what is new, let go of peers. True once nothing is left.
    fn close(&mut self, context: &mut Context<'_>) -> bool;
}
