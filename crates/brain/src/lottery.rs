//! The lottery without a balancer: the protocol of daemons beside the servers with clients and with one
//! another, as values. It has no socket, no clock and no randomness of its own.
//!
//! AGS (1997) let every server draw the winner of each request for itself. This is the same method with its
//! faults corrected:
//!
//! - [`draw`](mod@draw): weighted rendezvous in whole numbers. Daemons with equal information draw the same
//!   to the bit, and those with slightly different information differ only slightly. A daemon draws for
//!   itself with the weight that it last reported.
//! - [`Daemon`]: reports, the ladder of daemons that answer if the winner does not, commits, referrals.
//! - [`Client`]: asks one daemon, another, then all.
//!
//! Crate `wire` checks the tag of each message; beyond that only weights that no load can make of a capacity
//! are rejected. The permission of each key is checked before the messages come here. `tests/lottery`
//! simulates whole clusters in virtual time with all common faults.

mod client;
pub mod code;
mod daemon;
pub mod draw;
mod gauge;
mod memory;
mod message;
mod pace;
mod sip;
mod sources;
mod spread;
mod table;

pub use client::{Client, ClientConfig, Outcome, Picked};
pub use daemon::{Change, Config, Daemon, Other, Own, Statistics, View};
pub use message::{
    Answer, Commit, DRUM, Drum, FURTHER, Fetch, Further, Hearsay, IDS, Listed, Look, Message, Mode, Offer,
    PART, Place, REPORT, Report, Request, SERVICES, Share, Standing, Status, Table, To, UNKNOWN,
};
pub use pace::REFERRAL;
pub use sip::Key;
pub use sources::Sources;
pub use table::MEMBERS;
