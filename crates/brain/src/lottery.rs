//! The lottery without a balancer: the protocol of daemons beside the servers with clients and with one
//! another, as values. It has no socket, no clock and no randomness of its own.
//!
//! AGS (1997) let every server draw the winner of each request for itself. This is the same method with its
//! faults corrected:
//!
//! - [`draw`](mod@draw): weighted rendezvous in whole numbers. Daemons with equal information draw the same
//!   to the bit, and those with slightly different information differ only slightly. A daemon draws for
//!   itself with the weight that it last reported.
//! - [`LotteryNode`]: reports, the ladder of daemons that answer if the winner does not, commits, referrals.
//! - [`LotteryClient`]: asks one daemon, another, then all.
//!
//! Crate `wire` checks the tag of each message; beyond that only weights that no load can make of a capacity
//! are rejected. The permission of each key is checked before the messages come here. `tests/lottery`
//! simulates whole clusters in virtual time with all common faults.

mod client;
mod dedup;
pub mod draw;
mod fanout;
mod membership;
mod message;
mod node;
mod siphash;
mod source_limits;
mod step_timer;
mod weight;
pub mod weight_codec;

pub use client::{LotteryClient, LotteryClientConfig, PickOutcome, PickStatus};
pub use membership::MAX_MEMBERS;
pub use message::{
    AnswerCommit, AnswerMode, AnswerStatus, CandidateEntry, CandidateQuery, CandidateSet, FallbackMember,
    LotteryAnswer, LotteryMessage, LotteryRequest, MAX_CANDIDATE_BYTES, MAX_FALLBACKS, MAX_IDS,
    MAX_NODE_REPORT_BYTES, MAX_SERVICES, MAX_TABLE_PART_BYTES, MessageTarget, NodeDescription, NodeReport,
    NodeState, RelayedReport, ServiceOffer, ServiceState, TableFetch, TablePart, UNKNOWN_LOAD,
};
pub use node::{LotteryNode, NodeConfig, NodeConfigChange, NodeStatistics, NodeView, PeerView, ServiceView};
pub use siphash::SipHashKey;
pub use source_limits::SourceLimits;
pub use step_timer::REFERRAL_STEP;
