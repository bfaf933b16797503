//! Members that are found: a file that is watched, names of DNS, a list over HTTP, each asked again and again; keys of etcd and the
//! endpoints of a service of Kubernetes, which are watched.
//!
//! A kind of source is a `Way`: its settings, which say what it is called and open a source that can be asked. One file
//! and one line in `Kind::way` make another. Here it is asked, each by a task of its
//! own ([`follow`]), so that one that hangs delays no other; what the answers come to is [`Roll`]'s, which knows no socket.

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

/// Most members of one source.
pub const MOST: usize = 4096;

/// One source of a group's members.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSettings {
    /// What is asked, and how.
    pub kind: Kind,
    /// Is an answer believed that has no member in it?
    pub allow_empty: bool,
    /// How long one stays that is not listed any more.
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
    /// A list that a server has.
    Http(HttpSettings),
    /// Keys of etcd.
    Etcd(EtcdSource),
    /// Endpoints of a service of Kubernetes.
    Kubernetes(KubernetesSource),
    /// Members that were registered with the balancer.
    Registered(RegisteredSettings),
    /// Members that the group's scaler started.
    Scaler(ScaledSettings),
}

impl Kind {
    /// What a kind can do.
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

    /// Tells whether it is a name of DNS, whose answers say nothing of whether anybody is there.
    fn named(&self) -> bool {
        matches!(self, Self::Dns(_) | Self::Srv(_))
    }

    /// As it is called in the configuration: `file`, `dns`, `srv`, `http`, `etcd`, `kubernetes`, `registered`, `scaler`.
    pub fn name(&self) -> &'static str {
        self.way().kind()
    }

    /// What is asked, as in the configuration.
    pub fn what(&self) -> String {
        self.way().what()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.what())
    }
}

/// Settings of a kind of source.
trait Way: Send + Sync {
    /// As in the configuration.
    fn kind(&self) -> &'static str;

    /// What is asked, for people.
    fn what(&self) -> String;

    /// For one answer as a whole.
    fn patience(&self) -> Duration;

    /// Before it is asked again after so many failures in a row, at least one.
    fn again(&self, failures: u32) -> Duration;

    /// Ready to be asked.
    fn open(&self) -> Box<dyn Source>;
}

/// Something that can be asked for members.
trait Source: Send {
    /// Asks once. May be given up at any moment, and is asked anew then.
    fn ask(&mut self) -> Asking<'_>;
}

type Asking<'a> = Pin<Box<dyn Future<Output = Result<Answer, String>> + Send + 'a>>;

/// What a source answered.
struct Answer {
    told: Told,
    /// It is asked again after that.
    good_for: Duration,
}

/// What a source says of its members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// All of them; `None` where they are those that it said last.
    pub members: Option<Vec<Listed>>,
    /// Why there is none, if there is none and it says why.
    pub note: Option<&'static str>,
}

/// A member that a source has.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// `host:port`, by which it is known.
    pub name: Arc<str>,
    /// Looked up.
    pub address: SocketAddr,
    /// Relative to the others; above 0.
    pub capacity: f64,
    /// Most requests, connections or flows at once; the group's if `None`.
    pub limit: Option<u32>,
    /// It still serves and is about to end: it is to get nothing new.
    pub leaving: bool,
}

/// A member as it is written: its host is not looked up yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Stated {
    /// A name, or an address without brackets.
    pub host: String,
    /// Not 0.
    pub port: u16,
    /// Relative to the others; above 0.
    pub capacity: f64,
    /// Most requests, connections or flows at once; the group's if `None`.
    pub limit: Option<u32>,
}

/// Reads a list of members: what messages call the text, and the text. The error is one line, with the place.
#[derive(Clone, Copy)]
pub struct Reader(pub fn(&str, &[u8]) -> Result<Vec<Stated>, String>);

impl PartialEq for Reader {
    /// There is one for each kind of source.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}

/// What was heard of a source.
#[derive(Debug)]
pub struct Heard {
    /// Whose members they are.
    pub group: Arc<str>,
    /// Which source of the group.
    pub source: Arc<SourceSettings>,
    /// What it said, or why it said nothing.
    pub said: Result<Told, String>,
}

/// Returns what went wrong as it may be shown: a source may say anything, of any length.
fn one_line(why: &str) -> String {
    const LONGEST: usize = 500;
    why.chars().take(LONGEST).map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// Asks a source for ever, or until nobody listens.
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
        // Several balancers that were started at once do not ask in step.
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
