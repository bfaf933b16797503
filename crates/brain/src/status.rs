//! The read model: the state that a running balancer reports. The data plane fills it, the admin plane serves
//! it, the command line prints it. Field names are those of `-o json`, so they are a contract.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::MemberState;

mod explain;
mod group_health;
mod load_line;
mod recent;
mod scaler;

pub use explain::{
    AlertExplanation, FactExplanation, GroupExplanation, LoadExplanation, LoggedEvent, MemberExplanation,
    MonitorExplanation, StrategyFigure,
};
pub use group_health::GroupHealth;
pub use load_line::{LoadLine, MemberLoadLine, PredictedLatency, WhatIf};
pub use recent::{GroupRecent, MemberRecent, MemberSecond, RecentSecond};
pub use scaler::{ScaledMember, ScalerStatus};

/// The state of the whole process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The version of this shape; raised when a field changes its meaning.
    pub schema: u32,
    /// The version of the binary.
    pub version: String,
    /// The process id.
    pub pid: u32,
    /// The seconds since start.
    pub uptime_seconds: f64,
    /// The number of data-plane threads.
    pub threads: usize,
    /// Whether it lets its work end in order to stop.
    pub stopping: bool,
    /// Whether the last reload succeeded; `true` if there was none.
    pub last_reload_successful: bool,
    /// The reason why the last reload failed.
    pub last_reload_error: Option<String>,
    /// The number of reloads that succeeded.
    pub reloads: u64,
    /// The listeners, in the order of the configuration.
    pub listeners: Vec<ListenerStatus>,
    /// The groups, in the order of the configuration.
    pub groups: Vec<GroupStatus>,
    /// The access log lines that were dropped because the disk was slow or full.
    pub access_log_dropped: u64,
    /// The spans that a collector accepted.
    #[serde(default)]
    pub spans_exported: u64,
    /// The spans that were dropped because the collector was slow, absent or rejected them.
    #[serde(default)]
    pub spans_dropped: u64,
    /// The memory that peers make the process keep.
    #[serde(default)]
    pub memory: MemoryStatus,
    /// The certificates of listeners with TLS.
    #[serde(default)]
    pub certificates: Vec<CertificateStatus>,
    /// The fleet of balancers; `None` without `[fleet]`.
    #[serde(default)]
    pub fleet: Option<FleetStatus>,
    /// The store of operators' commands and registered members; `None` if they are lost with the process.
    #[serde(default)]
    pub store: Option<StoreStatus>,
}

/// The memory budget: bytes of unfinished heads and messages, of streams, and of answers that clients do not
/// read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// The maximum bytes kept at once (`max_memory`).
    pub budget_bytes: u64,
    /// The bytes kept now.
    pub kept_bytes: u64,
    /// The connections and requests that were rejected because the budget was used up.
    pub refused: u64,
}

/// The fleet of balancers, as one of them sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// The name of this balancer.
    pub name: String,
    /// The address at which the others reach it.
    pub address: String,
    /// The others, by name.
    pub balancers: Vec<BalancerStatus>,
    /// The datagrams that it sent.
    pub sent: u64,
    /// The bytes of `sent`.
    pub sent_bytes: u64,
    /// The datagrams that it received.
    pub received: u64,
    /// The bytes of `received`.
    pub received_bytes: u64,
    /// The datagrams that were dropped: made without the key, replayed, or malformed.
    pub refused: u64,
    /// The datagrams that could not be sent.
    pub unsent: u64,
}

/// Another balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BalancerStatus {
    /// Its own name; empty until its first report.
    pub name: String,
    /// Its address.
    pub address: String,
    /// `up`, `silent` (it is present, and sends no reports) or `lost` (it is gone without an announcement).
    pub state: String,
    /// The seconds since its last report.
    pub age_seconds: f64,
    /// The reports received from it.
    pub reports: u64,
    /// The share of its reports that were lost, 0 to 1.
    pub loss: f64,
    /// The number of groups that it serves as well.
    pub groups: usize,
}

/// A store of state that outlives a balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// `file` or `etcd`.
    pub kind: String,
    /// The configured location.
    pub place: String,
    /// The number of the last change that is known here.
    pub revision: i64,
    /// The number of entries: operators' commands and registered members.
    pub entries: usize,
    /// The number of times that it became unusable.
    pub failures: u64,
    /// The changes that were rejected because another writer was faster.
    pub conflicts: u64,
    /// The number of full reads, including the first one.
    pub reads: u64,
    /// The reason why it cannot be used, if it cannot: the known state stays in force, and operators'
    /// commands are rejected.
    pub error: Option<String>,
    /// The seconds since it became unusable.
    pub failing_seconds: Option<f64>,
    /// The lost content, if the store is behind its last known state and that is not accepted. The known
    /// state stays in force, and the store can be used.
    pub doubt: Option<String>,
    /// The seconds since that loss.
    pub doubted_seconds: Option<f64>,
}

