//! What to carry: the configuration, parsed, resolved and checked. Nothing in here can be wrong.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use plimsoll_brain::GroupSpec;

/// The whole data plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Data-plane threads, each with its own listeners, pools and timers; at least 1. Fixed at start.
    pub threads: usize,
    /// Most client connections at once over all listeners.
    pub max_connections: usize,
    /// Addresses are unique per transport.
    pub listeners: Vec<ListenerSettings>,
    /// Names are unique.
    pub groups: Vec<GroupSettings>,
    /// Off if `None`.
    pub access_log: Option<AccessLogSettings>,
    /// How long requests in flight may take to end when the process stops.
    pub drain_deadline: Duration,
}

/// One JSON line per request.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLogSettings {
    /// Appended to; created if missing; reopened on reload.
    pub path: PathBuf,
    /// Share of the requests that is written, above 0 and at most 1.
    pub sample: f64,
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 and 1.1; a choice per request.
    Http,
    /// Byte streams; a choice per connection.
    Tcp,
    /// Datagrams; a choice per flow (client address).
    Udp,
}

/// One address to accept clients on.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerSettings {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// What is spoken.
    pub protocol: Protocol,
    /// Name of a group in [`Settings::groups`].
    pub group: Arc<str>,
    /// How long a client stays with a member.
    pub binding: Binding,
    /// Bound on demand: a connection to a member under alert may be closed once nothing has moved for so long, either
    /// way (tcp). Zero for never.
    pub move_idle: Duration,
    /// Length of the queue of connections that are not yet accepted.
    pub backlog: u32,
    /// Clients (load balancers) begin each connection with a PROXY protocol header, version 1 or 2.
    pub accept_proxy: bool,
    /// Waits on the client's side.
    pub timeouts: ClientTimeouts,
    /// Most bytes of a request head (431 above) or of an answer's head (502 above).
    pub max_head: usize,
    /// Which headers tell the member who the client is.
    pub forwarded: Forwarded,
    /// Peers whose own forwarding headers are kept and added to; those of others are dropped.
    pub trusted: Vec<IpNet>,
    /// Most flows at once (udp), per listener.
    pub max_flows: usize,
}

/// How long a client stays with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A member is chosen for each request (http).
    PerRequest,
    /// A client's connection or flow keeps its member while that may be used.
    PerSession,
    /// The same, until the member is under alert and it is the session's turn to go.
    OnDemand(Rebind),
}

/// How a session leaves a member under alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebind {
    /// Its next request (http) or the first datagram after a quiet second (udp) goes elsewhere, and the client notices
    /// nothing; a connection (tcp) is closed once it is quiet, see [`ListenerSettings::move_idle`].
    Silent,
    /// The answer to its next request carries `Connection: close`, so that the client connects again (http).
    Close,
    /// Its next request is answered with 307 to another member's public address (http).
    Redirect,
    /// Not by this process: the members' side-cars are told with the answer to each report.
    Agent,
}

/// Which headers tell the member who the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Rfc7239,
    /// None is added; none is removed.
    Off,
}

/// How long to wait for a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientTimeouts {
    /// From the first byte of a request head to its last.
    pub head: Duration,
    /// Between two requests on a connection (http), without a byte either way (tcp), without a datagram (udp).
    pub idle: Duration,
    /// Without a byte of the request body coming in or of the answer going out.
    pub body: Duration,
    /// Without a byte either way in an upgraded connection (WebSocket).
    pub tunnel: Duration,
}

/// One group and how to reach its members.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    /// Members, strategy and health rules.
    pub spec: GroupSpec,
    /// Base URLs, without a slash at the end, by which clients reach members themselves, by member.
    pub public: BTreeMap<Arc<str>, Box<str>>,
    /// How to probe members; `None` if the group has no health checks.
    pub probe: Option<ProbeSettings>,
    /// What sticks to one member, for strategies that read a key.
    pub key: Key,
    /// Waits on the members' side.
    pub timeouts: MemberTimeouts,
    /// Trying again.
    pub retry: RetrySettings,
    /// Keep from clients what members say of their load (ORCA) with their answers?
    pub strip_reports: bool,
    /// Is the group one server behind this process, which is to say how loaded that server is? Fixed when the group is
    /// made.
    pub side_car: Option<SideCarSettings>,
    /// Requests that wait when every member is at its limit; more are refused. 0 refuses at once.
    pub queue: usize,
    /// How long they wait.
    pub queue_timeout: Duration,
    /// Idle connections kept per member and thread.
    pub pool: usize,
    /// Idle connections older than this are closed.
    pub pool_idle: Duration,
    /// Begin each connection to a member with a PROXY protocol header of this version (1 or 2).
    pub send_proxy: Option<u8>,
}

/// What this process does as the side-car of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideCarSettings {
    /// Refuse what would be too much for the server: a request with 503, a byte stream by a reset.
    pub refuse: bool,
    /// A byte stream that is to go because of an alert goes when nothing moved for so long; `None` lets them stay.
    pub shed_idle: Option<Duration>,
}

/// How to probe members.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeSettings {
    /// What a probe does.
    pub kind: ProbeKind,
    /// Between two probes of one member; each wait is jittered by a tenth.
    pub interval: Duration,
    /// For one probe as a whole.
    pub timeout: Duration,
}

/// What a probe does.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeKind {
    /// Connects.
    Tcp,
    /// GETs a path and expects a 2xx or 3xx (or the given status).
    Http {
        /// Begins with `/`.
        path: String,
        /// Value of the Host header; the member's name if `None`.
        host: Option<String>,
        /// The only status that passes, if set.
        expect: Option<u16>,
    },
}

/// What sticks to one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The client's IP address.
    Client,
    /// The request target without the query.
    Path,
    /// A request header, by lower-case name; the client's address where it is missing.
    Header(String),
    /// A cookie, by name; the client's address where it is missing.
    Cookie(String),
}

/// How long to wait for a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberTimeouts {
    /// For a connection to be made.
    pub connect: Duration,
    /// For one try: from the request being sent to the end of the answer's head. Zero for none.
    pub per_try: Duration,
    /// From the request head being read to the last byte of the answer. Zero for none.
    pub total: Duration,
    /// Without a byte of the answer coming in or of the request going out.
    pub idle: Duration,
}

/// Trying again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrySettings {
    /// Tries after the first; 0 for none.
    pub attempts: u32,
    /// Retries allowed as a share of the requests of the last ten seconds.
    pub budget: f64,
    /// Retries allowed per second whatever the share says.
    pub min_per_second: f64,
}
