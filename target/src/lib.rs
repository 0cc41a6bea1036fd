//! The target.
