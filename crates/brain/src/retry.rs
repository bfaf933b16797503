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
    deposit_tokens: i64,
    /// The tokens that are always there, on top of the balance.
    reserve: i64,
    /// The payments less the withdrawals, by second.
    seconds: [i64; WINDOW],
    /// The sum of `seconds`.
    balance: i64,
    /// The present second, since the start of time.
    second: u64,
    /// The end of the present second, nanoseconds.
    second_ends: u64,
}

impl RetryBudget {
    /// Returns a budget that allows retries for `share` of the requests (0.2 for one in five) and
    /// `min_per_second` on top.
    ///
    /// Both are finite and not negative; anything else counts as 0. A process with several cores gives each
    /// its part of `min_per_second`.
    pub fn new(share: f64, min_per_second: f64) -> Self {
        let tokens = |retries: f64| libm::round(retries.clamp(0.0, MAX_RATE) * RETRY_TOKENS as f64) as i64;
        Self {
            deposit_tokens: tokens(share),
            reserve: tokens(min_per_second * WINDOW as f64),
            seconds: [0; WINDOW],
            balance: 0,
            second: 0,
            second_ends: SECOND,
        }
    }

    /// Records a request. Retries are not requests.
    pub fn deposit(&mut self, now: Time) {
        self.add_tokens(self.deposit_tokens, now);
    }

    /// Returns `true` if a request may be retried, and takes the retry out of the budget.
    pub fn withdraw(&mut self, now: Time) -> bool {
        self.add_tokens(0, now);
        let has_tokens = self.balance.saturating_add(self.reserve) >= RETRY_TOKENS;
        if has_tokens {
            self.add_tokens(-RETRY_TOKENS, now);
        }
        has_tokens
    }

    fn add_tokens(&mut self, tokens: i64, now: Time) {
        if now.0 >= self.second_ends {
            self.advance(now);
        }
        self.seconds[self.second as usize % WINDOW] += tokens;
        self.balance += tokens;
    }

    /// Discards the seconds that are over.
    #[cold]
    fn advance(&mut self, now: Time) {
        let second = now.0 / SECOND;
        for offset in 1..=(second - self.second).min(WINDOW as u64) {
            let slot = &mut self.seconds[(self.second + offset) as usize % WINDOW];
            self.balance -= *slot;
            *slot = 0;
        }
        self.second = second;
        self.second_ends = (second + 1).saturating_mul(SECOND);
    }
}

/// The number of seconds that count.
const WINDOW: usize = 10;

/// The tokens of a retry: fine enough for a share of one in ten thousand.
const RETRY_TOKENS: i64 = 1_000_000;

/// The maximum of a share and a reserve, so that no sum of them overflows in a process's life.
const MAX_RATE: f64 = 1e4;

/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn at_millis(milliseconds: u64) -> Time {
        Time(0) + Duration::from_millis(milliseconds)
    }

    fn withdraw_all(budget: &mut RetryBudget, now: Time) -> usize {
        (0..1_000_000).take_while(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn a_share_of_the_requests_may_be_tried_again() {
        let mut budget = RetryBudget::new(0.2, 0.0);
        assert!(!budget.withdraw(at_millis(0)));
        for request in 0..1000 {
            budget.deposit(at_millis(request));
        }
        assert_eq!(withdraw_all(&mut budget, at_millis(1000)), 200);
    }

    #[test]
    fn the_reserve_is_there_without_requests_and_comes_back() {
        let mut budget = RetryBudget::new(0.2, 1.5);
        assert_eq!(withdraw_all(&mut budget, at_millis(3500)), 15);
        assert_eq!(withdraw_all(&mut budget, at_millis(12_999)), 0);
        assert_eq!(withdraw_all(&mut budget, at_millis(13_000)), 15);
    }

    #[test]
    fn requests_are_forgotten_after_ten_seconds() {
        let mut budget = RetryBudget::new(1.0, 0.0);
        for _ in 0..100 {
            budget.deposit(at_millis(500));
        }
        let mut later_budget = budget.clone();
        assert_eq!(withdraw_all(&mut budget, at_millis(9999)), 100);
        assert_eq!(withdraw_all(&mut later_budget, at_millis(10_000)), 0);
        // Taken out at 9.9 s, paid in at 0.5 s: the debt outlives the payment.
        for _ in 0..50 {
            budget.deposit(at_millis(11_000));
        }
        assert_eq!(withdraw_all(&mut budget, at_millis(11_000)), 0);
    }

    #[test]
    fn retries_never_exceed_their_share_in_the_long_run() {
        let mut budget = RetryBudget::new(0.1, 0.0);
        let mut retries = 0_u32;
        for request in 0..100_000 {
            budget.deposit(at_millis(request));
            retries += u32::from(budget.withdraw(at_millis(request)));
        }
        assert!((9_900..=10_000).contains(&retries), "{retries} retries of 100,000 requests");
    }

    #[test]
    fn nonsense_and_leaps_in_time_are_harmless() {
        let mut budget = RetryBudget::new(f64::NAN, f64::INFINITY);
        budget.deposit(Time(u64::MAX));
        assert!(budget.withdraw(Time(0)), "time that runs backwards counts as standing still");
        let mut empty_budget = RetryBudget::new(-1.0, -1.0);
        empty_budget.deposit(Time(u64::MAX));
        assert!(!empty_budget.withdraw(Time(u64::MAX)));
    }
}
