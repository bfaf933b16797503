//! Chunked bodies, checked against their law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_fuzz::check("chunked", input));
