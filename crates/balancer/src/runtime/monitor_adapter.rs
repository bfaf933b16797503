//! The data plane from the view of the cluster, which watches members.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_cluster as cluster;
use plimsoll_proxy::{CpuUtilization, Engine, MemberRates};

/// The data plane from the view of the cluster, which watches members.
pub(super) struct MonitorAdapter(pub(super) Engine);

impl cluster::Balancer for MonitorAdapter {
    fn counters(&self, group: &str) -> Vec<(Arc<str>, cluster::TrafficCounters)> {
        let counters = self.0.member_counters(group).into_iter().map(|member| {
            let (in_flight, requests, seconds) = (member.in_flight, member.requests, member.seconds);
            (member.name, cluster::TrafficCounters { in_flight, requests, seconds })
        });
        counters.collect()
    }

    fn set_load(&self, group: &str, member: &str, value: f64, age: Duration, is_host_value: bool) {
        self.0.record_load(group, member, value, age, is_host_value);
    }

    fn forget_loads(&self, group: &str) {
        self.0.forget_loads(group);
    }

    fn set_usage(&self, group: &str, member: &str, usage: cluster::MemberUsage, age: Duration) {
        let cluster::MemberUsage { rps, utilization, eps: errors_per_second } = usage;
        self.0.record_usage(group, member, MemberRates { rps, utilization, eps: errors_per_second }, age);
    }

    fn set_cpu_utilization(&self, group: &str, member: &str, cpu: cluster::CpuUtilization, age: Duration) {
        let cluster::CpuUtilization { utilization: cpu_share, processors, covers_host } = cpu;
        self.0.record_processor_load(
            group,
            member,
            CpuUtilization { share: cpu_share, processors: Some(processors), whole_host: covers_host },
            age,
        );
    }

    fn set_weights(&self, group: &str, weights: &[(Arc<str>, Option<f64>)]) {
        self.0.set_weights(group, weights);
    }

    fn note_flood(&self, group: &str, member: &str) {
        self.0.record_report_flood(group, member);
    }

    fn note_missing_reports(&self, group: &str, member: &str, reason: &str) {
        self.0.record_missing_reports(group, member, reason);
    }
}
