//! The file of a lottery's daemon, `lottery.toml`. It is read like the balancer's: checked against a schema,
//! then as a whole. The options of a command line are checked in the same way.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use plimsoll_agent::{Cgroup, ScrapeConfig};
use plimsoll_brain::HealthSpec;
use plimsoll_cluster::Expression;
use plimsoll_cluster::lottery as cluster;
use plimsoll_proxy::{ProbeSettings, check_once};
use plimsoll_wire::rfs::{KeyRing, service_id};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::health;
use super::spans::SpanTree;
use super::{
    AdminListen, CgroupName, CheckedValue, ConfigDiagnostic, ConfigDiagnostics, ConfigName, ControlConfig,
    ExpressionText, FilePath, HealthConfig, ListenAddress, MemberAddress, MetricText, PageUrl, ReadError,
    ServiceText, SourceText, TimeSpan, admin_endpoints, bytes_of, expression, read_checked, titled,
};

/// The file for commands that talk to a daemon, if no other is named.
pub const DEFAULT_LOTTERY_FILE: &str = "lottery.toml";

/// Configuration of a lottery daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LotteryConfig {
    /// Number of the daemon and of the server beside it, unique in the cluster.
    #[schemars(range(min = 1, max = 65_535))]
    pub member: u16,

    /// Address of the daemon, to which clients and other daemons send.
    pub listen: ListenAddress,

    /// Address at which the others reach the daemon, if it differs from `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<MemberAddress>,

    /// Addresses of other daemons; one that runs is enough to find all. With `multicast`, only those that it
    /// does not reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<MemberAddress>,

    /// Multicast group and port of all daemons, such as `239.255.74.47:7447`, if the network carries
    /// multicast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<ListenAddress>,

    /// File of the cluster's keys, identical on all hosts. If it is missing, and the daemon has neither
    /// `peers` nor `multicast`, the daemon creates it, with a new key.
    #[schemars(extend("examples" = ["/etc/plimsoll/lottery.keys"]))]
    pub keys: FilePath,

    /// Time for which a client may reuse an answer. 0s: each request is drawn.
    #[schemars(extend("x-maximum" = "65s"))]
    #[serde(default = "none")]
    pub ttl: TimeSpan,

    /// Duration over which the share of a new or recovered server rises to its full value.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "slow_start")]
    pub slow_start: TimeSpan,

    /// Maximum number of requests per second from one client address; further ones are ignored. 0 for no
    /// limit.
    #[schemars(range(max = 10_000_000))]
    #[serde(default = "rate")]
    pub rate: u32,

    /// Address that accepts numbers from programs of this machine (`POST /v1/report`). Its `/load` and
    /// `/metrics` show these, the sensors' readings and the daemon's counters. `off` for none, which is the
    /// default.
    #[serde(default = "off")]
    pub status: AdminListen,

    /// Control of the daemon.
    #[serde(default)]
    pub admin: ControlConfig,

    /// Services of the server beside the daemon. Without any, the daemon only refers clients to others.
    #[serde(default, rename = "service")]
    pub services: Vec<ServiceConfig>,
}

/// A service of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// Name of the service, which clients request.
    pub name: ConfigName,

    /// Number of the service in datagrams. Default: the first 32 bits of the SHA-256 of its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,

    /// Address at which clients reach the server.
    pub server: MemberAddress,

    /// Capacity of the server relative to the others, in any unit.
    #[schemars(range(max = 65_535))]
    #[serde(default = "capacity")]
    pub capacity: u16,

    /// Text for the applications of the service's clients, at most 48 bytes, sent with each answer that names
    /// this server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<ServiceText>,

    /// Load of the server, as a share of its capacity: a number that sensors read or programs report (such as
    /// `cpu`), or an expression over several. Without it, shares follow the capacities alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<ExpressionText>,

    /// URL of the server's page in Prometheus' text format, read each second. `metrics` selects the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrape: Option<PageUrl>,

    /// Numbers to take from the page at `scrape`: `SERIES`, `NAME=SERIES{label="value"}` or, for a counter,
    /// `NAME=rate(SERIES)`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricText>,

    /// Control group (version 2) of the server, whose processors, memory and pressure are read:
    /// `system.slice/nginx.service`, `auto` for that of a container, which is the default, or `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupName>,

    /// Local port whose established connections are counted.
    #[schemars(range(min = 1, max = 65_535))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,

    /// Health checks of the server: `http`, `grpc` or `tcp`. A server that has not been checked yet gets
    /// nothing. Without this section the server always counts as up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthConfig>,
}