/// A certificate that clients are shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// Its first name, or its source if it has none.
    pub name: String,
    /// All of its names.
    pub names: Vec<String>,
    /// The file that contains it.
    pub source: String,
    /// Whether it is obtained from an authority (ACME).
    pub acme: bool,
    /// The seconds until it expires, below 0 afterwards; `None` if it does not exist yet.
    pub expires_seconds: Option<f64>,
    /// Whether it expires soon: less than a quarter of its life is left, and less than two weeks.
    pub ends_soon: bool,
    /// The seconds until its renewal, below 0 if that is due; `None` without automatic renewal, or if it does
    /// not exist yet.
    pub renewal_seconds: Option<f64>,
    /// The reason why the last attempt to obtain or renew it failed.
    pub failure: Option<String>,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// The bound address.
    pub address: String,
    /// `http`, `tcp` or `udp`.
    pub protocol: String,
    /// The group that it serves.
    pub group: String,
    /// The other groups that clients reach by the name that they ask for (TLS, xds).
    #[serde(default)]
    pub others: Vec<String>,
    /// `per_request`, `per_session`, `on_demand` or `affinity`.
    pub binding: String,
    /// The sessions by member; empty if a member is chosen for each request.
    pub bindings: Vec<BindingStatus>,
    /// The open client connections (or flows).
    pub connections: u64,
    /// The client connections (or flows) accepted since start.
    pub accepted: u64,
    /// The connections rejected because of the limit on connections.
    pub refused: u64,
    /// Whether an operator has closed it.
    #[serde(default)]
    pub disabled: bool,
}

impl ListenerStatus {
    /// Returns `true` if clients can reach this group here.
    pub fn serves_group(&self, group: &str) -> bool {
        self.group == group || self.others.iter().any(|other| other == group)
    }
}

/// The sessions of one listener that are bound to one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BindingStatus {
    /// The configured name: `host:port`.
    pub member: String,
    /// The sessions bound to it now.
    pub bound: u64,
    /// The sessions moved elsewhere because the member was under alert.
    pub moved: u64,
}

/// A group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The configured name.
    pub name: String,
    /// The name of the strategy in force.
    pub strategy: String,
    /// Whether an operator has switched off balancing by the configured strategy.
    #[serde(default)]
    pub balancing_disabled: bool,
    /// A line for display: `4/5 members up, 1 ejected`.
    pub verdict: String,
    /// Whether at least one member is usable.
    pub healthy: bool,
    /// The mean of the effective loads of usable members; `None` without a report that counts.
    pub load: Option<f64>,
    /// The members, in the order of the configuration.
    pub members: Vec<MemberStatus>,
    /// The requests answered by the balancer itself, by reason (`no_member`, `connect_failed`, `timeout`, …).
    pub rejected: BTreeMap<String, u64>,
    /// The seconds since requests began to be rejected because all members have reached their limits; `None`
    /// without a rejection for ten seconds.
    #[serde(default)]
    pub shedding_seconds: Option<f64>,
    /// The share of the requests of the last ten seconds, or since then if that is shorter, that were
    /// rejected for that, 0 to 1; `None` if none was.
    #[serde(default)]
    pub shedding_share: Option<f64>,
    /// The reason of most of them (`shed`, `queue_full`, `queue_timeout`); `None` if none was, or if a
    /// previous process rejected them.
    #[serde(default)]
    pub shedding_reason: Option<String>,
    /// The requests retried on another connection or member.
    pub retries: u64,
    /// The retries omitted because the budget was used up.
    pub retries_denied: u64,
    /// The drain hooks after which sessions of a member were taken over in time.
    #[serde(default)]
    pub hand_overs: u64,
    /// The drain hooks after which they were not, and sessions moved all the same.
    #[serde(default)]
    pub hand_overs_failed: u64,
    /// The requests waiting for a member: for one below its limit, or for one with room.
    pub queued: u64,
    /// The times of waiting requests in the queue, whatever their outcome.
    #[serde(default)]
    pub waits: LatencySummary,
    /// The outcomes of requests that found no room, by urgency, 0 to 7; empty if no urgency is configured.
    #[serde(default)]
    pub urgencies: Vec<UrgencyStatus>,
    /// The time from the first byte of a request to the last of its answer (tcp, udp: the length of the
    /// session).
    pub latency: LatencySummary,
    /// The capacity and its free part; `None` in the first seconds.
    #[serde(default)]
    pub load_line: Option<LoadLine>,
    /// The sources of members beside the configuration, in its order; empty without any.
    #[serde(default)]
    pub discovery: Vec<SourceStatus>,
    /// The autoscaler, if there is one.
    #[serde(default)]
    pub scaler: Option<ScalerStatus>,
}

