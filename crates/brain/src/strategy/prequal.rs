//! The fastest of a pool of recently sampled members that do not have too many requests (Wydrowski,
//! Kleinberg, Rumble and Archer, Load is not what you should balance: introducing Prequal, NSDI 2024).
//!
//! A member is *hot* if it has more requests in flight than the quantile `q_rif` of the pool. A request goes
//! to the cold member with the least latency, or to the one with the fewest requests if all are hot. So
//! latency decides as long as no member is crowded, and requests in flight do otherwise.
//!
//! The differences from the paper:
//!
//! - **No probes are sent.** A load report with an answer (see [`Meter`](crate::meter::Meter)) is a result.
//!   Besides, each choice samples `probes` random members by their last report to any core. So a result costs
//!   no message, but it is as old as the member's last answer, and a member without a request for `age` has
//!   none.
//! - **A member without load reports** is judged by the requests in flight from here and by the latency of
//!   the last few answers. A client knows no more of such a server. It is hot by the quantile of others
//!   without reports. A member without either figure gets one request at a time.
//! - The paper's members report the median of what requests took at their present number. Here the latency is
//!   computed: the work of a request, times requests over the knee where there are more than that. As a
//!   report may be older than a probe would be, its number of requests fades into the member's mean.
//! - Requests in flight count for the member's weight, so capacities and slow start hold; the paper's members
//!   are all alike. A member is in the pool once: a new result replaces the old one. If the whole group fits
//!   into the pool, results may be used as long as they are young, and none is removed before.
//! - The paper avoids members that fail fast by a heuristic. Here latency grows by the inverse square of the
//!   share of requests that a member does not fail beyond all others, and ejection does the rest.
//!
//! The maximum number of uses of a result is the paper's: max(1, (1 + δ) / ((1 − m/n) r_probe − r_remove)),
//! with δ and r_remove 1, for a pool of m in a group of n.

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::{
    DEFAULTS, Eligible, NO_MEMBER, ParamConflict, Strategy, StrategyParam, StrategyParams, failure_latency,
    fewest_in_flight,
};
use crate::meter::Reading;
use crate::{Member, PickRequest, PickerState, Plan, Time, Vitals, mix};
use probe_pool::ProbeResult;

mod probe_pool;

pub(crate) use probe_pool::ProbePool;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "prequal",
    about: "of members looked at lately the fastest that has not too many requests (Prequal, without its \
        probes)",
    params: &[
        StrategyParam {
            name: "q_rif",
            about: "quantile of requests in flight above which a member is hot; 1 for latency alone",
            default: 0.84,
            min: 0.0,
            max: 1.0,
        },
        StrategyParam {
            name: "pool",
            about: "results that each thread keeps at most",
            default: 16.0,
            min: 4.0,
            max: 64.0,
        },
        StrategyParam {
            name: "probes",
            about: "members looked at for each request",
            default: 3.0,
            min: 1.0,
            max: 16.0,
        },
        StrategyParam {
            name: "reuse",
            about: "times that a result is used at most; 0 for as many as the paper's formula gives",
            default: 0.0,
            min: 0.0,
            max: 1e6,
        },
        StrategyParam {
            name: "age",
            about: "seconds after which a result counts no more",
            default: 1.0,
            min: 0.01,
            max: 60.0,
        },
    ],
    conflict: find_conflict,
    reads_latency: true,
    prefers_less_load: true,
    shares: false,
    choose,
    second_choice: pick,
    observe,
    record_report: record_reading,
    explain,
    ..DEFAULTS
};

fn find_conflict(params: &StrategyParams) -> Option<ParamConflict> {
    let (pool, probes) = (params.at(POOL), params.at(PROBES));
    (probes > pool).then(|| ParamConflict {
        param: "probes",
        conflicts_with: Some("pool"),
        why: format!("`probes` ({probes}) must not be above `pool` ({pool})"),
        hint: "results for which there is no room would never be used",
    })
}

fn choose(plan: &Plan, picker: &mut PickerState, request: &PickRequest) -> usize {
    pick(plan, picker, request, &|member| !member.is_full()).unwrap_or(NO_MEMBER)
}

