//! The configuration of the data plane: parsed, resolved and validated.

pub(crate) mod error;
pub(crate) mod hash_key;
mod routes;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use plimsoll_brain::GroupSpec;
use plimsoll_wire::affinity::TokenSigner;
use plimsoll_wire::giop::Ior;

use crate::net::member_addresses::MemberAddresses;
use crate::net::tls::{ListenerTls, MemberTls};

pub use routes::{
    ListenerRoutes, RedirectPath, RedirectSettings, ResponseSettings, RouteAction, RouteSettings,
};

/// The settings of the whole data plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Data-plane threads, each with its own listeners, pools and timers; at least 1. Fixed at start.
    pub threads: usize,
    /// The maximum number of client connections over all listeners.
    pub max_connections: usize,
    /// The maximum number of descriptors for connections of clients and to members. At the limit no
    /// connection to a member is made, and no client is admitted. The process's other descriptors are for
    /// health checks, the admin side and files.
    pub max_descriptors: usize,
    /// The memory budget in bytes, over all connections, for data that peers sent and did not complete, or
    /// requested and do not read.
    pub max_memory: usize,
    /// The listeners; addresses are unique per transport.
    pub listeners: Vec<ListenerSettings>,
    /// The groups; names are unique. Applying settings costs as much as those groups that are not the same
    /// allocation as before.
    pub groups: Vec<Arc<GroupSettings>>,
    /// The access log; off if `None`.
    pub access_log: Option<AccessLogSettings>,
    /// Tracing; if `None`, nothing is traced and `traceparent` is forwarded unchanged.
    pub tracing: Option<TracingSettings>,
    /// The time limit for requests in flight when the process stops.
    pub drain_deadline: Duration,
    /// The time limit for connections after a handoff to another process.
    pub upgrade_deadline: Duration,
}

/// The settings of the access log: one JSON line per request.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLogSettings {
    /// The file: appended to, created if missing, reopened on reload.
    pub path: PathBuf,
    /// The share of requests that is written, above 0 and at most 1.
    pub sample: f64,
}

/// The requests that are traced: those whose callers trace them, and a share of the others.
/// [`Engine::traces`](crate::Engine::traces) returns the results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracingSettings {
    /// The share of the requests without a trace context, 0 to 1.
    pub sample: f64,
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0, 1.1 and 2; a choice per request.
    Http,
    /// Byte streams; a choice per connection.
    Tcp,
    /// Datagrams; a choice per flow (client address).
    Udp,
    /// DNS queries about the group, as datagrams.
    Dns,
    /// DNS queries over TCP.
    DnsStream,
    /// GIOP 1.0 to 1.2: clients are redirected to a member, or their requests are relayed
    /// ([`BindingMode::PerRequest`]).
    Iiop,
    /// xDS: gRPC clients get groups' members, and report on them.
    Xds,
}

impl Protocol {
    /// Returns the name in lower case; protocols that may share an address have different names.
    pub fn label(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Dns => "dns",
            Self::DnsStream => "dns_tcp",
            Self::Iiop => "iiop",
            Self::Xds => "xds",
        }
    }

    /// Returns `true` for protocols over UDP.
    pub fn is_datagram(self) -> bool {
        matches!(self, Self::Udp | Self::Dns)
    }
}

/// A domain that stands for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSettings {
    /// The domain in ASCII.
    pub domain: Box<str>,
    /// The time to live of an answer, in seconds.
    pub ttl: u32,
    /// The answers over UDP per second for each client network (/24, /56) without a cookie; 0 for no limit.
    pub rate: u32,
    /// One of this many answers above the rate is sent truncated; 0 for none.
    pub slip: u32,
}

