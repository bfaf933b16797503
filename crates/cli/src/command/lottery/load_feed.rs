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
    reporter: &ValueReporter,
    sensors: &ServiceSensors,
) -> DaemonEnd {
    let services = &file.lottery.services;
    let loads: Vec<(u32, String, Expression)> = services
        .iter()
        .filter_map(|service| Some((service.number(), service.prefix(), service.load()?)))
        .collect();
    let mut tick = interval(POLL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (started_at, mut lost_loads, mut logged_errors) = (Instant::now(), 0, BTreeSet::new());
    let mut unknown_senders = UnknownSenders::default();
    loop {
        tick.tick().await;
        if !loads.is_empty() {
            let shared_values = reporter.snapshot().values;
            for (service, prefix, load) in &loads {
                let own_values =
                    sensors.for_service(*service).map(|sensor| sensor.snapshot().values).unwrap_or_default();
                let values = ServiceValues {
                    prefix,
                    own_values: &own_values,
                    shared_values: &shared_values,
                    is_only_service: services.len() == 1,
                };
                let in_flight = values.look_up("in_flight").unwrap_or_default();
                match load.eval(|name| values.look_up(name)) {
                    // A value above the range is clamped, as casts of numbers do.
                    Ok(load) => lottery.set_load(*service, (load * 1000.0) as u16, in_flight as u16).await,
                    // A value that takes two looks is not there at once.
                    Err(error) => {
                        if started_at.elapsed() > STARTUP_GRACE
                            && logged_errors.len() < 100
                            && logged_errors.insert(error.clone())
                        {
                            tracing::warn!("no load by `{}`: {error}", load.text());
                        }
                    }
                }
            }
        }
        let Some(statistics) = lottery.statistics().await else { return DaemonEnd::ThreadEnded };
        if let Some(duplicate_address) = statistics.duplicate {
            return DaemonEnd::DuplicateMember(duplicate_address);
        }
        if statistics.protocol.loads_lost > lost_loads {
            let lost_services = pluralize(statistics.protocol.loads_lost, "service");
            tracing::warn!(
                "the load of {lost_services} is not known any more: shares follow the capacity alone until \
                 it is"
            );
        }
        lost_loads = statistics.protocol.loads_lost;
        unknown_senders.log_new(&statistics, &file.keys().display());
        for (name, value) in daemon_metrics(&statistics) {
            // There is room as long as programs do not report dozens of names.
            let _ = reporter.report(name, value);
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
        let is_fresh = |value: &&MetricValue| value.age <= MAX_VALUE_AGE;
        let is_service_value = |value: &&MetricValue| value.name.strip_prefix(self.prefix) == Some(name);
        let is_named = |value: &&MetricValue| value.name == name;
        let fresh_shared = || self.shared_values.iter().filter(is_fresh);
        let service_value = fresh_shared()
            .find(is_service_value)
            .or_else(|| self.own_values.iter().filter(is_fresh).find(is_named));
        let allows_shared = name != "in_flight" || self.is_only_service;
        service_value
            .or_else(|| fresh_shared().find(is_named).filter(|_| allows_shared))
            .map(|value| value.value)
    }
}

/// The time between two looks at loads and counts.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The age after which a number is not known any more.
pub(super) const MAX_VALUE_AGE: Duration = Duration::from_secs(10);

/// The time after the start in which a missing number is no fault.
const STARTUP_GRACE: Duration = Duration::from_secs(5);

/// The time between two complaints about datagrams of strangers.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Datagrams of senders without the keys.
#[derive(Default)]
struct UnknownSenders {
    datagrams: u64,
    last_logged: Option<Instant>,
}

impl UnknownSenders {
    fn log_new(&mut self, statistics: &DaemonStatistics, keys: &impl std::fmt::Display) {
        let total = statistics.forged + statistics.unknown_key;
        let new_datagrams = total - self.datagrams;
        if new_datagrams > 0
            && self.last_logged.is_none_or(|logged_at| logged_at.elapsed() > WARNING_INTERVAL)
        {
            (self.datagrams, self.last_logged) = (total, Some(Instant::now()));
            tracing::warn!(
                "{} dropped that no key of {keys} has sealed: all hosts and clients need the same file",
                pluralize(usize::try_from(new_datagrams).unwrap_or(usize::MAX), "datagram")
            );
        }
    }
}

/// Returns the daemon's counts, by the names under which they are shown.
fn daemon_metrics(statistics: &DaemonStatistics) -> Vec<(&'static str, f64)> {
    let protocol = &statistics.protocol;
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
        ("lottery_won", protocol.won),
        ("lottery_stood_in", protocol.stood_in),
        ("lottery_referred", protocol.referred),
        ("lottery_turned_away", protocol.turned_away),
        ("lottery_repeated", protocol.repeated),
        ("lottery_duplicates", protocol.duplicates),
        ("lottery_limited", protocol.rate_limited),
        ("lottery_forgotten", protocol.forgotten),
        ("lottery_prefer_referral", u64::from(protocol.prefer_referral)),
        ("lottery_dropped", protocol.dropped),
        ("lottery_members", protocol.members_reporting as u64),
        ("lottery_alive", statistics.alive as u64),
        ("lottery_strays", statistics.stray_reports),
        ("lottery_draining", u64::from(statistics.draining)),
        ("lottery_loads_lost", protocol.loads_lost as u64),
        ("lottery_members_differ", protocol.members_differ as u64),
    ];
    let mut numbers: Vec<(&str, f64)> = counts.map(|(name, count)| (name, count as f64)).into();
    numbers.push(("lottery_step_seconds", protocol.step.as_secs_f64()));
    numbers.push(("lottery_lag_seconds", protocol.lag.as_secs_f64()));
    numbers.extend(protocol.commit_delay.map(|delay| ("lottery_commit_delay_seconds", delay.as_secs_f64())));
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
        let own_values = [value("cpu", 0.2, 0), value("busy", 5.0, 0)];
        let values_of = |is_only_service| ServiceValues {
            prefix: "web_1.",
            own_values: &own_values,
            shared_values: &shared,
            is_only_service,
        };
        let values = ["cpu", "in_flight", "busy", "other"].map(|name| values_of(false).look_up(name));
        assert_eq!(values, [Some(0.2), Some(3.0), Some(5.0), None]);
        let mail_values = |is_only_service| ServiceValues {
            prefix: "mail.",
            own_values: &[],
            shared_values: &shared,
            is_only_service,
        };
        assert_eq!(
            (mail_values(false).look_up("in_flight"), mail_values(true).look_up("in_flight")),
            (None, Some(50.0))
        );
        assert_eq!(mail_values(false).look_up("cpu"), Some(0.9));
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
