//! Passive outlier ejection: the traffic itself reveals a failing member.
//!
//! There are two rules, as in Envoy and gRPC (proposal A50). Failures in a row catch a dead member within a
//! few requests. A success rate far below the group's catches one that fails now and then. Two points differ,
//! because users of the original rules complain of ejections that they cannot understand:
//!
//! - A member is compared with the mean and the deviation of the *others*. In a group of n, no member can lie
//!   more than sqrt(n - 1) deviations below a mean that it is itself part of. So with the usual factor of 1.9
//!   the rule never applies in groups of four or less, and two failing members hide each other.
//! - A deviation that chance explains is no reason. If all members fail one request in twenty, some member
//!   always lies 1.9 deviations below the mean. Here that many failures must also be less likely than one in
//!   a million for a member as good as the others. By Chernoff's bound that is n KL(p || q) >= ln 10^6, for n
//!   requests with a failed share p, and a failed share q of the others.
//!
//! A third rule comes before both: Wald's sequential test on each outcome (`member/failure_detector.rs`),
//! which has no count, volume or interval to set, only the chance of a false alarm.
//!
//! The k-th ejection in a row lasts k times as long as the first. Good behaviour is forgotten at the same
//! rate as bad: each such length in use takes one off k.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{MemberTraffic, OutlierSpec};
use crate::Time;

/// The ejections of one member.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct EjectionState {
    /// The end of the one in force.
    pub(super) until: Option<Time>,
    /// The reason, for display.
    pub(super) why: String,
    /// The number of ejections in a row, as of `ended`.
    row: u32,
    /// The end of the last one.
    ended: Time,
}

impl EjectionState {
    /// Begins an ejection; returns its number in a row and its length.
    pub(super) fn begin(&mut self, spec: &OutlierSpec, now: Time) -> (u32, Duration) {
        let max_ejection = spec.max_ejection.max(spec.ejection);
        self.begin_escalated(
            spec.ejection,
            |count| spec.ejection.saturating_mul(count).min(max_ejection),
            now,
        )
    }

    /// Begins an ejection on suspicion. It comes after two or three failures and tries again soon: after 2 s
    /// at first, and twice as long each time, up to 32 s, or [`OutlierSpec::max_ejection`] if that is less.
    pub(super) fn begin_on_suspicion(&mut self, spec: &OutlierSpec, now: Time) -> (u32, Duration) {
        let max_ejection = spec.max_ejection.max(spec.ejection);
        self.begin_escalated(
            Duration::from_secs(2),
            |count| Duration::from_secs(1 << count.min(5)).min(max_ejection),
            now,
        )
    }

    /// Begins an ejection that another balancer has begun: it does not extend the row here.
    pub(super) fn begin_from_peer(&mut self, remaining: Duration, now: Time) -> (u32, Duration) {
        self.until = Some(now + remaining);
        (self.row, remaining)
    }

    fn begin_escalated(
        &mut self,
        decay_period: Duration,
        length_of: impl Fn(u32) -> Duration,
        now: Time,
    ) -> (u32, Duration) {
        let good_periods = now.since(self.ended).as_nanos() / decay_period.as_nanos().max(1);
        self.row = self.row.saturating_sub(u32::try_from(good_periods).unwrap_or(u32::MAX)).saturating_add(1);
        let length = length_of(self.row);
        self.until = Some(now + length);
        (self.row, length)
    }

    /// Ends the ejection in force.
    pub(super) fn end(&mut self, now: Time) {
        self.until = None;
        self.ended = now;
    }
}

/// Returns the number of `members` that may be ejected at once.
pub(super) fn max_ejections(spec: &OutlierSpec, members: usize) -> usize {
    // A conversion to usize saturates and converts a value that is not a number to 0.
    ((members as f64 * spec.max_ejected) as usize).clamp(1, members.max(1))
}

/// A member that does worse than the others.
#[derive(Debug, PartialEq)]
pub(super) struct OutlierFinding {
    /// The index of the sample.
    pub(super) index: usize,
    pub(super) traffic: MemberTraffic,
    /// The success rate of the member.
    pub(super) rate: f64,
    /// The mean success rate of the others.
    pub(super) mean: f64,
    /// The standard deviation of the others' success rates.
    pub(super) deviation: f64,
}

