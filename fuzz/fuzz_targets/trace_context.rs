//! The trace context of a head, checked against its law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_fuzz::check("trace_context", input));
