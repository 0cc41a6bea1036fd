//! See `ironside_tests::fuzzing::bytes::mpa`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironside_tests::fuzzing::bytes::mpa(data));
