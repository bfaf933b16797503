//! Service discovery: a watched file, DNS names and a list over HTTP are polled; etcd keys and the endpoints
//! of a Kubernetes service are watched.
//!
//! A kind of source is a `SourceConfig`: settings with a name, which open a source to query. A new kind needs
//! one file and one line in `SourceKind::config`. This module queries each source in a task of its own
//! ([`poll_source`]), so one that hangs delays no other. [`MemberSet`], which does no I/O, merges the
//! results.

mod dns;
mod etcd;
mod file;
mod http;
mod kubernetes;
mod merge;
mod registered;
mod resolve_hosts;
mod resolver;
mod scaled;
mod srv;

#[cfg(fuzzing)]
pub(crate) use {
    etcd::invariants::check as etcd_law, kubernetes::invariants::check as kubernetes_law,
    resolver::invariants::check as resolver_law,
};

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

pub use dns::{AddressFamily, DnsSettings};
pub use etcd::EtcdSource;
pub use file::FileSettings;
pub use http::HttpSettings;
pub use kubernetes::{KUBERNETES_ENABLED, KubernetesApi, KubernetesSource, ServicePort};
pub use merge::{MemberChange, MemberSet, SourceEvent, SourceHandoff};
pub use registered::RegisteredSettings;
pub use resolve_hosts::resolve_members;
pub use resolver::ResolverSettings;
pub use scaled::ScaledSettings;
pub use srv::SrvSettings;

use crate::scrape::random_unit;

/// The maximum number of members of one source.
pub const MAX_MEMBERS: usize = 4096;

/// One source of a group's members.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSettings {
    /// The kind of source and its settings.
    pub kind: SourceKind,
    /// Whether an empty result is accepted.
    pub allow_empty: bool,
    /// The time that a member stays after it was last listed.
    pub hold_time: Duration,
}

/// The kinds of sources.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceKind {
    /// A file on this machine.
    File(FileSettings),
    /// The addresses of a name.
    Dns(DnsSettings),
    /// The servers of a service (RFC 2782).
    Srv(SrvSettings),
    /// A list on an HTTP server.
    Http(HttpSettings),
    /// Keys of etcd.
    Etcd(EtcdSource),
    /// Endpoints of a Kubernetes service.
    Kubernetes(KubernetesSource),
    /// Members that were registered with the balancer.
    Registered(RegisteredSettings),
    /// Members that the group's scaler started.
    Scaler(ScaledSettings),
}

impl SourceKind {
    /// Returns the settings as a trait object.
    fn config(&self) -> &dyn SourceConfig {
        match self {
            Self::File(file) => file,
            Self::Dns(dns) => dns,
            Self::Srv(srv) => srv,
            Self::Http(http) => http,
            Self::Etcd(etcd) => etcd,
            Self::Kubernetes(kubernetes) => kubernetes,
            Self::Registered(registered) => registered,
            Self::Scaler(scaled) => scaled,
        }
    }

    /// Returns `true` for DNS, whose results do not show whether a server runs at the address.
    fn is_dns(&self) -> bool {
        matches!(self, Self::Dns(_) | Self::Srv(_))
    }

    /// Returns the name in the configuration: `file`, `dns`, `srv`, `http`, `etcd`, `kubernetes`,
    /// `registered`, `scaler`.
    pub fn name(&self) -> &'static str {
        self.config().kind()
    }

    /// Returns the queried object, as in the configuration.
    pub fn target(&self) -> String {
        self.config().target()
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.target())
    }
}

/// The settings of a kind of source.
trait SourceConfig: Send + Sync {
    /// Returns the name in the configuration.
    fn kind(&self) -> &'static str;

    /// Returns the queried object, for people.
    fn target(&self) -> String;

    /// Returns the time limit of one query as a whole.
    fn query_timeout(&self) -> Duration;

    /// Returns the delay before the next query, after `failures` failures in a row (at least one).
    fn retry_delay(&self, failures: u32) -> Duration;

    /// Opens the source.
    fn open(&self) -> Box<dyn MemberSource>;
}

/// A source that can be queried for members.
trait MemberSource: Send {
    /// Queries the source once. Callers may drop the future at any moment and query again.
    fn query(&mut self) -> QueryFuture<'_>;
}

type QueryFuture<'a> = Pin<Box<dyn Future<Output = Result<QueryOutcome, String>> + Send + 'a>>;

/// The result of a query.
struct QueryOutcome {
    list: MemberList,
    /// The time until the next query.
    valid_for: Duration,
}

/// The members that a source reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemberList {
    /// All members; `None` if they are unchanged.
    pub members: Option<Vec<DiscoveredMember>>,
    /// The reason why there are no members, if the source gives one.
    pub note: Option<&'static str>,
}

/// A member of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveredMember {
    /// The member's name, `host:port`.
    pub name: Arc<str>,
    /// The resolved address.
    pub address: SocketAddr,
    /// The capacity relative to the others; above 0.
    pub capacity: f64,
    /// The maximum number of requests, connections or flows in flight; the group's if `None`.
    pub limit: Option<u32>,
    /// Whether the member is about to end: it still serves, but should get no new work.
    pub leaving: bool,
}

/// A member as listed, before its host is resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct UnresolvedMember {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port; not 0.
    pub port: u16,
    /// The capacity relative to the others; above 0.
    pub capacity: f64,
    /// The maximum number of requests, connections or flows in flight; the group's if `None`.
    pub limit: Option<u32>,
}

/// A parser for a list of members. It takes the text's name for messages, and the text. The error is one line
/// with the position.
#[derive(Clone, Copy)]
pub struct ListParser(pub fn(&str, &[u8]) -> Result<Vec<UnresolvedMember>, String>);

impl PartialEq for ListParser {
    /// Each kind of source has one parser.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for ListParser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}

/// An update from a source.
#[derive(Debug)]
pub struct SourceUpdate {
    /// The group of the members.
    pub group: Arc<str>,
    /// The source within the group.
    pub source: Arc<SourceSettings>,
    /// The members, or the reason of the failure.
    pub result: Result<MemberList, String>,
}

/// Returns an error message on one line of bounded length: a source may send any text.
fn one_line(message: &str) -> String {
    const MAX_LENGTH: usize = 500;
    message.chars().take(MAX_LENGTH).map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// Queries a source until the receiver is dropped.
pub async fn poll_source(group: Arc<str>, source: Arc<SourceSettings>, updates: mpsc::Sender<SourceUpdate>) {
    let config = source.kind.config();
    let mut member_source = config.open();
    let mut failures = 0_u32;
    loop {
        let outcome = match timeout(config.query_timeout(), member_source.query()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer within {} s", config.query_timeout().as_secs_f64())),
        };
        let (result, delay) = match outcome {
            Ok(QueryOutcome { list, valid_for }) => {
                failures = 0;
                (Ok(list), valid_for)
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                (Err(one_line(&error)), config.retry_delay(failures))
            }
        };
        let (group, source) = (Arc::clone(&group), Arc::clone(&source));
        if updates.send(SourceUpdate { group, source, result }).await.is_err() {
            return;
        }
        // Balancers that start at once must not query in step.
        sleep(delay.mul_f64(0.95 + 0.1 * random_unit())).await;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_source_says_is_one_line_of_bounded_length() {
        assert_eq!(
            super::one_line("EndpointSlice a\nb: `\u{1b}[2J` is no IP address"),
            "EndpointSlice a b: ` [2J` is no IP address"
        );
        assert_eq!(super::one_line(&"\u{e9}".repeat(1_000_000)).chars().count(), 500);
    }
}
