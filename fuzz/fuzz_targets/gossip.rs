//! What daemons of the lottery tell one another of who is there, against its law.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plimsoll_cluster::laws::gossip(input));