impl OutlierFinding {
    /// Returns a sentence for display.
    pub(super) fn reason(&self) -> String {
        format!(
            "{} of {} requests failed: {:.1} % success against {:.1} % of the other members",
            self.traffic.failures,
            self.traffic.requests,
            100.0 * self.rate,
            100.0 * self.mean
        )
    }
}

/// Returns the outliers among the samples (a member's index and its traffic within an interval), the worst
/// first, at most `room`. A found outlier is excluded from the comparison of the rest.
pub(super) fn outliers(
    spec: &OutlierSpec,
    samples: &[(usize, MemberTraffic)],
    max_findings: usize,
) -> Vec<OutlierFinding> {
    let mut remaining: Vec<TrafficSample> = samples
        .iter()
        .filter(|(_, traffic)| traffic.requests >= spec.min_requests.max(1))
        .map(|(index, traffic)| TrafficSample::new(*index, *traffic))
        .collect();
    let mut findings = Vec::new();
    while spec.deviations > 0.0 && findings.len() < max_findings {
        let group = GroupSums::of(&remaining);
        let judged = remaining.iter().enumerate();
        let outliers =
            judged.filter_map(|(position, sample)| Some((position, group.judge(sample, spec.deviations)?)));
        let Some((position, worst)) = outliers.min_by(|a, b| a.1.rate.total_cmp(&b.1.rate)) else { break };
        remaining.swap_remove(position);
        findings.push(worst);
    }
    findings
}

/// The traffic of one member within an interval.
struct TrafficSample {
    index: usize,
    traffic: MemberTraffic,
    rate: f64,
}

impl TrafficSample {
    fn new(index: usize, traffic: MemberTraffic) -> Self {
        let failures = traffic.failures.min(traffic.requests);
        let rate = 1.0 - failures as f64 / traffic.requests as f64;
        Self { index, traffic: MemberTraffic { failures, ..traffic }, rate }
    }
}

/// The sums over the group that give its figures without any one member.
#[derive(Default)]
struct GroupSums {
    members: f64,
    rates: f64,
    squares: f64,
    requests: f64,
    failures: f64,
}

impl GroupSums {
    fn of(samples: &[TrafficSample]) -> Self {
        samples.iter().fold(Self::default(), |sums, sample| Self {
            members: sums.members + 1.0,
            rates: sums.rates + sample.rate,
            squares: sums.squares + sample.rate * sample.rate,
            requests: sums.requests + sample.traffic.requests as f64,
            failures: sums.failures + sample.traffic.failures as f64,
        })
    }

    /// Returns the finding about a member of the group, if it is an outlier.
    fn judge(&self, sample: &TrafficSample, deviations: f64) -> Option<OutlierFinding> {
        let (index, traffic, rate) = (sample.index, sample.traffic, sample.rate);
        let others = self.members - 1.0;
        if others < 1.0 {
            return None;
        }
        let mean = (self.rates - rate) / others;
        let deviation = libm::sqrt(((self.squares - rate * rate) / others - mean * mean).max(0.0));
        let (requests, failures) = (traffic.requests as f64, traffic.failures as f64);
        // Laplace's rule: others that never failed may yet fail.
        let expected_rate = (self.failures - failures + 1.0) / (self.requests - requests + 2.0);
        let is_outlier = rate < mean - deviations * deviation
            && log_likelihood_ratio(requests, failures, expected_rate) >= MIN_LOG_LIKELIHOOD;
        is_outlier.then_some(OutlierFinding { index, traffic, rate, mean, deviation })
    }
}

/// Returns, by Chernoff's bound, minus the logarithm of the probability that at least `failed` of `requests`
/// fail if the share `usual` does. It is 0 if fewer failed than usual.
fn log_likelihood_ratio(requests: f64, failures: f64, expected_rate: f64) -> f64 {
    let term = |observed: f64, expected: f64| {
        if observed > 0.0 { observed * libm::log(observed / expected) } else { 0.0 }
    };
    let share = failures / requests;
    if share <= expected_rate {
        0.0
    } else {
        requests * (term(share, expected_rate) + term(1.0 - share, 1.0 - expected_rate))
    }
}

