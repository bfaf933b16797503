//! The admin plane over real sockets, in front of a scripted balancer.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod abuse;
mod control;
mod events;
mod exposition;
mod guarded;
mod metrics;
mod pki;
mod reads;
mod reports;
mod script;
mod secured;
mod strangers;
mod supervisor;
