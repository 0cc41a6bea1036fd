//! What the tools are made of, for tests and fuzzers to use too.
pub mod world;
