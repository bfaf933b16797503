//! The table of a group's members, for both the dashboard and `plimsoll top`: its columns, their contents,
//! and a member's load with its marks in one unit.
//!
//! If a member's capacity in requests per second is known, its load is the utilized part of it, and the load
//! line is at 1. The marks of strategies use the same scale. Loads are assumed proportional to requests. By
//! Little's law, a limit of requests in flight is a rate at the current response times. If the capacity is
//! unknown, the load is the reported one, or the requests in flight, on one scale for the whole group.

use std::collections::HashMap;

use plimsoll_brain::status::{GroupStatus, ListenerStatus, MemberExplanation, MemberRecent, MemberStatus};
use serde::Serialize;

/// The columns, from the left. Those of reports, bindings and sheds may be omitted if no member has any.
pub const COLUMNS: [&str; 11] =
    ["Member", "State", "Load", "Report", "Bindings", "Rate", "p50", "p99", "Errors", "Sheds", "Why"];

/// The end of a scale relative to the load line.
const SCALE_MARGIN: f64 = 1.25;
/// The threshold of load, and of requests in flight, below which marks are not computed.
const MIN_LOAD_FOR_MARKS: f64 = 0.02;

/// The severity of a state; a class of the style sheet. A glyph and a word always express the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Good,
    /// Disabled on purpose, or unknown.
    Off,
    /// In transition, or close to a limit.
    Fair,
    /// Not as it should be.
    Bad,
}

/// The unit of a group's loads, and the length of their bars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadScale {
    /// The utilized part of each member's capacity.
    Capacity,
    /// Reported loads, up to this value.
    Load(f64),
    /// Requests in flight, up to this value.
    InFlight(f64),
}

impl LoadScale {
    /// Returns the scale that fits most usable members.
    pub fn of(group: &GroupStatus, recent: &[MemberRecent]) -> Self {
        let eligible_members: Vec<&MemberStatus> =
            group.members.iter().filter(|member| member.state.is_eligible()).collect();
        let measured_count = eligible_members.iter().filter(|member| utilization(member).is_some()).count();
        if measured_count > 0 && 2 * measured_count >= eligible_members.len() {
            return Self::Capacity;
        }
        let scaled_max = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max) * 1.15;
        let max_load = scaled_max(&mut group.members.iter().filter_map(|member| member.load_effective));
        if max_load > 0.0 {
            let thresholds = recent.iter().flat_map(|member| [member.alert_above, member.reject_above]);
            // A distant mark would shorten all bars to nothing.
            let max_threshold =
                scaled_max(&mut thresholds.flatten().filter(|threshold| *threshold <= 5.0 * max_load));
            return Self::Load(max_load.max(max_threshold));
        }
        let in_flight_counts = group.members.iter().map(|member| f64::from(member.in_flight));
        let member_limits = group.members.iter().filter_map(|member| Some(f64::from(member.limit?)));
        let max_in_flight = scaled_max(&mut in_flight_counts.chain(std::iter::once(1.0)));
        let max_limit = scaled_max(&mut member_limits.filter(|limit| *limit <= 50.0 * max_in_flight));
        Self::InFlight(max_in_flight.max(max_limit))
    }

    /// Returns the description in the column's heading.
    pub fn description(self) -> &'static str {
        match self {
            Self::Capacity => "load now as a part of what the member is predicted to carry",
            Self::Load(_) => "load that the member reports; what it can carry is not known yet",
            Self::InFlight(_) => "requests under way at once; what the member can carry is not known yet",
        }
    }

    /// Returns the value at the end of the bars.
    pub fn maximum(self) -> f64 {
        match self {
            Self::Capacity => SCALE_MARGIN,
            Self::Load(maximum) | Self::InFlight(maximum) => maximum,
        }
    }
}

/// A member's load and its load line, all in the unit of the scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemberLoad {
    /// The current load; `None` if it is unknown.
    pub now: Option<f64>,
    /// The load from which it gets no new work.
    pub reject: Option<f64>,
    /// The load from which it sheds.
    pub critical: Option<f64>,
    /// The predicted saturation.
    pub saturation: Option<f64>,
    /// The predicted capacity, in requests per second.
    pub capacity: Option<f64>,
    /// The severity.
    #[serde(skip)]
    pub tone: Severity,
}

impl MemberLoad {
    /// Computes the load of a member in a group with that scale.
    pub fn of(member: &MemberStatus, recent: Option<&MemberRecent>, scale: LoadScale) -> Self {
        let load = member.load_effective;
        let [reject, critical] = match recent {
            Some(recent) => [recent.reject_above, recent.alert_above],
            None => [None, None],
        };
        let in_flight = recent.map_or(0.0, |recent| recent.in_flight);
        let empty = Self {
            now: None,
            reject: None,
            critical: None,
            saturation: None,
            capacity: None,
            tone: Severity::Off,
        };
        let member_load = match (scale, utilization(member)) {
            (LoadScale::Capacity, Some((used, capacity))) => {
                let scale_threshold = |threshold: f64| {
                    let load = load.filter(|load| *load > 0.0 && used > MIN_LOAD_FOR_MARKS)?;
                    Some(used * threshold / load)
                };
                let scale_limit = || {
                    let limit = f64::from(member.limit?);
                    (in_flight > MIN_LOAD_FOR_MARKS && used > MIN_LOAD_FOR_MARKS)
                        .then(|| used * limit / in_flight)
                };
                Self {
                    now: Some(used),
                    reject: reject.and_then(scale_threshold).or_else(scale_limit),
                    critical: critical.and_then(scale_threshold),
                    saturation: Some(1.0),
                    capacity: Some(capacity),
                    ..empty
                }
            }
            (LoadScale::Capacity, None) => empty,
            (LoadScale::Load(_), _) if load.is_some() => Self { now: load, reject, critical, ..empty },
            (LoadScale::Load(_), _) => empty,
            (LoadScale::InFlight(_), _) => {
                Self { now: Some(f64::from(member.in_flight)), reject: member.limit.map(f64::from), ..empty }
            }
        };
        Self { tone: member_load.severity(member), ..member_load }
    }

