//! Lists and watches of EndpointSlices, checked against their law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_cluster::laws::kubernetes(input));
