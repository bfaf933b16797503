//! The interfaces and data of the balancer behind the admin plane.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;

use plimsoll_brain::status::{GroupExplanation, GroupRecent, GroupStatus, StatusReport};
use plimsoll_brain::{Event, EventKind, ShedDecision};
use serde::{Deserialize, Serialize};

use crate::{RegisteredMember, Registration, RegistrationError};

/// Resolves when an event has occurred.
pub type ChangeFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The running balancer behind the admin plane.
///
/// Queries are called on the admin thread and should take milliseconds. Commands are called one at a time, on
/// a thread where they may block. Operators see the text of an `Err` unchanged.
pub trait BalancerBackend: Send + Sync + 'static {
    /// Returns the current status.
    fn status(&self) -> StatusReport;

    /// Returns `true` during a graceful shutdown. It is called often, and should be fast.
    fn is_stopping(&self) -> bool {
        self.status().stopping
    }

    /// Returns the status of one group; `None` if there is no such group.
    fn group(&self, name: &str) -> Option<GroupStatus> {
        self.status().groups.into_iter().find(|group| group.name == name)
    }

    /// Returns the latency of a group's requests as a classic Prometheus histogram. Each entry is an upper
    /// bound in seconds with the number of requests up to it, in ascending order. Unknown groups have no
    /// entries.
    fn buckets(&self, group: &str) -> Vec<(f64, u64)>;

    /// Returns the kept entries of the event log with `seq` above `since`, oldest first.
    fn events(&self, since: u64) -> Vec<EventEntry>;

    /// Resolves when an entry is added after this call (not after its first poll). It may also resolve
    /// spuriously.
    fn next_change(&self) -> ChangeFuture;

    /// Drains a member. Without a `group`, only one group may have a member with this name.
    fn drain(&self, group: Option<&str>, member: &str) -> Result<(), String>;

    /// Undrains a member.
    fn undrain(&self, group: Option<&str>, member: &str) -> Result<(), String>;

    /// Enables or disables a member, a listener or a group's balancing. Returns one line for each change;
    /// none if it already was in that state.
    fn set_enabled(&self, target: &SwitchTarget, on: bool) -> Result<Vec<String>, String>;

    /// Reloads the configuration. Returns one line for each difference. After an error the previous
    /// configuration stays in force.
    fn reload(&self) -> Result<Vec<String>, String>;

    /// Hands over to another process and returns when it has taken over. After an error this process
    /// continues.
    fn upgrade(&self, request: &UpgradeRequest) -> Result<CompletedUpgrade, String>;

    /// Begins the shutdown; returns at once.
    ///
    /// # Errors
    /// Fails if another process has taken over, which runs on.
    fn stop(&self) -> Result<(), String>;

    /// Returns the explanation of a group; `None` if there is no such group.
    fn explain(&self, group: &str) -> Option<GroupExplanation>;

    /// Returns the last ten minutes of a group; `None` if there is no such group, or no history.
    fn recent(&self, _group: &str) -> Option<GroupRecent> {
        None
    }

    /// Evaluates a model of a group for another load, or another size. It may take a tenth of a second, and
    /// is called where it may block.
    ///
    /// # Errors
    /// There is no such group, or no model of it is possible.
    fn what_if(&self, _input: &WhatIfInput) -> Result<WhatIfResult, String> {
        Err("there is no model here".into())
    }

    /// Returns the object reference of a group for CORBA clients; `None` if there is no such group, or it has
    /// none.
    fn reference(&self, group: &str) -> Option<ObjectReference>;

    /// Changes a setting of a running group until the next reload: `key` is `strategy`, and `value` is
    /// written as in the configuration. Returns one line for each change.
    fn set(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String>;

    /// Records a load report of a member. Returns the share of its sessions to shed, if it is under alert.
    /// Unlike the other commands it is called on the admin thread.
    fn report(&self, report: LoadReport) -> Result<Option<ShedDecision>, ReportRejection>;

    /// Grants a lease of a member to a client. It is called on the admin thread, as are the two below.
    fn grant_lease(&self, group: &str, request: &LeaseRequest) -> Result<Lease, LeaseError>;

    /// Renews a lease, which may then be of another member.
    fn renew_lease(&self, group: &str, lease: &str, request: &LeaseRequest) -> Result<Lease, LeaseError>;

    /// Ends a lease.
    fn release_lease(&self, group: &str, lease: &str) -> Result<(), LeaseError>;

    /// Returns the holders of a group's leases, those with the most first; `None` if there is no such group.
    fn leases(&self, group: &str) -> Option<Vec<LeaseHolder>>;

    /// Ends the leases of a group: of one of its members, of clients at one address, or all. Returns their
    /// number.
    fn end_leases(&self, group: &str, member: Option<&str>, from: Option<IpAddr>) -> Result<usize, String>;

    /// Renews the registration of a member with unchanged settings. Returns `None` if the settings differ. It
    /// is called on the admin thread.
    fn renew_registration(
        &self,
        group: &str,
        member: &str,
        registration: &Registration,
    ) -> Option<Result<RegisteredMember, RegistrationError>>;

    /// Registers a member of a group, or changes its settings.
    fn register(
        &self,
        group: &str,
        member: &str,
        registration: &Registration,
    ) -> Result<RegisteredMember, RegistrationError>;

    /// Removes a registered member.
    fn deregister(&self, group: &str, member: &str) -> Result<(), RegistrationError>;
}

