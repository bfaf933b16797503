//! The adapter between the admin plane and a daemon: questions and acts over control wait here until the
//! daemon's own task handles them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_admin::{
    DaemonBackend, DaemonCounters, DaemonStatus, KeyRing, KeyStep, LoadReport, ObservedDaemon,
    ObservedService, OwnService, ReportRejection,
};
use plimsoll_agent::ValueReporter;
use plimsoll_brain::lottery::{NodeState, NodeView, ServiceState, UNKNOWN_LOAD, weight_codec};
use plimsoll_cluster::lottery::{DaemonSettings, DaemonStatistics, LotteryDaemon};
use plimsoll_config::{LotteryFile, service_prefix};
use plimsoll_wire::rfs::KeyRole;
use tokio::sync::{mpsc, oneshot};

use super::load_feed::MAX_VALUE_AGE;
use super::settings::{self, DaemonSetting};
use super::{key_ring, reload};

/// The number of entries that may wait; the admin plane asks for one act at a time, and shows one at a time.
const REQUEST_QUEUE_LEN: usize = 16;

type ReplySender<T> = oneshot::Sender<Result<T, String>>;

/// A question or an act.
pub(super) enum AdminRequest {
    Status(ReplySender<DaemonStatus>),
    Keys(ReplySender<KeyRing>),
    Drain(bool, ReplySender<()>),
    Key(KeyStep, ReplySender<KeyRing>),
    Switch(String, bool, ReplySender<Vec<String>>),
    Set(DaemonSetting, ReplySender<Vec<String>>),
    Reload(ReplySender<Vec<String>>),
    Stop,
}

/// An act that only the daemon's host can do.
pub(super) enum HostAction {
    Reload(ReplySender<Vec<String>>),
    Stop,
}

/// The place for questions.
pub(super) struct DaemonAdmin {
    requests: mpsc::Sender<AdminRequest>,
    stopping: AtomicBool,
    reporter: ValueReporter,
}

impl DaemonAdmin {
    /// Returns an adapter and the receiver of its questions. Reports of loads go to `told`.
    pub(super) fn new(reporter: ValueReporter) -> (Arc<Self>, mpsc::Receiver<AdminRequest>) {
        let (requests, receiver) = mpsc::channel(REQUEST_QUEUE_LEN);
        (Arc::new(Self { requests, stopping: AtomicBool::new(false), reporter }), receiver)
    }

    /// Marks the daemon as ending.
    pub(super) fn mark_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Sends a question and waits for the answer.
    fn send_request<T>(
        &self,
        build_request: impl FnOnce(ReplySender<T>) -> AdminRequest,
    ) -> Result<T, String> {
        let daemon_ended = || "the daemon is ending".to_owned();
        let (reply, response) = oneshot::channel();
        self.requests.blocking_send(build_request(reply)).map_err(|_| daemon_ended())?;
        response.blocking_recv().map_err(|_| daemon_ended())?
    }
}

impl DaemonBackend for DaemonAdmin {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn status(&self) -> Result<DaemonStatus, String> {
        self.send_request(AdminRequest::Status)
    }

    fn set_drained(&self, drain: bool) -> Result<(), String> {
        self.send_request(|reply| AdminRequest::Drain(drain, reply))
    }

    fn set_service_enabled(&self, service: &str, enabled: bool) -> Result<Vec<String>, String> {
        self.send_request(|reply| AdminRequest::Switch(service.to_owned(), enabled, reply))
    }

    fn set(&self, service: Option<&str>, key: &str, value: &str) -> Result<Vec<String>, String> {
        let setting = DaemonSetting::new(service, key, value);
        self.send_request(|reply| AdminRequest::Set(setting, reply))
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        self.send_request(AdminRequest::Reload)
    }

    fn stop(&self) {
        // A daemon that has ended needs no message.
        let _ = self.requests.blocking_send(AdminRequest::Stop);
    }

