//! Each member in turn, as often as an expression of the operator's says, spread evenly over the round (see
//! `schedule`).
//!
//! The expression is evaluated outside, on the slow path; what it gives comes in through
//! [`Analyzer::handle_weights`](crate::Analyzer::handle_weights) and takes the place of the capacity in each member's weight.
//! To the fast path it is a weighted round robin, and costs what that costs.

use super::{Strategy, least_loaded, schedule, share, unobserved};
use crate::{Ask, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "expression",
    about: "each member in turn, as often as an expression over its figures says",
    knobs: &[],
    reads_latency: false,
    reads_key: false,
    shares: true,
    prepare: schedule::prepare,
    choose,
    second: least_loaded,
    observe: unobserved,
    explain: share,
};

fn choose(plan: &Plan, ask: &Ask) -> usize {
    schedule::at(plan, ask.turn)
}
