//! Strategies: pure functions from a plan and an ask to a member.
//!
//! To add one: write `strategy/<name>.rs` and its line in [`ALL`]. Config name, help, schema, the laws in
//! `tests/laws.rs` and the benchmark follow from the list.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::hash::unit;
use crate::meter::Reading;
use crate::time::nanos;
use crate::{Ask, Hand, Member, Plan, Rule, State, Table, Time, Vitals};

mod adaptive;
mod alias;
mod expression;
mod first_available;
mod least_connections;
mod least_loaded;
mod least_request;
mod load_average;
mod load_minimum;
mod lottery;
mod maglev;
mod minimum_dispersion;
mod peak_ewma;
mod prequal;
mod random;
mod rendezvous;
mod reported;
mod round_robin;
mod schedule;
mod usage;
mod weighted_round_robin;

pub(crate) use prequal::Pool;

/// Every strategy there is, the default one first.
pub const ALL: &[&Strategy] = &[
    &adaptive::STRATEGY,
    &least_connections::STRATEGY,
    &round_robin::STRATEGY,
    &weighted_round_robin::STRATEGY,
    &random::STRATEGY,
    &least_request::STRATEGY,
    &peak_ewma::STRATEGY,
    &prequal::STRATEGY,
    &rendezvous::STRATEGY,
    &maglev::STRATEGY,
    &lottery::STRATEGY,
    &least_loaded::STRATEGY,
    &load_average::STRATEGY,
    &load_minimum::STRATEGY,
    &minimum_dispersion::STRATEGY,
    &first_available::STRATEGY,
];

/// [`ALL`] has everything that a name alone says; this one needs weights from outside, see
/// [`Analyzer::handle_weights`](crate::Analyzer::handle_weights).
pub static EXPRESSION: &Strategy = &expression::STRATEGY;

/// A way to choose a member.
#[derive(Debug)]
pub struct Strategy {
    /// As written in the configuration.
    pub name: &'static str,
    /// One line for help and documents, without a full stop.
    pub about: &'static str,
    /// Its settings.
    pub knobs: &'static [Knob],
    /// Do these settings, each within its range, contradict one another? Then a plan takes them nevertheless, and does
    /// what its author cannot have meant.
    pub clash: fn(&Knobs) -> Option<Clash>,
    /// Does it read [`Vitals::latency`]? If not, nobody keeps it, unless limits are to be found for members.
    pub reads_latency: bool,
    /// Does it read [`Member::effective`](crate::Member) or [`Member::usage`](crate::Member)? If not, a report makes
    /// no new plan.
    pub reads_load: bool,
    /// Does it read [`Member::usage`](crate::Member)? If not, nobody asks members for it.
    pub reads_usage: bool,
    /// Does it read [`Ask::key`]? If not, nobody computes it.
    pub reads_key: bool,
    /// Of members that answer alike, does each get a share of the requests that is its share of the weights
    /// (over many keys, if it reads them)?
    pub shares: bool,
    /// Does it send less to a member that has more to do than the others, whatever the weights say? Then members are full
    /// all at once, and not one after the other (`load_line`), and a limit of all together says something of each (`plan/admission`).
    pub heeds_load: bool,
    /// Does it see to it by itself that no member gets more than it can work on, where that is asked for, and is it asked for
    /// unless the group says otherwise ([`GroupSpec::admission`](crate::GroupSpec))? For others the plan does.
    pub limits: bool,
    /// Slow path: what to compute when members or weights change.
    pub prepare: fn(&[Member], &Knobs) -> Table,
    /// When a member is under alert, where clients are bound on demand.
    pub rule: fn(&Knobs) -> Rule,
    /// Fast path: an index into [`Plan::members`], which is not empty; [`NONE`] if none of them may have more.
    pub choose: fn(&Plan, &mut Hand, &Ask) -> usize,
    /// When that one is full or was tried: an index to one that is `left`, or `None` if there is none.
    pub second: fn(&Plan, &mut Hand, &Ask, Left<'_>) -> Option<usize>,
    /// What [`Plan::observe`] does.
    pub observe: fn(&Knobs, &Vitals, latency: Duration, failed: bool, now: Time),
    /// What [`Plan::hear`] does.
    pub hear: fn(&mut Hand, &Member, &Reading, Time),
    /// For people: why it gives a member of the plan nothing now, if that is so whatever the others do.
    pub refuses: fn(&Plan, &Member) -> Option<String>,
    /// For people: the figures by which it judges a member of the plan, named with their unit where they have one.
    /// What every strategy has (weight, requests in flight) is shown anyway.
    pub explain: fn(&Plan, &Member, Time) -> Vec<(&'static str, f64)>,
}

/// What [`Strategy::choose`] says where no member may have more; then `second` is asked.
pub const NONE: usize = usize::MAX;

/// Which members can still be chosen: not full, not tried.
pub type Left<'a> = &'a dyn Fn(&Member) -> bool;

/// One number a strategy can be set by.
#[derive(Debug)]
pub struct Knob {
    /// As written in the configuration.
    pub name: &'static str,
    /// One line, with the unit.
    pub about: &'static str,
    /// What it is when not set.
    pub default: f64,
    /// Least allowed value.
    pub min: f64,
    /// Greatest allowed value.
    pub max: f64,
}

/// There is one of each name.
impl PartialEq for Strategy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Settings that cannot go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The one to change.
    pub knob: &'static str,
    /// The other one, if it is not wrong by itself.
    pub with: Option<&'static str>,
    /// What is wrong, for people.
    pub why: String,
    /// What would be right.
    pub hint: &'static str,
}

/// Values of a strategy's knobs, in the order of [`Strategy::knobs`].
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs(pub Vec<f64>);

impl Knobs {
    /// Every knob at its default.
    pub fn defaults(strategy: &Strategy) -> Self {
        Self(strategy.knobs.iter().map(|knob| knob.default).collect())
    }

