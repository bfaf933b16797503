//! The lottery without a balancer: the protocol that daemons beside the servers speak with clients and with one
//! another, as values. No socket, no clock, no chance.
//!
//! AGS (1997) let every server draw the winner of each request for itself. Here it is done again, with what went wrong there put
//! right:
//!
//! * [`draw`](mod@draw): weighted rendezvous in whole numbers, so that daemons that know the same draw the same to the bit, and
//!   those that know a little different differ only a little. A daemon draws for itself with the weight it last told the others.
//! * [`Daemon`]: reports, the ladder of those who answer if the winner does not, commits, referrals.
//! * [`Client`]: asks one daemon, another, then all.
//!
//! Messages are believed once crate `wire` has checked their tag, but for weights that no load can make of a capacity; who may say what
//! with which key is decided before they come here.
//! `tests/lottery` simulates whole clusters in virtual time with every fault that is easy to think of.

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
