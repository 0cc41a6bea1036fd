//! The target.
pub mod backend;
