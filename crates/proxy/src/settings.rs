//! What to carry: the configuration, parsed, resolved and checked. Nothing in here can be wrong.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use plimsoll_brain::GroupSpec;
use plimsoll_wire::affinity::Signer;
use plimsoll_wire::giop::Ior;

use crate::addresses::Addresses;
use crate::tls::{ListenerTls, MemberTls};

/// The whole data plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Data-plane threads, each with its own listeners, pools and timers; at least 1. Fixed at start.
    pub threads: usize,
    /// Most client connections at once over all listeners.
    pub max_connections: usize,
    /// Most descriptors that connections of clients and to members may take at once. Above it no connection is made to a member, and no
    /// client is let in: what the process may open beyond that is for health checks, the admin side and files.
    pub max_descriptors: usize,
    /// Most bytes kept at once of what peers sent and did not finish, or asked for and do not read, over all connections.
    pub max_memory: usize,
    /// Addresses are unique per transport.
    pub listeners: Vec<ListenerSettings>,
    /// Names are unique. What is put in force anew costs as much as the groups in it that are not the very same as before.
    pub groups: Vec<Arc<GroupSettings>>,
    /// Off if `None`.
    pub access_log: Option<AccessLogSettings>,
    /// Nothing is traced if `None`, and `traceparent` passes as it comes.
    pub tracing: Option<TracingSettings>,
    /// How long requests in flight may take to end when the process stops.
    pub drain_deadline: Duration,
    /// How long connections may take to end when another process has taken over.
    pub upgrade_deadline: Duration,
}

/// One JSON line per request.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLogSettings {
    /// Appended to; created if missing; reopened on reload.
    pub path: PathBuf,
    /// Share of the requests that is written, above 0 and at most 1.
    pub sample: f64,
}

/// Which requests are traced: those whose callers trace them, and some of the others. What comes of it is to be had from
/// [`Engine::traced`](crate::Engine::traced).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracingSettings {
    /// Share of the requests that came without a trace, 0 to 1.
    pub sample: f64,
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0, 1.1 and 2; a choice per request.
    Http,
    /// Byte streams; a choice per connection.
    Tcp,
    /// Datagrams; a choice per flow (client address).
    Udp,
    /// Questions of DNS about the group, as datagrams.
    Dns,
    /// The same over TCP.
    DnsStream,
    /// GIOP 1.0 to 1.2: clients are sent to a member, or their requests are relayed ([`Binding::PerRequest`]).
    Iiop,
    /// What clients of gRPC are told of groups, and tell of them.
    Xds,
}

impl Protocol {
    /// In lower case; those that share an address are told apart.
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

    /// Over UDP?
    pub fn datagrams(self) -> bool {
        matches!(self, Self::Udp | Self::Dns)
    }
}

/// A domain that stands for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSettings {
    /// In letters, digits and such.
    pub domain: Box<str>,
    /// For how many seconds an answer is good.
    pub ttl: u32,
    /// Answers over UDP a second to each network of clients (/24, /56) that shows no cookie; 0 for as many as are asked for.
    pub rate: u32,
    /// One of so many that are above the rate is answered in short (truncated); 0 for none.
    pub slip: u32,
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
    /// Other groups that clients may ask for (xds).
    pub others: Vec<Arc<str>>,
    /// How long a client stays with a member.
    pub binding: Binding,
    /// How a client comes back to the member that it had, over any connection (http); then `binding` is per request.
    pub affinity: Option<Arc<AffinitySettings>>,
    /// Host and port that clients are told to reach it by, where they are told (iiop); its address if `None`.
    pub public: Option<(Box<str>, u16)>,
    /// Bound on demand: a connection to a member under alert may be closed once nothing has moved for so long, either
    /// way (tcp). Zero for never.
    pub move_idle: Duration,
    /// Length of the queue of connections that are not yet accepted.
    pub backlog: u32,
    /// Clients (load balancers) begin each connection with a PROXY protocol header, version 1 or 2.
    pub accept_proxy: bool,
    /// The header by which requests say how urgent they are (http), in lower case; `None` if they are not asked.
    pub priority: Option<Box<str>>,
    /// Waits on the client's side.
    pub timeouts: ClientTimeouts,
    /// Most bytes of a request head (431 above) or of an answer's head (502 above).
    pub max_head: usize,
    /// A client that ends its side still waits for its answer; otherwise it has left, and the member is told so
    /// by the end of its connection (http).
    pub half_close: bool,
    /// Protocols that a client may have its connection upgraded to (http), by their names in lower case.
    pub upgrades: Vec<Box<str>>,
    /// Which headers tell the member who the client is.
    pub forwarded: Forwarded,
    /// Peers whose own forwarding headers are kept and added to; those of others are dropped.
    pub trusted: Vec<IpNet>,
    /// Most flows at once (udp), per listener.
    pub max_flows: usize,
    /// What is asked about (dns).
    pub zone: Option<ZoneSettings>,
    /// Clients come by TLS (http, tcp, xds).
    pub tls: Option<ListenerTls>,
}

