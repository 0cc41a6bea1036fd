//! See `ironside_tests::fuzzing::bytes::nvme`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironside_tests::fuzzing::bytes::nvme(data));
