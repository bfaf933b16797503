//! The autoscaler: laws for any input, members that come and go, and a day in ten minutes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[expect(dead_code, reason = "other tests draw more")]
#[path = "../dice/mod.rs"]
mod dice;

mod crew;
mod day;
mod laws;
mod world;
