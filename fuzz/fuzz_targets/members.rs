//! Lists of members in JSON, checked against their law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_config::laws::members(input));
