//! The explanation of a load line: the numbers, a sentence, and a verdict on their reliability.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::QUANTILES;
use super::accuracy::PredictionAccuracy;
use super::curve::{self, ServiceDistribution, Station};
use super::group_capacity::{CapacityRange, GroupCapacity};
use super::member_estimate::MemberEstimator;
use crate::status::{LoadLine, PredictedLatency, WhatIf};

/// The inputs of the numbers.
pub(super) struct LoadLineInputs<'a> {
    pub(super) group: &'a GroupCapacity,
    pub(super) shape: &'a ServiceDistribution,
    /// The anchor of each of [`QUANTILES`]; 0 for none.
    pub(super) anchors: [f64; 2],
    /// The present requests a second.
    pub(super) rate: f64,
    /// The maximum of those by the balancer; infinite if unknown.
    pub(super) balancer: f64,
    /// The requests a second that were served just now, if that is a lower end; else 0.
    pub(super) served: f64,
}

/// Returns a load line without a number: at most its lower end, and the reason.
pub(super) fn unknown(rate: f64, min_capacity: f64, reason: &str) -> LoadLine {
    LoadLine {
        requests_per_second: rate,
        capacity_low: Some(min_capacity).filter(|capacity| *capacity > 0.0),
        verdict: "unknown".to_string(),
        why: reason.to_string(),
        ..LoadLine::default()
    }
}

/// Returns the reason why members are not known.
pub(super) fn unknown_reason<'g>(estimators: impl Iterator<Item = &'g MemberEstimator>) -> String {
    let (mut count, mut low, mut unbounded, mut has_reports) = (0, 0.0, false, false);
    let (mut host_count, mut other_work, mut all_waiting) = (0, 0.0, true);
    for estimator in estimators {
        has_reports |= estimator.has_cpu_reports();
        if let Some(share) = estimator.uncertain_other_work() {
            host_count += 1;
            other_work += share;
            all_waiting &= estimator.has_unexplained_time();
        }
        let Some(estimate) = estimator.estimate else { continue };
        count += 1;
        low += estimate.low;
        unbounded |= estimate.high.is_infinite();
    }
    let min_note =
        if low > 0.0 { format!("; it is {low:.0} requests a second at least") } else { String::new() };
    if host_count > 0 {
        let other_percent = 100.0 * other_work / f64::from(host_count);
        let explanation = match all_waiting {
            true => {
                "requests wait for something else for most of their time, which may have a limit of its own"
            }
            false => "the load has not varied enough beside that to tell what a request costs",
        };
        return format!(
            "agents tell of whole hosts, of which other work keeps busy {other_percent:.0} % or so, and \
             {explanation}{min_note} (an agent with --cgroup \
             tells of the server alone)"
        );
    }
    match (count, unbounded, has_reports) {
        (0, _, false) => "too few requests so far, and no agent tells how busy processors are".to_string(),
        (0, _, true) => {
            "too few requests so far: what agents tell of processors has little to do with them yet"
                .to_string()
        }
        (_, true, false) => format!(
            "requests never had to wait, up to {low:.0} a second or so, and no agent tells how busy \
             processors are"
        ),
        (_, true, true) => format!(
            "requests never had to wait, up to {low:.0} a second or so, and the processors that agents tell \
             of have little to do \
             with how long they take"
        ),
        (_, false, false) => format!(
            "response times fit too many explanations; it is {low:.0} requests a second at least, and an \
             agent that tells \
             how busy processors are would say more"
        ),
        (_, false, true) => format!(
            "response times fit too many explanations; it is {low:.0} requests a second at least, and what \
             agents tell of \
             processors bounds it no further"
        ),
    }
}

/// Returns the reason for a range, where `guesses` members of `all` are unknown.
fn range_explanation(guessed_count: usize, member_count: usize, source: &str) -> String {
    match guessed_count {
        0 => format!("what is known is too vague for a number; from {source}"),
        _ if guessed_count == member_count => {
            "its members never had enough to do to tell what they can; they can do at \
                               least what they did, and the balancer itself bounds them"
                .to_string()
        }
        _ => format!(
            "{guessed_count} of {member_count} members never had enough to do to tell what they can; they \
             can do at least \
             what they did, and probably no more than the others make likely, which are known from {source}"
        ),
    }
}

/// The addition to the sources if the balancer's other traffic hides its own capacity.
pub(super) const MIXED_TRAFFIC_NOTE: &str =
    "; what the balancer itself can do is unknown: it carries tcp or udp beside requests all the time";