/// ln 10^6.
const MIN_LOG_LIKELIHOOD: f64 = 13.815_510_557_964_274;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::unit;
    use crate::mix;
    use alloc::vec;

    const SPEC: OutlierSpec = OutlierSpec {
        false_alarm: 0.0,
        consecutive: 5,
        interval: Duration::from_secs(10),
        deviations: 1.9,
        min_requests: 50,
        ejection: Duration::from_secs(30),
        max_ejection: Duration::from_secs(100),
        max_ejected: 0.5,
    };

    fn outlier_indices(samples: &[(u64, u64)]) -> Vec<usize> {
        let samples: Vec<(usize, MemberTraffic)> = samples
            .iter()
            .enumerate()
            .map(|(index, (requests, failures))| {
                (index, MemberTraffic { requests: *requests, failures: *failures })
            })
            .collect();
        outliers(&SPEC, &samples, 2).into_iter().map(|finding| finding.index).collect()
    }

    #[test]
    fn the_sick_one_is_found_in_groups_of_any_size() {
        assert_eq!(outlier_indices(&[(100, 30), (100, 0)]), [0]);
        assert_eq!(outlier_indices(&[(100, 0), (100, 30), (100, 1)]), [1]);
        assert_eq!(
            outlier_indices(&[(1000, 5), (1000, 4), (1000, 100), (1000, 6), (1000, 3), (1000, 5)]),
            [2]
        );
    }

    #[test]
    fn two_sick_ones_do_not_hide_each_other_and_the_worse_comes_first() {
        let samples =
            [(100, 0), (100, 50), (100, 0), (100, 80), (100, 0), (100, 0), (100, 0), (100, 0), (100, 0)];
        assert_eq!(outlier_indices(&samples), [3, 1]);
    }

    #[test]
    fn what_all_share_is_no_reason() {
        assert_eq!(outlier_indices(&[(100, 100), (100, 100), (100, 100)]), [0; 0]);
        assert_eq!(outlier_indices(&[(100, 40), (100, 50), (100, 45)]), [0; 0]);
    }

    #[test]
    fn little_traffic_is_no_reason() {
        assert_eq!(outlier_indices(&[(49, 49), (1000, 0), (1000, 0)]), [0; 0]);
        assert_eq!(outlier_indices(&[(50, 50), (49, 0)]), [0; 0], "nobody to compare with");
        assert_eq!(outlier_indices(&[]), [0; 0]);
        assert_eq!(outlier_indices(&[(100, 2), (1000, 0), (1000, 0)]), [0; 0], "a failure or two happen");
    }

    /// Checks with traffic in which a fixed number of deviations alone would eject every few intervals.
    #[test]
    fn chance_is_no_reason() {
        let mut bits = 7;
        for interval in 0..1000 {
            let samples: Vec<(u64, u64)> = (0..10)
                .map(|_| {
                    let failures = (0..200)
                        .filter(|_| {
                            bits = mix(bits);
                            unit(bits) < 0.05
                        })
                        .count();
                    (200, failures as u64)
                })
                .collect();
            assert_eq!(outlier_indices(&samples), [0; 0], "interval {interval}: {samples:?}");
        }
    }

    #[test]
    fn ejections_grow_up_to_a_limit_and_shrink_with_good_behaviour() {
        let mut ejection = EjectionState::default();
        let mut now = Time(0);
        let mut eject_after = |seconds: u64| {
            now = now + Duration::from_secs(seconds);
            let (_, length) = ejection.begin(&SPEC, now);
            now = now + length;
            ejection.end(now);
            length.as_secs()
        };
        let lengths: Vec<u64> = vec![1, 1, 1, 1, 1].into_iter().map(&mut eject_after).collect();
        assert_eq!(lengths, [30, 60, 90, 100, 100]);
        assert_eq!(eject_after(31), 100, "five less one plus one");
        assert_eq!(eject_after(100), 90, "five less three plus one");
        assert_eq!(eject_after(1_000_000), 30);
    }

    #[test]
    fn one_may_be_out_and_never_more_than_all() {
        let max_ejected_of =
            |max_ejected: f64, members: usize| max_ejections(&OutlierSpec { max_ejected, ..SPEC }, members);
        assert_eq!(max_ejected_of(0.0, 5), 1);
        assert_eq!(max_ejected_of(0.5, 5), 2);
        assert_eq!(max_ejected_of(1.0, 5), 5);
        assert_eq!(max_ejected_of(f64::NAN, 5), 1);
        assert_eq!(max_ejected_of(f64::INFINITY, 5), 5);
        assert_eq!(max_ejected_of(0.5, 0), 1);
    }
}
