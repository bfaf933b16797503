//! The brain of Plimsoll: the choice of a member for each request, the health of members, and their limits.
//!
//! # The wall
//!
//! This crate decides; it never acts. Time ([`Time`]), randomness ([`PickRequest::random_bits`]) and
//! everything that happened on the network are arguments. So a decision depends on nothing else, can be
//! replayed, and can be tested a million times a second in virtual time.
//!
//! The compiler enforces that. `#![no_std]` leaves only `core` and `alloc` in scope. These have no clock, no
//! socket, no file, no thread, no lock that blocks, no source of chance and no hash map with a random seed:
//! code that uses one does not compile. `unsafe_code` is forbidden for the whole workspace, which rules out
//! direct system calls. The remaining hole is the line `extern crate std`, and `tests/wall.rs` fails if it
//! appears. Floating-point functions that `core` lacks come from `libm`, whose results do not depend on the
//! machine.
//!
//! # Two speeds
//!
//! The *slow path* ([`Analyzer`]) processes the input of monitors, probes and traffic and makes an immutable
//! [`Plan`]. The *fast path* ([`Plan::choose`]) picks a member from the plan for each request: it takes no
//! lock, allocates nothing and writes no memory. The only state whose changes both see is [`Vitals`], a cache
//! line of atomic counts for each member.
//!
//! # Without a balancer
//!
//! [`lottery`] replaces the balancer by daemons beside the servers that agree, without communication, on the
//! server of a request. It is a protocol, and as pure as the rest: messages and time go in, messages come
//! out.
//!
//! # Several balancers as one
//!
//! [`fleet`] is the exchange of observations among the balancers in front of the same members, and its
//! evaluation.
//!
//! # Routes of HTTP requests
//!
//! [`route`] is a compiled table of rules over host, path, method and fields, with the precedence of the
//! Gateway API. It tells which rule takes a request, and nothing about what the rule then does.
//!
//! # Supervision of processes
//!
//! [`supervision`] decides whether and when a Supervisor starts a process again.
//!
//! ```
//! use plimsoll_brain::*;
//! use std::sync::Arc;
//!
//! let member = |name: &str| MemberSpec {
//!     name: Arc::from(name),
//!     address: name.parse().unwrap(),
//!     capacity: 1.0,
//!     limit: u32::MAX,
//!     leaving: false,
//!     checked: false,
//! };
//! let strategy = strategy::find("least_connections").unwrap();
//! let spec = GroupSpec {
//!     name: Arc::from("web"),
//!     strategy,
//!     params: StrategyParams::defaults(strategy),
//!     members: vec![member("10.0.0.1:80"), member("10.0.0.2:80")],
//!     health: None,
//!     outlier: None,
//!     slow_start: std::time::Duration::ZERO,
//!     when_all_down: WhenAllDown::Reject,
//!     admission: None,
//!     objective: None,
//!     aperture: None,
//! };
//! let mut analyzer = Analyzer::new(spec, Time(0));
//! let plan = analyzer.plan(Time(0)).expect("the first call gives a plan");
//! let mut hand = PickerState::default();
//!
//! let Choice::Member(first) = plan.choose(&mut hand, &PickRequest::default(), &[]) else { panic!() };
//! plan.members()[first].vitals.begin();
//! let Choice::Member(second) = plan.choose(&mut hand, &PickRequest::default(), &[]) else { panic!() };
//! assert_ne!(first, second, "the first member has a request in flight, the second has none");
//! ```
#![no_std]

extern crate alloc;

mod analyzer;
pub mod autoscale;
mod event;
pub mod fleet;
mod hash;
pub mod load_line;
pub mod lottery;
mod member;
pub mod meter;
mod pick;
mod picker_state;
mod plan;
mod rebind;
mod retry;
pub mod route;
pub mod shared_hosts;
pub mod status;
pub mod strategy;
pub mod supervision;
mod time;
mod wait_queue;

pub(crate) use analyzer::DEFAULT_MAX_WAIT;
pub use analyzer::{
    Analyzer, DrainInitiator, GroupSpec, HealthSpec, HealthStatus, HealthVerdict, MemberHandoff, MemberSpec,
    MemberTraffic, OutlierSpec, WhenAllDown,
};
pub use event::{Event, EventKind};
pub use hash::{hash, mix};
pub(crate) use member::failure_detector::MAX_WARNING;
pub use member::{EffectiveLoad, Member, MemberId, MemberState, ReportedLoad, UsageReport, Vitals};
pub use pick::PickRequest;
pub use picker_state::PickerState;
pub use plan::{Choice, Plan, RefusalReason, StrategyTable};
pub use rebind::{
    AlertRule, LoadAlert, MigrationProgress, MoveHistory, SessionExchange, SessionSize, ShedDecision,
    may_session_escape, should_session_move, should_sized_session_move,
};
pub use retry::RetryBudget;
pub use strategy::{ParamConflict, Strategy, StrategyParams};
pub use time::Time;
pub use wait_queue::{DrainRate, TARGET_WAIT, Urgency, WaitQueues, WaitTicket, WaitVerdict};
