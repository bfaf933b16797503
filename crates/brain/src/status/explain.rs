//! A group explained: what is known of each member, what the strategy makes of it, and what was decided lately.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::{EventKind, State};

/// A group explained: what is known of each member, what the strategy makes of it, and what was decided lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupExplanation {
    /// Version of this shape; raised when a field changes its meaning.
    pub schema: u32,
    /// As configured.
    pub name: String,
    /// Name of the strategy in force.
    pub strategy: String,
    /// Has an operator switched off balancing by the strategy that the configuration names?
    #[serde(default)]
    pub balancing_disabled: bool,
    /// Its settings by name.
    pub knobs: BTreeMap<String, f64>,
    /// The expression that gives members their weights, if the strategy is made of one.
    pub weight: Option<String>,
    /// One line for a person: `4/5 members up, 1 ejected`.
    pub verdict: String,
    /// Where loads come from, if the group has a monitor.
    pub monitor: Option<MonitorExplanation>,
    /// In the order of the configuration.
    pub members: Vec<MemberExplanation>,
    /// The last things that happened to the group as a whole, oldest first.
    pub events: Vec<Happening>,
}

/// Where a group's loads come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MonitorExplanation {
    /// `push`, `pull`, `passive`, `orca` or `prometheus`.
    pub source: String,
    /// What a member's load is: a name or an expression.
    pub metric: String,
    /// Seconds between two looks, or two expected reports.
    pub interval_seconds: f64,
}

/// One member explained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberExplanation {
    /// As configured: `host:port`.
    pub name: String,
    /// Resolved.
    pub address: String,
    /// Whether and why it may be chosen.
    pub state: State,
    /// May it be chosen now?
    pub eligible: bool,
    /// Why, or why not, for a person.
    pub why: String,
    /// Seconds since the state last changed.
    pub since_seconds: f64,
    /// As configured.
    pub capacity: f64,
    /// What the strategy weighs it with now.
    pub weight: f64,
    /// Requests, sessions or flows it works on now.
    pub in_flight: u32,
    /// Sessions sent elsewhere because it was under alert.
    pub moved: u64,
    /// The alert that it is under, if it is.
    pub alert: Option<AlertExplanation>,
    /// Most of them at once; none if there is no limit.
    pub limit: Option<u32>,
    /// The load that the strategy reads, if it has one.
    pub load: Option<LoadExplanation>,
    /// Why the metric gives no load now, or why its monitor does not answer.
    pub trouble: Option<String>,
    /// What it told, and what was asked of it, by name.
    pub facts: Vec<FactExplanation>,
    /// Reports that were dropped because they came too fast.
    pub dropped: u64,
    /// The figures by which the strategy judges it.
    pub figures: Vec<Figure>,
    /// The last things that happened to it, oldest first.
    pub events: Vec<Happening>,
}

/// An alert in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertExplanation {
    /// Part of its sessions that is to go, 0 to 1, by its last report.
    pub share: f64,
    /// Number of the decision.
    pub epoch: u32,
    /// Does it wait until somebody has been told of it? No session is asked to go before.
    pub held: bool,
    /// Seconds since it was raised.
    pub since_seconds: f64,
    /// The numbers it was decided on, by name; finite.
    pub inputs: BTreeMap<String, f64>,
}

/// A member's load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadExplanation {
    /// In the unit of the group's metric.
    pub value: f64,
    /// Seconds since it was measured.
    pub age_seconds: f64,
}

/// One number that was told of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactExplanation {
    /// As it was told.
    pub name: String,
    /// The last one.
    pub value: f64,
    /// Seconds since it was measured.
    pub age_seconds: f64,
    /// `push`, `pull`, `orca` or `prometheus`.
    pub source: String,
}

/// A figure of a strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// With its unit, where it has one.
    pub name: String,
    /// Finite.
    pub value: f64,
}

/// An event, as it is told beside what it is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Happening {
    /// Its number in the event log.
    pub seq: u64,
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// What happened.
    pub kind: EventKind,
    /// One sentence for a person.
    pub why: String,
    /// The numbers it was decided on, by name; finite.
    pub inputs: BTreeMap<String, f64>,
}
