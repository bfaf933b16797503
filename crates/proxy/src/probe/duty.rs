//! Who checks a member where several balancers act together: this one, or others who say what they find.
//!
//! Whoever is not told anything new for two intervals checks by itself, whatever was agreed. That a check of another passed is
//! believed; that one failed is a reason to look at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::inner::lock;

/// One member's.
#[derive(Debug, Default)]
pub(crate) struct Duty {
    /// Do others check?
    others: AtomicBool,
    /// When the last check was made that they told of.
    told: Mutex<Option<Instant>>,
    call: Notify,
}

impl Duty {
    /// It is for this balancer to check, or for others.
    pub(crate) fn charge(&self, mine: bool) {
        self.others.store(!mine, Relaxed);
        if mine {
            self.call.notify_one();
        }
    }

    /// Is it for this balancer to check?
    pub(crate) fn mine(&self) -> bool {
        !self.others.load(Relaxed)
    }

    /// Another told what it found in a check at that time, and that is enough.
    pub(crate) fn tell(&self, at: Instant) {
        let mut told = lock(&self.told);
        *told = (*told).max(Some(at));
    }

    /// It is to be checked at once.
    pub(crate) fn call(&self) {
        *lock(&self.told) = None;
        self.call.notify_one();
    }

    /// Is there no need to check now?
    pub(crate) fn rests(&self, interval: Duration, patience: Duration, now: Instant) -> bool {
        // Waits are longer than the interval by a tenth at most, and the other's check takes its time.
        let fresh = interval.mul_f64(2.2) + patience;
        !self.mine() && lock(&self.told).is_some_and(|told| now.saturating_duration_since(told) <= fresh)
    }

    /// Waits until then, or until it is called.
    pub(crate) async fn called(&self, until: Instant) {
        tokio::select! {
            () = sleep_until(until) => {}
            () = self.call.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::run;

    #[test]
    fn who_is_not_told_anything_checks() {
        let duty = Duty::default();
        let begun = Instant::now() + Duration::from_secs(100);
        let (interval, patience) = (Duration::from_secs(2), Duration::from_secs(1));
        let rests = |after: u64| duty.rests(interval, patience, begun + Duration::from_secs(after));
        duty.tell(begun);
        assert!(duty.mine() && !rests(0), "it is for this one to check");
        duty.charge(false);
        assert!(rests(0) && rests(5));
        assert!(!rests(6), "nobody has told anything for long");
        duty.tell(begun + Duration::from_secs(4));
        duty.tell(begun + Duration::from_secs(1));
        assert!(rests(9), "what is older than what is known says nothing");
        duty.call();
        assert!(!rests(5));
        duty.tell(begun + Duration::from_secs(5));
        duty.charge(true);
        assert!(!rests(5));
    }

    #[test]
    fn who_is_called_does_not_wait() {
        run(|_| async {
            let duty = Duty::default();
            let far = Instant::now() + Duration::from_secs(3600);
            duty.call();
            duty.called(far).await;
            duty.called(Instant::now() + Duration::from_millis(1)).await;
        });
    }
}
