//! The capacity of one member from all its evidence, weighed.
//!
//! There are three sources, each with an interval: the processors by an agent's report (`utilization`), the
//! knee and the work of a request by the member's own meter, and response times by requests in flight
//! (`knee_fit`). The narrowest interval counts, within those of the others. If another interval lies wholly
//! below, that one holds: a request needs threads *and* processors, and the scarcer resource decides.
//! Processors bound a member only from above if a request's processor time is a small part of its time alone:
//! the rest may have a limit of its own that was not reached yet.
//!
//! `host_regression` handles reports of a whole host, which include other work; `utilization` those of the
//! server alone. Members that share a host have a part of it each: that of their requests in all balanced
//! requests there. A request of another member counts as more in proportion to its longer time.
//!
//! Requests of other balancers use its processors as well. The cost of a request follows from all of them,
//! and the remainder is this balancer's. Response times by requests in flight from here account for the
//! others by themselves.
//!
//! The rate of a window is a lower end whatever the sources. A member without a source has no other evidence
//! here; `peer_capacity` estimates the rest from other members.

use alloc::vec::Vec;

use super::concurrency::LatencyByConcurrency;
use super::curve::ServiceDistribution;
use super::host_regression::{HostEstimate, HostRegression, REPORTED_OTHER_WORK};
use super::knee_fit;
use super::utilization::{CpuUtilization, ThroughputBound, UtilizationFit};
use super::{CohostedWork, MemberLoadSample, MeterReport, decay_factor};
use crate::Time;

/// The evidence of one member.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberEstimator {
    /// The requests, failures and seconds at the last look.
    last: Option<(u64, u64, f64)>,
    table: LatencyByConcurrency,
    utilization: UtilizationFit,
    host_regression: HostRegression,
    /// Whether the last report was that of a whole host.
    whole_host: bool,
    /// The work of others that share its host, up to the last look and recently, and its own requests and
    /// their seconds.
    cohosted: CohostedWork,
    shared: [f64; 4],
    /// The recent requests a second that other balancers send to it.
    elsewhere: f64,
    /// The share of its host that other work keeps busy, and whether that varies.
    other_work: Option<f64>,
    other_work_varies: bool,
    /// Whether there is certainly hardly any other work, or no report of a host.
    no_other_work: bool,
    meter_report: Option<MeterReport>,
    /// The time of measurement of the last report of the processors.
    cpu_reported_at: Option<Time>,
    window: LoadWindow,
    /// The requests, their seconds, and the seconds, over the last seconds.
    recent: [f64; 3],
    /// The requests over the last minutes, since the last change of the members.
    pub(super) long_term_requests: f64,
    /// The recent maximum of the requests a second served for a window.
    peak: f64,
    pub(super) base: BaseServiceTime,
    pub(super) estimate: Option<CapacityEstimate>,
}

/// The counts of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadWindow {
    pub(super) seconds: f64,
    pub(super) requests: f64,
    /// The seconds that the requests took.
    pub(super) request_seconds: f64,
    /// The requests a second of the looks in it.
    min_rate: f64,
    max_rate: f64,
    looks: f64,
    unsound: bool,
    /// The requests of others that share its host, and of other balancers.
    cohosted_requests: f64,
    elsewhere: f64,
    shares: f64,
    reports: f64,
    processors: Option<f64>,
}

/// The seconds that a request takes alone, averaged over windows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BaseServiceTime {
    sum: f64,
    weight: f64,
}

/// The capacity of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CapacityEstimate {
    /// The requests a second; the upper end may be infinite.
    pub(super) low: f64,
    pub(super) best: f64,
    pub(super) high: f64,
    /// The simultaneous requests without waiting.
    pub(super) servers: f64,
    pub(super) shared: bool,
    /// The source, for display.
    pub(super) source: &'static str,
}

impl CapacityEstimate {
    /// Returns `true` if it is narrow enough for a number.
    pub(super) fn known(&self) -> bool {
        self.high <= WIDE * self.low
    }
}

impl BaseServiceTime {
    /// Adds the result of a window.
    pub(super) fn add(&mut self, seconds: f64, weight: f64, kept: f64) {
        self.sum = self.sum * kept + seconds * weight;
        self.weight = self.weight * kept + weight;
    }

