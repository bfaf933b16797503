//! What the load line of a group is made of: counts of all cores, summed once a second on the slow path, and what agents tell of
//! members' processors. What follows from it is in `plimsoll_brain::load_line`.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::LazyLock;

use plimsoll_brain::load_line::{Cpu, Estimator, LEVELS, MemberSeen, Own, Seen};
use plimsoll_brain::status::{LoadLine, MemberLoadLine};
use plimsoll_brain::{MemberId, Time};

use crate::clock;
use crate::control::{Control, Ruled, carries};
use crate::group::{Record, Stripe};
use crate::report;
use crate::stats::{Count, Merged};

/// The load line of one group.
#[derive(Default)]
pub(crate) struct Survey {
    estimator: Estimator,
    /// What was last told of members' processors.
    told: BTreeMap<MemberId, (Cpu, Time)>,
}

impl Survey {
    pub(crate) fn status(&self) -> Option<LoadLine> {
        self.estimator.status()
    }

    pub(crate) fn member(&self, member: MemberId) -> Option<MemberLoadLine> {
        self.estimator.member(member)
    }
}

impl Control {
    /// Looks at what groups carry.
    pub(crate) fn survey(&mut self, now: Time) {
        let listeners = &self.settings.listeners;
        // Of groups whose traffic is requests, or of the others.
        let of = |requests: bool, count: fn(&Stripe) -> &Count| -> u64 {
            let its = self.groups.iter().filter(|(name, _)| carries(listeners, name) == requests);
            its.map(|(_, ruled)| ruled.ever(count)).fold(0, u64::wrapping_add)
        };
        let (requests, others) = counted(of);
        let own = Own {
            cpu_seconds: clock::processor_seconds(),
            requests,
            others,
            processors: (self.cores as f64).min(*PROCESSORS),
        };
        for (name, ruled) in &mut self.groups {
            ruled.survey(carries(&self.settings.listeners, name), own, now);
        }
    }

    /// An agent told how busy a member's processors were at `at`.
    pub(crate) fn sensed(&mut self, group: &str, member: &str, cpu: Cpu, at: Time) {
        let sound = |number: f64| number.is_finite() && number >= 0.0;
        let Some(ruled) = self.groups.get_mut(group).filter(|_| sound(cpu.share)) else { return };
        let Some(id) = ruled.id(member) else { return };
        let processors = cpu.processors.filter(|count| sound(*count) && *count > 0.0);
        let newer = ruled.load_line.told.get(&id).is_none_or(|(_, known)| *known < at);
        if newer {
            ruled.load_line.told.insert(id, (Cpu { processors, ..cpu }, at));
        }
    }
}

impl Ruled {
    /// A count over all of its members.
    fn ever(&self, count: fn(&Stripe) -> &Count) -> u64 {
        let records = self.analyzer.members().filter_map(|(id, ..)| self.record(id));
        records.map(|record| sum(record, count)).fold(0, u64::wrapping_add)
    }

    fn survey(&mut self, requests: bool, own: Own, now: Time) {
        let published = self.group.published();
        let planned = |id: MemberId| published.plan.members().iter().find(|member| member.id == id);
        let records: Vec<_> = self
            .analyzer
            .members()
            .filter_map(|(id, _, vitals)| Some((id, vitals.said(now), self.record(id)?)))
            .collect();
        let levels: Vec<_> = records.iter().map(|(.., record)| levels(record)).collect();
        let members: Vec<_> = records
            .iter()
            .zip(&levels)
            .map(|((id, said, record), levels)| MemberSeen {
                id: *id,
                usable: planned(*id).is_some(),
                weight: planned(*id).map_or(0.0, |member| member.weight),
                requests: sum(record, |stripe| &stripe.requests),
                failures: sum(record, |stripe| &stripe.failures),
                seconds: record.stripes.iter().map(|stripe| stripe.latency.seconds()).sum(),
                levels,
                said: *said,
                cpu: self.load_line.told.get(id).copied(),
            })
            .collect();
        let latency = report::latency(&self.group.tallies);
        let strategy = self.settings.spec.strategy;
        let seen = Seen {
            requests,
            by_load: strategy.heeds_load,
            // Who goes by keys goes by clients, who are not alike.
            by_weight: strategy.shares && !strategy.reads_key,
            members: &members,
            latencies: latency.counts(),
            middles: &MIDDLES,
            own,
        };
        self.load_line.estimator.observe(&seen, now);
        self.load_line.told.retain(|id, _| members.iter().any(|member| member.id == *id));
    }
}

fn sum(record: &Record, count: fn(&Stripe) -> &Count) -> u64 {
    record.stripes.iter().map(|stripe| count(stripe).value()).fold(0, u64::wrapping_add)
}

fn levels(record: &Record) -> [[u64; 2]; LEVELS] {
    let mut levels = [[0; 2]; LEVELS];
    record.stripes.iter().for_each(|stripe| stripe.levels.sum(&mut levels));
    levels
}

/// Requests so far, and a number that moves whenever there is something else to do. `of`: a count of all groups whose traffic is requests,
/// or of all others.
fn counted(of: impl Fn(bool, fn(&Stripe) -> &Count) -> u64) -> (u64, u64) {
    let others: [fn(&Stripe) -> &Count; 3] =
        [|stripe| &stripe.requests, |stripe| &stripe.bytes_out, |stripe| &stripe.bytes_in];
    // A request that became a byte stream costs for as long as that lasts.
    let tunnels = of(true, |stripe| &stripe.bytes_relayed);
    let others = others.into_iter().map(|count| of(false, count)).fold(tunnels, u64::wrapping_add);
    (of(true, |stripe| &stripe.requests), others)
}

/// What buckets of latencies stand for.
static MIDDLES: LazyLock<Vec<f64>> = LazyLock::new(Merged::middles);

/// Processors that this process may use.
static PROCESSORS: LazyLock<f64> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get) as f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_streams_are_no_requests_whatever_they_began_as() {
        let (http, tcp) = (Stripe::default(), Stripe::default());
        let now = || counted(|requests, count| count(if requests { &http } else { &tcp }).value());
        http.requests.add(5);
        http.bytes_in.add(1000);
        assert_eq!(now(), (5, 0));
        // A WebSocket.
        http.bytes_relayed.add(7);
        assert_eq!(now(), (5, 7));
        tcp.bytes_out.add(2);
        assert_eq!(now(), (5, 9));
    }
}
