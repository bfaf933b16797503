//! The step that the next rank waits, which is measured, and the lag of this daemon itself.
//!
//! The second rank answers unless it gets the winner's commit within a *step*. A step too short causes
//! duplicates: with journeys of 0.5 ms and more, steps of 1, 2, 4 and 10 ms gave 42, 9.7, 0.9 and 0.45 %
//! (`docs/decisions/0005`). So a daemon measures the time from the arrival of a request to that of the
//! winner's commit. A step is five times the time that 39 of 40 take.
//!
//! A wait that follows from the step itself must not be measured, or the step would feed on it. So the pause
//! between a commit and its repetition is fixed. A delay counts only if both arrived, because then the first
//! to arrive was the first sent, and only for first attempts. The remaining effect of losses (a winner that
//! missed the first attempt, if the second was missed here) is rarer than one in 40 up to 5 % loss: the step
//! stays at 4 ms. At 10 % it grows to 0.05 s.

use core::time::Duration;

use crate::Time;

/// The shortest step.
pub(super) const MIN_STEP: Duration = Duration::from_millis(4);

/// The step before enough was measured.
const DEFAULT_STEP: Duration = Duration::from_millis(10);

/// The longest step, because clients do not wait longer.
const MAX_STEP: Duration = Duration::from_millis(250);

/// The step above which clients do better with referrals.
pub const REFERRAL_STEP: Duration = Duration::from_millis(20);

/// The commits measured before a step follows from them.
const MIN_SAMPLES: u32 = 32;

/// The number of measurements at which old ones are halved.
const HALVING_COUNT: u32 = 2048;

const BUCKETS: usize = 64;

/// The delays of commits: a histogram in quarters of an octave from 16 us.
#[derive(Clone, Debug)]
pub(super) struct CommitDelays {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Default for CommitDelays {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }
}

impl CommitDelays {
    pub(super) fn record(&mut self, delay: Duration) {
        self.counts[bucket_index(delay)] += 1;
        self.total += 1;
        if self.total >= HALVING_COUNT {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.total = self.counts.iter().sum();
        }
    }

    /// Returns the delay within which 39 of 40 stay, up to a fourth too great; `None` while too few are
    /// known.
    pub(super) fn delay_bound(&self) -> Option<Duration> {
        if self.total < MIN_SAMPLES {
            return None;
        }
        let mut remaining = self.total / 40;
        for (bucket, count) in self.counts.iter().enumerate().rev() {
            if *count > remaining {
                return Some(bucket_max(bucket));
            }
            remaining -= count;
        }
        None
    }

    pub(super) fn step(&self) -> Duration {
        self.delay_bound().map_or(DEFAULT_STEP, |delay| (5 * delay).clamp(MIN_STEP, MAX_STEP))
    }
}

fn bucket_index(delay: Duration) -> usize {
    let units = (delay.as_micros() >> 4).clamp(4, 1 << 17) as usize;
    let octave = units.ilog2() as usize;
    ((octave - 2) * 4 + (units >> (octave - 2) & 3)).min(BUCKETS - 1)
}

/// Returns the greatest delay of a bucket.
fn bucket_max(bucket: usize) -> Duration {
    let (octave, quarter) = (bucket / 4 + 2, bucket % 4);
    Duration::from_micros(((5 + quarter as u64) << (octave - 2)) << 4)
}

/// The lag of this daemon: the recent maximum, halved in each twentieth of a second. A daemon reads the
/// messages of a third of a second in a moment. With a slower decay, every stall would cost it seconds of
/// work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LagTracker {
    max_lag: Duration,
    recorded_at: Time,
}

impl LagTracker {
    pub(super) fn record(&mut self, now: Time, lag: Duration) {
        if lag >= self.current(now) {
            *self = Self { max_lag: lag, recorded_at: now };
        }
    }

    /// Returns `true` if the lag is large enough, against the step, that another has taken its turn, or is
    /// about to.
    pub(super) fn exceeds_step(&self, now: Time, step: Duration) -> bool {
        self.current(now) >= step * 3 / 4
    }

    pub(super) fn current(&self, now: Time) -> Duration {
        let half_lives = (now.since(self.recorded_at).as_millis() / 50).min(31) as u32;
        self.max_lag / (1 << half_lives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn buckets_hold_what_they_say() {
        for delay in (1..2_000_000).step_by(37).map(micros) {
            let bucket = bucket_index(delay);
            assert!(bucket < BUCKETS);
            if (micros(64)..micros(900_000)).contains(&delay) {
                assert!(
                    bucket_max(bucket) >= delay
                        && bucket_max(bucket).as_secs_f64() <= delay.as_secs_f64() * 1.26 + 2e-5,
                    "{delay:?}"
                );
            }
        }
    }

    #[test]
    fn a_step_follows_the_delays() {
        let mut delays = CommitDelays::default();
        assert_eq!(delays.step(), DEFAULT_STEP);
        (0..1000).for_each(|_| delays.record(micros(300)));
        assert_eq!(delays.step(), MIN_STEP);
        // One in ten takes 10 ms: the step covers that.
        (0..1000).for_each(|index| delays.record(if index % 10 == 0 { micros(10_000) } else { micros(300) }));
        assert!((micros(50_000)..micros(63_000)).contains(&delays.step()), "{:?}", delays.step());
        (0..20_000).for_each(|_| delays.record(micros(2_000)));
        assert!((micros(10_000)..micros(12_600)).contains(&delays.step()), "{:?}", delays.step());
        (0..20_000).for_each(|_| delays.record(Duration::MAX));
        assert_eq!(delays.step(), MAX_STEP);
    }

    #[test]
    fn lateness_is_forgotten_soon() {
        let mut lag = LagTracker::default();
        lag.record(Time(0), micros(80_000));
        lag.record(Time(1), micros(10));
        assert_eq!(lag.current(Time(49_999_999)), micros(80_000));
        assert_eq!(lag.current(Time(150_000_000)), micros(10_000));
        assert_eq!(lag.current(Time(u64::MAX)), micros(0));
    }
}