    pub(super) fn seconds(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

impl LoadWindow {
    /// Adds a look of `seconds`.
    pub(super) fn add(&mut self, requests: f64, took: f64, seconds: f64, sound: bool) {
        let rate = requests / seconds;
        self.min_rate = if self.looks > 0.0 { self.min_rate.min(rate) } else { rate };
        self.max_rate = self.max_rate.max(rate);
        self.looks += 1.0;
        self.seconds += seconds;
        self.requests += requests;
        self.request_seconds += took;
        self.unsound |= !sound;
    }

    /// Returns the requests a second.
    pub(super) fn rate(&self) -> f64 {
        self.requests / self.seconds.max(1e-9)
    }

    /// Returns `true` if the load was constant, except for chance, and requests succeeded.
    pub(super) fn is_steady(&self) -> bool {
        let chance = libm::sqrt(self.rate() * self.looks / self.seconds.max(1e-9));
        !self.unsound && self.max_rate - self.min_rate <= SAME * self.rate() + CHANCE * chance
    }
}

impl MemberEstimator {
    /// Takes a look after `seconds`. Returns the ended requests, the time that they took, and the failed
    /// ones.
    pub(super) fn observe(&mut self, seen: &MemberLoadSample<'_>, seconds: f64) -> (f64, f64, f64) {
        let counts = (seen.requests, seen.failures, seen.seconds);
        let beside = core::mem::replace(&mut self.cohosted, seen.cohosted);
        let Some((requests, failures, took)) = self.last.replace(counts) else {
            self.table.observe(seen.levels, 1.0, false);
            return (0.0, 0.0, 0.0);
        };
        let ended = seen.requests.wrapping_sub(requests) as f64;
        let failed = seen.failures.wrapping_sub(failures) as f64;
        let took = (seen.seconds - took).max(0.0);
        let sound = failed <= MAX_FAILURE_SHARE * ended;
        // A level that is counted a moment before its request shows with the next request that ends.
        if ended > 0.0 {
            self.table.observe(seen.levels, decay_factor(seconds, super::MEMORY), sound);
        }
        self.window.add(ended, took, seconds, sound);
        self.window.elsewhere += seen.rate_elsewhere * seconds;
        let kept = decay_factor(seconds, super::RECENT);
        self.elsewhere = self.elsewhere * kept + seen.rate_elsewhere * (1.0 - kept);
        self.meter_report = seen.meter_report;
        if let Some((cpu, at)) = seen.cpu.filter(|(_, at)| self.cpu_reported_at.is_none_or(|told| *at > told))
        {
            self.cpu_reported_at = Some(at);
            self.whole_host = cpu.whole_host;
            self.window.shares += cpu.share;
            self.window.reports += 1.0;
            self.window.processors = cpu.processors;
        }
        self.long_term_requests = self.long_term_requests * decay_factor(seconds, super::MEMORY) + ended;
        let others = seen.cohosted.requests.wrapping_sub(beside.requests) as f64;
        let theirs = (seen.cohosted.seconds - beside.seconds).max(0.0);
        // A new member brings all its earlier counts.
        let others = if seen.cohosted.members == beside.members { [others, theirs] } else { [0.0; 2] };
        self.window.cohosted_requests += others[0];
        let kept = decay_factor(seconds, super::MEMORY);
        for (shared, fresh) in self.shared.iter_mut().zip([ended, took, others[0], others[1]]) {
            *shared = *shared * kept + fresh;
        }
        let kept = decay_factor(seconds, super::RECENT);
        for (recent, fresh) in self.recent.iter_mut().zip([ended, took, seconds]) {
            *recent = *recent * kept + fresh;
        }
        (ended, took, failed)
    }

    /// Returns the evidence of a member that has done nothing so far.
    pub(super) fn idle() -> Self {
        Self { last: Some((0, 0, 0.0)), table: LatencyByConcurrency::idle(), ..Self::default() }
    }

    /// Returns `true` if that many requests were counted at the last look.
    pub(super) fn is_current(&self, requests: u64) -> bool {
        self.last.is_some_and(|(known, ..)| known == requests)
    }

    /// Restarts its share after a change of the members.
    pub(super) fn restart_share(&mut self) {
        self.long_term_requests = 0.0;
    }

    /// Returns `true` if an agent ever reported its processors.
    pub(super) fn has_cpu_reports(&self) -> bool {
        self.cpu_reported_at.is_some()
    }

    /// Returns the recent requests a second.
    pub(super) fn rate(&self) -> f64 {
        self.recent[0] / self.recent[2].max(1e-9)
    }

    /// Ends a window and returns it.
    pub(super) fn close_window(&mut self) -> LoadWindow {
        let window = core::mem::take(&mut self.window);
        let kept = decay_factor(window.seconds, super::MEMORY);
        self.host_regression.advance(window.seconds);
        self.peak *= kept;
        if !window.is_steady() || window.requests <= 0.0 {
            return window;
        }
        self.peak = self.peak.max(window.rate());
        if window.reports > 0.0 {
            let (share, processors) = (window.shares / window.reports, window.processors);
            // The requests of all balancers.
            let all = window.rate() + window.elsewhere / window.seconds.max(1e-9);
            if self.whole_host {
                let others = window.cohosted_requests / window.seconds.max(1e-9);
                self.host_regression.add(all + others * self.cohosted_cost_ratio(), share, processors);
            } else {
                self.utilization.add(
                    all,
                    CpuUtilization { share, processors, whole_host: false },
                    window.seconds,
                    kept,
                );
            }
        }
        window
    }

    /// Returns the time of requests of others that share its host, as a multiple of its own.
    fn cohosted_cost_ratio(&self) -> f64 {
        let [requests, took, others, theirs] = self.shared;
        if took > 0.0 && others > 0.0 { theirs / others / (took / requests) } else { 0.0 }
    }

    /// Returns its part of the work of balanced requests on its host.
    fn host_share(&self) -> f64 {
        let [_, took, _, theirs] = self.shared;
        if took > 0.0 && theirs > 0.0 { took / (took + theirs) } else { 1.0 }
    }

    /// Returns the share of its host that other work keeps busy, if the report is that of a host and it is
    /// large.
    pub(super) fn other_work_share(&self) -> Option<f64> {
        self.other_work.filter(|other| *other >= REPORTED_OTHER_WORK)
    }

    /// Returns the share of its host that other work keeps busy, or 0, if it is not certainly small and its
    /// capacity is unknown.
    pub(super) fn uncertain_other_work(&self) -> Option<f64> {
        let unknown = self.estimate.is_none_or(|estimate| !estimate.known());
        self.other_work.filter(|_| unknown && !self.no_other_work)
    }

    /// Returns `true` if nothing is known although the cost of a request is: the rest of its time may have a
    /// limit of its own.
    pub(super) fn has_unexplained_time(&self) -> bool {
        self.estimate.is_none()
    }

    /// Returns the bound of its processors, as far as that is known.
    fn processors(&mut self) -> Option<ThroughputBound> {
        (self.other_work, self.other_work_varies, self.no_other_work) = (None, false, true);
        if !self.whole_host {
            return self.utilization.bound();
        }
        let HostEstimate { bound, other_work: other, other_work_varies: restless, no_other_work: alone } =
            self.host_regression.estimate(self.quickest())?;
        (self.other_work, self.other_work_varies, self.no_other_work) = (Some(other), restless, alone);
        let part = self.host_share();
        let processors = bound.processors.map(|(count, demand)| (count * part, demand));
        let (low, best, high) = (bound.low * part, bound.best * part, bound.high * part);
        Some(ThroughputBound { low, best, high, processors })
    }

    /// Returns the maximum seconds that a request takes at low concurrency.
    fn quickest(&self) -> Option<f64> {
        self.table.low_concurrency_mean(self.host_regression.processors().unwrap_or(1.0), ALONE)
    }

    /// Returns the seconds that a request takes at the lowest concurrency seen.
    pub(super) fn base_latency(&self) -> Option<f64> {
        self.table.low_concurrency_mean(1.0, LEAST_ALONE)
    }

    /// Returns the bounds of its capacity that its own requests show.
    pub(super) fn observed_bounds(&self) -> (f64, f64) {
        self.estimate.map_or((self.peak, f64::INFINITY), |estimate| (estimate.low, estimate.high))
    }

    /// Computes its capacity.
    pub(super) fn update_estimate(&mut self, shape: &ServiceDistribution) {
        let fit = knee_fit::fit(&self.table.rows(LEAST), shape.variation, self.rate());
        let mut known: Vec<CapacityEstimate> = Vec::new();
        let processors = self.processors().map(|bound| {
            let (low, best, high) = (self.own(bound.low), self.own(bound.best), self.own(bound.high));
            ThroughputBound { low, best, high, ..bound }
        });
        let mut above = f64::INFINITY;
        let lines = fit.is_some_and(|fit| !fit.shared && fit.high <= WIDE * fit.low);
        if let Some(bound) = processors {
            match self.bounds(&bound) {
                Some((servers, ..)) => known.push(CapacityEstimate {
                    low: bound.low,
                    best: bound.best,
                    high: bound.high,
                    servers,
                    shared: !lines,
                    source: match self.other_work_share() {
                        Some(_) => "how busy its host's processors are, less what is other work there",
                        None => "how busy its processors are",
                    },
                }),
                None => above = bound.high,
            }
        }
        if let Some(MeterReport { knee, work }) =
            self.meter_report.filter(|said| said.knee >= 1.0 && said.work > 0.0)
        {
            let best = self.own(knee / work);
            let (low, high) = (best / METER.0, best * METER.1);
            let source = "what it says of itself with its answers";
            known.push(CapacityEstimate { low, best, high, servers: knee, shared: !lines, source });
        }
        // With varying other work on the processors, times do not grow with the requests alone.
        if let Some(fit) = fit.filter(|_| !self.other_work_varies && self.other_work_share().is_none()) {
            known.push(CapacityEstimate {
                low: fit.low,
                best: fit.best.max(fit.low),
                high: fit.high,
                servers: fit.servers.max(1.0),
                shared: fit.shared,
                source: "how its response times grow with the requests that it has",
            });
        }
        // The rate served during less other work is no lower end.
        let peak = if self.other_work_varies { 0.0 } else { self.peak };
        self.estimate = weighed(&known).map(|estimate| bounded(estimate, above, peak));
    }

    /// Returns the part of its total capacity that other balancers leave, and at least its present rate for
    /// this one.
    fn own(&self, all: f64) -> f64 {
        (all - self.elsewhere).max(self.rate().min(all))
    }

    /// Returns the processors and the processor seconds of a request, if those are a significant part of its
    /// time.
    fn bounds(&self, bound: &ThroughputBound) -> Option<(f64, f64)> {
        let (processors, demand) = bound.processors?;
        let alone = self.table.mean_up_to(processors, LEAST_ALONE).or_else(|| {
            let (requests, took) = (self.recent[0], self.recent[1]);
            (requests > LEAST_ALONE).then(|| took / requests)
        })?;
        // Other work prolongs all of it.
        let alone = alone * (1.0 - self.other_work.unwrap_or(0.0));
        (demand >= PART * alone).then_some((processors.max(1.0), demand))
    }
}

/// Returns the narrowest interval, within the others; or another that lies wholly below.
fn weighed(known: &[CapacityEstimate]) -> Option<CapacityEstimate> {
    let wide = |estimate: &CapacityEstimate| estimate.high / estimate.low;
    let mut chosen = *known.iter().min_by(|one, other| wide(one).total_cmp(&wide(other)))?;
    for other in known {
        if other.high * CLEARLY < chosen.low {
            chosen = *other;
        } else if other.low <= chosen.high && other.high >= chosen.low {
            (chosen.low, chosen.high) = (chosen.low.max(other.low), chosen.high.min(other.high));
            chosen.best = chosen.best.clamp(chosen.low, chosen.high);
        }
    }
    Some(chosen)
}

/// Limits an estimate to at most `above`, and at least the served rate.
fn bounded(mut estimate: CapacityEstimate, above: f64, peak: f64) -> CapacityEstimate {
    for end in [&mut estimate.low, &mut estimate.best, &mut estimate.high] {
        *end = end.min(above).max(peak);
    }
    estimate
}

/// The greatest ratio of the ends of an interval that counts as a number.
const WIDE: f64 = 3.0;

/// The errors of members' knees: within a third for processors, and between half and one and a half for
/// queues (docs/decisions/0004). They may be too large by the first factor. They may be too small by two,
/// which is reduced here so that [`WIDE`] still accepts it as a number.
const METER: (f64, f64) = (1.5, 1.98);

/// The minimum share of processor time in a request's time alone if processors are the limit.
const PART: f64 = 0.3;

/// The factor by which the upper end of a source must lie below another to overrule it.
const CLEARLY: f64 = 1.25;

/// The number of requests at a level, and of those alone, that make a mean.
const LEAST: f64 = 3.0;
const LEAST_ALONE: f64 = 20.0;

/// The number of requests that make a mean of the time that bounds the cost of one.
const ALONE: f64 = 100.0;

/// The share of failures above which response times do not count: rejections are fast.
pub(super) const MAX_FAILURE_SHARE: f64 = 0.05;

/// The difference of looks under a constant load: a share of it, and a multiple of chance.
const SAME: f64 = 0.3;
const CHANCE: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemberId;

    fn estimate(low: f64, best: f64, high: f64) -> CapacityEstimate {
        CapacityEstimate { low, best, high, servers: 2.0, shared: true, source: "" }
    }

    #[test]
    fn the_narrowest_counts_within_the_others_and_a_lower_limit_overrules_it() {
        let cpu = estimate(90.0, 95.0, 105.0);
        assert_eq!(weighed(&[estimate(93.0, 120.0, f64::INFINITY), cpu]), Some(estimate(93.0, 95.0, 105.0)));
        assert_eq!(weighed(&[cpu, estimate(40.0, 50.0, 60.0)]), Some(estimate(40.0, 50.0, 60.0)));
        assert_eq!(weighed(&[cpu, estimate(70.0, 75.0, 85.0)]), Some(cpu), "not clearly lower");
        assert_eq!(weighed(&[]), None);
    }

    /// Returns the evidence after two minutes of 50 requests a second from here, at a server of two
    /// processors that can serve 200. The reported utilization is the last argument.
    fn minutes(elsewhere: f64, told: f64) -> MemberEstimator {
        let mut gauge = MemberEstimator::idle();
        for second in 1..=120_u64 {
            let seen = MemberLoadSample {
                id: MemberId(1),
                usable: true,
                weight: 1.0,
                capacity: 1.0,
                requests: 50 * second,
                failures: 0,
                seconds: 0.5 * second as f64,
                levels: &[],
                meter_report: None,
                cpu: Some((
                    CpuUtilization { share: told, processors: Some(2.0), whole_host: false },
                    Time(1_000_000_000 * second),
                )),
                cohosted: CohostedWork::default(),
                rate_elsewhere: elsewhere,
            };
            gauge.observe(&seen, 1.0);
            if second % 5 == 0 {
                gauge.close_window();
                gauge.update_estimate(&ServiceDistribution::exponential());
            }
        }
        gauge
    }

    #[test]
    fn what_other_balancers_send_is_not_there_for_this_one() {
        let alone = minutes(0.0, 0.25).estimate.unwrap();
        assert!((alone.best / 200.0 - 1.0).abs() < 0.05, "{alone:?}");
        // 120 a second keep it busy, of which these are 50.
        let one_of_two = minutes(70.0, 0.6).estimate.unwrap();
        assert!((one_of_two.best / 130.0 - 1.0).abs() < 0.08, "{one_of_two:?}");
    }

    #[test]
    fn what_was_served_is_a_lower_end() {
        assert_eq!(bounded(estimate(90.0, 95.0, 100.0), 98.0, 97.0), estimate(97.0, 97.0, 98.0));
        assert!(estimate(90.0, 95.0, 105.0).known() && !estimate(10.0, 20.0, 40.0).known());
        assert!(!estimate(10.0, 20.0, f64::INFINITY).known());
    }
}