fn none() -> TimeSpan {
    TimeSpan::millis(0)
}

fn slow_start() -> TimeSpan {
    TimeSpan::millis(10_000)
}

fn rate() -> u32 {
    20_000
}

fn capacity() -> u16 {
    100
}

fn off() -> AdminListen {
    AdminListen(None)
}

/// A file that was read and checked.
#[derive(Debug)]
pub struct LotteryFile {
    /// The configuration, defaults filled in.
    pub lottery: LotteryConfig,
    /// Warnings only.
    pub warnings: ConfigDiagnostics,
    source: Arc<SourceText>,
    spans: SpanTree,
}

/// Reads and checks a file; `-` is standard input.
pub fn read_lottery(path: &Path) -> Result<LotteryFile, ReadError> {
    let (name, bytes) = bytes_of(path)?;
    // Lines of a file of keys must not be shown.
    if std::str::from_utf8(&bytes).is_ok_and(|text| text.parse::<KeyRing>().is_ok()) {
        return Err(ReadError::Io(format!(
            "{name} is a file of keys, not a configuration: give it by --keys"
        )));
    }
    read_lottery_text(&name, bytes).map_err(ReadError::Wrong)
}

/// Checks the contents of a file; `name` is its name in errors.
pub fn read_lottery_text(name: &str, bytes: Vec<u8>) -> Result<LotteryFile, ConfigDiagnostics> {
    let CheckedValue { value: lottery, spans: root_spans, problems: mut diagnostics, source } =
        read_checked(schema(), name, bytes)?;
    check_parts(&lottery, &root_spans, source.text(), &mut diagnostics);
    let problems = ConfigDiagnostics::new(Arc::clone(&source), diagnostics);
    if problems.has_errors() {
        Err(problems)
    } else {
        Ok(LotteryFile { lottery, warnings: problems, source, spans: root_spans })
    }
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> =
        LazyLock::new(|| titled(schemars::schema_for!(LotteryConfig), "lottery.toml"));
    &SCHEMA
}

