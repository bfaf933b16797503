//! `[[group]]`: sets of members that do the same work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::ConfigDiagnostic;
use super::root::{count, millis, one};
use super::spans::SpanTree;
use super::{
    ConfigName, DiscoverConfig, FilePath, HandOverConfig, HashKey, IiopConfig, MemberAddress, MemberLocation,
    MemberTls, MonitorConfig, ObjectKey, ObjectReference, OutlierConfig, PublicUrl, ScalerConfig,
    StrategyConfig, TimeSpan,
};

/// A set of members that do the same work, and how work is shared among them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-required" = { "members": ["lottery", "discover", "scaler"] }))]
pub struct GroupConfig {
    /// By which listeners refer to it. It stands in metric labels and commands.
    pub name: ConfigName,

    /// How a member is chosen: a name, or a table with its settings such as
    /// `{ least_request = { choices = 3 } }` or `{ expression = { weight = "capacity / (1 + cpu)" } }`.
    /// Default: `adaptive`.
    #[serde(default)]
    pub strategy: StrategyConfig,

    /// Who does the work: `"host:port"`, or a table with more. This, `discover`, `scaler` or `lottery`.
    #[schemars(length(min = 1))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberEntry>,

    /// Where more members are found, which come and go: beside `members`, or in place of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discover: Vec<DiscoverConfig>,

    /// How many members there are, by what goes on: they are started and taken away. Default: those that
    /// there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaler: Option<ScalerConfig>,

    /// In place of `members`: those whom the daemons of a lottery (`plimsoll lottery`) draw for a service,
    /// each as often as they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lottery: Option<LotteryMembers>,

    /// Most requests (http), connections (tcp) or flows (udp) at once at each member that does not set its
    /// own. Default: no limit.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,

    /// Most requests (http), connections (tcp) or flows (udp) a second that each member is given. Default: no
    /// limit.
    #[schemars(range(min = 0.001, max = 1_000_000.0))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<f64>,

    /// No member gets more than it can work on, as far as that is known: by what it says of itself with its
    /// answers (http), else by what is seen of it where requests pile up. What finds no room waits or is
    /// refused (http: 503, `shed`). Default: `true` for the strategy `adaptive`, `false` for the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<bool>,

    /// Within what time clients want their answers. Where no member has room a request waits for as long as
    /// its answer can still be expected by then, and is refused at once if it cannot. It says nothing where
    /// `admission` is off. Default: a second, or four times as long as requests take.
    #[schemars(extend("x-minimum" = "1ms", "x-maximum" = "1h"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<TimeSpan>,

    /// Of a large group this process uses a part only, whatever the strategy: two members for each of its
    /// requests in flight, and at least so many. Where there are many balancers each then has enough to do
    /// with few members instead of too little with all. Default: all are used (`adaptive` has such a part of
    /// its own, of at least 10, where members say nothing of themselves).
    #[schemars(range(min = 2, max = 65_536))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aperture: Option<u32>,

    /// What sticks to one member, for strategies that hash: `client` (its IP address), `path`,
    /// `header:NAME`, `cookie:NAME`. Where a header or cookie is missing, the client's address stands in.
    #[serde(default = "client")]
    pub key: HashKey,

    /// How long a member that came back takes to get its whole share. A member that is cold and gets it at
    /// once sees a multiple of it. `0s` for off.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "millis::<10000>")]
    pub slow_start: TimeSpan,

    /// What happens to requests when no member can be used.
    #[serde(default)]
    pub when_all_down: WhenAllDown,

    /// Requests that wait while every member is at its `max_connections` or `max_rate`; more are refused.
    /// 0 refuses at once.
    #[schemars(range(min = 0, max = 1_000_000))]
    #[serde(default = "count::<1024>")]
    pub queue: usize,

    /// How long they wait before they are refused.
    #[schemars(extend("x-minimum" = "1ms"))]
    #[serde(default = "millis::<1000>")]
    pub queue_timeout: TimeSpan,

    /// Idle connections kept for reuse, per member and thread (http). 0 closes each after its request.
    #[schemars(range(min = 0, max = 65_536))]
    #[serde(default = "count::<256>")]
    pub pool: usize,

