//! Load reports (LRS) of clients about the requests that they sent to members directly, once per second. The
//! requests count as work of the members as if they had passed through this process.
//!
//! Reports contain no latencies. By Little's law, the latency follows from the numbers in flight and
//! completed:
//!
//! ```text
//! latency = requests in flight (a mean over several reports) × time between reports ÷ completed requests
//! ```
//!
//! It is recorded as a mean. If requests are also sent from here, these show how fast a member is.
//!
//! For a gRPC client, every status but OK is a failure, NOT_FOUND as well as UNAVAILABLE. So failures count
//! in the comparison of members (success rates), but not for the ejection after a sequence of failures.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_wire::orca::{MAX_METRICS, MAX_NAME};
use plimsoll_wire::xds::{
    ClusterStats, LoadStatsRequest, LoadStatsResponse, LocalityStats, ProtobufDuration, SEND_ALL_CLUSTERS,
};

use super::grpc_call::{CallStatus, IncomingMessages, OutgoingMessages};
use super::resource;
use crate::listener::Listener;
use crate::upstream::group::{MemberRecord, SharedGroup};
use crate::upstream::pool::GroupPool;
use crate::upstream::thread_context::ThreadContext;

/// The interval of reports: gRPC clients report no more often.
const INTERVAL: ProtobufDuration = ProtobufDuration { seconds: 1, nanos: 0 };
/// The maximum number of requests of one client at one member that is accepted, in flight and between two
/// reports.
const MAX_REQUESTS: u64 = 1_000_000;
/// The weight of a report in the mean of requests in flight.
const MEAN_WEIGHT: f64 = 0.2;
/// The maximum of a mean latency.
const MAX_LATENCY: Duration = Duration::from_secs(3600);

/// Serves the stream to its end.
pub(super) async fn serve_reports(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    mut incoming: IncomingMessages,
    mut out: OutgoingMessages,
) {
    let mut client_load = ClientLoad::new(core.index, core.now());
    let status = run_stream(&core, &listener, &mut client_load, &mut incoming, &mut out).await;
    out.finish(status);
}

async fn run_stream(
    core: &Rc<ThreadContext>,
    listener: &Rc<Listener>,
    client_load: &mut ClientLoad,
    incoming: &mut IncomingMessages,
    out: &mut OutgoingMessages,
) -> CallStatus {
    let mut has_replied = false;
    loop {
        let request: LoadStatsRequest = tokio::select! {
            biased;
            () = listener.until_closed() => return CallStatus::Unavailable,
            request = incoming.next_message() => match request {
                Ok(Some(request)) => request,
                Ok(None) => return CallStatus::Ok,
                Err(status) => return status,
            },
        };
        if !std::mem::replace(&mut has_replied, true) {
            let timeout = listener.settings().timeouts.body;
            if let Err(status) = out.send(core, timeout, &requested_groups(listener, &request)).await {
                return status;
            }
        }
        client_load.record_report(&request, core.tick(), |group| listener.pool_of(group));
    }
}

/// Returns the groups on which a client should report.
fn requested_groups(listener: &Listener, request: &LoadStatsRequest) -> LoadStatsResponse {
    let features = request.node.iter().flat_map(|node| &node.client_features);
    let send_all = features.into_iter().any(|feature| feature == SEND_ALL_CLUSTERS);
    let clusters =
        if send_all { Vec::new() } else { listener.groups().iter().map(|name| name.to_string()).collect() };
    LoadStatsResponse { clusters, load_reporting_interval: Some(INTERVAL), send_all_clusters: send_all }
}

/// The requests of one client in flight.
struct ClientLoad {
    core: usize,
    last_report_at: Time,
    /// The state by group and member.
    members: BTreeMap<(Arc<str>, Arc<str>), ClientMemberLoad>,
    /// The work begun from here at the members of each group, as of the last report.
    begun_counts: BTreeMap<Arc<str>, u32>,
}

/// The state at one member.
struct ClientMemberLoad {
    group: Arc<SharedGroup>,
    record: Arc<MemberRecord>,
    in_flight: u32,
    /// The mean of requests in flight.
    mean: f64,
}

