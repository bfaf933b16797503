//! The load generator against servers in the same process, good and bad.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod closed_loop;
mod connections;
mod echo;
mod iiop;
mod mix;
mod open_loop;
mod picks;
mod rate;
mod rig;
mod stall;
