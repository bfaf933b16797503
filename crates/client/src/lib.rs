//! A client of a lottery cluster (`docs/guide/lottery.md`): asks the daemons which member to use, without a
//! balancer in between.
//!
//! ```no_run
//! use plimsoll_client::{Client, ClientSettings, KeySource, service};
//!
//! let daemons = vec!["10.0.0.1:7447".parse()?, "10.0.0.2:7447".parse()?];
//! let client = Client::open(ClientSettings::new(daemons, KeySource::File("lottery.keys".into())))?;
//! let pick = client.pick(service("web")?, b"")?;
//! println!("{}", pick.address);
//! // After a failed connection: do not pick that member for five seconds.
//! client.record_failure(pick.member);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Client`] is for threads that wait and for event loops, `AsyncClient` (feature `tokio`) for tasks. They
//! begin with the addresses of a few daemons and learn the others from answers.
//! [`plimsoll_brain::lottery::LotteryClient`] decides which daemon is asked first, when another one and when
//! all. An answer is reused for as long as its daemon allows. A retry carries the same id and gets the same
//! answer. A failed member is avoided for a while. The keys are reloaded when their file changes.
//!
//! [`Lease`] is the alternative: it asks a balancer, over HTTP, for a member of one of its groups.
//!
//! Without the feature, the crate does not depend on tokio. The C library and the Python package (`clients/`)
//! are built on it.

#[cfg(feature = "tokio")]
mod async_client;
mod client;
mod engine;
mod keys;
mod lease;
mod settings;
mod sockets;

use std::net::SocketAddr;

#[cfg(feature = "tokio")]
pub use async_client::AsyncClient;
pub use client::Client;
pub use keys::{KeySource, ReloadableKeys};
pub use lease::{Lease, LeaseError, LeaseRequest};
pub use plimsoll_brain::lottery::AnswerMode;
pub use plimsoll_wire::rfs::{KeyRing, MAX_INFO};
pub use settings::{ClientSettings, OpenError, resolve_daemons, service};

/// The picked member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickedMember {
    /// The member's number.
    pub member: u16,
    /// The address of its service.
    pub address: SocketAddr,
    /// The data that its application passes to the client's.
    pub info: Vec<u8>,
    /// The members to try next, best first; at most four.
    pub fallbacks: Vec<(u16, SocketAddr)>,
}

/// The reason why no member was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// No daemon answered.
    #[error("no daemon answered")]
    NoResponse,
    /// The members that offer the service are unavailable now.
    #[error("no member can serve it now")]
    Busy,
    /// No member offers the service.
    #[error("no member offers it")]
    UnknownService,
    /// All members that offer the service are draining.
    #[error("all members that offer it are going")]
    Draining,
    /// Too many requests are open, or too many outcomes were not taken.
    #[error("too many requests are on their way")]
    TooMany,
}
