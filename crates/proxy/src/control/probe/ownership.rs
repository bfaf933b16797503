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
    others_check: AtomicBool,
    /// The time of the last check that they reported.
    last_reported: Mutex<Option<Instant>>,
    wake: Notify,
}

impl ProbeOwnership {
    /// Assigns the checks to this balancer or to others.
    pub(crate) fn assign(&self, ours: bool) {
        self.others_check.store(!ours, Relaxed);
        if ours {
            self.wake.notify_one();
        }
    }

    /// Returns `true` if this balancer has to check.
    pub(crate) fn is_ours(&self) -> bool {
        !self.others_check.load(Relaxed)
    }

    /// Records the time of another balancer's check, whose result is accepted.
    pub(crate) fn record_check(&self, checked_at: Instant) {
        let mut last_reported = lock(&self.last_reported);
        *last_reported = (*last_reported).max(Some(checked_at));
    }

    /// Requests a check at once.
    pub(crate) fn call(&self) {
        *lock(&self.last_reported) = None;
        self.wake.notify_one();
    }

    /// Returns `true` if no check is required now.
    pub(crate) fn is_covered(&self, interval: Duration, timeout: Duration, now: Instant) -> bool {
        // Intervals are jittered by at most a tenth, and the other balancer's check takes time.
        let max_age = interval.mul_f64(2.2) + timeout;
        !self.is_ours()
            && lock(&self.last_reported)
                .is_some_and(|reported_at| now.saturating_duration_since(reported_at) <= max_age)
    }

    /// Waits until a time, or until a check is requested.
    pub(crate) async fn until_requested(&self, deadline: Instant) {
        tokio::select! {
            () = sleep_until(deadline) => {}
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
        let ownership = ProbeOwnership::default();
        let started_at = Instant::now() + Duration::from_secs(100);
        let (interval, timeout) = (Duration::from_secs(2), Duration::from_secs(1));
        let is_covered =
            |seconds: u64| ownership.is_covered(interval, timeout, started_at + Duration::from_secs(seconds));
        ownership.record_check(started_at);
        assert!(ownership.is_ours() && !is_covered(0), "it is for this one to check");
        ownership.assign(false);
        assert!(is_covered(0) && is_covered(5));
        assert!(!is_covered(6), "nobody has told anything for long");
        ownership.record_check(started_at + Duration::from_secs(4));
        ownership.record_check(started_at + Duration::from_secs(1));
        assert!(is_covered(9), "what is older than what is known says nothing");
        ownership.call();
        assert!(!is_covered(5));
        ownership.record_check(started_at + Duration::from_secs(5));
        ownership.assign(true);
        assert!(!is_covered(5));
    }

    #[test]
    fn who_is_called_does_not_wait() {
        run(|_| async {
            let ownership = ProbeOwnership::default();
            let deadline = Instant::now() + Duration::from_secs(3600);
            ownership.call();
            ownership.until_requested(deadline).await;
            ownership.until_requested(Instant::now() + Duration::from_millis(1)).await;
        });
    }
}
