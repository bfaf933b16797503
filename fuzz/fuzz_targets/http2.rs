//! Scripts of a raw HTTP/2 client, checked against the law of a listener.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_proxy::laws::http2(input));
