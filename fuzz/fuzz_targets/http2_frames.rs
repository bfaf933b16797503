//! HTTP/2 frames, checked against the law of the meter.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_proxy::laws::http2_frames(input));
