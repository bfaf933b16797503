//! `[[listener]]`: addresses to accept clients on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::root::{count, millis};
use super::{
    AffinityConfig, ConfigName, Domain, HeaderName, ListenAddress, ListenerTls, MemberAddress, Network,
    RouteConfig, TimeSpan, UpgradeName,
};

/// An address that accepts clients, and the group that serves them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-required" = { "group": ["route", "https_redirect"] }))]
pub struct ListenerConfig {
    /// IP address and port to listen on. Port 0 selects a free port.
    pub address: ListenAddress,

    /// Protocol of the listener.
    #[serde(default)]
    pub protocol: ListenerProtocol,

    /// Name of the group that serves this listener: all of its requests, or those that no route takes.
    /// Without it, requests that no route takes are answered with 404 (`no_route`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<ConfigName>,

    /// Routes: the group, or the balancer's own response, for requests that meet conditions (http).
    #[serde(rename = "route", default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteConfig>,

    /// Redirects all requests that no route takes to `https` on the standard port, with status 308 (http).
    #[serde(default)]
    pub https_redirect: bool,

    /// Further groups that clients may request by name (xds).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ConfigName>,

    /// Domain that stands for the group (dns), such as `web.example.`. Queries for names outside it are
    /// refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,

    /// Time to live of answers (dns), in whole seconds. Clients query again after it, and not before.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "millis::<1000>")]
    pub ttl: TimeSpan,

    /// Maximum number of UDP answers per second to one client network, /24 or /56 (dns); `0` for no limit.
    /// Clients that send a DNS cookie or use TCP have no limit.
    #[schemars(range(max = 1_000_000))]
    #[serde(default = "count::<200>")]
    pub answer_rate: usize,

    /// Share of the answers above `answer_rate` that are sent truncated, so that a client retries over TCP
    /// (dns): one in this many. The others are not sent. `0` for none.
    #[schemars(range(max = 100))]
    #[serde(default = "count::<2>")]
    pub answer_slip: usize,

    /// Lifetime of a client's binding to a member. Default: `per_request` for http and xds, `per_session` for
    /// tcp, udp and iiop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingMode>,

    /// Session affinity by a cookie: clients return to their previous member (http).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<AffinityConfig>,

    /// Host and port that the balancer advertises to clients for this listener, in a group's object reference
    /// (iiop). Default: `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<MemberAddress>,

    /// Way in which a session that is bound `on_demand` leaves a member under alert.
    #[serde(default)]
    pub rebind: RebindMode,

    /// Idle time, in both directions, after which an `on_demand` connection to a member under alert may be
    /// closed so that the client reconnects (tcp). `0s` for never.
    #[schemars(extend("x-maximum" = "24h"))]
    #[serde(default = "millis::<0>")]
    pub rebind_idle: TimeSpan,

    /// Length of the kernel's queue of connections not yet accepted. The kernel limits it to
    /// `net.core.somaxconn`.
    #[schemars(range(min = 1, max = 65_535))]
    #[serde(default = "count::<4096>")]
    pub backlog: usize,

    /// Requires a PROXY protocol header (version 1 or 2) at the start of each connection, for clients that
    /// are load balancers. Connections without one are refused.
    #[serde(default)]
    pub accept_proxy: bool,

    /// Header with the urgency of a request (http): `priority` for RFC 9218's `Priority: u=1`, or a custom
    /// one. Its value is `u=` and a digit, or the digit alone, 0 (most urgent) to 7. Requests without the
    /// header have 3. Under overload, the most urgent requests are served first. Clients can forge it: name a
    /// header that only trusted clients can set. Default: none, all requests are equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<HeaderName>,

    /// Serves a client that ends its side of the connection and still waits for its answer, as some old
    /// clients do (http). Otherwise such a client counts as gone: the balancer aborts the request and closes
    /// the connection to the member.
    #[serde(default)]
    pub half_close: bool,

    /// Protocols to which a client may upgrade its connection (http). A request for another one is forwarded
    /// as if it had not requested an upgrade.
    #[serde(default = "upgrades")]
    pub upgrades: Vec<UpgradeName>,

    /// Headers that identify the client to the member (http).
    #[serde(default)]
    pub forwarded: ForwardedHeaders,

    /// Peers whose forwarding headers are kept and extended (http). Those of all others are removed.
    #[serde(default)]
    pub trusted: Vec<Network>,

    /// Maximum size of a request head (431 above) and of an answer's head (502 above), in bytes (http).
    #[schemars(range(min = 1024, max = 65536))]
    #[serde(default = "count::<32768>")]
    pub max_header_bytes: usize,

    /// Maximum number of concurrent flows (udp). At the limit, a new flow replaces one of less value, such as
    /// one that its member has never answered. If there is none, the new flow is refused. Default: as many as
    /// the limit on open files permits, at most 16384.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_flows: Option<usize>,

    /// TLS termination for clients: for https, for xds, and for tcp that is to be decrypted here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenerTls>,

    /// Timeouts towards clients.
    #[serde(default)]
    pub timeouts: ClientTimeouts,
}

fn upgrades() -> Vec<UpgradeName> {
    vec![UpgradeName("websocket".to_owned())]
}

