//! `[[group.discover]]`: sources of members beside those that the file lists.

pub(super) mod kubernetes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kubernetes::KubernetesService;
use plimsoll_cluster::discover::{
    self as sources, DnsSettings, EtcdSource, FileSettings, HttpSettings, ListParser, RegisteredSettings,
    ResolverSettings, SourceKind, SourceSettings, SrvSettings,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::{ConfigDiagnostic, ConfigDiagnostics};
use super::members;
use super::root::millis;
use super::spans::SpanTree;
use super::store::KeyPrefix;
use super::{
    Config, ConfigFile, Domain, FilePath, GroupConfig, MemberAddress, MonitorUrl, ScalerConfig, TimeSpan,
};

/// A source of members: one of `file`, `dns`, `srv`, `http`, `etcd` and `kubernetes`, which the balancer
/// queries repeatedly, or `registered`. A source that fails keeps its members. An answer without any member
/// is ignored, unless `allow_empty` is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscoverConfig {
    /// File with `members = […]` in the format of the configuration, or with a JSON list if its name ends
    /// with `.json`. Checked every `interval`.
    #[schemars(extend("examples" = ["/etc/plimsoll/web.members"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FilePath>,

    /// Name and port: each address of the name (A, AAAA) is a member at this port.
    #[schemars(extend("examples" = ["web.example.org:8080"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<MemberAddress>,

    /// DNS service (SRV): its servers of the lowest priority are members, at their ports, with their weights
    /// as capacities.
    #[schemars(extend("examples" = ["_http._tcp.example.org"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub srv: Option<Domain>,

    /// URL of a JSON list of `"host:port"` strings, and of objects with `address` and optionally `capacity`
    /// and `max_connections`.
    #[schemars(extend("examples" = ["http://10.0.0.1:8500/v1/members"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<MonitorUrl>,

    /// Key prefix in the cluster of `[etcd]`. The value of each key is a member: `host:port`, or an object
    /// with `address` and optionally `capacity` and `max_connections`.
    #[schemars(extend("examples" = ["/services/web/"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<KeyPrefix>,

    /// Kubernetes service whose ready endpoints are members. The balancer watches its EndpointSlices.
    /// Requires a build with the feature `kubernetes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesService>,

    /// Uses members that agents or operators register with the balancer. They are kept in `[store]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub registered: bool,

    /// Interval between two queries (file, http). Default: 1s for a file, 5s for http.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<TimeSpan>,

    /// Timeout of a complete answer (dns, srv, http, kubernetes).
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1m"))]
    #[serde(default = "millis::<3000>")]
    pub timeout: TimeSpan,

    /// Name servers in the order in which they are queried: IP addresses and ports (dns, srv). Default: those
    /// of `/etc/resolv.conf`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resolver: Vec<MemberAddress>,

    /// Address families to use (dns, srv, kubernetes). With `any`, a pod with both kinds is used by its IPv4
    /// address only.
    #[serde(default)]
    pub family: FamilyFilter,

    /// Minimum time for which an answer is valid, whatever its time to live (dns, srv).
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default = "millis::<1000>")]
    pub min: TimeSpan,

    /// Maximum time for which an answer is valid, whatever its time to live (dns, srv).
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1d"))]
    #[serde(default = "millis::<300_000>")]
    pub max: TimeSpan,

    /// Accepts an answer without any member.
    #[serde(default)]
    pub allow_empty: bool,

    /// Time for which a member stays after the source has stopped listing it: for sources that return a part
    /// of their members each time.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "millis::<0>")]
    pub stale_ttl: TimeSpan,
}

/// Address families to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FamilyFilter {
    /// IPv4 and IPv6.
    #[default]
    Any,
    /// IPv4 only.
    Ipv4,
    /// IPv6 only.
    Ipv6,
}

/// The maximum number of sources of one group.
const MAX_SOURCES: usize = 16;

/// The kinds, each with its own keys.
const KINDS: [(&str, &[&str]); 7] = [
    ("file", &["interval"]),
    ("dns", &["timeout", "resolver", "family", "min", "max"]),
    ("srv", &["timeout", "resolver", "family", "min", "max"]),
    ("http", &["interval", "timeout"]),
    ("etcd", &[]),
    ("kubernetes", &["timeout", "family"]),
    ("registered", &[]),
];