/// One address on which clients are accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerSettings {
    /// The address; port 0 takes a free one.
    pub address: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The name of a group in [`Settings::groups`].
    pub group: Arc<str>,
    /// The routes (HTTP); without them, all requests go to `group`.
    pub routes: Option<Arc<ListenerRoutes>>,
    /// Other groups that clients may request (xDS).
    pub others: Vec<Arc<str>>,
    /// The time for which a client stays with a member.
    pub binding: BindingMode,
    /// Session affinity over any connection (HTTP); then `binding` is per request.
    pub affinity: Option<Arc<AffinitySettings>>,
    /// The host and port of this listener in references for clients (IIOP); its address if `None`.
    pub public: Option<(Box<str>, u16)>,
    /// With binding on demand: the time without any bytes after which a connection to a member under alert
    /// may be closed (TCP). Zero for never.
    pub move_idle: Duration,
    /// The length of the queue of connections that are not yet accepted.
    pub backlog: u32,
    /// Whether clients (load balancers) begin each connection with a PROXY protocol header, version 1 or 2.
    pub accept_proxy: bool,
    /// The header with a request's urgency (HTTP), in lower case; `None` if it is not read.
    pub priority: Option<Box<str>>,
    /// The timeouts on the client's side.
    pub timeouts: ClientTimeouts,
    /// The maximum size in bytes of a request head (above: 431), or of a response head (above: 502).
    pub max_head: usize,
    /// Whether a client that closes its side still waits for its response. Otherwise it has left, and the
    /// connection to the member is closed (HTTP).
    pub half_close: bool,
    /// The protocols to which a client's connection may be upgraded (HTTP), by their names in lower case.
    pub upgrades: Vec<Box<str>>,
    /// The headers that describe the client to the member.
    pub forwarded: ForwardedHeaders,
    /// The peers whose own forwarding headers are kept and extended; those of others are dropped.
    pub trusted: Vec<IpNet>,
    /// The maximum number of flows (UDP) of the listener.
    pub max_flows: usize,
    /// The domain (DNS).
    pub zone: Option<ZoneSettings>,
    /// The TLS settings for clients (HTTP, TCP, xDS).
    pub tls: Option<ListenerTls>,
}

impl ListenerSettings {
    /// Returns the common name of the protocol.
    pub fn label(&self) -> &'static str {
        match self.protocol {
            Protocol::Http if self.tls.is_some() => "https",
            protocol => protocol.label(),
        }
    }

    /// Returns `true` if clients may reach this group here.
    pub fn leads_to(&self, group: &str) -> bool {
        let leads_by_name = |tls: &ListenerTls| tls.groups.values().any(|named| **named == *group);
        let is_alternate = || self.others.iter().any(|other| **other == *group);
        let is_routed = || self.route_groups().iter().any(|routed| **routed == *group);
        *self.group == *group || is_alternate() || is_routed() || self.tls.as_ref().is_some_and(leads_by_name)
    }

    /// Returns the settings for clients that are served by another group. Each group of a listener with
    /// routes has a cookie of its own: a request to one group does not end the affinity to a member of
    /// another.
    pub(crate) fn for_alternate(&self, group: &Arc<str>) -> Self {
        let mut settings = Self { group: Arc::clone(group), ..self.clone() };
        if let (Some(affinity), Some(routes)) = (&self.affinity, &self.routes) {
            // Without a default group, the cookie has the name of its own group, too.
            let own_suffix = format!("-{}", self.group);
            let name = match routes.has_default_group() {
                true => &affinity.cookie,
                false => affinity.cookie.strip_suffix(own_suffix.as_str()).unwrap_or(&affinity.cookie),
            };
            let cookie = format!("{name}-{group}").into_boxed_str();
            settings.affinity = Some(Arc::new(AffinitySettings { cookie, ..(**affinity).clone() }));
        }
        settings
    }

    /// Returns `true` if a client's connection may be upgraded to the protocol with this name.
    pub(crate) fn upgrades_to(&self, name: &[u8]) -> bool {
        self.upgrades.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns all groups that clients may reach here.
    pub(crate) fn reachable_groups(&self) -> impl Iterator<Item = &Arc<str>> {
        let tls_groups = self.tls.iter().flat_map(|tls| tls.groups.values());
        std::iter::once(&self.group).chain(&self.others).chain(tls_groups).chain(self.route_groups())
    }

    /// Returns the groups that routes lead to.
    pub(crate) fn route_groups(&self) -> &[Arc<str>] {
        self.routes.as_ref().map_or(&[], |routes| routes.groups())
    }

    /// Returns `true` if all traffic from here to members is requests, which end by themselves.
    pub(crate) fn carries_requests(&self) -> bool {
        match self.protocol {
            Protocol::Http => true,
            Protocol::Iiop => self.binding == BindingMode::PerRequest,
            // Clients' own traffic to members is known only a second later (xDS).
            Protocol::Xds | Protocol::Tcp | Protocol::Udp | Protocol::Dns | Protocol::DnsStream => false,
        }
    }

    /// Returns `true` if clients only learn members' addresses, so that no traffic passes through here.
    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.protocol, Protocol::Xds | Protocol::Dns | Protocol::DnsStream)
    }
}

