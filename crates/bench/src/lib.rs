//! Be judged: open-loop load and test members. Knows nothing of the balancer but what any client and any
//! server can see from outside.
//!
//! The load generator keeps *when* ([`pace`], [`replay`]) apart from *what* ([`target`]); [`run`] joins them and
//! [`record`] keeps what came of it. [`member`] is the server to point it at.

mod body;
mod busy;
pub mod chance;
pub mod lab;
pub mod member;
pub mod pace;
pub mod pick;
pub mod plot;
pub mod record;
pub mod replay;
pub mod run;
pub mod target;
pub mod units;
