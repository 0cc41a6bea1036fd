//! See `ironside_tests::fuzzing::world::fabric`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironside_tests::fuzzing::world::fabric(data));
