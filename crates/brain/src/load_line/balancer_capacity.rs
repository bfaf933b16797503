//! The capacity of the balancer itself: processor seconds of its process over the requests that it ended
//! meanwhile.
//!
//! It may carry more than requests: sessions and datagrams, which cost processor time and are not counted
//! here. So the cost of a request is learnt only from looks without other traffic. The present cost of that
//! traffic is the processor time that requests do not explain, which is not available for more requests. If
//! that traffic never stops, the cost of a request is unknown, and there is no result.
//!
//! Both sides of each quotient have the same memory: the cost of a request is that of the last minutes, the
//! present work that of the last seconds, as the rate of the group is.

use super::{MEMORY, ProcessUsage, RECENT, decay_factor};

/// The state of the balancer's own measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BalancerCapacity {
    /// The counts at the last look.
    own: ProcessUsage,
    /// The processor seconds, requests and seconds of looks with requests only.
    requests_only: [f64; 3],
    /// Over all recent looks: requests and seconds; processor seconds and requests of those with other
    /// traffic.
    recent: [f64; 4],
    /// The processor seconds and seconds of all looks.
    busy: [f64; 2],
}

impl BalancerCapacity {
    /// Returns the state with the measurement beginning now.
    pub(super) fn new(own: ProcessUsage) -> Self {
        Self { own, ..Self::default() }
    }

    /// Takes a look after `seconds`.
    pub(super) fn observe(&mut self, own: ProcessUsage, seconds: f64) {
        let cpu = (own.cpu_seconds - self.own.cpu_seconds).max(0.0);
        // A member that is gone took its count with it.
        let requests = own.requests.saturating_sub(self.own.requests) as f64;
        let is_pure = own.other_traffic == self.own.other_traffic;
        let (pure, mixed) =
            if is_pure { ([cpu, requests, seconds], [0.0; 2]) } else { ([0.0; 3], [cpu, requests]) };
        let kept = decay_factor(seconds, MEMORY);
        add(&mut self.requests_only, pure, kept);
        add(&mut self.busy, [cpu, seconds], kept);
        add(&mut self.recent, [requests, seconds, mixed[0], mixed[1]], decay_factor(seconds, RECENT));
        self.own = own;
    }

    /// Returns the processor seconds of a request, if that is known.
    fn each(&self) -> Option<f64> {
        let [cpu, requests, seconds] = self.requests_only;
        let enough = requests >= FEW && cpu >= BUSY * self.own.processors * seconds;
        enough.then(|| cpu / requests)
    }

    /// Returns `true` if it would be busy enough to measure without the other traffic.
    pub(super) fn is_mixed(&self) -> bool {
        let [cpu, seconds] = self.busy;
        self.each().is_none() && self.recent[2] > 0.0 && cpu >= BUSY * self.own.processors * seconds
    }

    /// Returns the requests a second that it can serve for a group with this recent rate, beside its other
    /// work; infinite while that is unknown.
    pub(super) fn capacity(&self, rate: f64) -> f64 {
        let Some(each) = self.each() else { return f64::INFINITY };
        let [requests, seconds, mixed, paid] = self.recent;
        let seconds = seconds.max(1e-9);
        let carrying = (mixed - each * paid).max(0.0) / seconds;
        let elsewhere = (requests / seconds - rate).max(0.0);
        ((self.own.processors - carrying) / each - elsewhere).max(rate)
    }
}

fn add<const N: usize>(sums: &mut [f64; N], fresh: [f64; N], kept: f64) {
    for (sum, fresh) in sums.iter_mut().zip(fresh) {
        *sum = *sum * kept + fresh;
    }
}

/// The minimum utilization of its processors, and the minimum number of requests, from which the cost of one
/// is known.
const BUSY: f64 = 0.05;
const FEW: f64 = 200.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes looks once a second: `requests` of 5 ms, and `others` for other traffic, on two processors.
    fn after(mut balancer: BalancerCapacity, looks: u32, requests: u64, others: f64) -> BalancerCapacity {
        for _ in 0..looks {
            let mut own = balancer.own;
            own.requests += requests;
            own.cpu_seconds += requests as f64 * 0.005 + others;
            own.other_traffic += u64::from(others > 0.0);
            balancer.observe(own, 1.0);
        }
        balancer
    }

    fn fresh() -> BalancerCapacity {
        BalancerCapacity::new(ProcessUsage {
            processors: 2.0,
            requests: 1_000_000,
            ..ProcessUsage::default()
        })
    }

    #[track_caller]
    fn about(found: f64, truth: f64) {
        assert!((found / truth - 1.0).abs() < 0.02, "{found}, not {truth}");
    }

    #[test]
    fn a_count_that_goes_down_is_no_huge_number() {
        let known = after(fresh(), 60, 100, 0.0);
        about(known.capacity(100.0), 400.0);
        // A member is gone, and with it most of its served requests.
        let mut own = known.own;
        (own.requests, own.cpu_seconds) = (own.requests - 900_000, own.cpu_seconds + 0.5);
        let mut less = known;
        less.observe(own, 1.0);
        let each = less.each().unwrap();
        assert!(each > 0.004 && each < 0.006, "{each}");
        assert!(less.recent[0] / less.recent[1] < 101.0, "{:?}", less.recent);
        about(after(less, 30, 100, 0.0).capacity(100.0), 400.0);
        // Processor seconds do not run backwards either.
        own.cpu_seconds -= 5.0;
        less.observe(own, 1.0);
        assert!(less.requests_only[0] > 0.0 && less.each().is_some_and(|each| each > 0.0));
    }

    #[test]
    fn what_is_no_request_costs_requests_nothing() {
        let known = after(fresh(), 60, 100, 0.0);
        // 0.8 of the two processors carry other traffic now.
        let both = after(known, 30, 100, 0.8);
        about(both.capacity(100.0), 240.0);
        assert!(!both.is_mixed());
        // The processors are free again.
        about(after(both, 40, 100, 0.0).capacity(100.0), 400.0);
        let never_alone = after(fresh(), 90, 100, 0.8);
        assert!(never_alone.capacity(100.0).is_infinite() && never_alone.is_mixed());
    }

    #[test]
    fn what_other_groups_have_now_is_taken_off_what_there_is_now() {
        // 100 a second for long, 300 recently, of which this group has 50.
        let balancer = after(after(fresh(), 240, 100, 0.0), 40, 300, 0.0);
        about(balancer.capacity(50.0), 150.0);
    }

    #[test]
    fn who_is_idle_is_not_known() {
        let idle = after(fresh(), 60, 5, 0.0);
        assert!(idle.capacity(5.0).is_infinite() && !idle.is_mixed());
    }
}