/// The cookie of session affinity.
#[derive(Clone, Debug, PartialEq)]
pub struct AffinitySettings {
    /// The cookie's name.
    pub cookie: Box<str>,
    /// The lifetime in whole seconds; the cookie is renewed after half of it. Zero: until the client drops
    /// it.
    pub ttl: Duration,
    /// The signer of new cookies, which also verifies them.
    pub signer: TokenSigner,
    /// Verifies cookies, too: clients with one of these get one of `signer` with their next response.
    pub older: Vec<TokenSigner>,
}

/// The time for which a client stays with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingMode {
    /// A member is chosen for each request (HTTP, IIOP).
    PerRequest,
    /// A client's connection, flow or object reference keeps its member while that is usable.
    PerSession,
    /// The same, until the member is under alert and the session is due to leave.
    OnDemand(RebindMode),
}

/// The way in which a session leaves a member under alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebindMode {
    /// Its next request (HTTP), or the first datagram after an idle second (UDP), goes to another member
    /// without any effect on the client. A connection (TCP) is closed once it is idle, see
    /// [`ListenerSettings::move_idle`].
    Silent,
    /// The response to its next request carries `Connection: close`, so that the client reconnects (HTTP).
    Close,
    /// Its next request is answered with 307 to another member's public address (HTTP).
    Redirect,
    /// Not by this process: the members' side-cars are notified in the response to each report.
    Agent,
}

/// The information that a session's requests give about its share of its member's load, for an HTTP
/// connection that is bound on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionLoad {
    /// None: others may add to the load, and a request may be any part of it.
    Unknown,
    /// Loads are the requests per second that this process counts, perhaps relative to the member's capacity.
    /// The session's share of them is its share of the load.
    Own,
    /// Members report their requests per second: the session's share is its own rate relative to that.
    Rate,
    /// Members report their requests per second relative to their capacity.
    RateForSize,
}

/// The headers that describe the client to the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedHeaders {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Rfc7239,
    /// None: no header is added or removed.
    Off,
}

/// The timeouts on the client's side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientTimeouts {
    /// The time from the first byte of a request head to its last.
    pub head: Duration,
    /// The time between two requests on a connection (HTTP), without a byte in either direction (TCP), or
    /// without a datagram (UDP).
    pub idle: Duration,
    /// The time without a byte of the request body received or of the response sent.
    pub body: Duration,
    /// The time without a byte in either direction in an upgraded connection (WebSocket).
    pub tunnel: Duration,
}

