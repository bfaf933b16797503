//! The data plane from the view of the cluster, which watches members.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_cluster as cluster;
use plimsoll_proxy::{Cpu, Engine, Rates};

/// The data plane from the view of the cluster, which watches members.
pub(super) struct Joint(pub(super) Engine);

impl cluster::Balancer for Joint {
    fn counters(&self, group: &str) -> Vec<(Arc<str>, cluster::Counters)> {
        let counters = self.0.counters(group).into_iter().map(|member| {
            let (in_flight, requests, seconds) = (member.in_flight, member.requests, member.seconds);
            (member.name, cluster::Counters { in_flight, requests, seconds })
        });
        counters.collect()
    }

    fn load(&self, group: &str, member: &str, value: f64, age: Duration, of_host: bool) {
        self.0.load(group, member, value, age, of_host);
    }

    fn forget_loads(&self, group: &str) {
        self.0.forget_loads(group);
    }

    fn usage(&self, group: &str, member: &str, usage: cluster::Usage, age: Duration) {
        let cluster::Usage { rps, utilization, eps } = usage;
        self.0.usage(group, member, Rates { rps, utilization, eps }, age);
    }

    fn sensed(&self, group: &str, member: &str, sensed: cluster::Sensed, age: Duration) {
        let cluster::Sensed { share, processors, whole } = sensed;
        self.0.sensed(group, member, Cpu { share, processors: Some(processors), whole }, age);
    }

    fn weights(&self, group: &str, weights: &[(Arc<str>, Option<f64>)]) {
        self.0.weights(group, weights);
    }

    fn flooded(&self, group: &str, member: &str) {
        self.0.flooded(group, member);
    }

    fn no_reports(&self, group: &str, member: &str, why: &str) {
        self.0.no_reports(group, member, why);
    }
}
