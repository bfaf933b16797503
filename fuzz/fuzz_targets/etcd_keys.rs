//! The change notifications of an etcd watch, checked against their law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_cluster::laws::etcd_keys(input));
