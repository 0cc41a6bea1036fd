//! The target.
pub mod backend;
pub mod qpair;
