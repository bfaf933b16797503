//! The input of a group's load line: counters of all cores, summed once per second on the slow path, and
//! agents' reports about members' processors. `plimsoll_brain::load_line` contains the model.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use plimsoll_brain::load_line::{
    CONCURRENCY_LEVELS, CapacityEstimator, CohostedWork, CpuUtilization, GroupLoadSample, MemberLoadSample,
    ProcessUsage,
};
use plimsoll_brain::status::{LoadLine, MemberLoadLine};
use plimsoll_brain::{MemberId, Time};

use crate::ListenerSettings;
use crate::control::status_report;
use crate::control::{ControlPlane, GroupState, group_names};
use crate::runtime::clock;
use crate::upstream::group::{MemberCoreCounters, MemberRecord};
use crate::upstream::stats::{Counter, HistogramSum};

/// The load line of one group.
#[derive(Default)]
pub(crate) struct GroupLoadLine {
    estimator: CapacityEstimator,
    /// The last reports about members' processors.
    processors: BTreeMap<MemberId, (CpuUtilization, Time)>,
    /// The counters at the last sample.
    totals: TrafficTotals,
}

impl GroupLoadLine {
    pub(crate) fn status(&self) -> Option<LoadLine> {
        self.estimator.status()
    }

    pub(crate) fn member(&self, member: MemberId) -> Option<MemberLoadLine> {
        self.estimator.member(member)
    }
}

impl ControlPlane {
    /// Samples the traffic of groups. `stirring` are the groups that may have been active since the last
    /// sample.
    pub(crate) fn sample_load_lines(&mut self, active_groups: &BTreeSet<Arc<str>>, now: Time) {
        // Groups whose traffic is not requests only; requests end by themselves.
        let carries_no_requests = |listener: &&ListenerSettings| !listener.carries_requests();
        let sessions = group_names(self.settings.listeners.iter().filter(carries_no_requests));
        let (mut requests, mut other_traffic) = (0_u64, 0_u64);
        for (name, group_state) in &mut self.groups {
            if active_groups.contains(name) {
                group_state.load_line.totals = group_state.traffic_totals();
            }
            let (more_requests, more_other_traffic) =
                group_state.load_line.totals.work_counts(!sessions.contains(&**name));
            (requests, other_traffic) =
                (requests.wrapping_add(more_requests), other_traffic.wrapping_add(more_other_traffic));
        }
        let process_usage = ProcessUsage {
            cpu_seconds: clock::processor_seconds(),
            requests,
            other_traffic,
            processors: (self.cores as f64).min(*PROCESSORS),
        };
        let mut hosts = BTreeMap::new();
        // Other work at a member's host matters only where that host's processors are reported.
        if self.groups.values().any(|group_state| !group_state.load_line.processors.is_empty()) {
            for (_, group_state) in self.groups.iter().filter(|(name, _)| !sessions.contains(&***name)) {
                group_state.add_to_hosts(&mut hosts);
            }
        }
        for name in active_groups {
            if let Some(group_state) = self.groups.get_mut(name) {
                group_state.sample_load_line(!sessions.contains(&**name), process_usage, &hosts, now);
            }
        }
    }

    /// Records an agent's report of a member's processor utilization at `at`.
    pub(crate) fn record_processor_load(
        &mut self,
        group: &str,
        member: &str,
        cpu: CpuUtilization,
        measured_at: Time,
    ) {
        let is_valid = |number: f64| number.is_finite() && number >= 0.0;
        let Some(group_state) = self.groups.get_mut(group).filter(|_| is_valid(cpu.share)) else { return };
        let Some(id) = group_state.id(member) else { return };
        let processors = cpu.processors.filter(|count| is_valid(*count) && *count > 0.0);
        let is_newer = group_state
            .load_line
            .processors
            .get(&id)
            .is_none_or(|(_, recorded_at)| *recorded_at < measured_at);
        if is_newer {
            group_state.load_line.processors.insert(id, (CpuUtilization { processors, ..cpu }, measured_at));
        }
    }
}

impl GroupState {
    /// Returns the sums over all of its members.
    fn traffic_totals(&self) -> TrafficTotals {
        let records = self.analyzer.members().filter_map(|(id, ..)| self.record(id));
        let mut totals = TrafficTotals::default();
        records.flat_map(|record| record.all_counters()).for_each(|counters| totals.add(counters));
        totals
    }

    /// Returns the recent reports about members' processors.
    pub(crate) fn processors(&self, now: Time) -> BTreeMap<String, f64> {
        let fresh_report = |id: MemberId| {
            self.load_line
                .processors
                .get(&id)
                .filter(|(_, received_at)| now.since(*received_at) <= MAX_REPORT_AGE)
        };
        let members = self.analyzer.members();
        members.filter_map(|(id, spec, _)| Some((spec.name.to_string(), fresh_report(id)?.0.share))).collect()
    }

    /// Adds the sums of its members to those of their hosts.
    fn add_to_hosts(&self, hosts: &mut BTreeMap<Arc<str>, CohostedWork>) {
        for (id, ..) in self.analyzer.members() {
            let (Some(host), Some(record)) = (self.hosts.host_of(id), self.record(id)) else { continue };
            let host_work = hosts.entry(Arc::clone(host)).or_default();
            host_work.members += 1;
            host_work.requests = host_work.requests.wrapping_add(sum(record, |counters| &counters.requests));
            host_work.seconds += seconds(record);
        }
    }

