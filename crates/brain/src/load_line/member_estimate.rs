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
    rate_elsewhere: f64,
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
    sample_count: f64,
    has_failures: bool,
    /// The requests of others that share its host, and of other balancers.
    cohosted_requests: f64,
    requests_elsewhere: f64,
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
        self.high <= MAX_KNOWN_RATIO * self.low
    }
}

impl BaseServiceTime {
    /// Adds the result of a window.
    pub(super) fn add(&mut self, seconds: f64, weight: f64, decay: f64) {
        self.sum = self.sum * decay + seconds * weight;
        self.weight = self.weight * decay + weight;
    }

    pub(super) fn seconds(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

impl LoadWindow {
    /// Adds a look of `seconds`.
    pub(super) fn add(&mut self, requests: f64, request_seconds: f64, seconds: f64, is_sound: bool) {
        let rate = requests / seconds;
        self.min_rate = if self.sample_count > 0.0 { self.min_rate.min(rate) } else { rate };
        self.max_rate = self.max_rate.max(rate);
        self.sample_count += 1.0;
        self.seconds += seconds;
        self.requests += requests;
        self.request_seconds += request_seconds;
        self.has_failures |= !is_sound;
    }

    /// Returns the requests a second.
    pub(super) fn rate(&self) -> f64 {
        self.requests / self.seconds.max(1e-9)
    }

    /// Returns `true` if the load was constant, except for chance, and requests succeeded.
    pub(super) fn is_steady(&self) -> bool {
        let deviation = libm::sqrt(self.rate() * self.sample_count / self.seconds.max(1e-9));
        !self.has_failures
            && self.max_rate - self.min_rate <= STEADY_TOLERANCE * self.rate() + NOISE_DEVIATIONS * deviation
    }
}

impl MemberEstimator {
    /// Takes a look after `seconds`. Returns the ended requests, the time that they took, and the failed
    /// ones.
    pub(super) fn observe(&mut self, sample: &MemberLoadSample<'_>, seconds: f64) -> (f64, f64, f64) {
        let counts = (sample.requests, sample.failures, sample.seconds);
        let previous_cohosted = core::mem::replace(&mut self.cohosted, sample.cohosted);
        let Some((requests, failures, previous_seconds)) = self.last.replace(counts) else {
            self.table.observe(sample.levels, 1.0, false);
            return (0.0, 0.0, 0.0);
        };
        let ended = sample.requests.wrapping_sub(requests) as f64;
        let failed = sample.failures.wrapping_sub(failures) as f64;
        let request_seconds = (sample.seconds - previous_seconds).max(0.0);
        let is_sound = failed <= MAX_FAILURE_SHARE * ended;
        // A level that is counted a moment before its request shows with the next request that ends.
        if ended > 0.0 {
            self.table.observe(sample.levels, decay_factor(seconds, super::LONG_HALF_LIFE), is_sound);
        }
        self.window.add(ended, request_seconds, seconds, is_sound);
        self.window.requests_elsewhere += sample.rate_elsewhere * seconds;
        let decay = decay_factor(seconds, super::RECENT_HALF_LIFE);
        self.rate_elsewhere = self.rate_elsewhere * decay + sample.rate_elsewhere * (1.0 - decay);
        self.meter_report = sample.meter_report;
        if let Some((cpu, at)) =
            sample.cpu.filter(|(_, at)| self.cpu_reported_at.is_none_or(|reported_at| *at > reported_at))
        {
            self.cpu_reported_at = Some(at);
            self.whole_host = cpu.whole_host;
            self.window.shares += cpu.share;
            self.window.reports += 1.0;
            self.window.processors = cpu.processors;
        }
        self.long_term_requests =
            self.long_term_requests * decay_factor(seconds, super::LONG_HALF_LIFE) + ended;
        let cohosted_requests = sample.cohosted.requests.wrapping_sub(previous_cohosted.requests) as f64;
        let cohosted_seconds = (sample.cohosted.seconds - previous_cohosted.seconds).max(0.0);
        // A new member brings all its earlier counts.
        let cohosted = if sample.cohosted.members == previous_cohosted.members {
            [cohosted_requests, cohosted_seconds]
        } else {
            [0.0; 2]
        };
        self.window.cohosted_requests += cohosted[0];
        let decay = decay_factor(seconds, super::LONG_HALF_LIFE);
        for (shared, increment) in
            self.shared.iter_mut().zip([ended, request_seconds, cohosted[0], cohosted[1]])
        {
            *shared = *shared * decay + increment;
        }
        let decay = decay_factor(seconds, super::RECENT_HALF_LIFE);
        for (recent, increment) in self.recent.iter_mut().zip([ended, request_seconds, seconds]) {
            *recent = *recent * decay + increment;
        }
        (ended, request_seconds, failed)
    }

    /// Returns the evidence of a member that has done nothing so far.
    pub(super) fn idle() -> Self {
        Self { last: Some((0, 0, 0.0)), table: LatencyByConcurrency::idle(), ..Self::default() }
    }

    /// Returns `true` if that many requests were counted at the last look.
    pub(super) fn is_current(&self, requests: u64) -> bool {
        self.last.is_some_and(|(last_requests, ..)| last_requests == requests)
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
        let decay = decay_factor(window.seconds, super::LONG_HALF_LIFE);
        self.host_regression.advance(window.seconds);
        self.peak *= decay;
        if !window.is_steady() || window.requests <= 0.0 {
            return window;
        }
        self.peak = self.peak.max(window.rate());
        if window.reports > 0.0 {
            let (share, processors) = (window.shares / window.reports, window.processors);
            // The requests of all balancers.
            let total_rate = window.rate() + window.requests_elsewhere / window.seconds.max(1e-9);
            if self.whole_host {
                let cohosted_rate = window.cohosted_requests / window.seconds.max(1e-9);
                self.host_regression.add(
                    total_rate + cohosted_rate * self.cohosted_cost_ratio(),
                    share,
                    processors,
                );
            } else {
                self.utilization.add(
                    total_rate,
                    CpuUtilization { share, processors, whole_host: false },
                    window.seconds,
                    decay,
                );
            }
        }
        window
    }

    /// Returns the time of requests of others that share its host, as a multiple of its own.
    fn cohosted_cost_ratio(&self) -> f64 {
        let [requests, request_seconds, cohosted_requests, cohosted_seconds] = self.shared;
        if request_seconds > 0.0 && cohosted_requests > 0.0 {
            cohosted_seconds / cohosted_requests / (request_seconds / requests)
        } else {
            0.0
        }
    }

    /// Returns its part of the work of balanced requests on its host.
    fn host_share(&self) -> f64 {
        let [_, request_seconds, _, cohosted_seconds] = self.shared;
        if request_seconds > 0.0 && cohosted_seconds > 0.0 {
            request_seconds / (request_seconds + cohosted_seconds)
        } else {
            1.0
        }
    }

    /// Returns the share of its host that other work keeps busy, if the report is that of a host and it is
    /// large.
    pub(super) fn other_work_share(&self) -> Option<f64> {
        self.other_work.filter(|other| *other >= REPORTED_OTHER_WORK)
    }

    /// Returns the share of its host that other work keeps busy, or 0, if it is not certainly small and its
    /// capacity is unknown.
    pub(super) fn uncertain_other_work(&self) -> Option<f64> {
        let is_unknown = self.estimate.is_none_or(|estimate| !estimate.known());
        self.other_work.filter(|_| is_unknown && !self.no_other_work)
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
        let HostEstimate { bound, other_work, other_work_varies: varies, no_other_work } =
            self.host_regression.estimate(self.low_concurrency_time())?;
        (self.other_work, self.other_work_varies, self.no_other_work) =
            (Some(other_work), varies, no_other_work);
        let host_share = self.host_share();
        let processors = bound.processors.map(|(count, demand)| (count * host_share, demand));
        let (low, best, high) = (bound.low * host_share, bound.best * host_share, bound.high * host_share);
        Some(ThroughputBound { low, best, high, processors })
    }

    /// Returns the maximum seconds that a request takes at low concurrency.
    fn low_concurrency_time(&self) -> Option<f64> {
        self.table.low_concurrency_mean(self.host_regression.processors().unwrap_or(1.0), MIN_HOST_REQUESTS)
    }

    /// Returns the seconds that a request takes at the lowest concurrency seen.
    pub(super) fn base_latency(&self) -> Option<f64> {
        self.table.low_concurrency_mean(1.0, MIN_UNLOADED_REQUESTS)
    }

    /// Returns the bounds of its capacity that its own requests show.
    pub(super) fn observed_bounds(&self) -> (f64, f64) {
        self.estimate.map_or((self.peak, f64::INFINITY), |estimate| (estimate.low, estimate.high))
    }

    /// Computes its capacity.
    pub(super) fn update_estimate(&mut self, shape: &ServiceDistribution) {
        let fit = knee_fit::fit(&self.table.rows(MIN_REQUESTS), shape.variation, self.rate());
        let mut estimates: Vec<CapacityEstimate> = Vec::new();
        let processors = self.processors().map(|bound| {
            let (low, best, high) =
                (self.own_part(bound.low), self.own_part(bound.best), self.own_part(bound.high));
            ThroughputBound { low, best, high, ..bound }
        });
        let mut upper_bound = f64::INFINITY;
        let separate_queues = fit.is_some_and(|fit| !fit.shared && fit.high <= MAX_KNOWN_RATIO * fit.low);
        if let Some(bound) = processors {
            match self.bounds(&bound) {
                Some((servers, ..)) => estimates.push(CapacityEstimate {
                    low: bound.low,
                    best: bound.best,
                    high: bound.high,
                    servers,
                    shared: !separate_queues,
                    source: match self.other_work_share() {
                        Some(_) => "how busy its host's processors are, less what is other work there",
                        None => "how busy its processors are",
                    },
                }),
                None => upper_bound = bound.high,
            }
        }
        if let Some(MeterReport { knee, work }) =
            self.meter_report.filter(|report| report.knee >= 1.0 && report.work > 0.0)
        {
            let best = self.own_part(knee / work);
            let (low, high) = (best / METER_MARGINS.0, best * METER_MARGINS.1);
            let source = "what it says of itself with its answers";
            estimates.push(CapacityEstimate {
                low,
                best,
                high,
                servers: knee,
                shared: !separate_queues,
                source,
            });
        }
        // With varying other work on the processors, times do not grow with the requests alone.
        if let Some(fit) = fit.filter(|_| !self.other_work_varies && self.other_work_share().is_none()) {
            estimates.push(CapacityEstimate {
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
        self.estimate =
            combine_estimates(&estimates).map(|estimate| clamp_estimate(estimate, upper_bound, peak));
    }

    /// Returns the part of its total capacity that other balancers leave, and at least its present rate for
    /// this one.
    fn own_part(&self, total_rate: f64) -> f64 {
        (total_rate - self.rate_elsewhere).max(self.rate().min(total_rate))
    }

    /// Returns the processors and the processor seconds of a request, if those are a significant part of its
    /// time.
    fn bounds(&self, bound: &ThroughputBound) -> Option<(f64, f64)> {
        let (processors, demand) = bound.processors?;
        let unloaded_latency = self.table.mean_up_to(processors, MIN_UNLOADED_REQUESTS).or_else(|| {
            let (requests, request_seconds) = (self.recent[0], self.recent[1]);
            (requests > MIN_UNLOADED_REQUESTS).then(|| request_seconds / requests)
        })?;
        // Other work prolongs all of it.
        let unloaded_latency = unloaded_latency * (1.0 - self.other_work.unwrap_or(0.0));
        (demand >= MIN_DEMAND_SHARE * unloaded_latency).then_some((processors.max(1.0), demand))
    }
}

/// Returns the narrowest interval, within the others; or another that lies wholly below.
fn combine_estimates(estimates: &[CapacityEstimate]) -> Option<CapacityEstimate> {
    let relative_width = |estimate: &CapacityEstimate| estimate.high / estimate.low;
    let mut best =
        *estimates.iter().min_by(|left, right| relative_width(left).total_cmp(&relative_width(right)))?;
    for other in estimates {
        if other.high * CLEARLY_LOWER_RATIO < best.low {
            best = *other;
        } else if other.low <= best.high && other.high >= best.low {
            (best.low, best.high) = (best.low.max(other.low), best.high.min(other.high));
            best.best = best.best.clamp(best.low, best.high);
        }
    }
    Some(best)
}

/// Limits an estimate to at most `above`, and at least the served rate.
fn clamp_estimate(mut estimate: CapacityEstimate, upper_bound: f64, peak: f64) -> CapacityEstimate {
    for value in [&mut estimate.low, &mut estimate.best, &mut estimate.high] {
        *value = value.min(upper_bound).max(peak);
    }
    estimate
}

/// The greatest ratio of the ends of an interval that counts as a number.
const MAX_KNOWN_RATIO: f64 = 3.0;

/// The errors of members' knees: within a third for processors, and between half and one and a half for
/// queues (docs/decisions/0004). They may be too large by the first factor. They may be too small by two,
/// which is reduced here so that [`WIDE`] still accepts it as a number.
const METER_MARGINS: (f64, f64) = (1.5, 1.98);

/// The minimum share of processor time in a request's time alone if processors are the limit.
const MIN_DEMAND_SHARE: f64 = 0.3;

/// The factor by which the upper end of a source must lie below another to overrule it.
const CLEARLY_LOWER_RATIO: f64 = 1.25;

/// The number of requests at a level, and of those alone, that make a mean.
const MIN_REQUESTS: f64 = 3.0;
const MIN_UNLOADED_REQUESTS: f64 = 20.0;

/// The number of requests that make a mean of the time that bounds the cost of one.
const MIN_HOST_REQUESTS: f64 = 100.0;

/// The share of failures above which response times do not count: rejections are fast.
pub(super) const MAX_FAILURE_SHARE: f64 = 0.05;

/// The difference of looks under a constant load: a share of it, and a multiple of chance.
const STEADY_TOLERANCE: f64 = 0.3;
const NOISE_DEVIATIONS: f64 = 5.0;

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
        assert_eq!(
            combine_estimates(&[estimate(93.0, 120.0, f64::INFINITY), cpu]),
            Some(estimate(93.0, 95.0, 105.0))
        );
        assert_eq!(combine_estimates(&[cpu, estimate(40.0, 50.0, 60.0)]), Some(estimate(40.0, 50.0, 60.0)));
        assert_eq!(combine_estimates(&[cpu, estimate(70.0, 75.0, 85.0)]), Some(cpu), "not clearly lower");
        assert_eq!(combine_estimates(&[]), None);
    }

    /// Returns the evidence after two minutes of 50 requests a second from here, at a server of two
    /// processors that can serve 200. The reported utilization is the last argument.
    fn after_two_minutes(elsewhere: f64, cpu_share: f64) -> MemberEstimator {
        let mut estimator = MemberEstimator::idle();
        for second in 1..=120_u64 {
            let sample = MemberLoadSample {
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
                    CpuUtilization { share: cpu_share, processors: Some(2.0), whole_host: false },
                    Time(1_000_000_000 * second),
                )),
                cohosted: CohostedWork::default(),
                rate_elsewhere: elsewhere,
            };
            estimator.observe(&sample, 1.0);
            if second % 5 == 0 {
                estimator.close_window();
                estimator.update_estimate(&ServiceDistribution::exponential());
            }
        }
        estimator
    }

    #[test]
    fn what_other_balancers_send_is_not_there_for_this_one() {
        let sole_balancer = after_two_minutes(0.0, 0.25).estimate.unwrap();
        assert!((sole_balancer.best / 200.0 - 1.0).abs() < 0.05, "{sole_balancer:?}");
        // 120 a second keep it busy, of which these are 50.
        let one_of_two = after_two_minutes(70.0, 0.6).estimate.unwrap();
        assert!((one_of_two.best / 130.0 - 1.0).abs() < 0.08, "{one_of_two:?}");
    }

    #[test]
    fn what_was_served_is_a_lower_end() {
        assert_eq!(clamp_estimate(estimate(90.0, 95.0, 100.0), 98.0, 97.0), estimate(97.0, 97.0, 98.0));
        assert!(estimate(90.0, 95.0, 105.0).known() && !estimate(10.0, 20.0, 40.0).known());
        assert!(!estimate(10.0, 20.0, f64::INFINITY).known());
    }
}
