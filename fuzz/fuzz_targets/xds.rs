//! What a client of xDS says against its law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_fuzz::check("xds", input));