/// The assumptions of a model: the load, and a number of equal members.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIfInput {
    /// The group's name.
    pub group: String,
    /// The rate of requests per second, with random arrivals; above 0.
    pub rate: f64,
    /// The number of members; 1 to 256.
    pub members: u32,
    /// The service demand of a request at a member, in seconds; above 0.
    pub demand: f64,
    /// The number of requests that a member can process in parallel at full speed; 1 to 1024.
    pub cores: u32,
}

/// The results of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WhatIfResult {
    /// The mean response time, in seconds; `None` above the saturation.
    pub response: Option<f64>,
    /// The utilization of a member.
    pub utilization: f64,
    /// The utilization of the balancer.
    pub balancer: f64,
    /// The saturation throughput, in requests per second.
    pub saturation: f64,
    /// The bottleneck: `the members` or `the balancer`.
    pub bottleneck: String,
    /// The name of the policy that replaces the strategy in the model.
    pub policy: String,
    /// Rates with the mean response time at each in seconds, ascending.
    pub curve: Vec<(f64, f64)>,
}

/// An object that an operator can disable and enable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchTarget {
    /// A member. While it is disabled it gets no new work, at once and without a notification, and keeps its
    /// current work.
    Member {
        /// The group; optional if only one has the member.
        group: Option<String>,
        /// The member's name as configured.
        name: String,
    },
    /// A listener, by its address, after the protocol and a colon if that is ambiguous. While it is disabled
    /// it accepts no connections.
    Listener(String),
    /// The balancing of a group. While it is disabled its members take equal turns, independent of their
    /// loads.
    Balancing(String),
}

/// The options of an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpgradeRequest {
    /// The program to run, an absolute path; the current one's file if `None`.
    pub binary: Option<String>,
    /// The time limit until it is ready, in seconds; between [`UPGRADE_SECONDS`].
    pub timeout_seconds: Option<f64>,
}

/// The range of the time limit of an upgrade, in seconds.
pub const UPGRADE_SECONDS: std::ops::RangeInclusive<f64> = 1.0..=600.0;

/// The result of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletedUpgrade {
    /// The new process' ID.
    pub pid: u32,
    /// The new process' version.
    pub version: String,
    /// The number of client connections that end with the old process.
    pub connections: u64,
}

/// The object reference of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectReference {
    /// The group's name.
    pub group: String,
    /// The object's type; may be empty.
    pub type_id: String,
    /// The reference as `IOR:…`.
    pub ior: String,
    /// The reference as `corbaloc:…`.
    pub corbaloc: String,
}

/// A load report: numbers about a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// The group; `None` for all groups with this member.
    pub group: Option<String>,
    /// The member as configured (`host:port`), or its address.
    pub member: String,
    /// The values by name; the receiver validates names and numbers.
    pub values: Vec<(String, f64)>,
    /// The age of the values when they were sent, in seconds.
    pub age_seconds: Option<f64>,
}

/// The reason why a report was rejected: one line for its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportRejection {
    /// There is no such group or member (404).
    Unknown(String),
    /// The report is invalid (422).
    Invalid(String),
    /// The reports exceed the rate limit (429).
    RateLimited(String),
}

/// A client's request for a lease, or for its renewal.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// The client's key: for strategies that use one, and so that the client gets the same member again if it
    /// has a lease.
    pub key: Option<String>,
    /// The duration in seconds; finite, between [`LEASE_SECONDS`].
    pub lease_seconds: Option<f64>,
    /// The names of members to avoid.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// The client's address; `None` over a unix socket.
    #[serde(skip)]
    pub from: Option<IpAddr>,
}

/// The range of lease durations, in seconds.
pub const LEASE_SECONDS: std::ops::RangeInclusive<f64> = 1.0..=3600.0;

/// A lease of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// The member as configured: `host:port`.
    pub member: String,
    /// The member's IP address and port.
    pub address: String,
    /// The lease's number, which is unpredictable.
    pub lease: String,
    /// The time until it expires, in seconds.
    pub lease_seconds: f64,
    /// Whether the member or its address has changed.
    pub moved: bool,
    /// The reason for this member, for people.
    pub why: String,
}

/// The leases of one member held by clients at one address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// The member as configured; `None` for the rest of a long list.
    pub member: Option<String>,
    /// The clients' address; `None` over a unix socket, and for the rest of a long list.
    pub from: Option<IpAddr>,
    /// The number of leases.
    pub leases: usize,
    /// The time until the last of them expires without renewal, in seconds.
    pub left_seconds: f64,
}

/// The reason why no lease was granted: one line for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseError {
    /// There is no such group or lease (404).
    Unknown(String),
    /// No member is usable (503).
    NoMember(String),
    /// All members are at their limits, or there are too many leases (429).
    LimitReached(String),
}

/// An entry of the event log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventEntry {
    /// The sequence number, from 1 since the start of the process, without gaps.
    pub seq: u64,
    /// The wall-clock time, milliseconds since 1970.
    pub unix_ms: u64,
    /// The kind of event.
    pub kind: EventKind,
    /// The group concerned; empty for the whole process.
    pub group: String,
    /// The member concerned.
    pub member: Option<String>,
    /// One sentence for people.
    pub why: String,
    /// The figures behind the decision, by name; finite.
    pub inputs: BTreeMap<String, f64>,
}

impl EventEntry {
    /// Creates the log entry of an event of the brain.
    pub fn new(seq: u64, unix_ms: u64, event: &Event) -> Self {
        Self {
            seq,
            unix_ms,
            kind: event.kind,
            group: event.group.to_string(),
            member: event.member.as_deref().map(str::to_owned),
            why: event.why.clone(),
            // JSON cannot represent infinity.
            inputs: event.inputs.iter().filter(|(_, value)| value.is_finite()).cloned().collect(),
        }
    }
}