    /// Samples a group. `hosts` are the sums, by host, over all members of groups whose traffic is requests.
    fn sample_load_line(
        &mut self,
        carries_requests: bool,
        process_usage: ProcessUsage,
        hosts: &BTreeMap<Arc<str>, CohostedWork>,
        now: Time,
    ) {
        let published = self.group.published();
        let weights: BTreeMap<MemberId, f64> =
            published.plan.members().iter().map(|member| (member.id, member.weight)).collect();
        let records: Vec<_> = self
            .analyzer
            .members()
            .filter_map(|(id, spec, vitals)| {
                Some((
                    id,
                    spec.capacity,
                    vitals.meter_report(now),
                    vitals.peer_rate_and_waiting().0,
                    self.record(id)?,
                ))
            })
            .collect();
        // Only for members that were active since the last sample.
        let levels: Vec<_> = records
            .iter()
            .map(|(id, _, _, _, record)| {
                let requests = sum(record, |counters| &counters.requests);
                let is_current = self.load_line.estimator.is_current(*id, requests, now);
                let levels = if is_current { Vec::new() } else { levels(record).to_vec() };
                (requests, levels)
            })
            .collect();
        let members: Vec<_> = records
            .iter()
            .zip(&levels)
            .map(|((id, capacity, meter_report, rate_elsewhere, record), (requests, levels))| {
                MemberLoadSample {
                    id: *id,
                    usable: weights.contains_key(id),
                    weight: weights.get(id).copied().unwrap_or_default(),
                    capacity: *capacity,
                    requests: *requests,
                    failures: sum(record, |counters| &counters.failures),
                    seconds: seconds(record),
                    levels,
                    meter_report: *meter_report,
                    cpu: self.load_line.processors.get(id).copied(),
                    cohosted: self
                        .hosts
                        .host_of(*id)
                        .and_then(|host| hosts.get(host))
                        .map_or_else(CohostedWork::default, |work_on_host| {
                            work_of_others(work_on_host, record)
                        }),
                    rate_elsewhere: *rate_elsewhere,
                }
            })
            .collect();
        let latency = status_report::latency(&self.group);
        let strategy = self.settings.spec.strategy;
        let sample = GroupLoadSample {
            only_requests: carries_requests,
            by_load: strategy.prefers_less_load,
            // Strategies with keys distribute clients, which differ in load.
            by_weight: strategy.shares && !strategy.reads_key,
            members: &members,
            latencies: latency.counts(),
            bucket_middles: &MIDDLES,
            process: process_usage,
        };
        self.load_line.estimator.observe(&sample, now);
        let processors = &mut self.load_line.processors;
        if !processors.is_empty() {
            let present: BTreeSet<MemberId> = members.iter().map(|member| member.id).collect();
            processors.retain(|id, _| present.contains(id));
        }
    }
}

fn sum(record: &MemberRecord, count: fn(&MemberCoreCounters) -> &Counter) -> u64 {
    record.all_counters().map(|counters| count(counters).value()).fold(0, u64::wrapping_add)
}

fn seconds(record: &MemberRecord) -> f64 {
    record.all_counters().map(|counters| counters.latency.seconds()).sum()
}

/// Returns the sums of the other members of a host.
fn work_of_others(total: &CohostedWork, member: &MemberRecord) -> CohostedWork {
    CohostedWork {
        members: total.members.saturating_sub(1),
        requests: total.requests.wrapping_sub(sum(member, |counters| &counters.requests)),
        seconds: (total.seconds - seconds(member)).max(0.0),
    }
}

fn levels(record: &MemberRecord) -> [[u64; 2]; CONCURRENCY_LEVELS] {
    let mut levels = [[0; 2]; CONCURRENCY_LEVELS];
    record.all_counters().for_each(|counters| counters.latency_by_concurrency.sum(&mut levels));
    levels
}

/// The sums over members of a group.
#[derive(Clone, Copy, Debug, Default)]
struct TrafficTotals {
    requests: u64,
    bytes: u64,
    relayed_bytes: u64,
}

impl TrafficTotals {
    fn add(&mut self, counters: &MemberCoreCounters) {
        let add_count = |sum: &mut u64, count: &Counter| *sum = sum.wrapping_add(count.value());
        add_count(&mut self.requests, &counters.requests);
        add_count(&mut self.bytes, &counters.bytes_out);
        add_count(&mut self.bytes, &counters.bytes_in);
        add_count(&mut self.relayed_bytes, &counters.bytes_relayed);
    }

    /// Returns the number of requests, and a number that changes with any other work. `requests` is `true` if
    /// the group carries nothing else.
    fn work_counts(self, requests: bool) -> (u64, u64) {
        match requests {
            // A request that became a byte stream costs as long as that lasts.
            true => (self.requests, self.relayed_bytes),
            false => (0, self.requests.wrapping_add(self.bytes)),
        }
    }
}

/// The latencies that the histogram's buckets represent.
pub(crate) static MIDDLES: LazyLock<Vec<f64>> = LazyLock::new(HistogramSum::bucket_middles);

/// The number of processors that this process may use.
static PROCESSORS: LazyLock<f64> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get) as f64);

/// The age from which a report is not used.
const MAX_REPORT_AGE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_streams_are_no_requests_whatever_they_began_as() {
        let (http, tcp) = (MemberCoreCounters::default(), MemberCoreCounters::default());
        let work_counts = |counters: &MemberCoreCounters, requests| {
            let mut totals = TrafficTotals::default();
            totals.add(counters);
            totals.work_counts(requests)
        };
        let current_counts = || {
            let (http_counts, tcp_counts) = (work_counts(&http, true), work_counts(&tcp, false));
            (http_counts.0 + tcp_counts.0, http_counts.1 + tcp_counts.1)
        };
        http.requests.add(5);
        http.bytes_in.add(1000);
        assert_eq!(current_counts(), (5, 0));
        // A WebSocket.
        http.bytes_relayed.add(7);
        assert_eq!(current_counts(), (5, 7));
        tcp.bytes_out.add(2);
        assert_eq!(current_counts(), (5, 9));
    }
}
