//! `[[group]]`: sets of members that do the same work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::ConfigDiagnostic;
use super::root::{count, millis, one};
use super::spans::SpanTree;
use super::{
    ConfigName, DiscoverConfig, DrainHookConfig, FilePath, HashKey, IiopConfig, MemberAddress,
    MemberLocation, MemberTls, MonitorConfig, ObjectKey, ObjectReference, OutlierConfig, PublicUrl,
    ScalerConfig, StrategyConfig, TimeSpan,
};

/// A set of members that do the same work, and the distribution of work among them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-required" = { "members": ["lottery", "discover", "scaler"] }))]
pub struct GroupConfig {
    /// Name of the group, by which listeners refer to it. It appears in metric labels and commands.
    pub name: ConfigName,

    /// Load balancing strategy: a name, or a table with its settings such as
    /// `{ least_request = { choices = 3 } }` or `{ expression = { weight = "capacity / (1 + cpu)" } }`.
    /// Default: `adaptive`.
    #[serde(default)]
    pub strategy: StrategyConfig,

    /// Servers of the group: `"host:port"`, or a table with further settings. Required unless `discover`,
    /// `scaler` or `lottery` is set.
    #[schemars(length(min = 1))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberEntry>,

    /// Sources of dynamic members, in addition to `members` or instead of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discover: Vec<DiscoverConfig>,

    /// Autoscaling: starts and stops members based on load. Default: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaler: Option<ScalerConfig>,

    /// Service of a lottery (`plimsoll lottery`) that supplies the members, instead of `members`. Each is
    /// used as often as the daemons draw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lottery: Option<LotteryMembers>,

    /// Maximum number of concurrent requests (http), connections (tcp) or flows (udp) at each member without
    /// its own limit. Default: no limit.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,

    /// Maximum number of requests (http), connections (tcp) or flows (udp) per second to each member.
    /// Default: no limit.
    #[schemars(range(min = 0.001, max = 1_000_000.0))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<f64>,

    /// Admission control: no member gets more requests than it can process, as far as that is known. The
    /// limit comes from the load reports in the member's answers (http), else from the point where requests
    /// queue up. Requests without room wait or are refused (http: 503, `shed`). Default: `true` for the
    /// strategy `adaptive`, `false` for the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<bool>,

    /// Time within which clients expect their answers. While no member has room, a request waits as long as
    /// its answer can still arrive in time. It is refused at once if it cannot. Ignored if `admission` is
    /// off. Default: one second, or four times the response time if that is longer.
    #[schemars(extend("x-minimum" = "1ms", "x-maximum" = "1h"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<TimeSpan>,

    /// Minimum size of the subset of a large group that this process uses, with any strategy. The subset has
    /// two members per request in flight, and at least this many. With many balancers, each then gives enough
    /// work to few members instead of too little to all. Default: all members are used (`adaptive` has its
    /// own subset, of at least 10, if members send no load reports).
    #[schemars(range(min = 2, max = 65_536))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aperture: Option<u32>,

    /// Hash key, for strategies that hash: `client` (the client's IP address), `path`, `header:NAME` or
    /// `cookie:NAME`. If the header or cookie is missing, the client's address is used.
    #[serde(default = "client")]
    pub key: HashKey,

    /// Duration over which a recovered member's share of the load rises to its full value. A cold member that
    /// gets its full share at once experiences a multiple of it. `0s` for off.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "millis::<10000>")]
    pub slow_start: TimeSpan,

    /// Handling of requests while no member is usable.
    #[serde(default)]
    pub when_all_down: WhenAllDown,

    /// Maximum number of requests that wait while every member is at its `max_connections` or `max_rate`.
    /// Further requests are refused. 0 refuses at once.
    #[schemars(range(min = 0, max = 1_000_000))]
    #[serde(default = "count::<1024>")]
    pub queue: usize,

    /// Maximum time that a request waits in the queue before it is refused.
    #[schemars(extend("x-minimum" = "1ms"))]
    #[serde(default = "millis::<1000>")]
    pub queue_timeout: TimeSpan,

    /// Maximum number of idle connections kept for reuse, per member and thread (http). 0 closes each
    /// connection after its request.
    #[schemars(range(min = 0, max = 65_536))]
    #[serde(default = "count::<256>")]
    pub max_idle_connections: usize,

    /// Maximum time that a connection stays idle before it is closed (http). The default of 4s is below the
    /// 5 s after which Node.js and Apache close theirs. A POST caught by such a close fails and cannot be
    /// retried.
    #[schemars(extend("x-minimum" = "1ms"))]
    #[serde(default = "millis::<4000>")]
    pub pool_idle_timeout: TimeSpan,

    /// Version of the PROXY protocol header that begins each connection to a member. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_proxy: Option<ProxyVersion>,

    /// HTTP version for requests of http listeners to members, whatever version clients use.
    #[serde(default)]
    pub protocol: MemberProtocol,

