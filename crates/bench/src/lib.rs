//! The open-loop load generator and test members that measure the balancer. The crate knows only what any
//! client and any server can observe from outside.
//!
//! The load generator separates the send times ([`pace`], [`replay`]) from the requests ([`target`]). [`run`]
//! joins them and [`record`] keeps the results. [`member`] is the server under load.

mod body;
mod emulated_processors;
pub mod lab;
pub mod member;
pub mod pace;
pub mod pick;
pub mod plot;
pub mod record;
pub mod replay;
pub mod rng;
pub mod run;
pub mod target;
pub mod units;