/// A report's sums for one member, over all its localities and priorities.
#[derive(Default)]
struct ReportSum {
    in_flight: u64,
    succeeded: u64,
    failed: u64,
    values: Vec<(String, f64)>,
}

impl ClientLoad {
    fn new(core: usize, now: Time) -> Self {
        Self { core, last_report_at: now, members: BTreeMap::new(), begun_counts: BTreeMap::new() }
    }

    /// Records a report: all requests in flight, and those completed since the previous report. Members that
    /// are not mentioned have none.
    fn record_report(
        &mut self,
        request: &LoadStatsRequest,
        now: Time,
        find: impl Fn(&str) -> Option<Rc<GroupPool>>,
    ) {
        let elapsed = now.since(std::mem::replace(&mut self.last_report_at, now));
        let mut previous = std::mem::take(&mut self.members);
        let previous_begun = std::mem::take(&mut self.begun_counts);
        for stats in &request.cluster_stats {
            if let Some(pool) = find(&stats.cluster_name) {
                self.cluster(stats, &pool, &mut previous, previous_begun.get(&pool.group.name), elapsed, now);
            }
        }
    }

    fn cluster(
        &mut self,
        stats: &ClusterStats,
        pool: &Rc<GroupPool>,
        previous: &mut BTreeMap<(Arc<str>, Arc<str>), ClientMemberLoad>,
        previous_begun: Option<&u32>,
        elapsed: Duration,
        now: Time,
    ) {
        let view = pool.view();
        let published = &view.published;
        let sampled = published.settings.sample_interval().is_some();
        let begun_count = published.records.iter().map(|member_record| member_record.vitals.begun_here());
        let begun_count = begun_count.fold(0, u32::wrapping_add);
        // Whether only such clients send requests there: then their reports are the only source.
        let is_sole_client = previous_begun == Some(&begun_count);
        self.begun_counts.insert(Arc::clone(&pool.group.name), begun_count);
        let mut sums: BTreeMap<&str, ReportSum> = BTreeMap::new();
        for locality_stats in &stats.upstream_locality_stats {
            let Some(locality) = &locality_stats.locality else { continue };
            sums.entry(resource::member(locality)).or_default().add(locality_stats, sampled);
        }
        let members = published.plan.members().iter().zip(&published.records);
        let members: BTreeMap<&str, _> =
            members.map(|(member, record)| (&*member.name, (member, record))).collect();
        let interval = stats.load_report_interval.and_then(|span| span.to_seconds());
        let interval_secs = interval.filter(|seconds| *seconds > 0.0).unwrap_or(elapsed.as_secs_f64());
        for (name, sum) in sums {
            let planned = members.get(name);
            let name = planned.map_or_else(|| Arc::from(name), |(member, _)| Arc::clone(&member.name));
            let key = (Arc::clone(&pool.group.name), name);
            // If a report names a group twice, the last part applies.
            let mut member_load = previous.remove(&key).or_else(|| self.members.remove(&key));
            if let Some((_, record)) = planned
                && !member_load.as_ref().is_some_and(|member_load| Arc::ptr_eq(&member_load.record, record))
            {
                // The member is new to this client, or another one with the same name.
                let (group, record) = (Arc::clone(&pool.group), Arc::clone(record));
                member_load = Some(ClientMemberLoad { group, record, in_flight: 0, mean: -1.0 });
            }
            // A member out of use, without requests of this client, is ignored.
            let Some(mut member_load) = member_load else { continue };
            let latency = member_load.record_sum(&sum, self.core, interval_secs);
            if let Some(latency) = latency.filter(|_| is_sole_client && planned.is_some()) {
                published.plan.record_latency(&member_load.record.vitals, latency, false, now);
            }
            if !sum.values.is_empty() {
                pool.group.send_report(Arc::clone(&key.1), sum.values);
            }
            self.members.insert(key, member_load);
        }
    }
}