/// Checks the parts against one another.
fn check_parts(
    lottery: &LotteryConfig,
    root_spans: &SpanTree,
    text: &str,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let listen = lottery.listen.0;
    if listen.ip().is_unspecified() && lottery.address.is_none() && !root_spans.is_broken("address") {
        let message = format!("`listen` is {listen}, which tells the others nothing");
        let hint = "add address = \"…\" with the address by which they reach it, or listen there";
        diagnostics.push(ConfigDiagnostic::error(root_spans.key("listen").value_span(), message).hint(hint));
    }
    if let Some(ListenAddress(group)) = lottery.multicast {
        let multicast_span = root_spans.key("multicast").value_span();
        if !group.ip().is_multicast() {
            let hint = "write an address from 239.0.0.0/8, or ff05::/16 and its like";
            diagnostics.push(
                ConfigDiagnostic::error(multicast_span, format!("{} is not a multicast address", group.ip()))
                    .hint(hint),
            );
        } else if group.is_ipv4() != listen.is_ipv4() {
            diagnostics.push(
                ConfigDiagnostic::error(multicast_span, "the group is of another family than `listen`")
                    .with_related(root_spans.key("listen").value_span(), "this is where it listens"),
            );
        }
    }
    if lottery.services.len() > cluster::MAX_SERVICES {
        let message =
            format!("{} services, where {} are the most", lottery.services.len(), cluster::MAX_SERVICES);
        diagnostics.push(
            ConfigDiagnostic::error(root_spans.key("service").value_span(), message)
                .hint("start a second daemon"),
        );
    }
    let infos =
        || lottery.services.iter().map(|service| service.info.as_ref().map_or(0, |info| info.0.len()));
    let (bytes, room) = cluster::table_bytes(infos());
    if lottery.services.len() <= cluster::MAX_SERVICES && bytes > room {
        let last_index =
            lottery.services.iter().rposition(|service| service.info.is_some()).unwrap_or_default();
        let message = format!(
            "{} services and what they say to clients take {bytes} bytes, where {room} go into a datagram",
            lottery.services.len()
        );
        let problem = ConfigDiagnostic::error(
            root_spans.key("service").item(last_index).key("info").value_span(),
            message,
        );
        diagnostics.push(problem.hint("say less, or start a second daemon"));
    }
    admin_endpoints::check(&lottery.admin.control_section(), root_spans.key("admin"), diagnostics);
    let mut numbers_seen: HashMap<u32, usize> = HashMap::new();
    for (index, service) in lottery.services.iter().enumerate() {
        let spans = root_spans.key("service").item(index);
        if let Some(first) = numbers_seen.insert(service.number(), index) {
            let first_span = root_spans.key("service").item(first).key("name").value_span();
            let message = format!("a second service with the number {}", service.number());
            diagnostics.push(
                ConfigDiagnostic::error(spans.key("name").value_span(), message)
                    .with_related(first_span, "the first is here"),
            );
        }
        if let Some(load) = service.load.as_ref().filter(|_| !spans.is_broken("load")) {
            expression::check(load, spans.key("load"), text, diagnostics);
        }
        for (key, other_key, is_alone) in [
            ("scrape", "metrics", service.scrape.is_some() && service.metrics.is_empty()),
            ("metrics", "scrape", service.scrape.is_none() && !service.metrics.is_empty()),
        ] {
            if is_alone && !spans.is_broken(other_key) {
                let problem = ConfigDiagnostic::error(
                    spans.key(key).value_span(),
                    format!("`{key}` without `{other_key}`"),
                );
                diagnostics.push(problem.hint(match other_key {
                    "metrics" => "add metrics = [\"NAME=SERIES\"] with what to take from the page",
                    _ => "add scrape = \"http://HOST:PORT/PATH\" with the page that they are on",
                }));
            }
        }
        let Some(health) = &service.health else { continue };
        let health_spans = spans.key("health");
        let hint = "add http = \"/healthz\", grpc = \"\" or tcp = true";
        health::check(health, health_spans, "[service.health]", hint, diagnostics);
        if health.iiop {
            let problem = ConfigDiagnostic::error(
                health_spans.key_span("iiop"),
                "a lottery daemon checks by http, grpc or tcp",
            );
            diagnostics.push(problem.hint("it knows no object to ask for: write tcp = true"));
        }
    }
}

impl ServiceConfig {
    /// Returns its number in datagrams.
    pub fn number(&self) -> u32 {
        self.id.unwrap_or_else(|| service_id(&self.name.0))
    }

    /// Returns the configuration of an agent beside this server alone, if it has sensors of its own.
    pub fn sensor_config(&self) -> Option<plimsoll_agent::AgentConfig> {
        let Self { scrape, metrics, cgroup, port, .. } = self;
        (scrape.is_some() || cgroup.is_some() || port.is_some()).then(|| plimsoll_agent::AgentConfig {
            scrape: scrape.as_ref().map(|page| ScrapeConfig {
                url: page.0.clone(),
                metrics: metrics.iter().map(|metric| metric.metric.clone()).collect(),
            }),
            cgroup: cgroup.as_ref().map_or(Cgroup::Auto, CgroupName::cgroup),
            port: *port,
            ..plimsoll_agent::AgentConfig::default()
        })
    }

    /// Returns the prefix of numbers of this service alone: its name, with `_` for characters that names of
    /// numbers cannot have.
    pub fn prefix(&self) -> String {
        prefix(&self.name.0)
    }

    /// Returns the expression of its load, if it has one.
    pub fn load(&self) -> Option<Expression> {
        // The expression was checked when the file was read.
        self.load.as_ref().and_then(|load| Expression::new(&load.0).ok())
    }
}