    /// Idle connections older than this are closed (http). The default of 4s lies below the 5 s after which
    /// Node.js and Apache close theirs: a POST caught by such a close fails and cannot be tried again.
    #[schemars(extend("x-minimum" = "1ms"))]
    #[serde(default = "millis::<4000>")]
    pub pool_idle: TimeSpan,

    /// Begin each connection to a member with a PROXY protocol header of this version. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_proxy: Option<ProxyVersion>,

    /// What members speak to whom requests of http listeners go, whatever version clients speak.
    #[serde(default)]
    pub protocol: MemberProtocol,

    /// Members are reached by TLS (http, tcp), by their health checks, too. Default: as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<MemberTls>,

    /// What happens to what members say of their load with their answers (the header `endpoint-load-metrics`,
    /// http).
    #[serde(default)]
    pub report_header: ReportHeader,

    /// Active health checks. Without this section members count as up until their traffic fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthConfig>,

    /// How loaded members are. Default: nothing is asked for, and no load is made of what is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<MonitorConfig>,

    /// How long to wait for members.
    #[serde(default)]
    pub timeouts: MemberTimeouts,

    /// Trying again, where that is safe.
    #[serde(default)]
    pub retry: RetryConfig,

    /// Taking members out whose traffic fails; `false` for off.
    #[serde(default)]
    pub outlier: OutlierConfig,

    /// Who is told before a member that is drained, or under alert, loses sessions. Default: nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand_over: Option<HandOverConfig>,

    /// What becomes of http sessions that are bound to a member, by a cookie or by their connection, when it
    /// is drained.
    #[serde(default)]
    pub drained_sessions: DrainedSessions,

    /// The object that clients of iiop listeners ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iiop: Option<IiopConfig>,
}

/// What becomes of the sessions of a member that is drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DrainedSessions {
    /// They go to another member with their next request.
    #[default]
    Move,
    /// They stay until they end: their connection, or the time of their cookie, which is not given anew.
    Stay,
}

/// A service of a lottery, whose members come and go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LotteryMembers {
    /// Its name, as the daemons have it.
    pub service: ConfigName,

    /// Daemons to ask who is drawn. One that runs is enough to find the others; give two or three.
    #[schemars(length(min = 1))]
    pub daemons: Vec<MemberAddress>,

    /// File of the cluster's keys, as `plimsoll lottery` made it. It is read again when it changes.
    #[schemars(extend("examples" = ["/etc/plimsoll/lottery.keys"]))]
    pub keys: FilePath,
}

/// One that does the work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum MemberEntry {
    /// Only its address.
    Address(MemberAddress),
    /// Its address and more.
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

/// One that does the work, with more than its address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberConfig {
    /// Host name or IP address, and port. Left out where `ior` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<MemberAddress>,

    /// How much it can do relative to the other members: 2 gets twice as much as 1.
    #[schemars(range(min = 0.001, max = 1_000_000.0))]
    #[serde(default = "one")]
    pub capacity: f64,

    /// Most requests (http), connections (tcp) or flows (udp) at once. Default: the group's.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,

    /// Where clients reach it themselves, for listeners with `rebind = "redirect"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<PublicUrl>,

    /// Its object (iiop): `IOR:…`, `corbaloc:…`, or `file:` and the path of a file that holds one of them,
    /// which is read whenever this file is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ior: Option<ObjectReference>,

    /// The key of its object (iiop), where there is no `ior`. Default: the group's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ObjectKey>,

    /// Its location, by which monitors say loads of it to the load manager (`[admin] load_manager`); members
    /// of other groups may have the same. Default: its address as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<MemberLocation>,

    /// The machine that it is on, where its address does not say: members with the same one share it, in
    /// whatever groups they are. Default: its IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<ConfigName>,
}

/// What clients see of members' reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportHeader {
    /// Nothing.
    #[default]
    Strip,
    /// What the member sent.
    Pass,
}