fn pick(
    plan: &Plan,
    picker: &mut PickerState,
    request: &PickRequest,
    has_room: Eligible<'_>,
) -> Option<usize> {
    let (members, params) = (plan.members(), plan.params());
    let (capacity, probe_count, max_age) =
        (params.at(POOL) as usize, params.at(PROBES) as usize, seconds(params.at(AGE)));
    let failure_share = picker.failing();
    let pool = &mut picker.probes;
    pool.set(capacity, max_uses(params, members.len()));
    pool.expire(members, request.now, max_age);
    let mut bits = request.random_bits;
    for probe_index in 0..probe_count.min(members.len()) {
        bits = mix(bits);
        let drawn_index = (((bits >> 32) * members.len() as u64) >> 32) as usize;
        let index = if members.len() <= probe_count { probe_index } else { drawn_index };
        let member = &members[index];
        pool.add(current_probe(index, member, request.now, max_age), member, bits, request.now);
    }
    let hot = pool.hot_thresholds(params.at(Q_RIF));
    let mut best: Option<(usize, usize, [f64; 3])> = None;
    for (index, probe) in pool.probes().iter().enumerate() {
        let Some(member) = members.get(probe.index).filter(|member| has_room(member)) else { continue };
        let load = hot.load_ratio(probe, member, request.now);
        let is_hot = load > 1.0;
        let latency = if is_hot {
            0.0
        } else {
            probe.latency(member, request.now) * failure_penalty(member, failure_share)
        };
        let rank = [f64::from(u8::from(is_hot)), latency, load];
        if best.is_none_or(|(_, _, best_rank)| rank < best_rank) {
            best = Some((index, probe.index, rank));
        }
    }
    if let Some((index, ..)) = best {
        pool.use_result(index);
    }
    pool.remove_one(members, &hot, request.now);
    best.map(|(_, index, _)| index).or_else(|| fewest_in_flight(plan, picker, request, has_room))
}

fn observe(_: &StrategyParams, vitals: &Vitals, latency: Duration, failed: bool, now: Time) {
    let latency = latency.as_secs() as f32 * 1e9 + latency.subsec_nanos() as f32;
    let effective_latency = match vitals.mean_latency() {
        _ if !failed => latency,
        Some(mean) => failure_latency(latency, mean),
        None => latency.max(FAILURE_LATENCY),
    };
    vitals.blend(effective_latency, LATENCY_SAMPLES, now);
}

fn record_reading(picker: &mut PickerState, member: &Member, reading: &Reading, now: Time) {
    member.vitals.last_report.record(reading, member.vitals.begun(), now);
    let Some(index) = picker.index_of(member.id) else { return };
    let probe = current_probe(index, member, now, Duration::ZERO);
    // An implausible report was not recorded.
    if probe.report.is_some() {
        picker.probes.add(probe, member, mix(now.0), now);
    }
}

fn explain(plan: &Plan, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
    let probe = current_probe(0, member, now, seconds(plan.params().at(AGE)));
    let mut figures = Vec::from([("load", probe.load(member, now))]);
    let latency = probe.latency(member, now);
    if latency > 0.0 && latency < UNKNOWN_LATENCY {
        figures.push(("latency_ms", latency * 1e3));
    }
    if probe.report.is_some() {
        figures.push(("heard_ms_ago", now.since(probe.at).as_secs_f64() * 1e3));
    }
    figures.push(("failing_at_least", member.vitals.failure_detector.failure_share()));
    figures
}

/// Returns the present result of a member, from its own report if that is at most `age` old.
fn current_probe(index: usize, member: &Member, now: Time, max_age: Duration) -> ProbeResult {
    if let Some(view) = member.vitals.last_report.view().filter(|view| now.since(view.at) <= max_age) {
        return ProbeResult {
            report: Some(view.reading),
            begun: view.begun,
            ..ProbeResult::new(index, member, view.at)
        };
    }
    let latency = match member.vitals.latency_and_age(now).filter(|(_, age)| *age <= LATENCY_EXPIRY_NANOS) {
        Some((latency, _)) => f64::from(latency) * 1e-9,
        None if member.in_flight() == 0 => 0.0,
        None => UNKNOWN_LATENCY,
    };
    ProbeResult { latency, ..ProbeResult::new(index, member, now) }
}

/// Returns the factor by which failures make a member look slower: the inverse square of the share of its
/// requests that does not fail, beyond the failures of the whole fleet.
fn failure_penalty(member: &Member, failure_share: f64) -> f64 {
    let success_share =
        (1.0 - (member.vitals.failure_detector.failure_share() - failure_share).max(0.0)).max(0.01);
    1.0 / (success_share * success_share)
}

/// Returns the number of uses of a result in a group of `members`.
fn max_uses(params: &StrategyParams, members: usize) -> f64 {
    if params.at(REUSE) >= 1.0 {
        return params.at(REUSE);
    }
    let outside_share = 1.0 - (params.at(POOL) / members.max(1) as f64).min(1.0);
    let surplus_probes = outside_share * params.at(PROBES) - 1.0;
    if surplus_probes > 0.0 { (2.0 / surplus_probes).max(1.0) } else { f64::INFINITY }
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

/// The indices of the parameters.
const Q_RIF: usize = 0;
const POOL: usize = 1;
const PROBES: usize = 2;
const REUSE: usize = 3;
const AGE: usize = 4;

/// The number of latencies over which the latency of a member without load reports is averaged.
const LATENCY_SAMPLES: f32 = 8.0;

/// The latency that a failure counts as without an estimate, nanoseconds.
const FAILURE_LATENCY: f32 = 5e9;

/// The time after which a member without load reports and requests is tried again, however slow it was,
/// nanoseconds.
const LATENCY_EXPIRY_NANOS: u64 = 10_000_000_000;

/// A latency above any known one, seconds.
const UNKNOWN_LATENCY: f64 = 1e6;
