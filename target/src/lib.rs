//! The target.
pub mod backend;
pub mod control;
pub mod qpair;