    /// As many as the strategy has, each within its range; the default where one is missing or not a number.
    pub(crate) fn fit(&self, strategy: &Strategy) -> Self {
        let fit = |(index, knob): (usize, &Knob)| match self.0.get(index) {
            Some(value) if !value.is_nan() => value.clamp(knob.min, knob.max),
            _ => knob.default,
        };
        Self(strategy.knobs.iter().enumerate().map(fit).collect())
    }

    /// The one called `name`, if the strategy has it.
    pub fn named(&self, strategy: &Strategy, name: &str) -> Option<f64> {
        let index = strategy.knobs.iter().position(|knob| knob.name == name)?;
        self.0.get(index).copied()
    }

    /// Number `index`; 0 if the strategy has no such knob.
    fn at(&self, index: usize) -> f64 {
        self.0.get(index).copied().unwrap_or_default()
    }
}

/// The strategy called `name`.
pub fn find(name: &str) -> Option<&'static Strategy> {
    ALL.iter().find(|strategy| strategy.name == name).copied()
}

/// What a strategy is that does not say otherwise: prepares, learns and reads nothing, has no thresholds.
const PLAIN: Strategy = Strategy {
    name: "",
    about: "",
    knobs: &[],
    clash: |_| None,
    reads_latency: false,
    reads_load: false,
    reads_usage: false,
    reads_key: false,
    shares: true,
    heeds_load: false,
    limits: false,
    prepare: |_, _| Table::None,
    rule: |_| Rule::Surplus,
    choose: |plan, hand, ask| fewest(plan, hand, ask, &|_| true).unwrap_or(NONE),
    second: fewest,
    observe: |_, _, _, _, _| {},
    hear: |_, _, _, _| {},
    refuses: |_, _| None,
    explain: |_, _, _| Vec::new(),
};

/// What latency is kept by those that need a plain mean of the latest ones, and where only limits are found by it.
pub(crate) fn recent(_: &Knobs, vitals: &Vitals, latency: Duration, failed: bool, now: Time) {
    let latency = nanos(latency);
    match vitals.blended() {
        Some(mean) if failed => vitals.blend(failure(latency, mean), LATENCIES, now),
        None if failed => {}
        // Of one that says how it is this stands beside what it says, and grows old with that.
        Some(mean) if vitals.heard.ever() => {
            vitals.blend_from(mean, latency.min(LONG * mean), LATENCIES, now);
        }
        // One that is many times as long as the others (an export, a stream) is no sign of a member that has become slow: some of those are.
        Some(mean) => {
            // Nor is one still slow that was long ago, if it is not now.
            let quick = vitals.blended_at(now).is_some_and(|(_, age)| age as i64 as f32 > STALE * latency);
            let most = if quick { STALE * latency } else { f32::INFINITY };
            vitals.blend_from(mean.min(most), latency.min(LONG * mean), LATENCIES, now);
        }
        None => vitals.blend(latency, LATENCIES, now),
    }
}

/// What a failure counts for, nanoseconds: it is never fast. Twice the mean, so that each makes the next count for more; but many of
/// them no more than a second, so that successes make it good.
pub(crate) fn failure(latency: f32, mean: f32) -> f32 {
    latency.max(mean).max((2.0 * mean).min(FAILURES))
}

/// Latencies over which a member's is averaged.
const LATENCIES: f32 = 8.0;

/// How many times as long as that mean one counts at most.
const LONG: f32 = 8.0;

/// So many times as long as a request takes now the mean of those before is still believed to be, and not more than so many times as
/// long as that.
const STALE: f32 = 16.0;

/// What failures count for at most, nanoseconds, if they did not take longer.
const FAILURES: f32 = 1e9;

/// For strategies that give turns or ranks and no shares: does a member take this turn? One in slow start takes a growing part of
/// them, by chance, which is 64 random bits.
fn takes_turn(member: &Member, chance: u64) -> bool {
    member.state != State::SlowStart || unit(chance) * member.capacity < member.weight
}

/// For strategies that go by shares.
fn share(plan: &Plan, member: &Member, _: Time) -> Vec<(&'static str, f64)> {
    let all: f64 = plan.members().iter().map(|member| member.weight).sum();
    Vec::from([("share", member.weight / all)])
}

/// For strategies that compare what is in flight for the weight.
fn relative_load(_: &Plan, member: &Member, _: Time) -> Vec<(&'static str, f64)> {
    Vec::from([("in_flight_per_weight", member.everywhere() / member.weight)])
}

/// For strategies to which all members that are left are the same: the least loaded of them.
fn fewest(plan: &Plan, _: &mut Hand, ask: &Ask, left: Left<'_>) -> Option<usize> {
    least_connections::least(plan, ask, left)
}
