//! The better of two randomly drawn members, by the expected latency of a request.
//!
//! The cost of a member is its latency estimate times one more than its requests in flight per weight
//! (Finagle's PeakEwma). The estimate follows a slow answer at once and a fast one gradually. It fades while
//! nothing is observed, so a slow member is tried again after some `decay` times and never starved.
//!
//! Two protections beyond that:
//!
//! - A member that fails fast would look fast and attract traffic. A failure counts as a latency of at least
//!   `penalty` (Linkerd's load biaser does the same).
//! - A member without an estimate, new or back again, would look free and be flooded before its first answer.
//!   It gets one request at a time until then: its cost is 0 with none in flight, and above all others with
//!   one.

use alloc::vec::Vec;
use core::time::Duration;

use super::{DEFAULTS, Strategy, StrategyParam, StrategyParams, alias};
use crate::{Member, PickRequest, PickerState, Plan, Time, Vitals};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "peak_ewma",
    about: "the better of two drawn by chance, by recent latency times requests in flight; failures count as \
        slow",
    params: &[
        StrategyParam {
            name: "decay",
            about: "seconds after which an observation has lost two thirds of its weight",
            default: 10.0,
            min: 0.1,
            max: 3600.0,
        },
        StrategyParam {
            name: "penalty",
            about: "seconds that a failed request counts as, at least",
            default: 5.0,
            min: 0.0,
            max: 3600.0,
        },
    ],
    reads_latency: true,
    prefers_less_load: true,
    shares: true,
    prepare: alias::prepare,
    choose,
    observe,
    explain,
    ..DEFAULTS
};

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    let members = plan.members();
    let decay = seconds(plan.params().at(0));
    let first = alias::draw(plan, request.random_bits);
    let (second, _) = alias::draw_other(plan, request.random_bits, first);
    if second != first
        && cost(plan, &members[second], request.now, decay) < cost(plan, &members[first], request.now, decay)
    {
        return second;
    }
    first
}

fn observe(params: &StrategyParams, vitals: &Vitals, latency: Duration, failed: bool, now: Time) {
    let effective_latency = if failed { latency.max(seconds(params.at(1))) } else { latency };
    vitals.record_latency(effective_latency, now, seconds(params.at(0)));
}

fn explain(plan: &Plan, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
    let decay = seconds(plan.params().at(0));
    let latency = member.vitals.latency(now, decay);
    let latency_figure = latency.map(|latency| ("latency_estimate_seconds", f64::from(latency) / 1e9));
    // Without an estimate the cost is only a rank, not a time.
    let cost_figure = latency.map(|_| ("cost_seconds", cost(plan, member, now, decay) / 1e9));
    latency_figure.into_iter().chain(cost_figure).collect()
}

/// Returns the expected latency of a request at `member`, nanoseconds.
fn cost(plan: &Plan, member: &Member, now: Time, decay: Duration) -> f64 {
    let in_flight = plan.expected_in_flight(member);
    let queue = in_flight / member.weight;
    match member.vitals.latency(now, decay) {
        Some(latency) => f64::from(latency) * (queue + 1.0),
        None if in_flight <= 0.0 => 0.0,
        None => UNKNOWN_COST + queue,
    }
}

/// A cost above that of any member with an estimate, and small enough to distinguish queues on top of it: 11
/// days.
const UNKNOWN_COST: f64 = 1e15;

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}
