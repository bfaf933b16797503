//! The desk between the admin plane and a daemon: questions and acts over control wait here until the
//! daemon's own task handles them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_admin::{
    Counts, Daemon, DaemonStatus, KeyRing, KeyStep, MemberSeen, OwnService, Part, Refused, Report,
};
use plimsoll_agent::Told;
use plimsoll_brain::lottery::{Share, Standing, UNKNOWN, View, code};
use plimsoll_cluster::lottery::{Lottery, Settings, Statistics};
use plimsoll_wire::rfs::Role;
use tokio::sync::{mpsc, oneshot};

use super::adjust::{self, Setting};
use super::feed::FRESH;
use super::{reload, ring};
use crate::config::{LotteryFile, service_prefix};

/// The number of entries that may wait; the admin plane asks for one act at a time, and shows one at a time.
const ASKED: usize = 16;

type Reply<T> = oneshot::Sender<Result<T, String>>;

/// A question or an act.
pub(super) enum Asked {
    Status(Reply<DaemonStatus>),
    Keys(Reply<KeyRing>),
    Drain(bool, Reply<()>),
    Key(KeyStep, Reply<KeyRing>),
    Switch(String, bool, Reply<Vec<String>>),
    Set(Setting, Reply<Vec<String>>),
    Reload(Reply<Vec<String>>),
    Stop,
}

/// An act that only the daemon's host can do.
pub(super) enum Request {
    Reload(Reply<Vec<String>>),
    Stop,
}

/// The place for questions.
pub(super) struct Desk {
    asked: mpsc::Sender<Asked>,
    stopping: AtomicBool,
    told: Told,
}

impl Desk {
    /// Returns a desk and the receiver of its questions. Reports of loads go to `told`.
    pub(super) fn new(told: Told) -> (Arc<Self>, mpsc::Receiver<Asked>) {
        let (asked, inbox) = mpsc::channel(ASKED);
        (Arc::new(Self { asked, stopping: AtomicBool::new(false), told }), inbox)
    }

    /// Marks the daemon as ending.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Sends a question and waits for the answer.
    fn ask<T>(&self, asked: impl FnOnce(Reply<T>) -> Asked) -> Result<T, String> {
        let gone = || "the daemon is ending".to_owned();
        let (reply, answer) = oneshot::channel();
        self.asked.blocking_send(asked(reply)).map_err(|_| gone())?;
        answer.blocking_recv().map_err(|_| gone())?
    }
}

impl Daemon for Desk {
    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn status(&self) -> Result<DaemonStatus, String> {
        self.ask(Asked::Status)
    }

    fn drain(&self, drain: bool) -> Result<(), String> {
        self.ask(|reply| Asked::Drain(drain, reply))
    }

    fn switch(&self, service: &str, on: bool) -> Result<Vec<String>, String> {
        self.ask(|reply| Asked::Switch(service.to_owned(), on, reply))
    }

    fn set(&self, service: Option<&str>, key: &str, value: &str) -> Result<Vec<String>, String> {
        let setting = Setting::new(service, key, value);
        self.ask(|reply| Asked::Set(setting, reply))
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        self.ask(Asked::Reload)
    }

    fn stop(&self) {
        // A daemon that has ended needs no message.
        let _ = self.asked.blocking_send(Asked::Stop);
    }

    fn report(&self, report: Report) -> Result<(), Refused> {
        if report.age_seconds.is_some_and(|age| age.is_nan() || age > FRESH.as_secs_f64()) {
            return Err(Refused::Wrong(format!(
                "what is older than {} s is not known any more",
                FRESH.as_secs()
            )));
        }
        // The report of a service counts for that alone.
        let prefix = report.group.as_deref().map(service_prefix).unwrap_or_default();
        let tell = |(name, value): (String, f64)| self.told.tell(&format!("{prefix}{name}"), value);
        // The other values are accepted even if one is refused.
        report.values.into_iter().map(tell).fold(Ok(()), Result::and).map_err(Refused::Wrong)
    }

    fn keys(&self) -> Result<KeyRing, String> {
        self.ask(Asked::Keys)
    }

    fn key(&self, step: KeyStep) -> Result<KeyRing, String> {
        self.ask(|reply| Asked::Key(step, reply))
    }
}