    fn report(&self, report: LoadReport) -> Result<(), ReportRejection> {
        if report.age_seconds.is_some_and(|age| age.is_nan() || age > MAX_VALUE_AGE.as_secs_f64()) {
            return Err(ReportRejection::Invalid(format!(
                "what is older than {} s is not known any more",
                MAX_VALUE_AGE.as_secs()
            )));
        }
        // The report of a service counts for that alone.
        let prefix = report.group.as_deref().map(service_prefix).unwrap_or_default();
        let report_value =
            |(name, value): (String, f64)| self.reporter.report(&format!("{prefix}{name}"), value);
        // The other values are accepted even if one is refused.
        report
            .values
            .into_iter()
            .map(report_value)
            .fold(Ok(()), Result::and)
            .map_err(ReportRejection::Invalid)
    }

    fn keys(&self) -> Result<KeyRing, String> {
        self.send_request(AdminRequest::Keys)
    }

    fn rotate_key(&self, step: KeyStep) -> Result<KeyRing, String> {
        self.send_request(|reply| AdminRequest::Key(step, reply))
    }
}

/// Answers questions and does acts, until one comes that only the daemon's host can do.
pub(super) async fn handle_requests(
    lottery: &LotteryDaemon,
    requests: &mut mpsc::Receiver<AdminRequest>,
    file: &LotteryFile,
    active_settings: &mut DaemonSettings,
    reload_error: Option<&str>,
) -> HostAction {
    const THREAD_ENDED: &str = "the daemon's thread has ended";
    while let Some(request) = requests.recv().await {
        // The client may have gone.
        match request {
            AdminRequest::Status(reply) => {
                let snapshot = lottery.view().await.ok_or_else(|| THREAD_ENDED.to_owned());
                drop(reply.send(snapshot.map(|(statistics, view)| {
                    daemon_status(lottery, active_settings, reload_error, &statistics, &view)
                })));
            }
            AdminRequest::Keys(reply) => {
                let snapshot = lottery.view().await.ok_or_else(|| THREAD_ENDED.to_owned());
                drop(reply.send(snapshot.map(|(_, view)| daemon_keys(active_settings, &view))));
            }
            AdminRequest::Drain(drain, reply) => {
                let message =
                    if drain { "draining: clients are sent to others" } else { "taking part again" };
                tracing::info!("{message}");
                lottery.set_drain(drain).await;
                drop(reply.send(Ok(())));
            }
            AdminRequest::Switch(service, enabled, reply) => {
                let outcome =
                    match active_settings.services.iter().find(|candidate| *candidate.name == *service) {
                        Some(known_service) => {
                            lottery.set_hold(known_service.id, !enabled).await;
                            let label = if enabled { "enabled" } else { "disabled" };
                            Ok(vec![format!("~ service {service}: {label}")])
                        }
                        None => Err(settings::unknown_service(&service, active_settings)),
                    };
                drop(reply.send(outcome));
            }
            AdminRequest::Set(setting, reply) => {
                let outcome = match setting.apply_to(active_settings) {
                    Ok(new_settings) => {
                        let changes = reload::differences(active_settings, &new_settings);
                        *active_settings = new_settings;
                        lottery.apply_settings(active_settings.clone()).await;
                        Ok(changes)
                    }
                    Err(error) => Err(error),
                };
                drop(reply.send(outcome));
            }
            AdminRequest::Key(step, reply) => {
                let outcome = match key_ring::apply_step(&file.keys(), &step) {
                    Ok(new_keys) => {
                        active_settings.keys = new_keys;
                        lottery.apply_settings(active_settings.clone()).await;
                        let snapshot = lottery.view().await.ok_or_else(|| THREAD_ENDED.to_owned());
                        snapshot.map(|(_, view)| daemon_keys(active_settings, &view))
                    }
                    Err(error) => Err(error),
                };
                drop(reply.send(outcome));
            }
            AdminRequest::Reload(reply) => return HostAction::Reload(reply),
            AdminRequest::Stop => return HostAction::Stop,
        }
    }
    // No client is left that could ask.
    std::future::pending().await
}

fn daemon_keys(active_settings: &DaemonSettings, view: &NodeView) -> KeyRing {
    let keys: Vec<u32> = active_settings.keys.ids_for_role(KeyRole::Daemon).collect();
    KeyRing {
        member: active_settings.member,
        sealing: keys.first().copied().unwrap_or_default(),
        keys,
        client_keys: active_settings.keys.ids_for_role(KeyRole::Client).collect(),
        others: view.members.iter().map(|other| other.member).collect(),
    }
}