impl ClientMemberLoad {
    /// Counts the client's requests, and returns their mean latency, if it can be computed.
    fn record_sum(&mut self, sum: &ReportSum, core: usize, interval_secs: f64) -> Option<Duration> {
        // At most a million.
        let in_flight = sum.in_flight.min(MAX_REQUESTS) as u32;
        let (succeeded, failed) = (sum.succeeded.min(MAX_REQUESTS), sum.failed.min(MAX_REQUESTS));
        let average = (f64::from(self.in_flight) + f64::from(in_flight)) / 2.0;
        self.mean = if self.mean < 0.0 { average } else { self.mean + (average - self.mean) * MEAN_WEIGHT };
        self.set(in_flight);
        let counters = self.record.core_counters(core);
        self.group.counters[core].begun.add(1);
        let finished = succeeded + failed;
        counters.requests.add(finished);
        counters.failures.add(failed);
        // gRPC's responses have a status of this class, whatever the result of the call.
        counters.responses[2].add(finished);
        if finished == 0 {
            return None;
        }
        let seconds = (self.mean * interval_secs / finished as f64).clamp(0.0, MAX_LATENCY.as_secs_f64());
        // Without requests in flight at the time of any report, it cannot be computed.
        let latency = Duration::try_from_secs_f64(seconds).ok().filter(|latency| !latency.is_zero())?;
        counters.latency.record_many(latency, finished);
        Some(latency)
    }

    fn set(&mut self, in_flight: u32) {
        if self.record.vitals.record_direct_work(self.in_flight, in_flight) {
            let fewer = in_flight < self.in_flight;
            self.in_flight = in_flight;
            if fewer && !self.group.wait_queue.is_empty() {
                self.group.wait_queue.wake_one();
            }
        }
    }
}

impl Drop for ClientMemberLoad {
    /// Removes the requests in flight, as their fate is unknown; a client that returns reports again.
    fn drop(&mut self) {
        self.set(0);
    }
}

