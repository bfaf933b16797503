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
    /// Number of threads that carry traffic. Default: one per core that this process may use. Fixed at start.
    #[schemars(range(min = 1, max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,

    /// Maximum number of concurrent client connections over all listeners; further ones are closed at once,
    /// and counted as refused. Each takes two files, one for the client and one for the member. Default: what
    /// the limit on open files allows, at most 100000.
    #[schemars(range(min = 1, max = 10_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,

    /// Maximum size of buffered data over all connections, in bytes. It counts what peers sent and did not
    /// finish (heads, IIOP messages, HTTP/2 streams), or requested and do not read. More is refused: 503
    /// `memory`, and `NO_RESOURCES` or a closed connection where there is no status. Default: half the memory
    /// of the control group or the machine.
    #[schemars(range(min = 1_048_576, max = 1_099_511_627_776_u64))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<usize>,

    /// Maximum time for work in flight to end when the process stops; then it is aborted. The default of 25s
    /// ends before the 30 s after which Kubernetes kills.
    pub drain_deadline: TimeSpan,

    /// Maximum time for connections to end after another process has taken over (`plimsoll upgrade`); then
    /// they are closed. Requests end long before that: it is for WebSockets and byte streams.
    pub upgrade_deadline: TimeSpan,

    /// Access log with one JSON line per request. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_log: Option<AccessLogConfig>,

    /// Spans for an OpenTelemetry collector. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<TracingConfig>,

    /// Other balancers of the same groups. Default: none, the balancer acts alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetConfig>,

    /// Storage of operators' changes and registered members. Default: `state.json` in the service manager's
    /// state folder; without such a folder, they are lost when the process ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreConfig>,

    /// An etcd cluster, for `store` and for sources of members. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdConfig>,

    /// Monitoring and control of the balancer.
    pub admin: AdminSection,

    /// Addresses that accept clients.
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

/// Access log with one JSON line per request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessLogConfig {
    /// File to append to. Created if missing, reopened on reload.
    pub path: FilePath,

    /// Share of the requests that are logged: 1 for all of them, 0.01 for one in a hundred.
    #[schemars(range(min = 0.000_001, max = 1.0))]
    #[serde(default = "one")]
    pub sample: f64,
}

/// Monitoring and control of the balancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminSection {
    /// Address of status, metrics and events: read-only. `off` for none.
    pub listen: AdminListen,

    /// Host names accepted by `listen`, such as `lb1.example.org`, in addition to IP addresses, `localhost`
    /// and the name of this machine. Requests with any other `Host` are refused, except health checks
    /// (`/healthz`). This stops requests from foreign web pages (DNS rebinding).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<Domain>,

    /// Addresses that accept control commands: a unix socket (mode 0600), an address with TLS
    /// (`tls://0.0.0.0:9905`) whose clients must authenticate, or a list of both. `off` for none. Default for
    /// users who may not write to `/run`: `$XDG_RUNTIME_DIR/plimsoll.sock`, or without a login
    /// `/tmp/plimsoll-UID/control.sock`. Commands look there, too.
    pub control: ControlAddresses,

    /// Address that accepts load reports of members (`POST /v1/report`), lends members to clients
    /// (`POST /v1/groups/NAME/bind`; see `leases`) and shows the object references of groups. It does nothing
    /// else. Use it only in a network of members and such clients: anyone who can reach it can report any
    /// load for any member. `off` for none, which is the default.
    pub reports: AdminListen,

    /// Lends members to clients over the address of `reports`. If `false`, members are lent only over control
    /// with TLS, to authorized clients.
    pub leases: bool,

    /// Lets members register over the address of `reports` (`PUT /v1/groups/NAME/members/MEMBER`), in groups
    /// with `registered = true`. Anyone who can reach that address can then direct clients to any server. If
    /// `false`, members register over the control addresses only.
    pub register: bool,

    /// Address that serves a `CosLoadBalancing::LoadManager` over IIOP, the interface of TAO's load monitors
    /// and alerts (`corbaloc::HOST:PORT/LoadManager`). Use it only in a network of members: anyone who can
    /// reach it can report any load for any member, and create and change groups. `off` for none, which is
    /// the default.
    pub load_manager: AdminListen,

    /// Interval between two queries of the load monitors that registered at `load_manager`.
    #[schemars(extend("x-minimum" = "10ms"))]
    pub load_interval: TimeSpan,

    /// File to which the balancer appends each change and each refused attempt, one JSON object per line.
    /// While it cannot be written, changes over the control addresses are refused. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<FilePath>,

    /// TLS certificates of the control address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ControlTls>,

    /// Bearer tokens (JWT) accepted for control over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtConfig>,

    /// Kerberos tickets accepted for control over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kerberos: Option<KerberosConfig>,

    /// Authorization of clients over TLS.
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
            leases: true,
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
