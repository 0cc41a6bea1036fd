//! See `ironside_tests::fuzzing::operations::pair`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironside_tests::fuzzing::operations::pair(data));