impl ListenerSettings {
    /// What is spoken, as people call it.
    pub fn label(&self) -> &'static str {
        match self.protocol {
            Protocol::Http if self.tls.is_some() => "https",
            protocol => protocol.label(),
        }
    }

    /// May clients come to this group here?
    pub fn leads_to(&self, group: &str) -> bool {
        let named = |tls: &ListenerTls| tls.groups.values().any(|named| **named == *group);
        let other = || self.others.iter().any(|other| **other == *group);
        *self.group == *group || other() || self.tls.as_ref().is_some_and(named)
    }

    /// Returns whether a client's connection may be upgraded to the protocol of this name.
    pub(crate) fn upgrades_to(&self, name: &[u8]) -> bool {
        self.upgrades.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(name))
    }

    /// All groups that clients may come to here.
    pub(crate) fn led_to(&self) -> impl Iterator<Item = &Arc<str>> {
        let named = self.tls.iter().flat_map(|tls| tls.groups.values());
        std::iter::once(&self.group).chain(&self.others).chain(named)
    }

    /// Is all that goes from here to members requests, which end by themselves?
    pub(crate) fn carries_requests(&self) -> bool {
        match self.protocol {
            Protocol::Http => true,
            Protocol::Iiop => self.binding == Binding::PerRequest,
            // What clients have with members themselves is known a second late (xds).
            Protocol::Xds | Protocol::Tcp | Protocol::Udp | Protocol::Dns | Protocol::DnsStream => false,
        }
    }

    /// Are clients told where to go, so that nothing goes to members from here?
    pub(crate) fn tells(&self) -> bool {
        matches!(self.protocol, Protocol::Xds | Protocol::Dns | Protocol::DnsStream)
    }
}

/// The cookie by which clients come back to their members.
#[derive(Clone, Debug, PartialEq)]
pub struct AffinitySettings {
    /// Its name.
    pub cookie: Box<str>,
    /// For how long it is good, whole seconds; it is given anew when half of that is over. Zero: until the client forgets it.
    pub ttl: Duration,
    /// Makes it and knows it again.
    pub signer: Signer,
    /// Know it again, too: those who have one of them get one of `signer` with their next answer.
    pub older: Vec<Signer>,
}

/// How long a client stays with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A member is chosen for each request (http, iiop).
    PerRequest,
    /// A client's connection, flow or object reference keeps its member while that may be used.
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

/// What a session's requests say of its part of its member's load: of a connection of http that is bound on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionLoad {
    /// Nothing: others may add to the load, and a request may be any part of it.
    Unknown,
    /// Loads are the requests a second that this process counts, or those by the member's capacity: the session's part of them is its part of the
    /// load.
    Own,
    /// Members tell their requests a second: the session's part is its own over those.
    Rate,
    /// Members tell that by their capacity.
    RateForSize,
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
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// Members, strategy and health rules.
    pub spec: GroupSpec,
    /// Base URLs, without a slash at the end, by which clients reach members themselves, by member.
    pub public: BTreeMap<Arc<str>, Box<str>>,
    /// Labels of members' hosts, by member; the IP address where there is none. Groups whose members are on one host are told apart.
    pub hosts: BTreeMap<Arc<str>, Arc<str>>,
    /// All addresses of members that are known by a host name which has several, by member.
    pub addresses: BTreeMap<Arc<str>, Arc<Addresses>>,
    /// How to probe members; `None` if the group has no health checks.
    pub probe: Option<ProbeSettings>,
    /// What clients of iiop listeners ask for; `None` where none is.
    pub iiop: Option<IiopSettings>,
    /// What sticks to one member, for strategies that read a key.
    pub key: Key,
    /// Waits on the members' side.
    pub timeouts: MemberTimeouts,
    /// Trying again.
    pub retry: RetrySettings,
    /// Keep from clients what members say of their load (ORCA) with their answers?
    pub strip_reports: bool,
    /// Between two looks, per thread and member, at all that a member says with its answers (ORCA), whatever it is about;
    /// `None` if nothing but what the choice needs is read.
    pub sample_reports: Option<Duration>,
    /// It follows from where the loads come from, and what they are.
    pub session_load: SessionLoad,
    /// Is the group one server behind this process, which is to say how loaded that server is? Fixed when the group is
    /// made.
    pub side_car: Option<SideCarSettings>,
    /// Who is told before a member that is drained, or under alert, loses sessions.
    pub hand_over: Option<HandOverSettings>,
    /// Do http sessions that are bound to a member stay there while it is drained?
    pub keeps_drained: bool,
    /// Requests, connections or flows a second that each member is given, with what other balancers give it; above 0.
    pub max_rate: Option<f64>,
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
    /// Members are reached by TLS (http, tcp).
    pub tls: Option<MemberTls>,
    /// Members speak HTTP/2 (http): by ALPN inside of TLS, otherwise because it is known.
    pub http2: bool,
}