    /// TLS for connections to members (http, tcp), including health checks. Default: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<MemberTls>,

    /// Handling of the load reports in members' answers (the header `endpoint-load-metrics`, http).
    #[serde(default)]
    pub load_report_header: LoadReportHeader,

    /// Active health checks. Without this section members count as up until their traffic fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthConfig>,

    /// Metric and source of members' load. Default: the balancer requests no reports, and derives no load
    /// from those it receives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<MonitorConfig>,

    /// Timeouts towards members.
    #[serde(default)]
    pub timeouts: MemberTimeouts,

    /// Retries, where they are safe.
    #[serde(default)]
    pub retry: RetryConfig,

    /// Outlier detection: ejects members whose traffic fails. `false` for off.
    #[serde(default)]
    pub outlier: OutlierConfig,

    /// Webhook that is called before a member that is drained, or under alert, loses sessions. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_hook: Option<DrainHookConfig>,

    /// Handling of http sessions that are bound to a member, by a cookie or by their connection, when it is
    /// drained.
    #[serde(default)]
    pub on_drain: DrainPolicy,

    /// Object that clients of iiop listeners request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iiop: Option<IiopConfig>,
}

/// Handling of the sessions of a member that is drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DrainPolicy {
    /// Sessions move to another member with their next request.
    #[default]
    Move,
    /// Sessions stay until they end: with their connection, or when their cookie expires, which is not
    /// renewed.
    Stay,
}

/// A service of a lottery, which supplies dynamic members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LotteryMembers {
    /// Name of the service, as the daemons have it.
    pub service: ConfigName,

    /// Addresses of daemons to query. One that runs is enough to find the others; list two or three.
    #[schemars(length(min = 1))]
    pub daemons: Vec<MemberAddress>,

    /// File of the cluster's keys, as created by `plimsoll lottery`. Reloaded when it changes.
    #[schemars(extend("examples" = ["/etc/plimsoll/lottery.keys"]))]
    pub keys: FilePath,
}

/// A member: a server of the group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum MemberEntry {
    /// Address only.
    Address(MemberAddress),
    /// Address and further settings.
    Table(Box<MemberConfig>),
}

impl MemberEntry {
    /// Returns the member as a table with all keys.
    pub fn table(&self) -> MemberConfig {
        match self {
            Self::Address(address) => MemberConfig {
                address: Some(address.clone()),
                capacity: one(),
                max_connections: None,
                public: None,
                ior: None,
                key: None,
                location: None,
                host: None,
            },
            Self::Table(table) => MemberConfig::clone(table),
        }
    }

    /// Returns host and port; `None` for a member with neither an address nor a reference, which a checked
    /// file does not have.
    pub fn address(&self) -> Option<&MemberAddress> {
        match self {
            Self::Address(address) => Some(address),
            Self::Table(table) => {
                table.address.as_ref().or_else(|| table.ior.as_ref().map(|ior| &ior.address))
            }
        }
    }

    /// Returns the name in commands, metrics and events: host and port.
    pub fn name(&self) -> String {
        self.address().map_or_else(String::new, ToString::to_string)
    }
}

/// A member with further settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberConfig {
    /// Host name or IP address, and port. Omitted if `ior` contains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<MemberAddress>,

    /// Weight relative to the other members: 2 gets twice as much as 1.
    #[schemars(range(min = 0.001, max = 1_000_000.0))]
    #[serde(default = "one")]
    pub capacity: f64,

    /// Maximum number of concurrent requests (http), connections (tcp) or flows (udp). Default: the group's.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,

    /// URL at which clients reach the member directly, for listeners with `rebind = "redirect"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<PublicUrl>,

    /// Object reference of the member (iiop): `IOR:…`, `corbaloc:…`, or `file:` and the path of a file that
    /// holds one of them. That file is read whenever the configuration is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ior: Option<ObjectReference>,

    /// Object key of the member (iiop), if there is no `ior`. Default: the group's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ObjectKey>,

    /// Location under which monitors report the member's loads to the load manager (`[admin] load_manager`).
    /// Members of other groups may have the same. Default: the member's address as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<MemberLocation>,

    /// Machine on which the member runs, if its address does not identify it. Members with the same value
    /// share the machine, in whatever groups they are. Default: the member's IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<ConfigName>,
}

/// Handling of the load reports in members' answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadReportHeader {
    /// Clients get no report.
    #[default]
    Strip,
    /// Clients get the report that the member sent.
    Pass,
}

/// Handling of requests while no member is usable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenAllDown {
    /// Requests are refused (http: 503).
    #[default]
    Reject,
    /// All members but the draining and disabled ones are used as if they were up: for health checks that may
    /// be wrong.
    FailOpen,
}

/// HTTP version for requests to members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberProtocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2, with many requests per connection: negotiated by ALPN with `tls`, otherwise with prior
    /// knowledge (h2c).
    H2,
}