impl DiscoverConfig {
    /// Returns the kinds that are set; none or several is an error.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        let (file, dns, srv) = (self.file.is_some(), self.dns.is_some(), self.srv.is_some());
        let (etcd, kubernetes) = (self.etcd.is_some(), self.kubernetes.is_some());
        let sources_set = [file, dns, srv, self.http.is_some(), etcd, kubernetes, self.registered];
        KINDS.iter().zip(sources_set).filter(|(_, is_set)| *is_set).map(|((kind, _), _)| *kind).collect()
    }

    /// Returns the time between two polls.
    fn interval(&self) -> Duration {
        let default_interval = if self.file.is_some() { 1 } else { 5 };
        self.interval.map_or_else(|| Duration::from_secs(default_interval), |interval| interval.0)
    }

    /// Returns the table with all defaults written out.
    pub(super) fn with_defaults(&self) -> Self {
        let mut completed = self.clone();
        if self.file.is_some() || self.http.is_some() {
            completed.interval = Some(TimeSpan(self.interval()));
        }
        completed
    }

    /// Returns the settings of the source; `None` only for tables that a checked file does not have.
    fn settings(&self, config: &Config) -> Option<SourceSettings> {
        let server = |server: &MemberAddress| Some(SocketAddr::new(server.host.parse().ok()?, server.port));
        let resolver = ResolverSettings {
            servers: self.resolver.iter().filter_map(server).collect(),
            timeout: self.timeout.0,
        };
        let family = match self.family {
            FamilyFilter::Any => sources::AddressFamily::Any,
            FamilyFilter::Ipv4 => sources::AddressFamily::V4,
            FamilyFilter::Ipv6 => sources::AddressFamily::V6,
        };
        let (min, max) = (self.min.0, self.max.0);
        let kind = if self.registered {
            SourceKind::Registered(RegisteredSettings { store: config.store_location() })
        } else if let Some(KeyPrefix(prefix)) = &self.etcd {
            let (etcd, parser) = (config.etcd.as_ref()?.settings(), ListParser(members::value));
            SourceKind::Etcd(EtcdSource { etcd, prefix: prefix.clone(), read: parser })
        } else if let Some(kubernetes) = &self.kubernetes {
            SourceKind::Kubernetes(kubernetes.source(family, self.timeout.0))
        } else if let Some(file) = &self.file {
            let json = file.0.extension().is_some_and(|extension| extension == "json");
            let parser = ListParser(if json { members::json } else { members::toml });
            SourceKind::File(FileSettings { path: file.0.clone(), interval: self.interval(), read: parser })
        } else if let Some(MemberAddress { host, port }) = &self.dns {
            SourceKind::Dns(DnsSettings { host: host.clone(), port: *port, family, resolver, min, max })
        } else if let Some(name) = &self.srv {
            let name = name.0.trim_end_matches('.').to_owned();
            SourceKind::Srv(SrvSettings { name, family, resolver, min, max })
        } else {
            let MonitorUrl { host, port, path } = self.http.clone()?;
            let (interval, timeout, parser) = (self.interval(), self.timeout.0, ListParser(members::answer));
            SourceKind::Http(HttpSettings { host, port, path, interval, timeout, read: parser })
        };
        // A registered member deregisters when it leaves, or its registration expires.
        let allow_empty = self.allow_empty || self.registered;
        Some(SourceSettings { kind, allow_empty, hold_time: self.stale_ttl.0 })
    }
}

/// A group with members from sources.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupDiscovery {
    /// The group's name.
    pub group: Arc<str>,
    /// The maximum of requests, connections or flows at once at each member without a limit of its own.
    pub limit: u32,
    /// The sources, in the order of the file.
    pub sources: Vec<Arc<SourceSettings>>,
}

impl ConfigFile {
    /// Returns the groups with members from sources.
    pub fn discoveries(&self) -> Vec<GroupDiscovery> {
        let discovery = |group: &GroupConfig| {
            let scaler_source = group.scaler.as_ref().and_then(ScalerConfig::source);
            let configured_sources =
                group.discover.iter().filter_map(|discover| discover.settings(&self.config));
            let sources: Vec<_> = configured_sources.chain(scaler_source).map(Arc::new).collect();
            (!sources.is_empty()).then(|| GroupDiscovery {
                group: group.name.0.as_str().into(),
                limit: group.max_connections.unwrap_or(u32::MAX),
                sources,
            })
        };
        self.config.groups.iter().filter_map(discovery).collect()
    }

    /// Reads the files of members that it names, as they are now; returns warnings, and the number of members
    /// in them.
    pub fn read_member_files(&self) -> (ConfigDiagnostics, usize) {
        let (mut warnings, mut count) = (Vec::new(), 0);
        for (index, group) in self.config.groups.iter().enumerate() {
            let spans = self.spans.key("group").item(index).key("discover");
            for (index, discover) in group.discover.iter().enumerate() {
                let Some(source) = discover.settings(&self.config) else { continue };
                let SourceKind::File(file) = source.kind else { continue };
                let file_span = spans.item(index).key("file").value_span();
                match file.member_count() {
                    Ok(0) if !source.allow_empty => {
                        let reason = "it lists no member, which is not believed";
                        let hint = "if it may be so, set allow_empty = true";
                        warnings.push(ConfigDiagnostic::warning(file_span, reason).hint(hint));
                    }
                    Ok(members) => count += members,
                    Err(error) => {
                        let hint = "nobody would be found in it until it is mended";
                        warnings.push(ConfigDiagnostic::warning(file_span, error).hint(hint));
                    }
                }
            }
        }
        (ConfigDiagnostics::new(Arc::clone(&self.source), warnings), count)
    }
}

