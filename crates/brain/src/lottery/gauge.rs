//! What a member wants of the work: its capacity, less as it is loaded, less as it has only come.
//!
//! weight = capacity * part / (1/4 + load), where the load is a share of what the member can do, smoothed over a second. It is
//! four times the capacity where nothing is to do and a quarter at a load of 3.75, and no less: bounds within which the
//! candidates by capacity are nearly always those by weight. AGS's 1 / load has no bound, so that one idle moment takes
//! everything.
//!
//! The part grows from a twentieth to the whole in ten seconds (or what it is told) after a member comes, comes back or is
//! drained no more. A member back from a crash is idle, and without this gets 2.4 to 3.2 times its share in its first second.

use core::time::Duration;

use super::code;
use crate::Time;

/// Over which a load is smoothed.
const SMOOTH: Duration = Duration::from_secs(1);

/// How long a member takes to come.
pub(super) const RAMP: Duration = Duration::from_secs(10);

/// What part of its share it begins with.
const LEAST: f64 = 0.05;

/// The load of one service, smoothed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauge {
    /// A share of what the member can do.
    load: f64,
    at: Option<Time>,
}

impl Gauge {
    /// A measurement, in thousandths.
    pub(super) fn note(&mut self, now: Time, load: u16) {
        let load = f64::from(load) / 1000.0;
        let gone = self.at.map_or(f64::INFINITY, |at| now.since(at).as_secs_f64());
        let part = if gone.is_finite() { gone / (gone + SMOOTH.as_secs_f64()) } else { 1.0 };
        self.load += part * (load - self.load);
        self.at = Some(now);
    }

    /// In thousandths.
    pub(super) fn load(&self) -> u16 {
        (self.load * 1000.0 + 0.5) as u16
    }

    /// The code of the weight of a member that came `gone` ago and takes `ramp` to come.
    pub(super) fn weight(&self, capacity: u16, gone: Duration, ramp: Duration) -> u16 {
        let want = (1.0 / (0.25 + self.load)).clamp(0.25, 4.0);
        let part = if gone >= ramp { 1.0 } else { LEAST + (1.0 - LEAST) * gone.div_duration_f64(ramp) };
        code::of(f64::from(capacity) * want * part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_weight_stays_within_its_bounds() {
        for (load, times) in [(0, 4.0), (750, 1.0), (1000, 0.8), (3750, 0.25), (u16::MAX, 0.25)] {
            let mut gauge = Gauge::default();
            gauge.note(Time(0), load);
            assert_eq!((gauge.load(), gauge.weight(8, RAMP, RAMP)), (load, code::of(8.0 * times)));
            assert_eq!(gauge.weight(0, RAMP, RAMP), 0);
        }
    }

    #[test]
    fn one_moment_is_no_load() {
        let mut gauge = Gauge::default();
        for millis in (0..5000).step_by(100) {
            gauge.note(Time(millis * 1_000_000), 500);
        }
        gauge.note(Time(5 * SECOND), 3000);
        assert!((650..800).contains(&gauge.load()), "{}", gauge.load());
    }

    #[test]
    fn it_comes_slowly() {
        let gauge = Gauge::default();
        let weights = [0, 5, 10, 99].map(|seconds| gauge.weight(100, Duration::from_secs(seconds), RAMP));
        assert_eq!(weights, [20.0, 210.0, 400.0, 400.0].map(code::of));
        assert_eq!(gauge.weight(100, Duration::ZERO, Duration::ZERO), code::of(400.0), "or at once");
    }
}