/// What happens to requests when no member can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenAllDown {
    /// They are refused (http: 503).
    #[default]
    Reject,
    /// All members but the draining and disabled ones are used as if they were up: for checks that may be
    /// wrong.
    FailOpen,
}

/// What members speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberProtocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2, many requests on a connection: agreed on with `tls` (ALPN), otherwise spoken at once (h2c).
    H2,
}

/// Version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProxyVersion {
    /// The line of text.
    V1,
    /// The binary header.
    V2,
}

/// Active health checks: one of `http`, `grpc`, `tcp` and `iiop`. A member that has not been checked yet is
/// not used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// GET this path and expect an answer from 200 to 399, or the one in `expect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<super::ProbePath>,

    /// Ask the health service of gRPC (`grpc.health.v1.Health/Check`) for this service, or with `""` for the
    /// whole server, and expect SERVING.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<super::ServiceName>,

    /// Connect, and no more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tcp: bool,

    /// Ask whether the member has its object (LocateRequest).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub iiop: bool,

    /// Between two checks of one member. Each wait is varied by a tenth, so that checks spread.
    #[schemars(extend("x-minimum" = "10ms"))]
    pub interval: TimeSpan,

    /// For one check as a whole.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub timeout: TimeSpan,

    /// Passed checks in a row that bring a member back. The first pass is enough for a new member.
    #[schemars(range(min = 1, max = 1000))]
    pub rise: u32,

    /// Failed checks in a row that take a member out.
    #[schemars(range(min = 1, max = 1000))]
    pub fall: u32,

    /// Host header of the check (http), or its authority (grpc). Default: the member's address as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<super::ProbeHost>,

    /// The only status that passes (http).
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

/// How long to wait for members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemberTimeouts {
    /// For a connection to be made. A lost first packet is sent again after 1 s: by then another member is
    /// the better try.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub connect: TimeSpan,

    /// For one try: from the request being sent to the end of the answer's head (http). `0s` for none, which
    /// leaves it to `idle`: how long an honest answer takes is known to you only.
    pub per_try: TimeSpan,

    /// From the request head being read to the last byte of the answer, over all tries (http). `0s` for
    /// none: a long download that moves is no fault, and one that does not is ended by `idle`.
    pub total: TimeSpan,

    /// Without a byte of the answer coming in or of the request going out (http).
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

/// Trying again on another member, where that is safe: the connection was refused, or the method is
/// idempotent and no byte of an answer has come. A budget keeps retries from burying members that are slow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryConfig {
    /// Tries after the first. 0 for none.
    #[schemars(range(min = 0, max = 10))]
    pub attempts: u32,

    /// Retries allowed as a share of the requests of the last ten seconds.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub budget: f64,

    /// Retries allowed per second whatever the share says, so that little traffic can be retried too.
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
    spot: &SpanTree,
    found: &mut Vec<ConfigDiagnostic>,
) {
    if spot.has_key("key") && !strategy.reads_key {
        let readers = plimsoll_brain::strategy::ALL.iter().filter(|strategy| strategy.reads_key);
        let readers: Vec<&str> = readers.map(|strategy| strategy.name).collect();
        let message = format!("`key` has no effect: strategy `{}` does not hash", strategy.name);
        let hint = format!("strategies that do: {}", readers.join(", "));
        found.push(ConfigDiagnostic::warning(spot.key_span("key"), message).hint(hint));
    }
    if spot.has_key("aperture") && (strategy.reads_key || strategy.name == "first_available") {
        let message =
            format!("with `aperture` balancers do not agree on who is first for `{}`", strategy.name);
        let hint = "each uses a part of the members that is its own: leave it out where there are several";
        found.push(ConfigDiagnostic::warning(spot.key_span("aperture"), message).hint(hint));
    }
    if spot.has_key("objective") && !group.admission.unwrap_or(strategy.enforces_limits) {
        let message = "`objective` has no effect: nobody waits for room without `admission`";
        found.push(
            ConfigDiagnostic::warning(spot.key_span("objective"), message).hint("add admission = true"),
        );
    }
}

fn client() -> HashKey {
    HashKey(plimsoll_proxy::HashKeySource::Client)
}