/// Checks a group's sources.
pub(super) fn check(group: &GroupConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if group.discover.is_empty() {
        return;
    }
    if group.lottery.is_some() {
        let problem =
            ConfigDiagnostic::error(spans.key_span("discover"), "either `discover` or `lottery`, not both");
        diagnostics
            .push(problem.with_related(spans.key_span("lottery"), "its members are those that are drawn"));
    }
    let discover_spans = spans.key("discover");
    if group.discover.len() > MAX_SOURCES {
        let message = format!("group `{}` has more than {MAX_SOURCES} sources of members", group.name);
        diagnostics.push(ConfigDiagnostic::error(discover_spans.item(MAX_SOURCES).value_span(), message));
    }
    for (index, discover) in group.discover.iter().enumerate() {
        let spans = discover_spans.item(index);
        check_one(discover, spans, diagnostics);
        // A wrong part was left out, which may make two sources equal.
        let has_one_kind = discover.kinds().len() == 1;
        let duplicate = group.discover.iter().position(|other| has_one_kind && other == discover);
        if let Some(first) = duplicate.filter(|first| *first < index) {
            let problem = ConfigDiagnostic::error(spans.value_span(), "this source is there twice");
            diagnostics
                .push(problem.with_related(discover_spans.item(first).value_span(), "the first is here"));
        }
    }
}

fn check_one(discover: &DiscoverConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let kinds = discover.kinds();
    if KINDS.iter().any(|(kind, _)| spans.is_broken(kind)) {
        return;
    }
    let kind = match kinds.as_slice() {
        [kind] => *kind,
        [] => {
            let problem =
                ConfigDiagnostic::error(spans.value_span(), "a source of members without a place to look");
            diagnostics.push(problem.hint(
                "add file = \"…\", dns = \"name:port\", srv = \"_http._tcp.name\", http = \"http://…\", etcd \
                 = \"/…/\", \
                 kubernetes = { service = \"…\" } or registered = true",
            ));
            return;
        }
        [first, second, ..] => {
            let message = format!("either `{first}` or `{second}`, not both");
            let problem = ConfigDiagnostic::error(spans.key_span(second), message);
            diagnostics.push(
                problem.with_related(spans.key_span(first), "here").hint("make a [[group.discover]] of each"),
            );
            return;
        }
    };
    let keys = KINDS.iter().find(|(name, _)| *name == kind).map_or(&[][..], |(_, keys)| keys);
    let other_keys = KINDS.iter().flat_map(|(_, keys)| keys.iter());
    let mut idle: Vec<&str> =
        other_keys.copied().filter(|key| !keys.contains(key) && spans.has_key(key)).collect();
    idle.sort_unstable();
    idle.dedup();
    for key in idle {
        let message = format!("`{key}` has no effect: the source is of the kind `{kind}`");
        diagnostics.push(ConfigDiagnostic::warning(spans.key_span(key), message));
    }
    if let Some(kubernetes) = &discover.kubernetes {
        kubernetes.check(spans, diagnostics);
    }
    let address = |host: &str| host.parse::<std::net::IpAddr>().is_ok();
    if let Some(dns) = discover.dns.as_ref().filter(|dns| address(&dns.host)) {
        let message = format!("`dns` is the address {}, which nobody has to look up", dns.host);
        diagnostics.push(
            ConfigDiagnostic::error(spans.key("dns").value_span(), message).hint("write it in `members`"),
        );
    }
    for (index, server) in discover.resolver.iter().enumerate() {
        if !address(&server.host) {
            let message = format!("`resolver` has the name `{}`, which nobody could look up", server.host);
            let server_span = spans.key("resolver").item(index).value_span();
            diagnostics
                .push(ConfigDiagnostic::error(server_span, message).hint("write an IP address and a port"));
        }
    }
    if discover.min > discover.max && !spans.is_broken("min") && !spans.is_broken("max") {
        let message = format!("`min` ({}) must not be longer than `max` ({})", discover.min, discover.max);
        let key = if spans.has_key("min") { "min" } else { "max" };
        diagnostics.push(ConfigDiagnostic::error(spans.key(key).value_span(), message));
    }
}

#[cfg(test)]
mod tests;
