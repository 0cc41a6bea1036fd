//! Shared by the tests.
pub mod fuzzing;
pub mod support;
