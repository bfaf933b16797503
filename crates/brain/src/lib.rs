//! The brain of Plimsoll: who gets the next request, who is alive, how much is too much.
//!
//! Pure by construction: `no_std` leaves no clock, no socket and no source of chance to reach for, so
//! time ([`Time`]) and randomness ([`Ask::chance`]) are arguments and every decision can be replayed.
//!
//! Two speeds. The *slow path* ([`Analyzer`]) digests what monitors, probes and traffic say and makes an
//! immutable [`Plan`]. The *fast path* ([`Plan::choose`]) picks a member from the plan for each request.
#![no_std]

extern crate alloc;

mod analyzer;
mod ask;
mod event;
mod member;
mod plan;
pub mod status;
pub mod strategy;
mod time;

pub use analyzer::{Analyzer, GroupSpec, HealthSpec, MemberSpec, OutlierSpec, Totals, WhenAllDown};
pub use ask::Ask;
pub use event::{Event, EventKind};
pub use member::{Load, Member, MemberId, State, Vitals};
pub use plan::{Choice, Plan, Table};
pub use strategy::{Knobs, Strategy};
pub use time::Time;
