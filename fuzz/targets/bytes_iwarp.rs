//! See `ironside_tests::fuzzing::bytes::iwarp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironside_tests::fuzzing::bytes::iwarp(data));
