//! The feed of a daemon: the loads of its servers, and the daemon's own numbers for the metric store.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_agent::{MetricValue, ValueReporter};
use plimsoll_cluster::Expression;
use plimsoll_cluster::lottery::{DaemonStatistics, LotteryDaemon};
use plimsoll_config::{LotteryFile, pluralize};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::sensors::ServiceSensors;

/// The reason for which a daemon ends of itself.
pub(super) enum DaemonEnd {
    /// Its thread has ended.
    ThreadEnded,
    /// Another daemon has its number and was there before.
    DuplicateMember(SocketAddr),
}

/// Passes the loads of the servers to the daemon, and its numbers to the metric store, until the daemon has
/// ended or must end.
pub(super) async fn run_feed(
    file: &LotteryFile,
    lottery: &LotteryDaemon,
    told: &ValueReporter,
    senses: &ServiceSensors,
) -> DaemonEnd {
    let services = &file.lottery.services;
    let loads: Vec<(u32, String, Expression)> = services
        .iter()
        .filter_map(|service| Some((service.number(), service.prefix(), service.load()?)))
        .collect();
    let mut tick = interval(POLL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (begin, mut lost, mut said) = (Instant::now(), 0, BTreeSet::new());
    let mut strangers = UnknownSenders::default();
    loop {
        tick.tick().await;
        if !loads.is_empty() {
            let shared = told.snapshot().values;
            for (service, prefix, load) in &loads {
                let own = senses.for_service(*service).map(|told| told.snapshot().values).unwrap_or_default();
                let known = ServiceValues {
                    prefix,
                    own_values: &own,
                    shared_values: &shared,
                    is_only_service: services.len() == 1,
                };
                let in_flight = known.look_up("in_flight").unwrap_or_default();
                match load.eval(|name| known.look_up(name)) {
                    // A value above the range is clamped, as casts of numbers do.
                    Ok(load) => lottery.set_load(*service, (load * 1000.0) as u16, in_flight as u16).await,
                    // A value that takes two looks is not there at once.
                    Err(why) => {
                        if begin.elapsed() > STARTUP_GRACE && said.len() < 100 && said.insert(why.clone()) {
                            tracing::warn!("no load by `{}`: {why}", load.text());
                        }
                    }
                }
            }
        }
        let Some(statistics) = lottery.statistics().await else { return DaemonEnd::ThreadEnded };
        if let Some(twin) = statistics.duplicate {
            return DaemonEnd::DuplicateMember(twin);
        }
        if statistics.protocol.loads_lost > lost {
            let lost = pluralize(statistics.protocol.loads_lost, "service");
            tracing::warn!(
                "the load of {lost} is not known any more: shares follow the capacity alone until it is"
            );
        }
        lost = statistics.protocol.loads_lost;
        strangers.log_new(&statistics, &file.keys().display());
        for (name, value) in daemon_metrics(&statistics) {
            // There is room as long as programs do not report dozens of names.
            let _ = told.report(name, value);
        }
    }
}

/// The known values of one service.
struct ServiceValues<'a> {
    prefix: &'a str,
    /// The values that are read of it alone.
    own_values: &'a [MetricValue],
    /// The values that are read of the machine, and those that programs report.
    shared_values: &'a [MetricValue],
    /// Whether there is no other service.
    is_only_service: bool,
}

impl ServiceValues<'_> {
    /// Returns a value by its name: a report for this service first, then a value read of it alone, then one
    /// of the machine. A number that names no service belongs to none of two services.
    fn look_up(&self, name: &str) -> Option<f64> {
        let fresh = |value: &&MetricValue| value.age <= MAX_VALUE_AGE;
        let told = |value: &&MetricValue| value.name.strip_prefix(self.prefix) == Some(name);
        let named = |value: &&MetricValue| value.name == name;
        let shared = || self.shared_values.iter().filter(fresh);
        let found = shared().find(told).or_else(|| self.own_values.iter().filter(fresh).find(named));
        let anybody = name != "in_flight" || self.is_only_service;
        found.or_else(|| shared().find(named).filter(|_| anybody)).map(|value| value.value)
    }
}

/// The time between two looks at loads and counts.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The age after which a number is not known any more.
pub(super) const MAX_VALUE_AGE: Duration = Duration::from_secs(10);

/// The time after the start in which a missing number is no fault.
const STARTUP_GRACE: Duration = Duration::from_secs(5);

/// The time between two complaints about datagrams of strangers.
const COMPLAINT: Duration = Duration::from_secs(60);

