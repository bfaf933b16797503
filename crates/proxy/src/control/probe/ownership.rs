//! The ownership of health checks in a fleet of balancers: this one checks a member, or others do and send
//! their results.
//!
//! A balancer without a new result for 2.2 intervals and the time limit of a check checks by itself, whatever
//! was agreed. Another balancer's successful check is accepted; a failed one leads to a check at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::runtime::sync::lock;

/// The duty for one member.
#[derive(Debug, Default)]
pub(crate) struct ProbeOwnership {
    /// Whether others check.
    others: AtomicBool,
    /// The time of the last check that they reported.
    last_reported: Mutex<Option<Instant>>,
    wake: Notify,
}

impl ProbeOwnership {
    /// Assigns the checks to this balancer or to others.
    pub(crate) fn assign(&self, mine: bool) {
        self.others.store(!mine, Relaxed);
        if mine {
            self.wake.notify_one();
        }
    }

    /// Returns `true` if this balancer has to check.
    pub(crate) fn is_ours(&self) -> bool {
        !self.others.load(Relaxed)
    }

    /// Records the time of another balancer's check, whose result is accepted.
    pub(crate) fn record_check(&self, at: Instant) {
        let mut told = lock(&self.last_reported);
        *told = (*told).max(Some(at));
    }

    /// Requests a check at once.
    pub(crate) fn call(&self) {
        *lock(&self.last_reported) = None;
        self.wake.notify_one();
    }

    /// Returns `true` if no check is required now.
    pub(crate) fn is_covered(&self, interval: Duration, patience: Duration, now: Instant) -> bool {
        // Intervals are jittered by at most a tenth, and the other balancer's check takes time.
        let fresh = interval.mul_f64(2.2) + patience;
        !self.is_ours()
            && lock(&self.last_reported).is_some_and(|told| now.saturating_duration_since(told) <= fresh)
    }

    /// Waits until a time, or until a check is requested.
    pub(crate) async fn until_requested(&self, until: Instant) {
        tokio::select! {
            () = sleep_until(until) => {}
            () = self.wake.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_util::run;

    #[test]
    fn who_is_not_told_anything_checks() {
        let duty = ProbeOwnership::default();
        let begun = Instant::now() + Duration::from_secs(100);
        let (interval, patience) = (Duration::from_secs(2), Duration::from_secs(1));
        let rests = |after: u64| duty.is_covered(interval, patience, begun + Duration::from_secs(after));
        duty.record_check(begun);
        assert!(duty.is_ours() && !rests(0), "it is for this one to check");
        duty.assign(false);
        assert!(rests(0) && rests(5));
        assert!(!rests(6), "nobody has told anything for long");
        duty.record_check(begun + Duration::from_secs(4));
        duty.record_check(begun + Duration::from_secs(1));
        assert!(rests(9), "what is older than what is known says nothing");
        duty.call();
        assert!(!rests(5));
        duty.record_check(begun + Duration::from_secs(5));
        duty.assign(true);
        assert!(!rests(5));
    }

    #[test]
    fn who_is_called_does_not_wait() {
        run(|_| async {
            let duty = ProbeOwnership::default();
            let far = Instant::now() + Duration::from_secs(3600);
            duty.call();
            duty.until_requested(far).await;
            duty.until_requested(Instant::now() + Duration::from_millis(1)).await;
        });
    }
}
