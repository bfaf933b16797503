//! The evidence against a member from the outcomes of its requests: Wald's sequential probability ratio test
//! (Sequential tests of statistical hypotheses, 1945) of "fails every other request" against "fails as the
//! fleet does".
//!
//! Each outcome adds its log-likelihood ratio. The sum never goes below 0, so that a long good past does not
//! hide a member that has just died (Page's cusum, 1954). In a healthy fleet two or three failures in a row
//! reach the threshold; if all members fail alike none does. The only constant is the probability of a false
//! alarm.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use crate::Time;

/// The test and the recent outcomes of one member.
#[derive(Debug, Default)]
pub(crate) struct FailureDetector {
    /// The log-likelihood ratio, f32 bits.
    sum: AtomicU32,
    /// The failures of the last [`MEMORY`] outcomes, f32 bits, above the number of outcomes, up to the
    /// memory.
    outcomes: AtomicU64,
    /// The time of its return from an ejection, if it has had no success since; else 0.
    probation_since: AtomicU64,
    /// The requests in flight at its return, which are no trial.
    in_flight_before: AtomicU32,
}

impl FailureDetector {
    /// Records an outcome and returns the new sum. `fleet` is the share of failed requests of all members.
    pub(crate) fn record(&self, failed: bool, failure_share: f64) -> f64 {
        let mut sum = self.sum();
        // The usual case, a success of a member without suspicion, changes nothing.
        if failed || sum > 0.0 {
            // If all members fail at least every other request, a failure is no evidence against one of them.
            let failure_share = failure_share.clamp(1e-4, 0.5);
            let log_ratio =
                if failed { libm::log(0.5 / failure_share) } else { libm::log(0.5 / (1.0 - failure_share)) };
            sum = (sum + log_ratio).clamp(0.0, MAX_SUM);
            self.sum.store((sum as f32).to_bits(), Relaxed);
        }
        if !failed {
            self.end_probation();
        }
        let packed = self.outcomes.load(Relaxed);
        if !failed && packed == OUTCOME_MEMORY {
            return sum;
        }
        let (failures, count) = unpack(packed);
        let decay = if count < OUTCOME_MEMORY { 1.0 } else { 1.0 - 1.0 / OUTCOME_MEMORY as f32 };
        let failures = failures * decay + if failed { 1.0 } else { 0.0 };
        let next = (u64::from(failures.to_bits()) << 32) | (count + 1).min(OUTCOME_MEMORY);
        if next != packed {
            self.outcomes.store(next, Relaxed);
        }
        sum
    }

    /// Raises the sum because another balancer suspects the member, so that fewer failures here suffice. It
    /// never suffices to eject by itself.
    pub(crate) fn raise_suspicion(&self, sum: f64) {
        let sum = sum.min(MAX_WARNING);
        if sum > self.sum() {
            self.sum.store((sum as f32).to_bits(), Relaxed);
        }
    }

    pub(crate) fn sum(&self) -> f64 {
        f64::from(f32::from_bits(self.sum.load(Relaxed)))
    }

    /// Returns the sum, the outcomes and the parole, for the next process.
    pub(crate) fn handoff(&self) -> (f32, u64, bool) {
        (f32::from_bits(self.sum.load(Relaxed)), self.outcomes.load(Relaxed), self.is_on_probation())
    }

    /// Restores the state of the previous process, as far as it is plausible. A parole begins now, because
    /// its start was not handed over.
    pub(crate) fn restore(&self, (sum, outcomes, on_probation): (f32, u64, bool), now: Time) {
        let (failures, count) = unpack(outcomes);
        if sum.is_finite() && (0.0..=OUTCOME_MEMORY as f32).contains(&failures) && count <= OUTCOME_MEMORY {
            self.sum.store(sum.clamp(0.0, MAX_SUM as f32).to_bits(), Relaxed);
            self.outcomes.store(outcomes, Relaxed);
            self.probation_since.store(if on_probation { now.0.max(1) } else { 0 }, Relaxed);
        }
    }