/// Datagrams of senders without the keys.
#[derive(Default)]
struct UnknownSenders {
    datagrams: u64,
    last_logged: Option<Instant>,
}

impl UnknownSenders {
    fn log_new(&mut self, statistics: &DaemonStatistics, keys: &impl std::fmt::Display) {
        let now = statistics.forged + statistics.unknown_key;
        let fresh = now - self.datagrams;
        if fresh > 0 && self.last_logged.is_none_or(|said| said.elapsed() > COMPLAINT) {
            (self.datagrams, self.last_logged) = (now, Some(Instant::now()));
            tracing::warn!(
                "{} dropped that no key of {keys} has sealed: all hosts and clients need the same file",
                pluralize(usize::try_from(fresh).unwrap_or(usize::MAX), "datagram")
            );
        }
    }
}

/// Returns the daemon's counts, by the names under which they are shown.
fn daemon_metrics(statistics: &DaemonStatistics) -> Vec<(&'static str, f64)> {
    let lots = &statistics.protocol;
    let counts = [
        ("lottery_received", statistics.received),
        ("lottery_sent", statistics.sent),
        ("lottery_forged", statistics.forged),
        ("lottery_unknown_key", statistics.unknown_key),
        ("lottery_malformed", statistics.malformed),
        ("lottery_replayed", statistics.replayed),
        ("lottery_misused", statistics.misused),
        ("lottery_implausible", statistics.implausible),
        ("lottery_unsent", statistics.unsent),
        ("lottery_won", lots.won),
        ("lottery_stood_in", lots.stood_in),
        ("lottery_referred", lots.referred),
        ("lottery_turned_away", lots.turned_away),
        ("lottery_repeated", lots.repeated),
        ("lottery_duplicates", lots.duplicates),
        ("lottery_limited", lots.rate_limited),
        ("lottery_forgotten", lots.forgotten),
        ("lottery_prefer_referral", u64::from(lots.prefer_referral)),
        ("lottery_dropped", lots.dropped),
        ("lottery_members", lots.members_reporting as u64),
        ("lottery_alive", statistics.alive as u64),
        ("lottery_strays", statistics.stray_reports),
        ("lottery_draining", u64::from(statistics.draining)),
        ("lottery_loads_lost", lots.loads_lost as u64),
        ("lottery_members_differ", lots.members_differ as u64),
    ];
    let mut numbers: Vec<(&str, f64)> = counts.map(|(name, count)| (name, count as f64)).into();
    numbers.push(("lottery_step_seconds", lots.step.as_secs_f64()));
    numbers.push(("lottery_lag_seconds", lots.lag.as_secs_f64()));
    numbers.extend(lots.commit_delay.map(|delay| ("lottery_commit_delay_seconds", delay.as_secs_f64())));
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_that_of_the_service_before_that_of_the_machine() {
        let value = |name: &str, value: f64, age: u64| MetricValue {
            name: name.into(),
            value,
            age: Duration::from_secs(age),
            source: plimsoll_agent::ValueSource::Reported,
        };
        let shared = [
            value("cpu", 0.9, 0),
            value("in_flight", 50.0, 0),
            value("web_1.in_flight", 3.0, 0),
            value("web_1.busy", 4.0, 11),
        ];
        let own = [value("cpu", 0.2, 0), value("busy", 5.0, 0)];
        let known = |alone| ServiceValues {
            prefix: "web_1.",
            own_values: &own,
            shared_values: &shared,
            is_only_service: alone,
        };
        let found = ["cpu", "in_flight", "busy", "other"].map(|name| known(false).look_up(name));
        assert_eq!(found, [Some(0.2), Some(3.0), Some(5.0), None]);
        let mail = |alone| ServiceValues {
            prefix: "mail.",
            own_values: &[],
            shared_values: &shared,
            is_only_service: alone,
        };
        assert_eq!((mail(false).look_up("in_flight"), mail(true).look_up("in_flight")), (None, Some(50.0)));
        assert_eq!(mail(false).look_up("cpu"), Some(0.9));
    }

    #[test]
    fn names_of_numbers_fit_on_the_board() {
        let mut statistics = DaemonStatistics::default();
        statistics.protocol.commit_delay = Some(Duration::ZERO);
        let names = daemon_metrics(&statistics);
        // A metric store has 40 names: 12 are left for programs of the host, as the guide describes.
        assert!(names.len() <= 28 && names.iter().all(|(name, _)| plimsoll_cluster::is_name(name)));
    }
}
