//! The feed of a daemon: the loads of its servers, and the daemon's own numbers for the board.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_agent::{Told, Value};
use plimsoll_cluster::Expression;
use plimsoll_cluster::lottery::{Lottery, Statistics};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::sense::Senses;
use crate::config::{LotteryFile, count};

/// The reason for which a daemon ends of itself.
pub(super) enum End {
    /// Its thread has ended.
    Thread,
    /// Another daemon has its number and was there before.
    Twin(SocketAddr),
}

/// Passes the loads of the servers to the daemon, and its numbers to the board, until the daemon has ended or
/// must end.
pub(super) async fn feed(file: &LotteryFile, lottery: &Lottery, told: &Told, senses: &Senses) -> End {
    let services = &file.lottery.services;
    let loads: Vec<(u32, String, Expression)> = services
        .iter()
        .filter_map(|service| Some((service.number(), service.prefix(), service.load()?)))
        .collect();
    let mut tick = interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (begin, mut lost, mut said) = (Instant::now(), 0, BTreeSet::new());
    let mut strangers = Strangers::default();
    loop {
        tick.tick().await;
        if !loads.is_empty() {
            let shared = told.known().values;
            for (service, prefix, load) in &loads {
                let own = senses.of(*service).map(|told| told.known().values).unwrap_or_default();
                let known = Known { prefix, own: &own, shared: &shared, alone: services.len() == 1 };
                let in_flight = known.look_up("in_flight").unwrap_or_default();
                match load.eval(|name| known.look_up(name)) {
                    // A value above the range is clamped, as casts of numbers do.
                    Ok(load) => lottery.load(*service, (load * 1000.0) as u16, in_flight as u16).await,
                    // A value that takes two looks is not there at once.
                    Err(why) => {
                        if begin.elapsed() > PATIENCE && said.len() < 100 && said.insert(why.clone()) {
                            tracing::warn!("no load by `{}`: {why}", load.text());
                        }
                    }
                }
            }
        }
        let Some(statistics) = lottery.statistics().await else { return End::Thread };
        if let Some(twin) = statistics.twin {
            return End::Twin(twin);
        }
        if statistics.lots.loads_lost > lost {
            let lost = count(statistics.lots.loads_lost, "service");
            tracing::warn!(
                "the load of {lost} is not known any more: shares follow the capacity alone until it is"
            );
        }
        lost = statistics.lots.loads_lost;
        strangers.look(&statistics, &file.keys().display());
        for (name, value) in numbers(&statistics) {
            // There is room as long as programs do not report dozens of names.
            let _ = told.tell(name, value);
        }
    }
}

/// The known values of one service.
struct Known<'a> {
    prefix: &'a str,
    /// The values that are read of it alone.
    own: &'a [Value],
    /// The values that are read of the machine, and those that programs report.
    shared: &'a [Value],
    /// Whether there is no other service.
    alone: bool,
}

impl Known<'_> {
    /// Returns a value by its name: a report for this service first, then a value read of it alone, then one
    /// of the machine. A number that names no service belongs to none of two services.
    fn look_up(&self, name: &str) -> Option<f64> {
        let fresh = |value: &&Value| value.age <= FRESH;
        let told = |value: &&Value| value.name.strip_prefix(self.prefix) == Some(name);
        let named = |value: &&Value| value.name == name;
        let shared = || self.shared.iter().filter(fresh);
        let found = shared().find(told).or_else(|| self.own.iter().filter(fresh).find(named));
        let anybody = name != "in_flight" || self.alone;
        found.or_else(|| shared().find(named).filter(|_| anybody)).map(|value| value.value)
    }
}

/// The time between two looks at loads and counts.
const LOOK: Duration = Duration::from_millis(250);

/// The age after which a number is not known any more.
pub(super) const FRESH: Duration = Duration::from_secs(10);

/// The time after the start in which a missing number is no fault.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time between two complaints about datagrams of strangers.
const COMPLAINT: Duration = Duration::from_secs(60);

/// Datagrams of senders without the keys.
#[derive(Default)]
struct Strangers {
    seen: u64,
    said: Option<Instant>,
}

impl Strangers {
    fn look(&mut self, statistics: &Statistics, keys: &impl std::fmt::Display) {
        let now = statistics.forged + statistics.unknown_key;
        let fresh = now - self.seen;
        if fresh > 0 && self.said.is_none_or(|said| said.elapsed() > COMPLAINT) {
            (self.seen, self.said) = (now, Some(Instant::now()));
            tracing::warn!(
                "{} dropped that no key of {keys} has sealed: all hosts and clients need the same file",
                count(usize::try_from(fresh).unwrap_or(usize::MAX), "datagram")
            );
        }
    }
}

/// Returns the daemon's counts, by the names under which they are shown.
fn numbers(statistics: &Statistics) -> Vec<(&'static str, f64)> {
    let lots = &statistics.lots;
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
        ("lottery_limited", lots.limited),
        ("lottery_forgotten", lots.forgotten),
        ("lottery_prefer_referral", u64::from(lots.prefer_referral)),
        ("lottery_dropped", lots.dropped),
        ("lottery_members", lots.members_heard as u64),
        ("lottery_alive", statistics.alive as u64),
        ("lottery_strays", statistics.strays),
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
        let value = |name: &str, value: f64, age: u64| Value {
            name: name.into(),
            value,
            age: Duration::from_secs(age),
            source: plimsoll_agent::Source::Told,
        };
        let shared = [
            value("cpu", 0.9, 0),
            value("in_flight", 50.0, 0),
            value("web_1.in_flight", 3.0, 0),
            value("web_1.busy", 4.0, 11),
        ];
        let own = [value("cpu", 0.2, 0), value("busy", 5.0, 0)];
        let known = |alone| Known { prefix: "web_1.", own: &own, shared: &shared, alone };
        let found = ["cpu", "in_flight", "busy", "other"].map(|name| known(false).look_up(name));
        assert_eq!(found, [Some(0.2), Some(3.0), Some(5.0), None]);
        let mail = |alone| Known { prefix: "mail.", own: &[], shared: &shared, alone };
        assert_eq!((mail(false).look_up("in_flight"), mail(true).look_up("in_flight")), (None, Some(50.0)));
        assert_eq!(mail(false).look_up("cpu"), Some(0.9));
    }

    #[test]
    fn names_of_numbers_fit_on_the_board() {
        let mut statistics = Statistics::default();
        statistics.lots.commit_delay = Some(Duration::ZERO);
        let names = numbers(&statistics);
        // A board has 40 names: 12 are left for programs of the host, as the guide describes.
        assert!(names.len() <= 28 && names.iter().all(|(name, _)| plimsoll_cluster::is_name(name)));
    }
}
