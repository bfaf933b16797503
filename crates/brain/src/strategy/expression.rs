//! Weights from an expression of the operator: each member in turn, as often as its weight demands, spread
//! evenly over the round (see `schedule`).
//!
//! The expression is evaluated outside, on the slow path. Its values arrive through
//! [`Analyzer::handle_weights`](crate::Analyzer::handle_weights) and replace the capacity in each member's
//! weight. The fast path is a weighted round robin, at the same cost.

use super::{DEFAULTS, Strategy, schedule, share};
use crate::{PickRequest, PickerState, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "expression",
    about: "each member in turn, as often as an expression over its figures says",
    prepare: schedule::prepare,
    choose,
    explain: share,
    ..DEFAULTS
};

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    schedule::member_at(plan, request.turn)
}
