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
const ASKED: usize = 16;

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
    asked: mpsc::Sender<AdminRequest>,
    stopping: AtomicBool,
    reporter: ValueReporter,
}

impl DaemonAdmin {
    /// Returns an adapter and the receiver of its questions. Reports of loads go to `told`.
    pub(super) fn new(told: ValueReporter) -> (Arc<Self>, mpsc::Receiver<AdminRequest>) {
        let (asked, inbox) = mpsc::channel(ASKED);
        (Arc::new(Self { asked, stopping: AtomicBool::new(false), reporter: told }), inbox)
    }

    /// Marks the daemon as ending.
    pub(super) fn mark_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Sends a question and waits for the answer.
    fn send_request<T>(&self, asked: impl FnOnce(ReplySender<T>) -> AdminRequest) -> Result<T, String> {
        let gone = || "the daemon is ending".to_owned();
        let (reply, answer) = oneshot::channel();
        self.asked.blocking_send(asked(reply)).map_err(|_| gone())?;
        answer.blocking_recv().map_err(|_| gone())?
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

    fn set_service_enabled(&self, service: &str, on: bool) -> Result<Vec<String>, String> {
        self.send_request(|reply| AdminRequest::Switch(service.to_owned(), on, reply))
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
        let _ = self.asked.blocking_send(AdminRequest::Stop);
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
        let tell = |(name, value): (String, f64)| self.reporter.report(&format!("{prefix}{name}"), value);
        // The other values are accepted even if one is refused.
        report.values.into_iter().map(tell).fold(Ok(()), Result::and).map_err(ReportRejection::Invalid)
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
    inbox: &mut mpsc::Receiver<AdminRequest>,
    file: &LotteryFile,
    force: &mut DaemonSettings,
    reload_error: Option<&str>,
) -> HostAction {
    const GONE: &str = "the daemon's thread has ended";
    while let Some(asked) = inbox.recv().await {
        // The client may have gone.
        match asked {
            AdminRequest::Status(reply) => {
                let seen = lottery.view().await.ok_or_else(|| GONE.to_owned());
                drop(reply.send(
                    seen.map(|(statistics, view)| status(lottery, force, reload_error, &statistics, &view)),
                ));
            }
            AdminRequest::Keys(reply) => {
                let seen = lottery.view().await.ok_or_else(|| GONE.to_owned());
                drop(reply.send(seen.map(|(_, view)| keys(force, &view))));
            }
            AdminRequest::Drain(drain, reply) => {
                let what = if drain { "draining: clients are sent to others" } else { "taking part again" };
                tracing::info!("{what}");
                lottery.set_drain(drain).await;
                drop(reply.send(Ok(())));
            }
            AdminRequest::Switch(service, on, reply) => {
                let outcome = match force.services.iter().find(|known| *known.name == *service) {
                    Some(known) => {
                        lottery.set_hold(known.id, !on).await;
                        let word = if on { "enabled" } else { "disabled" };
                        Ok(vec![format!("~ service {service}: {word}")])
                    }
                    None => Err(settings::unknown_service(&service, force)),
                };
                drop(reply.send(outcome));
            }
            AdminRequest::Set(setting, reply) => {
                let outcome = match setting.apply_to(force) {
                    Ok(fresh) => {
                        let changes = reload::differences(force, &fresh);
                        *force = fresh;
                        lottery.apply_settings(force.clone()).await;
                        Ok(changes)
                    }
                    Err(why) => Err(why),
                };
                drop(reply.send(outcome));
            }
            AdminRequest::Key(step, reply) => {
                let outcome = match key_ring::apply_step(&file.keys(), &step) {
                    Ok(fresh) => {
                        force.keys = fresh;
                        lottery.apply_settings(force.clone()).await;
                        let seen = lottery.view().await.ok_or_else(|| GONE.to_owned());
                        seen.map(|(_, view)| keys(force, &view))
                    }
                    Err(why) => Err(why),
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

fn keys(force: &DaemonSettings, view: &NodeView) -> KeyRing {
    let keys: Vec<u32> = force.keys.ids_for_role(KeyRole::Daemon).collect();
    KeyRing {
        member: force.member,
        sealing: keys.first().copied().unwrap_or_default(),
        keys,
        client_keys: force.keys.ids_for_role(KeyRole::Client).collect(),
        others: view.members.iter().map(|other| other.member).collect(),
    }
}

fn status(
    lottery: &LotteryDaemon,
    force: &DaemonSettings,
    reload_error: Option<&str>,
    statistics: &DaemonStatistics,
    view: &NodeView,
) -> DaemonStatus {
    let lots = &statistics.protocol;
    let KeyRing { sealing, keys, client_keys, .. } = keys(force, view);
    let own = view.services.iter().filter_map(|own| {
        let service = force.services.iter().find(|service| service.id == own.share.service)?;
        let ObservedService { capacity, weight, load, in_flight, .. } = part(&own.share);
        let (name, id, server) = (service.name.to_string(), service.id, service.server);
        let (ready, enabled) = (own.ready, !own.held);
        Some(OwnService { name, id, server, capacity, ready, enabled, load, in_flight, weight })
    });
    let members = view.members.iter().map(|other| ObservedDaemon {
        member: other.member,
        address: other.address,
        state: other.state.map_or("unheard", state_name).to_owned(),
        suspect: other.is_suspect,
        differs: other.digest_differs,
        services: other.shares.iter().map(part).collect(),
    });
    DaemonStatus {
        schema: 1,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        // The incarnation is the start of the first life.
        started_unix_ms: u64::from(force.incarnation) * 1000,
        stopping: view.state == NodeState::Leaving,
        reload_error: reload_error.map(str::to_owned),
        member: force.member,
        address: lottery.address(),
        state: state_name(view.state).to_owned(),
        services: own.collect(),
        members: members.collect(),
        pending: lots.waiting as u64,
        queued: lots.queued as u64,
        sealing_key: sealing,
        keys,
        client_keys,
        counts: counts(statistics),
        duplicate_share: share(lots.duplicates, lots.won),
        digest_disagreement: share(lots.members_differ as u64, lots.members_reporting as u64),
        commit_delay_seconds: lots.commit_delay.map(|delay| delay.as_secs_f64()),
        step_seconds: lots.step.as_secs_f64(),
        lag_seconds: lots.lag.as_secs_f64(),
        prefer_referral: lots.prefer_referral,
        remembers: lots.request_capacity as u64,
        ttl_seconds: force.ttl.as_secs_f64(),
        slow_start_seconds: force.slow_start.as_secs_f64(),
        rate: force.rate,
    }
}

fn counts(statistics: &DaemonStatistics) -> DaemonCounters {
    let lots = &statistics.protocol;
    DaemonCounters {
        received: statistics.received,
        sent: statistics.sent,
        referred: lots.referred,
        won: lots.won,
        stood_in: lots.stood_in,
        turned_away: lots.turned_away,
        repeated: lots.repeated,
        duplicates: lots.duplicates,
        limited: lots.rate_limited,
        forgotten: lots.forgotten,
        dropped: lots.dropped,
        unsent: statistics.unsent,
        forged: statistics.forged,
        unknown_key: statistics.unknown_key,
        malformed: statistics.malformed,
        replayed: statistics.replayed,
        misused: statistics.misused,
        implausible: statistics.implausible,
    }
}

fn part(share: &ServiceState) -> ObservedService {
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

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
