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
pub(super) fn unknown(rate: f64, least: f64, why: &str) -> LoadLine {
    LoadLine {
        requests_per_second: rate,
        capacity_low: Some(least).filter(|least| *least > 0.0),
        verdict: "unknown".to_string(),
        why: why.to_string(),
        ..LoadLine::default()
    }
}

/// Returns the reason why members are not known.
pub(super) fn unknown_reason<'g>(gauges: impl Iterator<Item = &'g MemberEstimator>) -> String {
    let (mut count, mut low, mut open, mut told) = (0, 0.0, false, false);
    let (mut hosts, mut other, mut waits) = (0, 0.0, true);
    for gauge in gauges {
        told |= gauge.has_cpu_reports();
        if let Some(share) = gauge.uncertain_other_work() {
            hosts += 1;
            other += share;
            waits &= gauge.has_unexplained_time();
        }
        let Some(estimate) = gauge.estimate else { continue };
        count += 1;
        low += estimate.low;
        open |= estimate.high.is_infinite();
    }
    let least =
        if low > 0.0 { format!("; it is {low:.0} requests a second at least") } else { String::new() };
    if hosts > 0 {
        let other = 100.0 * other / f64::from(hosts);
        let but = match waits {
            true => {
                "requests wait for something else for most of their time, which may have a limit of its own"
            }
            false => "the load has not varied enough beside that to tell what a request costs",
        };
        return format!(
            "agents tell of whole hosts, of which other work keeps busy {other:.0} % or so, and {but}{least} \
             (an agent with --cgroup \
             tells of the server alone)"
        );
    }
    match (count, open, told) {
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
fn range(guesses: usize, all: usize, source: &str) -> String {
    match guesses {
        0 => format!("what is known is too vague for a number; from {source}"),
        _ if guesses == all => "its members never had enough to do to tell what they can; they can do at \
                               least what they did, and the balancer itself bounds them"
            .to_string(),
        _ => format!(
            "{guesses} of {all} members never had enough to do to tell what they can; they can do at least \
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
        reach: CapacityRange,
        record: &PredictionAccuracy,
        source: &str,
    ) -> LoadLine {
        let stations = self.group.stations();
        let members = self.group.capacity_range(f64::INFINITY).map_or(0.0, |reach| reach.best);
        let by_members = members <= self.balancer;
        let capacity = reach.best.max(self.served);
        let said = LoadLine {
            requests_per_second: self.rate,
            balancer_capacity: Some(self.balancer).filter(|most| most.is_finite()),
            error: record.error,
            predictions_checked: record.checked,
            checked_up_to: record.up_to,
            what_if: self.what_if(),
            ..LoadLine::default()
        };
        if !reach.proven {
            let guesses = self.group.members.iter().filter(|mate| mate.from_peers).count();
            return LoadLine {
                capacity_low: Some(reach.low.max(self.served)),
                capacity_high: Some(reach.high.max(self.served)),
                verdict: "range".to_string(),
                why: range(guesses, self.group.members.len(), source),
                ..said
            };
        }
        let predicted = |load: &f64| PredictedLatency {
            load: *load,
            requests_per_second: load * capacity,
            p50: self.quantile(&stations, load * capacity, 0),
            p99: self.quantile(&stations, load * capacity, 1),
        };
        // An interval is no narrower than the error of predictions; the present rate can be carried.
        let off = COVERS * record.error.unwrap_or(0.0);
        let low = reach.low.min((capacity / (1.0 + off)).max(self.rate.min(reach.low)));
        let high = reach.high.max((members * (1.0 + off)).min(self.balancer));
        LoadLine {
            capacity: Some(capacity),
            capacity_low: Some(low.max(self.served)),
            capacity_high: Some(high.max(self.served)),
            headroom: Some(1.0 - self.rate / capacity),
            limited_by: if by_members { "members" } else { "balancer" }.to_string(),
            verdict: verdict(record).to_string(),
            why: if by_members {
                format!("from {source}")
            } else {
                "the balancer's own processors are full before the members are".to_string()
            },
            predicted: LOADS.iter().map(predicted).collect(),
            ..said
        }
    }

    fn what_if(&self) -> Vec<WhatIf> {
        let more = self.group.plus_one();
        let less = self.group.minus_one();
        let without = if less.is_some() {
            "without the member that can do most"
        } else {
            "without its only usable member"
        };
        let what = [
            ("minus_one", without, less.as_ref(), 1.0),
            ("plus_one", "with one more like the median member", more.as_ref(), 1.0),
            ("double", "with twice the traffic", Some(self.group), 2.0),
        ];
        let of = |(change, about, crew, times): (&str, &str, Option<&GroupCapacity>, f64)| {
            let nobody = CapacityRange { low: 0.0, best: 0.0, high: 0.0, proven: true };
            let reach = crew.and_then(|crew| crew.capacity_range(self.balancer)).unwrap_or(nobody);
            let load = self.rate * times;
            let mut said =
                WhatIf { change: change.to_string(), about: about.to_string(), ..WhatIf::default() };
            if !reach.proven {
                // Certain only if both ends agree.
                said.over = [(load >= reach.high, true), (load < reach.low, false)]
                    .into_iter()
                    .find_map(|(sure, over)| sure.then_some(over));
                return said;
            }
            let over = load >= reach.best;
            said.capacity = Some(reach.best);
            said.headroom = Some(if reach.best > 0.0 { 1.0 - load / reach.best } else { -1.0 });
            said.over = Some(over);
            let stations = crew.map(GroupCapacity::stations).unwrap_or_default();
            said.p99 = if over { None } else { self.quantile(&stations, load, 1) };
            said
        };
        what.into_iter().map(of).collect()
    }

    /// Returns a percentile at a load, anchored.
    fn quantile(&self, stations: &[Station], load: f64, which: usize) -> Option<f64> {
        let anchor = self.anchors[which];
        let seconds = curve::quantile(stations, load, self.shape, QUANTILES[which])?;
        Some(if anchor > 0.0 { seconds * anchor } else { seconds })
    }
}

/// Returns the verdict on its reliability.
fn verdict(record: &PredictionAccuracy) -> &'static str {
    match record.error {
        // Far below the knee every prediction fits.
        _ if record.up_to < TRIED => "unproven",
        None => "unproven",
        Some(error) if error <= GOOD => "good",
        Some(error) if error <= FAIR => "fair",
        Some(_) => "poor",
    }
}

/// The loads at which times are predicted, as shares of the capacity.
const LOADS: [f64; 3] = [0.5, 0.8, 0.95];

/// The mean errors that an interval covers to either side: of a normal error 1.6 standard deviations, nine of
/// ten.
const COVERS: f64 = 2.0;

/// The utilization to which a prediction must have been tested.
const TRIED: f64 = 0.5;

/// The errors of good and of fair predictions.
const GOOD: f64 = 0.1;
const FAIR: f64 = 0.25;