    fn severity(&self, member: &MemberStatus) -> Severity {
        let Some(now) = self.now.filter(|_| member.state.is_eligible()) else { return Severity::Off };
        let is_over = |threshold: Option<f64>, factor: f64| {
            threshold.is_some_and(|threshold| now >= threshold * factor)
        };
        if is_over(self.saturation, 1.0) || is_over(self.reject, 1.0) {
            Severity::Bad
        } else if is_over(self.saturation, 0.8) || is_over(self.critical, 1.0) {
            Severity::Fair
        } else {
            Severity::Good
        }
    }
}

/// Returns the utilized part of a member's capacity, and the capacity.
fn utilization(member: &MemberStatus) -> Option<(f64, f64)> {
    let load_line = member.load_line.as_ref()?;
    Some((load_line.used?, load_line.capacity?))
}

/// Returns a member with the limit that the strategy has learned for it, if it has no other.
pub fn with_limit(member: &MemberStatus, explanation: Option<&MemberExplanation>) -> MemberStatus {
    let figure = explanation
        .and_then(|explained_member| explained_member.figures.iter().find(|figure| figure.name == "limit"));
    let explained_limit = figure.map(|figure| figure.value).filter(|limit| *limit >= 1.0 && *limit < 1e9);
    MemberStatus {
        limit: member.limit.or_else(|| explained_limit.map(|limit| limit.round() as u32)),
        ..member.clone()
    }
}

/// The contents of the other columns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemberFigures {
    /// The time since its last load report, or its last capacity report in a response, in seconds.
    pub report_age: Option<f64>,
    /// The sessions bound to it, and its leases.
    pub bindings: u64,
    /// The completed requests per second, over the last ten seconds.
    pub rate: Option<f64>,
    /// The median latency of about the last ten seconds, in seconds; since the start without a history.
    pub p50: Option<f64>,
    /// The 99th percentile of the same.
    pub p99: Option<f64>,
    /// The failed requests per second, over the last ten seconds.
    pub failing: f64,
    /// The failed requests since the start.
    pub failures: u64,
    /// The sessions moved elsewhere in the last minute.
    pub moved_lately: u64,
    /// The sessions moved elsewhere since the start.
    pub moved: u64,
    /// The share of its sessions to shed now.
    pub alert_share: f64,
}

impl MemberFigures {
    /// Computes the figures of a member with its history.
    pub fn of(member: &MemberStatus, recent: Option<&MemberRecent>, bound_count: u64) -> Self {
        let latency = member.latency;
        let since_start = |seconds: f64| (latency.count > 0 && recent.is_none()).then_some(seconds);
        Self {
            report_age: match (member.load, member.said_age_seconds) {
                (Some(load), Some(said_age)) => Some(load.age_seconds.min(said_age)),
                (load, said_age) => load.map(|load| load.age_seconds).or(said_age),
            },
            bindings: bound_count + member.leases,
            rate: match recent {
                Some(recent) => Some(recent.requests_per_second),
                None => member.load_line.as_ref().map(|load_line| load_line.requests_per_second),
            },
            p50: recent.and_then(|recent| recent.p50).or_else(|| since_start(latency.p50)),
            p99: recent.and_then(|recent| recent.p99).or_else(|| since_start(latency.p99)),
            failing: recent.map_or(0.0, |recent| recent.failures_per_second),
            failures: member.failures,
            moved_lately: recent.map_or(0, |recent| recent.moved),
            moved: member.moved,
            alert_share: member.alert_share,
        }
    }
}

/// Returns the number of sessions that a group's listeners have bound to each member, by name.
pub fn bound_sessions<'l>(listeners: impl Iterator<Item = &'l ListenerStatus>) -> HashMap<&'l str, u64> {
    let mut bound_by_member = HashMap::new();
    for binding in listeners.flat_map(|listener| &listener.bindings) {
        *bound_by_member.entry(&*binding.member).or_default() += binding.bound;
    }
    bound_by_member
}

/// Returns `true` if a group binds sessions or grants leases.
pub fn has_bindings<'l>(
    group: &GroupStatus,
    mut listeners: impl Iterator<Item = &'l ListenerStatus>,
) -> bool {
    group.members.iter().any(|member| member.leases > 0)
        || listeners.any(|listener| listener.binding != "per_request")
}
