//! The weight of a member: its capacity, reduced by its load, and while it has only just come.
//!
//! weight = capacity * part / (1/4 + load), where the load is a share of the member's capacity, smoothed over
//! a second. It is four times the capacity without load, and a quarter of it from a load of 3.75. Within
//! these bounds the candidates by capacity are nearly always those by weight. AGS's 1 / load has no bound, so
//! that one idle moment takes everything. Without a recent report the load is unknown: then the weight is
//! that of the capacity alone, between the two.
//!
//! The part grows from a twentieth to the whole in ten seconds (or the configured time) after a member comes,
//! comes back or ends its drain. A member back from a crash is idle, and without this gets 2.4 to 3.2 times
//! its share in its first second.

use core::ops::RangeInclusive;
use core::time::Duration;

use super::message::UNKNOWN_LOAD;
use super::weight_codec;
use crate::Time;

/// The time over which a load is smoothed.
const LOAD_WINDOW: Duration = Duration::from_secs(1);

/// The time for which a reported load counts: twelve reports.
const LOAD_TTL: Duration = Duration::from_secs(3);

/// The default time of a slow start.
pub(super) const DEFAULT_SLOW_START: Duration = Duration::from_secs(10);

/// The part of its share at the beginning.
const SLOW_START_MIN: f64 = 0.05;

/// The bounds of the weight, as multiples of the capacity.
const WEIGHT_BOUNDS: RangeInclusive<f64> = 0.25..=4.0;

/// Returns the codes of the weights that a member of this capacity can have, unless it is 0: from the least
/// at the beginning of its slow start to the greatest.
pub(super) fn weight_bounds(capacity: u16) -> RangeInclusive<u16> {
    let capacity = f64::from(capacity);
    weight_codec::encode(capacity * (WEIGHT_BOUNDS.start() * SLOW_START_MIN))
        ..=weight_codec::encode(capacity * WEIGHT_BOUNDS.end())
}

/// The smoothed load of one service.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SmoothedLoad {
    /// The load as a share of the member's capacity.
    load: f64,
    recorded_at: Option<Time>,
}

impl SmoothedLoad {
    /// Records a measurement, in thousandths.
    pub(super) fn record(&mut self, now: Time, load: u16) {
        let load = f64::from(load) / 1000.0;
        let elapsed =
            self.recorded_at.map_or(f64::INFINITY, |recorded_at| now.since(recorded_at).as_secs_f64());
        // A load from before a gap is outdated.
        let is_fresh = elapsed <= LOAD_TTL.as_secs_f64();
        let blend = if is_fresh { elapsed / (elapsed + LOAD_WINDOW.as_secs_f64()) } else { 1.0 };
        self.load += blend * (load - self.load);
        self.recorded_at = Some(now);
    }

    /// Returns the load in thousandths, if it is known.
    pub(super) fn load(&self, now: Time) -> Option<u16> {
        let is_fresh = self.recorded_at.is_some_and(|recorded_at| now.since(recorded_at) <= LOAD_TTL);
        is_fresh.then_some(((self.load * 1000.0 + 0.5) as u16).min(UNKNOWN_LOAD - 1))
    }

    /// Returns `true` if it was known, and is not any more.
    pub(super) fn is_lost(&self, now: Time) -> bool {
        self.recorded_at.is_some() && self.load(now).is_none()
    }

