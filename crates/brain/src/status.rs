//! The read model: what a running balancer says of itself. The data plane fills it, the admin plane serves
//! it, the command line prints it. Field names are what `-o json` prints, so they are a contract.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::State;

mod explain;
mod load_line;
mod recent;
mod scaler;
mod standing;

pub use explain::{
    AlertExplanation, FactExplanation, Figure, GroupExplanation, Happening, LoadExplanation,
    MemberExplanation, MonitorExplanation,
};
pub use load_line::{LoadLine, MemberLoadLine, Predicted, WhatIf};
pub use recent::{MemberRecent, MemberSecond, Recent, RecentSecond};
pub use scaler::{ScaledMember, ScalerStatus};
pub use standing::Standing;

/// The whole process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of this shape; raised when a field changes its meaning.
    pub schema: u32,
    /// Of the binary.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since start.
    pub uptime_seconds: f64,
    /// Data-plane threads.
    pub threads: usize,
    /// Is it letting its work end in order to stop?
    pub stopping: bool,
    /// Did the last reload succeed? True if there was none.
    pub last_reload_successful: bool,
    /// Why it did not.
    pub last_reload_error: Option<String>,
    /// Reloads that succeeded.
    pub reloads: u64,
    /// In the order of the configuration.
    pub listeners: Vec<ListenerStatus>,
    /// In the order of the configuration.
    pub groups: Vec<GroupStatus>,
    /// Access log lines that were dropped because the disk was slow or full.
    pub access_log_dropped: u64,
    /// Spans that a collector took.
    #[serde(default)]
    pub spans_exported: u64,
    /// Spans that were dropped because the collector was slow, away or did not want them.
    #[serde(default)]
    pub spans_dropped: u64,
    /// Memory that peers make the process keep.
    #[serde(default)]
    pub memory: MemoryStatus,
    /// What listeners with TLS show their clients.
    #[serde(default)]
    pub certificates: Vec<CertificateStatus>,
    /// The balancers that this one acts together with; none without `[fleet]`.
    #[serde(default)]
    pub fleet: Option<FleetStatus>,
    /// Where it is kept what operators do, and which members were registered; none where that is forgotten with the process.
    #[serde(default)]
    pub store: Option<StoreStatus>,
}

/// The memory budget: bytes of unfinished heads and messages, of streams, and of answers that clients do not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Most bytes that may be kept at once (`max_memory`).
    pub budget_bytes: u64,
    /// Bytes that are kept now.
    pub kept_bytes: u64,
    /// How often a connection or request was refused because the budget was used up.
    pub refused: u64,
}

/// The balancers that act together, as one of them sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// What this one is called.
    pub name: String,
    /// Where the others reach it.
    pub address: String,
    /// The others, by name.
    pub balancers: Vec<BalancerStatus>,
    /// Datagrams that it sent, and their bytes.
    pub sent: u64,
    /// See `sent`.
    pub sent_bytes: u64,
    /// Datagrams that came, and their bytes.
    pub received: u64,
    /// See `received`.
    pub received_bytes: u64,
    /// Datagrams that were dropped: made without the key, sent again, or not understood.
    pub refused: u64,
    /// Those that could not be sent.
    pub unsent: u64,
}

/// Another balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BalancerStatus {
    /// What it calls itself; empty until it has said so.
    pub name: String,
    /// Where it is reached.
    pub address: String,
    /// `up`, `silent` (it is there, and nothing is heard of it) or `lost` (it is gone and did not say so).
    pub state: String,
    /// Seconds since it was heard of.
    pub age_seconds: f64,
    /// Its reports that came.
    pub reports: u64,
    /// Share of its reports that did not, 0 to 1.
    pub loss: f64,
    /// Groups that it serves as well.
    pub groups: usize,
}

/// A store of what outlives a balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// `file` or `etcd`.
    pub kind: String,
    /// Where it is, as configured.
    pub place: String,
    /// The number of the last change that is known here.
    pub revision: i64,
    /// How much is kept: what operators did, members that were registered.
    pub entries: usize,
    /// How often it came to be that it could not be used.
    pub failures: u64,
    /// Changes that were refused because somebody else had been faster.
    pub conflicts: u64,
    /// How often all of it was read, the first time included.
    pub reads: u64,
    /// Why it cannot be used, if so: what is known stays in force, and operators are refused.
    pub error: Option<String>,
    /// Seconds since then.
    pub failing_seconds: Option<f64>,
    /// What it has lost, if that is not believed, to be read behind its place: what was known stays in force, and it can be used.
    pub doubt: Option<String>,
    /// Seconds since then.
    pub doubted_seconds: Option<f64>,
}