/// Version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProxyVersion {
    /// Version 1, the text header.
    V1,
    /// Version 2, the binary header.
    V2,
}

/// Active health checks by one of `http`, `grpc`, `tcp` and `iiop`. A member that has not been checked yet is
/// not used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// Sends GET to this path and expects a status from 200 to 399, or the one in `expect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<super::ProbePath>,

    /// Queries the gRPC health service (`grpc.health.v1.Health/Check`) for this service, or with `""` for the
    /// whole server, and expects SERVING.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<super::ServiceName>,

    /// Opens a connection, and nothing more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tcp: bool,

    /// Queries whether the member has its object (LocateRequest).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub iiop: bool,

    /// Interval between two checks of one member. Each wait varies by a tenth, so that checks spread.
    #[schemars(extend("x-minimum" = "10ms"))]
    pub interval: TimeSpan,

    /// Timeout of a complete check.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub timeout: TimeSpan,

    /// Number of consecutive passed checks after which a member is up again. A new member needs only one.
    #[schemars(range(min = 1, max = 1000))]
    pub rise: u32,

    /// Number of consecutive failed checks after which a member is down.
    #[schemars(range(min = 1, max = 1000))]
    pub fall: u32,

    /// Host header (http) or authority (grpc) of the check. Default: the member's address as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<super::ProbeHost>,

    /// Only status code that passes (http).
    #[schemars(range(min = 100, max = 599))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect: Option<u16>,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            http: None,
            grpc: None,
            tcp: false,
            iiop: false,
            interval: TimeSpan::millis(2_000),
            timeout: TimeSpan::millis(1_000),
            rise: 2,
            fall: 3,
            host: None,
            expect: None,
        }
    }
}

/// Timeouts towards members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemberTimeouts {
    /// Timeout for a connection to be established. A lost first packet is retransmitted after 1 s: by then
    /// another member is the better try.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub connect: TimeSpan,

    /// Timeout of one try, from the request being sent to the end of the answer's head (http). `0s` for none,
    /// which leaves it to `idle`: only you know how long a legitimate answer takes.
    pub per_try: TimeSpan,

    /// Timeout from the complete request head to the last byte of the answer, over all tries (http). `0s` for
    /// none: a long download that progresses is no fault, and `idle` ends one that does not.
    pub total: TimeSpan,

    /// Maximum time without a byte of the answer received or of the request sent (http).
    #[schemars(extend("x-minimum" = "1ms"))]
    pub idle: TimeSpan,
}

impl Default for MemberTimeouts {
    fn default() -> Self {
        Self {
            connect: TimeSpan::millis(1_000),
            per_try: TimeSpan::millis(0),
            total: TimeSpan::millis(0),
            idle: TimeSpan::millis(60_000),
        }
    }
}

/// Retries on another member, where they are safe: the connection was refused, or the method is idempotent
/// and no byte of an answer has arrived. A budget keeps retries from overloading slow members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryConfig {
    /// Maximum number of retries after the first try. 0 for none.
    #[schemars(range(min = 0, max = 10))]
    pub attempts: u32,

    /// Retries allowed, as a share of the requests of the last ten seconds.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub budget: f64,

    /// Retries allowed per second regardless of `budget`, so that low traffic can be retried too.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub min_per_second: f64,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self { attempts: 2, budget: 0.2, min_per_second: 10.0 }
    }
}

/// Checks the strategy against the keys beside it.
pub(super) fn check(
    group: &GroupConfig,
    strategy: &plimsoll_brain::Strategy,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    if spans.has_key("key") && !strategy.reads_key {
        let readers = plimsoll_brain::strategy::ALL.iter().filter(|strategy| strategy.reads_key);
        let readers: Vec<&str> = readers.map(|strategy| strategy.name).collect();
        let message = format!("`key` has no effect: strategy `{}` does not hash", strategy.name);
        let hint = format!("strategies that do: {}", readers.join(", "));
        diagnostics.push(ConfigDiagnostic::warning(spans.key_span("key"), message).hint(hint));
    }
    if spans.has_key("aperture") && (strategy.reads_key || strategy.name == "first_available") {
        let message =
            format!("with `aperture` balancers do not agree on who is first for `{}`", strategy.name);
        let hint = "each uses a part of the members that is its own: leave it out where there are several";
        diagnostics.push(ConfigDiagnostic::warning(spans.key_span("aperture"), message).hint(hint));
    }
    if spans.has_key("objective") && !group.admission.unwrap_or(strategy.enforces_limits) {
        let message = "`objective` has no effect: nobody waits for room without `admission`";
        diagnostics.push(
            ConfigDiagnostic::warning(spans.key_span("objective"), message).hint("add admission = true"),
        );
    }
}

fn client() -> HashKey {
    HashKey(plimsoll_proxy::HashKeySource::Client)
}