/// One group and the settings for its members.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// The members, the strategy and the health rules.
    pub spec: GroupSpec,
    /// The base URLs, without a slash at the end, by which clients reach members directly, by member.
    pub public: BTreeMap<Arc<str>, Box<str>>,
    /// The labels of members' hosts, by member; the IP address if there is none. They show which groups have
    /// members on one host.
    pub hosts: BTreeMap<Arc<str>, Arc<str>>,
    /// All addresses of members whose host name has several, by member.
    pub addresses: BTreeMap<Arc<str>, Arc<MemberAddresses>>,
    /// The health checks; `None` if the group has none.
    pub probe: Option<ProbeSettings>,
    /// The object of IIOP listeners' clients; `None` without one.
    pub iiop: Option<IiopSettings>,
    /// The key, for strategies that assign keys to members.
    pub key: HashKeySource,
    /// The timeouts on the members' side.
    pub timeouts: MemberTimeouts,
    /// Retries.
    pub retry: RetrySettings,
    /// Whether load reports (ORCA) are removed from responses to clients.
    pub strip_reports: bool,
    /// The interval, per thread and member, of reading a complete load report from a response (ORCA). `None`
    /// if only the values for the choice are read.
    pub sample_reports: Option<Duration>,
    /// Derived from the source and the kind of the loads.
    pub session_load: SessionLoad,
    /// Set if the group is one server behind this process, which reports that server's load. Fixed when the
    /// group is created.
    pub side_car: Option<SideCarSettings>,
    /// The drain hook: notified before a member that is drained, or under alert, loses sessions.
    pub hand_over: Option<DrainHookSettings>,
    /// Whether HTTP sessions that are bound to a member stay there while it is drained.
    pub keeps_drained: bool,
    /// The maximum number of requests, connections or flows per second for each member, including those of
    /// other balancers; above 0.
    pub max_rate: Option<f64>,
    /// The maximum length of the wait queue when every member is at its limit; more requests are rejected. 0
    /// rejects at once.
    pub queue: usize,
    /// The maximum time in the wait queue.
    pub queue_timeout: Duration,
    /// The maximum number of idle connections per member and thread.
    pub pool: usize,
    /// The age after which idle connections are closed.
    pub pool_idle: Duration,
    /// The version (1 or 2) of the PROXY protocol header at the beginning of each connection to a member.
    pub send_proxy: Option<u8>,
    /// The TLS settings for members (HTTP, TCP).
    pub tls: Option<MemberTls>,
    /// Whether members speak HTTP/2 (HTTP): by ALPN inside of TLS, otherwise without negotiation.
    pub http2: bool,
}

/// The object of a group's IIOP listeners, and the objects of its members.
#[derive(Clone, Debug, PartialEq)]
pub struct IiopSettings {
    /// The key of the group's object. `None` forwards every key unchanged: the server behind a side-car has
    /// objects of its own.
    pub key: Option<Vec<u8>>,
    /// The object's type; may be empty.
    pub type_id: Vec<u8>,
    /// The objects by member. In a side-car: the server's object that is the group's, if known. Clients of
    /// its other objects are not redirected to the group; if unknown, all objects count as the group's.
    pub objects: BTreeMap<Arc<str>, CorbaObject>,
    /// The maximum size of a message in bytes, with all its fragments.
    pub max_message: usize,
    /// The number of connections to a member and thread from which relayed requests share one; at least 1.
    pub connections: usize,
    /// In a side-car: other keys of the server's object, from before it was restarted.
    pub former: Vec<Vec<u8>>,
    /// The target for clients that a side-car sheds: the reference of the group of its server.
    pub home: Option<Ior>,
}

impl IiopSettings {
    /// In a side-car: returns `true` if the object with this key is the group's.
    pub(crate) fn is_shared(&self, key: Option<&[u8]>) -> bool {
        self.objects.is_empty()
            || self.objects.values().any(|object| key == Some(object.key()))
            || self.is_former(key)
    }

    /// Returns the member's key of the object that is requested by this key; `None` if it is the same.
    pub(crate) fn key_at(&self, member: &str, requested_key: Option<&[u8]>) -> Option<&[u8]> {
        let object = match self.key {
            Some(_) => self.objects.get(member),
            None => self.objects.values().next().filter(|_| self.is_former(requested_key)),
        };
        object.map(CorbaObject::key)
    }

    fn is_former(&self, key: Option<&[u8]>) -> bool {
        self.former.iter().any(|candidate| key == Some(candidate))
    }
}

