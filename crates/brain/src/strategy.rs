//! Strategies: pure functions from a plan and a request to a member.
//!
//! To add one, write `strategy/<name>.rs` and its line in [`ALL`]. The configuration name, help, schema, the
//! laws in `tests/laws.rs` and the benchmark follow from the list.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::hash::unit;
use crate::meter::Reading;
use crate::time::nanos;
use crate::{AlertRule, Member, MemberState, PickRequest, PickerState, Plan, StrategyTable, Time, Vitals};

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

pub(crate) use prequal::ProbePool;

/// All strategies, the default one first.
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

/// The strategy with weights from outside, see [`Analyzer::handle_weights`](crate::Analyzer::handle_weights).
/// It is not in [`ALL`], whose strategies need no more than a name.
pub static EXPRESSION: &Strategy = &expression::STRATEGY;

/// A way to choose a member.
#[derive(Debug)]
pub struct Strategy {
    /// The name in the configuration.
    pub name: &'static str,
    /// A line for help and documentation, without a full stop.
    pub about: &'static str,
    /// The settings.
    pub params: &'static [StrategyParam],
    /// Returns the conflict of settings that are each within their range. A plan accepts them nevertheless,
    /// and does what their author cannot have meant.
    pub conflict: fn(&StrategyParams) -> Option<ParamConflict>,
    /// Whether it reads [`Vitals::latency`]. If not, no latency is recorded, unless concurrency limits are
    /// learnt.
    pub reads_latency: bool,
    /// Whether it reads [`Member::effective`](crate::Member) or [`Member::usage`](crate::Member). If not, a
    /// report makes no new plan.
    pub reads_load: bool,
    /// Whether it reads [`Member::usage`](crate::Member). If not, members are not asked for it.
    pub reads_usage: bool,
    /// Whether it reads [`PickRequest::key`]. If not, the key is not computed.
    pub reads_key: bool,
    /// Whether each of several members that answer alike gets its share of the weights (over many keys, if
    /// the strategy reads them).
    pub shares: bool,
    /// Whether it sends less to a member with more load than the others, whatever the weights. Then all
    /// members become full together, not one after the other (`load_line`), and a limit of the group holds
    /// for each of them (`plan/admission`).
    pub prefers_less_load: bool,
    /// Whether the strategy itself enforces concurrency limits, for groups with admission. Admission is then
    /// on unless the group turns it off ([`GroupSpec::admission`](crate::GroupSpec)). For other strategies
    /// the plan enforces them.
    pub enforces_limits: bool,
    /// Computes the table when members or weights change (slow path).
    pub prepare: fn(&[Member], &StrategyParams) -> StrategyTable,
    /// Returns the rule by which a member is under alert, in groups that bind clients on demand.
    pub alert_rule: fn(&StrategyParams) -> AlertRule,
    /// Returns an index into [`Plan::members`], which is not empty, or [`NO_MEMBER`] if all of them must get
    /// nothing more (fast path).
    pub choose: fn(&Plan, &mut PickerState, &PickRequest) -> usize,
    /// Returns the index of a member that is `left`, if the first one is full or was tried; `None` if none is
    /// left.
    pub second_choice: fn(&Plan, &mut PickerState, &PickRequest, Eligible<'_>) -> Option<usize>,
    /// Implements [`Plan::observe`].
    pub observe: fn(&StrategyParams, &Vitals, latency: Duration, failed: bool, now: Time),
    /// Implements [`Plan::record_report`].
    pub record_report: fn(&mut PickerState, &Member, &Reading, Time),
    /// Returns the reason why the member gets nothing now, if that holds whatever the others do. For display.
    pub refusal_message: fn(&Plan, &Member) -> Option<String>,
    /// Returns the figures by which the strategy judges a member of the plan, with the unit in the name if
    /// there is one. For display, beside the weight and the requests in flight, which are always shown.
    pub explain: fn(&Plan, &Member, Time) -> Vec<(&'static str, f64)>,
}

/// The result of [`Strategy::choose`] if every member must get nothing more; then `second` is called.
pub const NO_MEMBER: usize = usize::MAX;

/// The predicate of members that can still be chosen: not full, not tried.
pub type Eligible<'a> = &'a dyn Fn(&Member) -> bool;

/// A numeric setting of a strategy.
#[derive(Debug)]
pub struct StrategyParam {
    /// The name in the configuration.
    pub name: &'static str,
    /// A line of help, with the unit.
    pub about: &'static str,
    /// The value if it is not set.
    pub default: f64,
    /// The least allowed value.
    pub min: f64,
    /// The greatest allowed value.
    pub max: f64,
}

/// Compares by name, which is unique.
impl PartialEq for Strategy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Settings that conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamConflict {
    /// The setting to change.
    pub param: &'static str,
    /// The other setting, unless the first is wrong by itself.
    pub conflicts_with: Option<&'static str>,
    /// The problem, for display.
    pub why: String,
    /// The solution.
    pub hint: &'static str,
}

/// The values of a strategy's parameters, in the order of [`Strategy::params`].
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyParams(pub Vec<f64>);

impl StrategyParams {
    /// Returns every parameter at its default.
    pub fn defaults(strategy: &Strategy) -> Self {
        Self(strategy.params.iter().map(|param| param.default).collect())
    }

    /// Returns as many values as the strategy has parameters, each within its range. A missing value or one
    /// that is not a number becomes the default.
    pub(crate) fn fit(&self, strategy: &Strategy) -> Self {
        let value_of = |(index, param): (usize, &StrategyParam)| match self.0.get(index) {
            Some(value) if !value.is_nan() => value.clamp(param.min, param.max),
            _ => param.default,
        };
        Self(strategy.params.iter().enumerate().map(value_of).collect())
    }

    /// Returns the value of the parameter called `name`, if the strategy has it.
    pub fn get(&self, strategy: &Strategy, name: &str) -> Option<f64> {
        let index = strategy.params.iter().position(|param| param.name == name)?;
        self.0.get(index).copied()
    }

    /// Returns the value at `index`; 0 if the strategy has no such parameter.
    fn at(&self, index: usize) -> f64 {
        self.0.get(index).copied().unwrap_or_default()
    }
}

/// Returns the strategy called `name`.
pub fn find(name: &str) -> Option<&'static Strategy> {
    ALL.iter().find(|strategy| strategy.name == name).copied()
}

/// The defaults of a strategy: it prepares, learns and reads nothing, and has no thresholds.
const DEFAULTS: Strategy = Strategy {
    name: "",
    about: "",
    params: &[],
    conflict: |_| None,
    reads_latency: false,
    reads_load: false,
    reads_usage: false,
    reads_key: false,
    shares: true,
    prefers_less_load: false,
    enforces_limits: false,
    prepare: |_, _| StrategyTable::None,
    alert_rule: |_| AlertRule::Surplus,
    choose: |plan, picker, request| fewest_in_flight(plan, picker, request, &|_| true).unwrap_or(NO_MEMBER),
    second_choice: fewest_in_flight,
    observe: |_, _, _, _, _| {},
    record_report: |_, _, _, _| {},
    refusal_message: |_, _| None,
    explain: |_, _, _| Vec::new(),
};

/// Records latency as a plain mean of the latest values. Strategies that need such a mean use it, and groups
/// that need latency only for their concurrency limits.
pub(crate) fn record_mean_latency(
    _: &StrategyParams,
    vitals: &Vitals,
    latency: Duration,
    failed: bool,
    now: Time,
) {
    let latency = nanos(latency);
    match vitals.mean_latency() {
        Some(mean) if failed => vitals.blend(failure_latency(latency, mean), LATENCY_SAMPLES, now),
        None if failed => {}
        // For a member with load reports, the latency stands beside the report and ages with it.
        Some(mean) if vitals.last_report.was_ever_received() => {
            vitals.blend_from(mean, latency.min(MAX_LATENCY_RATIO * mean), LATENCY_SAMPLES, now);
        }
        // A request many times as long as the others (an export, a stream) does not show a slow member: some
        // are that long.
        Some(mean) => {
            // A member that was slow long ago does not count as slow if it is fast now.
            let is_stale = vitals
                .latency_and_age(now)
                .is_some_and(|(_, age)| age as i64 as f32 > STALE_LATENCY_MULTIPLE * latency);
            let max_mean = if is_stale { STALE_LATENCY_MULTIPLE * latency } else { f32::INFINITY };
            vitals.blend_from(
                mean.min(max_mean),
                latency.min(MAX_LATENCY_RATIO * mean),
                LATENCY_SAMPLES,
                now,
            );
        }
        None => vitals.blend(latency, LATENCY_SAMPLES, now),
    }
}

/// Returns the latency that a failure counts as, in nanoseconds: `max(latency, mean, min(2 mean, FAILURES))`.
///
/// A failure is never fast, and each makes the next count for more. The bound lets successes make up for many
/// of them.
pub(crate) fn failure_latency(latency: f32, mean: f32) -> f32 {
    latency.max(mean).max((2.0 * mean).min(MAX_FAILURE_LATENCY))
}

/// The number of latencies over which a member's latency is averaged.
const LATENCY_SAMPLES: f32 = 8.0;

/// The maximum that one latency counts as, as a multiple of the mean.
const MAX_LATENCY_RATIO: f32 = 8.0;

/// If the mean is older than this multiple of the present latency, it counts as at most this multiple of it.
const STALE_LATENCY_MULTIPLE: f32 = 16.0;

/// The maximum that a failure counts as if it did not take longer, nanoseconds.
const MAX_FAILURE_LATENCY: f32 = 1e9;

/// Returns `true` if a member takes this turn, for strategies with turns or ranks and no shares. A member in
/// slow start takes a growing part of its turns at random; `chance` is 64 random bits.
fn takes_turn(member: &Member, random_bits: u64) -> bool {
    member.state != MemberState::SlowStart || unit(random_bits) * member.capacity < member.weight
}

/// Returns the figure of strategies by shares.
fn share(plan: &Plan, member: &Member, _: Time) -> Vec<(&'static str, f64)> {
    let total_weight: f64 = plan.members().iter().map(|member| member.weight).sum();
    Vec::from([("share", member.weight / total_weight)])
}

/// Returns the figure of strategies that compare requests in flight per weight.
fn relative_load(_: &Plan, member: &Member, _: Time) -> Vec<(&'static str, f64)> {
    Vec::from([("in_flight_per_weight", member.in_flight_everywhere() / member.weight)])
}

/// Returns the least loaded of the remaining members, for strategies that do not rank them.
fn fewest_in_flight(
    plan: &Plan,
    _: &mut PickerState,
    request: &PickRequest,
    has_room: Eligible<'_>,
) -> Option<usize> {
    least_connections::least_loaded(plan, request, has_room)
}
