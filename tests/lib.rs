//! Shared by the tests.
pub mod support;
