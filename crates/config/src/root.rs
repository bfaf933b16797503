//! The file as a whole, and the sections that are there once.
//!
//! The comments on the fields are the reference that users read: they become the descriptions in the JSON
//! Schema. Bounds stand in the schema too, and nowhere else: the reader checks against the schema.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AccessConfig, AdminListen, ControlAddress, ControlAddresses, ControlSection, ControlTls, Domain,
    EtcdConfig, FilePath, FleetConfig, GroupConfig, JwtConfig, KerberosConfig, ListenerConfig, StoreConfig,
    TimeSpan, TracingConfig,
};

/// Configuration of a Plimsoll load balancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Threads that carry traffic. Default: one per core this process may use. Fixed at start.
    #[schemars(range(min = 1, max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,

    /// Most client connections at once over all listeners; more are closed at once, and counted as refused.
    /// Each takes two files, one for the client and one for the member. Default: what the limit on open files
    /// allows, at most 100000.
    #[schemars(range(min = 1, max = 10_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,

    /// Most bytes kept at once of what peers sent and did not finish (heads, messages of IIOP, streams of
    /// HTTP/2) or asked for and do not read, over all connections. More is refused: 503 `memory`, and
    /// `NO_RESOURCES` or a closed connection where there is no status. Default: half of what the control
    /// group or the machine has.
    #[schemars(range(min = 1_048_576, max = 1_099_511_627_776_u64))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<usize>,

    /// How long work in flight may take to end when the process stops; then it is cut. The default of 25s
    /// ends before the 30 s after which Kubernetes kills.
    pub drain_deadline: TimeSpan,

    /// How long connections may take to end when another process has taken over (plimsoll upgrade); then they
    /// are cut. Requests are done long before that: it is for WebSockets and byte streams.
    pub upgrade_deadline: TimeSpan,

    /// One JSON line per request. Off unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_log: Option<AccessLogConfig>,

    /// Spans for a collector of OpenTelemetry. Off unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<TracingConfig>,

    /// Other balancers of the same groups. It acts alone unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetConfig>,

    /// Where it is kept what operators do and which members were registered. Without it that is forgotten
    /// with the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreConfig>,

    /// A cluster of etcd, for `store` and for sources of members. Off unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdConfig>,

    /// Where the balancer is watched and controlled.
    pub admin: AdminSection,

    /// Addresses to accept clients on.
    #[serde(rename = "listener")]
    pub listeners: Vec<ListenerConfig>,

    /// Sets of members that do the same work.
    #[serde(rename = "group")]
    pub groups: Vec<GroupConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: None,
            max_connections: None,
            max_memory: None,
            drain_deadline: TimeSpan::millis(25_000),
            upgrade_deadline: TimeSpan::millis(600_000),
            access_log: None,
            tracing: None,
            fleet: None,
            store: None,
            etcd: None,
            admin: AdminSection::default(),
            listeners: Vec::new(),
            groups: Vec::new(),
        }
    }
}

/// One JSON line per request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessLogConfig {
    /// The file to append to. Created if missing, opened anew on reload.
    pub path: FilePath,

    /// Share of the requests that is written: 1 for all of them, 0.01 for one in a hundred.
    #[schemars(range(min = 0.000_001, max = 1.0))]
    #[serde(default = "one")]
    pub sample: f64,
}

/// Where the balancer is watched and controlled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminSection {
    /// Address of status, metrics and events: read-only. `off` for none.
    pub listen: AdminListen,

    /// Names by which `listen` may be asked, such as `lb1.example.org`, beside IP addresses, `localhost` and
    /// the name of this machine. Requests for any other `Host` are refused, but for checks of health
    /// (`/healthz`): a page of somebody else could send them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<Domain>,

    /// Where commands are taken: a unix socket, mode 0600; an address behind TLS (`tls://0.0.0.0:9905`),
    /// whose clients prove who they are; or a list of both. `off` for none. Whoever may not write to `/run`
    /// has it, unless it is said here, at `$XDG_RUNTIME_DIR/plimsoll.sock`, or without a login at
    /// `/tmp/plimsoll-UID/control.sock`; commands look there, too.
    pub control: ControlAddresses,

    /// Address that takes reports of members (`POST /v1/report`), lends members to clients (`POST
    /// /v1/groups/NAME/bind`; see `lend`), shows the object references of groups, and does nothing else, in a
    /// network where only members and such clients are: whoever can reach it can say anything of any member's
    /// load. `off` for none, which is the default.
    pub reports: AdminListen,

    /// Does the address of `reports` lend members to clients? If not, they are lent over control with TLS
    /// only, to those who may.
    pub lend: bool,

    /// Does the address of `reports` take members into groups that say `registered = true` (`PUT
    /// /v1/groups/NAME/members/MEMBER`)? Whoever can reach it can then have clients sent where they like. If
    /// not, members register over the control addresses only.
    pub register: bool,

    /// Address that serves a `CosLoadBalancing::LoadManager` over IIOP, the interface of TAO's load monitors
    /// and alerts (`corbaloc::HOST:PORT/LoadManager`), in a network where only members are: whoever can reach
    /// it can say anything of any member's load, and make and change groups. `off` for none, which is the
    /// default.
    pub load_manager: AdminListen,

    /// How often load monitors that registered there are asked.
    #[schemars(extend("x-minimum" = "10ms"))]
    pub load_interval: TimeSpan,

    /// File to which each change and each refused attempt is appended, a line of JSON each. If it cannot be
    /// written, changes over the control addresses are refused. Off unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<FilePath>,

    /// Certificates of control over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ControlTls>,

    /// Tokens that count for control over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtConfig>,

    /// Kerberos tickets that count for control over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kerberos: Option<KerberosConfig>,

    /// Who may do what over TLS.
    pub access: AccessConfig,
}

impl AdminSection {
    /// Returns its part about control.
    pub fn control_section(&self) -> ControlSection<'_> {
        ControlSection {
            section: "admin",
            control: &self.control,
            tls: self.tls.as_ref(),
            jwt: self.jwt.as_ref(),
            kerberos: self.kerberos.as_ref(),
            access: &self.access,
        }
    }
}

impl Default for AdminSection {
    fn default() -> Self {
        Self {
            listen: AdminListen(Some(([127, 0, 0, 1], 9900).into())),
            names: Vec::new(),
            control: ControlAddresses::One(ControlAddress::Unix("/run/plimsoll.sock".into())),
            reports: AdminListen(None),
            lend: true,
            register: false,
            load_manager: AdminListen(None),
            load_interval: TimeSpan::millis(5_000),
            audit: None,
            tls: None,
            jwt: None,
            kerberos: None,
            access: AccessConfig::default(),
        }
    }
}

pub(super) fn yes() -> bool {
    true
}

pub(super) fn one() -> f64 {
    1.0
}

/// Returns a whole number as a default, at its field.
pub(super) const fn count<const N: usize>() -> usize {
    N
}

/// Returns a duration as a default, in milliseconds, at its field.
pub(super) const fn millis<const N: u64>() -> TimeSpan {
    TimeSpan::millis(N)
}