/// A certificate that clients are shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// The first name that it is for, or where it is from if it has none.
    pub name: String,
    /// All names that it is for.
    pub names: Vec<String>,
    /// The file that it is from.
    pub source: String,
    /// Is it obtained from an authority (ACME)?
    pub acme: bool,
    /// Seconds until it ends, below 0 if that is over; none if it is not there yet.
    pub expires_seconds: Option<f64>,
    /// Does it end so soon that somebody should look? Less than a quarter of its life is left, and less than two weeks.
    pub ends_soon: bool,
    /// Seconds until it is to be renewed, below 0 if that is due; none if nobody does so, or it is not there yet.
    pub renewal_seconds: Option<f64>,
    /// Why it could not be obtained or renewed the last time.
    pub failure: Option<String>,
}

/// One listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// As bound.
    pub address: String,
    /// `http`, `tcp` or `udp`.
    pub protocol: String,
    /// The group it serves.
    pub group: String,
    /// Other groups that clients come to by the name that they ask for (TLS, xds).
    #[serde(default)]
    pub others: Vec<String>,
    /// `per_request`, `per_session`, `on_demand` or `affinity`.
    pub binding: String,
    /// Sessions by member; empty where a member is chosen for each request.
    pub bindings: Vec<BindingStatus>,
    /// Client connections (or flows) open now.
    pub connections: u64,
    /// Client connections (or flows) accepted since start.
    pub accepted: u64,
    /// Connections refused because of the limit on connections.
    pub refused: u64,
    /// Has an operator closed it?
    #[serde(default)]
    pub disabled: bool,
}

impl ListenerStatus {
    /// May clients come to this group here?
    pub fn leads_to(&self, group: &str) -> bool {
        self.group == group || self.others.iter().any(|other| other == group)
    }
}

/// The sessions of one listener that are bound to one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BindingStatus {
    /// As configured: `host:port`.
    pub member: String,
    /// Bound to it now.
    pub bound: u64,
    /// Sent elsewhere so far because the member was under alert.
    pub moved: u64,
}

/// One group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// As configured.
    pub name: String,
    /// Name of the strategy in force.
    pub strategy: String,
    /// Has an operator switched off balancing by the strategy that the configuration names?
    #[serde(default)]
    pub balancing_disabled: bool,
    /// One line for a person: `4/5 members up, 1 ejected`.
    pub verdict: String,
    /// Is at least one member usable?
    pub healthy: bool,
    /// Mean of the loads that strategies go by, of members that can be used; none without a report that counts.
    pub load: Option<f64>,
    /// In the order of the configuration.
    pub members: Vec<MemberStatus>,
    /// Requests answered by the balancer itself, by reason (`no_member`, `connect_failed`, `timeout`, …).
    pub rejected: BTreeMap<String, u64>,
    /// Seconds since requests began to be refused because all members have as many as they can work on; none where none was for ten
    /// seconds.
    #[serde(default)]
    pub shedding_seconds: Option<f64>,
    /// Share of the requests of the last ten seconds, or of those since then, that were refused for that, 0
    /// to 1; none where none was.
    #[serde(default)]
    pub shedding_share: Option<f64>,
    /// Reason of most of them (`shed`, `queue_full`, `queue_timeout`); none where none was, or a process
    /// before this one refused them.
    #[serde(default)]
    pub shedding_reason: Option<String>,
    /// Requests tried again on another connection or member.
    pub retries: u64,
    /// Retries not done because the budget was spent.
    pub retries_denied: u64,
    /// How often somebody was told that sessions of a member are about to go, and took them over in time.
    #[serde(default)]
    pub hand_overs: u64,
    /// How often nobody did, and sessions went all the same.
    #[serde(default)]
    pub hand_overs_failed: u64,
    /// Requests waiting for a member: for one below its limit, or for one with room.
    pub queued: u64,
    /// How long those waited that did, whatever came of it.
    #[serde(default)]
    pub waits: Latency,
    /// What came of requests that found no room, for each urgency, 0 to 7; empty where they are not asked for one.
    #[serde(default)]
    pub urgencies: Vec<UrgencyStatus>,
    /// From the first byte of a request to the last of its answer (tcp, udp: length of the session).
    pub latency: Latency,
    /// How much it can carry, and how far below that it is; none in its first seconds.
    #[serde(default)]
    pub load_line: Option<LoadLine>,
    /// Where members are found beside the configuration, in its order; empty where they are not.
    #[serde(default)]
    pub discovery: Vec<SourceStatus>,
    /// How many members it is to have, where that is decided by what goes on.
    #[serde(default)]
    pub scaler: Option<ScalerStatus>,
}

