//! The admin plane over real sockets, in front of a scripted balancer.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod abuse;
mod behind;
mod control;
mod dashboard;
mod events;
mod exposition;
mod guarded;
#[cfg(feature = "kerberos")]
mod kerberos;
mod leases;
mod members;
mod metrics;
mod pki;
#[cfg(feature = "kerberos")]
#[path = "../../../../tests/ports.rs"]
mod ports;
mod reads;
#[cfg(feature = "kerberos")]
#[expect(dead_code, reason = "a part of it is for other tests")]
#[path = "../../../../tests/realm/mod.rs"]
mod realm;
mod reports;
mod script;
mod secured;
mod stage;
mod strangers;
mod supervisor;
