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
    let mut ledger = ClientLoad::new(core.index, core.now());
    let end = listen(&core, &listener, &mut ledger, &mut incoming, &mut out).await;
    out.finish(end);
}

async fn listen(
    core: &Rc<ThreadContext>,
    listener: &Rc<Listener>,
    ledger: &mut ClientLoad,
    incoming: &mut IncomingMessages,
    out: &mut OutgoingMessages,
) -> CallStatus {
    let mut told = false;
    loop {
        let request: LoadStatsRequest = tokio::select! {
            biased;
            () = listener.until_closed() => return CallStatus::Unavailable,
            request = incoming.next_message() => match request {
                Ok(Some(request)) => request,
                Ok(None) => return CallStatus::Ok,
                Err(end) => return end,
            },
        };
        if !std::mem::replace(&mut told, true) {
            let patience = listener.settings().timeouts.body;
            if let Err(end) = out.send(core, patience, &requested_groups(listener, &request)).await {
                return end;
            }
        }
        ledger.record_report(&request, core.tick(), |group| listener.pool_of(group));
    }
}

/// Returns the groups on which a client should report.
fn requested_groups(listener: &Listener, request: &LoadStatsRequest) -> LoadStatsResponse {
    let features = request.node.iter().flat_map(|node| &node.client_features);
    let all = features.into_iter().any(|feature| feature == SEND_ALL_CLUSTERS);
    let clusters =
        if all { Vec::new() } else { listener.groups().iter().map(|name| name.to_string()).collect() };
    LoadStatsResponse { clusters, load_reporting_interval: Some(INTERVAL), send_all_clusters: all }
}

/// The requests of one client in flight.
struct ClientLoad {
    core: usize,
    last: Time,
    /// The state by group and member.
    members: BTreeMap<(Arc<str>, Arc<str>), ClientMemberLoad>,
    /// The work begun from here at the members of each group, as of the last report.
    begun: BTreeMap<Arc<str>, u32>,
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
        Self { core, last: now, members: BTreeMap::new(), begun: BTreeMap::new() }
    }

    /// Records a report: all requests in flight, and those completed since the previous report. Members that
    /// are not mentioned have none.
    fn record_report(
        &mut self,
        request: &LoadStatsRequest,
        now: Time,
        find: impl Fn(&str) -> Option<Rc<GroupPool>>,
    ) {
        let passed = now.since(std::mem::replace(&mut self.last, now));
        let mut before = std::mem::take(&mut self.members);
        let begun = std::mem::take(&mut self.begun);
        for stats in &request.cluster_stats {
            if let Some(pool) = find(&stats.cluster_name) {
                self.cluster(stats, &pool, &mut before, begun.get(&pool.group.name), passed, now);
            }
        }
    }

    fn cluster(
        &mut self,
        stats: &ClusterStats,
        pool: &Rc<GroupPool>,
        before: &mut BTreeMap<(Arc<str>, Arc<str>), ClientMemberLoad>,
        begun: Option<&u32>,
        passed: Duration,
        now: Time,
    ) {
        let view = pool.view();
        let published = &view.published;
        let sampled = published.settings.sample_interval().is_some();
        let here = published.records.iter().map(|record| record.vitals.begun_here());
        let here = here.fold(0, u32::wrapping_add);
        // Whether only such clients send requests there: then their reports are the only source.
        let alone = begun == Some(&here);
        self.begun.insert(Arc::clone(&pool.group.name), here);
        let mut sums: BTreeMap<&str, ReportSum> = BTreeMap::new();
        for one in &stats.upstream_locality_stats {
            let Some(locality) = &one.locality else { continue };
            sums.entry(resource::member(locality)).or_default().add(one, sampled);
        }
        let members = published.plan.members().iter().zip(&published.records);
        let members: BTreeMap<&str, _> =
            members.map(|(member, record)| (&*member.name, (member, record))).collect();
        let said = stats.load_report_interval.and_then(|span| span.to_seconds());
        let over = said.filter(|seconds| *seconds > 0.0).unwrap_or(passed.as_secs_f64());
        for (name, sum) in sums {
            let planned = members.get(name);
            let name = planned.map_or_else(|| Arc::from(name), |(member, _)| Arc::clone(&member.name));
            let key = (Arc::clone(&pool.group.name), name);
            // If a report names a group twice, the last part applies.
            let mut held = before.remove(&key).or_else(|| self.members.remove(&key));
            if let Some((_, record)) = planned
                && !held.as_ref().is_some_and(|held| Arc::ptr_eq(&held.record, record))
            {
                // The member is new to this client, or another one with the same name.
                let (group, record) = (Arc::clone(&pool.group), Arc::clone(record));
                held = Some(ClientMemberLoad { group, record, in_flight: 0, mean: -1.0 });
            }
            // A member out of use, without requests of this client, is ignored.
            let Some(mut held) = held else { continue };
            let latency = held.record_sum(&sum, self.core, over);
            if let Some(latency) = latency.filter(|_| alone && planned.is_some()) {
                published.plan.record_latency(&held.record.vitals, latency, false, now);
            }
            if !sum.values.is_empty() {
                pool.group.send_report(Arc::clone(&key.1), sum.values);
            }
            self.members.insert(key, held);
        }
    }
}

