//! Service discovery: a watched file, DNS names and a list over HTTP are polled; etcd keys and the endpoints
//! of a Kubernetes service are watched.
//!
//! A kind of source is a `Way`: settings with a name, which open a source to query. A new kind needs one file
//! and one line in `Kind::way`. This module queries each source in a task of its own ([`follow`]), so one
//! that hangs delays no other. [`Roll`], which does no I/O, merges the results.

mod dns;
mod etcd;
mod file;
mod http;
mod kubernetes;
mod look_up;
mod registered;
mod resolver;
mod roll;
mod scaled;
mod srv;

#[cfg(fuzzing)]
pub(crate) use {
    etcd::law::check as etcd_law, kubernetes::law::check as kubernetes_law,
    resolver::law::check as resolver_law,
};

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

pub use dns::{DnsSettings, Family};
pub use etcd::EtcdSource;
pub use file::FileSettings;
pub use http::HttpSettings;
pub use kubernetes::{KUBERNETES, KubernetesApi, KubernetesSource, ServicePort};
pub use look_up::look_up;
pub use registered::RegisteredSettings;
pub use resolver::ResolverSettings;
pub use roll::{Change, Last, News, Roll};
pub use scaled::ScaledSettings;
pub use srv::SrvSettings;

use crate::pull::chance;

/// The maximum number of members of one source.
pub const MOST: usize = 4096;

/// One source of a group's members.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSettings {
    /// The kind of source and its settings.
    pub kind: Kind,
    /// Whether an empty result is accepted.
    pub allow_empty: bool,
    /// The time that a member stays after it was last listed.
    pub hold: Duration,
}

/// The kinds of sources.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
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

impl Kind {
    /// Returns the settings as a trait object.
    fn way(&self) -> &dyn Way {
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
    fn named(&self) -> bool {
        matches!(self, Self::Dns(_) | Self::Srv(_))
    }

    /// Returns the name in the configuration: `file`, `dns`, `srv`, `http`, `etcd`, `kubernetes`,
    /// `registered`, `scaler`.
    pub fn name(&self) -> &'static str {
        self.way().kind()
    }

    /// Returns the queried object, as in the configuration.
    pub fn what(&self) -> String {
        self.way().what()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.what())
    }
}

/// The settings of a kind of source.
trait Way: Send + Sync {
    /// Returns the name in the configuration.
    fn kind(&self) -> &'static str;

    /// Returns the queried object, for people.
    fn what(&self) -> String;

    /// Returns the time limit of one query as a whole.
    fn patience(&self) -> Duration;

    /// Returns the delay before the next query, after `failures` failures in a row (at least one).
    fn again(&self, failures: u32) -> Duration;

    /// Opens the source.
    fn open(&self) -> Box<dyn Source>;
}

/// A source that can be queried for members.
trait Source: Send {
    /// Queries the source once. Callers may drop the future at any moment and query again.
    fn ask(&mut self) -> Asking<'_>;
}

type Asking<'a> = Pin<Box<dyn Future<Output = Result<Answer, String>> + Send + 'a>>;

/// The result of a query.
struct Answer {
    told: Told,
    /// The time until the next query.
    good_for: Duration,
}

/// The members that a source reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// All members; `None` if they are unchanged.
    pub members: Option<Vec<Listed>>,
    /// The reason why there are no members, if the source gives one.
    pub note: Option<&'static str>,
}

/// A member of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
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
pub struct Stated {
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
pub struct Reader(pub fn(&str, &[u8]) -> Result<Vec<Stated>, String>);

impl PartialEq for Reader {
    /// Each kind of source has one parser.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}

/// An update from a source.
#[derive(Debug)]
pub struct Heard {
    /// The group of the members.
    pub group: Arc<str>,
    /// The source within the group.
    pub source: Arc<SourceSettings>,
    /// The members, or the reason of the failure.
    pub said: Result<Told, String>,
}

/// Returns an error message on one line of bounded length: a source may send any text.
fn one_line(why: &str) -> String {
    const LONGEST: usize = 500;
    why.chars().take(LONGEST).map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// Queries a source until the receiver is dropped.
pub async fn follow(group: Arc<str>, source: Arc<SourceSettings>, heard: mpsc::Sender<Heard>) {
    let way = source.kind.way();
    let mut open = way.open();
    let mut failures = 0_u32;
    loop {
        let asked = match timeout(way.patience(), open.ask()).await {
            Ok(asked) => asked,
            Err(_) => Err(format!("no answer within {} s", way.patience().as_secs_f64())),
        };
        let (said, wait) = match asked {
            Ok(Answer { told, good_for }) => {
                failures = 0;
                (Ok(told), good_for)
            }
            Err(why) => {
                failures = failures.saturating_add(1);
                (Err(one_line(&why)), way.again(failures))
            }
        };
        let (group, source) = (Arc::clone(&group), Arc::clone(&source));
        if heard.send(Heard { group, source, said }).await.is_err() {
            return;
        }
        // Balancers that start at once must not query in step.
        sleep(wait.mul_f64(0.95 + 0.1 * chance())).await;
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