fn daemon_status(
    lottery: &LotteryDaemon,
    active_settings: &DaemonSettings,
    reload_error: Option<&str>,
    statistics: &DaemonStatistics,
    view: &NodeView,
) -> DaemonStatus {
    let protocol = &statistics.protocol;
    let KeyRing { sealing, keys, client_keys, .. } = daemon_keys(active_settings, view);
    let own_services = view.services.iter().filter_map(|observed| {
        let service = active_settings.services.iter().find(|service| service.id == observed.share.service)?;
        let ObservedService { capacity, weight, load, in_flight, .. } = observed_service(&observed.share);
        let (name, id, server) = (service.name.to_string(), service.id, service.server);
        let (ready, enabled) = (observed.ready, !observed.held);
        Some(OwnService { name, id, server, capacity, ready, enabled, load, in_flight, weight })
    });
    let members = view.members.iter().map(|other| ObservedDaemon {
        member: other.member,
        address: other.address,
        state: other.state.map_or("unheard", state_name).to_owned(),
        suspect: other.is_suspect,
        differs: other.digest_differs,
        services: other.shares.iter().map(observed_service).collect(),
    });
    DaemonStatus {
        schema: 1,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        // The incarnation is the start of the first life.
        started_unix_ms: u64::from(active_settings.incarnation) * 1000,
        stopping: view.state == NodeState::Leaving,
        reload_error: reload_error.map(str::to_owned),
        member: active_settings.member,
        address: lottery.address(),
        state: state_name(view.state).to_owned(),
        services: own_services.collect(),
        members: members.collect(),
        pending: protocol.waiting as u64,
        queued: protocol.queued as u64,
        sealing_key: sealing,
        keys,
        client_keys,
        counts: daemon_counters(statistics),
        duplicate_share: share(protocol.duplicates, protocol.won),
        digest_disagreement: share(protocol.members_differ as u64, protocol.members_reporting as u64),
        commit_delay_seconds: protocol.commit_delay.map(|delay| delay.as_secs_f64()),
        step_seconds: protocol.step.as_secs_f64(),
        lag_seconds: protocol.lag.as_secs_f64(),
        prefer_referral: protocol.prefer_referral,
        remembers: protocol.request_capacity as u64,
        ttl_seconds: active_settings.ttl.as_secs_f64(),
        slow_start_seconds: active_settings.slow_start.as_secs_f64(),
        rate: active_settings.rate,
    }
}

fn daemon_counters(statistics: &DaemonStatistics) -> DaemonCounters {
    let protocol = &statistics.protocol;
    DaemonCounters {
        received: statistics.received,
        sent: statistics.sent,
        referred: protocol.referred,
        won: protocol.won,
        stood_in: protocol.stood_in,
        turned_away: protocol.turned_away,
        repeated: protocol.repeated,
        duplicates: protocol.duplicates,
        limited: protocol.rate_limited,
        forgotten: protocol.forgotten,
        dropped: protocol.dropped,
        unsent: statistics.unsent,
        forged: statistics.forged,
        unknown_key: statistics.unknown_key,
        malformed: statistics.malformed,
        replayed: statistics.replayed,
        misused: statistics.misused,
        implausible: statistics.implausible,
    }
}

fn observed_service(share: &ServiceState) -> ObservedService {
    ObservedService {
        service: share.service,
        capacity: share.capacity,
        // The weight is in units of 2^-14.
        weight: weight_codec::decode(share.weight) as f64 / f64::from(1 << 14),
        load: (share.load != UNKNOWN_LOAD).then(|| f64::from(share.load) / 1000.0),
        in_flight: share.in_flight,
    }
}

fn state_name(state: NodeState) -> &'static str {
    match state {
        NodeState::Joining => "joining",
        NodeState::Up => "up",
        NodeState::Draining => "draining",
        NodeState::Leaving => "leaving",
    }
}

fn share(count: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { count as f64 / total as f64 }
}
