//! The share of a member's emulated processors in recent use, as an agent would report it for real ones.

use std::cell::RefCell;
use std::collections::VecDeque;

/// The seconds covered by a reading, if there was one that long ago.
const WINDOW_SECONDS: f64 = 1.0;

/// The maximum number of remembered readings; more frequent ones cover a shorter time.
const MAX_READINGS: usize = 64;

/// The values at each reading.
#[derive(Debug, Default)]
pub(super) struct RecentUtilization(RefCell<VecDeque<UtilizationReading>>);

#[derive(Clone, Copy, Debug)]
struct UtilizationReading {
    at: f64,
    busy: f64,
}

impl RecentUtilization {
    /// Returns core seconds in use per second: over the last second, or since the first reading after that.
    /// `at` is seconds since the member began, `busy` core seconds in use until then; neither goes back.
    pub(super) fn cores_in_use(&self, now: f64, busy: f64) -> f64 {
        let mut readings = self.0.borrow_mut();
        // The last one that is old enough stays.
        while readings.get(1).is_some_and(|second| now - second.at >= WINDOW_SECONDS)
            || readings.len() >= MAX_READINGS
        {
            readings.pop_front();
        }
        let oldest = readings.front().copied().unwrap_or(UtilizationReading { at: 0.0, busy: 0.0 });
        readings.push_back(UtilizationReading { at: now, busy });
        let seconds = now - oldest.at;
        if seconds > 0.0 { (busy - oldest.busy).max(0.0) / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_the_last_second_whoever_asks_in_between() {
        let utilization = RecentUtilization::default();
        assert_eq!(utilization.cores_in_use(0.0, 0.0), 0.0);
        assert_eq!(utilization.cores_in_use(2.0, 1.0), 0.5);
        // Since the reading at 2 s, the last that is a second old.
        assert_eq!(utilization.cores_in_use(3.0, 2.0), 1.0);
        assert_eq!(utilization.cores_in_use(3.5, 2.0), 2.0 / 3.0);
        assert_eq!(utilization.cores_in_use(4.25, 2.0), 0.0, "since 3 s");
        for index in 0..500 {
            utilization.cores_in_use(5.0 + f64::from(index) / 1000.0, 2.0);
        }
        assert!(utilization.0.borrow().len() <= MAX_READINGS);
    }
}