impl ListenerConfig {
    /// Returns `true` if clients may get to this group here.
    pub fn leads_to(&self, group: &ConfigName) -> bool {
        let mut server_names = self.tls.iter().flat_map(|tls| &tls.names);
        self.main_group() == Some(group)
            || self.groups.contains(group)
            || self.routes.iter().flat_map(RouteConfig::target_groups).any(|target| target == group)
            || server_names.any(|server_name| server_name.group == *group)
    }
}

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListenerProtocol {
    /// HTTP/1.0 and HTTP/1.1: a member is chosen for each request.
    #[default]
    Http,
    /// The same over TLS.
    Https,
    /// Byte streams: a member is chosen for each connection.
    Tcp,
    /// Datagrams: a member is chosen for each flow, that is, each client address and port.
    Udp,
    /// CORBA: a client that asks for the group's object is sent to a member (LOCATION_FORWARD), or each of
    /// its requests is relayed to one (`per_request`).
    Iiop,
    /// DNS (UDP and TCP): a member is chosen for each query for `domain`, and its address is the answer.
    Dns,
    /// xDS: gRPC clients get the members with their weights (`xds:///GROUP`), connect to them directly, and
    /// report their requests.
    Xds,
}

impl ListenerProtocol {
    /// Returns the protocol as written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Dns => "dns",
            Self::Iiop => "iiop",
            Self::Xds => "xds",
        }
    }

    /// Returns `true` if the protocol carries requests one after the other.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }

    /// Returns the default binding of clients to members.
    pub fn binding(self) -> BindingMode {
        match self {
            Self::Http | Self::Https | Self::Dns | Self::Xds => BindingMode::PerRequest,
            Self::Tcp | Self::Udp | Self::Iiop => BindingMode::PerSession,
        }
    }

    /// Returns the transport, on which addresses must be unique.
    pub fn transport(self) -> &'static str {
        match self {
            Self::Http | Self::Https | Self::Tcp | Self::Iiop | Self::Xds => "tcp",
            Self::Udp => "udp",
            // DNS needs TCP, too: if only one of them is taken, the start fails with the reason.
            Self::Dns => "udp",
        }
    }

    /// Returns the default of the silence after which a client is closed. Browsers reuse connections within a
    /// minute; sessions of databases and shells pause for long; a datagram flow has no other end.
    pub fn idle(self) -> TimeSpan {
        match self {
            Self::Http | Self::Https | Self::Udp | Self::Xds => TimeSpan::millis(60_000),
            // A client with more questions asks soon (RFC 7766).
            Self::Dns => TimeSpan::millis(10_000),
            Self::Tcp | Self::Iiop => TimeSpan::millis(3_600_000),
        }
    }
}

/// Lifetime of a client's binding to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BindingMode {
    /// A member is chosen for each request (http, iiop, xds).
    PerRequest,
    /// A client's connection (http, tcp), flow (udp) or object reference (iiop) keeps its member while that
    /// is usable.
    PerSession,
    /// The same, until the member has more load than its share and this session is selected to leave.
    OnDemand,
}

impl BindingMode {
    /// Returns the binding as written.
    pub fn name(self) -> &'static str {
        match self {
            Self::PerRequest => "per_request",
            Self::PerSession => "per_session",
            Self::OnDemand => "on_demand",
        }
    }
}

/// Way in which a session leaves a member under alert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebindMode {
    /// The session's next request (http), or its first datagram after a quiet second (udp), goes to another
    /// member and the client notices nothing. A connection (tcp) is closed as `rebind_idle` allows.
    #[default]
    Silent,
    /// The answer to the session's next request carries `Connection: close`, so that the client reconnects
    /// (http): for clients that are balancers themselves.
    Close,
    /// The session's next request is answered with 307 and the address of another member that has a `public`
    /// one (http).
    Redirect,
    /// The member sends sessions away. With the answer to each report, its agent learns the part of the
    /// sessions that is to leave. The member closes the connection of an answer, and the balancer binds that
    /// client anew.
    Agent,
}

impl RebindMode {
    /// Returns the value as written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Close => "close",
            Self::Redirect => "redirect",
            Self::Agent => "agent",
        }
    }
}

/// Headers that identify the client to the member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ForwardedHeaders {
    /// `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`.
    #[default]
    #[serde(rename = "x-forwarded")]
    X,
    /// `Forwarded` (RFC 7239).
    #[serde(rename = "forwarded")]
    Rfc7239,
    /// No header is added or removed.
    #[serde(rename = "off")]
    Off,
}

/// Timeouts towards clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClientTimeouts {
    /// Timeout of a request head, from its first byte to its last (http), or of the start of a connection
    /// (xds). Limits clients that send it byte by byte.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub head: TimeSpan,

    /// Maximum time between two requests of a connection (http), without a byte in either direction (tcp),
    /// without a datagram in either direction (udp), or without a call (xds). Default: 60s for http, udp and
    /// xds, 1h for tcp.
    #[schemars(extend("x-minimum" = "1ms"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<TimeSpan>,

    /// Maximum time without a byte of the request body received or of the answer sent (http), of a message
    /// (iiop, in either direction), or of data for a client (xds).
    #[schemars(extend("x-minimum" = "1ms"))]
    pub body: TimeSpan,

    /// Maximum time without a byte in either direction on an upgraded connection, such as a WebSocket (http).
    #[schemars(extend("x-minimum" = "1ms"))]
    pub tunnel: TimeSpan,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            head: TimeSpan::millis(10_000),
            idle: None,
            body: TimeSpan::millis(30_000),
            tunnel: TimeSpan::millis(3_600_000),
        }
    }
}
