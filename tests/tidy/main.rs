//! Rules that matter are tests.
