//! See `ironside_tests::fuzzing::authentication::messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironside_tests::fuzzing::authentication::messages(data));
