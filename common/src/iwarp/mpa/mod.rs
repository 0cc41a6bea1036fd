//! MPA start-up: one Request, one Reply, and what both sides agree on by them.
mod frame;
mod negotiate;
#[cfg(test)]
mod tests;

pub use frame::{Enhanced, FRAME_MAX, Frame, FrameError, FrameKind, Parsed, RtrForms};
pub use negotiate::{Initiator, Offer, Refusal, Responder, Rtr, Terms};
