//! The default strategy, without thresholds, weights or probes to set. The known state of each member decides
//! from one request to the next.
//!
//! 1. **A slot is held.** Members that meter themselves (see [`Meter`](crate::meter::Meter)) promise with an
//!    answer room for one more request. The promise is exclusive, so the request that uses it meets no other
//!    balancer's. Of several slots the cheapest is used.
//! 2. **No slot, but load reports.** Each member's queue is estimated from its last load report and the
//!    requests sent there since. The request is drawn in proportion to the amount that each member would get
//!    if one more request filled the fleet up to a common level of cost (`water_filling`). Between members
//!    that differ this is nearly the best one; between members of equal cost it is a draw by capacity. An old
//!    report fades into the member's mean load, or into the latency observed here where that is higher.
//! 3. **No load reports.** The cost is the square of one more than the requests in flight from here, times
//!    the member's recent latency (`silent_members`). If requests pile up, these members together get a
//!    learnt limit (`member::concurrency`). If most members send no reports, those that do are compared with
//!    them by observation alone.
//!
//! A member that fails more than the fleet looks more expensive in proportion. When every member has as many
//! requests as it can work on and twice the square root of that on top, the next request is rejected: it
//! would only slow down the others.

use alloc::vec::Vec;
use core::time::Duration;

use super::{DEFAULTS, Eligible, Strategy, record_mean_latency};
use crate::meter::Reading;
use crate::{Member, PickRequest, PickerState, Plan, Time};

mod silent_members;
mod water_filling;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "adaptive",
    about: "by what members say of themselves with their answers, else by what is seen of them; nothing to \
        set",
    params: &[],
    reads_latency: true,
    prefers_less_load: true,
    shares: false,
    enforces_limits: true,
    choose,
    second_choice,
    observe: record_mean_latency,
    record_report: record_reading,
    explain,
    ..DEFAULTS
};

fn choose(plan: &Plan, picker: &mut PickerState, request: &PickRequest) -> usize {
    pick(plan, picker, request, &|member| !member.is_full()).unwrap_or(usize::MAX)
}

fn second_choice(
    plan: &Plan,
    picker: &mut PickerState,
    request: &PickRequest,
    has_room: Eligible<'_>,
) -> Option<usize> {
    pick(plan, picker, request, has_room)
}

/// Instantiated for each type of `left`, because `left` is called for every member.
fn pick<L>(plan: &Plan, picker: &mut PickerState, request: &PickRequest, has_room: &L) -> Option<usize>
where
    L: Fn(&Member) -> bool + ?Sized,
{
    let members = plan.members();
    // A load report to another balancer, or to the process before this one, serves if this one got none.
    if !picker.has_reports && !plan.has_peer_reports() {
        return silent_members::choose(plan, picker, request, has_room);
    }
    if picker.held() > 0 {
        if let Some(index) =
            pick_unreported(members, picker, request).filter(|index| has_room(&members[*index]))
        {
            return Some(index);
        }
        if let Some(index) = picker.spend_slot(request.now, |index| has_room(&members[index])) {
            return Some(index);
        }
    }
    match water_filling::draw(plan, picker, request, has_room) {
        water_filling::DrawOutcome::Member(index) => Some(index),
        water_filling::DrawOutcome::Full => None,
        water_filling::DrawOutcome::Unknown => {
            let is_at_limit = |member: &Member| {
                plan.has_admission()
                    && member.current_report(request.now).is_some()
                    && member.is_at_limit(request.now)
            };
            let has_room: Eligible<'_> = &|member| has_room(member) && !is_at_limit(member);
            silent_members::choose(plan, picker, request, has_room)
        }
    }
}

/// Returns a member without load reports for its turn beside members with them. It is drawn at random, and
/// taken if nothing is in flight there from here and it has not been slower than the others lately.
fn pick_unreported(members: &[Member], picker: &PickerState, request: &PickRequest) -> Option<usize> {
    let index = (((request.random_bits >> 32) * members.len() as u64) >> 32) as usize;
    let member = &members[index];
    if member.vitals.awaiting() > 0 || member.current_report(request.now).is_some() {
        return None;
    }
    let is_worthwhile = match member.vitals.latency_and_age(request.now) {
        Some((latency, age)) => latency <= picker.latency || age > LATENCY_EXPIRY_NANOS,
        None => true,
    };
    is_worthwhile.then_some(index)
}

