//! Answers of name servers, checked against their law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_cluster::laws::resolver(input));
