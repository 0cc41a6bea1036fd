//! One thread on one core: the ring, the loop that drives a [`Tenant`], how it idles and how others reach
//! it.
pub mod clock;
mod idle;
mod mailbox;
mod pin;
mod ring;
mod run;
pub mod source;
mod timer;

pub use idle::{Idle, Next, Poll, PollError};
pub use mailbox::{Mailbox, Sender, mailbox};
pub use pin::pin_to_core;
pub use ring::{Flags, Ring, RingError, RingFile, UblkCommand, UblkTag};
pub use run::{Tenant, run};
pub use timer::{Timer, earliest};