/// A source of members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// `file`, `dns`, `srv`, `http`, `etcd`, `kubernetes` or `registered`.
    pub kind: String,
    /// The configured query.
    pub what: String,
    /// The number of members by its last accepted answer, including held ones.
    pub members: usize,
    /// The seconds since that answer; `None` if there was none.
    pub age_seconds: Option<f64>,
    /// The number of failed or rejected queries.
    pub failures: u64,
    /// The reason of the last failure, if the last query failed.
    pub error: Option<String>,
    /// The seconds since the first failure in the present row.
    pub failing_seconds: Option<f64>,
}

/// The requests of one urgency that found every member at its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrgencyStatus {
    /// The urgency: 0, the most urgent, to 7.
    pub urgency: u8,
    /// The requests that got a member, most after a wait.
    pub served: u64,
    /// The requests that did not: rejected, or given up by their clients.
    pub refused: u64,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The configured name: `host:port`.
    pub name: String,
    /// The resolved address.
    pub address: String,
    /// The state, which decides whether it may be chosen.
    pub state: MemberState,
    /// The reason of its state, for display.
    pub why: String,
    /// The seconds since the last change of the state.
    pub since_seconds: f64,
    /// The configured capacity.
    pub capacity: f64,
    /// The capacity times the part that slow start allows now.
    pub weight: f64,
    /// The requests, sessions or flows in flight.
    pub in_flight: u32,
    /// The known ones of other balancers (`[fleet]`); 0 without other balancers.
    #[serde(default)]
    pub in_flight_elsewhere: f64,
    /// This balancer's part of the member's limit; `None` if it has all of it, or there is none.
    #[serde(default)]
    pub part: Option<u32>,
    /// The maximum requests a second from here: the group's `max_rate`, or this balancer's part of it; `None`
    /// without one.
    #[serde(default)]
    pub max_rate: Option<f64>,
    /// The concurrency limit: the configured one, or a lower one by the member's knee if the strategy uses
    /// it; `None` without a limit.
    pub limit: Option<u32>,
    /// The number of requests that it can work on at once before they slow one another down, by a recent load
    /// report.
    pub knee: Option<f64>,
    /// The seconds since that load report; `None` without a recent one.
    #[serde(default)]
    pub said_age_seconds: Option<f64>,
    /// The last load from a monitor.
    pub load: Option<LoadExplanation>,
    /// The effective load: averaged, and mixed with the group's mean as reports age; `None` without a report
    /// that counts.
    pub load_effective: Option<f64>,
    /// The requests that this process rejected for want of room in the group, by the reason why this member
    /// took none: its state, or `limit`, `max_rate`, `trial`, `reject`, `member_full`, `group_full`.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// The seconds since it was found to answer ten times slower than its group; `None` if it is not.
    #[serde(default)]
    pub slow_seconds: Option<f64>,
    /// The part of its sessions that is to move now, 0 to 1; 0 without an alert, or while the alert is held.
    pub alert_share: f64,
    /// The idle connections to it in the pool.
    pub idle_connections: u64,
    /// The requests (http), sessions (tcp) or flows (udp) that ended there.
    pub requests: u64,
    /// The failed ones: no connection, reset, timeout, or an answer of 5xx.
    pub failures: u64,
    /// The requests whose client went away before the end of its answer; they count in no other figure.
    #[serde(default)]
    pub clients_left: u64,
    /// The answers by class: `1xx` … `5xx`, and `none` without an answer.
    pub answers: BTreeMap<String, u64>,
    /// The connections opened to it.
    pub connects: u64,
    /// The bytes sent to it.
    pub bytes_out: u64,
    /// The bytes received from it.
    pub bytes_in: u64,
    /// The sessions moved elsewhere because it was under alert.
    pub moved: u64,
    /// The leases in force (`POST /v1/groups/NAME/bind`); each counts as one in flight.
    #[serde(default)]
    pub leases: u64,
    /// The time from its choice to the last byte of its answer.
    pub latency: LatencySummary,
    /// Its capacity; `None` in its first seconds.
    #[serde(default)]
    pub load_line: Option<MemberLoadLine>,
    /// The other groups on its host; `None` if only this group is there.
    #[serde(default)]
    pub host: Option<HostStatus>,
}

/// The glyph and the label for slow members, in place of those of their state.
pub const SLOW: (&str, &str) = ("▲", "slow");

impl MemberStatus {
    /// Returns whether it is in use, and ten times slower than its group.
    pub fn is_slow(&self) -> bool {
        self.slow_seconds.is_some() && self.state.is_eligible()
    }
}

/// A host on which several groups have members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its label, or its address.
    pub name: String,
    /// The group's part of the work there, 0 to 1.
    pub own: f64,
    /// The parts of the other groups, by name.
    pub others: BTreeMap<String, f64>,
}

/// The quantiles of a latency since start, seconds; 0 without samples. Each is at most 6 % off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The number of samples.
    pub count: u64,
    /// The sum of all samples.
    pub sum: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}