impl ClientMemberLoad {
    /// Counts the client's requests, and returns their mean latency, if it can be computed.
    fn record_sum(&mut self, sum: &ReportSum, core: usize, over: f64) -> Option<Duration> {
        // At most a million.
        let in_flight = sum.in_flight.min(MAX_REQUESTS) as u32;
        let (succeeded, failed) = (sum.succeeded.min(MAX_REQUESTS), sum.failed.min(MAX_REQUESTS));
        let between = (f64::from(self.in_flight) + f64::from(in_flight)) / 2.0;
        self.mean = if self.mean < 0.0 { between } else { self.mean + (between - self.mean) * MEAN_WEIGHT };
        self.set(in_flight);
        let stripe = self.record.core_counters(core);
        self.group.counters[core].begun.add(1);
        let done = succeeded + failed;
        stripe.requests.add(done);
        stripe.failures.add(failed);
        // gRPC's responses have a status of this class, whatever the result of the call.
        stripe.responses[2].add(done);
        if done == 0 {
            return None;
        }
        let seconds = (self.mean * over / done as f64).clamp(0.0, MAX_LATENCY.as_secs_f64());
        // Without requests in flight at the time of any report, it cannot be computed.
        let latency = Duration::try_from_secs_f64(seconds).ok().filter(|latency| !latency.is_zero())?;
        stripe.latency.record_many(latency, done);
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
        for one in stats.load_metric_stats.iter().filter(|one| one.metric_name.len() <= MAX_NAME) {
            // Some clients add this prefix, some do not (gRFC A64, A85).
            let bare = one.metric_name.strip_prefix("named_metrics.").unwrap_or(&one.metric_name);
            value(format!("named_metrics.{bare}"), one.requests, one.total);
        }
        for (name, one) in [
            ("cpu_utilization", stats.cpu_utilization),
            ("mem_utilization", stats.mem_utilization),
            ("application_utilization", stats.application_utilization),
        ] {
            if let Some(one) = one {
                value(name.to_owned(), one.requests, one.total);
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

    fn ledger() -> ClientLoad {
        ClientLoad::new(0, Time(0))
    }

    #[test]
    fn they_say_how_fast_a_member_is_where_nobody_else_does() {
        run(|core| async move {
            let (pool, _heard) = pool_with_strategy(&core, None, "peak_ewma");
            let find = |name: &str| (name == "g").then(|| Rc::clone(&pool));
            let vitals = Arc::clone(&pool.view().published.records[0].vitals);
            let mut ledger = ledger();
            let mut known = |seconds: u64| {
                let now = Time(seconds * 1_000_000_000);
                ledger.record_report(&request(vec![stats(3, 100, 0)]), now, find);
                vitals.latency(now, Duration::from_secs(10)).is_some()
            };
            assert!(!known(2), "it is not known yet whether there are others");
            vitals.begin();
            vitals.end();
            assert!(!known(4), "there were");
            assert!(known(6));
        });
    }

    #[test]
    fn reports_are_work_of_the_member() {
        run(|core| async move {
            let (pool, mut heard) = pool_with_reports(&core, Some(Duration::ZERO));
            let find = |name: &str| (name == "g").then(|| Rc::clone(&pool));
            let record = Arc::clone(&pool.view().published.records[0]);
            let (mut one, mut other) = (ledger(), ledger());
            let metric = MetricStats { metric_name: "queue".into(), requests: 4, total: 10.0 };
            let cpu = Some(UnnamedStats { requests: 2, total: 1.0 });
            let told =
                LocalityStats { load_metric_stats: vec![metric], cpu_utilization: cpu, ..stats(5, 90, 10) };
            one.record_report(&request(vec![told, stats(1, 0, 0)]), Time(2_000_000_000), find);
            other.record_report(&request(vec![stats(3, 0, 0)]), Time(2_000_000_000), find);
            assert_eq!(record.vitals.in_flight(), 9);
            let stripe = record.core_counters(0);
            assert_eq!((stripe.requests.value(), stripe.failures.value()), (100, 10));
            // Three in flight on average over 2 s, 100 of them: 60 ms each.
            assert!((stripe.latency.seconds() - 6.0).abs() < 1e-6, "{}", stripe.latency.seconds());
            let said = heard.try_recv().unwrap();
            let values = [("named_metrics.queue".to_owned(), 2.5), ("cpu_utilization".to_owned(), 0.5)];
            assert_eq!((&*said.member, &said.values[..]), ("m:80", &values[..]));
            // Requests that are not mentioned have ended, and so have those of a client that left.
            one.record_report(&LoadStatsRequest::default(), Time(3_000_000_000), find);
            assert_eq!(record.vitals.in_flight(), 3);
            drop(other);
            assert_eq!(record.vitals.in_flight(), 0);
        });
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        run(|core| async move {
            let (pool, _heard) = pool_with_reports(&core, None);
            let find = |name: &str| (name == "g").then(|| Rc::clone(&pool));
            let record = Arc::clone(&pool.view().published.records[0]);
            let mut ledger = ledger();
            let all = stats(u64::MAX, u64::MAX, u64::MAX);
            ledger.record_report(&request(vec![all.clone(), all]), Time(1), find);
            assert_eq!(u64::from(record.vitals.in_flight()), MAX_REQUESTS);
            assert_eq!(record.core_counters(0).requests.value(), 2 * MAX_REQUESTS);
            let stranger = Locality { sub_zone: "nobody".into(), ..Locality::default() };
            let stranger = LocalityStats { locality: Some(stranger), ..stats(1, 1, 1) };
            let nowhere = LocalityStats { locality: None, ..stats(1, 1, 1) };
            ledger.record_report(&request(vec![stranger, nowhere]), Time(2), find);
            assert_eq!((record.vitals.in_flight(), ledger.members.len()), (0, 0));
            let mut elsewhere = request(vec![stats(1, 1, 1)]);
            elsewhere.cluster_stats[0].cluster_name = "other".into();
            ledger.record_report(&elsewhere, Time(3), find);
            assert_eq!(record.core_counters(0).requests.value(), 2 * MAX_REQUESTS);
            // A group that is named twice in one report.
            let mut twice = request(vec![stats(5, 0, 0)]);
            twice.cluster_stats.push(request(vec![stats(7, 0, 0)]).cluster_stats.remove(0));
            for report in [&twice, &twice] {
                ledger.record_report(report, Time(4), find);
                assert_eq!(record.vitals.in_flight(), 7);
            }
            drop(ledger);
            assert_eq!(record.vitals.in_flight(), 0);
        });
    }
}