/// A member's object.
#[derive(Clone, Debug, PartialEq)]
pub struct CorbaObject {
    ior: Ior,
    key: Vec<u8>,
}

impl CorbaObject {
    /// Creates an object from a reference; `None` if it has no IIOP address.
    pub fn new(ior: Ior) -> Option<Self> {
        let key = ior.first_iiop_profile()?.key;
        Some(Self { ior, key })
    }

    /// Returns the reference for clients.
    pub fn ior(&self) -> &Ior {
        &self.ior
    }

    /// Returns the member's key of the object.
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

impl GroupSettings {
    /// Returns the interval of reading complete load reports, if they are used.
    pub(crate) fn sample_interval(&self) -> Option<Duration> {
        let usage_interval = self.spec.strategy.reads_usage.then_some(USAGE_SAMPLE_INTERVAL);
        self.sample_reports.or(usage_interval)
    }
}

/// The interval if only the strategy uses them.
const USAGE_SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// The settings of this process as the side-car of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideCarSettings {
    /// Whether requests beyond the server's capacity are rejected: a request with 503, a byte stream by a
    /// reset.
    pub refuse: bool,
    /// The idle time after which a byte stream leaves because of an alert; `None` lets them stay.
    pub shed_idle: Option<Duration>,
    /// Whether other groups of this kind have servers on the same host: then room is estimated for all of
    /// them together. Fixed when the group is created.
    pub shares_host: bool,
    /// The base URL, without a slash at the end, of the group of the server: HTTP clients that have to leave
    /// are redirected there. `None` closes their connections.
    pub home: Option<Box<str>>,
}

/// The drain hook, notified before a member loses sessions: `http://host:port/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainHookSettings {
    /// A name, which is resolved each time, or an address without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
    /// The path, which begins with `/`, and the query, if there is one. `{member}` in it stands for the
    /// member's name.
    pub path: Box<str>,
    /// The time limit of a response, without the name's resolution.
    pub timeout: Duration,
}

/// The settings of health checks.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeSettings {
    /// The kind of check.
    pub kind: ProbeKind,
    /// The interval between two checks of one member, jittered by a tenth.
    pub interval: Duration,
    /// The time limit of a check as a whole.
    pub timeout: Duration,
}

/// The kinds of health checks.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeKind {
    /// Connects.
    Tcp,
    /// Sends a LocateRequest for the member's object and expects its location.
    Iiop,
    /// Sends a GET and expects a 2xx or 3xx (or the given status).
    Http {
        /// The path, which begins with `/`.
        path: String,
        /// The value of the Host header; the member's name if `None`.
        host: Option<String>,
        /// The only status that passes, if set.
        expect: Option<u16>,
    },
    /// Queries the health of a service, or of the whole server if its name is empty
    /// (`grpc.health.v1.Health/Check`).
    Grpc {
        /// The service's name.
        service: String,
        /// The value of `:authority`; the member's name if `None`.
        host: Option<String>,
    },
}

/// The kinds of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKeySource {
    /// The client's IP address.
    Client,
    /// The request target without the query.
    Path,
    /// A request header, by lower-case name; the client's address if it is missing.
    Header(String),
    /// A cookie, by name; the client's address if it is missing.
    Cookie(String),
}

/// The timeouts on the members' side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberTimeouts {
    /// The time limit of a connection attempt.
    pub connect: Duration,
    /// The time limit of one attempt: from sending the request to the end of the response's head. Zero for
    /// none.
    pub per_try: Duration,
    /// The time limit from reading the request head to the last byte of the response. Zero for none.
    pub total: Duration,
    /// The time without a byte of the response received or of the request sent.
    pub idle: Duration,
}

/// The settings of retries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrySettings {
    /// The number of attempts after the first; 0 for none.
    pub attempts: u32,
    /// The retry budget, as a share of the requests of the last ten seconds.
    pub budget: f64,
    /// The retries per second that are always allowed.
    pub min_per_second: f64,
}
