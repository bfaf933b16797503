//! Slow start: a member that comes back or joins takes a growing part of its share. So cold caches and empty
//! pools do not get the full load (Envoy's `slow_start_config` with aggression 1, HAProxy's `slowstart`).
//!
//! The part grows linearly from a tenth to the whole, in whole hundredths. New weights mean a new plan, so
//! there are at most a hundred of these in a ramp and at most ten in a second, and weights keep a common
//! measure.

use core::time::Duration;

use crate::Time;

/// Returns the part of its share that a member may take at `now`, between a tenth and 1.
pub(super) fn share_fraction(since: Time, now: Time, window: Duration) -> f64 {
    let progress = now.since(since).as_secs_f64() / window.as_secs_f64().max(f64::MIN_POSITIVE);
    libm::floor(100.0 * (MIN_SHARE + (1.0 - MIN_SHARE) * progress.min(1.0))) / 100.0
}

/// Returns the time between two steps of a ramp.
pub(super) fn step(window: Duration) -> Duration {
    (window / 100).max(SHORTEST_STEP)
}

const MIN_SHARE: f64 = 0.1;

const SHORTEST_STEP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_from_a_tenth_to_the_whole() {
        let window = Duration::from_secs(10);
        let share =
            |seconds: f64| share_fraction(Time(5), Time(5) + Duration::from_secs_f64(seconds), window);
        assert_eq!(share(0.0), 0.1);
        assert_eq!(share(5.0), 0.55);
        assert_eq!(share(10.0), 1.0);
        assert_eq!(share(1e6), 1.0);
    }

    #[test]
    fn steps_are_neither_small_nor_many() {
        assert_eq!(step(Duration::from_secs(1)), Duration::from_millis(100));
        assert_eq!(step(Duration::from_secs(60)), Duration::from_millis(600));
    }
}
