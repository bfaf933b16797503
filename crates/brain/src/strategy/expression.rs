//! Each member in turn, as often as an expression of the operator's says, spread evenly over the round (see
//! `schedule`).
//!
//! The expression is evaluated outside, on the slow path; what it gives comes in through
//! [`Analyzer::handle_weights`](crate::Analyzer::handle_weights) and takes the place of the capacity in each member's weight.
//! To the fast path it is a weighted round robin, and costs what that costs.

use super::{PLAIN, Strategy, schedule, share};
use crate::{Ask, Hand, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "expression",
    about: "each member in turn, as often as an expression over its figures says",
    prepare: schedule::prepare,
    choose,
    explain: share,
    ..PLAIN
};

fn choose(plan: &Plan, _: &mut Hand, ask: &Ask) -> usize {
    schedule::at(plan, ask.turn)
}