/// Returns the prefix of the numbers of a service.
pub fn prefix(service: &str) -> String {
    let sanitize = |char: char| if char.is_ascii_alphanumeric() || "_.:".contains(char) { char } else { '_' };
    service.chars().map(sanitize).chain(['.']).collect()
}

impl LotteryFile {
    /// Returns the file's name in messages.
    pub fn name(&self) -> &str {
        self.source.name()
    }

    /// Returns the file of keys.
    pub fn keys(&self) -> PathBuf {
        self.lottery.keys.0.clone()
    }

    /// Returns the daemon's settings, with the cluster's keys.
    ///
    /// # Errors
    /// Fails if `resolve` cannot turn names into addresses, each with its place in the file.
    pub fn settings(
        &self,
        keys: KeyRing,
        mut resolve: impl FnMut(&MemberAddress) -> io::Result<SocketAddr>,
    ) -> Result<cluster::DaemonSettings, ConfigDiagnostics> {
        let mut peers = Vec::new();
        for peer in &self.lottery.peers {
            match resolve(peer) {
                Ok(address) => peers.push(address),
                // The others can be looked up: a host that is gone must keep none from starting.
                Err(error) => tracing::warn!("cannot look up the peer `{}`: {error}", peer.host),
            }
        }
        let mut problems = Vec::new();
        let mut resolve_address = |address: &MemberAddress, spans: &SpanTree| match resolve(address) {
            Ok(resolved) => Some(resolved),
            Err(error) => {
                let message = format!("cannot look up `{}`: {error}", address.host);
                let hint = "correct the name, or write an IP address";
                problems.push(ConfigDiagnostic::error(spans.value_span(), message).hint(hint));
                None
            }
        };
        let lottery = &self.lottery;
        let address =
            lottery.address.as_ref().and_then(|address| resolve_address(address, self.spans.key("address")));
        let services = lottery.services.iter().enumerate().filter_map(|(index, service)| {
            let spans = self.spans.key("service").item(index).key("server");
            Some(cluster::LotteryService {
                name: service.name.0.as_str().into(),
                id: service.number(),
                server: resolve_address(&service.server, spans)?,
                capacity: service.capacity,
                info: service.info.as_ref().map_or_else(|| [].into(), |info| info.0.as_bytes().into()),
                check: service.health.as_ref().map(|health| check_of(health, &service.server)),
            })
        });
        let services = services.collect();
        if !problems.is_empty() {
            return Err(ConfigDiagnostics::new(Arc::clone(&self.source), problems));
        }
        Ok(cluster::DaemonSettings {
            member: lottery.member,
            incarnation: cluster::incarnation(),
            listen: lottery.listen.0,
            address,
            peers,
            multicast: lottery.multicast.map(|group| group.0),
            keys,
            services,
            ttl: lottery.ttl.0,
            slow_start: lottery.slow_start.0,
            rate: lottery.rate,
        })
    }
}

fn check_of(health: &HealthConfig, server: &MemberAddress) -> cluster::HealthCheck {
    cluster::HealthCheck {
        by: Arc::new(ServerProbe { settings: health.settings(), name: server.to_string() }),
        interval: health.interval.0,
        spec: HealthSpec { rise: health.rise, fall: health.fall },
    }
}

/// The check of a lottery's server, which is that of a group's member.
struct ServerProbe {
    settings: ProbeSettings,
    name: String,
}

