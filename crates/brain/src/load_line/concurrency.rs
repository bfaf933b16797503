//! The times of requests by the requests in flight at their start, which show a member's knee.
//!
//! Up to 15 every number has a level of its own; above that each octave has eight.

use alloc::vec::Vec;

/// The number of levels of a table: the last one is of 3840 requests and more.
pub const CONCURRENCY_LEVELS: usize = (9 + 1) << SUB_LEVEL_BITS;

/// The number of levels of an octave, as a shift.
const SUB_LEVEL_BITS: u32 = 3;

/// Returns the level of a request that makes it `in_flight` at its member, including itself.
#[inline]
pub fn concurrency_level(in_flight: u32) -> usize {
    if in_flight < 1 << SUB_LEVEL_BITS {
        return in_flight as usize;
    }
    let octave = 31 - in_flight.leading_zeros();
    let sub = (in_flight >> (octave - SUB_LEVEL_BITS)) as usize & ((1 << SUB_LEVEL_BITS) - 1);
    ((((octave - SUB_LEVEL_BITS + 1) as usize) << SUB_LEVEL_BITS) + sub).min(CONCURRENCY_LEVELS - 1)
}

/// Returns the least number of requests of a level.
fn floor(level: usize) -> u32 {
    let (octave, sub) = (level >> SUB_LEVEL_BITS, (level & ((1 << SUB_LEVEL_BITS) - 1)) as u32);
    match octave {
        0 => sub,
        _ => ((1 << SUB_LEVEL_BITS) + sub) << (octave - 1),
    }
}

/// Returns the middle of the numbers of a level.
pub(super) fn middle(level: usize) -> f64 {
    f64::from(floor(level) + floor(level + 1) - 1) / 2.0
}

/// The requests and seconds by level, older ones with less weight.
#[derive(Clone, Debug, Default)]
pub(super) struct LatencyByConcurrency {
    /// The counts at the last look; `None` before the first. Missing levels are 0.
    last: Option<Vec<[u64; 2]>>,
    /// The requests and seconds; missing levels are 0.
    levels: Vec<[f64; 2]>,
}

/// The data of one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LevelStats {
    /// The requests in flight, including the new one.
    pub(super) in_flight: f64,
    /// Their number; older ones count for less.
    pub(super) count: f64,
    /// Their mean time, seconds.
    pub(super) mean: f64,
}

impl LatencyByConcurrency {
    /// Returns the table of a member that has done nothing so far.
    pub(super) fn idle() -> Self {
        Self { last: Some(Vec::new()), levels: Vec::new() }
    }

    /// Records counts (requests, nanoseconds) since the member joined; earlier data keep the weight `kept`.
    /// The counts are ignored if not `sound`.
    pub(super) fn observe(&mut self, counts: &[[u64; 2]], decay: f64, is_sound: bool) {
        // Most members never reach most levels: nothing is kept beyond the last used one.
        let used_levels = counts
            .iter()
            .take(CONCURRENCY_LEVELS)
            .rposition(|counts_at_level| *counts_at_level != [0; 2])
            .map_or(0, |last| last + 1);
        let counts = &counts[..used_levels];
        let Some(last) = &mut self.last else {
            self.last = Some(counts.to_vec());
            return;
        };
        if self.levels.len() < used_levels {
            self.levels.resize(used_levels, [0.0; 2]);
        }
        for (level, decayed) in self.levels.iter_mut().enumerate().filter(|_| is_sound) {
            let counts_at = |counts: &[[u64; 2]]| counts.get(level).copied().unwrap_or_default();
            let (current, previous) = (counts_at(counts), counts_at(last));
            decayed[0] = decayed[0] * decay + current[0].wrapping_sub(previous[0]) as f64;
            decayed[1] = decayed[1] * decay + current[1].wrapping_sub(previous[1]) as f64 / 1e9;
        }
        last.clear();
        last.extend_from_slice(counts);
    }

    /// Returns the levels at which at least `least` requests began, in ascending order.
    pub(super) fn rows(&self, min_count: f64) -> Vec<LevelStats> {
        let row = |(level, [count, seconds]): (usize, &[f64; 2])| LevelStats {
            in_flight: middle(level).max(1.0),
            count: *count,
            mean: seconds / count,
        };
        let sufficient = self.levels.iter().enumerate().filter(|(_, [count, _])| *count >= min_count);
        sufficient.map(row).filter(|row| row.mean > 0.0).collect()
    }

    /// Returns the mean seconds of requests at up to `in_flight`; `None` with fewer than `least` of them.
    pub(super) fn mean_up_to(&self, in_flight: f64, min_count: f64) -> Option<f64> {
        let (mut count, mut seconds) = (0.0, 0.0);
        for (level, level_sums) in self.levels.iter().enumerate() {
            if middle(level) > in_flight.max(1.0) {
                break;
            }
            count += level_sums[0];
            seconds += level_sums[1];
        }
        (count >= min_count && seconds > 0.0).then(|| seconds / count)
    }

    /// Returns the mean seconds of requests at up to `in_flight`, or at more until there are `least`
    /// requests; `None` if there are not that many.
    pub(super) fn low_concurrency_mean(&self, in_flight: f64, min_count: f64) -> Option<f64> {
        let (mut count, mut seconds) = (0.0, 0.0);
        for (level, level_sums) in self.levels.iter().enumerate() {
            if middle(level) > in_flight.max(1.0) && count >= min_count {
                break;
            }
            count += level_sums[0];
            seconds += level_sums[1];
        }
        (count >= min_count && seconds > 0.0).then(|| seconds / count)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn levels_are_contiguous_and_narrow() {
        for level in 0..CONCURRENCY_LEVELS - 1 {
            assert_eq!(concurrency_level(floor(level)), level);
            assert_eq!(concurrency_level(floor(level + 1) - 1), level);
        }
        assert_eq!((concurrency_level(1), concurrency_level(15), middle(15)), (1, 15, 15.0));
        assert_eq!((concurrency_level(16), concurrency_level(17), middle(16)), (16, 16, 16.5));
        assert_eq!(concurrency_level(u32::MAX), CONCURRENCY_LEVELS - 1);
        assert_eq!(
            (concurrency_level(3839), concurrency_level(3840), concurrency_level(4096)),
            (CONCURRENCY_LEVELS - 2, CONCURRENCY_LEVELS - 1, CONCURRENCY_LEVELS - 1)
        );
    }

    #[test]
    fn what_is_old_counts_for_less_and_what_is_not_sound_for_nothing() {
        let mut latencies = LatencyByConcurrency::default();
        let mut counts = vec![[0, 0]; CONCURRENCY_LEVELS];
        latencies.observe(&counts, 0.5, true);
        counts[2] = [10, 1_000_000_000];
        latencies.observe(&counts, 0.5, true);
        assert_eq!(latencies.rows(1.0), [LevelStats { in_flight: 2.0, count: 10.0, mean: 0.1 }]);
        counts[2] = [20, 1_000_000_000];
        latencies.observe(&counts, 0.5, true);
        assert_eq!(latencies.rows(1.0)[0].count, 15.0);
        counts[3] = [20, 1_000_000_000];
        latencies.observe(&counts, 0.5, false);
        assert_eq!(latencies.rows(1.0).len(), 1);
        assert_eq!(latencies.mean_up_to(1.0, 1.0), None);
        assert!((latencies.mean_up_to(2.0, 1.0).unwrap() - 0.5 / 15.0).abs() < 1e-12);
    }
}