/// A source of members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// `file`, `dns`, `srv`, `http`, `etcd`, `kubernetes` or `registered`.
    pub kind: String,
    /// What is asked, as configured.
    pub what: String,
    /// Members by its last answer that counts, those that are held included.
    pub members: usize,
    /// Seconds since that answer; none if there was none.
    pub age_seconds: Option<f64>,
    /// Answers that did not come, or were not believed, since it is asked.
    pub failures: u64,
    /// Why the last one did not or was not, if so.
    pub error: Option<String>,
    /// Seconds since the first of those in a row.
    pub failing_seconds: Option<f64>,
}

/// Requests of one urgency that found every member with as many as it can work on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrgencyStatus {
    /// 0, the most urgent, to 7.
    pub urgency: u8,
    /// Got a member, most after a wait.
    pub served: u64,
    /// Did not: refused, or given up by their clients.
    pub refused: u64,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// As configured: `host:port`.
    pub name: String,
    /// Resolved.
    pub address: String,
    /// Whether and why it may be chosen.
    pub state: State,
    /// Why it is in this state, for a person.
    pub why: String,
    /// Seconds since the state last changed.
    pub since_seconds: f64,
    /// As configured.
    pub capacity: f64,
    /// Capacity times what slow start allows now.
    pub weight: f64,
    /// Requests, sessions or flows it works on now.
    pub in_flight: u32,
    /// The same of other balancers, as far as they are heard of (`[fleet]`); 0 for a balancer that is alone.
    #[serde(default)]
    pub in_flight_elsewhere: f64,
    /// This balancer's part of the member's limit; none where it has all of it, or there is none.
    #[serde(default)]
    pub part: Option<u32>,
    /// Requests a second that it is given from here at most: the group's `max_rate`, or this balancer's part of it; none where there is none.
    #[serde(default)]
    pub max_rate: Option<f64>,
    /// Most of them at once: as configured, or less where the strategy goes by the member's knee; none if there is no
    /// limit.
    pub limit: Option<u32>,
    /// Requests it can work on at once before they slow one another down, if it said so lately.
    pub knee: Option<f64>,
    /// Since it said that, with an answer; none where it said nothing lately.
    #[serde(default)]
    pub said_age_seconds: Option<f64>,
    /// The load that was last reported of it.
    pub load: Option<LoadExplanation>,
    /// What strategies make of its loads: averaged, and mixed with the group's mean as they age; none without one that
    /// counts.
    pub load_effective: Option<f64>,
    /// Requests that this process refused for want of room in the group while this member took none, by the reason
    /// why it did not: its state, or `limit`, `max_rate`, `trial`, `reject`, `member_full`, `group_full`.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// Seconds since it was found to answer ten times slower than its group; none where it does not.
    #[serde(default)]
    pub slow_seconds: Option<f64>,
    /// Part of its sessions that is to go now, 0 to 1; 0 without an alert, or while the alert is held.
    pub alert_share: f64,
    /// Idle connections to it kept for reuse.
    pub idle_connections: u64,
    /// Requests (http), sessions (tcp) or flows (udp) ended with it.
    pub requests: u64,
    /// Those that failed: no connection, reset, timeout, or an answer of 5xx.
    pub failures: u64,
    /// Requests whose client went away before the end of its answer; they count as no others do.
    #[serde(default)]
    pub clients_left: u64,
    /// Answers by class: `1xx` … `5xx`, and `none` where there was no answer.
    pub answers: BTreeMap<String, u64>,
    /// Connections opened to it.
    pub connects: u64,
    /// Bytes sent to it.
    pub bytes_out: u64,
    /// Bytes received from it.
    pub bytes_in: u64,
    /// Sessions sent elsewhere because it was under alert.
    pub moved: u64,
    /// Leases of it that are in force (`POST /v1/groups/NAME/bind`); each counts as one in flight.
    #[serde(default)]
    pub leases: u64,
    /// From choosing it to the last byte of its answer.
    pub latency: Latency,
    /// What it can do; none in its first seconds.
    #[serde(default)]
    pub load_line: Option<MemberLoadLine>,
    /// Whom it shares its host with; none where only this group is there.
    #[serde(default)]
    pub host: Option<HostStatus>,
}

/// A glyph and a word for members that are slow, in place of those of their state.
pub const SLOW: (&str, &str) = ("▲", "slow");

impl MemberStatus {
    /// Returns whether it is in use, and ten times slower than its group.
    pub fn is_slow(&self) -> bool {
        self.slow_seconds.is_some() && self.state.eligible()
    }
}

/// A host on which several groups have members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its label, or its address.
    pub name: String,
    /// The group's part of what is done there, 0 to 1.
    pub own: f64,
    /// Those of the other groups, by name.
    pub others: BTreeMap<String, f64>,
}

/// Quantiles of a latency since start, seconds; 0 when nothing was measured. Each is at most 6 % off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Samples.
    pub count: u64,
    /// Sum of all samples.
    pub sum: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}