/// Formats the settings that identify a check; the name is the server's address.
impl fmt::Debug for ServerProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl cluster::HealthChecker for ServerProbe {
    fn check(&self, server: SocketAddr) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(check_once(&self.settings, &self.name, server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: &str = "member = 3\nlisten = \"127.0.0.1:7447\"\nkeys = \"/etc/plimsoll/lottery.keys\"\n";

    fn errors_of(text: &str) -> String {
        let outcome = read_lottery_text("lottery.toml", text.as_bytes().to_vec());
        outcome.expect_err("it is wrong").to_string()
    }

    #[test]
    fn a_short_file_says_all() {
        let text = format!("{SHORT}[[service]]\nname = \"web\"\nserver = \"127.0.0.1:80\"\n");
        let file = read_lottery_text("x", text.into()).expect("it is right");
        let keys: KeyRing = format!("1 {}", "0".repeat(64)).parse().expect("a key");
        let settings = file.settings(keys, super::super::look_up).expect("addresses");
        assert_eq!((settings.member, settings.rate, settings.services[0].capacity), (3, 20_000, 100));
        assert_eq!(settings.services[0].id, 0x4b5e_57f6);
        assert!(settings.services[0].check.is_none() && file.lottery.services[0].load().is_none());
    }

    #[test]
    fn what_services_say_to_clients_has_to_fit() {
        let service = |number: usize, info: &str| {
            format!("[[service]]\nname = \"s{number}\"\nserver = \"10.0.0.1:80\"\ninfo = \"{info}\"\n")
        };
        let services = |count: usize, len: usize| {
            let services_text: String = (0..count).map(|number| service(number, &"x".repeat(len))).collect();
            format!("{SHORT}{services_text}")
        };
        let read_text = |text: String| read_lottery_text("lottery.toml", text.into());
        let file = read_text(services(15, 48)).expect("they fit");
        let keys: KeyRing = format!("1 {}", "0".repeat(64)).parse().expect("a key");
        let settings = file.settings(keys, super::super::look_up).expect("addresses");
        assert_eq!(*settings.services[14].info, [b'x'; 48]);
        let error_text = errors_of(&services(16, 48));
        assert!(
            error_text.contains("16 services and what they say to clients take 1226 bytes, where 1155"),
            "{error_text}"
        );
        let error_text = errors_of(&services(1, 49));
        assert!(error_text.contains("has 49 bytes, where 48 have room in an answer"), "{error_text}");
    }

    #[test]
    fn what_is_wrong_is_shown_where_it_is() {
        insta::assert_snapshot!(errors_of(&format!(
            "{}peers = [\"10.0.0.2\"]\nmulticast = \"239.1.1.1:7447\"\n\
             [[service]]\nname = \"web\"\nserver = \"10.0.0.1:80\"\nload = \"cpu +\"\n\
             [service.health]\niiop = true\n\
             [[service]]\nname = \"web\"\nserver = \"10.0.0.1:81\"\nports = 1\nscrape = \
             \"http://[::1]:9/\"\n",
            SHORT.replace("127.0.0.1", "[::]")
        )), @r#"
        error: lottery.toml:2:10: `listen` is [::]:7447, which tells the others nothing
            2 | listen = "[::]:7447"
              |          ^^^^^^^^^^^ add address = "…" with the address by which they reach it, or listen there
        error: lottery.toml:4:10: `peers`: `10.0.0.2` has no port
            4 | peers = ["10.0.0.2"]
              |          ^^^^^^^^^^ a host and a port, such as "10.0.0.1:80"
        error: lottery.toml:5:13: the group is of another family than `listen`
            5 | multicast = "239.1.1.1:7447"
              |             ^^^^^^^^^^^^^^^^
            2 | listen = "[::]:7447"
              |          ^^^^^^^^^^^ this is where it listens
        error: lottery.toml:9:13: `cpu +` is not an expression: unexpected end of input, expected expression
            9 | load = "cpu +"
              |             ^ such as cpu * 0.7 + in_flight / 100
        error: lottery.toml:11:1: a lottery daemon checks by http, grpc or tcp
           11 | iiop = true
              | ^^^^ it knows no object to ask for: write tcp = true
        error: lottery.toml:13:8: a second service with the number 1264474102
           13 | name = "web"
              |        ^^^^^
            7 | name = "web"
              |        ^^^^^ the first is here
        error: lottery.toml:15:1: unknown key `ports` in [service]
           15 | ports = 1
              | ^^^^^ did you mean `port`?   allowed: capacity, cgroup, health, id, info, load, metrics, name, port, scrape, server
        error: lottery.toml:16:10: `scrape` without `metrics`
           16 | scrape = "http://[::1]:9/"
              |          ^^^^^^^^^^^^^^^^^ add metrics = ["NAME=SERIES"] with what to take from the page
        8 errors
        "#);
    }
}
