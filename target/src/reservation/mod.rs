//! Reservations of namespaces and their write protection: what hosts agreed about who may read and write, and how it
//! changes.
//!
//! A namespace has one [`State`], an immutable value. The [`Registrar`], on one reactor, makes each next one; it is
//! in force once every reactor has it and has ended what it forbids. The data path of a reactor knows only which of
//! its queues may not do what: no lock, and no look at the state itself.
//!
//! ```text
//!  queue ─Reserve─► registrar ─► kept on disk, if it is to outlast a loss of power
//!                              ─► Install to every reactor ─► what was at the medium ends ─► Installed
//!                              ─► Reserved (the answer), and notices to hosts
//! ```
mod registrar;
mod state;
#[cfg(test)]
mod tests;

pub use registrar::{Action, Install, Keep, Registrar};
pub use state::{Change, Command, Held, HostId, Registrant, Rights, State};
