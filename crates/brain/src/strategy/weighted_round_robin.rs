//! Each member in turn, as often as its weight demands, spread evenly over the round (see `schedule`).
//! Members that report requests a second and utilization get the weight by their reports (see `usage`), and
//! others the configured capacity.

use alloc::vec::Vec;

use super::{DEFAULTS, Strategy, StrategyParam, StrategyParams, schedule, usage};
use crate::{Member, PickRequest, PickerState, Plan, StrategyTable, Time};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "weighted_round_robin",
    about: "each member in turn, as often as its capacity or its reports say, spread evenly",
    params: &[
        StrategyParam {
            name: "error_penalty",
            about: "how much utilization a failed request in each request counts as, where members report",
            default: 1.0,
            min: 0.0,
            max: 100.0,
        },
        StrategyParam {
            name: "blackout",
            about: "seconds for which a member's first reports give no weight",
            default: 10.0,
            min: 0.0,
            max: 3600.0,
        },
        StrategyParam {
            name: "expiry",
            about: "seconds after which a report gives no weight any more",
            default: 180.0,
            min: 1.0,
            max: 86_400.0,
        },
    ],
    reads_load: true,
    reads_usage: true,
    shares: true,
    prepare,
    choose,
    explain,
    ..DEFAULTS
};

fn prepare(members: &[Member], params: &StrategyParams) -> StrategyTable {
    schedule::from_weights(&usage::weights(members, params.at(0)))
}

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    schedule::member_at(plan, request.turn)
}

fn explain(plan: &Plan, member: &Member, _: Time) -> Vec<(&'static str, f64)> {
    let weights = usage::weights(plan.members(), plan.params().at(0));
    let total_weight: f64 = weights.iter().sum();
    let index = plan.members().iter().position(|other| other.id == member.id);
    let share = index.and_then(|index| weights.get(index)).map(|weight| ("share", weight / total_weight));
    let reported =
        member.usage.map(|usage| [("requests_per_second", usage.rps), ("utilization", usage.utilization)]);
    share.into_iter().chain(reported.into_iter().flatten()).collect()
}
