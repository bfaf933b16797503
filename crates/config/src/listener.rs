//! `[[listener]]`: addresses to accept clients on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::root::{count, millis};
use super::{
    AffinityConfig, ConfigName, Domain, HeaderName, ListenAddress, ListenerTls, MemberAddress, Network,
    TimeSpan, UpgradeName,
};

/// An address to accept clients on, and the group they are sent to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerConfig {
    /// IP address and port. Port 0 takes a free one.
    pub address: ListenAddress,

    /// What is spoken.
    #[serde(default)]
    pub protocol: ListenerProtocol,

    /// Name of the group that serves this listener.
    pub group: ConfigName,

    /// Other groups that clients may ask for by their names (xds).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ConfigName>,

    /// The domain that stands for the group (dns), such as `web.example.`; questions about names beside it
    /// are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,

    /// For how long an answer is good (dns), in whole seconds. Clients ask again after that, and not before.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "millis::<1000>")]
    pub ttl: TimeSpan,

    /// Most answers over UDP in a second to one network of clients, /24 or /56 (dns); `0` for any number.
    /// Whoever shows a DNS cookie or asks over TCP has no limit.
    #[schemars(range(max = 1_000_000))]
    #[serde(default = "count::<200>")]
    pub answer_rate: usize,

    /// Of the answers above `answer_rate` one in so many is sent truncated, so that a client asks again over
    /// TCP (dns); the others are not sent. `0` for none.
    #[schemars(range(max = 100))]
    #[serde(default = "count::<2>")]
    pub answer_slip: usize,

    /// How long a client stays with a member. Default: `per_request` for http and xds, `per_session` for tcp,
    /// udp and iiop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingMode>,

    /// Clients come back to the member that they had, by a cookie (http).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<AffinityConfig>,

    /// Host and port that clients are to reach this listener by, where they are told: in a group's object
    /// reference (iiop). Default: `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<MemberAddress>,

    /// How a session that is bound `on_demand` leaves a member under alert.
    #[serde(default)]
    pub rebind: RebindMode,

    /// Bound `on_demand`, a connection to a member under alert may be closed once nothing has moved on it for
    /// so long, either way, so that the client connects again (tcp). `0s` for never.
    #[schemars(extend("x-maximum" = "24h"))]
    #[serde(default = "millis::<0>")]
    pub move_idle: TimeSpan,

    /// Length of the kernel's queue of connections not yet accepted. The kernel cuts it to
    /// `net.core.somaxconn`.
    #[schemars(range(min = 1, max = 65_535))]
    #[serde(default = "count::<4096>")]
    pub backlog: usize,

    /// Clients are load balancers that begin each connection with a PROXY protocol header (version 1 or 2).
    /// Connections without one are refused.
    #[serde(default)]
    pub accept_proxy: bool,

    /// The header by which requests say how urgent they are (http): `priority` for RFC 9218's `Priority:
    /// u=1`, or one of your own, with `u=` and a digit or the digit alone, 0 (most urgent) to 7; those that
    /// say nothing have 3. Where there is more to do than can be done the most urgent are served first.
    /// Clients may lie: name a header that only those you trust can set. Default: none, all are alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<HeaderName>,

    /// A client that ends its side of the connection still waits for its answer, as some old ones do (http).
    /// Otherwise it has left: the request is given up, and the member is told so by the end of its
    /// connection.
    #[serde(default)]
    pub half_close: bool,

    /// Protocols that a client may have its connection upgraded to (http). A request for another one goes on
    /// as if it had not asked.
    #[serde(default = "upgrades")]
    pub upgrades: Vec<UpgradeName>,

    /// Headers that tell the member who the client is (http).
    #[serde(default)]
    pub forwarded: ForwardedHeaders,

    /// Peers whose own forwarding headers are kept and added to; those of all others are dropped (http).
    #[serde(default)]
    pub trusted: Vec<Network>,

    /// Most bytes of a request head (431 above) and of an answer's head (502 above) (http).
    #[schemars(range(min = 1024, max = 65536))]
    #[serde(default = "count::<32768>")]
    pub max_head: usize,

    /// Most flows at once (udp). When it is reached a new flow takes the place of one that is worth less,
    /// such as one that its member has never answered; where there is none, it is refused. Default: as many
    /// as the limit on open files leaves room for, at most 16384.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_flows: Option<usize>,

    /// Clients come by TLS: for https, for xds, and for tcp that is to be decrypted here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenerTls>,

    /// How long to wait for clients.
    #[serde(default)]
    pub timeouts: ClientTimeouts,
}

