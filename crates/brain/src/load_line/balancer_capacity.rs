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

use super::{LONG_HALF_LIFE, ProcessUsage, RECENT_HALF_LIFE, decay_factor};

/// The state of the balancer's own measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BalancerCapacity {
    /// The counts at the last look.
    usage: ProcessUsage,
    /// The processor seconds, requests and seconds of looks with requests only.
    requests_only: [f64; 3],
    /// Over all recent looks: requests and seconds; processor seconds and requests of those with other
    /// traffic.
    recent: [f64; 4],
    /// The processor seconds and seconds of all looks.
    cpu_totals: [f64; 2],
}

impl BalancerCapacity {
    /// Returns the state with the measurement beginning now.
    pub(super) fn new(usage: ProcessUsage) -> Self {
        Self { usage, ..Self::default() }
    }

    /// Takes a look after `seconds`.
    pub(super) fn observe(&mut self, usage: ProcessUsage, seconds: f64) {
        let cpu = (usage.cpu_seconds - self.usage.cpu_seconds).max(0.0);
        // A member that is gone took its count with it.
        let requests = usage.requests.saturating_sub(self.usage.requests) as f64;
        let is_pure = usage.other_traffic == self.usage.other_traffic;
        let (pure_sums, mixed_sums) =
            if is_pure { ([cpu, requests, seconds], [0.0; 2]) } else { ([0.0; 3], [cpu, requests]) };
        let decay = decay_factor(seconds, LONG_HALF_LIFE);
        add_decayed(&mut self.requests_only, pure_sums, decay);
        add_decayed(&mut self.cpu_totals, [cpu, seconds], decay);
        add_decayed(
            &mut self.recent,
            [requests, seconds, mixed_sums[0], mixed_sums[1]],
            decay_factor(seconds, RECENT_HALF_LIFE),
        );
        self.usage = usage;
    }

    /// Returns the processor seconds of a request, if that is known.
    fn cpu_per_request(&self) -> Option<f64> {
        let [cpu, requests, seconds] = self.requests_only;
        let is_sufficient =
            requests >= MIN_REQUESTS && cpu >= MIN_CPU_SHARE * self.usage.processors * seconds;
        is_sufficient.then(|| cpu / requests)
    }

    /// Returns `true` if it would be busy enough to measure without the other traffic.
    pub(super) fn is_mixed(&self) -> bool {
        let [cpu, seconds] = self.cpu_totals;
        self.cpu_per_request().is_none()
            && self.recent[2] > 0.0
            && cpu >= MIN_CPU_SHARE * self.usage.processors * seconds
    }

    /// Returns the requests a second that it can serve for a group with this recent rate, beside its other
    /// work; infinite while that is unknown.
    pub(super) fn capacity(&self, rate: f64) -> f64 {
        let Some(cpu_per_request) = self.cpu_per_request() else { return f64::INFINITY };
        let [requests, seconds, mixed_cpu, mixed_requests] = self.recent;
        let seconds = seconds.max(1e-9);
        let other_traffic_cpu = (mixed_cpu - cpu_per_request * mixed_requests).max(0.0) / seconds;
        let other_rate = (requests / seconds - rate).max(0.0);
        ((self.usage.processors - other_traffic_cpu) / cpu_per_request - other_rate).max(rate)
    }
}

fn add_decayed<const N: usize>(sums: &mut [f64; N], increments: [f64; N], decay: f64) {
    for (sum, increment) in sums.iter_mut().zip(increments) {
        *sum = *sum * decay + increment;
    }
}

/// The minimum utilization of its processors, and the minimum number of requests, from which the cost of one
/// is known.
const MIN_CPU_SHARE: f64 = 0.05;
const MIN_REQUESTS: f64 = 200.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes looks once a second: `requests` of 5 ms, and `others` for other traffic, on two processors.
    fn observe_seconds(
        mut balancer: BalancerCapacity,
        samples: u32,
        requests: u64,
        other_cpu: f64,
    ) -> BalancerCapacity {
        for _ in 0..samples {
            let mut usage = balancer.usage;
            usage.requests += requests;
            usage.cpu_seconds += requests as f64 * 0.005 + other_cpu;
            usage.other_traffic += u64::from(other_cpu > 0.0);
            balancer.observe(usage, 1.0);
        }
        balancer
    }

    fn new_balancer() -> BalancerCapacity {
        BalancerCapacity::new(ProcessUsage {
            processors: 2.0,
            requests: 1_000_000,
            ..ProcessUsage::default()
        })
    }

    #[track_caller]
    fn assert_close(actual: f64, expected: f64) {
        assert!((actual / expected - 1.0).abs() < 0.02, "{actual}, not {expected}");
    }

    #[test]
    fn a_count_that_goes_down_is_no_huge_number() {
        let balancer = observe_seconds(new_balancer(), 60, 100, 0.0);
        assert_close(balancer.capacity(100.0), 400.0);
        // A member is gone, and with it most of its served requests.
        let mut usage = balancer.usage;
        (usage.requests, usage.cpu_seconds) = (usage.requests - 900_000, usage.cpu_seconds + 0.5);
        let mut reset_balancer = balancer;
        reset_balancer.observe(usage, 1.0);
        let cpu_per_request = reset_balancer.cpu_per_request().unwrap();
        assert!(cpu_per_request > 0.004 && cpu_per_request < 0.006, "{cpu_per_request}");
        assert!(reset_balancer.recent[0] / reset_balancer.recent[1] < 101.0, "{:?}", reset_balancer.recent);
        assert_close(observe_seconds(reset_balancer, 30, 100, 0.0).capacity(100.0), 400.0);
        // Processor seconds do not run backwards either.
        usage.cpu_seconds -= 5.0;
        reset_balancer.observe(usage, 1.0);
        assert!(
            reset_balancer.requests_only[0] > 0.0
                && reset_balancer.cpu_per_request().is_some_and(|cpu_per_request| cpu_per_request > 0.0)
        );
    }

    #[test]
    fn what_is_no_request_costs_requests_nothing() {
        let balancer = observe_seconds(new_balancer(), 60, 100, 0.0);
        // 0.8 of the two processors carry other traffic now.
        let mixed_balancer = observe_seconds(balancer, 30, 100, 0.8);
        assert_close(mixed_balancer.capacity(100.0), 240.0);
        assert!(!mixed_balancer.is_mixed());
        // The processors are free again.
        assert_close(observe_seconds(mixed_balancer, 40, 100, 0.0).capacity(100.0), 400.0);
        let mixed_balancer_only = observe_seconds(new_balancer(), 90, 100, 0.8);
        assert!(mixed_balancer_only.capacity(100.0).is_infinite() && mixed_balancer_only.is_mixed());
    }

    #[test]
    fn what_other_groups_have_now_is_taken_off_what_there_is_now() {
        // 100 a second for long, 300 recently, of which this group has 50.
        let balancer = observe_seconds(observe_seconds(new_balancer(), 240, 100, 0.0), 40, 300, 0.0);
        assert_close(balancer.capacity(50.0), 150.0);
    }

    #[test]
    fn who_is_idle_is_not_known() {
        let idle_balancer = observe_seconds(new_balancer(), 60, 5, 0.0);
        assert!(idle_balancer.capacity(5.0).is_infinite() && !idle_balancer.is_mixed());
    }
}
