//! Texts as models, in both formats, checked against the law of writing them.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_fuzz::model(input));