impl ReportSum {
    fn add(&mut self, stats: &LocalityStats, sampled: bool) {
        self.in_flight = self.in_flight.saturating_add(stats.total_requests_in_progress);
        self.succeeded = self.succeeded.saturating_add(stats.total_successful_requests);
        self.failed = self.failed.saturating_add(stats.total_error_requests);
        if !sampled {
            return;
        }
        let mut value = |name: String, requests: u64, total: f64| {
            let mean = total / requests as f64;
            if mean.is_finite() && self.values.len() < MAX_METRICS {
                self.values.push((name, mean));
            }
        };
        for metric in stats.load_metric_stats.iter().filter(|metric| metric.metric_name.len() <= MAX_NAME) {
            // Some clients add this prefix, some do not (gRFC A64, A85).
            let metric_name =
                metric.metric_name.strip_prefix("named_metrics.").unwrap_or(&metric.metric_name);
            value(format!("named_metrics.{metric_name}"), metric.requests, metric.total);
        }
        for (name, metric) in [
            ("cpu_utilization", stats.cpu_utilization),
            ("mem_utilization", stats.mem_utilization),
            ("application_utilization", stats.application_utilization),
        ] {
            if let Some(metric) = metric {
                value(name.to_owned(), metric.requests, metric.total);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::xds::{Locality, MetricStats, UnnamedStats};

    use super::*;
    use crate::test_util::{pool_with_reports, pool_with_strategy, run};

    fn stats(in_flight: u64, succeeded: u64, failed: u64) -> LocalityStats {
        LocalityStats {
            locality: Some(Locality { sub_zone: "m:80".into(), ..Locality::default() }),
            total_successful_requests: succeeded,
            total_requests_in_progress: in_flight,
            total_error_requests: failed,
            ..LocalityStats::default()
        }
    }

    fn request(stats: Vec<LocalityStats>) -> LoadStatsRequest {
        let cluster = ClusterStats {
            cluster_name: "g".into(),
            upstream_locality_stats: stats,
            load_report_interval: Some(ProtobufDuration { seconds: 2, nanos: 0 }),
        };
        LoadStatsRequest { node: None, cluster_stats: vec![cluster] }
    }

    fn new_client_load() -> ClientLoad {
        ClientLoad::new(0, Time(0))
    }

    #[test]
    fn they_say_how_fast_a_member_is_where_nobody_else_does() {
        run(|core| async move {
            let (pool, _events) = pool_with_strategy(&core, None, "peak_ewma");
            let find = |name: &str| (name == "g").then(|| Rc::clone(&pool));
            let vitals = Arc::clone(&pool.view().published.records[0].vitals);
            let mut client_load = new_client_load();
            let mut is_measured = |seconds: u64| {
                let now = Time(seconds * 1_000_000_000);
                client_load.record_report(&request(vec![stats(3, 100, 0)]), now, find);
                vitals.latency(now, Duration::from_secs(10)).is_some()
            };
            assert!(!is_measured(2), "it is not known yet whether there are others");
            vitals.begin();
            vitals.end();
            assert!(!is_measured(4), "there were");
            assert!(is_measured(6));
        });
    }

    #[test]
    fn reports_are_work_of_the_member() {
        run(|core| async move {
            let (pool, mut events) = pool_with_reports(&core, Some(Duration::ZERO));
            let find = |name: &str| (name == "g").then(|| Rc::clone(&pool));
            let record = Arc::clone(&pool.view().published.records[0]);
            let (mut first, mut second) = (new_client_load(), new_client_load());
            let metric = MetricStats { metric_name: "queue".into(), requests: 4, total: 10.0 };
            let cpu = Some(UnnamedStats { requests: 2, total: 1.0 });
            let report =
                LocalityStats { load_metric_stats: vec![metric], cpu_utilization: cpu, ..stats(5, 90, 10) };
            first.record_report(&request(vec![report, stats(1, 0, 0)]), Time(2_000_000_000), find);
            second.record_report(&request(vec![stats(3, 0, 0)]), Time(2_000_000_000), find);
            assert_eq!(record.vitals.in_flight(), 9);
            let counters = record.core_counters(0);
            assert_eq!((counters.requests.value(), counters.failures.value()), (100, 10));
            // Three in flight on average over 2 s, 100 of them: 60 ms each.
            assert!((counters.latency.seconds() - 6.0).abs() < 1e-6, "{}", counters.latency.seconds());
            let event = events.try_recv().unwrap();
            let values = [("named_metrics.queue".to_owned(), 2.5), ("cpu_utilization".to_owned(), 0.5)];
            assert_eq!((&*event.member, &event.values[..]), ("m:80", &values[..]));
            // Requests that are not mentioned have ended, and so have those of a client that left.
            first.record_report(&LoadStatsRequest::default(), Time(3_000_000_000), find);
            assert_eq!(record.vitals.in_flight(), 3);
            drop(second);
            assert_eq!(record.vitals.in_flight(), 0);
        });
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        run(|core| async move {
            let (pool, _events) = pool_with_reports(&core, None);
            let find = |name: &str| (name == "g").then(|| Rc::clone(&pool));
            let record = Arc::clone(&pool.view().published.records[0]);
            let mut client_load = new_client_load();
            let huge = stats(u64::MAX, u64::MAX, u64::MAX);
            client_load.record_report(&request(vec![huge.clone(), huge]), Time(1), find);
            assert_eq!(u64::from(record.vitals.in_flight()), MAX_REQUESTS);
            assert_eq!(record.core_counters(0).requests.value(), 2 * MAX_REQUESTS);
            let stranger = Locality { sub_zone: "nobody".into(), ..Locality::default() };
            let stranger = LocalityStats { locality: Some(stranger), ..stats(1, 1, 1) };
            let nowhere = LocalityStats { locality: None, ..stats(1, 1, 1) };
            client_load.record_report(&request(vec![stranger, nowhere]), Time(2), find);
            assert_eq!((record.vitals.in_flight(), client_load.members.len()), (0, 0));
            let mut elsewhere = request(vec![stats(1, 1, 1)]);
            elsewhere.cluster_stats[0].cluster_name = "other".into();
            client_load.record_report(&elsewhere, Time(3), find);
            assert_eq!(record.core_counters(0).requests.value(), 2 * MAX_REQUESTS);
            // A group that is named twice in one report.
            let mut twice = request(vec![stats(5, 0, 0)]);
            twice.cluster_stats.push(request(vec![stats(7, 0, 0)]).cluster_stats.remove(0));
            for report in [&twice, &twice] {
                client_load.record_report(report, Time(4), find);
                assert_eq!(record.vitals.in_flight(), 7);
            }
            drop(client_load);
            assert_eq!(record.vitals.in_flight(), 0);
        });
    }
}