    /// Returns a separate copy of the present state.
    pub(crate) fn copy(&self) -> Self {
        Self {
            sum: self.sum.load(Relaxed).into(),
            outcomes: self.outcomes.load(Relaxed).into(),
            probation_since: self.probation_since.load(Relaxed).into(),
            in_flight_before: self.in_flight_before.load(Relaxed).into(),
        }
    }

    /// Ends an ejection, with `in_flight` requests remaining: the member gets one request at a time until one
    /// succeeds, and the first failures eject it again.
    pub(crate) fn begin_probation(&self, in_flight: u32, now: Time) {
        let remaining_sum = (self.sum() - PROBATION_RELIEF).max(0.0) as f32;
        self.sum.store(remaining_sum.to_bits(), Relaxed);
        self.in_flight_before.store(in_flight, Relaxed);
        self.probation_since.store(now.0.max(1), Relaxed);
    }

    /// Returns `true` if the member is back from an ejection and without a success since.
    pub(crate) fn is_on_probation(&self) -> bool {
        self.probation_since.load(Relaxed) != 0
    }

    /// Returns `true` if one of `in_flight` requests is the trial. The requests from before its return (a
    /// stream, a session) may last for days and are no evidence.
    #[inline]
    pub(crate) fn has_trial_in_flight(&self, in_flight: u32) -> bool {
        self.is_on_probation() && in_flight > self.in_flight_before.load(Relaxed)
    }

    /// Ends the parole.
    #[inline]
    pub(crate) fn end_probation(&self) {
        if self.is_on_probation() {
            self.probation_since.store(0, Relaxed);
        }
    }

    /// Ends a parole whose trial had no outcome for [`TRIAL_TIMEOUT`], such as an endless stream. Returns the
    /// time of the next check.
    pub(crate) fn expire(&self, now: Time) -> Option<Time> {
        let since = Some(self.probation_since.load(Relaxed)).filter(|since| *since != 0)?;
        let end = Time(since) + TRIAL_TIMEOUT;
        if end <= now {
            self.end_probation();
            return None;
        }
        Some(end)
    }

    /// Returns `true` if it is on parole for so short a time that a request that can be retried may still
    /// come to try it.
    pub(crate) fn is_spared(&self, now: Time) -> bool {
        self.is_on_probation() && now.since(Time(self.probation_since.load(Relaxed))) < SPARED_FOR
    }

    pub(crate) fn forget(&self) {
        self.sum.store(0, Relaxed);
        self.outcomes.store(0, Relaxed);
        self.probation_since.store(0, Relaxed);
    }

    /// Returns the least share of its requests that it fails, with 97.7 % confidence (Wilson's lower bound at
    /// z = 2).
    pub(crate) fn failure_share(&self) -> f64 {
        let (failures, count) = unpack(self.outcomes.load(Relaxed));
        if failures <= 0.0 {
            return 0.0;
        }
        let (n, z2) = (count as f64, 4.0);
        let p = (f64::from(failures) / n).min(1.0);
        let centre = p + z2 / (2.0 * n);
        let spread = libm::sqrt(z2 * (p * (1.0 - p) / n + z2 / (4.0 * n * n)));
        ((centre - spread) / (1.0 + z2 / n)).max(0.0)
    }
}

/// Returns the sum at which the probability of a false alarm is `false_alarm`, 0 to 1.
pub(crate) fn threshold(false_alarm: f64) -> f64 {
    -libm::log(false_alarm.clamp(1e-8, 1.0))
}

fn unpack(packed: u64) -> (f32, u64) {
    (f32::from_bits((packed >> 32) as u32), packed & u64::from(u32::MAX))
}

/// The sum from which other balancers are notified of a member: half of the threshold for one false alarm in
/// a million.
pub(crate) const NOTIFY_THRESHOLD: f64 = 6.9;

/// The maximum sum that notifications of other balancers cause.
pub(crate) const MAX_WARNING: f64 = 6.5;

/// The maximum of the sum, so that a member recovers from any past in reasonable time.
const MAX_SUM: f64 = 20.0;

/// The reduction of the sum at the end of an ejection.
const PROBATION_RELIEF: f64 = 7.0;

