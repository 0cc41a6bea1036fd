//! The target.
pub mod backend;
pub mod catalog;
pub mod control;
pub mod controller;
pub mod qpair;
