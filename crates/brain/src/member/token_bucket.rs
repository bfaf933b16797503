//! The limit of a member's requests a second: a token bucket that the slow path fills, so that a choice reads
//! one number and no clock.
//!
//! The bucket holds a tenth of a second's rate, and at least one request. With a rate of 50 a second no
//! second exceeds 55, and with one request in ten seconds it passes as soon as it is due. Simultaneous
//! choices on several cores may take the last token twice; it is then missing from the next filling.

use super::Vitals;
use crate::Time;

/// The remaining requests of one member.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    /// Requests; below 0 if tokens were taken twice.
    tokens: f64,
    /// The time of the last filling, and the requests begun by then; `None` before the first.
    last_refill: Option<(Time, u32)>,
    /// The requests a second from here, if they are limited.
    rate: Option<f64>,
}

impl Default for TokenBucket {
    fn default() -> Self {
        Self { tokens: 1.0, last_refill: None, rate: None }
    }
}

impl TokenBucket {
    /// Adds the tokens of this balancer's part of `rate` requests a second since the last filling. Returns
    /// the available requests. Without a rate the number is unlimited.
    pub(crate) fn refill(&mut self, vitals: &Vitals, rate: Option<f64>, now: Time) -> u32 {
        let Some(rate) = rate else {
            *self = Self::default();
            vitals.clear_rate_limit();
            return u32::MAX;
        };
        let rate = rate * vitals.rate_share();
        let begun = vitals.begun();
        if let Some((refilled_at, begun_before)) = self.last_refill {
            self.tokens +=
                rate * now.since(refilled_at).as_secs_f64() - f64::from(begun.wrapping_sub(begun_before));
        }
        self.tokens = self.tokens.min((rate * BURST_SECONDS).max(1.0));
        (self.last_refill, self.rate) = (Some((now, begun)), Some(rate));
        let available = self.tokens.max(0.0) as u32;
        vitals.set_rate_cutoff(begun.wrapping_add(available));
        available
    }

    /// Returns the maximum requests a second from here; `None` for no limit.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }
}

/// The seconds of the rate that may be saved up.
const BURST_SECONDS: f64 = 0.1;

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const TICK: Duration = Duration::from_millis(10);

    /// Returns the requests that pass in `ticks` if in every tick as many come as are allowed, at most
    /// `come`.
    fn admitted(
        bucket: &mut TokenBucket,
        vitals: &Vitals,
        rate: f64,
        start: Time,
        ticks: u32,
        arrivals_per_tick: u32,
    ) -> u32 {
        let mut begun = 0;
        for tick in 0..ticks {
            bucket.refill(vitals, Some(rate), start + TICK * tick);
            for _ in 0..arrivals_per_tick {
                if !vitals.is_rate_exhausted() {
                    vitals.begin();
                    vitals.end();
                    begun += 1;
                }
            }
        }
        begun
    }

    #[test]
    fn a_second_sees_what_the_rate_comes_to_and_a_tenth_of_it_at_most() {
        for rate in [0.5, 3.0, 50.0, 2500.0] {
            let (mut bucket, vitals) = (TokenBucket::default(), Vitals::default());
            // No request came for a minute.
            admitted(&mut bucket, &vitals, rate, Time(0), 6000, 0);
            let first_second = admitted(&mut bucket, &vitals, rate, Time(0) + TICK * 6000, 100, 1000);
            let max_admitted = rate + (0.1 * rate).max(1.0) + 1.0;
            assert!(
                f64::from(first_second) <= max_admitted && f64::from(first_second) >= rate.floor(),
                "{first_second} of {rate}"
            );
            let first_minute = admitted(&mut bucket, &vitals, rate, Time(0) + TICK * 6100, 6000, 1000);
            assert!(
                (f64::from(first_minute) / (60.0 * rate) - 1.0).abs() < 0.04,
                "{first_minute} of {rate} a second in a minute"
            );
        }
    }

    #[test]
    fn what_was_taken_twice_is_missing_later() {
        let (mut bucket, vitals) = (TokenBucket::default(), Vitals::default());
        assert_eq!(bucket.refill(&vitals, Some(10.0), Time(0)), 1);
        vitals.begin();
        vitals.begin();
        assert!(vitals.is_rate_exhausted());
        assert_eq!(bucket.refill(&vitals, Some(10.0), Time(0) + Duration::from_millis(100)), 0);
        assert!(vitals.is_rate_exhausted());
        assert_eq!(bucket.refill(&vitals, Some(10.0), Time(0) + Duration::from_millis(200)), 1);
        assert!(!vitals.is_rate_exhausted());
    }

    #[test]
    fn counts_that_begin_again_and_rates_that_end_do_no_harm() {
        let (mut bucket, vitals) = (TokenBucket::default(), Vitals::begun_before(u32::MAX));
        bucket.refill(&vitals, Some(20.0), Time(0));
        assert!(!vitals.is_rate_exhausted());
        vitals.begin();
        assert!(vitals.is_rate_exhausted() && vitals.begun() == 0);
        assert_eq!(bucket.refill(&vitals, Some(20.0), Time(0) + Duration::from_millis(100)), 2);
        assert!(!vitals.is_rate_exhausted());
        assert_eq!(bucket.refill(&vitals, None, Time(0) + Duration::from_secs(1)), u32::MAX);
        for _ in 0..9 {
            vitals.begin();
        }
        assert!(!vitals.is_rate_exhausted());
    }

    #[test]
    fn a_part_of_it_is_a_part() {
        let (mut bucket, vitals) = (TokenBucket::default(), Vitals::default());
        vitals.set_rate_share(Some(0.25));
        let admitted_count = admitted(&mut bucket, &vitals, 100.0, Time(0), 1000, 100);
        assert!((250..=254).contains(&admitted_count), "{admitted_count}");
    }
}