/// The time for which only requests that can be retried try a member back from an ejection. There may be
/// none, so then all requests may.
const SPARED_FOR: Duration = Duration::from_secs(1);

/// The time after which a trial without an outcome holds back other requests no longer.
pub(crate) const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of outcomes that count.
const OUTCOME_MEMORY: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of outcomes until the sum reaches the threshold for one false alarm in a million.
    fn until_ejected(failure_share: f64, outcomes: impl Iterator<Item = bool>) -> Option<usize> {
        let detector = FailureDetector::default();
        outcomes.take(100_000).position(|failed| detector.record(failed, failure_share) >= threshold(1e-6))
    }

    #[test]
    fn a_dead_member_of_a_healthy_fleet_is_found_after_two_failures() {
        assert_eq!(until_ejected(1e-4, core::iter::repeat(true)), Some(1));
        assert_eq!(until_ejected(0.01, core::iter::repeat(true)), Some(3));
        // A long good past does not hide it.
        let late_failures = core::iter::repeat_n(false, 50_000).chain(core::iter::repeat(true));
        assert_eq!(until_ejected(1e-4, late_failures), Some(50_001));
    }

    #[test]
    fn failing_like_the_others_is_no_reason() {
        assert_eq!(until_ejected(0.45, (0_usize..).map(|index| index % 9 < 4)), None);
        assert_eq!(until_ejected(1.0, core::iter::repeat(true)), None);
        assert_eq!(until_ejected(0.05, (0_usize..).map(|index| index % 20 == 0)), None);
    }

    #[test]
    fn half_of_the_requests_failing_is_found_within_a_few() {
        assert!(
            until_ejected(0.001, (0_usize..).map(|index| index % 2 == 0))
                .is_some_and(|position| position < 10)
        );
    }

    #[test]
    fn parole_ends_with_a_success_and_a_failure_sends_it_out_again() {
        let detector = FailureDetector::default();
        while detector.record(true, 1e-4) < threshold(1e-6) {}
        let now = Time(5_000_000_000);
        detector.begin_probation(0, now);
        assert!(detector.is_on_probation() && detector.sum() < threshold(1e-6));
        assert!(detector.is_spared(now) && !detector.is_spared(now + SPARED_FOR));
        assert!(detector.record(true, 1e-4) >= threshold(1e-6));
        detector.begin_probation(0, now);
        detector.record(false, 1e-4);
        assert!(!detector.is_on_probation() && !detector.is_spared(now));
    }

    #[test]
    fn what_it_had_before_is_no_trial_and_a_trial_does_not_last() {
        let (detector, now) = (FailureDetector::default(), Time(5_000_000_000));
        detector.begin_probation(2, now);
        assert!(!detector.has_trial_in_flight(2), "two streams that go on");
        assert!(detector.has_trial_in_flight(3));
        assert_eq!(detector.expire(now), Some(now + TRIAL_TIMEOUT));
        assert!(detector.has_trial_in_flight(3));
        assert_eq!(detector.expire(now + TRIAL_TIMEOUT), None);
        assert!(!detector.has_trial_in_flight(3));
    }

    #[test]
    fn a_warning_is_not_enough_and_makes_the_first_failure_enough() {
        let detector = FailureDetector::default();
        detector.raise_suspicion(20.0);
        assert!(detector.sum() < NOTIFY_THRESHOLD);
        assert!(detector.record(true, 1e-4) >= threshold(1e-6));
        detector.raise_suspicion(1.0);
        assert!(detector.sum() > NOTIFY_THRESHOLD, "it takes nothing off");
    }

    #[test]
    fn the_lower_bound_needs_evidence() {
        let detector = FailureDetector::default();
        assert_eq!(detector.failure_share(), 0.0);
        detector.record(true, 1e-4);
        assert!(detector.failure_share() < 0.25, "one failure of one is little evidence");
        for _ in 0..63 {
            detector.record(true, 1e-4);
        }
        assert!(detector.failure_share() > 0.9);
        for _ in 0..1000 {
            detector.record(false, 1e-4);
        }
        assert!(detector.failure_share() < 1e-3);
    }
}
