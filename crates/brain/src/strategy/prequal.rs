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

fn find_conflict(knobs: &StrategyParams) -> Option<ParamConflict> {
    let (pool, probes) = (knobs.at(POOL), knobs.at(PROBES));
    (probes > pool).then(|| ParamConflict {
        param: "probes",
        conflicts_with: Some("pool"),
        why: format!("`probes` ({probes}) must not be above `pool` ({pool})"),
        hint: "results for which there is no room would never be used",
    })
}

fn choose(plan: &Plan, hand: &mut PickerState, ask: &PickRequest) -> usize {
    pick(plan, hand, ask, &|member| !member.is_full()).unwrap_or(NO_MEMBER)
}

fn pick(plan: &Plan, hand: &mut PickerState, ask: &PickRequest, left: Eligible<'_>) -> Option<usize> {
    let (members, knobs) = (plan.members(), plan.params());
    let (room, looks, age) = (knobs.at(POOL) as usize, knobs.at(PROBES) as usize, seconds(knobs.at(AGE)));
    let fleet = hand.failing();
    let pool = &mut hand.probes;
    pool.set(room, uses(knobs, members.len()));
    pool.expire(members, ask.now, age);
    let mut bits = ask.random_bits;
    for look in 0..looks.min(members.len()) {
        bits = mix(bits);
        let drawn = (((bits >> 32) * members.len() as u64) >> 32) as usize;
        let place = if members.len() <= looks { look } else { drawn };
        let member = &members[place];
        pool.add(result(place, member, ask.now, age), member, bits, ask.now);
    }
    let hot = pool.hot_thresholds(knobs.at(Q_RIF));
    let mut best: Option<(usize, usize, [f64; 3])> = None;
    for (index, probe) in pool.probes().iter().enumerate() {
        let Some(member) = members.get(probe.place).filter(|member| left(member)) else { continue };
        let load = hot.load_ratio(probe, member, ask.now);
        let crowded = load > 1.0;
        let latency =
            if crowded { 0.0 } else { probe.latency(member, ask.now) * failure_penalty(member, fleet) };
        let rank = [f64::from(u8::from(crowded)), latency, load];
        if best.is_none_or(|(_, _, least)| rank < least) {
            best = Some((index, probe.place, rank));
        }
    }
    if let Some((index, ..)) = best {
        pool.use_result(index);
    }
    pool.remove_one(members, &hot, ask.now);
    best.map(|(_, place, _)| place).or_else(|| fewest_in_flight(plan, hand, ask, left))
}

fn observe(_: &StrategyParams, vitals: &Vitals, latency: Duration, failed: bool, now: Time) {
    let latency = latency.as_secs() as f32 * 1e9 + latency.subsec_nanos() as f32;
    let counted = match vitals.mean_latency() {
        _ if !failed => latency,
        Some(mean) => failure_latency(latency, mean),
        None => latency.max(FAILURE),
    };
    vitals.blend(counted, LATENCIES, now);
}

fn record_reading(hand: &mut PickerState, member: &Member, reading: &Reading, now: Time) {
    member.vitals.last_report.record(reading, member.vitals.begun(), now);
    let Some(place) = hand.index_of(member.id) else { return };
    let result = result(place, member, now, Duration::ZERO);
    // An implausible report was not recorded.
    if result.report.is_some() {
        hand.probes.add(result, member, mix(now.0), now);
    }
}

fn explain(plan: &Plan, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
    let probe = result(0, member, now, seconds(plan.params().at(AGE)));
    let mut figures = Vec::from([("load", probe.load(member, now))]);
    let latency = probe.latency(member, now);
    if latency > 0.0 && latency < UNKNOWN {
        figures.push(("latency_ms", latency * 1e3));
    }
    if probe.report.is_some() {
        figures.push(("heard_ms_ago", now.since(probe.at).as_secs_f64() * 1e3));
    }
    figures.push(("failing_at_least", member.vitals.failure_detector.failure_share()));
    figures
}

/// Returns the present result of a member, from its own report if that is at most `age` old.
fn result(place: usize, member: &Member, now: Time, age: Duration) -> ProbeResult {
    if let Some(view) = member.vitals.last_report.view().filter(|view| now.since(view.at) <= age) {
        return ProbeResult {
            report: Some(view.reading),
            begun: view.begun,
            ..ProbeResult::new(place, member, view.at)
        };
    }
    let latency = match member.vitals.latency_and_age(now).filter(|(_, age)| *age <= RETRY) {
        Some((latency, _)) => f64::from(latency) * 1e-9,
        None if member.in_flight() == 0 => 0.0,
        None => UNKNOWN,
    };
    ProbeResult { latency, ..ProbeResult::new(place, member, now) }
}

/// Returns the factor by which failures make a member look slower: the inverse square of the share of its
/// requests that does not fail, beyond the failures of the whole fleet.
fn failure_penalty(member: &Member, fleet: f64) -> f64 {
    let good = (1.0 - (member.vitals.failure_detector.failure_share() - fleet).max(0.0)).max(0.01);
    1.0 / (good * good)
}

/// Returns the number of uses of a result in a group of `members`.
fn uses(knobs: &StrategyParams, members: usize) -> f64 {
    if knobs.at(REUSE) >= 1.0 {
        return knobs.at(REUSE);
    }
    let beyond = 1.0 - (knobs.at(POOL) / members.max(1) as f64).min(1.0);
    let rate = beyond * knobs.at(PROBES) - 1.0;
    if rate > 0.0 { (2.0 / rate).max(1.0) } else { f64::INFINITY }
}

fn seconds(knob: f64) -> Duration {
    Duration::try_from_secs_f64(knob).unwrap_or_default()
}

/// The indices of the parameters.
const Q_RIF: usize = 0;
const POOL: usize = 1;
const PROBES: usize = 2;
const REUSE: usize = 3;
const AGE: usize = 4;

/// The number of latencies over which the latency of a member without load reports is averaged.
const LATENCIES: f32 = 8.0;

/// The latency that a failure counts as without an estimate, nanoseconds.
const FAILURE: f32 = 5e9;

/// The time after which a member without load reports and requests is tried again, however slow it was,
/// nanoseconds.
const RETRY: u64 = 10_000_000_000;

/// A latency above any known one, seconds.
const UNKNOWN: f64 = 1e6;