fn upgrades() -> Vec<UpgradeName> {
    vec![UpgradeName("websocket".to_owned())]
}

impl ListenerConfig {
    /// Returns `true` if clients may get to this group here.
    pub fn leads_to(&self, group: &ConfigName) -> bool {
        let mut named = self.tls.iter().flat_map(|tls| &tls.names);
        self.group == *group || self.groups.contains(group) || named.any(|named| named.group == *group)
    }
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListenerProtocol {
    /// HTTP/1.0 and HTTP/1.1: a member is chosen for each request.
    #[default]
    Http,
    /// The same inside of TLS.
    Https,
    /// Byte streams: a member is chosen for each connection.
    Tcp,
    /// Datagrams: a member is chosen for each flow, that is, each client address and port.
    Udp,
    /// CORBA: a client that asks for the group's object is sent to a member (LOCATION_FORWARD), or each of
    /// its requests is relayed to one (`per_request`).
    Iiop,
    /// DNS (UDP and TCP): a member is chosen for each question about `domain`, and its address is the answer.
    Dns,
    /// xDS: clients of gRPC are told how often to choose whom (`xds:///GROUP`), go there themselves, and
    /// report what they did.
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

/// How long a client stays with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BindingMode {
    /// A member is chosen for each request (http, iiop, xds).
    PerRequest,
    /// A client's connection (http, tcp), flow (udp) or object reference (iiop) keeps its member while that
    /// may be used.
    PerSession,
    /// The same, until the member has more load than its share and it is this session's turn to go.
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

/// How a session leaves a member under alert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebindMode {
    /// Its next request (http) or the first datagram after a quiet second (udp) goes elsewhere and the client
    /// notices nothing; a connection (tcp) is closed as `move_idle` allows.
    #[default]
    Silent,
    /// The answer to its next request carries `Connection: close`, so that the client connects again (http):
    /// for clients that are balancers themselves.
    Close,
    /// Its next request is answered with 307 and the address of another member that has a `public` one
    /// (http).
    Redirect,
    /// When its member closes the connection that its answer came by: members' agents are told with the
    /// answer to each report which part of the sessions is to go, and the balancer binds a client anew that
    /// one has sent away.
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

/// Which headers tell the member who the client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ForwardedHeaders {
    /// `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`.
    #[default]
    #[serde(rename = "x-forwarded")]
    X,
    /// `Forwarded` (RFC 7239).
    #[serde(rename = "forwarded")]
    Rfc7239,
    /// None is added and none is removed.
    #[serde(rename = "off")]
    Off,
}

/// How long to wait for clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClientTimeouts {
    /// From the first byte of a request head to its last (http), for a connection to begin (xds). Bounds
    /// clients that send it byte by byte.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub head: TimeSpan,

    /// Between two requests of a connection (http), without a byte either way (tcp), without a datagram
    /// either way (udp), without a call (xds). Default: 60s for http, udp and xds, 1h for tcp.
    #[schemars(extend("x-minimum" = "1ms"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<TimeSpan>,

    /// Without a byte of the request body coming in or of the answer going out (http), of a message either
    /// way (iiop), of what a client is told (xds).
    #[schemars(extend("x-minimum" = "1ms"))]
    pub body: TimeSpan,

    /// Without a byte either way in an upgraded connection, such as a WebSocket (http).
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
