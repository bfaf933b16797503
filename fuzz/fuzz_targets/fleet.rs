//! What balancers that act together tell one another, against its law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_fuzz::check("fleet", input));