fn record_reading(picker: &mut PickerState, member: &Member, reading: &Reading, now: Time) {
    picker.has_reports = true;
    if !member.vitals.last_report.record(reading, member.vitals.begun(), now) {
        return;
    }
    if reading.in_flight > 0 {
        // The request being answered counts here until its end; the member does not count it any more.
        let own_in_flight = f64::from(member.vitals.awaiting().saturating_sub(1));
        let elsewhere = (1.0 - own_in_flight / f64::from(reading.in_flight)).max(0.0);
        picker.elsewhere_share += (elsewhere - picker.elsewhere_share) / SHARE_SAMPLES;
    }
    if !reading.slot {
        return;
    }
    let queue = f64::from(reading.in_flight) + 1.0;
    let cost = cost(reading, queue, failure_penalty(member, picker.failing()));
    let cost = cost + unreported_latency(member, cost, || 0.0, now);
    // Not by way of u128, whose conversion no processor supports.
    let until = now + Duration::from_nanos((f64::from(reading.sojourn) * 1e9) as u64);
    picker.keep_slot(member.id, cost as f32, until, now);
}

fn explain(plan: &Plan, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
    let mut figures = Vec::new();
    if let Some((latency, _)) = member.vitals.latency_and_age(now) {
        figures.push(("latency_ms", f64::from(latency) / 1e6));
    }
    let detector = &member.vitals.failure_detector;
    figures.extend([("suspicion", detector.sum()), ("failing_at_least", detector.failure_share())]);
    let limit = member.concurrency_limit(now).filter(|_| plan.has_admission()).map(f64::from);
    let Some(view) = member.current_report(now) else {
        figures.extend(limit.map(|limit| ("limit", limit)));
        // Without load reports, requests in flight and their latency decide; both are shown anyway.
        let reporting_count =
            plan.members().iter().filter(|member| member.current_report(now).is_some()).count();
        figures.push(("members_that_speak", reporting_count as f64));
        return figures;
    };
    let reading = &view.reading;
    let queue = member.estimated_queue(&view, now);
    figures.push(("knee", f64::from(reading.knee)));
    figures.extend(limit.map(|limit| ("limit", limit)));
    figures.extend([
        ("work_ms", f64::from(reading.work) * 1e3),
        ("sojourn_ms", f64::from(reading.sojourn) * 1e3),
        ("mean_in_flight", f64::from(reading.mean_in_flight)),
        ("queue", queue),
        ("cost_ms", cost(reading, queue, failure_penalty(member, 0.0)) * 1e3),
        ("heard_ms_ago", now.since(view.at).as_secs_f64() * 1e3),
    ]);
    figures
}

/// Returns the expected latency of a request at a member with `queue` requests, seconds.
fn cost(reading: &Reading, queue: f64, penalty: f64) -> f64 {
    smooth_max(f64::from(reading.work) * penalty, f64::from(reading.knee), queue)
}

/// Returns `floor * sqrt(1 + (queue / knee)^2)`: the work alone (`floor`, seconds) below the knee, a multiple
/// in proportion to the queue above it, and a smooth bend between.
fn smooth_max(floor: f64, knee: f64, queue: f64) -> f64 {
    let relative_queue = queue / knee;
    floor * libm::sqrt(1.0 + relative_queue * relative_queue)
}

/// Returns the expected latency beyond the reported cost `said`, seconds. The member may be distant, report
/// wrongly, or have become busier since.
///
/// Observations vary, so beside a fresh report only a latency of several times the reported cost counts. As
/// the report fades (`faded`, 0 to 1), the observation replaces it where it is higher. A lower one may be
/// chance, or the member may not have been used while it was busy. Failures are part of the observation.
/// While several requests are unanswered, the time of waiting counts as well.
fn unreported_latency(member: &Member, reported: f64, weight: impl FnOnce() -> f64, now: Time) -> f64 {
    let (observed, age) = member.vitals.latency_and_age(now).unwrap_or_default();
    let observed = f64::from(observed) * 1e-9;
    let excess = observed - reported;
    let latency_excess =
        if excess > 0.0 { (weight() * excess).max(observed - TRUSTED_RATIO * reported) } else { 0.0 };
    if age < SILENCE_NANOS {
        return latency_excess;
    }
    latency_excess.max(member.vitals.excess_silence(reported * 1e9, now) * 1e-9 - TRUSTED_RATIO * reported)
}

/// Returns the factor by which failures make a member look slower: `1 / good^2`. Here `good` is the share of
/// its requests that does not fail, beyond the failures of the whole fleet.
fn failure_penalty(member: &Member, failure_share: f64) -> f64 {
    let member_share = member.vitals.failure_detector.failure_share();
    if member_share <= failure_share {
        return 1.0;
    }
    let success_share = (1.0 - (member_share - failure_share)).max(0.01);
    1.0 / (success_share * success_share)
}

/// The multiple of the reported cost above which the observed latency counts instead.
const TRUSTED_RATIO: f64 = 4.0;

/// The number of load reports over which the share of requests from elsewhere is averaged.
const SHARE_SAMPLES: f64 = 64.0;

/// The time without an answer that is normal for a server now and then, nanoseconds.
const SILENCE_NANOS: u64 = 200_000_000;

/// The time after which a slow member without load reports is tried again, nanoseconds.
const LATENCY_EXPIRY_NANOS: u64 = 1_000_000_000;
