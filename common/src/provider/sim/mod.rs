//! A fabric in memory, for the simulator: it checks every key, bound and right as hardware would, reorders
//! what the specification permits, and breaks on command. Nothing moves until [`Network::step`] is called,
//! and what moves is the choice of the caller's [`Choices`].
mod choices;
mod connection;
mod endpoint;
mod network;

pub use choices::{Choices, Prng};
pub use endpoint::SimProvider;
pub use network::Network;

/// What a completion says of work which broke its connection by touching memory it was not lent.
pub const REMOTE_ACCESS_ERROR: u32 = 10;