/// The object that clients of a group's iiop listeners ask for, and those of the members that they get.
#[derive(Clone, Debug, PartialEq)]
pub struct IiopSettings {
    /// The key of the group's object. `None` lets every key through as it is: the server behind a side-car has objects
    /// of its own.
    pub key: Option<Vec<u8>>,
    /// Its type; may be empty.
    pub type_id: Vec<u8>,
    /// By member. In a side-car, that of the server that the group's clients come for, if it is known: those of its
    /// other objects are not sent to the group. If it is not, all are taken for the group's.
    pub objects: BTreeMap<Arc<str>, Object>,
    /// Most bytes of a message, its fragments together.
    pub max_message: usize,
    /// Connections to a member and thread above which requests that are relayed share one; at least 1.
    pub connections: usize,
    /// In a side-car: other keys of the server's object, those that it had before it was started again.
    pub former: Vec<Vec<u8>>,
    /// Where clients go that a side-car sheds: the reference of the group that its server is a member of.
    pub home: Option<Ior>,
}

impl IiopSettings {
    /// In a side-car: is the object of this key the one that the group has, too?
    pub(crate) fn is_shared(&self, key: Option<&[u8]>) -> bool {
        self.objects.is_empty()
            || self.objects.values().any(|object| key == Some(object.key()))
            || self.is_former(key)
    }

    /// What the member knows the object by that is asked for with this key; `None` if by the same.
    pub(crate) fn key_at(&self, member: &str, asked: Option<&[u8]>) -> Option<&[u8]> {
        let object = match self.key {
            Some(_) => self.objects.get(member),
            None => self.objects.values().next().filter(|_| self.is_former(asked)),
        };
        object.map(Object::key)
    }

    fn is_former(&self, key: Option<&[u8]>) -> bool {
        self.former.iter().any(|former| key == Some(former))
    }
}

/// A member's object.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    ior: Ior,
    key: Vec<u8>,
}

impl Object {
    /// `None` if it cannot be reached over IIOP.
    pub fn new(ior: Ior) -> Option<Self> {
        let key = ior.iiop()?.key;
        Some(Self { ior, key })
    }

    /// What clients are sent to.
    pub fn ior(&self) -> &Ior {
        &self.ior
    }

    /// What the member knows it by.
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

impl GroupSettings {
    /// Between two looks at all that a member says, if anybody wants to know.
    pub(crate) fn samples(&self) -> Option<Duration> {
        let usage = self.spec.strategy.reads_usage.then_some(SAMPLE);
        self.sample_reports.or(usage)
    }
}

/// Where only the strategy wants to know.
const SAMPLE: Duration = Duration::from_millis(250);

/// What this process does as the side-car of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideCarSettings {
    /// Refuse what would be too much for the server: a request with 503, a byte stream by a reset.
    pub refuse: bool,
    /// A byte stream that is to go because of an alert goes when nothing moved for so long; `None` lets them stay.
    pub shed_idle: Option<Duration>,
    /// Other groups of this kind have servers on the same host: room is promised, and found wanting, for all together.
    /// Fixed when the group is made.
    pub shares_host: bool,
    /// Base URL of the group that the server is a member of, without a slash at the end: clients of http that are to go are
    /// sent there. `None` closes their connections.
    pub home: Option<Box<str>>,
}

/// Who is told before sessions are taken from a member: `http://host:port/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOverSettings {
    /// A name, which is looked up each time, or an address without brackets.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
    /// Begins with `/`, and has a query if there is one. `{member}` in it stands for the member's name.
    pub path: Box<str>,
    /// How long an answer is waited for, looking the name up not counted.
    pub timeout: Duration,
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
    /// Asks for the member's object (LocateRequest) and expects to hear where it is.
    Iiop,
    /// GETs a path and expects a 2xx or 3xx (or the given status).
    Http {
        /// Begins with `/`.
        path: String,
        /// Value of the Host header; the member's name if `None`.
        host: Option<String>,
        /// The only status that passes, if set.
        expect: Option<u16>,
    },
    /// Asks how a service is, or the whole server if its name is empty (`grpc.health.v1.Health/Check`).
    Grpc {
        /// The service's name.
        service: String,
        /// Whom the call is for (`:authority`); the member's name if `None`.
        host: Option<String>,
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