/// Answers questions and does acts, until one comes that only the daemon's host can do.
pub(super) async fn attend(
    lottery: &Lottery,
    inbox: &mut mpsc::Receiver<Asked>,
    file: &LotteryFile,
    force: &mut Settings,
    reload_error: Option<&str>,
) -> Request {
    const GONE: &str = "the daemon's thread has ended";
    while let Some(asked) = inbox.recv().await {
        // The client may have gone.
        match asked {
            Asked::Status(reply) => {
                let seen = lottery.view().await.ok_or_else(|| GONE.to_owned());
                drop(reply.send(
                    seen.map(|(statistics, view)| status(lottery, force, reload_error, &statistics, &view)),
                ));
            }
            Asked::Keys(reply) => {
                let seen = lottery.view().await.ok_or_else(|| GONE.to_owned());
                drop(reply.send(seen.map(|(_, view)| keys(force, &view))));
            }
            Asked::Drain(drain, reply) => {
                let what = if drain { "draining: clients are sent to others" } else { "taking part again" };
                tracing::info!("{what}");
                lottery.drain(drain).await;
                drop(reply.send(Ok(())));
            }
            Asked::Switch(service, on, reply) => {
                let outcome = match force.services.iter().find(|known| *known.name == *service) {
                    Some(known) => {
                        lottery.hold(known.id, !on).await;
                        let word = if on { "enabled" } else { "disabled" };
                        Ok(vec![format!("~ service {service}: {word}")])
                    }
                    None => Err(adjust::no_service(&service, force)),
                };
                drop(reply.send(outcome));
            }
            Asked::Set(setting, reply) => {
                let outcome = match setting.of(force) {
                    Ok(fresh) => {
                        let changes = reload::differences(force, &fresh);
                        *force = fresh;
                        lottery.adjust(force.clone()).await;
                        Ok(changes)
                    }
                    Err(why) => Err(why),
                };
                drop(reply.send(outcome));
            }
            Asked::Key(step, reply) => {
                let outcome = match ring::step(&file.keys(), &step) {
                    Ok(fresh) => {
                        force.keys = fresh;
                        lottery.adjust(force.clone()).await;
                        let seen = lottery.view().await.ok_or_else(|| GONE.to_owned());
                        seen.map(|(_, view)| keys(force, &view))
                    }
                    Err(why) => Err(why),
                };
                drop(reply.send(outcome));
            }
            Asked::Reload(reply) => return Request::Reload(reply),
            Asked::Stop => return Request::Stop,
        }
    }
    // No client is left that could ask.
    std::future::pending().await
}

fn keys(force: &Settings, view: &View) -> KeyRing {
    let keys: Vec<u32> = force.keys.ids_of(Role::Daemon).collect();
    KeyRing {
        member: force.member,
        sealing: keys.first().copied().unwrap_or_default(),
        keys,
        client_keys: force.keys.ids_of(Role::Client).collect(),
        others: view.members.iter().map(|other| other.member).collect(),
    }
}

fn status(
    lottery: &Lottery,
    force: &Settings,
    reload_error: Option<&str>,
    statistics: &Statistics,
    view: &View,
) -> DaemonStatus {
    let lots = &statistics.lots;
    let KeyRing { sealing, keys, client_keys, .. } = keys(force, view);
    let own = view.services.iter().filter_map(|own| {
        let service = force.services.iter().find(|service| service.id == own.share.service)?;
        let Part { capacity, weight, load, in_flight, .. } = part(&own.share);
        let (name, id, server) = (service.name.to_string(), service.id, service.server);
        let (ready, enabled) = (own.ready, !own.held);
        Some(OwnService { name, id, server, capacity, ready, enabled, load, in_flight, weight })
    });
    let members = view.members.iter().map(|other| MemberSeen {
        member: other.member,
        address: other.address,
        state: other.state.map_or("unheard", word).to_owned(),
        suspect: other.suspect,
        differs: other.differs,
        services: other.shares.iter().map(part).collect(),
    });
    DaemonStatus {
        schema: 1,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        // The incarnation is the start of the first life.
        started_unix_ms: u64::from(force.incarnation) * 1000,
        stopping: view.state == Standing::Leaving,
        reload_error: reload_error.map(str::to_owned),
        member: force.member,
        address: lottery.address(),
        state: word(view.state).to_owned(),
        services: own.collect(),
        members: members.collect(),
        pending: lots.waiting as u64,
        queued: lots.queued as u64,
        sealing_key: sealing,
        keys,
        client_keys,
        counts: counts(statistics),
        duplicate_share: share(lots.duplicates, lots.won),
        digest_disagreement: share(lots.members_differ as u64, lots.members_heard as u64),
        commit_delay_seconds: lots.commit_delay.map(|delay| delay.as_secs_f64()),
        step_seconds: lots.step.as_secs_f64(),
        lag_seconds: lots.lag.as_secs_f64(),
        prefer_referral: lots.prefer_referral,
        remembers: lots.room as u64,
        ttl_seconds: force.ttl.as_secs_f64(),
        slow_start_seconds: force.slow_start.as_secs_f64(),
        rate: force.rate,
    }
}

fn counts(statistics: &Statistics) -> Counts {
    let lots = &statistics.lots;
    Counts {
        received: statistics.received,
        sent: statistics.sent,
        referred: lots.referred,
        won: lots.won,
        stood_in: lots.stood_in,
        turned_away: lots.turned_away,
        repeated: lots.repeated,
        duplicates: lots.duplicates,
        limited: lots.limited,
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

fn part(share: &Share) -> Part {
    Part {
        service: share.service,
        capacity: share.capacity,
        // The weight is in units of 2^-14.
        weight: code::decode(share.weight) as f64 / f64::from(1 << 14),
        load: (share.load != UNKNOWN).then(|| f64::from(share.load) / 1000.0),
        in_flight: share.in_flight,
    }
}

fn word(state: Standing) -> &'static str {
    match state {
        Standing::Joining => "joining",
        Standing::Up => "up",
        Standing::Draining => "draining",
        Standing::Leaving => "leaving",
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
