//! Asks the daemons of a lottery who serves (`docs/guide/lottery.md`): a client of a cluster without a balancer.
//!
//! ```no_run
//! use plimsoll_client::{Client, KeySource, Settings, service};
//!
//! let daemons = vec!["10.0.0.1:7447".parse()?, "10.0.0.2:7447".parse()?];
//! let client = Client::open(Settings::new(daemons, KeySource::File("lottery.keys".into())))?;
//! let pick = client.pick(service("web")?, b"")?;
//! println!("{}", pick.address);
//! // It could not be reached: not that one again for five seconds.
//! client.failed(pick.member);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Client`] is for threads that wait and for event loops, `AsyncClient` (feature `tokio`) for tasks. They begin with the
//! addresses of a few daemons and learn of the others by their answers; which daemon is asked, when another, when all, is
//! the rule of [`plimsoll_brain::lottery::Client`]. An answer is used again for as long as its daemon allows; a request that is
//! sent again carries the same id and gets the same answer; a member that failed is avoided; keys are read again when their
//! file changes.
//!
//! [`Lease`] is the other way: a balancer is asked, over HTTP, for a member of one of its groups.
//!
//! Without the feature nothing of tokio comes with it. The C library and the Python package (`clients/`) are this crate.

mod asker;
#[cfg(feature = "tokio")]
mod async_client;
mod client;
mod keys;
mod lease;
mod settings;
mod socket;

use std::net::SocketAddr;

#[cfg(feature = "tokio")]
pub use async_client::AsyncClient;
pub use client::Client;
pub use keys::{KeySource, Ring};
pub use lease::{Lease, LeaseError, Wish};
pub use plimsoll_brain::lottery::Mode;
pub use plimsoll_wire::rfs::{Keys, MOST_INFO};
pub use settings::{OpenError, Settings, look_up, service};

/// Who is to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Its number.
    pub member: u16,
    /// Where it serves.
    pub address: SocketAddr,
    /// What its application says to the client's.
    pub info: Vec<u8>,
    /// Members to try if it does not do, best first; at most four.
    pub further: Vec<(u16, SocketAddr)>,
}

/// Why there is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// No daemon answered.
    #[error("no daemon answered")]
    Silence,
    /// The members that offer the service cannot be used now.
    #[error("no member can serve it now")]
    Busy,
    /// No member offers it.
    #[error("no member offers it")]
    Unknown,
    /// All who offer it are going.
    #[error("all members that offer it are going")]
    Draining,
    /// Too many requests are without an answer, or too many answers were not taken.
    #[error("too many requests are on their way")]
    TooMany,
}
