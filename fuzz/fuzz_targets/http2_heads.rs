//! Heads between HTTP/2 and HTTP/1.1, checked against their law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_proxy::laws::http2_heads(input));