    /// Returns the code of the weight of a member that came `gone` ago, with a slow start of `ramp`.
    pub(super) fn weight(&self, now: Time, capacity: u16, up_for: Duration, ramp: Duration) -> u16 {
        let relative_weight = if self.load(now).is_some() {
            (1.0 / (0.25 + self.load)).clamp(*WEIGHT_BOUNDS.start(), *WEIGHT_BOUNDS.end())
        } else {
            1.0
        };
        let ramp_share = if up_for >= ramp {
            1.0
        } else {
            SLOW_START_MIN + (1.0 - SLOW_START_MIN) * up_for.div_duration_f64(ramp)
        };
        weight_codec::encode(f64::from(capacity) * relative_weight * ramp_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_weight_stays_within_its_bounds() {
        for (load, factor) in [(0, 4.0), (750, 1.0), (1000, 0.8), (3750, 0.25), (u16::MAX, 0.25)] {
            let mut smoothed_load = SmoothedLoad::default();
            smoothed_load.record(Time(0), load);
            assert_eq!(smoothed_load.load(Time(0)), Some(load.min(UNKNOWN_LOAD - 1)));
            assert_eq!(
                smoothed_load.weight(Time(0), 8, DEFAULT_SLOW_START, DEFAULT_SLOW_START),
                weight_codec::encode(8.0 * factor)
            );
            assert_eq!(smoothed_load.weight(Time(0), 0, DEFAULT_SLOW_START, DEFAULT_SLOW_START), 0);
        }
    }

    #[test]
    fn whatever_a_member_wants_is_within_what_it_can_want() {
        for capacity in [1, 8, 100, u16::MAX] {
            let codes = weight_bounds(capacity);
            for load in [0, 100, 1000, 3750, u16::MAX] {
                let mut smoothed_load = SmoothedLoad::default();
                smoothed_load.record(Time(0), load);
                for seconds in [0, 5, 10] {
                    let code = smoothed_load.weight(
                        Time(0),
                        capacity,
                        Duration::from_secs(seconds),
                        DEFAULT_SLOW_START,
                    );
                    assert!(codes.contains(&code), "{capacity}, {load}, {seconds} s: {code} of {codes:?}");
                }
            }
        }
    }

    #[test]
    fn a_load_that_is_told_no_more_is_not_known() {
        let mut smoothed_load = SmoothedLoad::default();
        let by_capacity = weight_codec::encode(8.0);
        assert_eq!(
            (
                smoothed_load.load(Time(0)),
                smoothed_load.weight(Time(0), 8, DEFAULT_SLOW_START, DEFAULT_SLOW_START)
            ),
            (None, by_capacity)
        );
        smoothed_load.record(Time(0), 3750);
        let (before_expiry, after_expiry) = (Time(3 * SECOND), Time(3 * SECOND + 1));
        assert_eq!(
            (
                smoothed_load.load(before_expiry),
                smoothed_load.weight(before_expiry, 8, DEFAULT_SLOW_START, DEFAULT_SLOW_START)
            ),
            (Some(3750), weight_codec::encode(2.0))
        );
        assert_eq!(
            (
                smoothed_load.load(after_expiry),
                smoothed_load.weight(after_expiry, 8, DEFAULT_SLOW_START, DEFAULT_SLOW_START)
            ),
            (None, by_capacity)
        );
        // The earlier load is forgotten.
        smoothed_load.record(after_expiry, 0);
        assert_eq!(smoothed_load.load(after_expiry), Some(0));
    }

    #[test]
    fn one_moment_is_no_load() {
        let mut smoothed_load = SmoothedLoad::default();
        for millis in (0..5000).step_by(100) {
            smoothed_load.record(Time(millis * 1_000_000), 500);
        }
        smoothed_load.record(Time(5 * SECOND), 3000);
        let load = smoothed_load.load(Time(5 * SECOND)).unwrap();
        assert!((650..800).contains(&load), "{load}");
    }

    #[test]
    fn it_comes_slowly() {
        let mut smoothed_load = SmoothedLoad::default();
        smoothed_load.record(Time(0), 0);
        let weight_at = |up_for, ramp| smoothed_load.weight(Time(0), 100, up_for, ramp);
        let weights =
            [0, 5, 10, 99].map(|seconds| weight_at(Duration::from_secs(seconds), DEFAULT_SLOW_START));
        assert_eq!(weights, [20.0, 210.0, 400.0, 400.0].map(weight_codec::encode));
        assert_eq!(weight_at(Duration::ZERO, Duration::ZERO), weight_codec::encode(400.0), "or at once");
    }
}
