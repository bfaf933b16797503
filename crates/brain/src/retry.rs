//! A retry budget: retries stay a share of the requests, so that retrying cannot make an outage worse.
//!
//! It is Finagle's RetryBudget: each request pays in a fraction of a retry, each retry takes out a whole one,
//! and both are forgotten after ten seconds. A reserve lets a client with few requests retry at all. A fixed
//! number of tries per request, in contrast, multiplies the load exactly when members fail.

use crate::Time;

/// The retries that the requests of the last ten seconds allow. Each core has one, which is cheap because it
/// is not shared.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    /// The tokens that a request pays in.
    paid: i64,
    /// The tokens that are always there, on top of the balance.
    reserve: i64,
    /// The payments less the withdrawals, by second.
    seconds: [i64; WINDOW],
    /// The sum of `seconds`.
    balance: i64,
    /// The present second, since the start of time.
    second: u64,
    /// The end of the present second, nanoseconds.
    ends: u64,
}

impl RetryBudget {
    /// Returns a budget that allows retries for `share` of the requests (0.2 for one in five) and
    /// `min_per_second` on top.
    ///
    /// Both are finite and not negative; anything else counts as 0. A process with several cores gives each
    /// its part of `min_per_second`.
    pub fn new(share: f64, min_per_second: f64) -> Self {
        let tokens = |retries: f64| libm::round(retries.clamp(0.0, MOST) * RETRY as f64) as i64;
        Self {
            paid: tokens(share),
            reserve: tokens(min_per_second * WINDOW as f64),
            seconds: [0; WINDOW],
            balance: 0,
            second: 0,
            ends: SECOND,
        }
    }

    /// Records a request. Retries are not requests.
    pub fn deposit(&mut self, now: Time) {
        self.book(self.paid, now);
    }

    /// Returns `true` if a request may be retried, and takes the retry out of the budget.
    pub fn withdraw(&mut self, now: Time) -> bool {
        self.book(0, now);
        let enough = self.balance.saturating_add(self.reserve) >= RETRY;
        if enough {
            self.book(-RETRY, now);
        }
        enough
    }

    fn book(&mut self, tokens: i64, now: Time) {
        if now.0 >= self.ends {
            self.turn(now);
        }
        self.seconds[self.second as usize % WINDOW] += tokens;
        self.balance += tokens;
    }

    /// Discards the seconds that are over.
    #[cold]
    fn turn(&mut self, now: Time) {
        let second = now.0 / SECOND;
        for over in 1..=(second - self.second).min(WINDOW as u64) {
            let slot = &mut self.seconds[(self.second + over) as usize % WINDOW];
            self.balance -= *slot;
            *slot = 0;
        }
        self.second = second;
        self.ends = (second + 1).saturating_mul(SECOND);
    }
}

/// The number of seconds that count.
const WINDOW: usize = 10;

/// The tokens of a retry: fine enough for a share of one in ten thousand.
const RETRY: i64 = 1_000_000;

/// The maximum of a share and a reserve, so that no sum of them overflows in a process's life.
const MOST: f64 = 1e4;

/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn at(milliseconds: u64) -> Time {
        Time(0) + Duration::from_millis(milliseconds)
    }

    fn drained(budget: &mut RetryBudget, now: Time) -> usize {
        (0..1_000_000).take_while(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn a_share_of_the_requests_may_be_tried_again() {
        let mut budget = RetryBudget::new(0.2, 0.0);
        assert!(!budget.withdraw(at(0)));
        for request in 0..1000 {
            budget.deposit(at(request));
        }
        assert_eq!(drained(&mut budget, at(1000)), 200);
    }

    #[test]
    fn the_reserve_is_there_without_requests_and_comes_back() {
        let mut budget = RetryBudget::new(0.2, 1.5);
        assert_eq!(drained(&mut budget, at(3500)), 15);
        assert_eq!(drained(&mut budget, at(12_999)), 0);
        assert_eq!(drained(&mut budget, at(13_000)), 15);
    }

    #[test]
    fn requests_are_forgotten_after_ten_seconds() {
        let mut budget = RetryBudget::new(1.0, 0.0);
        for _ in 0..100 {
            budget.deposit(at(500));
        }
        let mut late = budget.clone();
        assert_eq!(drained(&mut budget, at(9999)), 100);
        assert_eq!(drained(&mut late, at(10_000)), 0);
        // Taken out at 9.9 s, paid in at 0.5 s: the debt outlives the payment.
        for _ in 0..50 {
            budget.deposit(at(11_000));
        }
        assert_eq!(drained(&mut budget, at(11_000)), 0);
    }

    #[test]
    fn retries_never_exceed_their_share_in_the_long_run() {
        let mut budget = RetryBudget::new(0.1, 0.0);
        let mut retries = 0_u32;
        for request in 0..100_000 {
            budget.deposit(at(request));
            retries += u32::from(budget.withdraw(at(request)));
        }
        assert!((9_900..=10_000).contains(&retries), "{retries} retries of 100,000 requests");
    }

    #[test]
    fn nonsense_and_leaps_in_time_are_harmless() {
        let mut budget = RetryBudget::new(f64::NAN, f64::INFINITY);
        budget.deposit(Time(u64::MAX));
        assert!(budget.withdraw(Time(0)), "time that runs backwards counts as standing still");
        let mut none = RetryBudget::new(-1.0, -1.0);
        none.deposit(Time(u64::MAX));
        assert!(!none.withdraw(Time(u64::MAX)));
    }
}
