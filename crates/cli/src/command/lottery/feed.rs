//! Tells a daemon how loaded its servers are, and the world how the daemon does.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_agent::Told;
use plimsoll_cluster::Expression;
use plimsoll_cluster::lottery::{Lottery, Statistics};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::config::{LotteryFile, count};

/// Why a daemon ends of itself.
pub(super) enum End {
    /// Its thread is no more.
    Thread,
    /// Another has its number and was there before.
    Twin(SocketAddr),
}

/// Tells the daemon how loaded the servers are, and the world how the daemon does, until the daemon is no more or must not be.
pub(super) async fn feed(file: &LotteryFile, lottery: &Lottery, told: &Told) -> End {
    let services = file.lottery.services.iter();
    let loads: Vec<(u32, Expression)> =
        services.filter_map(|service| Some((service.number(), service.load()?))).collect();
    let mut tick = interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (begin, mut lost, mut said) = (Instant::now(), 0, BTreeSet::new());
    let mut strangers = Strangers::default();
    loop {
        tick.tick().await;
        if !loads.is_empty() {
            let known = told.known().values;
            let lookup = |name: &str| {
                let value = known.iter().find(|value| value.name == name)?;
                (value.age <= FRESH).then_some(value.value)
            };
            let in_flight = lookup("in_flight").unwrap_or_default();
            for (service, load) in &loads {
                match load.eval(lookup) {
                    // Beyond what fits, what fits: casts of numbers do so.
                    Ok(load) => lottery.load(*service, (load * 1000.0) as u16, in_flight as u16).await,
                    // What takes two looks is not there at once.
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
            // There is room as long as programs do not tell dozens of names.
            let _ = told.tell(name, value);
        }
    }
}

/// Between two looks at loads and counts.
const LOOK: Duration = Duration::from_millis(250);

/// A number that was not read or told for so long is not known.
pub(super) const FRESH: Duration = Duration::from_secs(10);

/// Until then it is no wonder that a number is not known.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two complaints about datagrams of strangers.
const COMPLAINT: Duration = Duration::from_secs(60);

/// Datagrams that nobody who has the keys has sent.
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

/// What the daemon counts, by the names under which it is shown.
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
    fn names_of_numbers_fit_on_the_board() {
        let mut statistics = Statistics::default();
        statistics.lots.commit_delay = Some(Duration::ZERO);
        let names = numbers(&statistics);
        // Of the 40 that a board has programs of the host are left 14, which the guide says.
        assert!(names.len() <= 26 && names.iter().all(|(name, _)| plimsoll_cluster::is_name(name)));
    }
}
