//! What decides how many members a group has: laws that hold whatever comes, members that come and go, a day in ten minutes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[expect(dead_code, reason = "other tests draw more")]
#[path = "../dice/mod.rs"]
mod dice;

mod crew;
mod day;
mod laws;
mod world;