impl LoadLineInputs<'_> {
    /// Returns the whole load line.
    pub(super) fn load_line(
        &self,
        capacity_range: CapacityRange,
        accuracy: &PredictionAccuracy,
        source: &str,
    ) -> LoadLine {
        let stations = self.group.stations();
        let member_capacity =
            self.group.capacity_range(f64::INFINITY).map_or(0.0, |capacity_range| capacity_range.best);
        let limited_by_members = member_capacity <= self.balancer;
        let capacity = capacity_range.best.max(self.served);
        let load_line = LoadLine {
            requests_per_second: self.rate,
            balancer_capacity: Some(self.balancer).filter(|limit| limit.is_finite()),
            error: accuracy.error,
            predictions_checked: accuracy.checked,
            checked_up_to: accuracy.up_to,
            what_if: self.what_if(),
            ..LoadLine::default()
        };
        if !capacity_range.proven {
            let guessed_count = self.group.members.iter().filter(|member| member.from_peers).count();
            return LoadLine {
                capacity_low: Some(capacity_range.low.max(self.served)),
                capacity_high: Some(capacity_range.high.max(self.served)),
                verdict: "range".to_string(),
                why: range_explanation(guessed_count, self.group.members.len(), source),
                ..load_line
            };
        }
        let prediction = |load: &f64| PredictedLatency {
            load: *load,
            requests_per_second: load * capacity,
            p50: self.quantile(&stations, load * capacity, 0),
            p99: self.quantile(&stations, load * capacity, 1),
        };
        // An interval is no narrower than the error of predictions; the present rate can be carried.
        let margin = ERROR_MARGIN * accuracy.error.unwrap_or(0.0);
        let low = capacity_range.low.min((capacity / (1.0 + margin)).max(self.rate.min(capacity_range.low)));
        let high = capacity_range.high.max((member_capacity * (1.0 + margin)).min(self.balancer));
        LoadLine {
            capacity: Some(capacity),
            capacity_low: Some(low.max(self.served)),
            capacity_high: Some(high.max(self.served)),
            headroom: Some(1.0 - self.rate / capacity),
            limited_by: if limited_by_members { "members" } else { "balancer" }.to_string(),
            verdict: verdict(accuracy).to_string(),
            why: if limited_by_members {
                format!("from {source}")
            } else {
                "the balancer's own processors are full before the members are".to_string()
            },
            predicted: PREDICTED_LOADS.iter().map(prediction).collect(),
            ..load_line
        }
    }

    fn what_if(&self) -> Vec<WhatIf> {
        let larger_group = self.group.plus_one();
        let smaller_group = self.group.minus_one();
        let description = if smaller_group.is_some() {
            "without the member that can do most"
        } else {
            "without its only usable member"
        };
        let changes = [
            ("minus_one", description, smaller_group.as_ref(), 1.0),
            ("plus_one", "with one more like the median member", larger_group.as_ref(), 1.0),
            ("double", "with twice the traffic", Some(self.group), 2.0),
        ];
        let evaluate = |(change, about, group, factor): (&str, &str, Option<&GroupCapacity>, f64)| {
            let no_capacity = CapacityRange { low: 0.0, best: 0.0, high: 0.0, proven: true };
            let capacity_range =
                group.and_then(|group| group.capacity_range(self.balancer)).unwrap_or(no_capacity);
            let load = self.rate * factor;
            let mut what_if =
                WhatIf { change: change.to_string(), about: about.to_string(), ..WhatIf::default() };
            if !capacity_range.proven {
                // Certain only if both ends agree.
                what_if.over = [(load >= capacity_range.high, true), (load < capacity_range.low, false)]
                    .into_iter()
                    .find_map(|(is_certain, is_over)| is_certain.then_some(is_over));
                return what_if;
            }
            let is_over = load >= capacity_range.best;
            what_if.capacity = Some(capacity_range.best);
            what_if.headroom =
                Some(if capacity_range.best > 0.0 { 1.0 - load / capacity_range.best } else { -1.0 });
            what_if.over = Some(is_over);
            let stations = group.map(GroupCapacity::stations).unwrap_or_default();
            what_if.p99 = if is_over { None } else { self.quantile(&stations, load, 1) };
            what_if
        };
        changes.into_iter().map(evaluate).collect()
    }

    /// Returns a percentile at a load, anchored.
    fn quantile(&self, stations: &[Station], load: f64, index: usize) -> Option<f64> {
        let anchor = self.anchors[index];
        let seconds = curve::quantile(stations, load, self.shape, QUANTILES[index])?;
        Some(if anchor > 0.0 { seconds * anchor } else { seconds })
    }
}

/// Returns the verdict on its reliability.
fn verdict(accuracy: &PredictionAccuracy) -> &'static str {
    match accuracy.error {
        // Far below the knee every prediction fits.
        _ if accuracy.up_to < MIN_CHECKED_LOAD => "unproven",
        None => "unproven",
        Some(error) if error <= GOOD_ERROR => "good",
        Some(error) if error <= FAIR_ERROR => "fair",
        Some(_) => "poor",
    }
}

/// The loads at which times are predicted, as shares of the capacity.
const PREDICTED_LOADS: [f64; 3] = [0.5, 0.8, 0.95];

/// The mean errors that an interval covers to either side: of a normal error 1.6 standard deviations, nine of
/// ten.
const ERROR_MARGIN: f64 = 2.0;

/// The utilization to which a prediction must have been tested.
const MIN_CHECKED_LOAD: f64 = 0.5;

/// The errors of good and of fair predictions.
const GOOD_ERROR: f64 = 0.1;
const FAIR_ERROR: f64 = 0.25;
