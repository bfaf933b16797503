//! The explanation of a group: the known state of each member, the strategy's figures, and recent decisions.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::{EventKind, MemberState};

/// The explanation of a group: the known state of each member, the strategy's figures, and recent decisions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupExplanation {
    /// The version of this shape; raised when a field changes its meaning.
    pub schema: u32,
    /// The configured name.
    pub name: String,
    /// The name of the strategy in force.
    pub strategy: String,
    /// Whether an operator has switched off balancing by the configured strategy.
    #[serde(default)]
    pub balancing_disabled: bool,
    /// The settings of the strategy, by name.
    pub knobs: BTreeMap<String, f64>,
    /// The expression of the members' weights, if the strategy uses one.
    pub weight: Option<String>,
    /// A line for display: `4/5 members up, 1 ejected`.
    pub verdict: String,
    /// The source of loads, if the group has a monitor.
    pub monitor: Option<MonitorExplanation>,
    /// The members, in the order of the configuration.
    pub members: Vec<MemberExplanation>,
    /// The last events of the group as a whole, oldest first.
    pub events: Vec<LoggedEvent>,
}

/// The source of a group's loads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MonitorExplanation {
    /// `push`, `pull`, `passive`, `orca` or `prometheus`.
    pub source: String,
    /// The metric of a member's load: a name or an expression.
    pub metric: String,
    /// The seconds between two looks, or two expected reports.
    pub interval_seconds: f64,
}

/// The explanation of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberExplanation {
    /// The configured name: `host:port`.
    pub name: String,
    /// The resolved address.
    pub address: String,
    /// The state, which decides whether it may be chosen.
    pub state: MemberState,
    /// Whether it may be chosen now.
    pub eligible: bool,
    /// The reason, for display.
    pub why: String,
    /// The seconds since the last change of the state.
    pub since_seconds: f64,
    /// The configured capacity.
    pub capacity: f64,
    /// The present weight in the strategy.
    pub weight: f64,
    /// The requests, sessions or flows in flight.
    pub in_flight: u32,
    /// The sessions moved elsewhere because it was under alert.
    pub moved: u64,
    /// The alert in force, if there is one.
    pub alert: Option<AlertExplanation>,
    /// The maximum number in flight; `None` without a limit.
    pub limit: Option<u32>,
    /// The load that the strategy reads, if it has one.
    pub load: Option<LoadExplanation>,
    /// The reason why the metric gives no load now, or why its monitor does not answer.
    pub trouble: Option<String>,
    /// The reported and the queried figures, by name.
    pub facts: Vec<FactExplanation>,
    /// The reports that were dropped because they came too fast.
    pub dropped: u64,
    /// The figures by which the strategy judges it.
    pub figures: Vec<StrategyFigure>,
    /// The last events of the member, oldest first.
    pub events: Vec<LoggedEvent>,
}

/// An alert in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertExplanation {
    /// The part of its sessions that is to move, 0 to 1, by its last report.
    pub share: f64,
    /// The number of the decision.
    pub epoch: u32,
    /// Whether it awaits the drain hook. No session moves before.
    pub held: bool,
    /// The seconds since it was raised.
    pub since_seconds: f64,
    /// The numbers behind the decision, by name; finite.
    pub inputs: BTreeMap<String, f64>,
}

/// The load of a member.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadExplanation {
    /// The load in the unit of the group's metric.
    pub value: f64,
    /// The seconds since the measurement.
    pub age_seconds: f64,
}

/// A reported figure of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactExplanation {
    /// The reported name.
    pub name: String,
    /// The last value.
    pub value: f64,
    /// The seconds since the measurement.
    pub age_seconds: f64,
    /// `push`, `pull`, `orca` or `prometheus`.
    pub source: String,
}

/// A figure of a strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StrategyFigure {
    /// The name, with the unit if there is one.
    pub name: String,
    /// The value; finite.
    pub value: f64,
}

/// An event in the explanation of its subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedEvent {
    /// The number in the event log.
    pub seq: u64,
    /// The milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// The kind of the event.
    pub kind: EventKind,
    /// A sentence for display.
    pub why: String,
    /// The numbers behind the decision, by name; finite.
    pub inputs: BTreeMap<String, f64>,
}
